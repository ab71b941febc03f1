"""A jvp that a scan keeps, for a JAX whose scan drops the jvp of a custom_jvp.

The scan goes on with the values of the primal. So jaxfn attaches the jvp to these
values (`attachment`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import tree_util

from jaxfn._base import compat, is_inexact, pytree
from jaxfn._decorator.places import Rule, is_pair
from jaxfn._engine import Arrays, attach, jvp_along, without_derivative


def jvp_for_scans(
    name: str, fun: Rule, method: str, rules: tuple[Any, ...], options: dict[str, Any]
) -> Rule:
    """Make a custom_jvp whose jvp a scan keeps, by its `defjvp` or `defjvps`."""

    def attached(tangents_of: Any, inputs: Arrays, outs: Arrays) -> list[Any]:
        # One by one, so JAX can drop an unused output. Under vmap each example has its
        # own derivative.
        found: list[Any] = []
        for i, out in enumerate(outs):

            def rule(*args: Any, i: int = i) -> list[Any]:
                return [tangents_of(*args)[i]]

            found += attach(rule, inputs, [out], name=name, spreads=True)
        return found

    @functools.wraps(fun)
    def primal(*args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        # JAX does not differentiate this call, and a body that needs values gets them.
        if not any(compat.is_tracer(x) for x in leaves):
            return fun(*args)

        def of_leaves(*xs: Any) -> Arrays:
            return pytree.outputs(f(*tree.unflatten(xs))).arrays

        def along(inputs: Arrays, _: Arrays, tangents: Arrays) -> list[Any]:
            return jvp_along(of_leaves, inputs, tangents, differentiable)

        # The body must have no derivative: `attach` would take one for the derivative
        # of a value that the body closes over, and refuse it.
        inputs = without_derivative([compat.as_array(x) for x in leaves])
        outs = pytree.outputs(fun(*tree.unflatten(inputs)))
        differentiable = [is_inexact(x) for x in outs.arrays]
        return outs.static.whole.join(attached(along, leaves, outs.arrays))

    # A rule of defjvps returns no value: JAX takes the value of the function.
    if method == "defjvp":
        rules = (_spreading(rules[0], attached),)
    f = jax.custom_jvp(primal)
    getattr(f, method)(*rules, **options)
    return f


def _spreading(rule: Rule, attached: Rule) -> Rule:
    """Return a rule of defjvp whose values are batched like the primal's.

    JAX batches both, and assumes that it batches the same outputs in both.
    """

    @functools.wraps(rule)
    def spreading(*args: Any) -> Any:
        found = rule(*args)
        if not is_pair(found):
            return found  # JAX has a message for it
        if not any(map(compat.is_tracer, tree_util.tree_leaves((args, found)))):
            return found
        outs = pytree.outputs(found[0])
        n, inputs = len(outs.arrays), [*outs.arrays, *tree_util.tree_leaves(args[0])]

        # The values have the derivative of the outputs that the rule computed.
        def alike(_: Arrays, __: Arrays, tangents: Arrays) -> list[Any]:
            return list(tangents[:n])

        values = attached(alike, inputs, without_derivative(outs.arrays))
        return outs.static.whole.join(values), found[1]

    return spreading
