"""Array leaves and static leaves of a value.

JAX carries arrays; a Function takes and returns anything. `split` returns the array
leaves and a `Spec`; `spec.join(arrays)` is the inverse.
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
    """Return whether `x` is an array leaf: of JAX (tracers, PRNG keys) or of NumPy."""
    if isinstance(x, (np.ndarray, np.generic)):
        return is_numeric(x.dtype)
    return isinstance(x, jax.Array)


def as_jax(x: Any) -> jax.Array:
    """Convert an array to JAX; for a JAX array, ten times faster than `jnp.asarray`."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether JAX has this NumPy dtype: no strings, objects, dates, records."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


_INEXACT = frozenset("fc")


def is_inexact(x: Any) -> bool:
    """Return whether `x`, an array or a type, has tangents: if it is float or complex.

    Extended dtypes may have them too: PRNG keys don't, scales of 8-bit training do.
    """
    kind = getattr(x.dtype, "kind", None)  # faster than JAX
    return kind in _INEXACT or compat.tangent_dtype(x.dtype) != jax.dtypes.float0


def is_number(x: Any) -> bool:
    """Return whether `x` is float or complex, with values that NumPy can hold."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


@dataclasses.dataclass(slots=True)
class Spec:
    """A value without its array leaves.

    Attributes:
        treedef: Pytree structure of the value.
        leaves: Leaves in order, with `ARRAY` in place of arrays.
        n_arrays: Number of arrays.
    """

    treedef: Any
    leaves: tuple[Any, ...]
    n_arrays: int

    @classmethod
    def of(cls, treedef: Any, leaves: Sequence[Any]) -> Spec:
        """Make a spec; the spec of a single array is always the same object."""
        if len(leaves) == 1 and leaves[0] is ARRAY and treedef == _ONE_ARRAY.treedef:
            return _ONE_ARRAY
        return cls(treedef, tuple(leaves), sum(x is ARRAY for x in leaves))

    def join(self, arrays: Sequence[Any]) -> Any:
        """Return the value with these array leaves."""
        if self is _ONE_ARRAY:
            return arrays[0]
        return self.treedef.unflatten(self._fill(arrays))

    def join_only(self, arrays: Sequence[Any]) -> Any:
        """Return the value with these array leaves, and None for static leaves."""
        if self.n_arrays == len(self.leaves):
            return self.join(arrays)
        blank = tuple(x if x is ARRAY else None for x in self.leaves)
        return Spec(self.treedef, blank, self.n_arrays).join(arrays)

    def _fill(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if len(arrays) == len(self.leaves):
            return arrays
        rest = iter(arrays)
        return [next(rest) if x is ARRAY else x for x in self.leaves]

    @property
    def is_array(self) -> bool:
        """Whether the value is a single array."""
        return self is _ONE_ARRAY

    @property
    def children(self) -> tuple[Spec, ...]:
        """The specs of the elements of a container."""
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
"""An array leaf in a `Spec`."""

_ONE_ARRAY = Spec(tree_util.tree_structure(0), (ARRAY,), 1)


def split(value: Any) -> tuple[Arrays, Spec]:
    """Return the array leaves of `value`, and its spec.

    A dict with keys that don't compare is one static leaf: JAX can't flatten it.

    Raises:
        TypeError: The dict holds an array, which would lose its derivative.
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
                    f"keys that JAX can sort, got {list(leaf)}. Use keys of one type, "
                    "or a list."
                ) from None
    arrays = [x for x in leaves if is_array(x)]
    if len(arrays) == len(leaves):
        return arrays, Spec.of(treedef, (ARRAY,) * len(leaves))
    return arrays, Spec.of(treedef, [ARRAY if is_array(x) else x for x in leaves])


@dataclasses.dataclass(slots=True)
class OutSpec:
    """The result of forward without its arrays.

    Attributes:
        whole: Spec of the result.
        parts: Spec of each output: each element of a tuple, or the only value.
        kind: Type of the result.
        marked: Indices of the outputs marked non-differentiable; set later.
        grad_dtypes: Dtype of each array's gradient for backward, if forward chose any.
    """

    whole: Spec
    parts: tuple[Spec, ...]
    kind: type
    marked: frozenset[int] = frozenset()
    grad_dtypes: tuple[Any, ...] = ()

    @classmethod
    def split(cls, out: Any) -> tuple[Arrays, OutSpec]:
        arrays, whole = split(out)
        parts = whole.children if isinstance(out, tuple) else (whole,)
        return arrays, cls(whole, parts, type(out))

    def differentiable(self, arrays: Sequence[Any]) -> tuple[bool, ...]:
        """Return for each array output (or its type) whether it has a derivative."""
        pairs = enumerate(map(is_inexact, arrays))
        return tuple([inexact and i not in self.marked for i, inexact in pairs])


def _is_unsortable(x: Any) -> bool:
    """Return whether `x` is a dict whose keys JAX can't sort."""
    if not isinstance(x, dict):
        return False
    try:
        sorted(x)
    except TypeError:
        return True
    return False


class Box:
    """Aux data of a pytree that compares equal to any other box.

    JAX compares the structures of two traces, whose static values may differ or not
    compare (a lambda made in forward). It uses only the values of the current trace.

    Never put a box in residuals or in the key of a JAX cache: JAX would silently take
    the value of another trace (see `_engine.carrying`).
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
    """The result of a call as a pytree for JAX.

    Attributes:
        arrays: The array leaves.
        static: An `OutSpec`, in a box.
    """

    arrays: Arrays
    static: Any

    def tree_flatten(self) -> tuple[Arrays, Box]:
        return self.arrays, Box(self.static)

    @classmethod
    def tree_unflatten(cls, box: Box, arrays: Sequence[Any]) -> Outputs:
        return cls(list(arrays), box.value)


def pair(value: Any, spec: Spec) -> list[tuple[Any, Any]]:
    """Pair the leaves of `value` with the leaves of `spec`.

    `value` has the structure of `spec`, or one value (such as None) for a part of it.

    Raises:
        ValueError: The structures don't match.
    """
    leaves: list[Any] = []

    def put(x: Any, part: Any) -> None:
        leaves.extend([x] * len(tree_util.tree_leaves(part)))

    # JAX asks the checks of custom nodes to accept plain objects as leaves.
    whole = spec.treedef.unflatten([object()] * len(spec.leaves))
    tree_util.tree_map(put, value, whole, is_leaf=lambda x: x is None)
    return list(zip(leaves, spec.leaves, strict=True))


def sum_to_shape(x: Any, shape: tuple[int, ...]) -> Any | None:
    """Sum `x` to `shape`, the transpose of broadcasting; None if impossible."""
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    # Extended dtypes have no sum.
    if lead < 0 or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return None
    pairs = list(zip(x.shape[lead:], shape, strict=True))
    if any(have != want and want != 1 for have, want in pairs):
        return None
    axes = [lead + i for i, (have, want) in enumerate(pairs) if have != want]
    return jnp.sum(x, axis=(*range(lead), *axes)).reshape(shape)


def outputs(out: Any) -> Outputs:
    """Make `Outputs` from the result of a JAX function; all its leaves are arrays."""
    leaves, spec = OutSpec.split(tree_util.tree_map(jnp.asarray, out))
    return Outputs(leaves, spec)
