"""The arguments of a call with JAX-style rules: arrays, and values that JAX can't hold.

JAX's decorators get a list of arrays for each argument. The user's function and rules
get whole arguments: `Places` puts back static values and the arguments of
nondiff_argnums.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._base import ARRAY, Spec, pytree
from jaxfn._engine import Arrays, Carrier, Residuals

Rule = Callable[..., Any]

CustomVJPPrimal = jax.custom_derivatives.CustomVJPPrimal

_ANY = inspect.signature(lambda *args: args)


def is_pair(x: Any) -> bool:
    """Return whether a rule returned two values."""
    return isinstance(x, (tuple, list)) and len(x) == 2


def is_static(x: Any) -> bool:
    """Return whether JAX can't hold `x`: no array, no number, no type of JAX's."""
    # jax.typeof accepts most of these too, but takes longer. A CustomVJPPrimal holds an
    # array: if a rule saves one, it forgot `.value`, and JAX raises.
    if isinstance(x, (jax.Array, int, float, complex, CustomVJPPrimal)):
        return False
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biufc":
        return False
    try:
        jax.typeof(x)
    except TypeError:
        return True
    return False


def split(value: Any, *, nondiff: bool = False) -> tuple[Arrays, Spec]:
    """Split off the leaves of `value` that JAX can hold; none for a nondiff argument.

    Python numbers count as arrays, as in JAX. (For `pytree.split` they are static.)
    """
    if isinstance(value, jax.Array) and not nondiff:
        return pytree.split(value)
    leaves, tree = tree_util.tree_flatten(value)
    static = [x if nondiff or is_static(x) else ARRAY for x in leaves]
    pairs = zip(leaves, static, strict=True)
    return [x for x, s in pairs if s is ARRAY], Spec.of(tree, static)


def named(fun: Rule, rule: Rule) -> Rule:
    """Return `fun` with the name and source of `rule`, for JAX's messages."""
    functools.update_wrapper(fun, rule)
    fun.__dict__["__signature__"] = _ANY  # not the signature of `rule`
    return fun


def rule_name(bwd: Rule, name: str) -> str:
    """Return the name of bwd in JAX's messages, for a function of this name."""
    return f"{getattr(bwd, '__name__', 'bwd')} for function {name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """The arguments of a call without their arrays.

    Attributes:
        nondiff: Arguments at the positions of nondiff_argnums, by position.
        specs: Structure and static leaves of each of the other arguments.
    """

    nondiff: dict[int, Any]
    specs: list[Spec]

    @classmethod
    def of(
        cls, nondiff: Sequence[int], args: Sequence[Any]
    ) -> tuple[Places, list[Arrays]]:
        """Return the places, and a list of arrays for each argument not in nondiff."""
        fixed = {i: args[i] for i in nondiff if i < len(args)}
        pairs = [split(x) for i, x in enumerate(args) if i not in fixed]
        return cls(fixed, [spec for _, spec in pairs]), [xs for xs, _ in pairs]

    @property
    def has_static(self) -> bool:
        """Whether there are static leaves."""
        return any(spec.n_arrays < len(spec.leaves) for spec in self.specs)

    def filled(self, x: Any) -> Places:
        """Return places with `x` for each nondiff argument and each static leaf."""
        blank = [[y if y is ARRAY else x for y in spec.leaves] for spec in self.specs]
        pairs = zip(self.specs, blank, strict=True)
        specs = [Spec.of(spec.treedef, leaves) for spec, leaves in pairs]
        return Places(dict.fromkeys(self.nondiff, x), specs)

    def others(self, lists: Sequence[Arrays]) -> tuple[Any, ...]:
        """Put the arguments not in nondiff together."""
        pairs = zip(self.specs, lists, strict=True)
        return tuple([spec.join(arrays) for spec, arrays in pairs])

    def whole(self, lists: Sequence[Arrays]) -> list[Any]:
        """Put all arguments together."""
        fixed, others = self.nondiff, iter(self.others(lists))
        n = len(fixed) + len(self.specs)
        return [fixed[i] if i in fixed else next(others) for i in range(n)]

    def cotangents(self, found: Any, rule: str) -> tuple[Arrays, ...]:
        """Return a list of cotangents (or None) for each argument, from bwd's result.

        Raises:
            TypeError: It does not have the structure of the arguments.
        """
        n, tree = len(self.specs), tree_util.tree_structure(found)
        if not isinstance(found, (tuple, list)) or len(found) != n:
            raise TypeError(
                f"Custom VJP bwd rule {rule} must produce a tuple of length equal to "
                f"the number of arguments to the primal function: expected {n} "
                f"cotangents (None for zero), got {tree}."
            )
        try:
            parts = list(map(pytree.pair, found, self.specs))
        except ValueError as error:
            expected = tree_util.treedef_tuple([spec.treedef for spec in self.specs])
            raise TypeError(
                f"Custom VJP bwd rule {rule} must produce an output with the same "
                "container (pytree) structure as the args tuple of the primal "
                f"function: expected {expected}, got {tree}."
            ) from error
        return tuple([[ct for ct, leaf in part if leaf is ARRAY] for part in parts])

    # ---- rules that get lists of arrays

    def vjp(self, fwd: Rule, bwd: Rule, *, name: str) -> tuple[Rule, Rule]:
        """Return fwd and bwd for a custom_vjp of this name.

        JAX sees only the arrays in residuals. Static residuals can't be part of the
        structure that JAX sees (`Carrier` says why).
        """
        carrier, rule = Carrier(name), rule_name(bwd, name)

        def on_fwd(*xs: Any) -> Any:
            result = fwd(*self.whole(xs))
            if not is_pair(result):
                return result  # JAX has a message for it
            arrays, spec = split(result[1])
            arrays = list(map(jnp.asarray, arrays))
            args = [
                x.value if isinstance(x, CustomVJPPrimal) else x
                for x in tree_util.tree_leaves(xs)
            ]
            return result[0], carrier.pack(Residuals(arrays, spec, ()), args)

        def on_bwd(saved: Any, cts: Any) -> Any:
            found = carrier.unpack(saved)
            res = found.static.join(found.arrays)
            return self.cotangents(bwd(*self.nondiff.values(), res, cts), rule)

        return named(on_fwd, fwd), named(on_bwd, bwd)

    def jvps(self, method: str, rules: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the rules of defjvp or defjvps, on lists of arrays.

        The tangent of a static value is None.
        """
        of_tangents = self.filled(None)

        def of_defjvp(rule: Rule) -> Rule:
            def jvp(primals: Any, tangents: Any) -> Any:
                pair = self.others(primals), of_tangents.others(tangents)
                return rule(*self.nondiff.values(), *pair)

            return named(jvp, rule)

        def of_defjvps(i: int, rule: Rule) -> Rule:
            def jvp(t: Any, out: Any, *primals: Any) -> Any:
                return rule(of_tangents.specs[i].join(t), out, *self.others(primals))

            return named(jvp, rule)

        if method == "defjvp":
            return tuple(map(of_defjvp, rules))
        pairs = enumerate(rules)
        return tuple([None if r is None else of_defjvps(i, r) for i, r in pairs])

    def batch(self, rule: Rule) -> Rule:
        """Return a batch rule that calls no static value batched."""
        flags = self.filled(False)

        def batch(size: int, in_batched: Any, *xs: Any) -> Any:
            return rule(size, flags.whole(in_batched), *self.whole(xs))

        return named(batch, rule)
