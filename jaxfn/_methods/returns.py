"""What the checks of all rules' results share: places for messages, dtypes, sharding.

What torch accepts is accepted in them: None, gradients of a broadcast shape, other
dtypes. What it refuses is refused in its words, where they are true.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat, errors, short


class Where(NamedTuple):
    """A place in what a rule returned, for messages.

    Attributes:
        name: the name of the Function.
        label: words for the argument or output.
        position: its number, from 0.
    """

    name: str
    label: str
    position: int


def check_sharding(x: Any, aval: Any, what: str, where: Where) -> None:
    """Refuse an array that is sharded in another way than its type says."""
    # Only where types say it: elsewhere the compiler moves arrays by itself.
    if compat.is_sharded_otherwise(x, aval):
        raise errors.RuleTypeError(
            f"{what} of another sharding for {where.label}: expected {short(aval)}, "
            f"got {short(x)}. Give it that sharding: jax.sharding.reshard."
        )


def cast(x: Any, aval: Any, what: str, where: Where) -> Any:
    """Cast `x` to the dtype of a type.

    custom_vjp checks the shape of what bwd returns but not its dtype: a wrong one would
    come out of `jax.grad`.
    """
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
    """Has `x`, an array or a type, a dtype that NumPy doesn't know?"""
    return not isinstance(x.dtype, np.dtype)


def tangent_type(aval: Any) -> Any:
    """Return the type of tangents and gradients of an array of this type.

    That is the very type, except for extended dtypes, which may choose another.
    """
    return compat.tangent_aval(aval) if is_extended(aval) else aval


def is_complex(aval: Any) -> bool:
    """Is the type that of complex numbers?"""
    return jnp.issubdtype(aval.dtype, jnp.complexfloating)
