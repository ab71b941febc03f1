"""Bind the arguments of a call to positions, by the signature of forward."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from jaxfn._base import Kwargs, Parameters, compat, pytree

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def parameters(forward: Callable[..., Any], *, has_ctx: bool) -> Parameters:
    """Return the parameters of `forward`."""
    own = _own_names if has_ctx else inspect.signature
    found = list(own(forward).parameters.values())
    places = [p for p in found if p.kind in _POSITIONAL]
    if has_ctx:
        places = places[1:]
    return Parameters(
        tuple([p.name for p in places]),
        tuple([p.default for p in places if p.default is not p.empty]),
        tuple([p.name for p in found if p.kind is p.KEYWORD_ONLY]),
        inspect.Parameter.VAR_POSITIONAL in [p.kind for p in found],
        getattr(forward, "__name__", "forward"),
        compat.place_of(forward),
    )


def _own_names(forward: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a forward with ctx, which may be decorated.

    In this style torch binds keywords to the names of the function itself, and ignores
    a `__signature__` and the wrapped function. If the function has no names beside ctx,
    torch refuses all keywords; jaxfn then takes the names of the wrapped function.
    """

    def own_signature(f: Callable[..., Any]) -> inspect.Signature:
        if isinstance(f, types.FunctionType) and f.__code__.co_argcount > 1:
            # A copy has no `__signature__`.
            f = types.FunctionType(f.__code__, {}, None, f.__defaults__, f.__closure__)
        # Below `@classmethod`, a decorator wraps a function that gets the class.
        if isinstance(forward, types.MethodType):
            f = types.MethodType(f, forward.__self__)
        return inspect.signature(f, follow_wrapped=False)

    def has_names(f: Callable[..., Any]) -> bool:
        kinds = [p.kind for p in own_signature(f).parameters.values()]
        return sum(kind in _POSITIONAL for kind in kinds) > 1

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
    """Bind arguments to positions; return keyword-only arguments separately.

    With `fill_defaults` (the separate style), default values count as arguments. `name`
    is the name of the Function.

    Raises:
        TypeError: The arguments don't fit. The message is Python's.
        NotImplementedError: A keyword-only argument holds an array.
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
    # Defaults belong to the last parameters.
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
            break  # forward raises
    only = {key: x for key, x in kwargs.items() if key in known.keyword_only}
    # inputs, needs_input_grad and gradients are positional, so a keyword-only array
    # would have no derivative.
    for key, x in only.items():
        if pytree.split(x)[0]:
            raise NotImplementedError(
                "Run vmap on autograd.Function with kwarg-only Tensor args. Please do "
                "not pass kwarg-only Tensors to autograd.Function. Got: "
                f"{key!r}, which holds an array: expected the keyword-only arguments "
                f"of `{name}.forward` to be static. Make it a positional parameter."
            )
    return tuple(bound), only
