"""What backward returned, as torch takes it: one gradient for each argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxfn.torch._base.dtypes import is_inexact, to_torch_dtype
from jaxfn.torch._base.torch_module import torch


class Argument(NamedTuple):
    """What backward returns a gradient for.

    Attributes:
        is_tensor: is it a tensor that takes no part in the call, as a constant?
        type: the shape and (JAX's) dtype of an array; None for anything else.
    """

    is_tensor: bool
    type: tuple[tuple[int, ...], Any] | None


def gradients(
    name: str, found: tuple[Any, ...], needs: Sequence[bool], of: Sequence[Argument]
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
