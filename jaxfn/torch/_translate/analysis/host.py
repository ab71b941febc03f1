"""Functions that know NumPy alone: they are carried over as they are.

A rule that gives the arrays of its tensors to such a function calls it by
`jaxfn.host_function` in JAX, and nothing in it has to be rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate.observe import ExprType, Observations
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import code, cst, cst_params, loads


def hosted(units: Mapping[Any, Unit], facts: Observations) -> set[Any]:
    """The keys of functions that were given arrays of NumPy, and know only those."""
    return {
        key
        for key, unit in units.items()
        if any(f.numpy for f in _given(unit, facts)) and _is_pure(units, key, facts, ())
    }


def _given(unit: Unit, facts: Observations) -> list[ExprType]:
    """What the parameters of a function were."""
    if not isinstance(unit.node, cst.FunctionDef):
        return []
    names = {p.name.value for p in cst_params(unit.node.params)}
    return [facts.of(n) for n in loads(unit.node.body) if n.value in names]


def _is_pure(
    units: Mapping[Any, Unit], key: Any, facts: Observations, around: tuple[Any, ...]
) -> bool:
    """Is nothing in it, or in what it needs, of PyTorch or of chance?"""
    if key in around:
        return True
    unit = units.get(key)
    if unit is None or isinstance(unit.node, cst.ClassDef):
        return False
    if unit.name != unit.path[-1] or "random" in code(unit.node):
        return False
    kinds = {target.kind for target in unit.references.values()}
    tensors = any(
        (f.is_tensor and not f.numpy) or f.kind == "mixed" for f in _given(unit, facts)
    )
    return (
        kinds <= {"import", "builtin", "unit"}
        and not tensors
        and all(_is_pure(units, other, facts, (*around, key)) for other in unit.needs)
    )
