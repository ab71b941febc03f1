"""Reading and evaluating jaxprs, whose form depends on the version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
from jax._src.core import DebugInfo, jaxpr_as_fun, typecheck
from jax._src.interpreters import ad as _ad
from jax._src.interpreters.partial_eval import (
    close_jaxpr,
    convert_constvars_jaxpr,
    dce_jaxpr,
    trace_to_jaxpr_dynamic,
)
from jax._src.linear_util import wrap_init
from jax.extend.core import Primitive, jaxprs_in_params, primitives
from jax.interpreters import ad

from jaxfn._base.compat.values import as_array, type_of

COMPILE_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""Options of `jax.jit` on a CPU that halve or quarter the compile time."""
if jax.__version_info__ < (0, 11):  # later versions refuse it
    COMPILE_QUICKLY["xla_cpu_use_fusion_emitters"] = False


def has_transpose(primitive: Any) -> bool:
    """Return whether `jax.linear_transpose` can transpose this operation."""
    return primitive in ad.primitive_transposes or primitive in _ad.fancy_transposes


_BATCHED_AS_TOLD = {
    *("custom_vmap_call", "custom_partitioning", "ffi_call"),
    *("pure_callback", "io_callback"),
}
_OF_JAX = {p for p in vars(primitives).values() if isinstance(p, Primitive)}
_MORE = {  # more of JAX's, and ours, which JAX batches by their jaxprs
    *("stack", "unstack", "random_wrap", "random_unwrap"),
    *("attach", "gate", "linear"),
}


def is_batched_by_jax(jaxpr: Any) -> bool:
    """Return whether JAX alone decides how a jaxpr is batched."""
    if isinstance(jaxpr, (tuple, list)):
        return all(map(is_batched_by_jax, jaxpr))
    try:
        eqns = getattr(open_jaxpr(jaxpr)[0], "eqns", ())
    except Exception:  # noqa: BLE001  (`Failed` raises)
        return False
    for eqn in eqns:
        known = eqn.primitive in _OF_JAX or eqn.primitive.name in _MORE
        if not known or eqn.primitive.name in _BATCHED_AS_TOLD:
            return False
        if not all(map(is_batched_by_jax, eqn.params.values())):
            return False
    return True


def trace_flat(
    fun: Callable[..., Sequence[Any]], args: Sequence[Any]
) -> tuple[Any, Sequence[Any]]:
    """Trace `fun(*args)`, which takes arrays or types and returns a list of arrays.

    Returns:
        A closed jaxpr whose inputs are the closed-over values and then the arguments;
        and these values.
    """
    jaxpr, consts = _trace(fun, args)
    return close_jaxpr(convert_constvars_jaxpr(jaxpr)), consts


def make_jaxpr(fun: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """Trace `fun(*args)` like `trace_flat`; closed-over values stay constants."""
    jaxpr, consts = _trace(fun, args)
    return _extend.ClosedJaxpr(jaxpr, consts)


# Read through the module: in some releases type checkers don't find the name.
_extend: Any = jax.extend.core


def _trace(
    fun: Callable[..., Sequence[Any]], args: Sequence[Any]
) -> tuple[Any, Sequence[Any]]:
    """Trace like `jax.make_jaxpr`, but without the `jax.jit` around it.

    `jax.jit` would inspect the signature and the pytrees of `fun`, which costs more
    than all the rest.
    """
    traced = wrap_init(fun, debug_info=_TRACED)
    jaxpr, _, consts = trace_to_jaxpr_dynamic(traced, [type_of(x) for x in args])
    return jaxpr, consts


# The name of the traced function in JAX's messages.
_TRACED = DebugInfo("jaxfn", "rule", None, None)


def evaluate(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    return [as_array(x) for x in jaxpr_as_fun(jaxpr)(*values)]


def transpose(jaxpr: Any, example: list[Any], cts: list[Any]) -> list[Any]:
    """Transpose a linear jaxpr, like `jax.linear_transpose`, of inputs like `example`.

    JAX traces the jaxpr again. If it has no jaxprs inside, that is not needed.
    """
    inner, consts = open_jaxpr(jaxpr)
    avals = [v.aval for v in inner.outvars]
    bodies = [x for eqn in inner.eqns for x in jaxprs_in_params(eqn.params)]
    if bodies or not all(map(typecheck, avals, cts)):
        return jax.linear_transpose(lambda xs: evaluate(jaxpr, xs), example)(cts)[0]
    inner, _ = dce_jaxpr(inner, [True] * len(avals), instantiate=True)
    unknown = [ad.UndefinedPrimal(v.aval.to_ct_aval()) for v in inner.invars]
    found = _ad.backward_pass(inner, True, consts, unknown, cts)
    return list(map(ad.instantiate_zeros, found))


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return a jaxpr and the values of its constvars.

    Before 0.12 a ClosedJaxpr holds a Jaxpr and the values; since then a Jaxpr has both.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Count the constants and the carried values of a scan equation."""
    if "num_consts" in params:  # before JAX 0.12
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)
