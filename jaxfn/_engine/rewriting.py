"""A jaxpr as a function that JAX can transpose.

What is rewritten here is linear all the same, in what is transposed:

- a linear solve that is given more than JAX allows (`solves`);
- `lax.stop_gradient`, whose value is its operand;
- a test for NaN or infinity of the arguments, or of what is made of them alone, which
  has one result for all finite numbers (`finite`);
- a choice between values and NaN that comes out, which is a product with 1 or NaN;
- a call of a function with `custom_vmap`, which is made a `batched`;
- an operation of independent operands, which is split into one for each.

Of what does not depend on the arguments nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import tree_util

from jaxfn._base import Outputs, compat
from jaxfn._engine.batched import differentiable
from jaxfn._engine.finite import (
    coming_out,
    filled_with_nan,
    has_derivative,
    is_nan,
    of_finite,
    with_nan,
)
from jaxfn._engine.inlining import holds, inlined, is_rewritten, read
from jaxfn._engine.solves import Program, again, reached, reached_by, solved


def rewritten(closed: Any, example: list[Any]) -> Any:
    """Return a jaxpr in operations that JAX can transpose.

    What can't be rewritten is left as it was.

    Args:
        closed: the jaxpr.
        example: its arguments.
    """
    if not is_rewritten(closed):
        return closed
    moving = [True] * len(example)

    def run(args: list[Any]) -> list[Any]:
        return _Run(closed, args, moving, finite=True, alone=True, whole=True).outs()

    return jax.make_jaxpr(run)(example)


# Of finite numbers they make finite numbers (but for overflow).
_KEEPING = frozenset(
    ("add", "add_any", "sub", "mul", "neg", "abs", "reduce_sum", "convert_element_type")
    + ("broadcast_in_dim", "reshape", "select_n", "scatter-add", "stop_gradient")
)
# To these an integer says which elements to take, or where to put them. (A gather is
# not among them: where it finds nothing, it gives NaN.)
_PLACING = frozenset(("scatter-add", "select_n"))


class _Run:
    """One evaluation of a jaxpr, which knows what depends on the arguments.

    Args:
        closed: the jaxpr.
        args: its arguments.
        moving: for each, whether it depends on what is transposed.
        finite: are those that do finite wherever what is transposed is?
        alone: are they made of it alone, without a factor that has a derivative?
        whole: is it the whole program, and not what an operation in it holds?
    """

    def __init__(
        self,
        closed: Any,
        args: Sequence[Any],
        moving: Sequence[bool],
        *,
        finite: bool,
        alone: bool,
        whole: bool = False,
    ) -> None:
        closed, held = inlined(closed)
        jaxpr, consts = compat.open_jaxpr(closed)
        args, moving = [*held, *args], [*[False] * len(held), *moving]
        names = zip(jaxpr.invars, moving, strict=True)
        self._program = Program(jaxpr, {}, {id(var) for var, moves in names if moves})
        self._alone = alone
        self._finite = set(self._program.moving) if finite else set[int]()
        self._known: set[int] = set()
        self._filled = filled_with_nan(jaxpr)
        self._out = coming_out(jaxpr, self._filled) if whole else set[int]()
        self._write(jaxpr.constvars, consts)
        self._write(jaxpr.invars, args)

    def outs(self) -> list[Any]:
        """Evaluate the equations one by one, and return the outputs."""
        program = self._program
        for i, eqn in enumerate(program.jaxpr.eqns):
            known = self._is_known(eqn)
            self._write(eqn.outvars, self._equation(i, eqn, known=known))
            if eqn.primitive.name in _KEEPING and self._is_finite(eqn):
                self._finite.update(map(id, filter(has_derivative, eqn.outvars)))
            if known:
                self._known.update(map(id, eqn.outvars))
            else:
                program.moving |= reached_by(eqn, program.moving)
        return [read(program.env, x) for x in program.jaxpr.outvars]

    def _write(self, names: Sequence[Any], values: Sequence[Any]) -> None:
        self._program.env.update(zip(map(id, names), values, strict=True))

    def _equation(self, i: int, eqn: Any, *, known: bool) -> list[Any]:
        """Evaluate one equation, rewritten if that is needed."""
        values = [read(self._program.env, x) for x in eqn.invars]
        moves = [id(x) in self._program.moving for x in eqn.invars]
        if known and any(moves):
            return [np.full(eqn.outvars[0].aval.shape, of_finite(eqn))]
        found = self._rewritten(i, eqn, values, moves) if any(moves) else None
        if found is not None:
            return found
        with jax.ensure_compile_time_eval() if known else nullcontext():
            return compat.evaluate_equation(eqn, values)

    def _is_known(self, eqn: Any) -> bool:
        """Does an equation follow from tests alone, as which branch of a cond to take?

        Then its value is known now.
        """
        given = {id(x) for x in eqn.invars if not hasattr(x, "val")}
        if of_finite(eqn) is not None and not given.isdisjoint(self._program.moving):
            # A constant would not vary over the axes of a mesh, as its result does.
            varies = any(map(compat.varying_axes, (x.aval for x in eqn.invars)))
            return self._is_finite(eqn) and not varies
        return bool(given) and given <= self._known and not eqn.effects

    def _is_finite(self, eqn: Any) -> bool:
        """Is nothing in an equation but what is finite if what is transposed is?

        What was saved may be infinite, and what is multiplied by it too; or zero, if it
        is an integer, and divide something.
        """
        name = eqn.primitive.name
        return all(
            of_finite(eqn) is not None or bool(np.isfinite(np.asarray(x.val)).all())
            if hasattr(x, "val")
            else id(x) in self._finite
            or id(x) in self._known
            or (name in _PLACING and not has_derivative(x))
            for x in eqn.invars[1 if name == "cond" else 0 :]
        )

    def _rewritten(
        self, i: int, eqn: Any, values: list[Any], moves: list[bool]
    ) -> list[Any] | None:
        """Evaluate an equation in other operations; None if there is no need."""
        name = eqn.primitive.name
        if name in compat.PAIRED:
            return _apart(eqn, values)
        if name == "stop_gradient":
            return self._stopped(i) if self._alone else None
        pairs = zip(eqn.invars, moves, strict=True)
        alone = all(id(x) in self._finite for x, moved in pairs if moved)
        inside = partial(_Run, finite=self._is_finite(eqn), alone=alone)
        if name == "custom_vmap_call":
            return _batched(eqn, values, moves, inside)
        if name == "custom_linear_solve":
            return solved(self._program, i, values, moves)
        known = id(eqn.invars[0]) in self._known
        if name in ("select_n", "cond") and known and (k := _chosen(values[0])) >= 0:
            if name == "select_n":
                return [values[1 + k]]
            branch = eqn.params["branches"][k]
            return inside(branch, values[1:], moves[1:]).outs()
        if name == "select_n" and not moves[0] and id(eqn.outvars[0]) in self._out:
            nans = [is_nan(x, self._filled) for x in eqn.invars[1:]]
            if any(nans):
                return [with_nan(values[0], values[1:], nans, moves[1:])]
        if name == "scan" and holds(eqn):
            return _scan(eqn, values, moves, inside)
        # A branch that is chosen by what is transposed is not linear, in any way.
        if name == "cond" and holds(eqn) and not moves[0]:
            return _cond(eqn, values, moves, inside)
        return None

    def _stopped(self, i: int) -> list[Any]:
        """Evaluate a stop_gradient: its operand, whose factors have no derivative.

        Transposed, it is the identity. What the arguments are multiplied by, on their
        way to it, keeps the zero derivative that it gets from here. (Inside of a loop
        or a branch it is not known what they have been multiplied by outside.)
        """
        program = self._program
        jaxpr, env, moving = program.jaxpr, program.env, program.moving
        given = [x for x in (*jaxpr.constvars, *jaxpr.invars) if id(x) not in moving]
        still = {id(x): jax.lax.stop_gradient(env[id(x)]) for x in given}
        return again(env, jaxpr.eqns[:i], still, jaxpr.eqns[i].invars)


Inside = Callable[..., _Run]
"""Makes the run of a jaxpr that an equation holds, from its arguments and which of
these depend on what is transposed."""


def _chosen(index: Any) -> int:
    """Return which of several is chosen, if it is the same everywhere; else -1."""
    found = set(np.ravel(index).tolist())
    return int(found.pop()) if len(found) == 1 else -1


def _apart(eqn: Any, values: list[Any]) -> list[Any]:
    """Evaluate one operation as one for each operand, with zeros for the others."""
    zeros = [compat.zeros(jax.typeof(x)) for x in values]
    return [
        compat.evaluate_equation(eqn, [*zeros[:i], x, *zeros[i + 1 :]])[i]
        for i, x in enumerate(values)
    ]


def _batched(
    eqn: Any, values: list[Any], moves: list[bool], inside: Inside
) -> list[Any]:
    """Evaluate a call of a function with custom_vmap, so that it has a transpose.

    Its body and its batch rule are rewritten too.
    """
    params = eqn.params
    body, rule, tree = params["call"], params["rule"], params["in_tree"]

    def fun(*arrays: Any) -> Outputs:
        return Outputs(inside(body, arrays, moves).outs(), None)

    def batch(
        size: int, batched: Sequence[bool], arrays: list[Any]
    ) -> tuple[Outputs, Outputs]:
        flags: list[bool] = []

        def flat(*arrays: Any) -> list[Any]:
            args = tree.unflatten(arrays)
            outs, found = rule(size, list(tree.unflatten(batched)), *args)
            flags[:] = tree_util.tree_leaves(found)
            return tree_util.tree_leaves(outs)

        closed, held = compat.trace_flat(flat, arrays)
        moving = [*[False] * len(held), *moves]
        outs = inside(closed, [*held, *arrays], moving).outs()
        return Outputs(outs, None), Outputs(flags, None)

    return differentiable(fun, batch, name="custom_vmap")(*values).arrays


def _cond(eqn: Any, values: list[Any], moves: list[bool], inside: Inside) -> list[Any]:
    """Evaluate a cond, whose branches are rewritten."""

    def choice(body: Any) -> Callable[..., list[Any]]:
        return lambda *args: inside(body, args, moves[1:]).outs()

    branches = [choice(body) for body in eqn.params["branches"]]
    return jax.lax.switch(values[0].astype("int32"), branches, *values[1:])


def _moved(body: Any, moves: list[bool], start: int, end: int) -> list[bool]:
    """Say which inputs of the body of a scan move, in any step.

    Args:
        body: its jaxpr.
        moves: for each input, whether it moves in the first step.
        start: of what is carried, among the inputs.
        end: of it.
    """
    jaxpr, _ = compat.open_jaxpr(body)
    while True:  # ever more of them move, so this ends
        names = zip(jaxpr.invars, moves, strict=True)
        found = reached(jaxpr.eqns, {id(x) for x, m in names if m})
        after = [id(x) in found for x in jaxpr.outvars[: end - start]]
        pairs = zip(moves[start:end], after, strict=True)
        now = [*moves[:start], *[a or b for a, b in pairs], *moves[end:]]
        if now == moves:
            return now
        moves = now


def _scan(eqn: Any, values: list[Any], moves: list[bool], inside: Inside) -> list[Any]:
    """Evaluate a scan, whose body is rewritten."""
    params, body = eqn.params, eqn.params["jaxpr"]
    n_consts, n_carry = compat.scan_counts(params)
    n_head = n_consts + n_carry
    consts = values[:n_consts]
    moves = _moved(body, moves, n_consts, n_head)
    # Nothing is known of what the steps before have made of what is carried.
    if any(moves[n_consts:n_head]):
        inside = partial(inside, finite=False, alone=False)

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = inside(body, [*consts, *carry, *xs], moves).outs()
        return outs[:n_carry], outs[n_carry:]

    carry, ys = jax.lax.scan(
        step,
        values[n_consts:n_head],
        values[n_head:],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *ys]
