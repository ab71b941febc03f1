"""Array leaves and static leaves: taking a value apart and putting it together.

JAX carries arrays; a Function takes and returns anything. `split` separates the array
leaves of a value from the rest, and the `Spec` it gives puts other leaves in their
places: `spec.join(arrays)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._base import compat, errors, search

Arrays = list[Any]


def is_array(x: Any) -> bool:
    """Say if `x` is an array leaf: of JAX (or a tracer, or a PRNG key) or of NumPy."""
    if isinstance(x, (np.ndarray, np.generic)):
        return is_numeric(x.dtype)
    return isinstance(x, jax.Array)


def as_jax(x: Any) -> jax.Array:
    """Make an array one of JAX; `jnp.asarray` takes ten times as long to do nothing."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Say if JAX can hold this NumPy dtype: not strings, objects, dates, records."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


_INEXACT = frozenset("fc")


def is_inexact(x: Any) -> bool:
    """Say if `x` (an array or a type) has tangents: is it float or complex?

    An array of an extended dtype may have them too: PRNG keys have none, the scales of
    8-bit training have.
    """
    kind = getattr(x.dtype, "kind", None)  # JAX takes longer to say the same
    return kind in _INEXACT or compat.tangent_dtype(x.dtype) != jax.dtypes.float0


def is_number(x: Any) -> bool:
    """Say if `x` is float or complex, so that NumPy can hold and compare its values."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


@dataclasses.dataclass(slots=True)
class Spec:
    """What is left of a value without its array leaves.

    Attributes:
        treedef: the value's pytree structure.
        leaves: its leaves in order, `ARRAY` standing for each array.
        n_arrays: how many arrays there are.
    """

    treedef: Any
    leaves: tuple[Any, ...]
    n_arrays: int

    @classmethod
    def of(cls, treedef: Any, leaves: Sequence[Any]) -> Spec:
        """Make the spec with these leaves; that of one array is always one object."""
        if len(leaves) == 1 and leaves[0] is ARRAY and treedef == _ONE_ARRAY.treedef:
            return _ONE_ARRAY
        return cls(treedef, tuple(leaves), sum(x is ARRAY for x in leaves))

    def join(self, arrays: Sequence[Any]) -> Any:
        """Put the value together with these array leaves."""
        if self is _ONE_ARRAY:
            return arrays[0]
        return self.treedef.unflatten(self._fill(arrays))

    def join_only(self, arrays: Sequence[Any]) -> Any:
        """Put the value together, with None in place of every static leaf."""
        if self.n_arrays == len(self.leaves):
            return self.join(arrays)
        blank = tuple(x if x is ARRAY else None for x in self.leaves)
        return Spec(self.treedef, blank, self.n_arrays).join(arrays)

    def _fill(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Put the arrays among the static leaves, in order."""
        if len(arrays) == len(self.leaves):
            return arrays
        rest = iter(arrays)
        return [next(rest) if x is ARRAY else x for x in self.leaves]

    @property
    def is_array(self) -> bool:
        """Is the value just one array?"""
        return self is _ONE_ARRAY

    @property
    def children(self) -> tuple[Spec, ...]:
        """Return the specs of the elements, for a value that is a container."""
        specs, start = [], 0
        for child in self.treedef.children():
            stop = start + child.num_leaves
            specs.append(Spec.of(child, self.leaves[start:stop]))
            start = stop
        return tuple(specs)


class _Array:
    def __repr__(self) -> str:
        return "ARRAY"


ARRAY = _Array()
"""Stands in a `Spec` for an array leaf."""

_ONE_ARRAY = Spec(tree_util.tree_structure(0), (ARRAY,), 1)


def split(value: Any) -> tuple[Arrays, Spec]:
    """Separate the array leaves of `value` from what is left of it.

    A dict that JAX can't flatten, because its keys don't compare, is one static leaf.

    Raises:
        TypeError: such a dict holds an array, whose derivative would be lost.
    """
    if isinstance(value, jax.Array):
        return [value], _ONE_ARRAY
    try:
        leaves, treedef = tree_util.tree_flatten(value)
    except (TypeError, ValueError):
        leaves, treedef = tree_util.tree_flatten(value, is_leaf=_is_unsortable)
        for leaf in leaves:
            if _is_unsortable(leaf) and search.find(leaf, is_array) is not None:
                raise errors.RuleTypeError(
                    "A dict with keys that can't be sorted holds an array: expected "
                    f"keys of one kind, so that JAX can flatten it, got {list(leaf)}. "
                    "Use keys of one type, or a list."
                ) from None
    arrays = [x for x in leaves if is_array(x)]
    if len(arrays) == len(leaves):
        return arrays, Spec.of(treedef, (ARRAY,) * len(leaves))
    return arrays, Spec.of(treedef, [ARRAY if is_array(x) else x for x in leaves])


