"""Writes into memory, as new values: which can be, and what they become."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxfn.torch._translate._draws import Draws
from jaxfn.torch._translate._expressions import code, dotted, fill, zeros_made
from jaxfn.torch._translate._flow import Flow, Write
from jaxfn.torch._translate._hosted import hosted
from jaxfn.torch._translate._infer import Inference
from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._liveness import assumptions
from jaxfn.torch._translate._masks import Masks
from jaxfn.torch._translate._memory import is_write_name
from jaxfn.torch._translate._seen import Facts
from jaxfn.torch._translate._sources import Target, key_of
from jaxfn.torch._translate._units import Unit, cst_params

if TYPE_CHECKING:
    from jaxfn.torch._translate._names._row import Given

_RULES = ("backward", "vjp", "jvp")


@dataclasses.dataclass(frozen=True)
class Decision:
    """May a write become a new value? A reason says why not."""

    reason: str = ""
    back: bool = False


class Program:
    """The units of a translation, and what is known of each."""

    def __init__(self, units: Mapping[Any, Unit], facts: Facts) -> None:
        self.units = units
        self.inference = {key: Inference(unit, facts) for key, unit in units.items()}
        self._flows: dict[Any, Flow | None] = {}
        self.draws = {
            key: Draws(unit, self.inference[key]) for key, unit in units.items()
        }
        keyed = [units[key].value for key in units if self.draws[key].takes_key]
        for draws in self.draws.values() if keyed else ():
            draws.refuse_beside(keyed)

        self.hosted = hosted(units, facts)

    def is_hosted(self, target: Target) -> bool:
        """Does a function know NumPy alone, and is it carried over as it is?"""
        return target.kind == "unit" and key_of(target) in self.hosted

    def flow(self, unit: Unit, function: Any) -> Flow | None:
        """What a function does to memory; None while that is being found out."""
        if function not in self._flows:
            self._flows[function] = None
            infer = self.inference[unit.key]
            self._flows[function] = Flow(
                function,
                infer,
                lambda func: self._summary(unit, func),
                lambda name: _may_write(unit, function, name),
                assumptions(function),
            )
        return self._flows[function]

    def _summary(self, unit: Unit, func: Any) -> Any:
        """What a function does that is called so, and its parameters' names."""
        found = self._callee(unit, func)
        if found is None:
            return None
        owner, function, skipped = found
        flow = self.flow(owner, function)
        names = [p.name.value for p in cst_params(function.params)][skipped:]
        return None if flow is None else (flow.summary, names)

    def _callee(self, unit: Unit, func: Any) -> tuple[Unit, Any, int] | None:
        target = unit.references.get(func)
        if target is not None and target.kind == "unit" and target.source is not None:
            owner = self.units.get((target.source.name, target.path))
            if owner is not None and isinstance(owner.node, cst.FunctionDef):
                return owner, owner.node, 0
            return None
        if not isinstance(func, cst.Attribute):
            return None
        owner = self._class(unit, func.value)
        if owner is None or not isinstance(owner.node, cst.ClassDef):
            return None
        for member in owner.node.body.body:
            is_def = isinstance(member, cst.FunctionDef)
            if is_def and member.name.value == func.attr.value:
                return owner, member, 0 if _is_static(member) else 1
        return None

    def _class(self, unit: Unit, node: Any) -> Unit | None:
        if isinstance(node, cst.Name) and node.value in ("cls", "self"):
            return unit
        target = unit.references.get(node)
        if target is None or target.kind != "unit" or target.source is None:
            return None
        return self.units.get((target.source.name, target.path))


def _is_static(function: Any) -> bool:
    return any(dotted(d.decorator) == ["staticmethod"] for d in function.decorators)


def _may_write(unit: Unit, function: Any, name: str) -> bool:
    """A helper's caller is asked; a rule may write to what is its own."""
    if not unit.is_function_class:
        return True
    if function.name.value in _RULES:
        return True
    if function.name.value != "forward":
        return function.name.value != "setup_context"
    marks = f"ctx.mark_dirty({name})"
    return marks in code(function.body)


class Writes:
    """The writes of a unit.

    Args:
        unit: the definition.
        program: all of them.
    """

    def __init__(self, unit: Unit, program: Program) -> None:
        self._unit, self._program = unit, program
        self.infer = program.inference[unit.key]
        self.masks = Masks(self.infer)
        self._writes: dict[Any, Write] = {}
        self._problems: dict[Any, str] = {}
        for function in _functions(unit.node):
            flow = program.flow(unit, function)
            if flow is not None:
                self._writes |= flow.writes
                self._problems |= flow.problems

    def reason(self, node: Any) -> str:
        """Why an assignment can't be a binding, if it writes to memory at all."""
        write = self._writes.get(node)
        return "" if write is None else write.reason

    def is_write(self, call: Any) -> bool:
        """Is this call of a method a write?"""
        return is_write_name(call.func.attr.value)

    def decision(self, node: Any) -> Decision:
        """May this write become a new value?"""
        write = self._writes.get(node)
        if write is None:
            return Decision("it writes to memory that could not be followed")
        return Decision(write.reason, write.back)

    def call_problem(self, call: Any) -> str:
        """Why a call of a function that writes to its arguments can't stay."""
        return self._problems.get(call, "")

    def special(self, name: str, args: list[Given]) -> Any:
        """What has no twin without a write: filling and copying."""
        values = {"x": args[0].value}
        if len(args) > 1:
            values["y"] = args[1].value
        made = zeros_made(args[0].value)  # for this alone: so it is made so at once
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


def _functions(node: Any) -> list[Any]:
    if isinstance(node, cst.FunctionDef):
        return [node]
    if isinstance(node, cst.ClassDef):
        return [m for m in node.body.body if isinstance(m, cst.FunctionDef)]
    return []
