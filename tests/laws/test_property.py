"""Random Functions have the derivatives of plain JAX code with the same mathematics.

A plan says everything about a Function: its arguments, a tree of arrays and statics; a
few operations, each on earlier values; which values are outputs, in which tree; which
are saved, where; the style; the engine. What is not saved, the rules compute again from
what is. 5 plans in a normal run and 200 with `--full`, always the same;
`pytest --hypothesis-profile=thorough tests/laws/test_property.py` tries 20,000 others.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jax import lax

from tests.build import function, rules_of

# For each operation: its value, its derivatives times g, and its tangent. A tangent
# of None is zero.
OPERATIONS = {
    "sin": (jnp.sin, lambda g, a: (g * jnp.cos(a),)),
    "scale": (lambda a: 1.5 * a, lambda g, a: (1.5 * g,)),
    "multiply": (jnp.multiply, lambda g, a, b: (g * b, g * a)),
    "add": (jnp.add, lambda g, a, b: (g, g)),
}
USE_VALUES = ("sin", "multiply")
BINARY = ("multiply", "add")
ENGINES = ("backward", "jvp", "both", "derived")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The place of a value in a tree."""

    node: int


@dataclasses.dataclass
class Plan:
    """What one random Function is.

    Attributes:
        shapes: of the inputs, which are the first nodes.
        integer: the node of the integer input, if there is one.
        steps: the operation and the operands of each further node.
        args: trees that hold each input once.
        outputs: trees that hold nodes; one tree, or a tuple of several.
        marked: output nodes that have no derivative.
        saved: how a node is saved: "tensor", "attribute" or not at all.
        materialize: for set_materialize_grads.
        style: combined or separate.
        vmap: has it a vmap staticmethod?
        engine: one of ENGINES.
        needs: the inputs that are differentiated.
        seed: of the values.
    """

    shapes: list[tuple[int, ...]]
    integer: int | None
    steps: list[tuple[str, tuple[int, ...]]]
    args: tuple[Any, ...]
    outputs: Any
    marked: set[int]
    saved: dict[int, str]
    materialize: bool
    style: str
    vmap: bool
    engine: str
    needs: list[int]
    seed: int


# ---- strategies

STATICS = st.sampled_from([None, 3, 2.5, "text", True, len])


@st.composite
def trees(draw: Any, leaves: list[Leaf], *, as_tuple: bool) -> Any:
    """Some trees that together hold these leaves in any order, and statics."""
    items = draw(st.permutations(leaves + draw(st.lists(STATICS, max_size=2))))
    groups, start = [], 0
    while start < len(items):
        stop = start + draw(st.integers(1, 3))
        groups.append(draw(_wrapped(items[start:stop], alone=as_tuple)))
        start = stop
    return tuple(groups) if as_tuple or len(groups) > 1 else groups[0]


def _wrapped(items: list[Any], *, alone: bool) -> st.SearchStrategy[Any]:
    """A container of these; a tuple that is alone would be several outputs."""
    named = dict(zip("cab", items, strict=False))
    choices = [list(items), named, {"in": [tuple(items), None]}]
    if alone:
        choices.append(tuple(items))
    if len(items) == 1:
        choices += [items[0]] * 3
    return st.sampled_from(choices)


@st.composite
def plans(draw: Any) -> Plan:
    n = draw(st.integers(1, 3))
    shapes = draw(st.lists(st.sampled_from([(), (2,)]), min_size=n, max_size=n))
    floats = list(range(n))
    integer = n if draw(st.booleans()) else None
    if integer is not None:
        shapes.append(draw(st.sampled_from([(), (2,)])))
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(sorted(OPERATIONS)))
        operands = [draw(st.sampled_from(floats))]
        if name in BINARY:
            others = floats if integer is None else [*floats, integer]
            operands.append(draw(st.sampled_from(others)))
        floats.append(len(shapes) + len(steps))
        steps.append((name, tuple(operands)))
    out = draw(st.lists(st.sampled_from(floats), min_size=1, max_size=3))
    if integer is not None and draw(st.booleans()):
        out.append(integer)
    style = draw(st.sampled_from(["combined", "separate"]))
    inputs = list(range(len(shapes)))
    can_save = {*inputs, *out} if style == "separate" else {*inputs, *floats}
    how = st.sampled_from(["tensor", "attribute", None])
    saved = {i: where for i in sorted(can_save) if (where := draw(how))}
    _save_what_rules_need(saved, steps, len(inputs))
    can_mark = [i for i in sorted({*out}) if i not in saved and i >= len(inputs)]
    return Plan(
        shapes=shapes,
        integer=integer,
        steps=steps,
        args=draw(trees([Leaf(i) for i in inputs], as_tuple=True)),
        outputs=draw(trees([Leaf(i) for i in out], as_tuple=False)),
        marked=draw(st.sets(st.sampled_from(can_mark))) if can_mark else set(),
        saved=saved,
        materialize=draw(st.booleans()),
        style=style,
        vmap=style == "separate" and draw(st.booleans()),
        engine=draw(st.sampled_from(ENGINES)),
        needs=sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))),
        seed=draw(st.integers(0, 9)),
    )


