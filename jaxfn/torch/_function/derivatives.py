"""The derivatives of a rule, by torch's own autograd, and what backward returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxfn.torch._base import is_inexact, to_torch_dtype, torch
from jaxfn.torch._trace import TensorFunction, TrackedForward


def _tracked(x: Any) -> Any:
    """The tensor as one to differentiate by; still part of what it comes from."""
    if x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()


def _run_tracked(run: TensorFunction, xs: Sequence[Any], needs: Sequence[bool]) -> Any:
    tracked = [_tracked(x) if need else x for x, need in zip(xs, needs, strict=True)]
    # Clones, as a rule may write to what it gets, and to a leaf it may not.
    outs = run(
        [x.clone() if need else x for x, need in zip(tracked, needs, strict=True)]
    )
    return [x for x, need in zip(tracked, needs, strict=True) if need], outs


_WRITTEN_OVER = "modified by an inplace operation"


def is_written_over(error: object) -> bool:
    """Did torch find that a rule wrote to what its derivative needs?"""
    return _WRITTEN_OVER in str(error)


# In forward that is no mistake, as torch differentiates nothing there. What is saved
# for a derivative is a copy then; not at once, as torch.func takes no such hooks.
def with_copies(run: TensorFunction) -> TensorFunction:
    """The same, where a rule may write to what its derivative needs."""

    def kept(tensors: Sequence[Any]) -> list[Any]:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
            return run(tensors)

    return kept


def of_forward(run: TensorFunction) -> TensorFunction:
    """The same, with nothing cut off from its derivative."""

    def watched(tensors: Sequence[Any]) -> list[Any]:
        with TrackedForward(tensors):
            return run(tensors)

    return watched


def _has_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def pull(
    run: TensorFunction,
    needs: Sequence[bool],
    given: Sequence[bool],
    tensors: Sequence[Any],
) -> list[Any]:
    again = torch.is_grad_enabled()
    xs, cts = tensors[: len(needs)], iter(tensors[len(needs) :])
    with torch.enable_grad():
        tracked, outs = _run_tracked(run, xs, needs)
    given_cts = [next(cts) if g else None for g in given]
    pairs = [
        (out, ct)
        for out, ct in zip(outs, given_cts, strict=True)
        if ct is not None and _has_gradient(out)
    ]
    if not pairs:
        return [torch.zeros_like(x) for x in tracked]
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        tracked,
        [ct.to(out.dtype) for out, ct in pairs],
        create_graph=again,
        allow_unused=True,
    )
    return [
        torch.zeros_like(x) if g is None else g
        for x, g in zip(tracked, found, strict=True)
    ]


# J t is the gradient of <J^H u, t> by u: torch differentiates its own derivative, and
# asks nothing of rules but that backward can be differentiated.
def push(
    run: TensorFunction, given: Sequence[bool], tensors: Sequence[Any]
) -> list[Any]:
    again = torch.is_grad_enabled()
    xs, dots = tensors[: len(given)], list(tensors[len(given) :])
    with torch.enable_grad():
        tracked, outs = _run_tracked(run, xs, given)
        moving = [x for x in outs if _has_gradient(x)]
        free = [torch.zeros_like(x).requires_grad_() for x in moving]
        pulled: Sequence[Any] = ()
        if moving:
            pulled = torch.autograd.grad(
                moving, tracked, free, create_graph=True, allow_unused=True
            )
        pairs = [(g, t) for g, t in zip(pulled, dots, strict=False) if _has_gradient(g)]
        found: Sequence[Any] = [None] * len(free)
        if pairs:
            found = torch.autograd.grad(
                [g for g, _ in pairs],
                free,
                [t for _, t in pairs],
                create_graph=again,
                allow_unused=True,
            )
    tangents = iter(found)
    results: list[Any] = []
    for out in outs:
        t = next(tangents) if _has_gradient(out) else None
        if t is None and isinstance(out, torch.Tensor) and is_inexact(out.dtype):
            t = torch.zeros_like(out)
        results.append(t)
    return results


# ---- what backward returned, as torch takes it


class ArgumentSpec(NamedTuple):
    """What backward returns a gradient for.

    Attributes:
        is_tensor: is it a tensor that takes no part in the call, as a constant?
        type: the shape and (JAX's) dtype of an array; None for anything else.
    """

    is_tensor: bool
    type: tuple[tuple[int, ...], Any] | None


def gradients(
    name: str, found: tuple[Any, ...], needs: Sequence[bool], of: Sequence[ArgumentSpec]
) -> list[Any]:
    """The gradient of each argument, checked; None where there is none.

    Args:
        name: of the class.
        found: what backward returned.
        needs: for each argument, whether it is differentiated.
        of: the arguments.

    Raises:
        RuntimeError: torch's words for what it does not take.
    """
    n = len(of)
    if len(found) < n or any(x is not None for x in found[n:]):
        raise RuntimeError(
            f"function {name}Backward returned an incorrect number of "
            f"gradients (expected {n}, got {len(found)})"
        )
    grads: list[Any] = []
    for i, (g, x) in enumerate(zip(found, of, strict=False)):
        if g is not None and not isinstance(g, torch.Tensor):
            raise RuntimeError(f"expected Variable or None (got {type(g).__name__})")
        if x.type is None:
            if g is not None and not x.is_tensor:
                raise RuntimeError(
                    f"function {name}Backward returned a gradient different "
                    f"than None at position {i + 1}, but the corresponding forward "
                    "input was not a Variable"
                )
            grads.append(None)
        else:
            wanted = g is not None and needs[i]
            grads.append(_like(g, *x.type) if wanted else None)
    return grads


def _like(g: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A gradient in the shape and dtype of its argument, as torch makes it."""
    wanted = to_torch_dtype(dtype)
    if not is_inexact(wanted):
        return None
    if g.dtype != wanted and g.is_complex() == wanted.is_complex:
        g = g.to(wanted)
    if tuple(g.shape) != shape:
        try:
            g = g.sum_to_size(shape)
        except RuntimeError:
            raise RuntimeError(
                f"Function returned an invalid gradient: got {list(g.shape)} but "
                f"expected shape compatible with {list(shape)}"
            ) from None
    return g
