"""The target of `explain`: any Function, as a function of flat arrays."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import tree_util

from jaxfn._base import ARRAY, Arguments, Outputs, errors, type_name
from jaxfn._decorator import JaxRules, custom_function, is_pair, positional, split
from jaxfn._decorator import call as jax_call
from jaxfn._engine import Arrays, Perturbed, Residuals, call
from jaxfn._function import Function, bind, parameters, parts
from jaxfn._methods import ClassRules, Definition, Record, fields, filled, is_record

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
    function = getattr(function, "_jaxfn_class", function)
    if isinstance(function, types.MethodType):
        bound = function.__func__
        if isinstance(bound, custom_function):
            function, args = bound, (function.__self__, *args)
    if isinstance(function, type) and issubclass(function, Function):
        return _of_class(function, function.__name__, args, kwargs)
    if isinstance(function, custom_function):
        name = function._jax_rules.name
        if function._torch_rules.keys() & {"backward", "jvp"}:
            return _of_class(function._function, name, args, kwargs)
        if function._jax_rules.kinds:
            args, kwargs = positional(function._jax_rules, args, kwargs), {}
        return _of_decorated(function, name, args, kwargs)
    raise errors.RuleTypeError(
        f"explain got {type_name(function)}: expected a jaxfn.Function class, its "
        "apply, or a function decorated by jaxfn.custom_function. Pass the Function "
        "first, then the arguments of the call."
    )


# ---- a class


def _of_class(
    cls: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Target:
    arrays, arguments = parts(cls, args, kwargs)
    definition = Definition(cls, Function)

    def tagged(tag: Tag) -> Callable[..., Any]:
        rules = ClassRules(definition, arguments).rules

        def fwd(xs: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
            outs, found = rules.fwd(xs, perturbed)
            names = _saved_names(found.static, len(found.arrays))
            kept = [tag(x, n) for x, n in zip(found.arrays, names, strict=True)]
            return outs, dataclasses.replace(found, arrays=kept)

        rules_ = dataclasses.replace(rules, fwd=fwd)
        return lambda *xs: call(rules_, xs)

    def plain(*xs: Any) -> Any:
        values = arguments.join(xs)
        if definition.setup_context is None:
            ctx = cls._backward_cls()
            # As if all were differentiated, because forward may read needs_input_grad.
            ctx.__dict__["_jaxfn_needs"] = (True,) * len(values)
            values = (ctx, *values)
        return definition.forward(*values, **arguments.kwargs)

    engine = _engine(
        reverse=definition.has_backward,
        forward=definition.jvp is not None,
        derived=definition.derive_jvp,
        batch=definition.vmap is not None,
        words=("backward", "jvp", "the vmap staticmethod"),
    )
    return Target(name, engine, _arguments(arguments, arrays), arrays, tagged, plain)


def _saved_names(record: Record, n: int) -> list[str]:
    """Name each of the `n` residuals as a rule reads it, for example `ctx.scale`.

    A residual that rules read in several ways has all these names. One that no rule
    reads has none.
    """
    # Fill the templates of the layout with marks in place of arrays. The place of a
    # mark is the place of its array.
    layout, packed = record.layout, record.packed
    marks = [object() for _ in range(n)]
    found: dict[int, list[str]] = {id(mark): [] for mark in marks}
    # With saved-tensor hooks, backward reads unpacked arrays, which are named below.
    for puts in (layout.for_forward, () if packed else layout.for_backward):
        for i, put in enumerate(puts):
            _note(found, put(marks), f"saved_tensors[{i}]")
    if packed is not None:
        rest = iter(marks[packed.kept :])
        # The hooks packed the other residuals, array by array.
        places: dict[int, list[str]] = {id(spec): [] for spec in packed.specs}
        for i, whole in enumerate(filled(layout.for_backward, packed.specs)):
            _note(places, whole, f"saved_tensors[{i}]")
        for spec in packed.specs:
            value = [next(rest) for _ in range(spec.n_arrays)]
            _note(found, value, f"{', '.join(places[id(spec)])}, packed")
    for name, put in layout.attributes.items():
        _note(found, put(marks), f"ctx.{name}")
    return [", ".join(found[id(mark)]) for mark in marks]


def _note(found: dict[int, list[str]], value: Any, name: str) -> None:
    """Add the path of each object in `value` to its names in `found`."""
    for path, x in tree_util.tree_flatten_with_path(value)[0]:
        here = name + tree_util.keystr(path)
        if id(x) in found:
            if here not in found[id(x)]:
                found[id(x)].append(here)
        elif is_record(x):
            # A dataclass or a SimpleNamespace, which is a leaf for JAX.
            for key, part in fields(x).items():
                _note(found, part, f"{here}.{key}")


# ---- a decorated function


def _of_decorated(
    function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Target:
    rules: JaxRules = function._jax_rules
    known = parameters(function.fun, has_ctx=False)
    args, kwargs = bind(known, args, kwargs, fill_defaults=True, name=name)
    pairs = [split(x, nondiff=i in rules.nondiff) for i, x in enumerate(args)]
    arrays = [x for leaves, _ in pairs for x in leaves]
    arguments = Arguments(tuple(spec for _, spec in pairs), kwargs, known)

    def tagged(tag: Tag) -> Callable[..., Any]:
        own = _tagging(rules, tag)
        if not rules.kinds:
            return lambda *xs: function(*arguments.join(xs), **kwargs)
        return lambda *xs: jax_call(own, arguments.join(xs))

    engine = _engine(
        reverse=rules.has_reverse,
        forward=rules.has_forward,
        derived=rules.has_reverse and rules.derive_jvp,
        batch=rules.batch is not None or "vmap" in function._torch_rules,
        words=("bwd of defvjp", "the rule of defjvp", "the batch rule"),
        decorated=True,
    )
    return Target(
        name,
        engine,
        _arguments(arguments, arrays),
        arrays,
        tagged,
        lambda *xs: function.fun(*arguments.join(xs), **kwargs),
    )


def _tagging(rules: JaxRules, tag: Tag) -> JaxRules:
    """Tag the residuals of fwd."""
    if rules.vjp is None:
        return rules
    call, (fwd, bwd) = rules.vjp, rules.vjp.args

    def put(path: Any, x: Any) -> Any:
        name = f"residuals{tree_util.keystr(path)}"
        return tag(x, name) if isinstance(x, jax.Array) else x

    @functools.wraps(fwd)
    def tagged(*args: Any) -> Any:
        result = fwd(*args)
        if not is_pair(result):
            return result  # JAX has a message for it
        return result[0], tree_util.tree_map_with_path(put, result[1])

    own = call._replace(args=(tagged, bwd))
    calls = tuple([own if c is call else c for c in rules.calls])
    return dataclasses.replace(rules, calls=calls)


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


def _arguments(arguments: Arguments, arrays: Sequence[Any]) -> tuple[Argument, ...]:
    names, n = arguments.known.names, len(arguments.known.names)
    groups = zip(arguments.specs, arguments.groups(arrays), strict=True)
    found = []
    for i, (spec, group) in enumerate(groups):
        name, rest = names[i] if i < n else f"args[{i}]", iter(group)
        places = tree_util.tree_flatten_with_path(
            spec.treedef.unflatten(range(len(spec.leaves)))
        )[0]
        labels = [name + tree_util.keystr(path) for path, _ in places]
        pairs = list(zip(labels, spec.leaves, strict=True))
        held = tuple([(k, struct(next(rest))) for k, x in pairs if x is ARRAY])
        static = [(k, x) for k, x in pairs if x is not ARRAY]
        if not pairs:  # None, or an empty container
            static = [(name, spec.join([]))]
        found.append(Argument(name, held, tuple(static)))
    only = [Argument(k, (), ((k, x),)) for k, x in arguments.kwargs.items()]
    return (*found, *only)


def struct(x: Any) -> jax.ShapeDtypeStruct:
    """Return the type of an array, or of a Python number that counts as one."""
    aval: Any = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
