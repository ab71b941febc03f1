"""An interpreter that runs a Triton kernel on NumPy arrays, from its TTIR.

Triton's own interpreter executes the Python of a kernel. It is wrong for bfloat16, and
works on raw memory. TTIR is the code for a GPU, with helpers, types, loops, constants
and lines resolved. So a kernel means the same here as on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxfn._triton import compile as compiling
from jaxfn._triton import experimental
from jaxfn._triton.access import WITH_MEMORY
from jaxfn._triton.errors import Diverges, Fault, LaunchError
from jaxfn._triton.memory import Memory
from jaxfn._triton.operations import PLAIN, WITH_OPERATION
from jaxfn._triton.program import DTYPES, Block, Function, Operation

_PATIENCE = 1_000_000
"""Most turns of a `while`: programs run in turn, so one could wait forever."""
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
_KNOWN = {
    *("axis", "reverse", "start", "end", "order", "boundaryCheck", "padding", "value"),
    *("symbol", "libname", "libpath", "pure", "pack", "hex", "isSigned", "isVolatile"),
    *("cachePolicy", "maxNumImpreciseAcc", "roundingmode"),
}
"""Attributes that are used here or have no meaning on a CPU, like the hints of `tt`."""
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
        self, functions: dict[str, Function], memory: Memory, grid: tuple[int, ...]
    ) -> None:
        self.functions = functions
        self.memory = memory
        self.grid = grid
        self.program: tuple[int, ...] = (0, 0, 0)
        self.env: dict[str, Any] = {}

    def call(self, function: Function, values: Values) -> Values:
        """Run a function, block by block."""
        around, self.env = self.env, dict(zip(function.arguments, values, strict=True))
        blocks = {block.label: block for block in function.blocks}
        block = function.blocks[0]
        try:
            while True:
                end, values = self.block(block)
                if end.name == "tt.return":
                    return values
                which = 0 if end.name == "cf.br" or _is_true(values[0]) else 1
                label, handed = end.successors[which]
                block, values = blocks[label], [self.env[name] for name in handed]
                self.env.update(zip(block.arguments, values, strict=True))
        finally:
            self.env = around

    def block(self, block: Block) -> tuple[Operation, Values]:
        """Run a block; return the operation that ends it, and its operands."""
        env, op = self.env, _YIELD
        try:
            for op in block.operations:
                values = [env[name] for name in op.operands]
                if op.name in _ENDS:
                    return op, values
                if op.run is None:
                    op.run = _runner(op)
                result = op.run(self, op, *values)
                if len(op.results) == 1:
                    env[op.results[0]] = result
                elif op.results:
                    env.update(zip(op.results, result, strict=True))
        except Fault as fault:
            fault.places.append(op.place)
            raise
        except Exception as error:
            fault = Fault(f"failed in `{op.name}`, {type(error).__name__}: {error}")
            fault.places.append(op.place)
            raise fault from error
        return _YIELD, []

    def region(self, region: list[Block], *values: Any) -> Values:
        """Run nested code; return the values that it hands on."""
        (block,) = region
        self.env.update(zip(block.arguments, values, strict=True))
        return self.block(block)[1]


def _is_true(condition: Any) -> bool:
    if np.ndim(condition):
        raise Diverges("branches by a value that is no scalar")
    return bool(condition)


def _runner(op: Operation) -> Callable[..., Any]:
    """Return the function that runs an operation."""
    if plain := PLAIN.get(op.name):
        runner = lambda _run, _op, *values: plain(*values)  # noqa: E731
    elif fn := WITH_OPERATION.get(op.name):
        runner = lambda _run, op, *values: fn(op, *values)  # noqa: E731
    elif access := WITH_MEMORY.get(op.name):
        runner = lambda run, op, *values: access(run.memory, op, *values)  # noqa: E731
    elif op.name in _WITH_RUN:
        runner = _WITH_RUN[op.name]
    else:
        inline = op.name == "tt.elementwise_inline_asm"
        what = "inline assembly" if inline else f"`{op.name}`"
        raise Fault(f"can't run on a CPU: it uses {what}")
    if unknown := {k for k in op.attributes if k not in _KNOWN and k[:3] != "tt."}:
        raise Fault(f"can't run on a CPU: `{op.name}` with {sorted(unknown)}")
    return runner


def _one_or_all(op: Operation, results: Values) -> Any:
    return results[0] if len(op.results) == 1 else results


def _program(run: _Run, op: Operation) -> Any:
    numbers = run.program if op.name == "tt.get_program_id" else run.grid
    return np.int32(numbers["xyz".index(op.words[0])])


def _call(run: _Run, op: Operation, *values: Any) -> Any:
    return _one_or_all(op, run.call(run.functions[op.symbol], list(values)))


def _for(
    run: _Run, op: Operation, first: Any, last: Any, step: Any, *carried: Any
) -> Any:
    if not _is_true(step > 0) or "unsigned" in op.words:
        raise Fault(f"can't run on a CPU: a loop with unsigned numbers or step {step}")
    _is_true(first < last)
    number, handed = first.dtype.type, list(carried)
    for i in range(int(first), int(last), int(step)):
        handed = run.region(op.regions[0], number(i), *handed)
    return _one_or_all(op, handed)


def _while(run: _Run, op: Operation, *first: Any) -> Any:
    values = list(first)
    for _ in range(_PATIENCE):
        goes_on, *values = run.region(op.regions[0], *values)
        if not _is_true(goes_on):
            return _one_or_all(op, values)
        values = run.region(op.regions[1], *values)
    raise Fault(
        f"has a `while` that did not end after {_PATIENCE} turns. On a CPU programs "
        "run one after another, so none can wait for another"
    )


def _if(run: _Run, op: Operation, condition: Any) -> Any:
    regions = op.regions if _is_true(condition) else op.regions[1:]
    return _one_or_all(op, run.region(regions[0])) if regions else []


def _lanes(run: _Run, op: Operation, *values: Any) -> Values:
    """Run the region of a reduction or scan, for all lanes at once if possible."""
    shape = values[0].shape
    try:
        results = run.region(op.regions[0], *values)
    except Diverges:
        lanes = zip(*(x.reshape(-1) for x in values), strict=True)
        each = [run.region(op.regions[0], *lane) for lane in lanes]
        results = [np.reshape(column, shape) for column in zip(*each, strict=True)]
    return [np.broadcast_to(x, shape) for x in results]


def _reduce(run: _Run, op: Operation, *values: Any) -> Any:
    xs = [np.moveaxis(x, op.attributes["axis"], 0) for x in values]
    while (count := len(xs[0])) > 1:
        even = count // 2 * 2
        left, right = [x[0:even:2] for x in xs], [x[1:even:2] for x in xs]
        pairs = zip(_lanes(run, op, *left, *right), xs, strict=True)
        xs = [np.concatenate([pair, x[even:]]) for pair, x in pairs]
    return _one_or_all(op, [x[0] for x in xs])


def _scan(run: _Run, op: Operation, *values: Any) -> Any:
    axis, step = op.attributes["axis"], -1 if op.attributes["reverse"] else 1
    xs, distance = [np.moveaxis(x, axis, 0)[::step] for x in values], 1
    while distance < len(xs[0]):
        left, right = [x[:-distance] for x in xs], [x[distance:] for x in xs]
        later = zip(xs, _lanes(run, op, *left, *right), strict=True)
        xs = [np.concatenate([x[:distance], y]) for x, y in later]
        distance *= 2
    return _one_or_all(op, [np.moveaxis(x[::step], 0, axis) for x in xs])


def _map(run: _Run, op: Operation, *values: Any) -> Any:
    if op.attributes["pack"] != 1:
        raise Fault("can't run on a CPU: it maps several elements at once")
    return _one_or_all(op, _lanes(run, op, *values))


def _assert(_run: _Run, op: Operation, condition: Any) -> None:
    if not np.all(condition):
        raise Fault(f"has a failed assertion: {op.strings[0]}")


def _print(run: _Run, op: Operation, *values: Any) -> None:
    print(run.program, op.strings[0], *values)  # noqa: T201


_WITH_RUN: dict[str, Callable[..., Any]] = {
    "tt.get_program_id": _program,
    "tt.get_num_programs": _program,
    "tt.call": _call,
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _if,
    "tt.reduce": _reduce,
    "tt.scan": _scan,
    "tt.map_elementwise": _map,
    "tt.assert": _assert,
    "tt.print": _print,
}


def _scalar(value: Any, text: str) -> Any:
    """Convert a number to its type in TTIR."""
    dtype = DTYPES[text]
    if dtype.kind == "i":
        return np.array(int(value) & (2**64 - 1), np.uint64).astype(dtype)[()]
    return dtype.type(value)


def _place(fault: Fault) -> str:
    """Return the innermost line that is not Triton's own."""
    places = [place for place in fault.places if place]
    own = str(Path(experimental.module().__file__).parent)
    mine = [place for place in places if not place.startswith(own)]
    return (mine or places or [""])[0]


