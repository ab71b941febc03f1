"""A rule runs inside the caller's contexts, and as often as in plain JAX.

Each cell is a Function, one of its rules that reads a context, and a program that
enters the context around a transformed call. The same program in plain JAX says what is
right: the numbers, what the context leaves in the lowered text, and how often the
Python of each rule runs. `--full` has a bigger sample.
"""

import dataclasses
from contextlib import nullcontext

import jax
import numpy as np
import pytest

from tests.laws.contexts import CONTEXTS, X
from tests.laws.effects import EFFECTS
from tests.laws.placements import (
    AXES,
    DIFFERENT,
    EXCEPTIONS,
    OUTSIDE,
    TAKEN,
    WEIGHTS,
    WRAPPINGS,
    Cell,
    is_different,
    same,
    sample,
)
from tests.laws.rules import KINDS, Kind
from tests.sizes import parametrize


def has_a_meaning(cell: Cell) -> bool:
    """Does the context concern the Function, and can one see it?"""
    kind = cell.kind
    if is_different(cell):
        return False
    if CONTEXTS[cell.acts].text and cell.rule == "setup_context":
        # What setup_context computes stands in the text also where nobody uses it, and
        # once more for each derivative of the outputs. XLA drops and merges it.
        return cell.modes == ("reverse",)
    if cell.acts == "x64" and cell.wrapping == "constant too":
        # Outside, JAX makes a zero of a type that it has inside alone, and warns.
        return cell.modes == () or cell.rule != "forward"
    if cell.acts == "hooks":
        is_class = kind.form != "decorator"
        return is_class and kind.has_backward and len(cell.modes) == 1
    return cell.outside != "eager" or CONTEXTS[cell.acts].text is None


BACKWARD, BOTH = Kind("combined", "backward"), Kind("combined", "both")
ALWAYS = [
    Cell(BACKWARD, "backward", "global", "jit", "hessian", "alone"),
    Cell(BACKWARD, "forward", "global", "grad of jit", "grad", "alone"),
    Cell(BOTH, "jvp", "global", "jit", "jvp", "alone"),
    Cell(BOTH, "jvp", "precision", "jit of scan", "jvp", "scan"),
    Cell(Kind("separate", "derived"), "backward", "prng", "jit", "jvp", "alone"),
    Cell(
        Kind("separate", "jvp"), "setup_context", "global", "jvp of jit", "jvp", "jit"
    ),
    # JAX differentiates a branch twice, and a loop until it is settled.
    Cell(BOTH, "forward", "global", "grad of jit", "grad", "cond"),
    Cell(BACKWARD, "forward", "global", "grad of jit", "grad", "cond"),
    Cell(BOTH, "forward", "global", "jvp of jit", "jvp", "scan"),
]


def pytest_generate_tests(metafunc):
    parametrize(
        metafunc,
        "cell",
        normal=ALWAYS + sample(CONTEXTS, has_a_meaning)[::2],
        full=lambda times: sample(CONTEXTS, has_a_meaning, times),
    )


def test_a_rule_runs_in_the_contexts_of_its_caller(cell: Cell, record_property):
    cell.check(CONTEXTS[cell.acts])
    record_property("law", "equal")


# ---- the contexts, the twins and the sample are what they say


def test_every_axis_is_in_the_sample():
    """What is listed is not left out because no cell of it is valid."""
    found = sample(CONTEXTS, has_a_meaning)
    axes = [{getattr(cell, axis) for cell in found} for axis in AXES]
    assert [len(values) for values in axes] == [
        len(KINDS), 5, len(CONTEXTS), len(OUTSIDE), len(TAKEN), len(WRAPPINGS)
    ]  # fmt: skip


@pytest.mark.parametrize("name", [n for n, c in CONTEXTS.items() if c.factor])
def test_a_context_shows_in_the_numbers(name):
    context = CONTEXTS[name]
    with context.scope({}):
        inside = context.act(jax.numpy.asarray(X), X)
    assert same(np.asarray(context.act(jax.numpy.asarray(X), X)), X)
    assert same(np.asarray(inside), context.factor * X)


