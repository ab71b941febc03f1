"""The derivatives of a rule, by torch's own autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base.dtypes import is_inexact
from jaxfn.torch._base.torch_module import torch
from jaxfn.torch._trace.aliasing import HiddenWrites
from jaxfn.torch._trace.trace import Run


def _tracked(x: Any) -> Any:
    """The tensor as one to differentiate by; still part of what it comes from."""
    if x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()


def _run_tracked(run: Run, xs: Sequence[Any], needs: Sequence[bool]) -> Any:
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
def with_copies(run: Run) -> Run:
    """The same, where a rule may write to what its derivative needs."""

    def kept(tensors: Sequence[Any]) -> list[Any]:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
            return run(tensors)

    return kept


def of_forward(run: Run) -> Run:
    """The same, with what hides from its derivative refused."""

    def watched(tensors: Sequence[Any]) -> list[Any]:
        with HiddenWrites():
            return run(tensors)

    return watched


def _has_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def pull(
    run: Run, needs: Sequence[bool], given: Sequence[bool], tensors: Sequence[Any]
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
def push(run: Run, given: Sequence[bool], tensors: Sequence[Any]) -> list[Any]:
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
