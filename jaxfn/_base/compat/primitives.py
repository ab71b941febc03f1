"""Primitives of our own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.core import Primitive, no_axis_name, unmapped_aval
from jax.interpreters import ad, batching

from jaxfn._base.compat import interpreters
from jaxfn._base.compat.staged import Staged
from jaxfn._base.compat.traces import batch_axes
from jaxfn._base.compat.values import as_array, as_tangent, tangent_aval, varying_axes


class Named:
    """A function as a parameter of a primitive, which a jaxpr shows by name.

    The other carriers (`Box`, `_Same`) are aux data of pytrees.
    """

    def __init__(self, name: str, fun: Callable[..., Any]) -> None:
        self.name = name
        self._fun = fun

    def __call__(self, *args: Any) -> Any:
        return self._fun(*args)

    def __repr__(self) -> str:
        return self.name


class BatchAxis:
    """The axis of a vmap that a batch rule handles."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def name(self) -> Any:
        return self._data.name

    def vmap(self, fun: Callable[..., Any], in_axes: Any) -> Callable[..., Any]:
        """Map `fun` by `jax.vmap` over this axis; it comes first in the results."""
        # A collective or a sharding constraint inside `fun` needs the names.
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
        """Call `fun` on unbatched arguments inside this vmap, for collectives.

        Returns:
            The results (or None) with the axis first; and for each result, whether it
            differs between examples.
        """
        differs: list[bool] = []

        def example(witness: Any) -> list[Any]:
            found = list(fun(*args))
            here = batch_axes(witness)
            differs[:] = [not here.isdisjoint(batch_axes(x)) for x in found]
            return found

        return self.vmap(example, 0)(jnp.zeros(self._data.size)), differs

    def to_front(self, x: Any, dim: int | None) -> jax.Array:
        """Move this axis of `x` to the front, or repeat an unbatched `x` along it."""
        return batching.bdim_at_front(
            x, dim, self._data.size, self._data.explicit_mesh_axis
        )

    def batched_aval(self, aval: Any, args: Sequence[Any]) -> Any:
        """Return the type of a batch from the type of one example.

        In a `shard_map` that checks types, the batch varies over the mesh axes of
        `spmd_axis_name` if the arguments do. The type of an example doesn't show that.
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
    selects: bool = False,
) -> Callable[..., list[Any]]:
    """Define a primitive with several results, and return the function that binds it.

    Rules get a `jax.Array` in place of JAX's constants. None is a zero tangent or
    cotangent, in arguments and results.

    Args:
        name: Name in a jaxpr.
        impl: `impl(*args, **params) -> outs`, in terms of JAX functions.
        abstract_eval: `abstract_eval(*avals, **params) -> avals`.
        jvp: `jvp(primals, tangents, **params) -> outs, out_tangents`.
        batch: `batch(axis, args, dims, **params) -> outs, dims`. If no argument is
            batched, the axis has a name, which `params` may use.
        transpose: `transpose(cts, args, **params) -> cts`; linear `args` are None.
        evaluates: Whether `impl` evaluates the `Staged` in `params["jaxpr"]`.
        selects: Whether `impl` returns some of its arguments.
    """
    prim = Primitive(name)
    prim.multiple_results = True
    prim.def_impl(lambda *args, **params: impl(*map(as_array, args), **params))
    if not evaluates:
        prim.def_abstract_eval(abstract_eval)
    else:
        # Without the effects, JAX would drop an equation with unused results, and would
        # give an ordered effect no token.
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

    def bind(*args: Any, **params: Any) -> list[Any]:
        interpreters.meet()
        return prim.bind(*args, **params)

    return bind


def _jvp_rule(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a jvp rule with None for zeros to JAX's form."""

    def rule(primals: Any, tangents: Any, /, **params: Any) -> Any:
        outs, out_tangents = jvp(
            [as_array(x) for x in primals], list(map(as_tangent, tangents)), **params
        )
        return outs, [
            ad.Zero(tangent_aval(o)) if t is None else t
            for o, t in zip(outs, out_tangents, strict=True)
        ]

    return rule


def _batch_rule(prim: Any, batch: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a batch rule to a "fancy" batcher of JAX, which gets the axis."""

    def rule(axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
        # JAX also calls a fancy batcher with unbatched arguments. A batched result
        # would break jacfwd(jacfwd(f)). But a collective must stay inside its vmap.
        if all(d is None for d in dims) and axis.name is no_axis_name:
            outs = prim.bind(*args, **params)
            return outs, [None] * len(outs)
        return batch(BatchAxis(axis), [as_array(x) for x in args], dims, **params)

    return rule


def _transpose_rule(transpose: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a transpose rule with None for zeros to JAX's form."""

    def rule(cts: Any, /, *args: Any, **params: Any) -> Any:
        known = [None if ad.is_undefined_primal(a) else as_array(a) for a in args]
        results = transpose(list(map(as_tangent, cts)), known, **params)
        return [
            ad.Zero(a.aval) if ad.is_undefined_primal(a) and r is None else r
            for a, r in zip(args, results, strict=True)
        ]

    return rule
