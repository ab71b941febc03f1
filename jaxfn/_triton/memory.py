"""The memory of a launch: pointers are numbers, and each access is checked.

Each buffer has a range of 2**44 addresses, and begins in its middle. So a pointer that
leaves a buffer never reaches another one. Only NumPy's memory is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxfn._triton.errors import Fault
from jaxfn._triton.operations import real, whole

_BITS = 44
_MIDDLE = 1 << (_BITS - 1)


@dataclass(frozen=True)
class BlockPointer:
    """A block of a larger array, as `tl.make_block_ptr` and descriptors name it.

    Attributes:
        base: Address of the array's first element.
        shape: Sizes of the array.
        strides: Distances between neighbours, in elements.
        offsets: Index of the block's first element, or of each of its rows.
        block: Sizes of the block.
        padding: Value that a descriptor reads beyond the array: 1 for zero, 2 for NaN.
    """

    base: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offsets: tuple[Any, ...]
    block: tuple[int, ...]
    padding: int = 1

    def at(self, *offsets: Any) -> BlockPointer:
        """Return the block at other offsets."""
        return replace(self, offsets=offsets)

    def addresses(self, size: int, checked: Iterable[int]) -> tuple[Any, Any]:
        """Return the address of each element, and whether it lies within the array."""
        where, inside = np.int64(self.base), np.bool_(True)
        for axis, count in enumerate(self.block):
            offset = np.asarray(self.offsets[axis], np.int64)
            index = offset if offset.ndim else offset + np.arange(count)
            index = np.expand_dims(index, tuple(range(1, len(self.block) - axis)))
            where = where + index * np.int64(self.strides[axis]) * size
            if axis in checked:
                inside = inside & (index >= 0) & (index < self.shape[axis])
        return where, inside


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
    "fmax": real(np.fmax),
    "fmin": real(np.fmin),
    "exch": lambda _, new: new,
}


def _turns(index: np.ndarray) -> Iterator[np.ndarray]:
    """Yield lanes in groups that write to no place twice, in the lanes' order."""
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
        names: Names in errors, if not the parameters.
    """

    def __init__(
        self, buffers: dict[str, np.ndarray], names: Mapping[str, str]
    ) -> None:
        self._parameters = list(buffers)
        self._buffers = list(buffers.values())
        self._names = [names.get(parameter, parameter) for parameter in buffers]

    def pointer(self, parameter: str) -> np.int64:
        """Return the address of a buffer's first element."""
        number = self._parameters.index(parameter) + 1
        return np.int64((number << _BITS) + _MIDDLE)

    def _find(
        self, addresses: np.ndarray, dtype: np.dtype, verb: str
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        """Yield each buffer as an array of `dtype`, with its indices and lanes."""
        if not addresses.size:
            return
        numbers = addresses >> _BITS
        one = numbers.min() == numbers.max()
        for number in numbers[:1] if one else np.unique(numbers):
            lanes = numbers == number
            if not 1 <= number <= len(self._buffers):
                raise Fault(f"{verb} an address that belongs to no argument")
            buffer, name = self._buffers[number - 1], self._names[number - 1]
            distance = addresses[lanes] - ((number << _BITS) + _MIDDLE)
            wrong = (distance < 0) | (distance > buffer.nbytes - dtype.itemsize)
            if wrong.any():
                element = int(distance[wrong][0]) // buffer.itemsize
                raise Fault(
                    f"{verb} element {element} of `{name}`, which has {buffer.size} "
                    "elements"
                )
            index, rest = np.divmod(distance, dtype.itemsize)
            if rest.any():
                raise Fault(f"{verb} `{name}` at an address that is not aligned")
            usable = buffer.nbytes // dtype.itemsize * dtype.itemsize
            yield buffer.view(np.uint8)[:usable].view(dtype), index, lanes

    def load(self, where: Any, mask: Any, other: Any, dtype: np.dtype) -> Any:
        """Read values at addresses; `other` or zero in lanes that the mask excludes."""
        where = np.asarray(where)
        result = np.zeros(where.shape, dtype)
        if other is not None:
            result[...] = other
        chosen = np.broadcast_to(True if mask is None else mask, where.shape)
        addresses = where[chosen]
        values = np.empty(addresses.shape, dtype)
        for array, index, lanes in self._find(addresses, dtype, "reads"):
            values[lanes] = array[index]
        result[chosen] = values
        return result[()]

    def store(self, where: Any, values: Any, mask: Any) -> None:
        """Write values to addresses, in the lanes of the mask."""
        where = np.asarray(where)
        chosen = np.broadcast_to(True if mask is None else mask, where.shape)
        new = np.broadcast_to(values, where.shape)[chosen]
        for array, index, lanes in self._find(where[chosen], new.dtype, "writes"):
            array[index] = new[lanes]

    def atomic(self, verb: str, where: Any, new: Any, mask: Any) -> Any:
        """Combine values into memory, lane by lane; return the old values."""
        return self._update(where, (new,), mask, _ATOMIC[verb])

    def compare_and_swap(self, where: Any, expected: Any, new: Any) -> Any:
        """Write if memory has the expected bits; return the old values."""

        def combine(old: Any, expected: Any, new: Any) -> Any:
            bits = f"u{old.dtype.itemsize}"
            return np.where(old.view(bits) == expected.view(bits), new, old)

        return self._update(where, (expected, new), None, combine)

    def _update(self, where: Any, values: Any, mask: Any, combine: Any) -> Any:
        where, dtype = np.asarray(where), values[0].dtype
        result = np.zeros(where.shape, dtype)
        chosen = np.broadcast_to(True if mask is None else mask, where.shape)
        addresses = where[chosen]
        operands = [np.broadcast_to(v, where.shape)[chosen] for v in values]
        found = np.empty(addresses.shape, dtype)
        for array, index, lanes in self._find(addresses, dtype, "updates"):
            mine, old = [v[lanes] for v in operands], np.empty(index.shape, dtype)
            for turn in _turns(index):
                old[turn] = array[index[turn]]
                array[index[turn]] = combine(old[turn], *(v[turn] for v in mine))
            found[lanes] = old
        result[chosen] = found
        return result[()]
