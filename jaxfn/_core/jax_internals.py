"""What jaxfn uses of JAX's unstable API, and what differs between JAX's versions.

No other module imports `jax._src`, `jax.interpreters` or `jax.extend`. The last one is
imported where it is used: it brings Pallas, and `import jaxfn` would take twice as
long. The comments in this package were checked on JAX 0.10.2 (the newest for Python
3.11) and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import core as private_core
from jax._src import source_info_util, traceback_util
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
from jax._src.interpreters import partial_eval
from jax._src.lax.lax import _convert_element_type
from jax._src.linear_util import wrap_init
from jax._src.state.discharge import discharge_state
from jax.interpreters import ad, batching, mlir

SymbolicZero = jax.custom_derivatives.SymbolicZero

ConcreteArray: type = ArrayImpl
"""The exact type of an array that is no tracer."""

SCAN_DROPS_JVP = jax.__version_info__ < (0, 12)
"""Whether the reverse derivative of a scan loses the rule of a custom_jvp.

The known half loses it. The second derivative is then the body's, and silently wrong
(0.10.2: 192.6 instead of 453.5; 0.12.0: right)."""

COMPILE_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""Options of `jax.jit` on a CPU that halve or quarter the compile time."""
if jax.__version_info__ < (0, 11):  # later versions refuse it
    COMPILE_QUICKLY["xla_cpu_use_fusion_emitters"] = False

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""JAX's errors for code that needs the value of a traced array."""

FORWARD_MODE_REFUSAL = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
)
"""JAX's error for forward mode through a custom_vjp function."""


# ---- tracers


def is_tracer(x: Any) -> bool:
    return isinstance(x, core.Tracer)


def _layers(x: Any) -> Iterator[Any]:
    """Yield `x`, and what each eager transformation holds inside it.

    The last is a value, or the tracer of a jaxpr.
    """
    while is_tracer(x):
        yield x
        if hasattr(x, "tangent"):  # of jvp or linearize
            x = x.primal
        elif hasattr(x, "batch_dim"):  # of vmap
            x = x.val
        elif hasattr(x, "pval") and x.pval.is_known():  # known during linearization
            x = x.pval.get_known()
        else:  # of a jaxpr
            return
    yield x


def is_abstract(x: Any) -> bool:
    """Return whether no transformation knows the value of `x`, as under jit."""
    *_, innermost = _layers(x)
    return is_tracer(innermost)


def is_differentiated(x: Any) -> bool:
    """Return whether an active transformation differentiates `x`."""
    return any(hasattr(layer, "tangent") for layer in _layers(x))


def has_tangent(x: Any) -> bool:
    """Return whether the innermost transformation, but for vmaps, is a jvp of `x`.

    `jax.grad` linearizes, and its tracers are others. They don't count.
    """
    layers = _layers(x)
    inner = next((t for t in layers if not hasattr(t, "batch_dim")), None)
    return hasattr(inner, "tangent") and isinstance(inner, ad.JVPTracer)


def is_transforming() -> bool:
    """Return whether a transformation is active, even if no argument is a tracer."""
    return type(trace_ctx.trace) is not EvalTrace


def _traces() -> Iterator[Any]:
    """Yield the active traces, from the inside out."""
    trace = trace_ctx.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def _class_name(x: Any) -> str:
    return type(x).__name__


def staging() -> Any:
    """Return the innermost trace that makes a jaxpr (jit, scan), or None."""
    return next((trace for trace in _traces() if hasattr(trace, "frame")), None)


def is_over(x: Any) -> bool:
    """Return whether `x` is a tracer of a jaxpr that JAX has finished.

    Only the tracer of a number still has its value.
    """
    frame = getattr(getattr(x, "_trace", None), "frame", None)
    over = frame is not None and type(frame.constid_to_tracer) is dict  # as JAX ends it
    return over and not is_constant(x)


def is_staging() -> bool:
    """Return whether JAX is tracing a jaxpr."""
    return staging() is not None


def staged_constants() -> dict[Any, Any]:
    """Return what the jaxpr that JAX is tracing has closed over so far, in order."""
    trace = staging()
    return {} if trace is None else trace.frame.constvar_to_val


