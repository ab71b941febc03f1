"""The arguments of a call: bound to positions, and taken apart."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxfn._base import ARRAY, OutSpec, Spec, compat, errors, pytree, search

Kwargs = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a forward, without ctx.

    Attributes:
        names: the names of those that take positions.
        defaults: the default values of the last of them.
        keyword_only: the names of those that are keyword-only.
        variadic: whether it takes `*args`.
        function: the name of forward, for messages.
        place: the file and line of forward.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    keyword_only: tuple[str, ...]
    variadic: bool
    function: str
    place: str

    def label(self, position: int) -> str:
        """Name the argument at a position, for messages."""
        if position < len(self.names):
            return f"index {position} (`{self.names[position]}`)"
        return f"index {position}"


_parameters: weakref.WeakKeyDictionary[Any, dict[bool, Parameters]]
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
    if has_ctx not in known:
        known[has_ctx] = _inspect(forward, has_ctx=has_ctx)
    return known[has_ctx]


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

    def has_names(f: Callable[..., Any]) -> bool:
        found = inspect.signature(f, follow_wrapped=False).parameters.values()
        return len(_places(found)) > 1

    named = inspect.unwrap(forward, stop=has_names)
    return inspect.signature(named, follow_wrapped=False)


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


@dataclasses.dataclass(slots=True)
class Arguments:
    """The arguments of one call, without their arrays.

    Attributes:
        specs: the spec of each positional argument.
        kwargs: the keyword-only arguments, all static.
        known: the parameters of forward, for names.
    """

    specs: tuple[Spec, ...]
    kwargs: Kwargs
    known: Parameters

    @classmethod
    def split(
        cls, args: Sequence[Any], kwargs: Kwargs, known: Parameters
    ) -> tuple[list[Any], Arguments]:
        """Separate the array leaves of all arguments, in order, from the rest.

        Raises:
            TypeError: a mutable array is among them, traced.
        """
        pairs = [pytree.split(x) for x in args]
        arrays = [x for leaves, _ in pairs for x in leaves]
        static = [x for _, s in pairs if not s.is_array for x in s.leaves]
        # A traced jax.Ref is a tracer and no jax.Array, so it counts as static.
        if any(compat.is_tracer(x) for x in static):
            raise errors.RuleTypeError(
                f"apply got a mutable array (jax.Ref) for {known.function}, where it "
                "is traced: expected arrays, which have derivatives, got a reference. "
                "Pass its value, ref[...], and write the result back outside."
            )
        return arrays, cls(tuple([spec for _, spec in pairs]), kwargs, known)

    def split_output(self, out: Any, *, name: str) -> tuple[list[Any], OutSpec]:
        """Separate the array leaves of what forward returned from the rest.

        Raises:
            TypeError: an object that is no pytree hides an array: its derivative would
                be lost.
        """
        arrays, spec = OutSpec.split(out)
        static = [x for x in spec.whole.leaves if x is not ARRAY]
        # A static argument may come out again as it went in, whatever it holds: the
        # rules have nothing to do with it.
        given = static and {id(x) for arg in self.specs for x in arg.leaves}
        for leaf in static:
            if id(leaf) not in given and search.hides_array(leaf):
                raise errors.RuleTypeError(
                    f"`{name}.forward` returned an array inside an object of type "
                    f"{type(leaf).__name__}, where JAX can't see it: expected arrays, "
                    "or pytrees of arrays. Return the array itself, or register the "
                    "type with jax.tree_util.register_pytree_node."
                )
        return arrays, spec

    def names(self) -> tuple[str, ...]:
        """Name each array, for JAX's errors."""
        names, n = self.known.names, len(self.specs)
        if n <= len(names) and all(spec.is_array for spec in self.specs):
            return names[:n]
        names += tuple([f"args[{i}]" for i in range(len(names), n)])
        return tuple(
            name if spec.is_array else f"{name}[{i}]"
            for name, spec in zip(names, self.specs, strict=False)
            for i in range(spec.n_arrays)
        )

    def groups(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Group values, one for each array, by the arguments that the arrays are in."""
        groups, start = [], 0
        for spec in self.specs:
            stop = start + spec.n_arrays
            groups.append(values[start:stop])
            start = stop
        return groups

    def any(self, values: Sequence[bool]) -> tuple[bool, ...]:
        """Say for each argument whether the value of one of its arrays is True."""
        return tuple([True in group for group in self.groups(values)])

    def join(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Put the arguments together with these arrays."""
        groups = self.groups(arrays)
        return tuple([s.join(g) for s, g in zip(self.specs, groups, strict=True)])

    def join_only(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Put the arguments together with these arrays, and None for what is static."""
        groups = self.groups(arrays)
        return tuple([s.join_only(g) for s, g in zip(self.specs, groups, strict=True)])
