"""Prove that a traced function is linear, and not only affine.

`jax.linear_transpose` refuses an operation that has no transpose (sign, clip). But it
accepts `2*g + 1` and drops the 1, and it accepts `ones_like(x)` and gives zero. A
function of operations that it transposes is affine, f(x) = A x + f(0), unless one of
them rounds. (`astype(int)` rounds; its transpose is zero.) An affine function is linear
if f(0) = 0. This module proves that by following zeros through the jaxpr:

- an operation that is linear in an operand gives zero if the operand is zero;
- sums, and operations that place one operand in another, need all operands zero;
- a linear solve gives zero if its right-hand side is zero;
- a value without derivative (an integer) that depends on the inputs never counts as
  zero; neither does a result of a while loop over them, which has no transpose.

The proof may fail for a linear function. It accepts none that is not linear, provided
that `jax.linear_transpose`, or the proof in `derive`, accepts it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat
from jaxfn._base.pytree import is_number

CONSTANT = "a gradient that does not depend on them"
TERM = "a term that stays when they are zero"
ROUNDED = "numbers that are rounded or compared (integers or booleans made of them)"
BRANCH = "a branch of lax.cond or lax.switch that is chosen by them"
WHILE = (
    "a while loop over them (lax.while_loop, or lax.fori_loop with a number of steps "
    "that is traced), of which JAX has no transpose"
)
REFERENCE = "a value of a reference that it makes (jax.new_ref)"
AUXILIARY = "an auxiliary result of lax.custom_linear_solve, which has no derivative"


class Fact(NamedTuple):
    """The known facts about a value.

    Attributes:
        depends: Whether it depends on the inputs.
        zero: Whether it is zero if the inputs are.
        why: The reason for a nonzero value that depends on the inputs.
    """

    depends: bool
    zero: bool
    why: str = ""


def nonzero_outputs(jaxpr: Any) -> list[tuple[int, str]]:
    """List (index, why) of each output that may be nonzero if all inputs are zero."""
    n_in = len(compat.open_jaxpr(jaxpr)[0].invars)
    facts = _outputs(jaxpr, [Fact(depends=True, zero=True)] * n_in)
    return [
        (i, (fact.why or TERM) if fact.depends else CONSTANT)
        for i, fact in enumerate(facts)
        if not fact.zero
    ]


def depends_on_first(jaxpr: Any, n: int) -> bool:
    """Return whether an output may depend on one of the first `n` inputs."""
    n_rest = len(compat.open_jaxpr(jaxpr)[0].invars) - n
    first = [Fact(depends=True, zero=True)] * n
    facts = _outputs(jaxpr, [*first, *[Fact(depends=False, zero=False)] * n_rest])
    return any(fact.depends for fact in facts)


# The result is zero if all operands are: sums, or arrays made of their elements.
_SUMS = frozenset(
    ("add", "add_any", "sub", "concatenate", "stack", "complex", "pad", "select_n")
    + ("scatter", "scatter-add", "scatter-sub", "dynamic_update_slice")
)
# From a zero constant these make zeros again. JAX writes jnp.zeros as a broadcast 0,
# and a sum with it must not count as one with a constant.
_MOVES = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "transpose", "squeeze")
    + ("slice", "dynamic_slice", "neg", "copy", "copy_p", "real", "imag", "conj")
    + ("reduce_sum", "rev", "pvary", "sharding_constraint", "stop_gradient", "gate")
    + ("cumsum", "div", "reduce_precision")
)
# The result is zero if any operand is.
_PRODUCTS = frozenset(("mul", "dot_general", "conv_general_dilated"))


def body_of(eqn: Any) -> Any:
    """Return the jaxpr that a call, a scan or an operation of ours evaluates, or None.

    It may take other arguments than the equation.
    """
    params = eqn.params
    found = next((params[k] for k in ("jaxpr", "call_jaxpr") if k in params), None)
    return None if isinstance(found, compat.Failed) else found


def _outputs(jaxpr: Any, ins: Sequence[Fact]) -> list[Fact]:
    """Return the facts about the outputs of a jaxpr, from those about its inputs."""
    jaxpr, consts = compat.open_jaxpr(jaxpr)
    env: dict[Any, Fact] = dict(zip(jaxpr.invars, ins, strict=True))
    for var, value in zip(jaxpr.constvars, consts, strict=True):
        env[var] = Fact(depends=False, zero=_is_zero(value))

    def read(atom: Any) -> Fact:
        if hasattr(atom, "val"):
            return Fact(depends=False, zero=_is_zero(atom.val))
        return env[atom]

    for eqn in jaxpr.eqns:
        facts = _equation(eqn, [read(x) for x in eqn.invars])
        for var, fact in zip(eqn.outvars, facts, strict=True):
            # An array without elements counts as zero: a sum with it adds nothing.
            empty = is_number(var.aval) and 0 in var.aval.shape
            env[var] = fact._replace(zero=True) if empty else fact
    return [read(x) for x in jaxpr.outvars]


def _equation(eqn: Any, ins: list[Fact]) -> list[Fact]:
    """Return the facts about the results of an equation."""
    name, params = eqn.primitive.name, eqn.params
    if any(map(compat.is_reference, eqn.outvars)):  # writes to it are not followed
        return [Fact(depends=True, zero=False, why=REFERENCE)] * len(eqn.outvars)
    if name == "attach":
        # It returns its last arguments, the values.
        return ins[-len(eqn.outvars) :]
    if name == "scan":
        return _scan(params, ins)
    if name == "cond":
        index, *rest = ins
        outs = [_outputs(branch, rest) for branch in params["branches"]]
        facts = [_join(*branch) for branch in zip(*outs, strict=True)]
        # Even if each branch is linear, a choice between them by x is not.
        if not index.depends:
            return facts
        return [Fact(depends=True, zero=False, why=BRANCH)] * len(facts)
    if name == "custom_linear_solve":
        return _solve(eqn, ins)
    if name in compat.PAIRED:
        return ins
    if name == "sort":
        # If the keys depend on the inputs, each result is a choice by them.
        chosen = any(x.depends for x in ins[: params["num_keys"]])
        return [_join(*ins)] * len(ins) if chosen else ins
    body = body_of(eqn)
    if body is not None and len(compat.open_jaxpr(body)[0].invars) == len(ins):
        return _outputs(body, ins)
    return [_plain(eqn, ins)] * len(eqn.outvars)


def _plain(eqn: Any, ins: list[Fact]) -> Fact:
    """Return the fact about the results of an operation that holds no jaxpr."""
    name = eqn.primitive.name
    depends = any(fact.depends for fact in ins)
    if depends and name == "while":
        return Fact(depends, zero=False, why=WHILE)
    if name in _SUMS:
        operands = _summands(eqn, ins)
    elif name == "scatter-mul":
        operands = ins[:1]  # elements that are not multiplied keep their value
    elif depends and name == "gather" and _is_filled(eqn.params):
        return Fact(depends, zero=False, why=_why(ins))
    elif depends:
        # JAX transposes an operation only in operands in which it is linear (x in x *
        # c). So it is linear in all operands that depend on the inputs.
        operands = [fact for fact in ins if fact.depends]
    elif name in _PRODUCTS:
        return Fact(depends, zero=any(fact.zero for fact in ins))
    else:
        operands = ins[:1] if name in _MOVES else [Fact(depends, zero=False)]
    if depends and _rounds(eqn):
        return Fact(depends, zero=False, why=_why(operands) or ROUNDED)
    if all(fact.zero for fact in operands):
        return Fact(depends, zero=True)
    return Fact(depends, zero=False, why=_why(operands) or TERM if depends else "")


def _is_filled(params: dict[str, Any]) -> bool:
    """Return whether a gather out of bounds gives a number; NaN signals a mistake."""
    fill = params["fill_value"]
    return fill is not None and not np.isnan(fill) and fill != 0


def _why(facts: Sequence[Fact]) -> str:
    """Return the first reason."""
    return next((fact.why for fact in facts if fact.why), "")


def _solve(eqn: Any, ins: list[Fact]) -> list[Fact]:
    """Return the facts about a linear solve, which is linear in its right-hand side.

    lax.custom_linear_solve guarantees it. The solver itself is often a while loop,
    about which nothing can be proved.
    """
    n_consts = sum(eqn.params["const_lengths"])
    b = ins[n_consts:]
    depends = any(fact.depends for fact in ins)
    zero = all(fact.zero for fact in b)
    why = "" if zero or not depends else _why(b) or TERM
    found = [Fact(depends, zero, why)] * len(b)
    n_aux = len(eqn.outvars) - len(b)
    return found + [Fact(depends, zero=False, why=AUXILIARY if depends else "")] * n_aux


def _rounds(eqn: Any) -> bool:
    """Return whether a result of an equation can't have a derivative."""
    return not all(is_number(var.aval) for var in eqn.outvars)


