"""The only door to JAX that is not stable public API.

What comments say of JAX, here and elsewhere, was checked on 0.10.2 (the newest for
Python 3.11) and 0.12.0. What other modules need of JAX's internals has a name here;
nothing else imports `jax.extend`, `jax.interpreters` or `jax._src`, and nothing else
knows a version.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import core
from jax._src.api_util import fun_sourceinfo
from jax._src.array import ArrayImpl
from jax._src.core import (
    DebugInfo,
    EvalTrace,
    Literal,
    Primitive,
    Var,
    initial_result_paths,
    internal_mutable_array_effect,
    jaxpr_as_fun,
    trace_ctx,
    unmapped_aval,
)
from jax._src.effects import JaxprInputEffect
from jax._src.interpreters.ad import LinearizeTracer
from jax._src.interpreters.batching import BatchTrace, BatchTracer
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTrace,
    DynamicJaxprTracer,
    JaxprTracer,
    close_jaxpr,
    separate_consts,
)
from jax._src.lax.lax import _convert_element_type
from jax._src.state.discharge import discharge_state
from jax.interpreters import ad, batching

from jaxfn import _interpreters

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


def _inside(x: Any) -> Any:
    """What a tracer stands for under eager vmaps, and where JAX knows its value."""
    while True:
        if isinstance(x, BatchTracer):
            x = x.val
        elif isinstance(x, JaxprTracer) and x.pval.is_known():
            x = x.pval.get_known()
        else:
            return x


def is_differentiated(x: Any) -> bool:
    """Is a transformation at work that differentiates `x` here and now?"""
    return isinstance(_inside(x), _DIFFERENTIATED)


def is_final(arrays: Sequence[Any]) -> bool:
    """Is no derivative with respect to these under way, nor to come?"""
    return all(map(has_value, arrays)) and not any(map(is_differentiated, arrays))


def batch_axes(x: Any) -> frozenset[int]:
    """All vmaps at work that map over `x`, at whatever depth; a number for each."""
    found: set[int] = set()
    while is_tracer(x):
        if isinstance(x, BatchTracer):
            found.add(id(x._trace.tag))  # JAX's tags all compare equal
            x = x.val
        elif isinstance(x, _DIFFERENTIATED):
            x = x.primal
        elif _inside(x) is not x:
            x = _inside(x)
        else:
            break
    return frozenset(found)


def has_value(x: Any) -> bool:
    """Is the value of `x` known, if only for each example of an eager vmap?"""
    return not is_tracer(_inside(x))


def is_transforming() -> bool:
    """Is a transformation under way, even if no argument of the call is a tracer?"""
    return not isinstance(trace_ctx.trace, EvalTrace)


def as_array(x: Any) -> Any:
    """`x` as a `jax.Array`: the boundary that every value from JAX passes.

    JAX hands constants on as what they were: Python numbers (some with a dtype:
    TypedFloat), NumPy arrays and scalars, typed NumPy arrays. A user's rule must not
    see these: they have no `.at`, and numbers have no `.shape`. The type stays what
    JAX says that it is, weak or not.
    """
    if isinstance(x, jax.Array) or not isinstance(x, _CONSTANTS):
        return x
    value: Any = x
    aval = jax.typeof(value)
    if aval.dtype == jax.dtypes.float0:
        return x  # a cotangent of integers; JAX itself keeps it in NumPy
    return _convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


_CONSTANTS = (int, float, complex, np.ndarray, np.generic)


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


def is_sharded(x: Any) -> bool:
    """Does the type of `x` say how it is sharded, on a mesh?"""
    explicit = jax.sharding.AxisType.Explicit
    return explicit in _aval(x).sharding.mesh.axis_types


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


def has_other_tangents(arrays: Sequence[Any]) -> bool:
    """Is one of these batched and its tangent not, or the other way round?

    Then the rule that a custom_vmap of JAX has for its derivative tells the user's
    batch rule what is true of the tangents alone, and gives wrong values.
    """
    return any(
        isinstance(x, ad.JVPTracer) and batch_axes(x.primal) != batch_axes(x.tangent)
        for x in arrays
    )


def _staging() -> Any:
    """The trace of a function whose jaxpr JAX will keep, under jit or in a scan."""
    trace = trace_ctx.trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_staging() -> bool:
    """Is JAX tracing a function whose jaxpr it will keep?"""
    return _staging() is not None


class Recording:
    """What JAX records from now on, where it traces a function whose jaxpr it keeps."""

    def __init__(self) -> None:
        trace = _staging()
        self.active = trace is not None
        self._equations = [] if trace is None else trace.frame.tracing_eqns
        self._start = len(self._equations)

    def _recorded(self) -> set[int]:
        """The equations, by identity."""
        # Some are weak references, and JAX 0.10.0 has functions that return them.
        return {
            id(eqn() if callable(eqn) else eqn)
            for eqn in self._equations[self._start :]
        }

    def used(self, value: Any, inputs: Sequence[Any]) -> set[int]:
        """The inputs that, if they were batched, would surely make `value` batched.

        An equation that holds a jaxpr may keep inputs and outputs apart: what is not
        looked into counts for nothing.
        """
        recorded = self._recorded()
        places: dict[int, set[int]] = {}
        for j, x in enumerate(inputs):
            places.setdefault(id(_inside(x)), set()).add(j)
        found: set[int] = set()
        seen: set[int] = set()
        todo = [_inside(value)]
        while todo:
            x = todo.pop()
            if id(x) in seen or not isinstance(x, DynamicJaxprTracer):
                continue
            seen.add(id(x))
            if id(x) in places:
                found |= places[id(x)]
            elif id(x.parent) in recorded:
                todo += _surely_used(x)
        return found

    def closed_over(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The traced values from which `values` were computed, but for the inputs."""
        recorded = self._recorded()
        seen = {id(_inside(x)) for x in inputs}
        found: list[Any] = []
        todo = [_inside(x) for x in values]
        while todo:
            x = todo.pop()
            if id(x) in seen or not is_tracer(x):
                continue
            seen.add(id(x))
            if isinstance(x, JaxprTracer) and x.parents:
                todo += x.parents
            elif not isinstance(x, DynamicJaxprTracer):
                found.append(x)  # of a transformation that shows no equations
            elif x.parent is not None and id(x.parent) in recorded:
                todo += x.parent.in_tracers
            elif is_tracer(_constant(x)):
                found.append(x)
        return found