def _save_what_rules_need(saved: dict[int, str], steps: Any, n_inputs: int) -> None:
    """Save also the inputs that the rules need, directly or to compute something."""

    def need(i: int) -> None:
        if i in saved:
            return
        if i < n_inputs:
            saved[i] = "tensor"
        else:
            for operand in steps[i - n_inputs][1]:
                need(operand)

    for name, operands in steps:
        if name in USE_VALUES:
            for i in operands:
                need(i)


# ---- the mathematics of a plan


def fill(tree: Any, value: Any) -> Any:
    """The tree with a value in each place, and its statics."""
    return jax.tree.map(
        lambda x: value(x.node) if isinstance(x, Leaf) else x, tree, is_leaf=_is_none
    )


def fill_only(tree: Any, value: Any) -> Any:
    """The tree with a value in each place, and None for its statics."""
    return jax.tree.map(
        lambda x: value(x.node) if isinstance(x, Leaf) else None, tree, is_leaf=_is_none
    )


def read(tree: Any, filled: Any) -> list[tuple[int, Any]]:
    """Each place's node, and the value there."""
    places = jax.tree.leaves(tree, is_leaf=_is_none)
    found = jax.tree.leaves(filled, is_leaf=_is_none)
    pairs = zip(places, found, strict=True)
    return [(place.node, x) for place, x in pairs if isinstance(place, Leaf)]


def _is_none(x: Any) -> bool:
    return x is None


class Values:
    """The values of all nodes, computed when asked for from those that are known."""

    def __init__(self, plan: Plan, known: dict[int, Any]) -> None:
        self.plan, self.known = plan, dict(known)

    def __call__(self, i: int) -> Any:
        if i not in self.known:
            name, operands = self.plan.steps[i - len(self.plan.shapes)]
            self.known[i] = OPERATIONS[name][0](*map(self, operands))
        return self.known[i]


def shape(plan: Plan, i: int) -> tuple[int, ...]:
    """Of a node."""
    n = len(plan.shapes)
    if i < n:
        return plan.shapes[i]
    return np.broadcast_shapes(*(shape(plan, o) for o in plan.steps[i - n][1]))


def pull_back(plan: Plan, value: Values, grads: dict[int, Any]) -> dict[int, Any]:
    """The gradients of all nodes from those of the outputs; None is zero.

    Those of inputs may have the shape of what the input was broadcast to.
    """

    def reduced(i: int) -> Any:
        g = grads[i]
        return g.sum() if g.shape != shape(plan, i) else g

    n = len(plan.shapes)
    for i, (name, operands) in reversed(list(enumerate(plan.steps, n))):
        if grads.get(i) is None:
            continue
        known = [value(o) if name in USE_VALUES else None for o in operands]
        terms = OPERATIONS[name][1](reduced(i), *known)
        for o, term in zip(operands, terms, strict=True):
            if o == plan.integer:
                continue
            before, grads[o] = grads.get(o), term
            if before is not None:
                after = reduced(o)
                grads[o] = before
                grads[o] = reduced(o) + after
    return grads


def push_forward(plan: Plan, value: Values, dots: dict[int, Any]) -> dict[int, Any]:
    """The tangents of all nodes from those of the inputs; None is zero."""
    for i, (name, operands) in enumerate(plan.steps, len(plan.shapes)):
        known = [value(o) if name in USE_VALUES else None for o in operands]
        terms = [
            OPERATIONS[name][1](dots[o], *known)[k]
            for k, o in enumerate(operands)
            if dots[o] is not None
        ]
        dots[i] = jnp.broadcast_to(sum(terms), shape(plan, i)) if terms else None
    return dots


# ---- the Function of a plan


