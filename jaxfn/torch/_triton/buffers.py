"""The memory of tensors without values: flat tensors, and where others lie in them.

A kernel sees memory. So it gets each storage once, whole, and each tensor as a place in
it. Then slices, transposes and several names for one memory are exact.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from jaxfn.torch._base import TorchRefusal, experimental, torch

_WAY_OUT = "Pass x.contiguous() to the kernel."


class Storages:
    """Knows for each storage a tensor that fills it, and gives it as a flat one.

    Attributes:
        have_values: Whether its tensors have values.
    """

    have_values = False

    def __init__(self) -> None:
        self._whole: dict[int, Any] = {}

    def note(self, result: Any) -> None:
        """Remember what an operation made, if it fills its storage."""
        for x in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(x, torch.Tensor) and _fills(x):
                self._whole.setdefault(_number(x), x)

    def flat(self, x: Any) -> Any:
        """The storage of this tensor as a tensor of one dimension, of its dtype.

        Raises:
            TorchRefusal: no tensor is known that fills the storage.
        """
        whole = experimental.whole_of(x)
        whole = whole if _fills(whole) else self._whole.get(_number(x))
        if whole is None or not _fills(whole):
            raise TorchRefusal(
                operation="a kernel launch",
                reason=f"a tensor of shape {tuple(x.shape)} lies in memory that no "
                "other tensor fills (torch.empty_strided or set_, for example).",
                way_out=_WAY_OUT,
            )
        flat = _in_order(whole)
        if flat.is_complex() and not x.is_complex():
            flat = torch.view_as_real(flat)
        flat = flat.reshape(-1) if flat.numel() == 0 else flat.view(-1)
        if flat.dtype == x.dtype:
            return flat
        if flat.element_size() != x.element_size() or not _has_own_size(x):
            raise TorchRefusal(
                operation="a kernel launch",
                reason=f"it gets {x.dtype} out of the memory of a {flat.dtype} tensor.",
                way_out="Convert it with x.to(dtype), or pass it as it is.",
            )
        return flat.view(x.dtype)


# With x64 off, JAX has int32 for torch's int64: bits can't be read as another dtype.
def _has_own_size(x: Any) -> bool:
    return x.element_size() < 8


def _number(x: Any) -> int:
    return experimental.storage_number(x)


def _fills(x: Any) -> bool:
    """Does every element of its storage belong to this tensor, once?"""
    return (
        x.storage_offset() == 0
        and experimental.storage_bytes(x) == x.numel() * x.element_size()
        and _in_order(x).is_contiguous()
    )


def _in_order(x: Any) -> Any:
    """The tensor with its dimensions as they lie in memory."""
    order = sorted(range(x.ndim), key=lambda d: (-x.stride(d), -x.shape[d]))
    return x if order == list(range(x.ndim)) else x.permute(order)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredView:
    """How a saved tensor is made again of the flat storage that is saved for it.

    A kernel in backward may read beyond a view, by strides that forward has noted; and
    what it writes to one saved tensor, others in the same memory must show.

    Attributes:
        shape: Sizes of the tensor.
        stride: Its strides, in elements.
        offset: Its first element.
        group: A number that tensors in the same storage have in common.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    group: int

    def view(self, flat: Any) -> Any:
        """The tensor, in this storage."""
        return flat.as_strided(self.shape, self.stride, self.offset)


def stored_views(
    tensors: dict[int, Any], storages: Storages
) -> dict[int, tuple[StoredView, Any]]:
    """For tensors that are not all of their memory: each as a view of the flat storage.

    Args:
        tensors: The tensors that are saved, by number.
        storages: The storages of the trace.
    """
    groups = collections.defaultdict(list)
    for i, x in tensors.items():
        groups[_number(x), x.dtype].append(i)
    found: dict[int, tuple[StoredView, Any]] = {}
    for group in groups.values():
        first = tensors[group[0]]
        if len(group) == 1 and first.is_contiguous() and _fills(first):
            continue
        flat = storages.flat(first)
        for i in group:
            x = tensors[i]
            place = tuple(x.shape), tuple(x.stride()), x.storage_offset()
            found[i] = StoredView(*place, group[0]), flat
    return found
