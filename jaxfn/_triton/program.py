"""A reader for the text of TTIR.

Python's bindings of TTIR show neither constants nor the order of operations, so this
module reads the text: one operation a line, regions in braces. Unknown syntax raises.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxfn._triton import experimental
from jaxfn._triton.errors import Fault

_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LOC = re.compile(r"loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_LINE = re.compile(r'(?:(%[^=]*?) = )?("\d+"|[a-z_]+\.[\w.]+)(.*)')
_SYMBOL = re.compile(r'@("\d+"|[\w$.\-]+)')
_ARGUMENT = re.compile(r"(%[\w$.\-]+): ([^\s,)]+)")
_SUCCESSOR = re.compile(r"\^(\w+)(\([^()]*\))?")
_PAIR = re.compile(r"([\w.]+)(?: = ((?:[^,<\[]|<[^>]*>|\[[^\]]*\])+))?")
_PLACE = re.compile(r'"(\d+)":(\d+):\d+|#loc\d*')

_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
DTYPES = {name: np.dtype(dtype) for name, dtype in _DTYPES.items()}
"""NumPy's type for each of TTIR, where integers have no sign. Pointers are numbers."""
DTYPES |= {f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)}
DTYPES |= {"i1": np.dtype("bool"), "index": np.dtype("int64")}


