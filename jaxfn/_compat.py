"""The only door to JAX that is not stable public API.

What comments say of JAX, here and elsewhere, was checked on 0.10.2 (the newest for
Python 3.11) and 0.12.0. What other modules need of JAX's internals has a name here;
nothing else imports `jax.extend`, `jax.interpreters` or `jax._src`, and nothing else
knows a version.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax._src.api_util import fun_sourceinfo
from jax._src.array import ArrayImpl
from jax._src.core import (
    DebugInfo,
    EvalTrace,
    Primitive,
    initial_result_paths,
    jaxpr_as_fun,
    trace_ctx,
    unmapped_aval,
)
from jax._src.interpreters.ad import LinearizeTracer
from jax._src.interpreters.batching import BatchTrace, BatchTracer
from jax._src.interpreters.partial_eval import DynamicJaxprTrace, JaxprTracer
from jax.interpreters import ad, batching, mlir

Aval: TypeAlias = core.AbstractValue
SymbolicZero = jax.custom_derivatives.SymbolicZero

_DIFFERENTIATED = (ad.JVPTracer, LinearizeTracer)

ConcreteArray: type = ArrayImpl
"""The class of an array that is no tracer: one exact type, so `type(x) is` is enough
on the path that must be fast. Not found by making one: that would start JAX's backend
when jaxfn is imported, and jax.distributed must be set up before."""


SCAN_DROPS_JVP = jax.__version_info__ < (0, 12)
"""Does a scan differentiated in reverse drop the rule of a custom_jvp in the half that
JAX knows? What is differentiated there next is then the body: a silently wrong second
derivative (0.10.2: 192.6 for 453.5; 0.12.0: right)."""


def is_tracer(x: Any) -> bool:
    return isinstance(x, core.Tracer)


def is_lost(x: Any) -> bool:
    """Is `x` a tracer whose use in a forward can only go wrong, if it is closed over?

    Either it is being differentiated by a transformation that is under way (the rules
    would lose its derivative), or its transformation is over. JAX raises for both, but
    far away, and in words that don't help.
    """
    return isinstance(x, _DIFFERENTIATED) or is_leaked(x)


def is_leaked(x: Any) -> bool:
    """Is `x` a tracer whose transformation is over?"""
    if not is_tracer(x):
        return False
    if not x._trace.is_valid():
        return True
    frame = getattr(x._trace, "frame", None)  # replaced by an empty dict at the end
    return isinstance(getattr(frame, "constid_to_tracer", None), dict)


def known_value(x: Any) -> Any:
    """What a tracer stands for whose value JAX knows: an eager grad makes those."""
    while isinstance(x, JaxprTracer) and x.pval.is_known():
        x = x.pval.get_known()
    return x


def is_transforming() -> bool:
    """Is a transformation under way, even if no argument of the call is a tracer?"""
    return not isinstance(trace_ctx.trace, EvalTrace)


def as_array(x: Any) -> Any:
    """`x` with a shape and a dtype: eager transformations pass on Python numbers."""
    is_number = isinstance(x, (int, float, complex)) and not isinstance(x, np.generic)
    return jnp.asarray(x) if is_number else x


def is_zero(x: Any) -> bool:
    """Is `x` a tangent or cotangent that JAX knows to be zero?"""
    return type(x) is ad.Zero or type(x) is SymbolicZero


def tangent_aval(x: Any) -> Aval:
    """The type of a tangent of `x` (an array or a type): float0 for integers."""
    return _aval(x).to_tangent_aval()


def has_type(x: Any, aval: Any) -> bool:
    """Has `x`, an array, this type, with its sharding and varying mesh axes, if any?"""
    if type(x) is ConcreteArray and aval.sharding.mesh.empty:
        return x.shape == aval.shape and x.dtype == aval.dtype
    return jax.typeof(x) == aval


def zeros(aval: Any) -> jax.Array:
    """Zeros of exactly this type, with its sharding and varying mesh axes."""
    return ad.zeros_like_aval(aval)


def varying_axes(x: Any) -> frozenset[Hashable]:
    """The mesh axes over which `x` varies inside a `shard_map` that checks them."""
    mat = getattr(_aval(x), "mat", None)
    return frozenset() if mat is None else mat.varying


def is_sharded_otherwise(x: Any, aval: Any) -> bool:
    """Have the types other shardings, on a mesh where a type says its sharding?"""
    have, want = _aval(x).sharding, aval.sharding
    explicit = jax.sharding.AxisType.Explicit
    return have != want and all(explicit in s.mesh.axis_types for s in (have, want))


def match_varying(x: Any, like: Any) -> Any:
    """`x`, said to vary over all mesh axes over which `like` does."""
    missing = tuple(varying_axes(like) - varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _aval(x: Any) -> Any:
    return x if isinstance(x, Aval) else jax.typeof(x)


def in_forward_mode(arrays: Sequence[Any]) -> bool:
    """Is one of these differentiated by the innermost jvp, under vmaps or not?

    JAX refuses that for a custom_vjp function, but under jit only when it compiles: the
    tangents may be transposed before.
    """
    trace = trace_ctx.trace
    while isinstance(trace, BatchTrace):
        arrays = [x.val if isinstance(x, BatchTracer) else x for x in arrays]
        trace = trace.parent_trace
    return isinstance(trace, ad.JVPTrace) and any(
        isinstance(x, ad.JVPTracer) and x._trace.tag is trace.tag for x in arrays
    )


def is_eager_forward() -> bool:
    """Are eager jvp and vmap the only transformations at work?"""
    trace = trace_ctx.trace
    while isinstance(trace, (BatchTrace, ad.JVPTrace)):
        trace = trace.parent_trace
    return isinstance(trace, EvalTrace)


def is_staging() -> bool:
    """Is JAX tracing a function whose jaxpr it will keep: under jit, in a scan?"""
    trace = trace_ctx.trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


FORWARD_MODE_REFUSAL = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
)
"""What JAX says to forward mode on a custom_vjp function."""

EAGER_SHARD_MAP_REFUSAL = (
    "custom_vjp symbolic_zeros support with shard_map is not implemented; "
    "please open an issue at https://github.com/jax-ml/jax/issues"
)
"""What JAX says where a `shard_map` runs eagerly and nothing is differentiated."""


def is_batched_constant(error: AssertionError) -> bool:
    """Is it what custom_vmap says of a batched value that is closed over?"""
    flags = error.args[0] if error.args else None
    return isinstance(flags, list) and any(flag is True for flag in flags)


def source_of(fun: Callable[..., Any]) -> str:
    """Name, file and line of a function, as JAX shows them."""
    return fun_sourceinfo(fun)


def set_debug_info(
    fun: Callable[..., Any], name: str, origin: tuple[str, tuple[str, ...]]
) -> None:
    """Say what `fun` stands for: JAX names it and its arguments in errors.

    Args:
        fun: to be given to JAX.
        name: of what it is a part of.
        origin: what `source_of` gives, and a name for each argument.
    """
    fun.__dict__["__fun_debug_info__"] = DebugInfo(name, *origin, initial_result_paths)


class Named:
    """A function as a parameter of a primitive: a jaxpr shows its name alone."""

    def __init__(self, name: str, fun: Callable[..., Any]) -> None:
        self.name = name
        self._fun = fun

    def __call__(self, *args: Any) -> Any:
        return self._fun(*args)

    def __repr__(self) -> str:
        return self.name


class BatchAxis:
    """The axis that a batch rule is called for."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def vmap(self, fun: Callable[..., Any], in_axes: Any) -> Callable[..., Any]:
        """`jax.vmap` over this axis, with its size and names; results at axis 0."""
        return jax.vmap(
            fun,
            in_axes=in_axes,
            axis_size=self._data.size,
            axis_name=self._data.name,
            spmd_axis_name=self._data.spmd_name,
        )

    def to_front(self, x: Any, dim: int | None) -> jax.Array:
        """`x` with this axis first; an unbatched `x` is repeated along it."""
        return batching.bdim_at_front(
            x, dim, self._data.size, self._data.explicit_mesh_axis
        )

    def batched_aval(self, aval: Any, args: Sequence[Any]) -> Any:
        """The type of a value that has this axis first, from that of one example.

        It varies over the mesh axes of `spmd_axis_name`, which an example's type does
        not show, if the arguments do: in a `shard_map` that checks them.
        """
        batched: Any = unmapped_aval(
            self._data.size, 0, aval, explicit_mesh_axis=self._data.explicit_mesh_axis
        )
        varying = frozenset[Hashable]().union(*map(varying_axes, args))
        own = varying & frozenset(self._data.spmd_name or ())
        if not own:
            return batched
        mat = batched.mat.update(varying=batched.mat.varying | own)
        return batched.update(manual_axis_type=mat)


