"""Operations that a trace writes by others, for which torch has no decomposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxfn.torch._base.torch_module import torch


def _grouped_mm(
    a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Return products by groups, for example of experts, which end at `offs`.

    Without values torch takes bfloat16 alone. A group is taken by a mask, because its
    size is a value.
    """
    if bias is not None or out_dtype is not None:
        return NotImplemented
    if offs is None:
        return torch.bmm(a, b)
    zero = torch.zeros((), dtype=a.dtype, device=a.device)
    ends = offs.view(-1, 1)
    starts = torch.nn.functional.pad(ends, (0, 0, 1, 0))[:-1]

    def members(size: int) -> Any:
        """Return for each group which places along an axis belong to it."""
        places = torch.arange(size, device=a.device)
        return (starts <= places) & (places < ends)

    if a.dim() == 3:  # columns of b
        return (a @ torch.where(members(b.shape[1]).unsqueeze(1), b, zero)).sum(0)
    if b.dim() == 3:  # rows of a
        return (torch.where(members(a.shape[0]).unsqueeze(2), a, zero) @ b).sum(0)
    return torch.where(members(a.shape[1]).unsqueeze(1), a, zero) @ b


def _factors(a: Any) -> tuple[Any, Any]:
    """Return the factors and pivots that torch takes for a determinant.

    They are those of the transpose, if the matrix lies in memory row by row: the
    derivatives get them, and ask again how the matrix lies in memory.
    """
    is_transposed = a.is_contiguous() and not a.is_complex()
    return torch.linalg.lu_factor_ex(a.mT if is_transposed else a)[:2]


def _pivot_sign(pivots: Any) -> Any:
    """Return 1 for an even number of exchanged rows, and -1 for an odd one."""
    places = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    return 1 - 2 * ((pivots != places).sum(-1) % 2)


def _linalg_det(a: Any) -> tuple[Any, Any, Any]:
    factors, pivots = _factors(a)
    diagonal = factors.diagonal(0, -2, -1)
    return diagonal.prod(-1) * _pivot_sign(pivots), factors, pivots


def _linalg_slogdet(a: Any) -> tuple[Any, Any, Any, Any]:
    factors, pivots = _factors(a)
    diagonal = factors.diagonal(0, -2, -1)
    sign = diagonal.sgn().prod(-1) * _pivot_sign(pivots)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


def of_lists(target: Any) -> Callable[..., Any] | None:
    """Return how `_foreach_mul`, for example, is written by `mul` of each tensor."""
    name = str(target.overloadpacket).removeprefix("aten._foreach_")
    operation = getattr(torch.ops.aten, name, None)
    if operation is None or name.startswith("addc"):  # they take the last by keyword
        return None

    def each(first: Any, *more: Any, **kwargs: Any) -> Any:
        columns = [
            x if isinstance(x, (list, tuple)) else [x] * len(first) for x in more
        ]
        found = [operation(*xs, **kwargs) for xs in zip(first, *columns, strict=True)]
        return None if name.endswith("_") else found

    return each


DECOMPOSED = {
    torch.ops.aten._grouped_mm.default: _grouped_mm,
    torch.ops.aten._linalg_det.default: _linalg_det,
    torch.ops.aten._linalg_slogdet.default: _linalg_slogdet,
}
