"""What users call: a translation, and what is left of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst

from jaxfn.torch._lib import torch
from jaxfn.torch._translate import _comparison
from jaxfn.torch._translate._assemble import assembled
from jaxfn.torch._translate._learn import Facts, Original, quiet, run
from jaxfn.torch._translate._rewrite import Left, Rewriter
from jaxfn.torch._translate._sources import Library
from jaxfn.torch._translate._units import Unit, collect
from jaxfn.torch._translate._writes import Program


@dataclasses.dataclass(frozen=True)
class Translation:
    """Functions of torch, in JAX's terms.

    Attributes:
        source: the text of a file that needs jax and jaxfn alone.
        left: what could not be translated: in `source` a comment holds it, and a line
            that raises stands in its place.
        comparison: what a comparison with the original said; None without arguments.
    """

    source: str
    left: tuple[Left, ...]
    comparison: Any = None

    @property
    def ok(self) -> bool:
        """Is nothing left, and nothing different?"""
        return not self.left and (self.comparison is None or self.comparison.ok)

    def __str__(self) -> str:
        parts = [f"left: {left}" for left in self.left]
        if self.comparison is not None:
            parts.append(str(self.comparison))
        return "\n".join(parts) or "all translated; not compared: no arguments given"


def translate(cls: Any, *args: Any, compare: bool = True, whole: bool = False) -> Translation:
    """Translate a `torch.autograd.Function` to source text for JAX.

    Args:
        cls: the class, or a list of classes of one file.
        args: an example call: the original runs with it, and shows what is a tensor;
            the translation is compared with it. Arrays, tensors, and anything else.
        compare: compare the result with the original, where there are arguments?
        whole: is this the whole file? Then its docstring is kept.

    Returns:
        The source, what is left, and the comparison.

    Raises:
        TypeError: `cls` is no torch Function.
        ValueError: the class has no source text, or the original fails on `args`.

    Example:
        >>> import torch, jaxfn.torch
        >>> from torch.distributions.utils import clamp_probs
    """
    classes = list(cls) if isinstance(cls, (list, tuple)) else [cls]
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, torch.autograd.Function)):
            raise TypeError(
                "translate expected a class derived from torch.autograd.Function, got "
                f"{one!r}. Pass the class itself, not its apply."
            )
    given = _comparison.as_torch(args)
    library = Library()
    functions = [a for a in given if is_user_function(a)]
    units = collect(library, [*classes, *functions])
    facts = Facts()
    if args:
        facts = _learn(units, library, classes[0], given)
    program = Program(units, facts)
    source, left = _written(library, program, classes, whole=whole)
    comparison = None
    if args and compare:
        comparison = _comparison.compare(source, classes[0], given, functions)
    return Translation(source, tuple(left), comparison)


def is_user_function(value: Any) -> bool:
    """Is it a Python function, whose text may be at hand?"""
    return hasattr(value, "__code__") and hasattr(value, "__globals__")


def _learn(units: Any, library: Library, cls: Any, args: Sequence[Any]) -> Facts:
    with quiet():
        try:
            run(cls, args)
        except Exception as error:
            raise ValueError(
                f"`{cls.__name__}` fails in PyTorch on these arguments: expected a "
                f"call that works, got {type(error).__name__}: {error}"
            ) from error
        original = Original(units)
        by_value = {}
        for unit in units.values():
            if is_user_function(unit.value):
                by_value[id(unit.value)] = original.value(unit)
        source, path = library.of(cls)
        seen = original.value(units[source.name, path])
        run(seen, [by_value.get(id(a), a) for a in args])
    return original.facts


def _written(
    library: Library, program: Program, classes: Sequence[Any], *, whole: bool
) -> tuple[str, list[Left]]:
    left: list[Left] = []
    parts: list[tuple[Unit, Sequence[Any]]] = []
    constants: dict[str, str] = {}
    main, _ = library.of(classes[0])
    for unit in program.units.values():
        rewriter = Rewriter(unit, program, constants)
        found = cst.Module([unit.node]).visit(rewriter)
        statements = [_named(unit, s) for s in found.body]
        parts.append((unit, statements))
        left.extend(rewriter.left)
    return assembled(main, parts, constants, whole=whole), left


def _named(unit: Unit, statement: Any) -> Any:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        if statement.name.value == unit.path[-1] != unit.name:
            return statement.with_changes(name=cst.Name(unit.name))
    return statement
