"""What the random programs find: engines that are wrong on purpose.

`python -m tests.laws.mutants` breaks jaxfn in one way after another, and says which is
the first program that shows it. A program that is wrong anyway does not count.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests import conftest  # noqa: F401  (its settings of JAX)

# ruff: isort: split
from jaxfn import _class_rules, _jax_rules
from jaxfn._core import batch, primitives
from tests.laws.programs import Program
from tests.laws.test_programs import wrong

# The package exports a function of this name in its place.
calls = importlib.import_module("jaxfn._core.call")

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def everywhere(original: Any, broken: Any) -> Iterator[None]:
    """`broken` in place of `original`, in all modules of jaxfn that import it."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "jaxfn":
                for key, value in list(vars(module).items()):
                    if value is original:
                        stack.enter_context(mock.patch.object(module, key, broken))
        yield


def without_attached_tangents() -> Any:
    """What is attached has no derivative: no second order through outputs."""
    original = primitives.attach

    def attach(_: Any, inputs: Any, values: Any, **options: Any) -> Any:
        def nothing(inputs: Any, values: Any, dots: Any) -> Any:
            return [None] * len(values)

        return original(nothing, inputs, values, **options)

    return everywhere(original, attach)


def without_tangents_of_intermediates() -> Any:
    """Saved intermediates have no derivative, as in torch."""
    original = calls._forward

    def forward(*args: Any) -> Any:
        outs, others, _, layout = original(*args)
        return outs, list(map(primitives.gate, others)), None, layout

    return mock.patch.object(calls, "_forward", forward)


def without_tangents_of_residuals() -> Any:
    """A jvp has no derivative by what it closes over."""
    original = primitives.jvp_along

    def along(f: Any, inputs: Any, tangents: Any) -> Any:
        outs, found = original(f, inputs, tangents)
        return outs, [None if t is None else 0 * t for t in found]

    return mock.patch.object(primitives, "jvp_along", along)


def with_the_last_residuals() -> Any:
    """Of several traces of one call, all take what the last one saved."""

    def unpack(self: Any, packed: Any) -> Any:
        layout, types = list(self._layouts.values())[-1]
        return layout, packed[0][: len(types)]

    return mock.patch.object(calls._Residuals, "unpack", unpack)


def late(owner: Any, *names: str) -> Any:
    """These methods run when the user's `with` is over."""
    stack = contextlib.ExitStack()
    for name in names:
        original = getattr(owner, name)

        def run(*args: Any, original: Any = original) -> Any:
            return contextvars.Context().run(original, *args)

        stack.enter_context(mock.patch.object(owner, name, run))
    return stack


def with_late_rules() -> Any:
    """The rules of a class run when the user's `with` is over."""
    return late(_class_rules.ClassRules, "backward", "jvp")


def with_late_rules_of_decorators() -> Any:
    """The rules of a decorated function run so."""
    return late(_jax_rules.JaxRules, "backward", "jvp", "value_and_jvp")


def without_ties() -> Any:
    """An output depends on the arguments that it was computed from, and no others."""

    def tied(outs: Any, *_: Any, **__: Any) -> Any:
        return list(outs)

    return everywhere(batch.tied, tied)


MUTANTS: dict[str, Mutant] = {
    "attached values without tangents": without_attached_tangents,
    "intermediates without tangents": without_tangents_of_intermediates,
    "residuals of a jvp without tangents": without_tangents_of_residuals,
    "residuals of the last trace": with_the_last_residuals,
    "outputs that ignore an argument": without_ties,
    "rules of classes outside of their context": with_late_rules,
    "rules of decorators outside of their context": with_late_rules_of_decorators,
}


def found(mutant: Mutant, numbers: range) -> tuple[int, str] | None:
    """The first program that shows it, and how."""
    for number in numbers:
        program = Program(str(number))
        with mutant():
            problem = wrong(program)
        if problem is not None and wrong(program) is None:
            return number, problem[0]
    return None


def main(first: int = 0, n: int = 1000) -> None:
    for name, mutant in MUTANTS.items():
        start = time.process_time()
        result = found(mutant, range(first, first + n))
        seconds = time.process_time() - start
        says = "not found" if result is None else f"program {result[0]}: {result[1]}"
        print(f"{name}: {says} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
