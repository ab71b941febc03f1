"""Looking into jaxprs and compiled programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax


def primitives(jaxpr: Any) -> set[str]:
    """The names of all primitives in a jaxpr and in those inside it."""
    return {eqn.primitive.name for eqn in equations(jaxpr)}


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those inside it."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for inner in _jaxprs(list(eqn.params.values())):
            yield from equations(inner)


def _jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _jaxprs(value)


def hlo(fun: Callable[..., Any], *args: Any) -> str:
    """The optimised HLO of `jit(fun)`, without names, metadata and source tables."""
    text = jax.jit(fun).lower(*args).compile().as_text()
    assert text is not None
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    text = re.sub(
        r"(?ms)^(FileNames|FunctionNames|FileLocations|StackFrames)\b.*?^$", "", text
    )
    text = re.sub(r"HloModule \S+", "HloModule", text)
    text = re.sub(r"(?<=[(, ])[\w.-]+: (?=[a-z]+\d*\[)", "_: ", text)
    names: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return names.setdefault(match.group(0), f"%{len(names)}")

    text = re.sub(r"%[\w.-]+", number, text)
    return re.sub(r"\n+", "\n", text).strip()


def instructions(program: Any) -> int:
    """How many operations a compiled program has, in all of its computations."""
    text = program.as_text()
    return len(re.findall(r"^\s+(?:ROOT )?\S+ = ", text, re.MULTILINE))
