"""Runs of the instrumented original."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.observe.instrument import Instrument
from jaxfn.torch._translate.observe.memory import Writes
from jaxfn.torch._translate.observe.observations import Observations
from jaxfn.torch._translate.source import Unit, key_of
from jaxfn.torch._translate.syntax import cst


class InstrumentedOriginal:
    """The units of a translation, which run in torch and report every expression."""

    def __init__(self, units: Mapping[Any, Unit]) -> None:
        self.facts = Observations()
        self._units = units
        self._names = {key: f"__unit_{i}__" for i, key in enumerate(units)}
        self._spaces: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Any] = {}
        for unit in units.values():
            for target in unit.references.values():
                if target.kind == "unit":
                    new = f"__unit_{len(self._names)}__"
                    name = self._names.setdefault(key_of(target), new)
                    self._made[name] = target.value
        for unit in _in_order(units):
            # Members of an enum are compared by identity.
            is_enum = isinstance(unit.value, enum.EnumMeta)
            if unit.is_registry or is_enum:
                self._made[self._names[unit.key]] = unit.value
            else:
                self._define(unit)

    def _space(self, unit: Unit) -> dict[str, Any]:
        name = unit.source.name
        if name not in self._spaces:
            facts = self.facts
            self._spaces[name] = {
                **unit.source.namespace,
                "__see__": facts.see,
                "__watch__": facts.watch,
                "__write__": facts.write,
            }
        return self._spaces[name]

    def _define(self, unit: Unit) -> None:
        space = self._space(unit)
        space.update(unit.closure)
        node = unit.node.visit(Instrument(self.facts, unit, self._names))
        if isinstance(node, cst.SimpleStatementLine):
            node = node.with_changes(leading_lines=[])
        # With this import, annotations are not evaluated.
        text = "from __future__ import annotations\n" + cst.Module([node]).code
        space.update(self._made)
        code = compile(text, f"<{unit.source.name}>", "exec", dont_inherit=True)
        exec(code, space)
        self._made[self._names[unit.key]] = space[unit.path[-1]]
        for other in self._spaces.values():
            other.update(self._made)

    def value(self, unit: Unit) -> Any:
        """Return the instrumented unit."""
        return self._made[self._names[unit.key]]


def _in_order(units: Mapping[Any, Unit]) -> list[Unit]:
    """Sort the units: what a definition needs comes first, unless in a circle."""
    found: dict[Any, Unit] = {}

    def add(key: Any, path: tuple[Any, ...]) -> None:
        if key in found or key in path or key not in units:
            return
        for other in units[key].uses:
            add(other, (*path, key))
        found[key] = units[key]

    for key in units:
        add(key, ())
    return list(found.values())


def _leaves(args: Sequence[Any], *, tracked: bool) -> list[Any]:
    """Return copies. If no tensor requires grad, all inexact ones do, if `tracked`."""
    dense = [isinstance(x, torch.Tensor) and x.layout is torch.strided for x in args]
    given = any(d and x.requires_grad for d, x in zip(dense, args, strict=True))

    def leaf(x: Any, dense: bool) -> Any:
        if not dense:
            return dict(x) if isinstance(x, dict) else x
        can = x.is_floating_point() or x.is_complex()
        wanted = x.requires_grad if given else can
        return x.detach().clone().requires_grad_(wanted and tracked)

    return [leaf(x, d) for x, d in zip(args, dense, strict=True)]


def run(
    cls: Any,
    args: Sequence[Any],
    writes: Writes | None = None,
    *,
    tracked: bool = True,
    twice: bool = False,
) -> None:
    """Run forward of a class in torch, and backward if tensors are `tracked`.

    Args:
        cls: The class.
        args: Arguments of its apply.
        writes: What notes the writes of the run.
        tracked: Whether tensors require a gradient.
        twice: Whether the gradient is differentiated too.
    """
    given = _leaves(args, tracked=tracked)
    torch.manual_seed(0)
    passed = [x * 1 if _requires_grad(x) else x for x in given]
    if writes is not None:
        writes.give(cls.forward, passed)
    out = cls.apply(*passed)
    if writes is not None:
        writes.give_back(out)
    wanted = [x for x in given if _requires_grad(x)]
    for _ in range(1 + twice):
        outs = [x for x in _tuple(out) if _requires_grad(x)]
        if outs and wanted:
            ones = [torch.ones_like(x) for x in outs]
            out = torch.autograd.grad(
                outs, wanted, ones, allow_unused=True, create_graph=twice
            )


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _requires_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings about the original."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
