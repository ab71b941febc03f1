"""Primitives of our own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.core import Primitive, no_axis_name, unmapped_aval
from jax._src.interpreters import partial_eval as pe
from jax.interpreters import ad, batching

from jaxfn._base.compat import interpreters
from jaxfn._base.compat.staged import Staged
from jaxfn._base.compat.traces import batch_axes
from jaxfn._base.compat.values import as_array, as_tangent, tangent_aval, varying_axes


class Named:
    """A function as a parameter of a primitive: a jaxpr shows its name alone.

    The function itself would show its address, another one in every run. The package's
    other carriers (`Box`, `_Same`) are aux data of pytrees; a parameter is no pytree,
    but is called and printed as it is.
    """

    def __init__(self, name: str, fun: Callable[..., Any]) -> None:
        self.name = name
        self._fun = fun

    def __call__(self, *args: Any) -> Any:
        return self._fun(*args)

    def __repr__(self) -> str:
        return self.name


class BatchAxis:
    """The axis of a vmap, for which a batch rule is called."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def name(self) -> Any:
        """Its name, for collectives."""
        return self._data.name

    @property
    def size(self) -> Any:
        """The number of examples."""
        return self._data.size

    def vmap(self, fun: Callable[..., Any], in_axes: Any) -> Callable[..., Any]:
        """Map `fun` by `jax.vmap` over this axis; the results have it first."""
        # Without the names, a collective over the axis inside `fun`, or a sharding
        # constraint, would not find it.
        return jax.vmap(
            fun,
            in_axes=in_axes,
            axis_size=self._data.size,
            axis_name=self._data.name,
            spmd_axis_name=self._data.spmd_name,
        )

    def around(
        self, fun: Callable[..., Sequence[Any]], *args: Any
    ) -> tuple[list[Any], list[bool]]:
        """Call `fun` with nothing batched, where a collective finds this axis.

        None among the results stays None.

        Returns:
            The results, with the axis first, and whether each differs among examples.
        """
        differs: list[bool] = []

        def example(witness: Any) -> list[Any]:
            found = list(fun(*args))
            here = batch_axes(witness)
            differs[:] = [not here.isdisjoint(batch_axes(x)) for x in found]
            return found

        # The witness is batched over this axis and no other.
        return self.vmap(example, 0)(jnp.zeros(self._data.size)), differs

    def to_front(self, x: Any, dim: int | None) -> jax.Array:
        """Move this axis of `x` to the front; repeat an unbatched `x` along it."""
        return batching.bdim_at_front(
            x, dim, self._data.size, self._data.explicit_mesh_axis
        )

    def batched_aval(self, aval: Any, args: Sequence[Any]) -> Any:
        """Return the type of a value with this axis first, from that of one example.

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
    evaluates: bool = False,
    narrow: Callable[..., Any] | None = None,
    selects: bool = False,
) -> Callable[..., list[Any]]:
    """Define a primitive with several results, and return the function that binds it.

    All rules see a `jax.Array` in place of whatever constant JAX hands on, and None in
    place of JAX's several kinds of zero.

    Args:
        name: as it shows in a jaxpr.
        impl: `impl(*args, **params) -> outs`, in terms of JAX functions.
        abstract_eval: `abstract_eval(*avals, **params) -> avals`.
        jvp: `jvp(primals, tangents, **params) -> outs, out_tangents`, where None
            stands for a zero tangent on both sides.
        batch: `batch(axis, args, dims, **params) -> outs, dims`. Nothing is batched
            only if the axis has a name, by which what `params` hold may use it.
        transpose: `transpose(cts, args, **params) -> cts`, where the linear ones among
            `args` are None, and None stands for a zero cotangent on both sides.
        evaluates: Whether `impl` evaluates the traced function whose `parameter` is
            `params["jaxpr"]`.
        narrow: `narrow(used, n_args, params)`, for results of which some are used, says
            which arguments these need, and the params for these alone; None if all.
        selects: `impl` returns some of its arguments: there is nothing to compile.
    """
    prim = Primitive(name)
    prim.multiple_results = True
    prim.def_impl(lambda *args, **params: impl(*map(as_array, args), **params))
    if not evaluates:
        prim.def_abstract_eval(abstract_eval)
    else:
        # JAX must be told of the effects of what was traced. An effect that it does not
        # know of is dropped with an unused result; if ordered, it has no token to run.
        prim.def_effectful_abstract_eval(
            lambda *avals, **params: (
                abstract_eval(*avals, **params),
                Staged.of(params["jaxpr"]).effects,
            )
        )
        interpreters.is_call(prim)
    if selects:
        interpreters.is_selection(prim, impl)
    ad.primitive_jvps[prim] = _jvp_rule(jvp)
    batching.fancy_primitive_batchers[prim] = _batch_rule(prim, batch)
    if transpose is not None:
        ad.primitive_transposes[prim] = _transpose_rule(transpose)
    if narrow is not None:
        pe.dce_rules[prim] = _dce_rule(narrow)

    def bind(*args: Any, **params: Any) -> list[Any]:
        # At every bind: an interpreter may have been imported since the last one.
        interpreters.meet()
        return prim.bind(*args, **params)

    return bind


def _jvp_rule(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Make a jvp rule with None for zeros into one of JAX."""

    def rule(primals: Any, tangents: Any, /, **params: Any) -> Any:
        given = list(map(as_tangent, tangents))
        outs, out_tangents = jvp([as_array(x) for x in primals], given, **params)
        return outs, [
            ad.Zero(tangent_aval(o)) if t is None else t
            for o, t in zip(outs, out_tangents, strict=True)
        ]

    return rule


def _batch_rule(prim: Any, batch: Callable[..., Any]) -> Callable[..., Any]:
    """Make a batch rule of JAX, for the axis that it is told of."""

    def rule(axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
        # Registered as a "fancy" batcher, which is told of the axis. JAX also calls
        # these with nothing batched; to answer that with a batch axis breaks
        # jacfwd(jacfwd(f)). But a collective must not leave the vmap that it is over.
        if all(d is None for d in dims) and axis.name is no_axis_name:
            outs = prim.bind(*args, **params)
            return outs, [None] * len(outs)
        return batch(BatchAxis(axis), [as_array(x) for x in args], dims, **params)

    return rule


def _transpose_rule(transpose: Callable[..., Any]) -> Callable[..., Any]:
    """Make a transpose rule with None for zeros into one of JAX."""

    def rule(cts: Any, /, *args: Any, **params: Any) -> Any:
        known = [None if ad.is_undefined_primal(a) else as_array(a) for a in args]
        given = list(map(as_tangent, cts))
        results = transpose(given, known, **params)
        return [
            ad.Zero(a.aval) if ad.is_undefined_primal(a) and r is None else r
            for a, r in zip(args, results, strict=True)
        ]

    return rule


def _dce_rule(narrow: Callable[..., Any]) -> Callable[..., Any]:
    """Make a rule of JAX for an equation of whose results not all are used."""

    # JAX 0.12 says, before the equation, which arguments are live, too.
    def rule(used: list[bool], *args: Any) -> Any:
        eqn = args[-1]
        n = len(eqn.invars)
        if not any(used):
            return [False] * n, None
        found = None if all(used) else narrow(used, n, eqn.params)
        if found is None:
            return [True] * n, eqn
        kept, params = found
        invars, outvars = (
            [x for x, keep in zip(xs, keeps, strict=True) if keep]
            for xs, keeps in ((eqn.invars, kept), (eqn.outvars, used))
        )
        return kept, eqn.replace(invars=invars, outvars=outvars, params=params)

    return rule
