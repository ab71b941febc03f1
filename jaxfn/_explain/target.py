"""The target of `explain`: any Function, as a function of flat arrays."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import tree_util

from jaxfn._core import (
    ARRAY,
    Box,
    Layout,
    Spec,
    call,
    grouped,
    messages,
    split,
    type_name,
)
from jaxfn._custom_function import custom_function
from jaxfn._function import Function, rules_of
from jaxfn._jax_rules import JaxRules, holds
from jaxfn._saved import fields, is_record

Tag = Callable[[Any, str], Any]
"""A function that gets each saved array and its name, and returns the array."""


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """The definition that a Function becomes in JAX.

    Attributes:
        name: Name of JAX's definition.
        why: The reason: the rules that are defined.
        reverse: The rule that reverse mode runs.
        forward: The rule that forward mode runs.
        batch: The rule that vmap runs.
    """

    name: str
    why: str
    reverse: str
    forward: str
    batch: str


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the call.

    Attributes:
        name: Name of the parameter.
        arrays: Label and type of each array in it.
        static: Label and value of each static leaf in it.
    """

    name: str
    arrays: tuple[tuple[str, jax.ShapeDtypeStruct], ...]
    static: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A call of a Function.

    Attributes:
        name: Name of the Function.
        engine: The definition that it becomes in JAX.
        arguments: Arguments of the call.
        arrays: All arrays in the arguments, in order.
        call: `call(tag)` is the Function on flat arrays.
        plain: The same forward without rules.
    """

    name: str
    engine: Engine
    arguments: tuple[Argument, ...]
    arrays: list[Any]
    call: Callable[[Tag], Callable[..., Any]]
    plain: Callable[..., Any]


def target(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
    """Describe the call of `function` with these arguments.

    Raises:
        TypeError: `function` is no Function of jaxfn.
    """
    cls = getattr(function, "_jaxfn_class", None)
    # A wrapper, such as jax.grad(F.apply), has a copy of the attribute.
    if cls is not None and cls.apply is function:
        function = cls
    if isinstance(function, types.MethodType):
        bound = function.__func__
        if isinstance(bound, custom_function):
            function, args = bound, (function.__self__, *args)
    if isinstance(function, type) and issubclass(function, Function):
        return _of_class(function, function.__name__, args, kwargs)
    if isinstance(function, custom_function):
        if function._torch_rules.keys() & {"backward", "jvp"}:
            name = function._definition.name
            return _of_class(function._function, name, args, kwargs)
        return _of_decorated(function, args, kwargs)
    if type_name(function).startswith("torch."):
        name = getattr(function, "__name__", type(function).__name__)
        raise messages.RuleTypeError(
            f"explain got a class or module of PyTorch, `{name}`: expected a "
            "jaxfn.Function. Call jaxfn.torch.explain(...), after import jaxfn.torch."
        )
    raise messages.RuleTypeError(
        f"explain got {type_name(function)}: expected a jaxfn.Function class, its "
        "apply, or a function decorated by jaxfn.custom_function. Pass the Function "
        "first, then the arguments of the call."
    )


Namer = Callable[[Layout, int], list[str]]
"""Names each of so many saved arrays."""


def _tagged(rules: Any, name_saved: Namer, tag: Tag) -> Callable[..., Any]:
    """Return the Function on flat arrays; `tag` gets each array that it saves."""
    pack = rules.pack

    def tagging(layout: Layout, saved: list[Any]) -> tuple[Layout, list[Any]]:
        layout, saved = pack(layout, saved)
        names = name_saved(layout, len(saved))
        pairs = zip(saved, names, strict=True)
        return layout, [tag(x, name) if name else x for x, name in pairs]

    rules.pack = tagging
    return lambda *xs: call(rules, xs)


# ---- a class


def _of_class(
    cls: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Target:
    rules, arrays = rules_of(cls, args, kwargs)

    def plain(*xs: Any) -> Any:
        values = rules.spec.join(xs)
        if not rules.has_setup:
            ctx = cls._backward_cls()
            # As if all were differentiated, because forward may read needs_input_grad.
            ctx.__dict__["_jaxfn_needs"] = (True,) * len(values)
            values = (ctx, *values)
        return cls.forward(*values, **rules.kwargs)

    engine = _engine(
        reverse=rules.defines_backward,
        forward=rules.has_jvp,
        derived=rules.derives_jvp,
        batch=rules.has_vmap,
        words=("backward", "jvp", "the vmap staticmethod"),
    )
    return Target(
        name,
        engine,
        _arguments(rules.parameters.names, rules.specs, arrays, rules.kwargs),
        arrays,
        lambda tag: _tagged(rules_of(cls, args, kwargs)[0], _saved_names, tag),
        plain,
    )


def _saved_names(layout: Layout, n: int) -> list[str]:
    """Name each of the `n` residuals as a rule reads it, for example `ctx.scale`.

    A residual that rules read in several ways has all these names. One that no rule
    reads has none.
    """
    # Fill the saved values with marks in place of arrays. The place of a mark is the
    # place of its array.
    marks = [object() for _ in range(n)]
    found: dict[int, list[str]] = {id(mark): [] for mark in marks}
    for_forward, for_backward, attributes = layout.saved.filled(marks)
    for i, x in [*enumerate(for_forward), *enumerate(for_backward)]:
        _note(found, x, f"saved_tensors[{i}]")
    for name, x in attributes.items():
        _note(found, x, f"ctx.{name}")
    return [", ".join(found[id(mark)]) for mark in marks]


def _note(found: dict[int, list[str]], value: Any, name: str) -> None:
    """Add the path of each object in `value` to its names in `found`."""
    for path, x in tree_util.tree_flatten_with_path(value)[0]:
        here = name + tree_util.keystr(path)
        if id(x) in found:
            if here not in found[id(x)]:
                found[id(x)].append(here)
        elif isinstance(x, Box):
            _note(found, x.value, f"{here}, packed")
        elif is_record(x):
            # A dataclass or a SimpleNamespace, which is a leaf for JAX.
            for key, part in fields(x).items():
                _note(found, part, f"{here}.{key}")


# ---- a decorated function


def _of_decorated(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Target:
    d = function._definition
    if d.kinds:
        args, kwargs = d.positional(args, kwargs), {}
    else:
        bound = inspect.signature(d.fun).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    pairs = [
        split(x, (lambda _: False) if i in d.nondiff else holds)
        for i, x in enumerate(args)
    ]
    arrays = [x for leaves, _ in pairs for x in leaves]
    specs = [spec for _, spec in pairs]

    def whole(xs: Sequence[Any]) -> list[Any]:
        groups = zip(specs, grouped(specs, xs), strict=True)
        return [spec.join(group) for spec, group in groups]

    def tagged(tag: Tag) -> Callable[..., Any]:
        if d.last("defvjp") is None or d.is_foreign:
            return lambda *xs: function(*whole(xs), **kwargs)
        return _tagged(JaxRules.of(d, args)[0], _residual_names, tag)

    reverse = jax.custom_vjp in d.decorators
    engine = _engine(
        reverse=reverse,
        forward=jax.custom_jvp in d.decorators,
        derived=reverse and d.derives_jvp,
        batch=d.last("def_vmap") is not None or "vmap" in function._torch_rules,
        words=("bwd of defvjp", "the rule of defjvp", "the batch rule"),
        decorated=True,
    )
    names = tuple(inspect.signature(d.fun).parameters)
    return Target(
        d.name,
        engine,
        _arguments(names, specs, arrays, kwargs),
        arrays,
        tagged,
        lambda *xs: d.fun(*whole(xs), **kwargs),
    )


def _residual_names(layout: Layout, n: int) -> list[str]:
    """Name each of the residuals of fwd; beside a jvp the arguments come first."""
    spec: Spec = layout.saved
    marks = [object() for _ in range(spec.n_arrays)]
    found: dict[int, list[str]] = {id(mark): [] for mark in marks}
    _note(found, spec.join(marks), "residuals")
    names = [", ".join(found[id(mark)]) for mark in marks]
    return [*[""] * (n - len(names)), *names]


# ---- the definition in JAX


def _engine(
    *,
    reverse: bool,
    forward: bool,
    derived: bool,
    batch: bool,
    words: tuple[str, str, str],
    decorated: bool = False,
) -> Engine:
    """Return the definition that these rules become, and the rule of each mode."""
    backward, jvp, vmap = words
    linear = "jax.custom_jvp, a linear map with a transpose"
    if derived:
        why = "a reverse rule is defined, and generate_jvp_rule is set"
        found = linear, why, backward, f"{backward}, transposed"
    elif reverse and forward:
        why = "rules of both kinds, reverse and forward, are defined"
        found = linear, why, backward, jvp
    elif reverse:
        why = "a reverse rule is defined, and no forward rule"
        found = "jax.custom_vjp", why, backward, "no rule"
    elif forward:
        why = "a forward rule is defined, and no reverse rule"
        found = "jax.custom_jvp", why, f"{jvp}, transposed by JAX", jvp
    elif decorated:
        body = "the function itself, differentiated by JAX"
        found = "none", "no derivative rule is defined", body, body
    else:
        why = "no derivative rule is defined, so backward raises"
        found = "jax.custom_vjp", why, "no rule", "no rule"
    name, why, first, second = found
    if batch:
        # JAX has no reverse mode for a custom_vmap alone.
        outer = "jax.custom_jvp" if name == "none" else name
        name = f"{outer}, around jax.custom_batching.custom_vmap"
        why += "; a batch rule is"
    return Engine(
        name, why, first, second, vmap if batch else "forward, batched by JAX"
    )


def _arguments(
    names: Sequence[str],
    specs: Sequence[Spec],
    arrays: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Argument, ...]:
    found = []
    for i, (spec, group) in enumerate(zip(specs, grouped(specs, arrays), strict=True)):
        name, rest = names[i] if i < len(names) else f"args[{i}]", iter(group)
        places = tree_util.tree_flatten_with_path(spec.join(group))[0]
        labels = [name + tree_util.keystr(path) for path, _ in places]
        pairs = list(zip(labels, spec.leaves, strict=True))
        held = tuple([(k, struct(next(rest))) for k, x in pairs if x is ARRAY])
        static = [(k, x) for k, x in pairs if x is not ARRAY]
        if not pairs:  # None, or an empty container
            static = [(name, spec.join([]))]
        found.append(Argument(name, held, tuple(static)))
    only = [Argument(k, (), ((k, x),)) for k, x in kwargs.items()]
    return (*found, *only)


def struct(x: Any) -> jax.ShapeDtypeStruct:
    """Return the type of an array, or of a Python number that counts as one."""
    aval: Any = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
