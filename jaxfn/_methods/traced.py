"""The traced call: some argument is traced, so forward runs where JAX wants it to.

The other one is `plain`. Here the static methods become `Rules`, and the engine makes
JAX's definitions of these: JAX calls forward now, and backward later.
"""

from __future__ import annotations

from typing import Any

from jaxfn._base import Arguments
from jaxfn._engine import Arrays, call
from jaxfn._methods.class_rules import ClassRules
from jaxfn._methods.definition import Definition


def run(cls: Any, base: type, arguments: Arguments, arrays: Arrays) -> Any:
    """Run a Function under the transformations that are at work.

    Args:
        cls: the class.
        base: `Function`: what a class has of it is not defined.
        arguments: of the call.
        arrays: those among them.
    """
    return call(ClassRules(Definition.of(cls, base), arguments).rules, arrays)


def run_batched(cls: Any, base: type, arguments: Arguments, arrays: Arrays) -> Any:
    """Run forward (of the separate style) with its vmap rule; JAX differentiates it."""
    outs = ClassRules(Definition.of(cls, base), arguments).batched(*arrays)
    return outs.static.whole.join(outs.arrays)
