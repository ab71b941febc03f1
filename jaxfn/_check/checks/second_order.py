"""Checks of second derivatives: derivatives of the backward and jvp rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from jaxfn._check import accuracy, finite_differences, numbers, shared
from jaxfn._check.case import Case
from jaxfn._check.compile import Call, Program
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome, Skip
from jaxfn._kernels import KernelDerivativeError, kernels

SURROGATE = (
    "a surrogate, without a reference: a second derivative goes through the rules, and "
    "this one is not the slope of the first"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Second:
    """A check of the derivative of backward or jvp, by differences of the same rule.

    If rules differ from the value's derivative on purpose, a second derivative is not
    always the slope of the first: JAX differentiates values of the function in it by
    the rules. It may equal the second derivative of the reference instead.

    Attributes:
        kind: The rule: "backward" or "jvp".
        mode: The mode of its derivative: "reverse" or "forward".
    """

    kind: str
    mode: str

    def plan(self, case: Case) -> Call:
        """Plan the derivative, with arguments, directions and cotangents."""
        generator = case.rng()
        of_backward = self.kind == "backward"
        given = case.cts(generator) if of_backward else case.ts(generator)
        args = [*case.xs, *given]
        along = [numbers.direction(x, generator) for x in args]
        outs = _quickly(case, self.kind)(*args)
        cts = [numbers.like(o, generator) for o in outs]
        derivative = _derivative(_first(case, case.f, self.kind), self.mode)
        return derivative, (args, along, cts)

    def __call__(self, case: Case) -> Outcome:
        try:
            return self._compared(case)
        except Skip:
            raise
        except Exception as error:
            if names := self._kernels(case, error):
                said = str(error).partition(". ")[0]
                raise Skip(f"kernels have no derivative ({names}): {said}") from error
            raise

    def _kernels(self, case: Case, error: Exception) -> str:
        """Name the kernels whose derivative this takes; empty if there are none.

        A kernel inside a Function with rules of its own has a derivative.
        """
        n = len(case.at)
        given = case.cts(case.rng()) if self.kind == "backward" else case.xs[:n]
        first = jax.make_jaxpr(_first(case, case.f, self.kind))(*case.xs, *given)
        is_ours = isinstance(error, KernelDerivativeError)
        found = kernels(first, inside_rules=is_ours)
        return ", ".join(dict.fromkeys(f"{k.kind} `{k.name}`" for k in found))

    def _compared(self, case: Case) -> Outcome:
        kind, mode = self.kind, self.mode
        (args, along, cts), found = case.computed(self.plan)
        quick = _quickly(case, kind)
        others = along if mode == "reverse" else cts
        outcome = _against_slopes(case, quick, args, along, cts, (found, others), None)
        if not outcome.ok:
            noise = accuracy.jumps(quick, args, along)
            if any(noise):
                outcome = _against_slopes(
                    case, quick, args, along, cts, (found, others), noise
                )
        if not outcome.ok and case.reference is not None:
            of_reference = _derivative(_first(case, case.reference_f, kind), mode)
            expected = numbers.pairing(Program(of_reference)(args, along, cts), others)
            got, size = numbers.pairing(found, others), numbers.size_of(found, others)
            other = shared.is_close(got, expected, size, case.slope_tolerance)
            outcome = other if other.ok else outcome
        elif not outcome.ok and case.surrogate:
            raise Skip(SURROGATE)
        where = f"slope of the {WHAT[kind]}s along a random direction: {outcome.where}"
        if outcome.ok and kind == "backward" and mode == "forward":
            _try_hessian(case)
        return dataclasses.replace(outcome, where=where)


def _try_hessian(case: Case) -> None:
    """Skip the check if JAX refuses the second derivative of a loss.

    jax.jvp of jax.vjp also gives the tangents of the outputs. Without a jvp, they need
    the transpose of backward. The comparison does not use them, so jit dropped them.
    Most losses use them.
    """

    def tangents(xs: Arrays, ts: Arrays) -> Arrays:
        return jax.jvp(lambda *xs: jax.vjp(case.f, *xs)[0], xs, ts)[1]

    if "jvp" in case.passed:
        return
    try:
        jax.jit(tangents).lower(case.xs, case.xs)
    except Exception as error:
        raise Skip(f"jax.hessian raises: {error}") from error


WHAT = {"backward": "gradient", "jvp": "tangent"}


def _against_slopes(
    case: Case,
    g: Callable[..., Arrays],
    args: Arrays,
    along: Arrays,
    cts: Arrays,
    got: tuple[Arrays, Arrays],
    noise: Sequence[float] | None,
) -> Outcome:
    """Compare the derivative of g, in a pairing, with the slopes of g."""
    slopes = finite_differences.slopes(g, args, along, case.eps, noise)
    if not all(s.settled.all() for s in slopes):
        low = [o for o in case.out_types if shared.eps_of([o]) > case.eps]
        hint = (
            f": an output is {low[0].dtype} and rounds; cast to x.dtype" if low else ""
        )
        raise Skip(
            f"the first derivative has no slope here that differences agree on{hint}"
        )
    return finite_differences.paired(case, got, slopes, cts)


def _quickly(case: Case, kind: str) -> Callable[..., Arrays]:
    n = len(case.at)
    first = case.quick_pull if kind == "backward" else case.quick_push
    return lambda *args: first(list(args[n:]), *args[:n])


def _first(case: Case, f: Callable[..., Arrays], kind: str) -> Callable[..., Arrays]:
    """Return a first derivative, as a function of arguments and (co)tangents."""
    n = len(case.at)
    if kind == "backward":
        return lambda *args: list(jax.vjp(f, *args[:n])[1](list(args[n:])))
    return lambda *args: jax.jvp(f, args[:n], args[n:])[1]


def _derivative(
    g: Callable[..., Arrays], mode: str
) -> Callable[[Arrays, Arrays, Arrays], Arrays]:
    """Return the derivative of g, along a direction or for cotangents."""

    def derivative(args: Arrays, along: Arrays, cts: Arrays) -> Arrays:
        if mode == "reverse":
            return list(jax.vjp(g, *args)[1](cts))
        return jax.jvp(g, args, along)[1]

    return derivative
