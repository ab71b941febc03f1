"""Runs a Triton kernel on NumPy arrays, from its TTIR.

Triton's own interpreter executes the Python of a kernel: it is wrong for bfloat16 and
works on raw memory. TTIR is what a GPU would get: helpers, types, loops, constants and
lines are settled there, so a kernel means here what it means on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxfn._triton import compile as compiling
from jaxfn._triton import experimental
from jaxfn._triton.errors import Fault, LaunchError
from jaxfn._triton.memory import BlockPointer, Memory
from jaxfn._triton.operations import (
    DTYPES,
    MADE,
    PLAIN,
    item_size,
    kind,
    number,
    numbers,
    pointee,
)
from jaxfn._triton.program import Block, Function, Operation

_ENDS = {
    "tt.return",
    "tt.reduce.return",
    "tt.scan.return",
    "tt.map_elementwise.return",
    "scf.yield",
    "scf.condition",
    "cf.br",
    "cf.cond_br",
}
_PATIENCE = 10_000_000
"""Turns of one `while`. Programs run in turn, so one that waits would wait for ever."""

_YIELD = Operation("scf.yield")
Values = list[Any]


class _Run:
    """One launch.

    Args:
        functions: The kernel and its helpers.
        memory: The buffers.
        grid: Number of programs along each axis.
    """

    def __init__(
        self,
        functions: dict[str, Function],
        memory: Memory,
        grid: tuple[int, ...],
    ) -> None:
        self.functions = functions
        self.memory = memory
        self.grid = grid
        self.program: tuple[int, ...] = (0, 0, 0)

    def call(self, function: Function, values: Values) -> Values:
        """Run a function, block after block."""
        env = dict(zip(function.arguments, values, strict=True))
        labels = {block.label: block for block in function.blocks}
        block = function.blocks[0]
        while True:
            end, values = self.block(block, env)
            if end.name == "tt.return":
                return values
            which = 0 if end.name == "cf.br" or values[0] else 1
            label, handed = end.successors[which]
            block = labels[label]
            env.update(zip(block.arguments, [env[n] for n in handed], strict=True))

    def block(self, block: Block, env: dict[str, Any]) -> tuple[Operation, Values]:
        """Run a block; gives the operation that ends it, with its operands."""
        op = _YIELD
        try:
            for op in block.operations:
                values = [env[name] for name in op.operands]
                if op.name in _ENDS:
                    return op, values
                if op.run is None:
                    op.run = _runner(op)
                result = op.run(self, env, values)
                if len(op.results) == 1:
                    env[op.results[0]] = result
                elif op.results:
                    env.update(zip(op.results, result, strict=True))
        except Fault as fault:
            fault.places.append(op.place)
            raise
        except LaunchError:
            raise
        except Exception as error:
            fault = Fault(f"`{op.name}` failed, {type(error).__name__}: {error}")
            fault.places.append(op.place)
            raise fault from error
        return _YIELD, []

    def region(self, region: list[Block], env: dict[str, Any], values: Values) -> Any:
        """Run nested code; gives the values that it hands on."""
        block = region[0]
        env.update(zip(block.arguments, values, strict=True))
        return self.block(block, env)[1]


Runner = Callable[[_Run, dict[str, Any], Values], Any]


def _runner(op: Operation) -> Runner:
    """What runs an operation."""
    if fn := PLAIN.get(op.name):
        return lambda run, env, values: fn(*values)
    if make := MADE.get(op.name):
        made = make(op)
        return lambda run, env, values: made(*values)
    if op.name in _MADE_HERE:
        return _MADE_HERE[op.name](op)
    if op.name == "tt.elementwise_inline_asm":
        raise Fault("inline assembly can't run on a CPU")
    raise Fault(f"the operation `{op.name}` can't run on a CPU")


def _unpacked(op: Operation, results: Values) -> Any:
    return results[0] if len(op.results) == 1 else results


def _program(op: Operation) -> Runner:
    axis, dtype = "xyz".index(op.words[0]), np.int32
    if op.name == "tt.get_program_id":
        return lambda run, env, values: dtype(run.program[axis])
    return lambda run, env, values: dtype(run.grid[axis])


def _call(op: Operation) -> Runner:
    return lambda run, env, values: _unpacked(
        op, run.call(run.functions[op.symbol], values)
    )


def _for(op: Operation) -> Runner:
    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        first, last, step, *carried = values
        if step <= 0:
            raise Fault(f"a loop with step {step}")
        of = first.dtype.type
        for i in range(int(first), int(last), int(step)):
            carried = run.region(op.regions[0], env, [of(i), *carried])
        return _unpacked(op, carried)

    return apply


def _while(op: Operation) -> Runner:
    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        for _ in range(_PATIENCE):
            goes_on, *values = run.region(op.regions[0], env, values)
            if not goes_on:
                return _unpacked(op, values)
            values = run.region(op.regions[1], env, values)
        raise Fault(f"a `while` that did not end after {_PATIENCE} turns")

    return apply


def _if(op: Operation) -> Runner:
    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        condition = values[0]
        if np.ndim(condition):
            # Within a reduction each lane decides; such code has no side effects.
            either = [run.region(region, env, []) for region in op.regions]
            chosen = [np.where(condition, a, b) for a, b in zip(*either, strict=True)]
            return _unpacked(op, chosen)
        regions = op.regions if condition else op.regions[1:]
        return _unpacked(op, run.region(regions[0], env, []) if regions else [])

    return apply


def _combine(op: Operation, run: _Run, env: dict[str, Any]) -> Callable[..., Values]:
    """The region of a reduction or scan, for all lanes at once."""

    def apply(left: Values, right: Values) -> Values:
        results = run.region(op.regions[0], env, [*left, *right])
        return [
            np.broadcast_to(r, x.shape).astype(x.dtype, copy=False)
            for r, x in zip(results, left, strict=True)
        ]

    return apply


def _reduce(op: Operation) -> Runner:
    axis = number(op, "axis")

    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        combine = _combine(op, run, env)
        xs = [np.moveaxis(x, axis, 0) for x in values]
        while (count := len(xs[0])) > 1:
            even = count // 2 * 2
            left, right = [x[0:even:2] for x in xs], [x[1:even:2] for x in xs]
            rest = [x[even:] for x in xs]
            pairs = combine(left, right)
            xs = [np.concatenate(p) for p in zip(pairs, rest, strict=True)]
        return _unpacked(op, [x[0] for x in xs])

    return apply


def _scan(op: Operation) -> Runner:
    axis, backwards = number(op, "axis"), op.attributes["reverse"] == "true"
    step = -1 if backwards else 1

    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        combine = _combine(op, run, env)
        xs = [np.moveaxis(x, axis, 0)[::step] for x in values]
        distance = 1
        while distance < len(xs[0]):
            later = combine([x[:-distance] for x in xs], [x[distance:] for x in xs])
            both = zip(xs, later, strict=True)
            xs = [np.concatenate([x[:distance], y]) for x, y in both]
            distance *= 2
        return _unpacked(op, [np.moveaxis(x[::step], 0, axis) for x in xs])

    return apply


def _map(op: Operation) -> Runner:
    if number(op, "pack") != 1:
        raise Fault("`map_elementwise` of several elements at once can't run on a CPU")
    return lambda run, env, values: _unpacked(
        op, run.region(op.regions[0], env, values)
    )


def _load(op: Operation) -> Runner:
    target = pointee(op.types)
    shape, dtype = kind(target)
    size, checked = np.int64(dtype.itemsize), numbers(op, "boundaryCheck")
    padding = op.attributes.get("padding", "1").split()[0]
    fill = dtype.type(np.nan) if padding == "2" else None

    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        where, mask, other, *_ = *values, None, None
        if isinstance(where, BlockPointer):
            where, mask = where.addresses(size, checked)
            other = fill
        return run.memory.load(where, mask, other, dtype)

    del shape
    return apply


def _store(op: Operation) -> Runner:
    checked = numbers(op, "boundaryCheck")

    def apply(run: _Run, env: dict[str, Any], values: Values) -> None:
        where, new, mask, *_ = *values, None
        if isinstance(where, BlockPointer):
            where, mask = where.addresses(np.int64(new.dtype.itemsize), checked)
        run.memory.store(where, new, mask)

    return apply


def _atomic(op: Operation) -> Runner:
    verb = op.words[0]

    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        where, new, mask, *_ = *values, None
        return run.memory.atomic(verb, where, new, mask)

    return apply


def _swap(_: Operation) -> Runner:
    return lambda run, env, values: run.memory.compare_and_swap(*values)


def _block_pointer(op: Operation) -> Runner:
    block = kind(pointee(f"ptr{op.types}"))[0]
    rank = len(block)

    def apply(run: _Run, env: dict[str, Any], values: Values) -> Any:
        base, *rest = values
        parts = (tuple(rest[i : i + rank]) for i in range(0, 3 * rank, rank))
        return BlockPointer(base, *parts, block)

    return apply


def _advance(_: Operation) -> Runner:
    return lambda run, env, values: values[0].moved(values[1:])


def _assert(op: Operation) -> Runner:
    def apply(run: _Run, env: dict[str, Any], values: Values) -> None:
        if not np.all(values[0]):
            raise Fault(f"assertion failed: {op.strings[0]}")

    return apply


def _print(op: Operation) -> Runner:
    def apply(run: _Run, env: dict[str, Any], values: Values) -> None:
        print(run.program, op.strings[0], *values)  # noqa: T201

    return apply


_MADE_HERE: dict[str, Callable[[Operation], Runner]] = {
    "tt.get_program_id": _program,
    "tt.get_num_programs": _program,
    "tt.call": _call,
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _if,
    "tt.reduce": _reduce,
    "tt.scan": _scan,
    "tt.map_elementwise": _map,
    "tt.load": _load,
    "tt.store": _store,
    "tt.atomic_rmw": _atomic,
    "tt.atomic_cas": _swap,
    "tt.make_tensor_ptr": _block_pointer,
    "tt.advance": _advance,
    "tt.assert": _assert,
    "tt.print": _print,
}


def _scalar(value: Any, text: str) -> Any:
    """An argument that is a number, as TTIR types it."""
    dtype = DTYPES[text]
    if dtype.kind == "i":
        return np.array(int(value) & (2**64 - 1), np.uint64).astype(dtype)[()]
    return dtype.type(value)


def _place(fault: Fault) -> str:
    """The innermost line that is not Triton's own."""
    places = [place for place in fault.places if place]
    own = str(Path(experimental.module().__file__).parent)
    mine = [place for place in places if not place.startswith(own)]
    return (mine or places or [""])[0]


