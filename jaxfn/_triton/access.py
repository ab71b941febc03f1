"""Operations of TTIR that load and store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxfn._triton.memory import BlockPointer, Memory
from jaxfn._triton.program import Operation


def _fill(op: Operation, padding: int) -> Any:
    return op.pointee.type(np.nan) if padding == 2 else None


def _load(
    memory: Memory, op: Operation, where: Any, mask: Any = None, other: Any = None
) -> Any:
    if isinstance(where, BlockPointer):
        checked = op.attributes.get("boundaryCheck", ())
        where, mask = where.addresses(op.pointee.itemsize, checked)
        other = _fill(op, op.attributes.get("padding", 1))
    return memory.load(where, mask, other, op.pointee)


def _store(
    memory: Memory, op: Operation, where: Any, new: Any, mask: Any = None
) -> None:
    if isinstance(where, BlockPointer):
        checked = op.attributes.get("boundaryCheck", ())
        where, mask = where.addresses(new.dtype.itemsize, checked)
    memory.store(where, new, mask)


def _atomic(
    memory: Memory, op: Operation, where: Any, new: Any, mask: Any = None
) -> Any:
    return memory.atomic(op.words[0], where, new, mask)


def _swap(memory: Memory, _op: Operation, *values: Any) -> Any:
    return memory.compare_and_swap(*values)


def _block_pointer(_memory: Memory, op: Operation, base: Any, *rest: Any) -> Any:
    rank = len(op.shape)
    shape, strides, offsets = (rest[i : i + rank] for i in (0, rank, 2 * rank))
    padding = op.attributes.get("padding", 1)
    return BlockPointer(base, shape, strides, offsets, op.shape, padding)


def _advance(_memory: Memory, _op: Operation, pointer: BlockPointer, *by: Any) -> Any:
    return pointer.at(*(a + b for a, b in zip(pointer.offsets, by, strict=True)))


def _described(memory: Memory, op: Operation, of: BlockPointer, *where: Any) -> Any:
    """Load or store a block that a descriptor names."""
    verb = op.name.removeprefix("tt.descriptor_")
    if verb in ("load", "gather"):
        new, block = None, of.at(*where)
    else:
        new, block = where[-1], of.at(*where[:-1])
    addresses, mask = block.addresses(op.pointee.itemsize, range(len(of.block)))
    if new is None:
        other = _fill(op, of.padding)
        return memory.load(addresses, mask, other, op.pointee).reshape(op.shape)
    new = np.reshape(new, addresses.shape)
    if verb == "reduce":
        how = op.words[0]
        if new.dtype.kind != "i" or ("ui" in op.types and how in ("min", "max")):
            how = f"{'u' if new.dtype.kind == 'i' else 'f'}{how}"
        return memory.atomic(how, addresses, new, mask)
    return memory.store(addresses, new, mask)


WITH_MEMORY: dict[str, Callable[..., Any]] = {
    "tt.load": _load,
    "tt.store": _store,
    "tt.atomic_load": _load,
    "tt.atomic_store": _store,
    "tt.atomic_rmw": _atomic,
    "tt.atomic_cas": _swap,
    "tt.make_tensor_ptr": _block_pointer,
    "tt.advance": _advance,
    "tt.make_tensor_descriptor": _block_pointer,
    **{
        f"tt.descriptor_{verb}": _described
        for verb in ("load", "store", "reduce", "gather", "scatter")
    },
}
"""The functions that run operations on the memory of a launch."""
