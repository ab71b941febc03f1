"""What a kernel reads and writes, from the code that Triton's frontend makes of it.

A pointer comes from parameters: it is followed through arithmetic, loops, branches and
calls. If anything happens to a pointer that is not known here, or a pointer is loaded
from memory, then every buffer counts as read and written; only copies are lost.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxfn._triton import experimental
from jaxfn._triton.arguments import Variant
from jaxfn._triton.generated import Generated

_READS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}
_WRITES = {"tt.store", "tt.descriptor_store", "tt.descriptor_scatter"}
_UPDATES = {"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"}
_MOVES = {
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
    "arith.select",
}
"""Operations whose results point where their operands do."""

_BRANCHES = {"cf.br", "cf.cond_br"}
_LEAVES = {"scf.yield", "scf.condition", "tt.return"}
_REGIONS = {"scf.for", "scf.while", "scf.if", "scf.execute_region", "tt.func"}



@dataclass(frozen=True)
class Effects:
    """What the variants of a launch do to its buffers.

    Attributes:
        usable: The variants that Triton's frontend compiles.
        reads: Numbers of the buffers that one of them may read.
        writes: Numbers of the buffers that one of them may write to.
    """

    usable: tuple[Variant, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class NotCompiled(Exception):
    """Triton's frontend compiles no variant; the message has its words."""


def of_variants(generated: Generated, variants: Sequence[Variant]) -> Effects:
    """Compile each case of a generated kernel, and see what it does.

    Raises:
        NotCompiled: No case compiles.
    """
    reads: set[int] = set()
    writes: set[int] = set()
    found: dict[int, Any] = {}
    for variant, case in zip(variants, generated.cases, strict=True):
        if case not in found:
            found[case] = _of_case(generated, case, variant.options)
            if not isinstance(found[case], Exception):
                reads |= found[case][0]
                writes |= found[case][1]
    usable = tuple(
        v
        for v, case in zip(variants, generated.cases, strict=True)
        if not isinstance(found[case], Exception)
    )
    if not usable:
        error = found[generated.cases[0]]
        raise NotCompiled(_words(error)) from error
    return Effects(usable, tuple(sorted(reads)), tuple(sorted(writes)))


_KNOWN: dict[Any, Any] = {}


def _of_case(generated: Generated, case: int, options: Any) -> Any:
    """The buffers that a case reads and writes; or why it does not compile."""
    key = (id(generated.kernel), case, *generated.signature.items())
    with experimental.LOCK:
        if key not in _KNOWN:
            try:
                found = effects(
                    generated.kernel,
                    generated.signature,
                    generated.constants(case),
                    options,
                )
            except Exception as error:  # noqa: BLE001  (kernels raise what they like)
                found = error
            # The kernel stays alive with its id.
            _KNOWN[key] = (generated.kernel, found)
        return _KNOWN[key][1]


def effects(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], options: Any
) -> tuple[set[int], set[int]]:
    """The positions of the pointers that a kernel reads, and of those that it writes.

    Positions count the parameters that are not `constexpr`.

    Args:
        kernel: A `JITFunction`.
        signature: The type of each parameter: `*fp32`, `i32` or `constexpr`, say.
        constants: The values of those that are `constexpr`.
        options: `num_warps` and others.
    """
    with experimental.LOCK:
        module = experimental.compiled(kernel, signature, constants, options)
        walk = _Walk(module)
    types = [t for t in signature.values() if t != "constexpr"]
    everything = {i for i, t in enumerate(types) if t.startswith("*")}
    if walk.is_lost:
        return everything, set(everything)
    return walk.reached(walk.read), walk.reached(walk.written)