@pytest.mark.parametrize("name", [n for n, c in CONTEXTS.items() if c.text])
def test_a_context_shows_in_the_text(name):
    cell = Cell(Kind("combined", "backward"), "backward", name, "jit", "grad", "alone")
    assert cell.plain(CONTEXTS[name]).what == (1, 1)
    outside = dataclasses.replace(CONTEXTS[name], scope=lambda _: nullcontext())
    assert cell.plain(outside).what == (1, 0)


def numbers(kind: Kind) -> dict[str, float]:
    """By hand, for numbers x: the factors of x x, x, x, and x x."""
    tangent = 5 if kind.has_jvp else 3
    first = 2 * (3 if kind.has_backward else 5)  # g kept, or its transpose
    outer = 4 if kind.is_native else 2 * tangent  # of the body, or by the rule
    return {
        "value": 2,
        "grad": first,
        "jvp": 2 * tangent,
        "hessian": 2 * outer * first + 2 * 2 * first,
    }


UNBATCHED = [kind for kind in KINDS if not kind.batch]


@pytest.mark.parametrize("kind", UNBATCHED, ids=str)
@pytest.mark.parametrize("rule", ["forward", "setup_context", "backward", "jvp"])
def test_the_twins_compute_what_one_computes_by_hand(kind, rule):
    def plain(taken):
        cell = Cell(kind, rule, "global", "eager", taken, "alone")
        return cell.plain(CONTEXTS["global"]).what

    def factor(*rules):
        return 3 ** (rule in rules)

    n = numbers(kind)
    kept = "setup_context" if kind.form == "separate" else "forward"
    value = 2 * X * X * factor("forward")
    assert same(plain("value"), value)
    acts = factor(kept, "backward" if kind.has_backward else "jvp")
    assert same(plain("grad"), acts * n["grad"] * X * WEIGHTS)
    if kind.engine != "backward":
        acts = factor(kept, "jvp" if kind.has_jvp else "backward")
        assert same(plain("jvp"), value + 8 * acts * n["jvp"] * X * WEIGHTS)


@pytest.mark.parametrize("kind", UNBATCHED, ids=str)
def test_the_second_derivatives_of_the_twins_are_those_of_the_rules(kind):
    context = dataclasses.replace(CONTEXTS["global"], scope=lambda _: nullcontext())
    cell = Cell(kind, "forward", "global", "eager", "hessian", "alone")
    assert same(cell.plain(context).what, numbers(kind)["hessian"] * X * X * WEIGHTS)


def test_the_twin_of_a_batch_rule_computes_what_one_computes_by_hand():
    for kind in KINDS:
        cell = Cell(kind, "vmap", "global", "eager", "value", "vmap")
        expected = 5 * X * X * (3 * 14 if kind.batch else 2)
        assert same(cell.plain(CONTEXTS["global"]).what, expected)


EXAMPLES = [
    Cell(BOTH, "forward", "global", "eager", "grad", "alone"),
    Cell(BACKWARD, "forward", "global", "eager", "grad of grad", "alone"),
    Cell(Kind("combined", "derived"), "forward", "hooks", "eager", "grad", "alone"),
    Cell(Kind("decorator", "both"), "backward", "global", "eager", "jvp", "alone"),
]


@pytest.mark.parametrize(
    ("exception", "example"), list(zip(EXCEPTIONS, EXAMPLES, strict=True))
)
def test_an_exception_differs(exception, example):
    acting = CONTEXTS[example.acts]
    assert exception.concerns(example, {"pack": 1})
    expected, plain = example.expected(acting).runs, example.plain(acting).runs
    assert expected[exception.rule] > plain[exception.rule]
    assert example.got(acting).runs == expected


@pytest.mark.parametrize("row", DIFFERENT, ids=[row.why for row in DIFFERENT])
def test_what_is_left_out_differs(row):
    cell = row.example
    acting = CONTEXTS.get(cell.acts) or EFFECTS[cell.acts]
    assert row.concerns(cell)
    got, expected = cell.got(acting), cell.expected(acting)
    assert not same(got.what, expected.what) or got.runs != expected.runs
