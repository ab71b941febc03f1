"""What a look at a derivative costs: as much for each of many arguments as of few."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxfn
from jaxfn._methods import again
from tests.build import function

HERE = str(Path(jaxfn.__file__).parent)


def lines_run(f):
    """Count the lines of jaxfn that are run while `f` is: a time without noise."""
    count = 0

    def local(frame, event, arg):
        nonlocal count
        count += event == "line"
        return local

    def tracer(frame, event, arg):
        return local if frame.f_code.co_filename.startswith(HERE) else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        f()
    finally:
        sys.settrace(before)
    return count


def each(n):
    """A Function whose every output depends on one argument alone."""
    return function(
        forward=lambda ctx, *xs: tuple(2 * x for x in xs),
        backward=lambda ctx, *gs: tuple(2 * g for g in gs),
    )


def chained(n):
    """One whose every output depends on all arguments so far, and each saved."""

    def forward(ctx, *xs):
        outs = [xs[0]]
        for x in xs[1:]:
            outs.append(outs[-1] * x)
        ctx.save_for_backward(*xs, *outs)
        return tuple(outs)

    def backward(ctx, *gs):
        xs, outs = ctx.saved_tensors[:n], ctx.saved_tensors[n:]
        found, ct = [], gs[-1]
        for i in reversed(range(1, n)):
            found.append(ct * outs[i - 1])
            ct = gs[i - 1] + ct * xs[i]
        return (ct, *reversed(found))

    return function(forward=forward, backward=backward)


def called(n):
    """One whose forward is a jitted function of all."""
    return function(
        forward=lambda ctx, *xs: jax.jit(lambda *xs: tuple(2 * x for x in xs))(*xs),
        backward=lambda ctx, *gs: tuple(2 * g for g in gs),
    )


# In a chain every second pair of an output and an argument has a derivative, and each
# of these is looked at: so the cost does grow, but by little.
@pytest.mark.parametrize(("make", "limit"), [(each, 1.3), (called, 1.3), (chained, 2)])
@pytest.mark.parametrize("engine", ["backward", "derived"])
def test_the_cost_of_an_argument_does_not_grow_with_their_number(make, limit, engine):
    def traced(n):
        double = make(n)
        double.generate_jvp_rule = engine == "derived"
        xs = [jnp.float32(i + 1) for i in range(n)]
        gradient = jax.grad(lambda xs: sum(double.apply(*xs)))
        return lambda: jax.jit(gradient).trace(xs)

    few, many = lines_run(traced(8)) / 8, lines_run(traced(64)) / 64
    assert many < limit * few


@pytest.mark.parametrize("engine", ["backward", "jvp", "both", "derived"])
def test_rules_that_apply_their_own_function_are_looked_at_once(engine):
    """Permuting, with the inverse beside the order: its derivative is itself."""

    def forward(ctx, x, order, ranks):
        ctx.save_for_backward(order, ranks)
        ctx.save_for_forward(order, ranks)
        return 2 * x[order]

    def backward(ctx, g):
        order, ranks = ctx.saved_tensors
        ran.append("backward")
        return permute.apply(g, ranks, order), None, None

    def jvp(ctx, t, *_):
        order, ranks = ctx.saved_tensors
        ran.append("jvp")
        return permute.apply(t, order, ranks)

    ran = []
    rules = {"backward": backward} if engine != "jvp" else {}
    rules |= {"jvp": jvp} if engine in ("jvp", "both") else {}
    permute = function(forward=forward, **rules, generate_jvp_rule=engine == "derived")
    order, x = jnp.array([2, 0, 1]), jnp.float32([1, 2, 3])

    def loss(x):
        return (permute.apply(x, order, jnp.argsort(order)) ** 2).sum()

    assert jax.jit(jax.grad(loss))(x).tolist() == [8, 16, 24]
    # In the look, where the gradient is taken, and where JAX traces what they apply.
    assert len(ran) <= 6


@pytest.mark.parametrize("engine", ["backward", "both", "derived"])
def test_a_setup_context_that_runs_once_is_compared_with_nothing(engine, monkeypatch):
    """To compare, values are brought to the host: on a GPU all would wait for that."""

    def compared(*values):
        raise AssertionError("read the values of a gradient that is taken once")

    monkeypatch.setattr(again, "are_other_values", compared)
    rules = {"backward": lambda ctx, g: 3 * ctx.saved_tensors[0] * g}
    if engine == "both":
        rules["jvp"] = lambda ctx, t: 3 * ctx.saved_tensors[0] * t

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    derived = engine == "derived"
    f = function(
        forward=jnp.exp,
        setup_context=setup_context,
        generate_jvp_rule=derived,
        **rules,
    ).apply
    assert jax.grad(f)(0.0) == 3
