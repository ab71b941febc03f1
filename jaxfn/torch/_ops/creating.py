"""Arrays that need no tensor, and Python numbers."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp

from jaxfn.torch._ops.row import row, rows


def _filled(out: Any, value: Any) -> Any:
    return jnp.full(out.shape, value, out.dtype)


def _triangle(indices: Any) -> Any:
    """Return the row for the positions in a triangle."""
    return lambda out, rows, cols, offset=0, **_: jnp.stack(indices(rows, offset, cols))


rows(
    {
        # In torch, elements that nobody wrote have any value. Choose 0.
        "aten.empty aten.empty_permuted aten.empty_strided aten.new_empty_strided "
        "aten.zeros": lambda out, *_, **__: _filled(out, 0),
        "aten.ones": lambda out, *_, **__: _filled(out, 1),
        "aten.full": lambda out, _, value, **__: _filled(out, value),
        "aten.scalar_tensor": lambda out, value, **_: _filled(out, value),
        "aten.tril_indices": _triangle(jnp.tril_indices),
        "aten.triu_indices": _triangle(jnp.triu_indices),
    },
    typed=True,
)
row("aten.full_like", typed=True, elementwise=True)(
    lambda out, _, value, **__: _filled(out, value)
)


@row("aten.arange.start_step", typed=True)
def arange(out: Any, start: Any, end: Any, step: Any = 1, **_: Any) -> Any:
    """Count from `start` in steps, up to `end`."""
    del end
    at = jnp.arange(out.shape[0])
    if jnp.issubdtype(out.dtype, jnp.integer):
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
        return start + at.astype(out.dtype) * step
    return start + at * jnp.asarray(step, out.dtype)


@row("prims.iota", typed=True)
def iota(out: Any, length: int, *, start: int, step: int, **_: Any) -> Any:
    """Count from `start` in `length` steps."""
    return start + jnp.arange(length, dtype=out.dtype) * step


# ---- numbers from tensors, and Python's arithmetic with them

rows(
    {
        "aten._local_scalar_dense": lambda x: jnp.reshape(x, ()),
        "number.sym_float": lambda x: x,
        "aten.sym_size": lambda x, dim: x.shape[dim],
        "aten.sym_numel": lambda x: x.size,
        "getitem": lambda x, i: x[i],
        "number.add": operator.add,
        "number.sub": operator.sub,
        "number.mul": operator.mul,
        "number.truediv": operator.truediv,
        "number.pow": operator.pow,
        "number.neg": operator.neg,
        **{
            f"number.{x}": getattr(operator, x)
            for x in ("eq", "ne", "lt", "le", "gt", "ge")
        },
        "number.and_ number.sym_and": jnp.logical_and,
        "number.or_ number.sym_or": jnp.logical_or,
        "number.sym_not": jnp.logical_not,
        "number.sym_max": jnp.maximum,
        "number.sym_min": jnp.minimum,
        "number._sym_sqrt": jnp.sqrt,
        "number._sym_abs number.abs": jnp.abs,
        # Torch makes these checks at run time, and raises if one fails.
        "aten._assert_async aten._assert_scalar aten.sym_constrain_range_for_size "
        "aten.sym_constrain_range aten._linalg_check_errors": lambda *_, **__: None,
    }
)
