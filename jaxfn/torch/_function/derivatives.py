"""The derivatives of a rule, by torch's own autograd; and checks of gradients.

`GraphRules` are a `GraphFunction` as `Rules` of jaxfn's core: these derivatives are its
backward and its jvp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jaxfn
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
from jaxfn.torch._base import (
    TorchRefusal,
    backward_of,
    experimental,
    is_inexact,
    is_once_differentiable,
    to_torch_dtype,
    torch,
)
from jaxfn.torch._trace import TensorFunction, TrackedForward, results_of


def _tracked(x: Any) -> Any:
    """Return a tensor to differentiate by, still connected to its own graph."""
    if x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()


def run_tracked(run: TensorFunction, xs: Sequence[Any], mask: Sequence[bool]) -> Any:
    """Return tensors to differentiate by, and the results of a run with them."""
    tracked = [_tracked(x) if t else x for x, t in zip(xs, mask, strict=True)]
    # A rule may write to its arguments, but torch allows no write to a leaf: clone it.
    inside = [x.clone() if t else x for x, t in zip(tracked, mask, strict=True)]
    outs = run(inside)
    return [x for x, t in zip(tracked, mask, strict=True) if t], outs


_WRITTEN_OVER = "modified by an inplace operation"


def is_written_over(error: object) -> bool:
    """Return whether torch found a write to a tensor that a derivative needs."""
    return _WRITTEN_OVER in str(error)


# Such a write is correct in forward, which torch runs without autograd. Autograd then
# saves copies; only then, because torch.func does not support the hooks.
def with_copies(run: TensorFunction) -> TensorFunction:
    """Return the rule, with copies of the tensors that autograd saves in it."""

    def copying(tensors: Sequence[Any]) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
            return run(tensors)

    return copying


def of_forward(run: TensorFunction) -> TensorFunction:
    """Return the rule, with no operation that cuts its derivative."""

    def watched(tensors: Sequence[Any]) -> Any:
        with TrackedForward(tensors):
            return run(tensors)

    return watched


def has_gradient(x: Any) -> bool:
    """Return whether torch can differentiate this result."""
    return isinstance(x, torch.Tensor) and x.requires_grad


def pull(
    run: TensorFunction,
    needs_input_grad: Sequence[bool],
    has_cotangent: Sequence[bool],
    tensors: Sequence[Any],
) -> list[Any]:
    again = torch.is_grad_enabled()
    xs, cts = tensors[: len(needs_input_grad)], iter(tensors[len(needs_input_grad) :])
    with torch.enable_grad():
        tracked, found = run_tracked(run, xs, needs_input_grad)
        outs = results_of(found)
    present_cts = [next(cts) if g else None for g in has_cotangent]
    return gradients_of(outs, present_cts, tracked, again=again)


def gradients_of(
    outs: Sequence[Any], cts: Sequence[Any], xs: Sequence[Any], *, again: bool = False
) -> list[Any]:
    """Return torch's gradients of <outs, cts>; None for those that it has none of.

    Args:
        outs: Results, of which some may have no gradient.
        cts: Their cotangents; None counts as zero.
        xs: Tensors to differentiate by.
        again: Whether the gradients are differentiated again.
    """
    pairs = [
        (out, ct)
        for out, ct in zip(outs, cts, strict=True)
        if ct is not None and has_gradient(out)
    ]
    if not pairs:
        return [None] * len(xs)
    if again:
        _refuse_once(outs)
    # A gradient that is None stays so: then torch calls no other backward either.
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        xs,
        [ct.to(out.dtype) for out, ct in pairs],
        create_graph=again,
        allow_unused=True,
    )
    return list(found)


def _refuse_once(outs: Sequence[Any]) -> None:
    """Refuse to differentiate a backward that is once_differentiable.

    PyTorch leaves its derivative out of the sum, and says nothing.
    """
    for node in experimental.nodes_of(list(outs)):
        cls = getattr(node, "_forward_cls", None)
        if cls is not None and is_once_differentiable(backward_of(cls)):
            raise TorchRefusal(
                operation=f"the derivative of `{cls.__name__}.backward`",
                reason="it is marked with @once_differentiable. Forward mode and "
                "second derivatives need its derivative.",
                way_out="Remove the decorator, if PyTorch can differentiate backward.",
            )


# J t is the gradient of <J^H u, t> by u. Torch differentiates its own derivative here.
# So rules need no jvp, only a differentiable backward.
def push(
    run: TensorFunction, has_tangent: Sequence[bool], tensors: Sequence[Any]
) -> list[Any]:
    again = torch.is_grad_enabled()
    xs, tangents = tensors[: len(has_tangent)], list(tensors[len(has_tangent) :])
    with torch.enable_grad():
        tracked, found = run_tracked(run, xs, has_tangent)
        outs = results_of(found)
        differentiable = [x for x in outs if has_gradient(x)]
        free = [torch.zeros_like(x).requires_grad_() for x in differentiable]
        pulled = gradients_of(differentiable, free, tracked, again=True)
        pairs = [
            (g, t) for g, t in zip(pulled, tangents, strict=False) if has_gradient(g)
        ]
        found: Sequence[Any] = [None] * len(free)
        if pairs:
            found = torch.autograd.grad(
                [g for g, _ in pairs],
                free,
                [t for _, t in pairs],
                create_graph=again,
                allow_unused=True,
            )
    pushed = iter(found)
    results: list[Any] = []
    for out in outs:
        t = next(pushed) if has_gradient(out) else None
        if t is None and isinstance(out, torch.Tensor) and is_inexact(out.dtype):
            t = torch.zeros_like(out)
        results.append(t)
    return results


# ---- the gradients that backward returned


ArrayType = tuple[tuple[int, ...], Any]
"""The shape and (JAX's) dtype of an array."""


def gradients(
    name: str,
    found: tuple[Any, ...],
    needs_input_grad: Sequence[bool],
    types: Sequence[ArrayType | None],
) -> list[Any]:
    """Return the gradient of each argument, checked; None if there is none.

    Args:
        name: The name of the class.
        found: The gradients that backward returned.
        needs_input_grad: For each argument, whether it is differentiated.
        types: The type of each argument; None for what is no array.

    Raises:
        RuleError: The gradients are wrong; the message begins with torch's.
    """
    n = len(types)
    if len(found) < n or any(x is not None for x in found[n:]):
        raise jaxfn.RuleValueError(
            f"function {name}Backward returned an incorrect number of gradients "
            f"(expected {n}, got {len(found)}). `{name}.backward` must return one for "
            "each argument of forward, and None for one without a gradient."
        )
    grads: list[Any] = []
    for i, (g, kind) in enumerate(zip(found, types, strict=False)):
        if g is not None and not isinstance(g, torch.Tensor):
            raise jaxfn.RuleTypeError(
                f"expected Variable or None (got {type(g).__name__}). `{name}.backward`"
                f" returned no tensor for argument {i}."
            )
        if kind is None:
            if g is not None:
                raise jaxfn.RuleValueError(
                    f"function {name}Backward returned a gradient different than None "
                    f"at position {i + 1}, but the corresponding forward input was not "
                    f"a Variable. Argument {i} is static: return None in its place."
                )
            grads.append(None)
        else:
            wanted = g is not None and needs_input_grad[i]
            grads.append(_like(g, *kind, name, i) if wanted else None)
    return grads


def _like(g: Any, shape: tuple[int, ...], dtype: Any, name: str, i: int) -> Any:
    """Convert a gradient to the shape and dtype of its argument, as torch does."""
    wanted = to_torch_dtype(dtype)
    if not is_inexact(wanted):
        return None
    if g.dtype != wanted and g.is_complex() == wanted.is_complex:
        g = g.to(wanted)
    if tuple(g.shape) != shape:
        try:
            g = g.sum_to_size(shape)
        except RuntimeError:
            raise jaxfn.RuleValueError(
                f"Function {name}Backward returned an invalid gradient at index {i} - "
                f"got {list(g.shape)} but expected shape compatible with {list(shape)}:"
                " the shape of the argument, or one to which it broadcasts."
            ) from None
    return g


# ---- a graph as rules of jaxfn's core


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
        layout: Layout = outs.layout
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
        return outs, Outputs([True] * len(outs.arrays), outs.layout)

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
