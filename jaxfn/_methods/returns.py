"""Shared checks of results: places for messages, dtypes, sharding."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat, errors, short


class Where(NamedTuple):
    """A place in the result of a rule, for messages.

    Attributes:
        name: Name of the Function.
        label: Words for the argument or output.
        position: Its index.
    """

    name: str
    label: str
    position: int


def check_sharding(x: Any, aval: Any, what: str, where: Where) -> None:
    """Refuse an array whose type has another sharding than `aval`."""
    if compat.is_sharded_otherwise(x, aval):
        raise errors.RuleTypeError(
            f"{what} of another sharding for {where.label}: expected {short(aval)}, "
            f"got {short(x)}. Give it that sharding: jax.sharding.reshard."
        )


def cast(x: Any, aval: Any, what: str, where: Where) -> Any:
    """Cast `x` to the dtype of a type, which custom_vjp doesn't check."""
    if x.dtype == aval.dtype:
        return x
    if is_extended(x) or is_extended(aval):
        raise errors.RuleTypeError(
            f"{what} of another dtype for {where.label}: expected {short(aval)}, got "
            f"{short(x)}. Only ordinary dtypes are cast. Convert it with "
            "jax.lax.convert_element_type."
        )
    return x.astype(aval.dtype)


def is_extended(x: Any) -> bool:
    return not isinstance(x.dtype, np.dtype)


def tangent_type(aval: Any) -> Any:
    """Return the type of tangents; only extended dtypes may have another type."""
    return compat.tangent_aval(aval) if is_extended(aval) else aval


def is_complex(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.complexfloating)