def _summands(eqn: Any, ins: list[Fact]) -> list[Fact]:
    """Return the operands of a sum that are values, unlike the indices of a scatter."""
    if not is_number(eqn.outvars[0].aval):
        return ins
    return [
        fact
        for fact, var in zip(ins, eqn.invars, strict=True)
        if fact.depends or is_number(var.aval)
    ]


def _scan(params: dict[str, Any], ins: list[Fact]) -> list[Fact]:
    """Return the facts about a scan of any number of steps."""
    n_consts, n_carry = compat.scan_counts(params)
    n_head = n_consts + n_carry
    consts, carry, xs = ins[:n_consts], ins[n_consts:n_head], ins[n_head:]
    while True:  # facts only change from zero to not zero, so this ends
        outs = _outputs(params["jaxpr"], [*consts, *carry, *xs])
        # A fact about the carry must hold before the first step and after each step.
        joined = [_join(a, b) for a, b in zip(carry, outs[:n_carry], strict=True)]
        if joined == carry:
            return [*carry, *outs[n_carry:]]
        carry = joined


def _join(*facts: Fact) -> Fact:
    """Return the fact about a value that may be any of several."""
    return Fact(
        depends=any(fact.depends for fact in facts),
        zero=all(fact.zero for fact in facts),
        why=_why(facts),
    )


def _is_zero(value: Any) -> bool:
    """Return whether a constant is known to be zero; a tracer's value is unknown."""
    if isinstance(value, (bool, int, float, complex)):  # a literal may be one
        value = np.asarray(value)
    if compat.is_tracer(value) or not jnp.issubdtype(value.dtype, np.number):
        return False
    return not np.any(np.asarray(value))