def is_constant(x: Any) -> bool:
    """Return whether `x` is an array, or a tracer of a constant."""
    while is_tracer(x):
        frame = getattr(x._trace, "frame", None)
        if frame is not None and hasattr(x.val, "val"):  # a literal
            x = x.val.val
        elif frame is not None and x.val in frame.constvar_to_val:
            x = frame.constvar_to_val[x.val]
        else:
            return False
    return True


def in_pallas_kernel() -> bool:
    """Return whether JAX is tracing the body of a Pallas kernel."""
    pallas: Any = sys.modules.get("jax._src.pallas.core")
    if pallas is None:
        return False
    if hasattr(pallas, "_grid_context"):
        return pallas._grid_context.value is not None
    return pallas._pallas_tracing_env.grid_context is not None  # JAX 0.10


def in_shard_map_or_kernel() -> bool:
    """Return whether JAX runs an eager shard_map, or traces a Pallas kernel."""
    return "ShardMapTrace" in map(_class_name, _traces()) or in_pallas_kernel()


# ---- values and their types


def varying_axes(x: Any) -> frozenset[Any]:
    """Return the mesh axes that `x` varies over, in a `shard_map` that checks types."""
    mat = getattr(type_of(x), "mat", None)
    return frozenset() if mat is None else mat.varying


