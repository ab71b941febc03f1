"""Static values among the arguments of a function in JAX's terms.

JAX's decorators take arrays and Python numbers, and refuse anything else that was not
declared. Here anything else is wrapped into a pytree node without leaves on its way
through JAX, and unwrapped for the user's rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util


@tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A value that takes no part in transformations: a pytree node without leaves.

    JAX keeps what it has traced by the structure of the arguments. So two of these are
    equal only if their values are (`_Same`): with a `Box` as aux data, `jax.jit` of a
    function of a Static would run for "abc" what it compiled for "a", in silence.
    """

    value: Any

    def tree_flatten(self) -> tuple[tuple[()], _Same]:
        return (), _Same(self.value)

    @classmethod
    def tree_unflatten(cls, same: _Same, _: Sequence[Any]) -> Static:
        return cls(same.value)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Aux data that equals another of the same type and value; comparing never raises.

    It can't stand in the outputs of forward, where a value may be another at every
    trace (a lambda), and where a `Box` equals any other.
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or type(self.value) is not type(other.value):
            return False
        try:
            return self.value is other.value or bool(self.value == other.value)
        except Exception:  # noqa: BLE001  (a user's __eq__ may raise anything)
            return False

    def __hash__(self) -> int:
        # The value may have no hash. Equal values have one type.
        return hash(type(self.value))


def is_static(x: Any) -> bool:
    """Say if JAX can't hold `x`: no array, no number, no type of JAX's."""
    # JAX would say the same of these, but takes longer.
    if isinstance(x, (jax.Array, int, float, complex)):
        return False
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biufc":
        return False
    try:
        jax.typeof(x)
    except TypeError:
        return True
    return False


def wrap(tree: Any) -> Any:
    """Wrap the static leaves of `tree`."""
    return tree_util.tree_map(lambda x: Static(x) if is_static(x) else x, tree)


def unwrap(tree: Any, *fill: Any) -> Any:
    """Put the values (or `fill`) in place of what was wrapped in `tree`."""

    def value(x: Any) -> Any:
        if not isinstance(x, Static):
            return x
        return fill[0] if fill else x.value

    return tree_util.tree_map(value, tree, is_leaf=_is_wrapped)


def align(tree: Any, like: Any) -> Any:
    """Put what is wrapped in `like` in its place in `tree`, a tree of cotangents.

    The user's bwd returns None for a static value, but JAX compares the structure with
    that of the arguments, which hold a `Static` there. None stands for any part of a
    tree of cotangents, and stays.
    """

    def put(x: Any, value: Any) -> Any:
        return x if isinstance(x, Static) else value

    if tree is None and not isinstance(like, Static):
        return None
    try:
        return tree_util.tree_map(put, like, tree, is_leaf=_is_wrapped)
    except (TypeError, ValueError):
        return tree  # JAX says how the structures differ


def _is_wrapped(x: Any) -> bool:
    return isinstance(x, Static)
