"""The arguments of a call with JAX-style rules: arrays, and what JAX can't hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from jaxfn._base import ARRAY, Spec, compat, pytree
from jaxfn._engine import Arrays

Rule = Callable[..., Any]

CustomVJPPrimal = jax.custom_derivatives.CustomVJPPrimal


def is_pair(x: Any) -> bool:
    """Say if a rule returned two values."""
    return isinstance(x, (tuple, list)) and len(x) == 2


def is_static(x: Any) -> bool:
    """Say if JAX can't hold `x`: no array, no number, no type of JAX's."""
    # JAX would say the same of these, but takes longer. A CustomVJPPrimal holds an
    # array: a rule that saves one forgot its `.value`, and JAX refuses it.
    if isinstance(x, (jax.Array, int, float, complex, CustomVJPPrimal)):
        return False
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biufc":
        return False
    try:
        jax.typeof(x)
    except TypeError:
        return True
    return False


def split(value: Any) -> tuple[Arrays, Spec]:
    """Separate what JAX can hold in `value` from the rest.

    Python numbers count as arrays, as in JAX. (For `pytree.split` they are static.)
    """
    if isinstance(value, jax.Array):
        return pytree.split(value)
    leaves, tree = tree_util.tree_flatten(value)
    static = [x if is_static(x) else ARRAY for x in leaves]
    pairs = zip(leaves, static, strict=True)
    return [x for x, s in pairs if s is ARRAY], Spec.of(tree, static)


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
        """Say if there are static leaves."""
        return any(spec.n_arrays < len(spec.leaves) for spec in self.specs)

    @property
    def has_tracer(self) -> bool:
        """Say if there is a tracer in nondiff."""
        return any(map(compat.is_tracer, tree_util.tree_leaves(self.nondiff)))

    def join(self, i: int, arrays: Arrays, *fill: Any) -> Any:
        """Put argument `i` of the others together, with `fill` for static leaves."""
        spec = self.specs[i]
        if fill:
            leaves = [x if x is ARRAY else fill[0] for x in spec.leaves]
            spec = Spec.of(spec.treedef, leaves)
        return spec.join(arrays)

    def others(self, lists: Sequence[Arrays], *fill: Any) -> tuple[Any, ...]:
        """Put the arguments not in nondiff together, with `fill` for static leaves."""
        return tuple([self.join(i, xs, *fill) for i, xs in enumerate(lists)])

    def whole(self, lists: Sequence[Arrays], *fill: Any) -> list[Any]:
        """Put all arguments together, with `fill` for nondiff and static leaves."""
        others = iter(self.others(lists, *fill))
        fixed = dict.fromkeys(self.nondiff, *fill) if fill else self.nondiff
        n = len(self.nondiff) + len(self.specs)
        return [fixed[i] if i in fixed else next(others) for i in range(n)]

    def cotangents(self, found: Any, rule: str) -> tuple[Arrays, ...]:
        """Make of what bwd returned a list of cotangents (or None) for each argument.

        Raises:
            TypeError: it does not have the structure of the arguments.
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


def along(
    f: Rule,
    args: Rule,
    primals: Arrays,
    tangents: Arrays,
    differentiable: Sequence[bool],
) -> list[Any]:
    """Return the tangents of `f(*args(primals))`, by jax.jvp.

    None stands for the tangent of an input that is not perturbed, and of an output that
    is not differentiable.
    """
    # JAX tells a rule with symbolic_zeros that an argument with zeros is perturbed.
    perturbed = [i for i, t in enumerate(tangents) if t is not None]

    def along(*values: Any) -> list[Any]:
        at = list(primals)
        for i, x in zip(perturbed, values, strict=True):
            at[i] = x
        outs = pytree.outputs(f(*args(at))).arrays
        return [x for x, s in zip(outs, differentiable, strict=True) if s]

    at = tuple(primals[i] for i in perturbed)
    _, dots = jax.jvp(along, at, tuple(tangents[i] for i in perturbed))
    rest = iter(dots)
    return [next(rest) if s else None for s in differentiable]