def _constant(x: DynamicJaxprTracer) -> Any:
    """The value that a traced constant stands for; `x` where it is none."""
    if isinstance(x.val, Literal):
        return x.val.val
    return x._trace.frame.constvar_to_val.get(x.val, x)


def _surely_used(x: DynamicJaxprTracer) -> list[Any]:
    """The operands with which a result of an equation is batched."""
    eqn: Any = x.parent
    if not _is_opaque(eqn):
        return eqn.in_tracers
    body = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    if body is None or eqn.primitive.name not in _CALLS:
        return []
    index = next(i for i, var in enumerate(eqn.outvars) if var is x.val)
    used = _used_in(body, index)
    return [t for t, is_used in zip(eqn.in_tracers, used, strict=True) if is_used]


_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def _used_in(jaxpr: Any, index: int) -> list[bool]:
    """For each input of a jaxpr, whether the output is surely batched where it is."""
    opened, _ = open_jaxpr(jaxpr)
    used = {id(opened.outvars[index])}
    for eqn in reversed(opened.eqns):
        if any(id(var) in used for var in eqn.outvars) and not _is_opaque(eqn):
            used |= {id(x) for x in eqn.invars}
    return [id(var) in used for var in opened.invars]


def _is_opaque(eqn: Any) -> bool:
    """May a result not be batched though an operand is?

    So it is with an equation that holds jaxprs, and with a collective over the axis of
    the vmap.
    """
    params = eqn.params
    if "branches" in params or any(
        hasattr(value, "eqns") or hasattr(value, "jaxpr") for value in params.values()
    ):
        return True
    return has_named_axes(eqn)


def has_named_axes(eqn: Any) -> bool:
    """Is it a collective, or does it ask for the place along a mapped axis?"""
    axes = eqn.params.get("axis_name", eqn.params.get("axes"))
    named = axes if isinstance(axes, (tuple, list)) else (axes,)
    return any(not isinstance(x, (int, NoneType)) for x in named)


FORWARD_MODE_REFUSAL = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
)
"""What JAX says to forward mode on a custom_vjp function."""


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


class _SymbolicZeros:
    """`True`, but for readers in JAX that refuse it where nothing is differentiated.

    An eager shard_map and the kernels of Pallas run or lower the function alone, and
    never look at its rules. All the same they refuse a function whose rules want
    symbolic zeros ("not implemented").
    """

    def __bool__(self) -> bool:
        reader = sys._getframe(1).f_globals.get("__name__", "")
        return not reader.startswith(_ONLY_THE_FUNCTION)

    def __repr__(self) -> str:
        return "True"


_ONLY_THE_FUNCTION = ("jax._src.shard_map", "jax._src.pallas")

SYMBOLIC_ZEROS: Any = _SymbolicZeros()
"""What to pass as `symbolic_zeros` to JAX's decorators."""


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


