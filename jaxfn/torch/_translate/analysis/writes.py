"""Writes into memory, as new values: which are possible, and their text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxfn.torch._translate.analysis.aliasing import is_write_name
from jaxfn.torch._translate.analysis.flow import Write
from jaxfn.torch._translate.analysis.masks import Masks
from jaxfn.torch._translate.analysis.program import Analysis
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import cst, fill, members, zeros_made

if TYPE_CHECKING:
    from jaxfn.torch._translate.table import CallArgument


_RULES = ("backward", "vjp", "jvp")


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision whether a write may become a new value, or the reason why not."""

    reason: str = ""
    back: bool = False


class Writes:
    """The writes of a unit."""

    def __init__(self, unit: Unit, program: Analysis) -> None:
        self._unit, self._program = unit, program
        self.infer = program.inference[unit.key]
        self.masks = Masks(self.infer)
        self._writes: dict[Any, Write] = {}
        self._problems: dict[Any, str] = {}
        is_def = isinstance(unit.node, cst.FunctionDef)
        for function in [unit.node] if is_def else members(unit.node).values():
            flow = program.flow(unit, function)
            if flow is not None:
                self._writes |= flow.writes
                self._problems |= flow.problems

    def reason(self, node: Any) -> str:
        """Return why an assignment that writes to memory can't be a binding."""
        write = self._writes.get(node)
        return "" if write is None else write.reason

    def is_write(self, call: Any) -> bool:
        """Return whether this call of a method is a write."""
        return is_write_name(call.func.attr.value)

    def decision(self, node: Any) -> Decision:
        """Return whether this write may become a new value."""
        write = self._writes.get(node)
        if write is None:
            return Decision("it writes to memory that could not be followed")
        return Decision(write.reason, write.back)

    def call_problem(self, call: Any) -> str:
        """Return why a call of a function that writes to its arguments can't stay."""
        return self._problems.get(call, "")

    def special(self, name: str, args: list[CallArgument]) -> Any:
        """Return filling and copying, which have no equivalent without a write."""
        values = {"x": args[0].value}
        if len(args) > 1:
            values["y"] = args[1].value
        made = zeros_made(args[0].value)  # made only to be filled
        if name == "zero_":
            return args[0].value if made else fill("jnp.zeros_like(x)", values)
        if name == "fill_" and len(args) == 2:
            like, shape, dtype = made or (args[0].value, None, None)
            if like is not None:
                return fill("jnp.full_like(x, y)", {**values, "x": like})
            values |= {"shape": shape, "dtype": dtype or cst.Name("float")}
            return fill("jnp.full(shape, y, dtype)", values)
        if name == "copy_" and len(args) >= 2:
            one, two = args[0].fact, args[1].fact
            same = one.shape is not None and one.shape == two.shape
            if same and one.dtype == two.dtype and one.dtype is not None:
                return args[1].value
            return fill("jnp.broadcast_to(y, x.shape).astype(x.dtype)", values)
        return None
