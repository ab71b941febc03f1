"""The traced call: the static methods become `Rules`, which the engine runs."""

from __future__ import annotations

from typing import Any

from jaxfn._base import Arguments
from jaxfn._engine import Arrays, call
from jaxfn._methods.class_rules import ClassRules
from jaxfn._methods.definition import Definition


def run(cls: Any, base: type, arguments: Arguments, arrays: Arrays) -> Any:
    """Run a Function under JAX's transformations.

    Args:
        cls: The class.
        base: `Function`; a rule inherited from it counts as missing.
        arguments: Arguments of the call.
        arrays: The array arguments.
    """
    return call(ClassRules(Definition.of(cls, base), arguments).rules, arrays)


def run_batched(cls: Any, base: type, arguments: Arguments, arrays: Arrays) -> Any:
    """Run forward of the separate style with its vmap rule; JAX differentiates it."""
    outs = ClassRules(Definition.of(cls, base), arguments).batched(*arrays)
    return outs.static.whole.join(outs.arrays)