def run(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    *,
    names: Mapping[str, str] | None = None,
    title: str = "",
    num_warps: int = 4,
) -> None:
    """Run a kernel on NumPy's memory, program by program.

    Args:
        kernel: A `triton.jit` function.
        grid: Number of programs along each axis, three at most.
        arguments: Values by parameter: contiguous arrays of one axis, written in place;
            numbers; and values of constants.
        names: Names of buffers in errors, if not their parameters.
        title: Name of the kernel in errors.
        num_warps: Number of warps of a program, which a kernel can read.

    Raises:
        LaunchError: It can't run, or it uses an address outside its memory.
    """
    values = compiling.complete(kernel, arguments)
    title = title or experimental.name_of(kernel)
    functions, taken = compiling.compiled(kernel, values, num_warps)
    buffers = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
    memory = Memory(buffers, names or {})
    entry = next(iter(functions.values()))
    ready = [
        memory.pointer(name) if name in buffers else _scalar(values[name], of)
        for name, of in zip(taken, entry.types, strict=True)
    ]
    if len(grid) > 3 or any(n < 0 for n in grid):
        raise LaunchError(title, f"`{title}` has no grid {grid}")
    sizes = (*grid, 1, 1, 1)[:3]
    launch = _Run(functions, memory, sizes)
    with np.errstate(all="ignore"):
        for z, y, x in itertools.product(*(range(n) for n in sizes[::-1])):
            launch.program = (x, y, z)
            try:
                launch.call(entry, ready)
            except Fault as fault:
                message = f"`{title}` {fault} (program {launch.program})"
                raise LaunchError(title, message, _place(fault)) from fault
