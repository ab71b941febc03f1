"""What may be saved on a context, and what to do with anything else."""

from __future__ import annotations

from typing import Any

from jaxfn._base import pytree


def can_be_saved(x: Any) -> bool:
    """Is `x` an array, None, or a pytree that holds arrays?"""
    if x is None or pytree.is_array(x):
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
