"""A `GraphFunction` as `Rules` for jaxfn's engine: its derivatives are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jaxfn._core import (
    Arrays,
    Layout,
    Mask,
    Outputs,
    Rules,
    batchable,
    call,
    conj,
    internals,
    split,
)


class DerivableGraph(Protocol):
    """The members of `GraphFunction`, which imports this file, that are used here."""

    name: str
    rule: str
    batch: Callable[..., list[Any]] | None

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]: ...
    def vjp(self, needs_input_grad: Mask, has_cotangent: Mask) -> Any: ...
    def jvp(self, has_tangent: Mask) -> Any: ...


def apply(graph: DerivableGraph, key: Any, arrays: Sequence[Any]) -> list[Any]:
    """Call a graph under JAX's transformations.

    Args:
        graph: The function.
        key: A PRNG key; None if it draws nothing.
        arrays: Its arguments.
    """
    if not any(map(internals.is_tracer, arrays)) and not internals.is_tracer(key):
        return graph(arrays, key)
    flat = list(arrays) if key is None else [key, *arrays]
    return call(GraphRules(graph, has_key=key is not None), flat)


class GraphRules(Rules):
    """The rules of one call. Each saves the arguments, and nothing else.

    Args:
        graph: The function.
        has_key: Whether the first array is a PRNG key.
        n_extra: The number of last arrays by which there is no derivative.
    """

    has_backward, has_jvp = True, True

    def __init__(
        self, graph: DerivableGraph, *, has_key: bool, n_extra: int = 0
    ) -> None:
        self._graph, self._n_keys, self._n_extra = graph, int(has_key), n_extra
        self.name = self.forward_name = f"{graph.name}.{graph.rule}"

    def _split(self, flat: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Split the key, or None, from the arrays."""
        n = self._n_keys
        return flat[0] if n else None, list(flat[n:])

    def forward(self, arrays: Arrays, perturbed: Mask) -> tuple[Any, Any, Layout]:
        batch = None if self._graph.batch is None else self._batch
        outs = batchable(self._value, batch, name=self.name)(*arrays)
        layout: Layout = outs.spec
        layout.perturbed = perturbed
        return list(outs.arrays), list(arrays[: len(arrays) - self._n_extra]), layout

    def _value(self, *flat: Any) -> Outputs:
        key, arrays = self._split(flat)
        return graph_outputs(self._graph(arrays, key))

    def _batch(
        self, size: int, batched: Sequence[bool], flat: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Compute a batch by the vmap rule of the class."""
        assert self._graph.batch is not None
        key, arrays = self._split(flat)
        key_dim, dims = self._split([0 if b else None for b in batched])
        outs = graph_outputs(self._graph.batch(size, key_dim, tuple(dims), key, arrays))
        return outs, Outputs([True] * len(outs.arrays), outs.spec)

    def backward(self, layout: Layout, saved: Arrays, cts: Arrays) -> list[Any]:
        """Compute the gradients of the arguments that need one."""
        key, arrays = self._split(saved)
        n = len(layout.perturbed) - self._n_extra
        needs_input_grad = tuple(layout.perturbed[self._n_keys : n])
        # A result that is None (a missing gradient) has no cotangent.
        whole = layout.out.join_only(list(map(conj, cts)))
        has_cotangent = tuple(ct is not None for ct in whole)
        if not any(needs_input_grad) or not any(has_cotangent):
            return [None] * len(layout.perturbed)
        masks = needs_input_grad, has_cotangent
        whole = [ct for ct in whole if ct is not None]
        found = iter(self._pulled(layout, masks, key, arrays, whole))
        grads = [conj(next(found)) if need else None for need in needs_input_grad]
        return [*[None] * self._n_keys, *grads, *[None] * self._n_extra]

    def _pulled(
        self,
        layout: Layout,  # noqa: ARG002  (for a subclass)
        masks: tuple[Mask, Mask],
        key: Any,
        saved: Arrays,
        cts: Arrays,
    ) -> list[Any]:
        """Return the gradients that are wanted, in torch's terms."""
        return self._graph.vjp(*masks).apply(key, *saved, *cts)

    def jvp(self, layout: Layout, saved: Arrays, tangents: Arrays) -> list[Any]:
        """Compute the tangents of the results."""
        key, arrays = self._split(saved)
        tangents = tangents[self._n_keys : len(tangents) - self._n_extra]
        has_tangent = tuple(t is not None for t in tangents)
        pushed = self._graph.jvp(has_tangent).apply
        found = pushed(key, *arrays, *[t for t in tangents if t is not None])
        present = layout.out.join([True] * len(layout.out_types))
        return [t for t, is_there in zip(found, present, strict=True) if is_there]


def graph_outputs(found: list[Any]) -> Outputs:
    """Return the results of a graph in the form of the core; None is no array."""
    arrays, spec = split(found)
    return Outputs(arrays, Layout.of_result(found, spec))