def build(plan: Plan) -> Any:
    """The Function: forward in the plan's style, and the rules of its engine."""

    def compute(args: Any) -> Values:
        return Values(plan, dict(read(plan.args, args)))

    def save(ctx: Any, value: Any) -> None:
        at = {
            where: [i for i, w in plan.saved.items() if w == where]
            for where in ("tensor", "attribute")
        }
        tensors = [value(i) for i in at["tensor"]]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.kept = {"values": [value(i) for i in at["attribute"]], "at": at}
        ctx.set_materialize_grads(plan.materialize)

    def saved(ctx: Any) -> Values:
        at, values = ctx.kept["at"], ctx.kept["values"]
        known = dict(zip(at["tensor"], ctx.saved_tensors, strict=True))
        return Values(plan, known | dict(zip(at["attribute"], values, strict=True)))

    def combined(ctx: Any, *args: Any) -> Any:
        value = compute(args)
        save(ctx, value)
        out = fill(plan.outputs, value)
        ctx.mark_non_differentiable(*(value(i) for i in plan.marked))
        return out

    def separate(*args: Any) -> Any:
        return fill(plan.outputs, compute(args))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        known = dict(read(plan.outputs, output)) | dict(read(plan.args, inputs))
        save(ctx, known.__getitem__)
        marked = [x for i, x in read(plan.outputs, output) if i in plan.marked]
        ctx.mark_non_differentiable(*marked)

    def backward(ctx: Any, *grads: Any) -> Any:
        given = grads if isinstance(plan.outputs, tuple) else grads[0]
        totals: dict[int, Any] = {}
        for i, g in read(plan.outputs, given):
            if g is not None and i != plan.integer and i not in plan.marked:
                totals[i] = totals[i] + g if i in totals else g
        found = pull_back(plan, saved(ctx), totals)
        return fill_only(plan.args, found.get)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        found = push_forward(plan, saved(ctx), dict(read(plan.args, tangents)))
        without = {*plan.marked, plan.integer}
        return fill_only(plan.outputs, lambda i: None if i in without else found[i])

    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        arrays, dims = dict(read(plan.args, args)), dict(read(plan.args, in_dims))
        nodes = [i for i, _ in read(plan.outputs, plan.outputs)]
        values = jax.vmap(
            lambda known: {i: Values(plan, known)(i) for i in nodes},
            in_axes=(dims,),
            axis_size=info.batch_size,
        )(arrays)
        return fill(plan.outputs, values.get), fill_only(plan.outputs, lambda _: 0)

    rules = rules_of(plan.engine, backward, jvp)
    if plan.style == "separate":
        rules |= {"forward": separate, "setup_context": setup_context}
    else:
        rules["forward"] = combined
    if plan.vmap:
        rules["vmap"] = vmap
    return function("Random", **rules)


# ---- what is compared


def losses(plan: Plan, xs: list[Any]) -> tuple[Any, Any]:
    """A number from the outputs as a function of the inputs that are differentiated,
    by the Function and by plain code."""
    apply = build(plan).apply

    def total(outs: list[tuple[int, Any]]) -> Any:
        return sum(((k + x / 2) * x).sum() for k, (_, x) in enumerate(outs, 1))

    def arrays(diff: list[Any]) -> dict[int, Any]:
        return {**dict(enumerate(xs)), **dict(zip(plan.needs, diff, strict=True))}

    def by_function(diff: list[Any]) -> Any:
        out = apply(*fill(plan.args, arrays(diff).get))
        assert jax.tree.structure(out) == jax.tree.structure(plan.outputs)
        return total(read(plan.outputs, out))

    def by_plain_code(diff: list[Any]) -> Any:
        value = Values(plan, arrays(diff))
        outs = [(i, value(i)) for i, _ in read(plan.outputs, plan.outputs)]
        return total(
            [(i, lax.stop_gradient(x) if i in plan.marked else x) for i, x in outs]
        )

    return by_function, by_plain_code


def assert_close(got: Any, expected: Any) -> None:
    """To float32's 1e-7 for each of some tens of operations, on numbers up to 100."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a, b, rtol=1e-5, atol=1e-5 * max(1, np.abs(b).max())
        ),
        got,
        expected,
    )


def directional(f: Any, mode: str, way: list[Any]) -> Any:
    """The derivative of `f` along `way`, by reverse or forward mode."""
    if mode == "forward":
        return lambda x: jax.jvp(f, (x,), (way,))[1]
    return lambda x: sum(
        (g * w).sum() for g, w in zip(jax.grad(f)(x), way, strict=True)
    )


MODES = st.sampled_from(["reverse", "forward"])


random = given(plan=plans(), inner=MODES, outer=MODES)


@random
def test_a_random_function_has_the_derivatives_of_its_mathematics(plan, inner, outer):
    check(plan, inner, outer)


@pytest.mark.full
@settings(max_examples=200)
@random
def test_many_random_functions_have_them(plan, inner, outer):
    check(plan, inner, outer)


def check(plan, inner, outer):
    event(f"{plan.engine}, {plan.style}")
    rng = np.random.default_rng(plan.seed)
    xs = [jnp.asarray(rng.uniform(-1, 1, s), jnp.float32) for s in plan.shapes]
    if plan.integer is not None:
        xs[plan.integer] = jnp.asarray(xs[plan.integer] * 3, jnp.int32)
    diff = [xs[i] for i in plan.needs]
    way, other = (
        [jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in diff] for _ in range(2)
    )
    ours, plain = losses(plan, xs)
    assert_close(ours(diff), plain(diff))
    ours_both, plain_both = jax.value_and_grad(ours), jax.value_and_grad(plain)
    assert_close(ours_both(diff), plain_both(diff))

    batch = [jnp.stack([x, 0.5 * x]) for x in diff]
    if plan.vmap:
        assert_close(jax.vmap(ours)(batch), jax.vmap(plain)(batch))
    assert_close(jax.vmap(ours_both)(batch), jax.vmap(plain_both)(batch))

    slope = directional(plain, "forward", way)
    if plan.engine == "backward":
        inner = "reverse"
        with pytest.raises(TypeError, match="can't apply forward-mode"):
            directional(ours, "forward", way)(diff)
    else:
        assert_close(directional(ours, "forward", way)(diff), slope(diff))
    got = directional(directional(ours, inner, way), outer, other)(diff)
    assert_close(got, directional(slope, "forward", other)(diff))
