"""Is a traced function linear, or only affine?

`jax.linear_transpose` refuses an operation that has no transpose (sign, clip), but
takes `2*g + 1` and drops the 1, and takes `ones_like(x)` and gives zero. A function
made of operations that can be transposed is affine, but for one that rounds
(`astype(int)`, of which it makes zero); it is linear if it also maps zero to zero. That
is what is proved here, by following zeros through the jaxpr:

- an operation that is linear in an operand gives zero where the operand is zero;
- sums, and operations that place one operand in another, need all operands zero;
- what has no derivative (integers) counts as zero nowhere, if it depends on the inputs.

The proof may fail for a function that is linear; it never passes one that is not,
provided that `jax.linear_transpose` accepts it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxfn import _compat


class Fact(NamedTuple):
    """What is known of a value: does it depend on the inputs, is it zero at zero?"""

    depends: bool
    zero: bool


def nonzero_outputs(jaxpr: Any) -> list[tuple[int, bool]]:
    """The outputs not proved zero when all inputs are: (index, depends on inputs)."""
    n_in = len(_compat.open_jaxpr(jaxpr)[0].invars)
    facts = _outputs(jaxpr, [Fact(depends=True, zero=True)] * n_in)
    return [(i, fact.depends) for i, fact in enumerate(facts) if not fact.zero]


def used_inputs(jaxpr: Any) -> list[bool]:
    """For each input, whether an output may depend on it."""
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    used = {id(x) for x in jaxpr.outvars}
    for eqn in reversed(jaxpr.eqns):
        if any(id(var) in used for var in eqn.outvars):
            used |= {id(x) for x in eqn.invars}
    return [id(var) in used for var in jaxpr.invars]


def uses(jaxpr: Any, batched: Sequence[bool]) -> list[tuple[set[int], set[int]]]:
    """For each output of a linear function, which inputs it may depend on.

    Args:
        jaxpr: of the function.
        batched: for each constant, whether examples have their own.

    Returns:
        The inputs; and those among them whose coefficient is not the same for all.
    """
    opened, _ = _compat.open_jaxpr(jaxpr)
    nothing: tuple[set[int], set[int], bool] = (set(), set(), False)
    env: dict[Any, tuple[set[int], set[int], bool]] = {
        var: (set(), set(), b) for var, b in zip(opened.constvars, batched, strict=True)
    }
    env |= {var: ({i}, set(), False) for i, var in enumerate(opened.invars)}
    for eqn in opened.eqns:
        ins = [nothing if hasattr(x, "val") else env[x] for x in eqn.invars]
        used = {i for found, _, _ in ins for i in found}
        mixed = {i for _, found, _ in ins for i in found}
        own = any(flag for _, _, flag in ins)
        if own and eqn.primitive.name not in _SUMS:
            mixed |= used
        env.update((var, (used, mixed, own)) for var in eqn.outvars)
    found = [nothing if hasattr(x, "val") else env[x] for x in opened.outvars]
    return [(used, mixed) for used, mixed, _ in found]


def is_smooth(jaxpr: Any) -> bool:
    """Is the function one whose derivative, if that is constant, proves it affine?

    Not where an operation is constant in pieces (sign) or has a derivative of its own
    (custom_jvp): all that its inputs reach must be operations that JAX can transpose,
    or scatters that set, which lack but the transpose.
    """
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    reached = {id(var) for var in jaxpr.invars}
    for eqn in jaxpr.eqns:
        if reached.isdisjoint(map(id, eqn.invars)):
            continue
        reached |= {id(var) for var in eqn.outvars}
        bodies = [eqn.params[k] for k in _CALLS if k in eqn.params]
        bodies += eqn.params.get("branches", ())
        known = eqn.primitive.name == "scatter" or _compat.has_transpose(eqn.primitive)
        if not known or not all(map(is_smooth, bodies)):
            return False
    return True


_SUMS = frozenset(
    ("add", "add_any", "sub", "concatenate", "pad", "scatter", "scatter-add")
    + ("select_n", "dynamic_update_slice")
)
_MOVES = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "transpose", "squeeze")
    + ("slice", "dynamic_slice", "neg", "copy", "copy_p", "real", "imag", "conj")
    + ("reduce_sum", "rev", "pvary", "sharding_constraint", "stop_gradient")
)
_CALLS = ("jaxpr", "call_jaxpr")


def _outputs(jaxpr: Any, ins: Sequence[Fact]) -> list[Fact]:
    jaxpr, consts = _compat.open_jaxpr(jaxpr)
    env: dict[Any, Fact] = dict(zip(jaxpr.invars, ins, strict=True))
    for var, value in zip(jaxpr.constvars, consts, strict=True):
        env[var] = Fact(depends=False, zero=_is_zero(value))

    def read(atom: Any) -> Fact:
        if hasattr(atom, "val"):
            return Fact(depends=False, zero=_is_zero(atom.val))
        return env[atom]

    for eqn in jaxpr.eqns:
        facts = _equation(eqn, [read(x) for x in eqn.invars])
        env.update(zip(eqn.outvars, facts, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _equation(eqn: Any, ins: list[Fact]) -> list[Fact]:
    name, params = eqn.primitive.name, eqn.params
    if name == "attach":
        return ins[params["n_in"] :]
    if name == "scan":
        return _scan(params, ins)
    if name == "cond":
        index, *rest = ins
        outs = [_outputs(branch, rest) for branch in params["branches"]]
        return [
            _join(*facts, depends=index.depends) for facts in zip(*outs, strict=True)
        ]
    body = next((params[k] for k in _CALLS if k in params), None)
    if body is not None and len(_compat.open_jaxpr(body)[0].invars) == len(ins):
        return _outputs(body, ins)
    depends = any(fact.depends for fact in ins)
    if depends and _rounds(eqn):
        zero = False
    elif name in _SUMS:
        zero = all(fact.zero for fact in _summands(eqn, ins))
    elif depends:
        zero = all(fact.zero for fact in ins if fact.depends)
    elif name == "mul":
        zero = any(fact.zero for fact in ins)
    else:
        zero = name in _MOVES and ins[0].zero
    return [Fact(depends, zero)] * len(eqn.outvars)


def _rounds(eqn: Any) -> bool:
    """Is there a result that can't have a derivative?"""
    return not all(_is_inexact(var.aval) for var in eqn.outvars)


