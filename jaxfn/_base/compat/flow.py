"""Which operands of an equation get to which of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxfn._base.compat.jaxprs import has_named_axes, open_jaxpr, scan_counts

LeftOut = Callable[[Any], bool]
"""Does an equation, as a whole, let nothing through?"""


def results(eqn: Any, operands: Sequence[int], left_out: LeftOut) -> list[int]:
    """Say for each result of an equation which bits of its operands get to it.

    A result is batched where such an operand is. An equation that holds jaxprs may keep
    its operands apart, so these are followed; where that can't be, it is one operation.
    """
    n = len(eqn.outvars)
    name, params = eqn.primitive.name, eqn.params
    if name in PAIRED:
        return list(operands)
    if not params:  # as of most operations
        return [_any(operands)] * n
    if _keeps_places(eqn):
        return list(operands[len(operands) - n :])
    if name in _CALLS:
        return _through(params.get("jaxpr") or params["call_jaxpr"], operands, left_out)
    if name in _FOLLOWED:
        return _FOLLOWED[name](params, operands, left_out)
    if left_out(eqn):
        return [0] * n
    return [_any(operands)] * n


PAIRED = frozenset(("device_put", "optimization_barrier"))
"""Operations of many operands, each with a result of its own."""

# Their jaxpr has the inputs and outputs of the equation, in the same order.
_CALLS = (
    *("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"),
    *("remat2", "checkpoint"),
)


def _through(jaxpr: Any, inputs: Sequence[int], left_out: LeftOut) -> list[int]:
    """Say for each output of a jaxpr which bits of its inputs get to it."""
    opened, _ = open_jaxpr(jaxpr)
    # By identity: a literal, which has no bits, can't be looked up by value.
    env = {id(var): bits for var, bits in zip(opened.invars, inputs, strict=True)}
    for eqn in opened.eqns:
        operands = [env.get(id(x), 0) for x in eqn.invars]
        outs = results(eqn, operands, left_out)
        env.update((id(v), bits) for v, bits in zip(eqn.outvars, outs, strict=True))
    return [env.get(id(x), 0) for x in opened.outvars]


# As JAX batches it: what is carried is batched where it is before the first step, or
# after any.
def _scan(
    params: dict[str, Any], operands: Sequence[int], left_out: LeftOut
) -> list[int]:
    """Follow a scan, to the end of any number of steps."""
    n_consts, n_carry = scan_counts(params)
    consts, carry, xs = _split(operands, n_consts, n_carry)
    return _repeated(params["jaxpr"], consts, carry, xs, left_out)


# As JAX batches it: where the examples differ in their number of steps, each has a
# carry of its own.
def _while(
    params: dict[str, Any], operands: Sequence[int], left_out: LeftOut
) -> list[int]:
    """Follow a while_loop, to the end of any number of steps."""
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, carry = _split(operands, n_cond, n_body)
    carry = _repeated(params["body_jaxpr"], of_body, carry, [], left_out)
    (goes_on,) = _through(params["cond_jaxpr"], [*of_cond, *carry], left_out)
    return [bits | goes_on for bits in carry]


# As JAX batches it: where the examples take different branches, each has results of its
# own.
def _cond(
    params: dict[str, Any], operands: Sequence[int], left_out: LeftOut
) -> list[int]:
    """Follow all branches of a cond or switch."""
    index, *rest = operands
    outs = [_through(branch, rest, left_out) for branch in params["branches"]]
    return [index | _any(of_branches) for of_branches in zip(*outs, strict=True)]


_FOLLOWED = {"scan": _scan, "while": _while, "cond": _cond}


def _repeated(
    body: Any,
    consts: Sequence[int],
    carry: Sequence[int],
    xs: Sequence[int],
    left_out: LeftOut,
) -> list[int]:
    """Follow the body of a loop until nothing more is found in what it carries."""
    while True:  # bits are only ever added, so this ends
        outs = _through(body, [*consts, *carry, *xs], left_out)
        n = len(carry)
        joined = [a | b for a, b in zip(carry, outs[:n], strict=True)]
        if joined == list(carry):
            return [*joined, *outs[n:]]
        carry = joined


def _split(values: Sequence[int], *counts: int) -> list[list[int]]:
    """Split into the first so many, the next so many, and the rest."""
    parts, start = [], 0
    for count in counts:
        parts.append(list(values[start : start + count]))
        start += count
    return [*parts, list(values[start:])]


def _any(parts: Sequence[int]) -> int:
    """Return the bits that are in any of these."""
    bits = 0
    for part in parts:
        bits |= part
    return bits


def _keeps_places(eqn: Any) -> bool:
    """Is each result that of the operand in its place among the last: an `attach`?

    Its other operands are those of the derivative, which does not batch a result.
    """
    return eqn.primitive.name == "attach" and eqn.params["owned"]


def nothing(_: Any) -> bool:
    """Leave no equation out: find whatever may get to a result."""
    return False


def has_batch_rule(eqn: Any) -> bool:
    """Is it a call of what a user says how to batch?"""
    return eqn.primitive.name == "custom_vmap_call"


def is_opaque(eqn: Any) -> bool:
    """May a result of this equation not be batched, though an operand is?

    It may where the equation holds jaxprs, or is a collective over the axis of a vmap.
    """
    params = eqn.params
    if (
        "branches" in params
        or "jaxprs" in params
        or any(
            hasattr(value, "eqns") or hasattr(value, "jaxpr")
            for value in params.values()
        )
    ):
        return True
    return has_named_axes(eqn)
