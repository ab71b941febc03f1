"""A jaxpr with linear solves, as a function that JAX can transpose.

`jax.lax.custom_linear_solve` finds x with A x = b, and is linear in b by contract:
x = A^-1 b, transposed ct -> A^-T ct, which is another solve. JAX transposes it only if
nothing else that the solve is given depends on b. That is more than the contract asks,
and the solvers of `jax.scipy.sparse.linalg` break it:

- an initial guess of zeros goes through one `device_put` together with b. That is one
  operation for all operands, so that the guess seems to depend on b;
- gmres computes its tolerance from the norm of b, outside of the solve.

So an operation of independent operands is split into one for each here. And what a
solver is given beside its matrix is computed anew inside the solve, from the right-hand
side that the solver gets there, or what it is a multiple of. In the transposed solve
that is ct and not b, and the tolerance is relative to it, as it should be. An initial
guess that is made of something else can't be computed so; it is zero there, which leads
to the same solution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import jax

from jaxfn._base import compat
from jaxfn._engine.inlining import bodies, has_solve, inlined, read

Undo = Callable[[Any], Any]


def separated(closed: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """Return the function of a jaxpr, with solves that JAX can transpose.

    A solve that can't be rewritten is left as it was.
    """
    n_in = len(compat.open_jaxpr(closed)[0].invars)
    return lambda args: _Run(closed, args, [True] * n_in).outs()


class _Run:
    """One evaluation of a jaxpr, which knows what depends on the arguments.

    Args:
        closed: the jaxpr.
        args: its arguments.
        moving: for each, whether it depends on what is transposed.
    """

    def __init__(
        self, closed: Any, args: Sequence[Any], moving: Sequence[bool]
    ) -> None:
        closed, held = inlined(closed)
        self._jaxpr, consts = compat.open_jaxpr(closed)
        args, moving = [*held, *args], [*[False] * len(held), *moving]
        names = zip(self._jaxpr.invars, moving, strict=True)
        self._moving = {id(var) for var, moves in names if moves}
        self._env: dict[int, Any] = {}
        self._write(self._jaxpr.constvars, consts)
        self._write(self._jaxpr.invars, args)

    def outs(self) -> list[Any]:
        """Evaluate the equations one by one, and return the outputs."""
        for i, eqn in enumerate(self._jaxpr.eqns):
            self._write(eqn.outvars, self._equation(i, eqn))
            self._moving |= _reached([eqn], self._moving)
        return [read(self._env, x) for x in self._jaxpr.outvars]

    def _write(self, names: Sequence[Any], values: Sequence[Any]) -> None:
        self._env.update(zip(map(id, names), values, strict=True))

    def _equation(self, i: int, eqn: Any) -> list[Any]:
        """Evaluate one equation, rewritten if solves need it."""
        values = [read(self._env, x) for x in eqn.invars]
        moves = [id(x) in self._moving for x in eqn.invars]
        name = eqn.primitive.name
        if name in compat.PAIRED:
            return _apart(eqn, values)
        if name == "custom_linear_solve":
            found = self._solve(i, eqn, values, moves)
            if found is not None:
                return found
        if any(map(has_solve, bodies(eqn))):
            if name == "scan":
                return _scan(eqn, values, moves)
            # A branch that is chosen by what is transposed is not linear, in any way.
            if name == "cond" and not moves[0]:
                return _cond(eqn, values, moves)
        return compat.evaluate_equation(eqn, values)

    def _solve(
        self, i: int, eqn: Any, values: list[Any], moves: list[bool]
    ) -> list[Any] | None:
        """Evaluate a solve whose parameters depend on its right-hand side.

        Return None for any other: JAX can transpose it as it is, or not at all.
        """
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        n_matrix = lengths.matvec + lengths.vecmat
        n_consts = sum(lengths)
        n_b = len(values) - n_consts
        given = eqn.invars[n_matrix:n_consts]
        b = eqn.invars[n_consts:]
        # If the matrix moves, the solve is not linear. If nothing of the solver moves,
        # there is nothing to do. Without a transposed solver JAX can't transpose it.
        # And the solve that is made below has no auxiliary results.
        if (
            any(moves[:n_matrix])
            or not any(moves[n_matrix:n_consts])
            or jaxprs.transpose_solve is None
            or len(eqn.outvars) != n_b
        ):
            return None
        # Its parameters can be computed from b, unless the arguments reach them in
        # another way than through b. Then only a guess has another value that will do.
        before = self._jaxpr.eqns[:i]
        names = _names(before, b)
        arguments = self._moving & {id(x) for x in self._jaxpr.invars}
        otherwise = _reached(before, arguments, cut=names.keys())
        loose = [k for k, x in enumerate(given) if id(x) in otherwise]
        if not all(_is_guess(eqn, k) for k in loose):
            return None
        guesses = {id(given[k]) for k in loose}

        # A solver computes its parameters from the right-hand side that it is given, as
        # the program has computed them from b.
        def solver(jaxpr: Any, start: int, length: int) -> Callable[..., Any]:
            consts = given[start : start + length]

            def solve(_: Any, rhs: Sequence[Any]) -> tuple[Any, ...]:
                changed = {x: undo(rhs[k]) for x, (k, undo) in names.items()}
                at = self._again(before, changed, consts, guesses)
                return tuple(compat.evaluate(jaxpr, [*at, *rhs]))

            return solve

        def matvec(x: Sequence[Any]) -> tuple[Any, ...]:
            held = values[: lengths.matvec]
            return tuple(compat.evaluate(jaxprs.matvec, [*held, *x]))

        return list(
            jax.lax.custom_linear_solve(
                matvec,
                tuple(values[n_consts:]),
                solver(jaxprs.solve, 0, lengths.solve),
                solver(jaxprs.transpose_solve, lengths.solve, lengths.transpose_solve),
                symmetric=jaxprs.vecmat is jaxprs.matvec,
            )
        )

    def _again(
        self,
        eqns: Sequence[Any],
        changed: dict[int, Any],
        want: Sequence[Any],
        guesses: AbstractSet[int],
    ) -> list[Any]:
        """Compute the values that `want` would have if these were `changed`.

        Only equations that `want` needs and that depend on them are evaluated again.
        What is among the `guesses` is zero: a solver gets to the solution from there.
        """
        stale = set(changed)
        zeros = {id(x): compat.zeros(x.aval) for x in want if id(x) in guesses}
        changed = {**changed, **zeros}
        env = {**self._env, **changed}
        needed = {id(x) for x in want} - changed.keys()
        chosen: list[Any] = []
        for eqn in reversed(eqns):
            if not needed.isdisjoint(map(id, eqn.outvars)):
                chosen.append(eqn)
                needed |= {id(x) for x in eqn.invars} - changed.keys()
        for eqn in reversed(chosen):
            if stale.isdisjoint(map(id, eqn.invars)):
                continue
            values = [read(env, x) for x in eqn.invars]
            stale |= {id(x) for x in eqn.outvars}
            found = compat.evaluate_equation(eqn, values)
            # What depends on a part of b may compute another part: that stays rhs.
            for x, value in zip(eqn.outvars, found, strict=True):
                env[id(x)] = changed.get(id(x), value)
        return [read(env, x) for x in want]


def _names(eqns: Sequence[Any], b: Sequence[Any]) -> dict[int, tuple[int, Undo]]:
    """Find the values that follow from `b`: of which it is a copy, or a multiple.

    Returns:
        For each which of `b` that is, and how the value follows from it.
    """
    names: dict[int, tuple[int, Undo]] = {id(x): (k, _same) for k, x in enumerate(b)}
    for eqn in reversed(eqns):
        if eqn.primitive.name in compat.PAIRED:
            pairs = zip(eqn.invars, eqn.outvars, strict=True)
            names |= {id(x): names[id(y)] for x, y in pairs if id(y) in names}
        elif id(eqn.outvars[0]) in names and (found := _undone(eqn)) is not None:
            k, after = names[id(eqn.outvars[0])]
            x, undo = found
            names.setdefault(id(x), (k, partial(_chained, undo, after)))
    return names


def _same(x: Any) -> Any:
    return x


def _chained(undo: Undo, after: Undo, x: Any) -> Any:
    return undo(after(x))


def _undone(eqn: Any) -> tuple[Any, Undo] | None:
    """Return the operand of an operation, and how to get it from the result.

    None for any but a change of sign and the product with a number that is written in
    the program.
    """
    name, numbers = eqn.primitive.name, [x for x in eqn.invars if hasattr(x, "val")]
    others = [x for x in eqn.invars if not hasattr(x, "val")]
    if name == "neg":
        return others[0], jax.lax.neg
    if len(numbers) != 1 or not numbers[0].val:
        return None
    if name == "mul":
        return others[0], lambda x: x / numbers[0].val
    if name == "div" and eqn.invars[1] is numbers[0]:
        return others[0], lambda x: x * numbers[0].val
    return None


def _is_guess(eqn: Any, k: int) -> bool:
    """Is parameter k of the solvers of a solve only where they start from?

    By contract the solution is the same from anywhere.
    """
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    n_consts = sum(lengths)
    b = eqn.invars[n_consts:]
    x = eqn.invars[lengths.matvec + lengths.vecmat + k]
    if not any(rhs.aval == x.aval for rhs in b):
        return False
    if k < lengths.solve:
        return compat.is_guess(jaxprs.solve, k, len(b))
    return compat.is_guess(jaxprs.transpose_solve, k - lengths.solve, len(b))


def _reached(
    eqns: Sequence[Any], sources: set[int], cut: AbstractSet[int] = frozenset()
) -> set[int]:
    """Find what depends on the sources, and these, but not through the cut."""
    reached = sources - cut
    for eqn in eqns:
        # Each of its results depends on one operand alone.
        if eqn.primitive.name in compat.PAIRED:
            pairs = zip(eqn.invars, eqn.outvars, strict=True)
            found = {id(y) for x, y in pairs if id(x) in reached}
        elif reached.isdisjoint(map(id, eqn.invars)):
            continue
        else:
            found = {id(y) for y in eqn.outvars}
        reached |= found - cut
    return reached


def _apart(eqn: Any, values: list[Any]) -> list[Any]:
    """Evaluate one operation as one for each operand, with zeros for the others."""
    zeros = [compat.zeros(jax.typeof(x)) for x in values]
    return [
        compat.evaluate_equation(eqn, [*zeros[:i], x, *zeros[i + 1 :]])[i]
        for i, x in enumerate(values)
    ]


def _cond(eqn: Any, values: list[Any], moves: list[bool]) -> list[Any]:
    """Evaluate a cond, in whose branches solves are rewritten."""

    def choice(body: Any) -> Callable[..., list[Any]]:
        return lambda *args: _Run(body, args, moves[1:]).outs()

    branches = [choice(body) for body in eqn.params["branches"]]
    return jax.lax.switch(values[0].astype("int32"), branches, *values[1:])


def _scan(eqn: Any, values: list[Any], moves: list[bool]) -> list[Any]:
    """Evaluate a scan, in whose body solves are rewritten."""
    params, body = eqn.params, eqn.params["jaxpr"]
    n_consts, n_carry = compat.scan_counts(params)
    n_head = n_consts + n_carry
    consts = values[:n_consts]
    # A carry that does not move at first may do so later on: all of them count.
    carried = [any(moves)] * n_carry
    moves = [*moves[:n_consts], *carried, *moves[n_head:]]

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = _Run(body, [*consts, *carry, *xs], moves).outs()
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