@functools.cache
def kind(text: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of a type of TTIR; for a function type, of its result."""
    text = re.split(r" -> | to |, (?=<)", text)[-1].strip("<>()")
    text = text.removeprefix("!tt.tensordesc<").removeprefix("tensor<")
    match = re.match(r"((?:\d+x)*)(!tt\.ptr|[su]?i(?=\d))?([^,>]*)", text)
    assert match is not None
    shape = tuple(int(n) for n in match[1].split("x") if n)
    element = "i64" if match[2] == "!tt.ptr" else ("i" if match[2] else "") + match[3]
    if element not in DTYPES:
        raise Fault(f"values of type `{text}` can't be computed on a CPU")
    return shape, DTYPES[element]


@dataclass
class Operation:
    """One operation of TTIR.

    Attributes:
        name: Its name with its dialect, like `arith.addf`.
        results: Names of the values that it defines.
        operands: Names of the values that it takes.
        words: Keywords between the operands, like the kind of a comparison.
        attributes: Values of its attributes; numbers and lists are read.
        types: The text after the last colon.
        strings: String literals.
        symbol: The function that it calls.
        regions: Nested code.
        successors: Blocks that a branch goes to, with the names of the values it
            passes.
        place: File and line in the kernel.
        run: The function that runs it, found when it first runs.
    """

    name: str
    results: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    types: str = ""
    strings: list[str] = field(default_factory=list)
    symbol: str = ""
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)
    place: str = ""
    run: Any = None

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return kind(self.types)[0]

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """Type of the result's elements."""
        return kind(self.types)[1]

    @functools.cached_property
    def pointee(self) -> np.dtype:
        """Type of the elements that the first pointer points to."""
        found = re.search(r"(?:ptr|tensordesc)<(tensor<[^<>]*|[^<>,]+)", self.types)
        if found is None:
            raise Fault(f"`{self.types}` has no pointer")
        return kind(found[1])[1]


@dataclass
class Block:
    """Operations in order; the last may be missing if it passes no values.

    Attributes:
        label: Name for branches.
        arguments: Names of the values that it gets.
        operations: Its operations.
    """

    label: str = ""
    arguments: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass
class Function:
    """The kernel or one of its helpers.

    Attributes:
        arguments: Names of its arguments.
        types: Their types.
        blocks: Its code.
    """

    arguments: list[str]
    types: list[str]
    blocks: list[Block]


class _Reader:
    """A reader of a module, line by line."""

    def __init__(self, text: str) -> None:
        self.strings: list[str] = []
        self.own = str(Path(experimental.module().__file__).parent)
        text = _STRING.sub(self._store, text)
        lines = [re.sub(r"\s*// .*", "", line).strip() for line in text.splitlines()]
        self.locs = dict(line.split(" = ", 1) for line in lines if line[:1] == "#")
        self.lines = iter([line for line in lines if line and line[0] != "#"])

    def _store(self, match: re.Match[str]) -> str:
        self.strings.append(match[0][1:-1])
        return f'"{len(self.strings) - 1}"'

    def _text(self, name: str) -> str:
        return self.strings[int(name[1:-1])] if name[0] == '"' else name

    def _symbol(self, text: str) -> str:
        found = _SYMBOL.search(text)
        return self._text(found[1]) if found else ""

    def _places(self, loc: str) -> Iterator[str]:
        """Yield files and lines of a location, which may be nested; innermost first."""
        for found in _PLACE.finditer(loc):
            if found[1]:
                yield f"{self.strings[int(found[1])]}:{found[2]}"
            else:
                yield from self._places(self.locs.get(found[0], ""))

    def _place(self, loc: str) -> str:
        """Return the innermost line that is not Triton's own, if there is one."""
        places = list(self._places(loc))
        mine = (place for place in places if not place.startswith(self.own))
        return next(mine, places[0] if places else "")

    def functions(self) -> dict[str, Function]:
        found = {}
        for line in self.lines:
            if line.startswith("tt.func"):
                head = _LOC.sub("", line)
                pairs = _ARGUMENT.findall(head)
                names, types = ([pair[i] for pair in pairs] for i in (0, 1))
                found[self._symbol(head)] = Function(names, types, self._region()[0])
            elif not line.startswith(("module", "}")):
                raise ValueError(f"can't read TTIR: {line}")
        return found

    def _region(self) -> tuple[list[Block], str]:
        """Read the blocks up to the closing brace; return also the text after it."""
        blocks = [Block()]
        while (line := next(self.lines))[0] != "}":
            if line[0] == "^":
                label = line[1:].split("(")[0].split(":")[0]
                blocks.append(Block(label, _VALUE.findall(_LOC.sub("", line))))
            else:
                blocks[-1].operations.append(self._operation(line))
        return [b for b in blocks if b.operations or b.label] or blocks, line[1:]

    def _operation(self, line: str) -> Operation:
        regions = []
        while line[-1] == "{":
            region, rest = self._region()
            regions.append(region)
            line = f"{line[:-1].rstrip(' (')} {rest.lstrip(')')}"
        match = _LINE.fullmatch(_LOC.sub("", line).strip())
        if match is None:
            raise ValueError(f"can't read TTIR: {line}")
        op = Operation(self._text(match[2]), _results(match[1] or ""), regions=regions)
        locs = _LOC.findall(line)
        op.place = self._place(locs[-1]) if locs else ""
        self._fill(op, match[3])
        return op

    def _fill(self, op: Operation, text: str) -> None:
        if op.name.startswith("cf."):
            pairs = _SUCCESSOR.findall(text)
            op.successors = [(label, _VALUE.findall(names)) for label, names in pairs]
            text = _SUCCESSOR.sub("", text)
        op.strings = [self._text(s) for s in re.findall(r'"\d+"', text)]
        for braces in re.findall(r"\{([^{}]*)\}", text):
            pairs = _PAIR.findall(braces)
            op.attributes |= {key: _attribute(value) for key, value in pairs}
        text = re.sub(r"<?\{[^{}]*\}>?", "", text)
        op.symbol = self._symbol(text) or self._text(op.attributes.get("symbol", "-"))
        body, _, op.types = text.rpartition(" : ") if " : " in text else (text, "", "")
        op.operands = _VALUE.findall(body)
        body = _SYMBOL.sub("", _VALUE.sub("", body))
        op.words = body.split() if "constant" in op.name else re.findall(r"\w+", body)
        if op.name == "scf.for":
            names, op.operands = op.operands, op.operands[1:4] + op.operands[5::2]
            op.regions[0][0].arguments = [names[0], *names[4::2]]
        elif op.name == "scf.while":
            op.regions[0][0].arguments = op.operands[0::2]
            op.operands = op.operands[1::2]


def _results(text: str) -> list[str]:
    names = []
    for name in text.replace(" ", "").split(",") if text else []:
        name, _, count = name.partition(":")
        names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
    return names


def _attribute(text: str) -> Any:
    if text in ("", "true", "false"):
        return text != "false"
    if text.startswith("array<"):
        return [int(n) for n in re.findall(r"-?\d+", text.partition(":")[2])]
    number = re.fullmatch(r"(-?\d+)(?: : \w+)?", text)
    return int(number[1]) if number else text


def read(text: str) -> dict[str, Function]:
    """Return the functions of a module, by name; the kernel is the first."""
    return _Reader(text).functions()
