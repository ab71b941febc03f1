"""Linear solves in a jaxpr, so that JAX can transpose them.

`jax.lax.custom_linear_solve` finds x with A x = b, and is linear in b by contract:
x = A^-1 b, transposed ct -> A^-T ct, which is another solve. JAX transposes it only if
nothing else that the solve is given depends on b. That is more than the contract asks,
and the solvers of `jax.scipy.sparse.linalg` break it:

- an initial guess of zeros goes through one `device_put` together with b. That is one
  operation for all operands, so that the guess seems to depend on b;
- gmres computes its tolerance from the norm of b, outside of the solve.

So an operation of independent operands is split into one for each (`rewriting`). And
what a solver is given beside its matrix is computed anew inside the solve, from the
right-hand side that the solver gets there, or what it is a multiple of. In the
transposed solve that is ct and not b, and the tolerance is relative to it, as it should
be. An initial guess that is made of something else can't be computed so; it is zero
there, which leads to the same solution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import jax

from jaxfn._base import compat
from jaxfn._engine.inlining import read

Undo = Callable[[Any], Any]


@dataclasses.dataclass(slots=True)
class Program:
    """A jaxpr that is evaluated equation by equation.

    Attributes:
        jaxpr: the jaxpr.
        env: by the identity of each variable, its value.
        moving: the identities of the variables that depend on what is transposed.
    """

    jaxpr: Any
    env: dict[int, Any]
    moving: set[int]


def solved(
    program: Program, i: int, values: list[Any], moves: list[bool]
) -> list[Any] | None:
    """Evaluate a solve whose parameters depend on its right-hand side.

    Return None for any other: JAX can transpose it as it is, or not at all.

    Args:
        program: that the solve is a part of.
        i: which of its equations is the solve.
        values: its operands.
        moves: for each, whether it depends on what is transposed.
    """
    eqn, before = program.jaxpr.eqns[i], program.jaxpr.eqns[:i]
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
    names = _names(before, b)
    arguments = program.moving & {id(x) for x in program.jaxpr.invars}
    otherwise = reached(before, arguments, cut=names.keys())
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
            at = again(program.env, before, changed, consts, guesses)
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


def again(
    env: dict[int, Any],
    eqns: Sequence[Any],
    changed: dict[int, Any],
    want: Sequence[Any],
    guesses: AbstractSet[int] = frozenset(),
) -> list[Any]:
    """Compute the values that `want` would have if these were `changed`.

    Only equations that `want` needs and that depend on them are evaluated again.
    What is among the `guesses` is zero: a solver gets to the solution from there.
    """
    stale = set(changed)
    zeros = {id(x): compat.zeros(x.aval) for x in want if id(x) in guesses}
    changed = {**changed, **zeros}
    env = {**env, **changed}
    needed = {id(x) for x in want} - changed.keys()
    chosen: list[Any] = []
    for eqn in reversed(eqns):
        if not needed.isdisjoint(map(id, eqn.outvars)):
            chosen.append(eqn)
            needed |= {id(x) for x in eqn.invars} - changed.keys()
    for eqn in reversed(chosen):
        # What has an effect does not happen again.
        if eqn.effects or stale.isdisjoint(map(id, eqn.invars)):
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
        elif (
            eqn.outvars
            and id(eqn.outvars[0]) in names
            and (found := _undone(eqn)) is not None
        ):
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


def reached(
    eqns: Sequence[Any], sources: set[int], cut: AbstractSet[int] = frozenset()
) -> set[int]:
    """Find what depends on the sources, and these, but not through the cut."""
    reached = sources - cut
    for eqn in eqns:
        reached |= reached_by(eqn, reached) - cut
    return reached


def reached_by(eqn: Any, sources: AbstractSet[int]) -> set[int]:
    """Find the results of an equation that depend on the sources."""
    # Each of its results depends on one operand alone.
    if eqn.primitive.name in compat.PAIRED:
        pairs = zip(eqn.invars, eqn.outvars, strict=True)
        return {id(y) for x, y in pairs if id(x) in sources}
    if sources.isdisjoint(map(id, eqn.invars)):
        return set()
    return {id(y) for y in eqn.outvars}