def _words(error: BaseException) -> str:
    """What Triton says of a kernel, from the innermost function that it was in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


# ---- the walk


class _Walk:
    """Collects where each pointer of a module comes from, and what is done to it.

    Args:
        module: A module of Triton's first intermediate language.

    Attributes:
        read: The pointers that are read.
        written: The pointers that are written.
        is_lost: Whether something unknown happens to a pointer.
    """

    def __init__(self, module: Any) -> None:
        self.read: set[int] = set()
        self.written: set[int] = set()
        self.is_lost = False
        self._from: dict[int, set[Any]] = collections.defaultdict(set)
        self._leaves: dict[int, list[Any]] = collections.defaultdict(list)
        self._blocks: dict[int, dict[int, Any]] = collections.defaultdict(dict)
        self._functions: dict[str, Any] = {}
        operations: list[Any] = []
        module.walk(lambda op: operations.append(op))
        for op in operations:
            self._place(op)
        for op in operations:
            self._visit(op)
        entry = self._functions[module.get_entry_func_name()]
        for i, argument in enumerate(self._arguments(entry)):
            self._from[argument.id()].add(("parameter", i))

    def reached(self, pointers: set[int]) -> set[int]:
        """The positions of the parameters that these pointers come from."""
        found, seen, left = set(), set(pointers), list(pointers)
        while left:
            for source in self._from[left.pop()]:
                if isinstance(source, tuple):
                    found.add(source[1])
                elif source not in seen:
                    seen.add(source)
                    left.append(source)
        return found

    def _place(self, op: Any) -> None:
        """Note in which region an operation stands, and the functions by name."""
        block = op.get_block()
        if block is not None:
            region = block.get_parent()
            self._blocks[region.id()][block.id()] = block
            if op.get_name() in _LEAVES:
                self._leaves[region.id()].append(op)
        if op.get_name() == "tt.func":
            self._functions[op.get_str_attr("sym_name")] = op

    def _visit(self, op: Any) -> None:
        name, pointers = op.get_name(), [x for x in _operands(op) if _is_pointer(x)]
        if name in _REGIONS:
            self._region(name, op)
        elif name == "tt.call":
            callee = self._functions[op.get_flat_symbol_ref_attr("callee")]
            self._flow(_operands(op), self._arguments(callee))
            for leave in self._leaves_of(callee, 0):
                self._flow(_operands(leave), _results(op))
        elif name in _BRANCHES:
            # Which operand goes to which block is not shown: each to all.
            blocks = self._blocks[op.get_block().get_parent().id()].values()
            into = [a for b in blocks for a in _block_arguments(b) if _is_pointer(a)]
            for pointer in pointers:
                for argument in into:
                    self._flow([pointer], [argument])
        elif name in _LEAVES:
            pass  # done with the operation around it
        elif name in _MOVES:
            for result in _results(op):
                for pointer in pointers:
                    self._flow([pointer], [result])
        else:
            self._access(name, op, pointers)

    def _access(self, name: str, op: Any, pointers: list[Any]) -> None:
        """An operation that reads, writes, or does what is not known."""
        accessed = pointers[:1]
        if name in _READS | _UPDATES:
            self.read |= {x.id() for x in accessed}
        if name in _WRITES | _UPDATES:
            self.written |= {x.id() for x in accessed}
        known = name in _READS | _WRITES | _UPDATES and len(pointers) == 1
        makes_pointer = any(_is_pointer(x) for x in _results(op))
        if makes_pointer or (pointers and not known):
            self.is_lost = True

    def _region(self, name: str, op: Any) -> None:
        """Loops and branches: what goes into their blocks, and comes out."""
        if name == "tt.func":
            return
        if name == "scf.for":  # operands: begin, end, step; its block has a counter
            carried = _operands(op)[3:]
            inside = self._arguments(op)[1:]
            self._flow(carried, inside)
            self._flow(carried, _results(op))  # no iteration at all
            for leave in self._leaves_of(op, 0):
                self._flow(_operands(leave), inside)
                self._flow(_operands(leave), _results(op))
        elif name == "scf.while":
            before, after = self._arguments(op, 0), self._arguments(op, 1)
            self._flow(_operands(op), before)
            for leave in self._leaves_of(op, 0):  # first operand: whether to go on
                self._flow(_operands(leave)[1:], after)
                self._flow(_operands(leave)[1:], _results(op))
            for leave in self._leaves_of(op, 1):
                self._flow(_operands(leave), before)
        else:
            for i in range(op.get_num_regions()):
                for leave in self._leaves_of(op, i):
                    self._flow(_operands(leave), _results(op))

    def _flow(self, values: Sequence[Any], into: Sequence[Any]) -> None:
        for value, place in zip(values, into, strict=True):
            self._from[place.id()].add(value.id())

    def _leaves_of(self, op: Any, number: int) -> list[Any]:
        return self._leaves[op.get_region(number).id()]

    def _arguments(self, op: Any, number: int = 0) -> list[Any]:
        """The arguments of the first block of a region."""
        blocks = self._blocks[op.get_region(number).id()]
        first = next(iter(blocks.values()), None)
        return [] if first is None else _block_arguments(first)


def _operands(op: Any) -> list[Any]:
    return [op.get_operand(i) for i in range(op.get_num_operands())]


def _results(op: Any) -> list[Any]:
    return [op.get_result(i) for i in range(op.get_num_results())]


def _block_arguments(block: Any) -> list[Any]:
    return [block.get_argument(i) for i in range(block.get_num_arguments())]


def _is_pointer(value: Any) -> bool:
    kind = str(value.get_type())
    return "tt.ptr" in kind or "tensordesc" in kind
