"""Rules in JAX's terms as functions of arrays alone.

JAX's decorators get a list of arrays for each argument. Inside, the user's function and
rules get the whole arguments: static ones, and those of nondiff_argnums, in their
places.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax.numpy as jnp
from jax import tree_util

from jaxfn._decorator.places import CustomVJPPrimal, Places, Rule, is_pair, split
from jaxfn._engine import Residuals, Statics

_ANY = inspect.signature(lambda *args: args)


def named(fun: Rule, rule: Rule) -> Rule:
    """Return `fun` with the name and source of `rule`, for JAX's messages."""
    functools.update_wrapper(fun, rule)
    fun.__dict__["__signature__"] = _ANY  # not that of `rule`
    return fun


def vjp_on_arrays(places: Places, fwd: Rule, bwd: Rule) -> tuple[Rule, Rule]:
    """Return fwd as a rule on arrays, and bwd without nondiff arguments."""

    def on_fwd(*xs: Any) -> Any:
        return fwd(*places.whole(xs))

    def on_bwd(saved: Any, cts: Any) -> Any:
        return bwd(*places.nondiff.values(), saved, cts)

    return named(on_fwd, fwd), named(on_bwd, bwd)


def for_custom_vjp(
    places: Places, fwd: Rule, bwd: Rule, *, name: str
) -> tuple[Rule, Rule]:
    """Let JAX see only the arrays in residuals, and in the cotangents of arguments.

    Static residuals can't be part of the structure that JAX sees: see `Statics`.
    """
    statics, rule = Statics(), rule_name(bwd, name)

    def on_fwd(*xs: Any) -> Any:
        result = fwd(*xs)
        if not is_pair(result):
            return result  # JAX has a message for it
        arrays, spec = split(result[1])
        arrays = list(map(jnp.asarray, arrays))
        args = [
            x.value if isinstance(x, CustomVJPPrimal) else x
            for x in tree_util.tree_leaves(xs)
        ]
        return result[0], (arrays, statics.put(Residuals(arrays, spec, ()), args))

    def on_bwd(saved: Any, cts: Any) -> Any:
        arrays, key = saved
        found = statics.get(key, arrays, name)
        found = bwd(found.static.join(found.arrays), cts)
        return places.cotangents(found, rule)

    return named(on_fwd, fwd), named(on_bwd, bwd)


def rule_name(bwd: Rule, name: str) -> str:
    """Name bwd of a function of this name, as JAX's messages do."""
    return f"{getattr(bwd, '__name__', 'bwd')} for function {name}"


def jvps_on_arrays(places: Places, method: str, rules: tuple[Any, ...]) -> list[Any]:
    """Return the rules of defjvp or defjvps as rules on arrays.

    The tangent of a static value is None.
    """

    def of_defjvp(rule: Rule) -> Rule:
        def jvp(primals: Any, tangents: Any) -> Any:
            pair = places.others(primals), places.others(tangents, None)
            return rule(*places.nondiff.values(), *pair)

        return named(jvp, rule)

    def of_defjvps(i: int, rule: Rule | None) -> Rule | None:
        def jvp(t: Any, out: Any, *primals: Any) -> Any:
            assert rule is not None
            return rule(places.join(i, t, None), out, *places.others(primals))

        return None if rule is None else named(jvp, rule)

    if method == "defjvp":
        return list(map(of_defjvp, rules))
    return [of_defjvps(i, rule) for i, rule in enumerate(rules)]


def batch_on_arrays(places: Places, batch: Rule) -> Rule:
    """Return a batch rule on arrays; no static value is batched."""

    def rule(size: int, in_batched: Any, *xs: Any) -> Any:
        return batch(size, places.whole(in_batched, False), *places.whole(xs))

    return named(rule, batch)