def match_varying(x: Any, like: Any) -> Any:
    """Cast `x` to vary over the mesh axes that `like` varies over.

    In a `shard_map` that checks types, varying and unvarying values have different
    types, and a cotangent must have the type of its argument.
    """
    missing = tuple(varying_axes(like) - varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def has_type(x: Any, aval: Any) -> bool:
    """Return whether `x` has this type, including sharding and varying mesh axes."""
    if type(x) is ConcreteArray and aval.sharding.mesh.empty:
        return x.shape == aval.shape and x.dtype == aval.dtype
    return jax.typeof(x) == aval


def is_sharded_otherwise(x: Any, aval: Any) -> bool:
    """Return whether the types have different explicit shardings."""
    have, want = type_of(x).sharding, aval.sharding
    explicit = jax.sharding.AxisType.Explicit
    return have != want and all(explicit in s.mesh.axis_types for s in (have, want))


def is_unreduced(x: Any) -> bool:
    """Return whether `x` or its cotangent must still be summed (unreduced, reduced)."""
    aval = type_of(x)
    types = (aval.sharding.spec, getattr(aval, "mat", None))
    return any(getattr(t, "unreduced", ()) or getattr(t, "reduced", ()) for t in types)


def is_on_explicit_mesh(x: Any) -> bool:
    """Return whether the type of `x` says how it is split over the axes of a mesh."""
    mesh = type_of(x).sharding.mesh
    return jax.sharding.AxisType.Explicit in mesh.axis_types


def as_array(x: Any) -> Any:
    """Return `x` as a `jax.Array` of the same type, weak or not.

    JAX passes constants to rules as Python numbers (some with a dtype: TypedFloat) and
    as NumPy arrays, which lack `.at` or `.shape`.
    """
    if isinstance(x, jax.Array) or not isinstance(x, _CONSTANTS):
        return x
    value: Any = x
    aval = jax.typeof(value)
    if aval.dtype == jax.dtypes.float0:
        return x  # a cotangent of integers: JAX leaves it in NumPy
    return _convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


def cast_like(x: Any, like: Any) -> Any:
    """Cast `x` to the dtype of `like`, weak or not."""
    aval = jax.typeof(like)
    return _convert_element_type(x, aval.dtype, weak_type=aval.weak_type)


_CONSTANTS = (int, float, complex, np.ndarray, np.generic)


def with_zeros(tangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Return the tangents of outputs, with symbolic zeros in place of None."""
    pairs = zip(tangents, outs, strict=True)
    return [SymbolicZero(tangent_type(out)) if t is None else t for t, out in pairs]


def as_tangent(x: Any) -> Any:
    """Return a tangent or cotangent from JAX as a `jax.Array`; None for a zero."""
    return None if type(x) is ad.Zero or type(x) is SymbolicZero else as_array(x)


def type_of(x: Any) -> Any:
    """Return the type of a value, or of a type."""
    return x if isinstance(x, core.AbstractValue) else jax.typeof(x)


def tangent_type(x: Any) -> Any:
    """Return the type of tangents of an array or a type: of float0 for integers."""
    return type_of(x).to_tangent_aval()


def zeros(aval: Any) -> jax.Array:
    """Make zeros of this type, with its sharding and its varying mesh axes."""
    return ad.zeros_like_aval(aval)


def memory_of(x: Any) -> Any:
    """Return the memory that `x` is in: the device's, or its host's."""
    return getattr(type_of(x), "memory_space", None)


def is_sparse(x: Any) -> bool:
    """Return whether `x` is a sparse matrix of JAX."""
    module = sys.modules.get("jax.experimental.sparse")
    return module is not None and isinstance(x, module.JAXSparse)


def is_reference(x: Any) -> bool:
    """Return whether `x` is a reference (jax.new_ref), or its type."""
    return type(type_of(x)).__name__ == "AbstractRef"


# ---- traced functions


def trace(
    fun: Callable[..., Sequence[Any]], args: Sequence[Any], source: str = "rule"
) -> tuple[Any, list[Any]]:
    """Trace `fun(*args)`, which takes arrays or types and returns a list of arrays.

    JAX's messages show the `source` of the function.

    Returns:
        A jaxpr without constants, which takes the values that `fun` closes over and
        then the arguments; and these values.
    """
    avals, axes = list(map(type_of, args)), _named_axes()
    if hasattr(partial_eval, "trace_to_jaxpr_dynamic") and not axes:
        # It takes a third of the time of jax.make_jaxpr, which inspects signatures.
        info = DebugInfo("jaxfn", source, None, None)
        wrapped = wrap_init(fun, debug_info=info)
        jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    else:
        closed = jax.make_jaxpr(fun, axis_env=axes)(*avals)
        jaxpr, consts = open_jaxpr(closed)
    new = {"constvars": [], "invars": [*jaxpr.constvars, *jaxpr.invars]}
    if hasattr(jaxpr, "consts"):  # since JAX 0.12
        new["consts"] = []
    closed = _closed(jaxpr.replace(**new))
    # Discharging would include references from outside.
    if _MAKES_REFERENCE in effects(closed) and not any(map(is_reference, consts)):
        closed = _without_references(closed)
    return closed, list(consts)


def _named_axes() -> list[tuple[Any, int]]:
    """Return name and size of the axes of active vmaps that have a name.

    JAX forgets a name after it has traced a vmap. A jvp rule with a collective may run
    later, inside that vmap.
    """
    found = [t.axis_data for t in _traces() if hasattr(t, "axis_data")]
    return [(axis.name, axis.size) for axis in found if _is_name(axis.name)]


def _is_name(axis_name: Any) -> bool:
    return type(axis_name) is not object  # so JAX marks an axis without name


_MAKES_REFERENCE = "InternalMutableArrayEffect"

# Since JAX 0.12 a Jaxpr is closed.
_ClosedJaxpr: Any = getattr(private_core, "ClosedJaxpr", private_core.Jaxpr)


def _closed(jaxpr: Any) -> Any:
    return _ClosedJaxpr(jaxpr, [])


def _without_references(closed: Any) -> Any:
    """Replace the references that a jaxpr makes by values.

    JAX does this when it compiles, but not inside our primitives; and outside of a
    trace it takes whatever is read from a reference for differentiated.
    """
    try:
        if "consts" not in inspect.signature(discharge_state).parameters:
            return discharge_state(closed)
        discharge: Any = discharge_state  # of JAX 0.10.0
        return _closed(discharge(closed.jaxpr, ())[0])
    except NotImplementedError:
        return closed  # JAX can evaluate it, but can't compile it


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return a jaxpr and the values of its constvars.

    Before 0.12 a ClosedJaxpr holds a Jaxpr and the values; since then a Jaxpr has both.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def out_types(jaxpr: Any) -> list[Any]:
    return [x.aval for x in open_jaxpr(jaxpr)[0].outvars]


def evaluate(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    return [as_array(x) for x in jaxpr_as_fun(jaxpr)(*values)]


def effects(jaxpr: Any) -> set[str]:
    """Return the names of the kinds of effects that a jaxpr has."""
    return {type(x).__name__ for x in getattr(open_jaxpr(jaxpr)[0], "effects", ())}


def without_effects(closed: Any) -> Any:
    """Return a jaxpr that computes the same values again, without effects.

    Returns:
        None if a value needs an effect: an io_callback, or a reference from outside,
        may give another result.
    """
    jaxpr, _ = open_jaxpr(closed)
    if not jaxpr.effects:
        return closed
    used = _used(jaxpr)
    return _closed(used) if effects(used) <= {"NamedAxisEffect"} else None


def _used(jaxpr: Any) -> Any:
    """Remove equations with unused results, also from the jaxprs of equations."""
    used, kept = {id(x) for x in jaxpr.outvars}, []
    for eqn in reversed(jaxpr.eqns):
        on_references = "JaxprInputEffect" in effects(eqn)  # what it writes may be read
        if on_references or any(id(var) in used for var in eqn.outvars):
            used |= {id(x) for x in eqn.invars}
            kept.append(_with_used(eqn) if eqn.effects else eqn)
    left = [effect for eqn in kept for effect in eqn.effects]
    return jaxpr.replace(eqns=kept[::-1], effects=frozenset(left))


def _with_used(eqn: Any) -> Any:
    """Remove unused equations from the jaxprs of a call, a loop or branches."""
    left: set[Any] = set()

    def used(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(used, x))
        opened, _ = open_jaxpr(x)
        if not hasattr(opened, "eqns"):
            return x
        kept = _used(opened)
        left.update(kept.effects)
        return kept if x is opened else x.replace(jaxpr=kept)

    if eqn.primitive.name not in _HOLDERS:
        return eqn
    params = {key: used(x) for key, x in eqn.params.items()}
    return eqn.replace(params=params, effects=frozenset(left))


_HOLDERS = ("jit", "closed_call", "remat2", "cond", "scan", "while")


# ---- primitives


@functools.cache
def _named_primitives() -> dict[str, Any]:
    """Return the public operations of JAX, by their names in Python."""
    module = importlib.import_module("jax.extend.core.primitives")
    return {k: x for k, x in vars(module).items() if isinstance(x, Primitive)}


def public_primitives() -> frozenset[Any]:
    """Return the public operations of JAX."""
    return frozenset(_named_primitives().values())


class BatchAxis:
    """The axis of a vmap, for the batch rule of a primitive."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return self._data.size

    @property
    def has_name(self) -> bool:
        return _is_name(self._data.name)

    def vmap(self, fun: Callable[..., Any], in_axes: Any, out_axes: Any = 0) -> Any:
        """Map `fun` by `jax.vmap` over this axis."""
        # A collective or a sharding constraint inside `fun` needs the names.
        return jax.vmap(
            fun,
            in_axes,
            out_axes,
            axis_size=self._data.size,
            axis_name=self._data.name,
            spmd_axis_name=self._data.spmd_name,
        )

    def to_front(self, x: Any, dim: int | None) -> Any:
        """Move this axis of `x` to the front, or repeat an unbatched `x` along it."""
        size, mesh_axis = self._data.size, self._data.explicit_mesh_axis
        return batching.bdim_at_front(x, dim, size, mesh_axis)

    def batched_type(self, aval: Any, args: Sequence[Any]) -> Any:
        """Return the type of a batch of arrays of this type.

        In a `shard_map` that checks types, the batch varies over the mesh axes of
        `spmd_axis_name` if the arguments do. The type of an example doesn't show that.
        """
        batched: Any = unmapped_aval(
            self._data.size, 0, aval, explicit_mesh_axis=self._data.explicit_mesh_axis
        )
        varying = frozenset[Any]().union(*map(varying_axes, args))
        own = varying & frozenset(self._data.spmd_name or ())
        if not own:
            return batched
        mat = batched.mat.update(varying=batched.mat.varying | own)
        return batched.update(manual_axis_type=mat)


def define_primitive(
    name: str,
    *,
    impl: Callable[..., Sequence[Any]],
    jvp: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int | None]]],
    transpose: Callable[..., Sequence[Any]],
    jaxpr_of: Callable[..., Any] | None = None,
) -> Callable[..., list[Any]]:
    """Define a primitive with several results, and return the function that binds it.

    Rules get a `jax.Array` in place of JAX's constants. None is a zero tangent or
    cotangent, in arguments and results.

    Args:
        name: Name in a jaxpr.
        impl: `impl(*args, **params) -> outs`, in terms of JAX functions.
        jvp: `jvp(primals, tangents, **params) -> outs, out_tangents`.
        batch: `batch(axis, args, dims, **params) -> outs, dims`. If no argument is
            batched, the axis has a name, which `params` may use.
        transpose: `transpose(cts, args, **params) -> cts`; linear `args` are None.
        jaxpr_of: `jaxpr_of(args, **params) -> jaxpr, its arguments`: what `impl`
            evaluates; then `params` hold `jaxpr` and the `out_types`. Without it,
            `impl` returns some of its arguments.
    """
    prim = Primitive(name)
    prim.multiple_results = True
    prim.def_impl(lambda *args, **params: impl(*map(as_array, args), **params))
    # If JAX's next implementation finds a jaxpr among the parameters, it would ask the
    # primitive to lower it to an earlier form.
    prim.is_high = lambda *_, **__: False
    if jaxpr_of is None:
        prim.def_abstract_eval(impl)
    else:
        # Without the effects, JAX would drop an equation with unused results, and would
        # give an ordered effect no token.
        prim.def_effectful_abstract_eval(
            lambda *_, **params: (
                params["out_types"],
                getattr(open_jaxpr(params["jaxpr"])[0], "effects", set()),
            )
        )
    # A jaxpr equals only itself: a cached lowering would have no hits, and would wrap
    # each call in a function.
    lowering = (
        _returning(impl)
        if jaxpr_of is None
        else mlir.lower_fun(impl, multiple_results=True)
    )
    mlir.register_lowering(prim, lowering, cacheable=False)
    _primitives[prim] = impl, jaxpr_of

    def jvp_rule(primals: Any, tangents: Any, /, **params: Any) -> Any:
        primals, tangents = (
            list(map(as_array, primals)),
            list(map(as_tangent, tangents)),
        )
        outs, out_tangents = jvp(primals, tangents, **params)
        pairs = zip(outs, out_tangents, strict=True)
        return outs, [ad.Zero(tangent_type(o)) if t is None else t for o, t in pairs]

    def batch_rule(axis_data: Any, args: Any, dims: Any, /, **params: Any) -> Any:
        # JAX also calls a fancy batcher with unbatched arguments. A batched result
        # would break jacfwd(jacfwd(f)). But a collective must stay inside its vmap.
        axis = BatchAxis(axis_data)
        if all(d is None for d in dims) and not axis.has_name:
            outs = prim.bind(*args, **params)
            return outs, [None] * len(outs)
        return batch(axis, list(map(as_array, args)), list(dims), **params)

    def transpose_rule(cts: Any, /, *args: Any, **params: Any) -> Any:
        linear = list(map(ad.is_undefined_primal, args))
        known = [None if x else as_array(a) for a, x in zip(args, linear, strict=True)]
        found = transpose(list(map(as_tangent, cts)), known, **params)
        return [
            ad.Zero(a.aval) if is_linear and ct is None else ct
            for a, is_linear, ct in zip(args, linear, found, strict=True)
        ]

    ad.primitive_jvps[prim] = jvp_rule
    batching.fancy_primitive_batchers[prim] = batch_rule
    ad.primitive_transposes[prim] = transpose_rule

    def bind(*args: Any, **params: Any) -> list[Any]:
        _register()
        return prim.bind(*args, **params)

    return bind