def _is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _summands(eqn: Any, ins: list[Fact]) -> list[Fact]:
    """The operands of a sum that are values: not the indices of a scatter, say."""
    if not _is_inexact(eqn.outvars[0].aval):
        return ins
    return [
        fact
        for fact, var in zip(ins, eqn.invars, strict=True)
        if fact.depends or _is_inexact(var.aval)
    ]


def _scan(params: dict[str, Any], ins: list[Fact]) -> list[Fact]:
    n_consts, n_carry = _compat.scan_counts(params)
    n_head = n_consts + n_carry
    consts, carry, xs = ins[:n_consts], ins[n_consts:n_head], ins[n_head:]
    while True:  # facts only ever change from zero to not, so this ends
        outs = _outputs(params["jaxpr"], [*consts, *carry, *xs])
        joined = [_join(a, b) for a, b in zip(carry, outs[:n_carry], strict=True)]
        if joined == carry:
            return [*carry, *outs[n_carry:]]
        carry = joined


def _join(*facts: Fact, depends: bool = False) -> Fact:
    return Fact(
        depends=depends or any(fact.depends for fact in facts),
        zero=all(fact.zero for fact in facts) and not depends,
    )


def _is_zero(value: Any) -> bool:
    if isinstance(value, (bool, int, float, complex)):  # a literal may be one
        value = np.asarray(value)
    if _compat.is_tracer(value) or not jnp.issubdtype(value.dtype, np.number):
        return False
    return not np.any(np.asarray(value))
