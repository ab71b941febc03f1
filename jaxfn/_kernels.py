"""Kernels: operations whose code JAX can't look into."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxfn._core import internals, messages

LAUNCH = "jaxfn_kernel"
"""Attribute of a callback that runs a kernel: the kernel's name."""

_RULES = ("custom_vjp_call", "custom_jvp_call", "custom_lin")


class KernelDerivativeError(messages.RuleTypeError):
    """A kernel was differentiated, which has no derivative."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, as it is called in a jaxpr.

    Attributes:
        name: Name of the kernel, or the target of an FFI call.
        kind: "Triton", "Pallas", "FFI" or "custom_partitioning".
        nbytes: Bytes of its arguments and results.
    """

    name: str
    kind: str
    nbytes: int


def kernels(jaxpr: Any, *, inside_rules: bool = True) -> Iterator[Kernel]:
    """Yield the kernels that a jaxpr calls, one for each call.

    Args:
        jaxpr: The jaxpr.
        inside_rules: Whether functions with derivatives of their own count, too.
    """
    for eqn in internals.open_jaxpr(jaxpr)[0].eqns:
        name = eqn.primitive.name
        if found := _named(name, eqn.params):
            variables = [*eqn.invars, *eqn.outvars]
            yield Kernel(*found, sum(_nbytes(v.aval) for v in variables))
        elif inside_rules or name not in _RULES:
            inner = [x for value in eqn.params.values() for x in _jaxprs(value)]
            found = (
                x for jaxpr in inner for x in kernels(jaxpr, inside_rules=inside_rules)
            )
            # One branch runs. A launch has one for a GPU, and one for a CPU.
            yield from dict.fromkeys(found) if name == "cond" else found


def _named(primitive: str, params: dict[str, Any]) -> tuple[str, str] | None:
    """Return the name and the kind of a kernel; None for another operation."""
    if primitive == "pallas_call":
        traced = params["jaxpr"].debug_info.func_name
        return str(params.get("name") or traced), "Pallas"
    if primitive == "ffi_call":
        return params["target_name"], "FFI"
    if primitive == "custom_partitioning":
        called = internals.open_jaxpr(params["call"])[0].debug_info.func_name
        return called, "custom_partitioning"
    if primitive == "triton_kernel_call":
        return str(params["name"]), "Triton"
    callback = getattr(params.get("callback"), "callback_func", None)
    name = getattr(callback, LAUNCH, None)
    return None if name is None else (name, "Triton")


def _jaxprs(value: Any) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an operation."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _jaxprs(part)
    elif hasattr(internals.open_jaxpr(value)[0], "eqns"):
        yield value


def _nbytes(aval: Any) -> int:
    return getattr(aval, "size", 0) * getattr(aval.dtype, "itemsize", 0)
