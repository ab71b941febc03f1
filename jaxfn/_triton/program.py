"""Reads the text of TTIR.

Python's bindings of TTIR show neither constants nor the order of operations, so the
text is read: one operation a line, regions in braces. What is not understood raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LOC = re.compile(r"loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_LINE = re.compile(r'(?:(%[^=]*?) = )?("\d+"|[a-z_]+\.[\w.]+)(.*)', re.DOTALL)
_ARGUMENT = re.compile(r"(%[\w$.\-]+): ([^\s,)]+)")
_SUCCESSOR = re.compile(r"\^(\w+)(\([^()]*\))?")
_PAIR = re.compile(r"([\w.]+)(?: = ((?:[^,<\[]|<[^>]*>|\[[^\]]*\])+))?")
_PLACE = re.compile(r'loc\("(\d+)":(\d+):\d+')


@dataclass
class Operation:
    """One operation of TTIR.

    Attributes:
        name: Its name with its dialect, like `arith.addf`.
        results: Names of the values that it defines.
        operands: Names of the values that it takes.
        words: Keywords between the operands, like the kind of a comparison.
        attributes: The text of each attribute.
        types: The text that follows the last colon.
        strings: String literals.
        symbol: The function that a call names.
        regions: Nested code.
        successors: Blocks that a branch goes to, with names of what it hands over.
        place: File and line in the kernel.
        run: What runs it, found when it first runs.
    """

    name: str
    results: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    types: str = ""
    strings: list[str] = field(default_factory=list)
    symbol: str = ""
    regions: list[Region] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)
    place: str = ""
    run: Callable[..., Any] | None = None


@dataclass
class Block:
    """Operations in order.

    Attributes:
        label: Its name, which branches use.
        arguments: Names of the values that it is entered with.
        operations: Its operations; the last one may be left out if it hands on nothing.
    """

    label: str = ""
    arguments: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


Region = list[Block]


@dataclass
class Function:
    """A function of TTIR: the kernel or one of its helpers.

    Attributes:
        name: Its symbol.
        arguments: Names of its arguments.
        types: The type of each argument.
        blocks: Its code.
    """

    name: str
    arguments: list[str]
    types: list[str]
    blocks: Region


class _Reader:
    """Reads a module line by line."""

    def __init__(self, text: str) -> None:
        self.strings: list[str] = []
        text = _STRING.sub(self._store, text)
        lines = [re.sub(r"\s*// .*", "", line).strip() for line in text.splitlines()]
        self.locs = dict(
            line.split(" = ", 1) for line in lines if line.startswith("#")
        )
        self.lines = [line for line in lines if line and not line.startswith("#")]
        self.at = 0

    def _store(self, match: re.Match[str]) -> str:
        self.strings.append(match[0][1:-1])
        return f'"{len(self.strings) - 1}"'

    def _string(self, quoted: str) -> str:
        return self.strings[int(quoted.strip('"'))]

    def place(self, loc: str) -> str:
        """The file and line of a location, which may name others."""
        for _ in range(20):
            if found := _PLACE.search(loc):
                return f"{self.strings[int(found[1])]}:{found[2]}"
            alias = re.search(r"#loc\d*", loc)
            if alias is None:
                return ""
            loc = self.locs.get(alias[0], "")
        return ""

    def functions(self) -> dict[str, Function]:
        found = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line.startswith("tt.func"):
                head = _LOC.sub("", line)
                symbol = self._symbol(head)
                pairs = _ARGUMENT.findall(head)
                names, types = ([pair[i] for pair in pairs] for i in (0, 1))
                found[symbol] = Function(symbol, names, types, self._region()[0])
            elif not line.startswith(("module", "}")):
                raise ValueError(f"can't read TTIR: {line}")
        return found

    def _symbol(self, text: str) -> str:
        found = re.search(r'@("\d+"|[\w$.\-]+)', text)
        if found is None:
            return ""
        return self._string(found[1]) if found[1].startswith('"') else found[1]

    def _region(self) -> tuple[Region, str]:
        """The blocks up to the closing brace, and what follows it."""
        blocks = [Block()]
        while True:
            line = self.lines[self.at]
            self.at += 1
            if line.startswith("}"):
                entered = [b for b in blocks if b.operations or b.label]
                return entered or blocks, line[1:]
            if line.startswith("^"):
                label = re.match(r"\^(\w+)", line)
                assert label is not None
                names = _VALUE.findall(_LOC.sub("", line))
                blocks.append(Block(label[1], names))
            else:
                blocks[-1].operations.append(self._operation(line))

    def _operation(self, line: str) -> Operation:
        regions = []
        while line.endswith("{"):
            region, rest = self._region()
            regions.append(region)
            line = line[:-1].rstrip(" (") + " " + rest.lstrip(")")
        locs = _LOC.findall(line)
        match = _LINE.fullmatch(_LOC.sub("", line).strip())
        if match is None:
            raise ValueError(f"can't read TTIR: {line}")
        name = self._string(match[2]) if match[2].startswith('"') else match[2]
        op = Operation(name, regions=regions)
        op.place = self.place(locs[-1]) if locs else ""
        op.results = _results(match[1] or "")
        self._fill(op, match[3])
        return op

    def _fill(self, op: Operation, text: str) -> None:
        op.symbol = self._symbol(text) if op.name == "tt.call" else ""
        if op.name.startswith("cf."):
            for label, values in _SUCCESSOR.findall(text):
                op.successors.append((label, _VALUE.findall(values)))
            text = _SUCCESSOR.sub("", text)
        for braces in re.findall(r"\{([^{}]*)\}", text):
            op.attributes.update(_PAIR.findall(braces))
        op.strings = [self._string(s) for s in re.findall(r'"\d+"', text)]
        text = re.sub(r"<?\{[^{}]*\}>?", "", text)
        body, _, op.types = text.rpartition(" : ") if " : " in text else (text, "", "")
        op.operands = _VALUE.findall(body)
        words = re.sub(r"@[\w$.\-]+", "", _VALUE.sub("", body))
        if op.name == "arith.constant":
            op.words = [words.strip()]
            return
        op.words = re.findall(r"[A-Za-z_]\w*", words)
        for key in ("symbol",):
            if key in op.attributes:
                op.symbol = self._string(op.attributes[key])
        _loops(op)


def _results(text: str) -> list[str]:
    names = []
    for name in text.replace(" ", "").split(",") if text else []:
        name, _, count = name.partition(":")
        names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
    return names


def _loops(op: Operation) -> None:
    """Tell the arguments of a loop's body from its operands."""
    names = op.operands
    if op.name == "scf.for":
        op.regions[0][0].arguments = [names[0], *names[4::2]]
        op.operands = [*names[1:4], *names[5::2]]
    elif op.name == "scf.while":
        op.regions[0][0].arguments = names[0::2]
        op.operands = names[1::2]


def read(text: str) -> dict[str, Function]:
    """The functions of a module, by name; the kernel is the first."""
    return _Reader(text).functions()
