"""The analysis of all units of a translation together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate.analysis.flow import Flow
from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.analysis.liveness import assumptions
from jaxfn.torch._translate.observe import Observations
from jaxfn.torch._translate.source import Unit, key_of
from jaxfn.torch._translate.syntax import code, cst, cst_params, dotted, find, members

_RULES = ("backward", "vjp", "jvp")


class Analysis:
    """The units of a translation, and the analysis of each."""

    def __init__(self, units: Mapping[Any, Unit], facts: Observations) -> None:
        self.units, self.facts = units, facts
        self.inference = {key: Inference(unit, facts) for key, unit in units.items()}
        self._passed_on = _passed_on(units)
        self._flows: dict[Any, Flow | None] = {}

    def flow(self, unit: Unit, function: Any) -> Flow | None:
        """Return the flow of a function; None while it is being computed."""
        if function not in self._flows:
            self._flows[function] = None
            infer = self.inference[unit.key]
            self._flows[function] = Flow(
                function,
                infer,
                lambda func: self._summary(unit, func),
                lambda name: self._may_write(unit, function, name),
                assumptions(function),
            )
        return self._flows[function]

    def _may_write(self, unit: Unit, function: Any, name: str) -> bool:
        """Return whether a function may write to a parameter."""
        if unit.key in self._passed_on and not unit.is_function_class:
            return False  # some callers can't be seen
        if not unit.is_function_class:
            return True  # its callers decide
        if function.name.value in _RULES:
            return True
        if function.name.value != "forward":
            return function.name.value != "setup_context"
        marks = f"ctx.mark_dirty({name})"
        return marks in code(function.body)

    def _summary(self, unit: Unit, func: Any) -> Any:
        """Return the summary of a function that is called, and its parameters."""
        found = self._callee(unit, func)
        if found is None:
            return None
        owner, function, skipped = found
        flow = self.flow(owner, function)
        names = [p.name.value for p in cst_params(function.params)][skipped:]
        return None if flow is None else (flow.summary, names)

    def _callee(self, unit: Unit, func: Any) -> tuple[Unit, Any, int] | None:
        target = unit.references.get(func)
        if target is not None and target.kind == "unit":
            owner = self.units.get(key_of(target))
            if owner is not None and isinstance(owner.node, cst.FunctionDef):
                return owner, owner.node, 0
            return None
        if not isinstance(func, cst.Attribute):
            return None
        owner = self._class(unit, func.value)
        if owner is None:
            return None
        member = members(owner.node).get(func.attr.value)
        return None if member is None else (owner, member, int(not _is_static(member)))

    def _class(self, unit: Unit, node: Any) -> Unit | None:
        if isinstance(node, cst.Name) and node.value in ("cls", "self"):
            return unit
        target = unit.references.get(node)
        if target is None or target.kind != "unit":
            return None
        return self.units.get(key_of(target))


def _is_static(function: Any) -> bool:
    return any(dotted(d.decorator) == ["staticmethod"] for d in function.decorators)


def _passed_on(units: Mapping[Any, Unit]) -> set[Any]:
    """Return the units that code uses without a call that the analysis can follow."""
    found = set()
    for unit in units.values():
        calls = {call.func for call in find(unit.node, cst.Call)}
        for inner in find(unit.node, cst.Lambda):
            calls -= {call.func for call in find(inner, cst.Call)}
        for node, target in unit.references.items():
            if target.kind == "unit" and node not in calls:
                found.add(key_of(target))
    return found
