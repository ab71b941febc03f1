"""The arguments of a call, bound to positions by the names in forward's signature."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from jaxfn._base import Kwargs, Parameters, compat, pytree

_parameters: weakref.WeakKeyDictionary[Any, dict[tuple[bool, bool], Parameters]]
_parameters = weakref.WeakKeyDictionary()


def parameters(forward: Callable[..., Any], *, has_ctx: bool) -> Parameters:
    """Return the parameters of `forward`, remembered as long as it lives."""
    # A bound method (a classmethod) is a new object at each access: a weak reference
    # to it would be dead at once.
    key = getattr(forward, "__func__", forward)
    try:
        known = _parameters.setdefault(key, {})
    except TypeError:  # not hashable, or no weak references: a callable object
        return _inspect(forward, has_ctx=has_ctx)
    # One function may be static in one class and a classmethod in another.
    kind = has_ctx, key is forward
    if kind not in known:
        known[kind] = _inspect(forward, has_ctx=has_ctx)
    return known[kind]


def _inspect(forward: Callable[..., Any], *, has_ctx: bool) -> Parameters:
    """Read the parameters of `forward` from its signature."""
    own = _own_names if has_ctx else inspect.signature
    found = list(own(forward).parameters.values())
    places = _places(found)
    if has_ctx:
        places = places[1:]
    return Parameters(
        tuple(p.name for p in places),
        tuple(p.default for p in places if p.default is not p.empty),
        tuple(p.name for p in found if p.kind is p.KEYWORD_ONLY),
        any(p.kind is p.VAR_POSITIONAL for p in found),
        getattr(forward, "__name__", "forward"),
        compat.place_of(forward),
    )


def _places(found: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Select the parameters that take positions."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in found if p.kind in kinds]


def _own_names(forward: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a forward with ctx, which may be decorated.

    In this style torch binds keywords to the decorated function's own names, not to
    those of what functools.wraps says that it wraps (in the separate style it does). A
    decorator that has none beside ctx passes on whatever it gets: there torch refuses
    all keywords, and here the names of what it wraps hold.
    """

    def own_signature(f: Callable[..., Any]) -> inspect.Signature:
        # A decorator below `@classmethod` wraps a function that gets the class, too.
        if isinstance(forward, types.MethodType):
            f = types.MethodType(f, forward.__self__)
        return inspect.signature(f, follow_wrapped=False)

    def has_names(f: Callable[..., Any]) -> bool:
        return len(_places(own_signature(f).parameters.values())) > 1

    function = getattr(forward, "__func__", forward)
    return own_signature(inspect.unwrap(function, stop=has_names))


def bind(
    known: Parameters,
    args: tuple[Any, ...],
    kwargs: Kwargs,
    *,
    fill_defaults: bool,
    name: str,
) -> tuple[tuple[Any, ...], Kwargs]:
    """Bind arguments to positions; those that are keyword-only stay beside.

    Args:
        known: the parameters of forward.
        args: the positional arguments of the call.
        kwargs: its keyword arguments.
        fill_defaults: whether defaults that were not passed count as arguments, as they
            do in the separate style; in the combined style they are forward's own.
        name: the name of the Function.

    Raises:
        TypeError: the arguments don't fit; in Python's words.
        NotImplementedError: a keyword-only argument holds an array.
    """
    if not kwargs and not (fill_defaults and known.defaults):
        return args, kwargs
    names, n = known.names, len(args)
    for key in kwargs:
        if key in names[:n]:
            raise TypeError(
                f"{known.function}() got multiple values for argument {key!r}"
            )
        if key not in names and key not in known.keyword_only:
            raise TypeError(
                f"{known.function}() got an unexpected keyword argument {key!r}"
            )
    # Defaults belong to the last of the parameters: hence from the end.
    by_default = dict(zip(names[::-1], known.defaults[::-1], strict=False))
    last = max((i for i, key in enumerate(names) if key in kwargs), default=-1)
    stop = len(names) if fill_defaults else last + 1
    bound = list(args)
    for i in range(n, stop):
        if names[i] in kwargs:
            bound.append(kwargs[names[i]])
        elif names[i] in by_default:
            bound.append(by_default[names[i]])
        elif i < last:
            raise TypeError(
                f"{known.function}() missing required argument: {names[i]!r} "
                f"(position {i})"
            )
        else:
            break  # forward itself says what is missing
    only = {key: x for key, x in kwargs.items() if key in known.keyword_only}
    # inputs, needs_input_grad and gradients are positional: there is no place in them
    # for an array that was passed by keyword, and its derivative would be lost.
    for key, x in only.items():
        if pytree.split(x)[0]:
            raise NotImplementedError(
                "Run vmap on autograd.Function with kwarg-only Tensor args. Please do "
                "not pass kwarg-only Tensors to autograd.Function. Got: "
                f"{key!r}, which holds an array: expected the keyword-only arguments "
                f"of `{name}.forward` to be static. Make it a positional parameter."
            )
    return tuple(bound), only
