"""What may be saved on a context, and what to do with anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn._base import compat, pytree


def unsavable(values: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return those that can't be saved, each with its place."""
    return [(i, x) for i, x in enumerate(values) if not _can_be_saved(x)]


def _can_be_saved(x: Any) -> bool:
    """Is `x` an array, None, or a pytree that holds arrays?"""
    # The first comparison decides nothing: it is quick, and mostly true.
    if type(x) is compat.ConcreteArray or x is None or pytree.is_array(x):
        return True
    # An empty container holds no arrays and nothing else: there is nothing to lose.
    arrays, spec = pytree.split(x)
    return bool(arrays) or not spec.leaves


def advice(x: Any) -> str:
    """Say what to do with something that can't be saved."""
    if isinstance(x, (int, float, complex)):
        return (
            "A Python number that apply is given is static: it has no gradient. Pass "
            "jnp.asarray(x) to apply if it needs one; else keep it in an attribute: "
            "ctx.<name> = ..."
        )
    return "Save it as an attribute: ctx.<name> = ..."