@dataclasses.dataclass(slots=True)
class OutSpec:
    """What forward returned, without its arrays.

    Attributes:
        whole: the spec of the value.
        parts: the spec of each output: of each element of a tuple, or of the one value.
        kind: the type of what was returned.
        marked: indices of the outputs that the rules marked as non-differentiable,
            filled in when that is known.
    """

    whole: Spec
    parts: tuple[Spec, ...]
    kind: type
    marked: frozenset[int] = frozenset()

    @classmethod
    def split(cls, out: Any) -> tuple[Arrays, OutSpec]:
        """Separate the array leaves of what forward returned from the rest."""
        arrays, whole = split(out)
        parts = whole.children if isinstance(out, tuple) else (whole,)
        return arrays, cls(whole, parts, type(out))

    def differentiable(self, arrays: Sequence[Any]) -> tuple[bool, ...]:
        """Say for each array output (or its type) whether it has a derivative."""
        pairs = enumerate(map(is_inexact, arrays))
        return tuple([inexact and i not in self.marked for i, inexact in pairs])


def _is_unsortable(x: Any) -> bool:
    """Is `x` a dict that JAX can't flatten, as it takes dicts by sorted keys?"""
    if not isinstance(x, dict):
        return False
    try:
        sorted(x)
    except TypeError:
        return True
    return False


class Box:
    """Aux data of a pytree that compares equal to any other box.

    Two traces of one rule may give static values that differ or can't be compared (a
    lambda made in forward). JAX compares the structures, but needs only that of the
    trace at hand. A `_Same` or a `Named` would differ there, and JAX refuse the call.

    A box must not stand in what JAX looks up in a cache, nor in residuals: a value of
    another trace would be taken for this one in silence (see `Statics`).
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box)

    def __hash__(self) -> int:
        return hash(Box)


@tree_util.register_pytree_node_class
@dataclasses.dataclass(slots=True)
class Outputs:
    """What a call gives, as JAX sees it: array leaves, and anything else in a box.

    Attributes:
        arrays: the array leaves.
        static: an `OutSpec`, which puts the value together.
    """

    arrays: Arrays
    static: Any

    def tree_flatten(self) -> tuple[Arrays, Box]:
        return self.arrays, Box(self.static)

    @classmethod
    def tree_unflatten(cls, box: Box, arrays: Sequence[Any]) -> Outputs:
        return cls(list(arrays), box.value)


def pair(value: Any, spec: Spec) -> list[tuple[Any, Any]]:
    """Put the leaves of `value` beside the leaves of `spec` in whose places they are.

    `value` has the structure of `spec`, or one value (such as None) for any part of it.

    Raises:
        ValueError: the structures don't match.
    """
    leaves: list[Any] = []

    def put(x: Any, part: Any) -> None:
        leaves.extend([x] * len(tree_util.tree_leaves(part)))

    # Plain objects, which JAX advises the checks of a custom node to let through. With
    # anything else in place of leaves, a node may refuse a gradient that is right.
    whole = spec.treedef.unflatten([object()] * len(spec.leaves))
    tree_util.tree_map(put, value, whole, is_leaf=lambda x: x is None)
    return list(zip(leaves, spec.leaves, strict=True))


def sum_to_shape(x: Any, shape: tuple[int, ...]) -> Any | None:
    """Sum `x` to `shape`, the reverse of broadcasting; None if that is impossible."""
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    # There is no sum of an extended dtype.
    if lead < 0 or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return None
    pairs = list(zip(x.shape[lead:], shape, strict=True))
    if any(have != want and want != 1 for have, want in pairs):
        return None
    axes = [lead + i for i, (have, want) in enumerate(pairs) if have != want]
    return jnp.sum(x, axis=(*range(lead), *axes)).reshape(shape)


def outputs(out: Any) -> Outputs:
    """Make `Outputs` of what a function in JAX's terms returned: arrays, all of it."""
    leaves, spec = OutSpec.split(tree_util.tree_map(jnp.asarray, out))
    return Outputs(leaves, spec)
