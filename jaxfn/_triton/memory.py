"""The memory of a launch: pointers are numbers, and every access is checked.

Buffer number k begins at address (2k + 3) << 39, so a pointer that leaves one never
reaches another one. Nothing here touches memory that is not NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxfn._triton.errors import Fault
from jaxfn._triton.operations import real, whole

_BITS = 40
_MIDDLE = 1 << (_BITS - 1)


@dataclass(frozen=True)
class BlockPointer:
    """A block of a larger array, as `tl.make_block_ptr` and descriptors name it.

    Attributes:
        base: Address of the array's first element.
        shape: Sizes of the array.
        strides: Distances between neighbours, in elements.
        offsets: Where the block begins.
        block: Sizes of the block.
    """

    base: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offsets: tuple[Any, ...]
    block: tuple[int, ...]

    def moved(self, by: Any) -> BlockPointer:
        """The block at other offsets."""
        offsets = tuple(a + b for a, b in zip(self.offsets, by, strict=True))
        return replace(self, offsets=offsets)

    def addresses(self, size: np.int64, checked: Any) -> tuple[Any, Any]:
        """Address of each element, and which lie within the array."""
        where = np.broadcast_to(np.int64(self.base), self.block)
        inside = np.ones(self.block, bool)
        for axis, count in enumerate(self.block):
            line = [1] * len(self.block)
            line[axis] = count
            index = (np.int64(self.offsets[axis]) + np.arange(count)).reshape(line)
            where = where + index * np.int64(self.strides[axis]) * size
            if axis in checked:
                inside = inside & (index >= 0) & (index < self.shape[axis])
        return where, inside


def _exchange(_: Any, new: Any) -> Any:
    return new


_ATOMIC: dict[str, Callable[..., Any]] = {
    "and": whole(np.bitwise_and),
    "or": whole(np.bitwise_or),
    "xor": whole(np.bitwise_xor),
    "add": whole(np.add),
    "fadd": real(np.add),
    "max": whole(np.maximum),
    "min": whole(np.minimum),
    "umax": whole(np.maximum, unsigned=True),
    "umin": whole(np.minimum, unsigned=True),
    "exch": _exchange,
}


def _rounds(index: np.ndarray) -> Iterator[np.ndarray]:
    """Lanes in groups that write to no place twice; groups keep the lanes' order."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    counts = np.diff(np.r_[starts, len(index)])
    turn = np.empty(len(index), int)
    turn[order] = np.arange(len(index)) - np.repeat(starts, counts)
    for group in range(counts.max()):
        yield np.flatnonzero(turn == group)


class Memory:
    """The buffers that a launch may touch.

    Args:
        buffers: Arrays by the parameter that points to them.
    """

    def __init__(self, buffers: dict[str, np.ndarray]) -> None:
        self._names = list(buffers)
        self._buffers = list(buffers.values())

    def pointer(self, name: str) -> np.int64:
        """The address of a buffer's first element."""
        return np.int64(((self._names.index(name) + 1) << _BITS) + _MIDDLE)

    def _parts(self, addresses: np.ndarray) -> Iterator[tuple[Any, int]]:
        """The lanes of each buffer."""
        numbers = addresses >> _BITS
        first = int(numbers[0])
        if (numbers == first).all():
            yield slice(None), first
        else:
            for number in np.unique(numbers):
                yield numbers == number, int(number)

    def _find(
        self, addresses: np.ndarray, number: int, dtype: np.dtype, verb: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """A buffer as an array of `dtype`, and the index of each address in it."""
        if not 1 <= number <= len(self._buffers):
            raise Fault(f"{verb} at an address that belongs to no argument")
        buffer, name = self._buffers[number - 1], self._names[number - 1]
        distance = addresses - ((number << _BITS) + _MIDDLE)
        size = dtype.itemsize
        wrong = (distance < 0) | (distance > buffer.nbytes - size)
        if wrong.any():
            element = int(distance[wrong][0]) // buffer.itemsize
            raise Fault(
                f"{verb} element {element} of `{name}`, which has {buffer.size} "
                "elements"
            )
        if size == buffer.itemsize:
            array = buffer.view(dtype)
        else:
            array = buffer.view(np.uint8)[: buffer.nbytes // size * size].view(dtype)
        index, rest = np.divmod(distance, size)
        if rest.any():
            raise Fault(f"{verb} `{name}` at an address that is no multiple of {size}")
        return array, index

    def load(self, where: Any, mask: Any, other: Any, dtype: np.dtype) -> Any:
        """Values at addresses; `other` or zero in lanes that the mask leaves out."""
        where = np.asarray(where)
        result = np.zeros(where.shape, dtype)
        if other is not None:
            result[...] = other
        chosen = np.broadcast_to(True if mask is None else mask, where.shape)
        addresses = where[chosen]
        if addresses.size:
            values = np.empty(addresses.shape, dtype)
            for lanes, number in self._parts(addresses):
                array, index = self._find(addresses[lanes], number, dtype, "reads")
                values[lanes] = array[index]
            result[chosen] = values
        return result[()]

    def store(self, where: Any, values: Any, mask: Any) -> None:
        """Write values to addresses, in the lanes of the mask."""
        where, values = np.asarray(where), np.asarray(values)
        chosen = np.broadcast_to(True if mask is None else mask, where.shape)
        addresses, values = where[chosen], np.broadcast_to(values, where.shape)[chosen]
        if addresses.size:
            for lanes, number in self._parts(addresses):
                array, index = self._find(
                    addresses[lanes], number, values.dtype, "writes"
                )
                array[index] = values[lanes]

    def atomic(self, verb: str, where: Any, values: Any, mask: Any) -> Any:
        """Combine values into memory, lane after lane; gives what stood there."""
        combine = _ATOMIC[verb]
        return self._update(where, (values,), mask, combine)

    def compare_and_swap(self, where: Any, expected: Any, values: Any) -> Any:
        """Write where memory holds the expected bits; gives what stood there."""

        def combine(old: Any, compare: Any, new: Any) -> Any:
            bits = f"u{old.dtype.itemsize}"
            return np.where(old.view(bits) == compare.view(bits), new, old)

        return self._update(where, (expected, values), None, combine)

    def _update(
        self, where: Any, values: tuple[Any, ...], mask: Any, combine: Any
    ) -> Any:
        where = np.asarray(where)
        chosen = np.broadcast_to(True if mask is None else mask, where.shape)
        addresses = where[chosen]
        dtype = values[0].dtype
        result = np.zeros(where.shape, dtype)
        if not addresses.size:
            return result[()]
        operands = [np.broadcast_to(v, where.shape)[chosen] for v in values]
        found = np.empty(addresses.shape, dtype)
        for lanes, number in self._parts(addresses):
            array, index = self._find(addresses[lanes], number, dtype, "updates")
            mine, old = [v[lanes] for v in operands], np.empty(index.shape, dtype)
            for turn in _rounds(index):
                place = index[turn]
                old[turn] = array[place]
                array[place] = combine(old[turn], *(v[turn] for v in mine))
            found[lanes] = old
        result[chosen] = found
        return result[()]
