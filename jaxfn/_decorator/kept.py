"""A jvp that a scan keeps: an older JAX drops that of a custom_jvp there.

The value that a scan goes on with is computed by the primal, so the jvp is attached to
what the primal gives (`attachment`). On a JAX that keeps it nothing of this is used.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax import tree_util

from jaxfn._base import compat, is_inexact, pytree
from jaxfn._decorator.places import Rule, along, is_pair
from jaxfn._engine import Arrays, attach, jax_jvp, stop_gradient


@dataclasses.dataclass(frozen=True)
class Kept:
    """A function with a jvp, for such a JAX.

    Attributes:
        name: of the function.
        fun: the function, with its batch rule.
        method: the name of the method that defines the jvp, "defjvp" or "defjvps".
        rules: its arguments.
        options: its options.
    """

    name: str
    fun: Rule
    method: str
    rules: tuple[Any, ...]
    options: dict[str, Any]

    @functools.cached_property
    def forward(self) -> Rule:
        """The custom_jvp whose jvp a scan keeps."""
        # A rule of defjvps gives no value: JAX takes that of the function.
        rules = self.rules
        if self.method == "defjvp":
            rules = (self._rule(rules[0]),)
        return self._made(self._primal(), rules)

    def _made(self, primal: Rule, rules: tuple[Any, ...]) -> Rule:
        return jax_jvp(primal, self.method, rules, self.options)

    def _primal(self) -> Rule:
        """Return the function, with the jvp attached to what it gives."""

        @functools.wraps(self.fun)
        def primal(*args: Any) -> Any:
            leaves, tree = tree_util.tree_flatten(args)
            # Nothing can be differentiated; a body that needs values can have them.
            if not any(compat.is_tracer(x) for x in leaves):
                return self.fun(*args)

            def tangents(inputs: Arrays, _: Arrays, dots: Arrays) -> list[Any]:
                return along(self.forward, tree.unflatten, inputs, dots, smooth)

            # The body is given no derivative: attach takes one in the values for that
            # of something closed over, and refuses it.
            still = stop_gradient([compat.as_array(x) for x in leaves])
            outs = pytree.outputs(self.fun(*tree.unflatten(still)))
            smooth = [is_inexact(x) for x in outs.arrays]
            values = self._attach(tangents, leaves, outs.arrays)
            return outs.static.whole.join(values)

        return primal

    def _rule(self, rule: Rule) -> Rule:
        """Return a rule of defjvp, whose values are batched where the primal's are.

        JAX batches both, and takes it for granted that they are batched alike.
        """

        @functools.wraps(rule)
        def spreading(*args: Any) -> Any:
            found = rule(*args)
            if not is_pair(found):
                return found  # JAX has a message for it
            if not any(map(compat.is_tracer, tree_util.tree_leaves((args, found)))):
                return found
            outs = pytree.outputs(found[0])
            n, leaves = len(outs.arrays), tree_util.tree_leaves(args[-2])

            # These have the derivative of what the rule computed.
            def tangents(_: Arrays, __: Arrays, dots: Arrays) -> list[Any]:
                return list(dots[:n])

            values = stop_gradient(outs.arrays)
            values = self._attach(tangents, [*outs.arrays, *leaves], values)
            return outs.static.whole.join(values), found[1]

        return spreading

    def _attach(self, tangents: Rule, inputs: Arrays, values: Arrays) -> list[Any]:
        """Return the values with this derivative, each example's own under vmap."""
        return attach(
            tangents, inputs, values, name=self.name, reads=False, spreads=True
        )
