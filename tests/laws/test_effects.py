"""The effects of a rule happen as often, where and in the order that plain JAX has.

Each cell is a Function, one of its rules that has an effect, and a program. The same
program in plain JAX says what is right: the numbers, what one sees of the effects, and
how often the Python of each rule runs. `--full` has a bigger sample.
"""

import jax
import jax.numpy as jnp
import pytest

from tests import next_jax
from tests.build import function, saving
from tests.laws.effects import EFFECTS
from tests.laws.placements import (
    AXES,
    TAKEN,
    WRAPPINGS,
    Cell,
    is_different,
    sample,
)
from tests.laws.rules import KINDS, Kind
from tests.sizes import parametrize


def has_a_meaning(cell: Cell) -> bool:
    """Is it of the first order, and does JAX not refuse it?"""
    return len(cell.modes) < 2 and not is_refused(cell) and not is_different(cell)


def is_refused(cell: Cell) -> bool:
    """Does JAX refuse some such cell, without jaxfn?"""
    kind, before = cell.kind, cell.rule in ("forward", "setup_context")
    if "io_callback" in cell.acts:
        return (
            # The value that is asked for is differentiated where it is in the body.
            (kind.engine == "none" and cell.modes != ())
            or cell.wrapping == "checkpoint"
            or ("ordered" in cell.acts and cell.wrapping == "vmap")
        )
    if "check" in cell.acts and before and (kind.batch or next_jax.IS_ON):
        return True  # checkify does not look into a custom_vmap, nor a custom_vjp3
    # What has no reference any more is made of a custom_vjp, but not of others.
    is_primal = before and (cell.modes == () or cell.wrapping == "constant too")
    return cell.acts == "ref" and (kind.batch or is_primal)


BOTH, BATCHED = Kind("separate", "both"), Kind("separate", "both", batch=True)
ALWAYS = [
    Cell(BOTH, "jvp", "callback", "jit", "value of jvp", "alone"),
    Cell(BOTH, "jvp", "ordered print", "jit", "jvp", "alone"),
    Cell(BOTH, "jvp", "ordered io_callback", "jit", "jvp", "scan"),
    Cell(BOTH, "jvp", "check", "jit", "jvp", "alone"),
    Cell(BOTH, "jvp", "float check", "jit", "jvp", "alone"),
    Cell(BOTH, "jvp", "float check", "eager", "jvp", "alone"),
    Cell(BOTH, "jvp", "callback", "jit", "grad", "alone"),
    Cell(BOTH, "forward", "callback", "jit", "grad", "constant too"),
]


def pytest_generate_tests(metafunc):
    parametrize(
        metafunc,
        "cell",
        normal=ALWAYS + sample(EFFECTS, has_a_meaning)[::2],
        full=lambda times: sample(EFFECTS, has_a_meaning, times),
    )


def test_a_rule_has_the_effects_of_a_plain_one(cell: Cell, record_property):
    cell.check(EFFECTS[cell.acts])
    record_property("law", "equal")


# ---- the effects, the refusals and the sample are what they say


def test_every_axis_is_in_the_sample():
    """What is listed is not left out because no cell of it is valid."""
    found = sample(EFFECTS, has_a_meaning)
    axes = {axis: {getattr(cell, axis) for cell in found} for axis in AXES}
    assert axes["kind"] == set(KINDS)
    assert len(axes["rule"]) == 5
    assert axes["acts"] == set(EFFECTS)
    assert axes["taken"] == {name for name, t in TAKEN.items() if len(t.modes) < 2}
    assert axes["wrapping"] == set(WRAPPINGS)


@pytest.mark.parametrize(
    ("acts", "seen"),
    {
        "print": ["at [0.5  0.25]"],
        "ordered print": ["at [0.5  0.25]"],
        "callback": ["[0.5, 0.25]"],
        "ordered callback": ["[0.5, 0.25]"],
        "io_callback": ["[0.5, 0.25]"],
        "ordered io_callback": ["[0.5, 0.25]"],
        "check": "a zero was seen",
        "float check": "division by zero",
    }.items(),
    ids=str,
)
def test_an_effect_shows(acts, seen):
    for rule, taken in (("backward", "grad"), ("jvp", "jvp")):
        cell = Cell(BOTH, rule, acts, "jit", taken, "alone")
        assert cell.plain(EFFECTS[acts]).what[1] == seen
        other = {"backward": "jvp", "jvp": "backward"}[rule]
        cell = Cell(BOTH, other, acts, "jit", taken, "alone")
        assert not cell.plain(EFFECTS[acts]).what[1]


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (
            Cell(KINDS[-3], "forward", "io_callback", "jit", "jvp", "alone"),
            "callbacks do not support JVP",
        ),
        (
            Cell(BOTH, "forward", "ordered io_callback", "jit", "grad", "checkpoint"),
            "Effects not supported",
        ),
        (
            Cell(BOTH, "backward", "ordered io_callback", "jit", "grad", "vmap"),
            "Cannot `vmap` ordered",
        ),
        (
            Cell(BATCHED, "forward", "check", "jit", "grad", "alone"),
            "Cannot abstractly evaluate a checkify.check",
        ),
        (
            Cell(BOTH, "forward", "ref", "jit", "value", "alone"),
            "No state discharge rule",
        ),
        (
            Cell(BATCHED, "vmap", "ref", "jit", "value", "vmap"),
            "No state discharge rule",
        ),
    ],
    ids=str,
)
def test_jax_refuses(refused, words):
    assert is_refused(refused)
    with pytest.raises((ValueError, NotImplementedError), match=words):
        refused.plain(EFFECTS[refused.acts])


# ---- an effect of setup_context, of which no saved value is made, or an output is


def printing(ctx, inputs, output):
    jax.debug.callback(PRINTED.append, output)
    ctx.save_for_backward(*inputs)


def printing_and_computing(ctx, inputs, output):
    printing(ctx, inputs, output)
    ctx.twice = 2 * output


PRINTED = []
PROGRAMS = {
    "value": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "jit grad": lambda f: jax.jit(jax.grad(f)),
    "grad grad": lambda f: jax.grad(jax.grad(f)),
    "jit grad grad": lambda f: jax.jit(jax.grad(jax.grad(f))),
    "grad grad jit": lambda f: jax.grad(jax.grad(jax.jit(f))),
    "jvp grad": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1],
}


@pytest.mark.parametrize("setup_context", [printing, printing_and_computing])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_an_effect_of_setup_context_happens_once(program, setup_context):
    f = function(
        forward=lambda x: jnp.sin(x),
        setup_context=setup_context,
        backward=lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0]),
    ).apply
    PRINTED.clear()
    program(f)(jnp.float32(0.5))
    jax.effects_barrier()
    assert len(PRINTED) == 1


# How often an effect of backward happens in a second derivative: twice where backward
# is transposed, because JAX computes the gradient too.
SECOND = {
    "grad grad": (lambda f: jax.grad(jax.grad(f)), 1),
    "jacrev grad": (lambda f: jax.jacrev(jax.grad(f)), 1),
    "hessian": (jax.hessian, 2),
    "jit hessian": (lambda f: jax.jit(jax.hessian(f)), 2),
}


@pytest.mark.parametrize("name", SECOND)
def test_an_effect_of_backward_in_a_second_derivative(name):
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        jax.debug.callback(PRINTED.append, x)
        return g * jnp.cos(x)

    f = function(forward=jnp.sin, setup_context=saving(), backward=backward).apply
    program, times = SECOND[name]
    PRINTED.clear()
    program(f)(jnp.float32(0.5))
    jax.effects_barrier()
    assert len(PRINTED) == times
