"""A call with JAX-style rules; static arguments need no declaration."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jax import tree_util

from jaxfn._base import errors
from jaxfn._decorator.both import Both
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import Places, is_static
from jaxfn._engine import call as call_engine


def positional(
    d: JaxRules, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Bind all arguments to positions, defaults included, as JAX's rules get them."""
    refusal = (
        f"The input arguments to the {d.decorator}-decorated "
        f"function {d.name} could not be resolved to positions:\n"
    )
    if isinstance(d.fun, functools.partial) and not kwargs:
        return args  # opaque, as in JAX: what it holds is no argument of the call
    try:
        bound = inspect.signature(d.fun).bind(*args, **kwargs)
    except ValueError:  # a builtin, which may have none
        if not kwargs:
            return args
        raise
    except TypeError as error:
        raise TypeError(f"{refusal}{error}") from error
    if bound.kwargs:
        raise TypeError(
            f"{refusal}The following keyword arguments could not be resolved to "
            f"positions: {', '.join(bound.kwargs)}. JAX-style rules get arguments "
            "by position: make these parameters positional, or use torch-style "
            "rules."
        )
    bound.apply_defaults()
    return bound.args


def call(d: JaxRules, args: tuple[Any, ...]) -> Any:
    """Call the function that has these rules, on positional arguments."""
    places, lists = Places.of(d.nondiff, args)
    if places.has_static and d.foreign:
        raise _undeclared(d, args)
    if d.is_split(places):
        d, args = d.on_arrays(places), tuple(lists)
    # Two kinds of derivative, which JAX does not combine: the engine does. One kind is
    # JAX's own matter.
    if d.vjp is not None and d.jvp is not None:
        arrays, tree = tree_util.tree_flatten(args)
        return call_engine(Both(d, places, tree, arrays).rules, arrays)
    if d.has_reverse:
        return d.reverse(*args)
    return d.forward(*args) if d.has_forward else d.primal(*args)


def _undeclared(d: JaxRules, args: tuple[Any, ...]) -> errors.RuleTypeError:
    # JAX's decorator has the user's rules themselves here: nothing of ours stands
    # between that could put static values in their places.
    position, value = next(
        (i, x)
        for i, arg in enumerate(args)
        if i not in d.nondiff
        for x in tree_util.tree_leaves(arg)
        if is_static(x)
    )
    return errors.RuleTypeError(
        f"`{d.name}` got {value!r} for argument {position}: expected arrays and "
        f"numbers, since {d.foreign[0].method} is a method of JAX alone, whose rules "
        f"get nothing else undeclared. Declare it by nondiff_argnums=({position},)."
    )