def define_primitive(
    name: str,
    *,
    impl: Callable[..., Sequence[Any]],
    abstract_eval: Callable[..., Sequence[Any]],
    jvp: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int | None]]],
    transpose: Callable[..., Sequence[Any]] | None = None,
    selects: bool = False,
) -> Callable[..., list[Any]]:
    """Define a primitive with several results; return its bind.

    Args:
        name: as it shows in a jaxpr.
        impl: `impl(*args, **params) -> outs`, in terms of JAX functions.
        abstract_eval: `abstract_eval(*avals, **params) -> avals`.
        jvp: `jvp(primals, tangents, **params) -> outs, out_tangents`, where None
            stands for a zero tangent on both sides.
        batch: `batch(axis, args, dims, **params) -> outs, dims`, never called with
            nothing batched.
        transpose: `transpose(cts, args, **params) -> cts`, where the linear ones among
            `args` are None, and None stands for a zero cotangent on both sides.
        selects: `impl` returns some of its arguments: there is nothing to compile.
    """
    prim = Primitive(name)
    prim.multiple_results = True
    prim.def_impl(lambda *args, **params: impl(*map(as_array, args), **params))
    prim.def_abstract_eval(abstract_eval)
    if selects:
        # A cached lowering is a function of its own, kept for each rule: not for this.
        mlir.register_lowering(
            prim, lambda _, *args, **params: impl(*args, **params), cacheable=False
        )
    else:
        mlir.register_lowering(prim, mlir.lower_fun(impl, multiple_results=True))

    def jvp_rule(primals: Any, tangents: Any, /, **params: Any) -> Any:
        given = [None if is_zero(t) else as_array(t) for t in tangents]
        outs, out_tangents = jvp([as_array(x) for x in primals], given, **params)
        return outs, [
            ad.Zero(tangent_aval(o)) if t is None else t
            for o, t in zip(outs, out_tangents, strict=True)
        ]

    def batch_rule(axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
        # Registered as a "fancy" batcher, which JAX also calls with nothing batched.
        if all(d is None for d in dims):
            outs = prim.bind(*args, **params)
            return outs, [None] * len(outs)

        return batch(BatchAxis(axis), args, dims, **params)

    ad.primitive_jvps[prim] = jvp_rule
    batching.fancy_primitive_batchers[prim] = batch_rule

    if transpose is not None:

        def transpose_rule(cts: Any, /, *args: Any, **params: Any) -> Any:
            known = [None if ad.is_undefined_primal(a) else a for a in args]
            given = [None if is_zero(ct) else as_array(ct) for ct in cts]
            results = transpose(given, known, **params)
            return [
                ad.Zero(a.aval) if ad.is_undefined_primal(a) and r is None else r
                for a, r in zip(args, results, strict=True)
            ]

        ad.primitive_transposes[prim] = transpose_rule

    return prim.bind


def has_transpose(primitive: Any) -> bool:
    """Can `jax.linear_transpose` transpose this operation?"""
    return primitive in ad.primitive_transposes


def evaluate(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    return jaxpr_as_fun(jaxpr)(*values)


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constvars; JAX 0.12 keeps both in one object."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many constants and carried values a scan equation has."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def evaluate_equation(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """The results of one equation of a jaxpr, for these values of its inputs."""
    primitive = eqn.primitive
    with eqn.ctx.manager:  # the settings of JAX that it was traced in
        found = primitive.bind(*values, **primitive.get_bind_params(eqn.params))
    return list(found) if primitive.multiple_results else [found]