class Staged:
    """A function that has been traced: what a primitive may carry to later stages.

    Attributes:
        jaxpr: of the function; it has no constants.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr

    @classmethod
    def trace(
        cls, fun: Callable[..., Any], values: Sequence[Any], *args: Any
    ) -> tuple[list[Any], Staged]:
        """Trace `fun(*args)`, which closes over `values`.

        Returns:
            The values, and whatever else `fun` closes over; and the traced function,
            which takes first these and then the arguments.
        """
        closed, consts = separate_consts(jax.make_jaxpr(fun)(*args))
        if internal_mutable_array_effect in open_jaxpr(closed)[0].effects:
            closed = _without_references(closed)
        jaxpr, _ = open_jaxpr(closed)
        n = len(consts)
        own = {id(x): var for x, var in zip(consts, jaxpr.invars[:n], strict=True)}
        of_values = [own.pop(id(x), None) or Var(jax.typeof(x)) for x in values]
        extra = [x for x in consts if id(x) in own]
        of_extra = [own[id(x)] for x in extra]
        jaxpr = jaxpr.replace(
            invars=[*of_values, *of_extra, *jaxpr.invars[n:]],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )
        return [*values, *extra], cls(close_jaxpr(jaxpr))

    def without_effects(self) -> Staged:
        """The same, without effects of which no result is used.

        What is written into a reference (jax.new_ref) is used where it is read.
        """
        jaxpr, _ = open_jaxpr(self.jaxpr)
        used = {id(x) for x in jaxpr.outvars}
        kept: list[Any] = []
        for eqn in reversed(jaxpr.eqns):
            on_refs = any(isinstance(e, JaxprInputEffect) for e in eqn.effects)
            is_used = any(id(var) in used for var in eqn.outvars)
            if not eqn.effects or on_refs or is_used:
                used |= {id(x) for x in eqn.invars}
                kept.append(eqn)
        if len(kept) == len(jaxpr.eqns):
            return self
        effects = frozenset(e for eqn in kept for e in eqn.effects)
        return Staged(close_jaxpr(jaxpr.replace(eqns=kept[::-1], effects=effects)))

    @property
    def effects(self) -> Any:
        """What it does beside computing, but for reading what it is given."""
        found = open_jaxpr(self.jaxpr)[0].effects
        return {e for e in found if not isinstance(e, JaxprInputEffect)}

    def __call__(self, *args: Any) -> list[Any]:
        return evaluate(self.jaxpr, args)

    def __repr__(self) -> str:
        return str(self.jaxpr)


def _without_references(closed: Any) -> Any:
    """The jaxpr with values in place of references that it makes for itself.

    JAX does so when it compiles, for calls that it knows, and not for ours.
    """
    if "consts" not in inspect.signature(discharge_state).parameters:
        return discharge_state(closed)
    discharge: Any = discharge_state  # of JAX 0.10.0
    return close_jaxpr(discharge(closed.jaxpr, ())[0])


class Failed(Staged):
    """A function that could not be traced: using it raises what tracing it raised.

    The error keeps no frames: these hold tracers, which must not outlive their trace.
    """

    def __init__(self, error: Exception) -> None:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not any(part in frame.filename for part in _NOT_THE_USERS)
        ]
        if frames:
            at = frames[-1]
            error.add_note(f"Raised in {at.name}, {at.filename}:{at.lineno}.")
        self._error = error.with_traceback(None)
        self._error.__context__ = self._error.__cause__ = None

    @property
    def jaxpr(self) -> Any:
        raise self._error

    @property
    def effects(self) -> Any:
        return set()

    def __repr__(self) -> str:
        return repr(self._error)


_NOT_THE_USERS = tuple(str(Path(file).parent) for file in (jax.__file__, __file__))


def define_primitive(
    name: str,
    *,
    impl: Callable[..., Sequence[Any]],
    abstract_eval: Callable[..., Sequence[Any]],
    jvp: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int | None]]],
    transpose: Callable[..., Sequence[Any]] | None = None,
    staged: Callable[..., Staged] | None = None,
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
        staged: `staged(**params)` is the traced function that `impl` evaluates.
        selects: `impl` returns some of its arguments: there is nothing to compile.
    """
    prim = Primitive(name)
    prim.multiple_results = True
    prim.def_impl(lambda *args, **params: impl(*map(as_array, args), **params))
    if staged is None:
        prim.def_abstract_eval(abstract_eval)
    else:
        prim.def_effectful_abstract_eval(
            lambda *avals, **params: (
                abstract_eval(*avals, **params),
                staged(**params).effects,
            )
        )
        _interpreters.is_call(prim, staged)
    if selects:
        _interpreters.is_selection(prim, impl)

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
            known = [None if ad.is_undefined_primal(a) else as_array(a) for a in args]
            given = [None if is_zero(ct) else as_array(ct) for ct in cts]
            results = transpose(given, known, **params)
            return [
                ad.Zero(a.aval) if ad.is_undefined_primal(a) and r is None else r
                for a, r in zip(args, results, strict=True)
            ]

        ad.primitive_transposes[prim] = transpose_rule

    def bind(*args: Any, **params: Any) -> list[Any]:
        _interpreters.meet()
        return prim.bind(*args, **params)

    return bind


def has_transpose(primitive: Any) -> bool:
    """Can `jax.linear_transpose` transpose this operation?"""
    return primitive in ad.primitive_transposes


def evaluate(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    return [as_array(x) for x in jaxpr_as_fun(jaxpr)(*values)]


def constants(jaxpr: Any) -> list[Any]:
    """The constants of a closed jaxpr: what was closed over."""
    return list(open_jaxpr(jaxpr)[1])


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