# ---- other interpreters of jaxprs: Pallas, checkify, sparsify
#
# Each has a table of rules, and refuses a primitive without one. A primitive that
# evaluates a jaxpr gets the rule of custom_jvp_call, the others return arguments.

_primitives: dict[Any, tuple[Callable[..., Any], Callable[..., Any] | None]] = {}
_registered: set[str] = set()


def _register() -> None:
    """Add the primitives to the interpreters that have been imported by now."""
    for module, register in _INTERPRETERS.items():
        if module in sys.modules and module not in _registered:
            register(sys.modules[module])
            # Note it last: another thread may bind a primitive meanwhile.
            _registered.add(module)


def _register_pallas(_: Any) -> None:
    for module, name in (
        ("jax._src.pallas.mosaic.lowering", "lowering_rules"),
        ("jax._src.pallas.mosaic_gpu.lowering", "mosaic_lowering_rules"),
        ("jax._src.pallas.triton.lowering", "triton_lowering_rules"),
    ):
        try:
            tables = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # this JAX has no such compiler
            continue
        # Mosaic has a table for each kind of core; Triton has one table.
        nested = [x for x in tables.values() if isinstance(x, dict)]
        for table in nested or [tables]:
            call = table.get(_named_primitives()["custom_jvp_call_p"])
            for prim, (impl, jaxpr_of) in _primitives.items():
                if jaxpr_of is None:
                    table[prim] = _returning(impl)
                elif call is not None:
                    table[prim] = _calling(call, impl)