def run(
    kernel: Any,
    grid: tuple[int, int, int],
    arguments: Mapping[str, Any],
    *,
    names: Mapping[str, str] | None = None,
    title: str = "",
) -> None:
    """Run a kernel on memory that is NumPy's, program after program.

    Args:
        kernel: A `triton.jit` function.
        grid: Number of programs along each axis.
        arguments: By parameter: contiguous arrays of one axis, written in place;
            numbers; and values of constants.
        names: What errors call a buffer, if not by its parameter.
        title: What errors call the kernel.

    Raises:
        LaunchError: It can't run, or it leaves its memory.
    """
    title = title or kernel.__name__
    values = compiling.complete(kernel, arguments)
    functions, taken = compiling.compiled(kernel, values)
    memory = Memory({k: v for k, v in values.items() if isinstance(v, np.ndarray)})
    entry = next(iter(functions.values()))
    types = dict(zip(taken, entry.types, strict=True))
    ready = [
        memory.pointer(name)
        if isinstance(values[name], np.ndarray)
        else _scalar(values[name], types[name])
        for name in taken
    ]
    launch = _Run(functions, memory, grid)
    with np.errstate(all="ignore"):
        for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
            launch.program = (x, y, z)
            try:
                launch.call(entry, ready)
            except Fault as fault:
                message = f"`{title}` {fault} (program {launch.program})"
                raise LaunchError(title, message, _place(fault)) from fault
