"""Which values a context can save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn._base import compat, pytree


def unsavable(values: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the values that can't be saved, with their indices."""
    return [(i, x) for i, x in enumerate(values) if not _can_be_saved(x)]


def _can_be_saved(x: Any) -> bool:
    """Is `x` an array, None, or a pytree that holds arrays?"""
    # The first comparison is redundant, but fast.
    if type(x) is compat.ConcreteArray or x is None or pytree.is_array(x):
        return True
    arrays, spec = pytree.split(x)
    return bool(arrays) or not spec.leaves


def advice(x: Any) -> str:
    """Advise on a value that can't be saved."""
    if isinstance(x, (int, float, complex)):
        return (
            "A Python number that apply is given is static: it has no gradient. Pass "
            "jnp.asarray(x) to apply if it needs one; else keep it in an attribute: "
            "ctx.<name> = ..."
        )
    return "Save it as an attribute: ctx.<name> = ..."
