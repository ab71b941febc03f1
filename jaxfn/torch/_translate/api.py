"""The translation: from classes to the text of a file."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.base import Untranslated
from jaxfn.torch._translate.files import SourceFiles
from jaxfn.torch._translate.observed import Observations
from jaxfn.torch._translate.port import (
    Progress,
    as_torch,
    assembled,
    compared,
)
from jaxfn.torch._translate.rewriter import Rewriter
from jaxfn.torch._translate.runs import InstrumentedOriginal, run
from jaxfn.torch._translate.syntax import cst
from jaxfn.torch._translate.units import Unit, collect


def translate(
    classes: Sequence[Any],
    args: Sequence[Any],
    *,
    whole: bool,
    progress: Progress | None = None,
) -> tuple[str, tuple[Untranslated, ...], Any]:
    """Return the source of a translation, what is left, and the comparison.

    Args:
        classes: Classes of one file.
        args: Arguments of the first one's apply; none to leave the comparison out.
        whole: Whether this is the whole file, whose docstring and other names stay.
        progress: Function that is called before each row of the comparison.
    """
    given = as_torch(args)
    library = SourceFiles()
    functions = [a for a in given if is_user_function(a)]
    roots = [*classes, *functions]
    aliases = library.of(classes[0])[0].aliases(classes) if whole else []
    units, facts = collect(library, roots, aliases), Observations()
    if args:
        facts = _learn(units, library, classes[0], given)
    source, left = _written(library, units, facts, classes, whole=whole)
    values = [unit.value for unit in units.values()]
    left.extend(_foreign(given, [v for v in values if isinstance(v, type)]))
    if not args:
        return source, tuple(left), None
    report = compared(source, classes[0], given, progress)
    return source, tuple(left), report


def _foreign(args: Sequence[Any], classes: Collection[type]) -> list[Untranslated]:
    """Return the arguments that compute in torch and are not translated."""
    reason = "an object that computes in PyTorch: pass one that computes in JAX"
    found = []
    for i, arg in enumerate(args):
        module = type(arg).__module__.split(".")[0]
        plain = module in ("builtins", "torch", "numpy", "scipy", "jax", "jaxlib")
        ours = isinstance(arg, tuple) or is_user_function(arg) or type(arg) in classes
        if isinstance(arg, torch.nn.Module) or (not plain and not ours):
            found.append(Untranslated(f"argument {i}", type(arg).__qualname__, reason))
    return found


def is_user_function(value: Any) -> bool:
    """Return whether it is a Python function, which may have source text."""
    return hasattr(value, "__code__") and hasattr(value, "__globals__")


def _learn(
    units: Any, library: SourceFiles, cls: Any, args: Sequence[Any]
) -> Observations:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about the original
        try:
            run(cls, args)
        except Exception as error:
            # After its first sentence, a message of torch may have a hundred lines.
            said = str(error).split("\n")[0].split(". ")[0]
            raise ValueError(
                f"`{cls.__name__}` itself fails on these arguments. Pass others. It "
                f"raised {type(error).__name__}: {said}"
            ) from error
        original = InstrumentedOriginal(units)
        by_value = {}
        for unit in units.values():
            if is_user_function(unit.value):
                by_value[id(unit.value)] = original.value(unit)
        source, path = library.of(cls)
        seen = original.value(units[source.name, path])
        given = [by_value.get(id(a), a) for a in args]
        run(seen, given, original.facts.writes)
        for more in ({"tracked": False}, {"twice": True}):
            with suppress(Exception):  # lines that nothing reaches are marked
                run(seen, given, original.facts.writes, **more)
        for inner, args in list(original.facts.writes.applied.items()):
            with suppress(Exception):
                run(inner, args, original.facts.writes)
    return original.facts


def _written(
    library: SourceFiles,
    units: Mapping[Any, Unit],
    facts: Observations,
    classes: Sequence[Any],
    *,
    whole: bool,
) -> tuple[str, list[Untranslated]]:
    left: list[Untranslated] = []
    parts: dict[Any, tuple[Unit, Sequence[Any]]] = {}
    main, _ = library.of(classes[0])
    for unit in units.values():
        rewriter = Rewriter(unit, units, facts)
        found = cst.Module([unit.node]).visit(rewriter)
        statements = [_named(unit, s) for s in found.body]
        parts[unit.key] = unit, statements
        left.extend(rewriter.left)
    return assembled(main, parts, whole=whole), left


def _named(unit: Unit, statement: Any) -> Any:
    is_def = isinstance(statement, (cst.FunctionDef, cst.ClassDef))
    if is_def and statement.name.value == unit.path[-1] != unit.name:
        return statement.with_changes(name=cst.Name(unit.name))
    return statement
