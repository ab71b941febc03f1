"""The buffers that a kernel reads and writes, from the code of Triton's frontend.

The source of a pointer is followed through arithmetic, loops, branches and calls. If an
unknown operation uses a pointer, or a pointer is loaded from memory, every buffer
counts as read and written. That costs only copies.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxfn._triton import compile as compiling
from jaxfn._triton.arguments import Variant
from jaxfn._triton.errors import LaunchError, UnreadableError
from jaxfn._triton.generated import Generated
from jaxfn._triton.program import Block, Function, Operation

_READS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}
_WRITES = {"tt.store", "tt.descriptor_store", "tt.descriptor_scatter"}
_UPDATES = {"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"}
_MOVES = {
    "arith.select",
    "tt.addptr",
    "tt.advance",
    "tt.bitcast",
    "tt.broadcast",
    "tt.cat",
    "tt.expand_dims",
    "tt.gather",
    "tt.join",
    "tt.make_tensor_descriptor",
    "tt.make_tensor_ptr",
    "tt.reshape",
    "tt.splat",
    "tt.split",
    "tt.trans",
    "tt.unsplat",
}
"""Operations whose results point to the memory of their operands."""

_ENDS = {"scf.yield", "scf.condition", "tt.return"}


@dataclass(frozen=True)
class Effects:
    """The effects of the variants of a launch on its buffers.

    Attributes:
        usable: The variants that Triton's frontend compiles.
        reads: Numbers of the buffers that one of them may read.
        writes: Numbers of the buffers that one of them may write to.
        are_known: Whether they come from the code, and are not simply all buffers.
        recasts: Whether a pointer to one type becomes a pointer to another one.
        describes: Whether it makes tensor descriptors, which need scratch memory on a
            GPU.
    """

    usable: tuple[Variant, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    are_known: bool = True
    recasts: bool = False
    describes: bool = False


def of_variants(
    made: Generated, variants: Sequence[Variant], buffers: Sequence[Any]
) -> Effects:
    """Compile each case of a generated kernel, and find its effects.

    Args:
        made: The kernel of a launch.
        variants: Its variants.
        buffers: Its buffers.

    Raises:
        LaunchError: No case compiles; the error is the first case's.
    """
    reads: set[int] = set()
    writes: set[int] = set()
    are_known, recasts, describes = True, False, False
    errors: dict[int, LaunchError] = {}
    for case in dict.fromkeys(made.cases):
        try:
            first = variants[made.cases.index(case)]
            constants = made.constants(case)
            walk = _walk(made.kernel, buffers, constants, first.num_warps)
        except LaunchError as error:
            errors[case] = error
        else:
            everything = set(range(len(buffers)))
            are_known = are_known and walk is not None
            recasts = recasts or walk is None or walk.recasts
            describes = describes or (walk is not None and walk.describes)
            reads |= everything if walk is None else walk.read
            writes |= everything if walk is None else walk.written
    pairs = zip(variants, made.cases, strict=True)
    usable = tuple(v for v, case in pairs if case not in errors)
    if not usable:
        raise errors[made.cases[0]]
    found = tuple(sorted(reads)), tuple(sorted(writes))
    return Effects(usable, *found, are_known, recasts, describes)


def _walk(
    kernel: Any,
    buffers: Sequence[jax.ShapeDtypeStruct],
    constants: dict[str, Any],
    num_warps: int = 4,
) -> _Walk | None:
    """Return the effects of a kernel on its buffers; None if its code does not tell.

    Args:
        kernel: A kernel of the buffers `b0`, `b1` and so on, and of constants.
        buffers: The types of the buffers.
        constants: The values of the constants.
        num_warps: Number of warps of a program.

    Raises:
        LaunchError: Triton can't compile it.
    """
    memory = {f"b{i}": np.empty(0, x.dtype) for i, x in enumerate(buffers)}
    try:
        functions, _ = compiling.compiled(kernel, {**memory, **constants}, num_warps)
    except UnreadableError:
        return None
    walk = _Walk(functions)
    return None if walk.is_lost else walk


@dataclass
class _Body:
    """A function: numbers of its arguments, and of the values that it returns."""

    arguments: list[int]
    ends: list[list[int]] = field(default_factory=list)


class _Walk:
    """A walk over code, which finds the source of each pointer and its uses.

    Args:
        functions: A kernel and its helpers, the kernel first.

    Attributes:
        read: Positions of the kernel's arguments that it reads.
        written: Positions of those that it writes to.
        is_lost: Whether something unknown happens to a pointer.
        recasts: Whether a pointer becomes one to another type.
        describes: Whether a tensor descriptor is made.
    """

    def __init__(self, functions: dict[str, Function]) -> None:
        self.read: set[int] = set()
        self.written: set[int] = set()
        self.is_lost = self.recasts = self.describes = False
        self._functions = functions
        self._bodies: dict[str, _Body] = {}
        self._numbers = itertools.count()
        self._from: dict[int, set[int]] = collections.defaultdict(set)
        self._accesses: list[tuple[str, list[int]]] = []
        entry = self._body(next(iter(functions)))
        self._entry = {number: i for i, number in enumerate(entry.arguments)}
        for name, operands in self._accesses:
            self._access(name, [self._sources(x) for x in operands])

    def _access(self, name: str, sources: list[set[int]]) -> None:
        """Note the effect of an operation on the memory of its operands."""
        if name in _READS | _WRITES | _UPDATES:
            pointer, *others = sources
            # A pointer without source was loaded, or made from a number.
            self.is_lost |= not pointer or any(others)
            self.read |= pointer if name in _READS | _UPDATES else set()
            self.written |= pointer if name in _WRITES | _UPDATES else set()
        else:
            self.is_lost |= any(sources)

    def _sources(self, value: int) -> set[int]:
        """Return the positions of the kernel's arguments that a value comes from."""
        seen, left = {value}, [value]
        while left:
            new = self._from[left.pop()] - seen
            seen |= new
            left.extend(new)
        return {self._entry[x] for x in seen if x in self._entry}

    # ---- the flow of values

    def _flow(self, values: Iterable[int], into: Sequence[int]) -> None:
        for value, place in zip(values, into, strict=True):
            self._from[place].add(value)

    def _new(self, names: Sequence[str], scope: dict[str, int]) -> list[int]:
        """Number the values that are defined here; later code may reuse a name."""
        numbers = [next(self._numbers) for _ in names]
        scope.update(zip(names, numbers, strict=True))
        return numbers

    def _body(self, name: str) -> _Body:
        if name not in self._bodies:
            function, scope = self._functions[name], {}
            body = _Body(self._new(function.arguments, scope))
            self._bodies[name] = body  # a function may call itself
            body.ends += self._region(function.blocks, scope)[1]
        return self._bodies[name]

    def _region(
        self, blocks: list[Block], scope: dict[str, int]
    ) -> tuple[list[int], list[list[int]]]:
        """Follow nested code; return the values that it begins and ends with."""
        ends: list[list[int]] = []
        into = {b.label: self._new(b.arguments, scope) for b in blocks}
        for op in itertools.chain.from_iterable(b.operations for b in blocks):
            operands = [scope[name] for name in op.operands]
            for label, names in op.successors:
                self._flow([scope[name] for name in names], into[label])
            if op.name in _ENDS:
                ends.append(operands)
            else:
                self._operation(op, operands, scope)
        return into[blocks[0].label], ends

    def _operation(
        self, op: Operation, operands: list[int], scope: dict[str, int]
    ) -> None:
        inside = [self._region(region, scope) for region in op.regions]
        results = self._new(op.results, scope)
        if op.name == "scf.for":  # operands: begin, end, step; its block has a counter
            (_, *into), ends = inside[0]
            for carried in (operands[3:], *ends):
                self._flow(carried, into)
                self._flow(carried, results)
        elif op.name == "scf.while":
            (before, conditions), (after, ends) = inside
            for carried in (operands, *ends):
                self._flow(carried, before)
            for _, *carried in conditions:  # first: whether to go on
                self._flow(carried, after)
                self._flow(carried, results)
        elif op.name == "scf.if":
            for carried in itertools.chain(*(ends for _, ends in inside)):
                self._flow(carried, results)
        elif op.name == "tt.call" and op.symbol in self._functions:
            body = self._body(op.symbol)
            self._flow(operands, body.arguments)
            for carried in body.ends:
                self._flow(carried, results)
        elif op.name in _MOVES:
            self.describes |= op.name == "tt.make_tensor_descriptor"
            # Triton itself reads and writes bool through a pointer to int8.
            is_bool = "ptr<i1>" in op.types and "ptr<i8>" in op.types
            is_recast = op.name == "tt.bitcast" and "!tt.ptr" in op.types
            self.recasts |= is_recast and not is_bool
            for result in results:
                self._from[result].update(operands)
        else:
            self._accesses.append((op.name, operands))
