"""Better errors for a user's rule: its name and class, its place, and what to do.

jaxfn's own errors get the file and line of the rule. `jaxfn._advice` extends others.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from jaxfn._core import Layout, internals, is_tensor, messages


@contextlib.contextmanager
def explained(
    name: str,
    rule_name: str,
    rule: Any,
    args: Sequence[Any],
    layout: Layout | None = None,
) -> Iterator[None]:
    """Extend an error of a rule, or of a check of its result, or raise a better one.

    Args:
        name: Name of the Function.
        rule_name: Name of the rule.
        rule: The rule.
        args: Arguments of the rule.
        layout: What forward left, if the rule is backward.
    """
    constants = internals.staged_constants()
    n = len(constants)
    try:
        yield
    except Exception as error:
        explain(error, name, rule_name, rule, args, layout)
        raise
    # JAX would take it for a constant, and fail without a name when it compiles.
    if any(map(internals.is_over, list(constants.values())[n:])):
        raise messages.leaked(name, rule_name)


@contextlib.contextmanager
def noted(name: str, rule_name: str, rule: Any) -> Iterator[None]:
    """Extend an error of a rule in JAX's terms, or of a check of its result.

    JAX's own errors stay, because such a rule is as strict as in JAX.

    Args:
        name: Name of the function.
        rule_name: Name of the rule; "" for the function itself.
        rule: The rule.
    """
    try:
        yield
    except Exception as error:
        explain(error, name, rule_name, rule)
        raise


def refuse_tensor(out: Any, name: str) -> None:
    """Refuse a tensor of PyTorch among the results of forward."""
    if is_tensor(out):
        raise messages.RuleTypeError(
            f"`{name}.forward` returned a torch.Tensor: expected JAX arrays. Pass JAX "
            "arrays to apply, jnp.asarray(tensor.numpy()), and write forward with "
            "jax.numpy. To run a PyTorch class as it is, use jaxfn.torch.from_torch."
        )


def explain(
    error: Exception,
    name: str,
    rule_name: str,
    rule: Any,
    args: Sequence[Any] | None = None,
    layout: Layout | None = None,
) -> None:
    """Extend an error in an `except` clause, or raise a better one; see `explained`.

    A rule in JAX's terms has no `args`; see `noted`.
    """
    from jaxfn import _advice

    better = _advice.better(error, name, rule_name, rule, args, layout)
    for found in (better, error):
        if isinstance(found, messages.RuleError):
            _locate(found, name, rule_name, rule)
    if better is not None:
        # What Python says of a misfit stands in the better error, too. JAX's words on a
        # leaked tracer say where it came from.
        raise better from (None if isinstance(error, TypeError) else error)


def _locate(error: messages.RuleError, name: str, rule: str, function: Any) -> None:
    """Add file and line of the rule; the innermost rule comes first."""
    if "_located" in error.__dict__:
        return
    error.__dict__["_located"] = True
    place = place_of(function)
    if place:
        text = f"{error} (`{messages.label(name, rule)}` is at {place}.)"
        error.args = (text, *error.args[1:])


def place_of(function: Any) -> str:
    """Return file and line of a function, as JAX writes it; empty without code."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