def _returning(impl: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *args, **params: list(impl(*args, **params))


def _calling(rule: Callable[..., Any], impl: Callable[..., Any]) -> Any:
    """Convert a rule of custom_jvp_call, of which interpreters use only the jaxpr."""
    fixed = {"jvp_jaxpr_fun": None, "num_consts": 0, "symbolic_zeros": False}

    def call(context: Any, *args: Any, **params: Any) -> Any:
        # The context has a shape for each operand of the equation.
        jaxpr, _ = trace(functools.partial(impl, **params), context.avals_in)
        return rule(context, *args, call_jaxpr=jaxpr, **fixed)

    return call


def _register_checkify(checkify: Any) -> None:
    def rule_for(jaxpr_of: Callable[..., Any]) -> Callable[..., Any]:
        def rule(*args: Any, **params: Any) -> Any:
            # JAX 0.12 passes a context first, JAX 0.10 does not.
            at = next(i for i, x in enumerate(args) if isinstance(x, checkify.Error))
            context, (error, enabled, *values) = args[:at], args[at:]
            jaxpr, values = jaxpr_of(values, **params)
            return checkify.checkify_jaxpr(*context, jaxpr, enabled, error, *values)

        return rule

    for prim, (_, jaxpr_of) in _primitives.items():
        if jaxpr_of is not None:
            checkify.error_checks[prim] = rule_for(jaxpr_of)


def _register_sparsify(sparse: Any) -> None:
    def rule_for(prim: Any, jaxpr_of: Callable[..., Any]) -> Callable[..., Any]:
        def rule(env: Any, *values: Any, **params: Any) -> Any:
            # With dense values, keep the primitive and so its derivative and transpose.
            if not any(x.is_sparse() for x in values):
                arrays = sparse.spvalues_to_arrays(env, values)
                return sparse.arrays_to_spvalues(env, prim.bind(*arrays, **params))
            jaxpr, values = jaxpr_of(values, **params)
            return sparse.eval_sparse(open_jaxpr(jaxpr)[0], (), values, env)

        return rule

    for table in (sparse.sparse_rules_bcoo, sparse.sparse_rules_bcsr):
        for prim, (impl, jaxpr_of) in _primitives.items():
            table[prim] = rule_for(prim, jaxpr_of) if jaxpr_of else _returning(impl)


_INTERPRETERS: dict[str, Callable[[Any], None]] = {
    "jax._src.pallas.pallas_call": _register_pallas,
    "jax._src.checkify": _register_checkify,
    "jax.experimental.sparse.transform": _register_sparsify,
}


# ---- names, frames, partitions


def set_debug_info(
    fun: Callable[..., Any], name: str, source: str, arguments: Sequence[str]
) -> None:
    """Set the names of a function and its arguments in JAX's errors and jaxprs.

    Args:
        fun: The function that JAX gets.
        name: Name of the Function.
        source: Name, file and line of the user's rule.
        arguments: A name for each argument; empty if there are none.
    """
    # JAX looks for these attributes before it inspects the function, which would take
    # longer than everything else.
    info = DebugInfo(name, source, tuple(arguments) or None, initial_result_paths)
    fun.__dict__["__fun_debug_info__"] = info


def hide_frames(folder: str) -> None:
    """Hide the files of a folder in tracebacks and source lines, like JAX's own."""
    # JAX compares prefixes, so add the separator.
    traceback_util.register_exclusion(folder + os.sep)
    source_info_util.register_exclusion(folder + os.sep)


def vmapped_mesh_axes() -> Any:
    """Return the explicit mesh axes that a vmap around the code maps over."""
    return trace_ctx.axis_env.explicit_mesh_axis_names


def custom_partitioning(fun: Callable[..., Any]) -> Any:
    """Wrap a function for XLA's partitioner; imported here, because few need it."""
    module = importlib.import_module("jax.experimental.custom_partitioning")
    return module.custom_partitioning(fun)


def with_hidden_frames(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fun` with hidden frames removed from its errors, like `jax.jit`."""
    return traceback_util.api_boundary(fun)
