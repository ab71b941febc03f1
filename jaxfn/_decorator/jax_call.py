"""A call with JAX-style rules; static arguments need no declaration."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import jax.numpy as jnp
from jax import tree_util

from jaxfn._base import ARRAY, Spec, errors
from jaxfn._decorator.both import Both
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import Places, Rule, is_pair
from jaxfn._decorator.static import align, is_static, unwrap, wrap
from jaxfn._engine import Residuals, Statics
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
    static = [
        (i, x)
        for i, arg in enumerate(args)
        if i not in d.nondiff
        for x in tree_util.tree_leaves(arg)
        if is_static(x)
    ]
    if static:
        # JAX's decorator has the user's rules themselves there: nothing of ours stands
        # between that could unwrap what they get.
        if d.foreign:
            raise _undeclared(d, *static[0])
        args = tuple([x if i in d.nondiff else wrap(x) for i, x in enumerate(args)])
        d = _unwrapping(d, args)
    # Two kinds of derivative, which JAX does not combine: the engine does. One kind is
    # JAX's own matter.
    if d.vjp is not None and d.jvp is not None:
        places, rest = Places.of(d.nondiff, args)
        arrays, tree = tree_util.tree_flatten(rest)
        return call_engine(Both(d, places, tree, arrays).rules, arrays)
    if d.has_reverse:
        return d.reverse(*args)
    return d.forward(*args) if d.has_forward else d.primal(*args)


def _undeclared(d: JaxRules, position: int, value: Any) -> errors.RuleTypeError:
    return errors.RuleTypeError(
        f"`{d.name}` got {value!r} for argument {position}: expected arrays and "
        f"numbers, since {d.foreign[0].method} is a method of JAX alone, whose rules "
        f"get nothing else undeclared. Declare it by nondiff_argnums=({position},)."
    )


def _unwrapping(d: JaxRules, args: tuple[Any, ...]) -> JaxRules:
    """Make the rules for a call with wrapped arguments.

    They are new functions at each call, so JAX keeps nothing of one call for another.
    """
    return dataclasses.replace(
        d,
        fun=functools.wraps(d.fun)(lambda *xs: d.fun(*unwrap(xs))),
        vjp=None if d.vjp is None else _unwrapping_vjp(d, args),
        jvp=None if d.jvp is None else _unwrapping_jvp(*d.jvp),
        batch=None if d.batch is None else _unwrapping_batch(d.batch),
    )


def _unwrapping_vjp(
    d: JaxRules, args: tuple[Any, ...]
) -> tuple[Rule, Rule, dict[str, Any]]:
    """Let fwd and bwd see values where JAX has wrapped ones."""
    assert d.vjp is not None
    fwd, bwd, options = d.vjp
    # bwd outlives the call, and must hold no array or tracer of it. A Static has no
    # leaves, so the map leaves it as it is.
    blank = tree_util.tree_map(lambda _: 0, args)
    rest = [x for i, x in enumerate(blank) if i not in d.nondiff]

    statics = Statics()

    @functools.wraps(fwd)
    def fwd_(*xs: Any) -> Any:
        result = fwd(*unwrap(xs))
        # A rule that sees which arguments are perturbed may save another number of
        # arrays for other sets of them. JAX's own words say that it must not.
        if options.get("symbolic_zeros") or not is_pair(result):
            return result
        # Not as part of the structure, of which JAX keeps that of the last trace alone.
        leaves, tree = tree_util.tree_flatten(result[1])
        held = [x if is_static(x) else ARRAY for x in leaves]
        arrays = [jnp.asarray(x) for x in leaves if not is_static(x)]
        spec = Spec.of(tree, held)
        key = statics.put(Residuals(arrays, spec, ()), tree_util.tree_leaves(xs))
        return result[0], (arrays, key)

    # JAX calls it with the arguments of nondiff_argnums, the residuals and the ct.
    @functools.wraps(bwd)
    def bwd_(*xs: Any) -> Any:
        saved = xs[-2]
        if not options.get("symbolic_zeros"):
            arrays, key = saved
            found = statics.get(key, arrays, d.name)
            saved = found.static.join(found.arrays)
        cts = bwd(*xs[:-2], saved, xs[-1])
        if not isinstance(cts, (tuple, list)) or len(cts) != len(rest):
            return cts  # JAX says what is wrong
        return tuple(align(ct, x) for ct, x in zip(cts, rest, strict=True))

    return fwd_, bwd_, options


def _unwrapping_jvp(
    method: str, rules: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Let the rules of defjvp or defjvps see values where JAX has wrapped ones."""

    def unwrapping(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def rule_(*xs: Any) -> Any:
            # defjvp: nondiff arguments, primals, tangents, with None for the tangent of
            # a static value. defjvps: tangent, output, primals.
            if method == "defjvp":
                return rule(*xs[:-2], unwrap(xs[-2]), unwrap(xs[-1], None))
            return rule(xs[0], xs[1], *unwrap(xs[2:]))

        return rule_

    kept = [None if rule is None else unwrapping(rule) for rule in rules]
    return method, tuple(kept), options


def _unwrapping_batch(batch: Rule) -> Rule:
    """Let a batch rule see values, not batched, where JAX has wrapped ones."""

    @functools.wraps(batch)
    def batch_(size: int, in_batched: Any, *args: Any) -> Any:
        return batch(size, unwrap(in_batched, False), *unwrap(args))

    return batch_
