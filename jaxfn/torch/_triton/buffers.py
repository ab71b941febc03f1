"""The memory of tensors without values: flat tensors, and the places of others in them.

A kernel works on memory. So it gets each storage once, whole, and each tensor as a
place in it. Slices, transposes and several names for one memory are therefore exact.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from jaxfn.torch._base import TorchRefusal, experimental, torch

_WAY_OUT = "Pass x.contiguous() to the kernel."


class Storages:
    """The storages of a trace, each with a tensor that fills it.

    Attributes:
        have_values: Whether its tensors have values.
    """

    have_values = False

    def __init__(self) -> None:
        self._whole: dict[int, Any] = {}

    def note(self, result: Any) -> None:
        """Remember the result of an operation, if it fills its storage."""
        for x in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(x, torch.Tensor) and _fills(x):
                self._whole.setdefault(_number(x), x)

    def flat(self, x: Any) -> Any:
        """Return the storage of this tensor as a flat tensor of its dtype.

        Raises:
            TorchRefusal: No known tensor fills the storage.
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


# If x64 is off, JAX has int32 for torch's int64. Then memory can't change its dtype.
def _has_own_size(x: Any) -> bool:
    return x.element_size() < 8


def _number(x: Any) -> int:
    return experimental.storage_number(x)


def _fills(x: Any) -> bool:
    """Return whether every element of its storage belongs to this tensor, once."""
    return (
        x.storage_offset() == 0
        and experimental.storage_bytes(x) == x.numel() * x.element_size()
        and _in_order(x).is_contiguous()
    )


def _in_order(x: Any) -> Any:
    """Return the tensor with its dimensions in the order of memory."""
    order = sorted(range(x.ndim), key=lambda d: (-x.stride(d), -x.shape[d]))
    return x if order == list(range(x.ndim)) else x.permute(order)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredView:
    """The place of a saved tensor in its storage, which is saved instead.

    A kernel in backward may read beyond a view, by strides that forward has saved. And
    a write to one saved tensor must be visible in others in the same memory.

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
        """Return the tensor, in this storage."""
        return flat.as_strided(self.shape, self.stride, self.offset)


def stored_views(
    tensors: dict[int, Any], storages: Storages
) -> dict[int, tuple[StoredView, Any]]:
    """Return saved tensors that do not fill their memory, as views of flat storages.

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


def flat_storage(x: Any) -> Any:
    """Return the whole storage of a tensor with values, as a flat tensor."""
    whole = x.untyped_storage()
    count = whole.nbytes() // x.element_size()
    return torch.empty(0, dtype=x.dtype).set_(whole, 0, (count,), (1,))
