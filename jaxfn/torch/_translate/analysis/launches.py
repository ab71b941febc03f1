"""The launches of a unit: the names of their arguments, and what they write."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.analysis.stores import written_in
from jaxfn.torch._translate.observe import LaunchFact, Observations
from jaxfn.torch._translate.source import Unit, is_kernel
from jaxfn.torch._translate.syntax import code, cst, dotted, indices


@dataclasses.dataclass
class LaunchPlan:
    """A launch `kernel[grid](...)`.

    Attributes:
        names: For each argument of the call, the parameters that it gives.
        written: The expressions that the kernel writes to, by parameter, in order.
        optional: Parameters among these that may be None.
        maybe: Parameters among these to which some launches don't write.
        problem: The reason that it can't be translated; empty if it can.
    """

    names: list[list[str]] = dataclasses.field(default_factory=list)
    written: dict[str, Any] = dataclasses.field(default_factory=dict)
    optional: set[str] = dataclasses.field(default_factory=set)
    maybe: set[str] = dataclasses.field(default_factory=set)
    problem: str = ""


class LaunchPlans:
    """The launches of a unit."""

    def __init__(self, unit: Unit, infer: Inference, facts: Observations) -> None:
        self._unit, self._infer, self._facts = unit, infer, facts
        self._found: dict[Any, LaunchPlan | None] = {}

    def of(self, call: Any) -> LaunchPlan | None:
        """Return the plan of a call, or None if it launches nothing."""
        if call not in self._found:
            self._found[call] = self._plan(call)
        return self._found[call]

    def _plan(self, call: Any) -> LaunchPlan | None:
        if not isinstance(call.func, cst.Subscript):
            return None
        fact = self._facts.launches.of(call)
        kernel = call.func.value
        target = self._unit.references.get(kernel)
        value = getattr(target, "value", None)
        if is_kernel(value) and (fact is None or _is_around(value, fact.kernel)):
            return self._filled(call, value, fact)
        if fact is None:
            return None
        if isinstance(kernel, cst.Name) and target is None:
            return self._filled(call, fact.kernel, fact)
        return LaunchPlan(problem=f"a kernel that has no name here: {code(kernel)}")

    def _filled(self, call: Any, kernel: Any, fact: LaunchFact | None) -> LaunchPlan:
        plan = LaunchPlan(problem="" if fact is None else fact.problem)
        given = self._named(call, list(kernel.arg_names), plan)
        if fact is None:
            maybe = written_in(kernel)
            effects = {n: {"written"} for n in given if n in maybe}
            kinds = {n: self._infer.owner(given[n]).kind for n in effects}
            written = {n for n in effects if kinds[n] in ("tensor", "unknown", "mixed")}
            plan.optional = {n for n in written if kinds[n] != "tensor"}
        else:
            effects = fact.effects
            maybe = written_in(kernel)
            written = {
                n
                for n, what in effects.items()
                if "written" in what or (what == {"none"} and n in maybe & {*given})
            }
            written -= {n for n in written if dotted(given.get(n)) == ["None"]}
            plan.optional = {n for n in written if "none" in effects[n]}
        for name in written:
            if fact is None or "read" in effects[name]:
                plan.maybe.add(name)
            if name not in given:
                plan.problem = f"it writes to `{name}`, which is not named here"
        plan.written = {
            n: given[n] for n in kernel.arg_names if n in written & {*given}
        }
        for name, node in plan.written.items():
            alone = len(plan.written) == 1 and self._is_part(node)
            if not (isinstance(node, cst.Name) or alone or plan.problem):
                plan.problem = f"it writes to `{name}`, which is no plain name here"
        for node in given.values():
            seen = self._infer.of(node)
            if seen.is_tensor and seen.shapes and not seen.dense and not plan.problem:
                plan.problem = (
                    f"`{code(node)}` was not contiguous, and arrays in JAX are: a "
                    "kernel sees memory"
                )
        if "out" in given and "out" not in written:
            plan.problem = "the parameter `out` has a name that triton_call uses"
        return plan

    def _is_part(self, node: Any) -> bool:
        """Return whether it is `x[1:]`, which shares the memory of a name."""
        if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
            return False
        kinds = {self._infer.of(i).kind for i in indices(node)}
        return kinds <= {"int", "none"} and self._infer.of(node.value).is_tensor

    def _named(
        self, call: Any, parameters: list[str], plan: LaunchPlan
    ) -> dict[str, Any]:
        """Return the arguments by parameter, without those that are starred."""
        found, place = {}, 0
        for arg in call.args:
            names: list[str] = []
            if arg.keyword is not None:
                names = [arg.keyword.value]
            elif arg.star == "*":
                value = self._infer.of(arg.value).value
                count = len(value) if isinstance(value, tuple) else 0
                if not count or not _is_plain(arg.value):
                    plan.problem = f"{code(arg.value)} is starred: name its elements"
                names = parameters[place : place + count]
                place += count
            elif not arg.star:
                names = parameters[place : place + 1]
                place += 1
            plan.names.append(names)
            if len(names) == 1 and not arg.star:
                found[names[0]] = arg.value
        return found


def _is_around(outer: Any, kernel: Any) -> bool:
    """Return whether a kernel, perhaps with heuristics around it, launches another."""
    while outer is not kernel and hasattr(outer, "fn"):
        outer = outer.fn
    return outer is kernel


def _is_plain(node: Any) -> bool:
    """Return whether it can be written several times: a name, or `x.stride()`."""
    return dotted(node.func if isinstance(node, cst.Call) else node) is not None
