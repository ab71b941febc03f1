"""Arrays made from nothing, and numbers."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp

from jaxfn.torch._ops.row import row, rows


def _filled(out: Any, value: Any) -> Any:
    return jnp.full(out.shape, value, out.dtype)


rows(
    {
        # What is not written before it is read has any value in torch; here it is 0.
        "aten.empty aten.empty_permuted aten.empty_strided aten.new_empty "
        "aten.new_empty_strided aten.zeros aten.new_zeros": (
            lambda out, *_, **__: _filled(out, 0)
        ),
        "aten.ones aten.new_ones": lambda out, *_, **__: _filled(out, 1),
        "aten.full": lambda out, _, value, **__: _filled(out, value),
        "aten.new_full": lambda out, _, __, value, **___: _filled(out, value),
        "aten.scalar_tensor": lambda out, value, **_: _filled(out, value),
    },
    typed=True,
)


rows(
    {
        "aten.empty_like aten.zeros_like": lambda out, *_, **__: _filled(out, 0),
        "aten.ones_like": lambda out, *_, **__: _filled(out, 1),
        "aten.full_like aten.fill": (lambda out, _, value, **__: _filled(out, value)),
    },
    typed=True,
    elementwise=True,
)


@row("aten.arange.default", typed=True)
def arange(out: Any, end: Any, **_: Any) -> Any:
    """0, 1, … before `end`."""
    return arange_step(out, 0, end)


@row("aten.arange.start", typed=True)
def arange_start(out: Any, start: Any, end: Any, **_: Any) -> Any:
    """From `start`, before `end`."""
    return arange_step(out, start, end)


@row("aten.arange.start_step", typed=True)
def arange_step(out: Any, start: Any, end: Any, step: Any = 1, **_: Any) -> Any:
    """From `start` in steps, before `end`."""
    del end
    wide = jnp.arange(out.shape[0])
    if jnp.issubdtype(out.dtype, jnp.integer):
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
        return start + wide.astype(out.dtype) * step
    return start + wide * jnp.asarray(step, out.dtype)


@row("prims.iota", typed=True)
def iota(out: Any, length: int, *, start: int, step: int, **_: Any) -> Any:
    """From `start` in steps, so many."""
    return start + jnp.arange(length, dtype=out.dtype) * step


@row("aten.linspace", typed=True)
def linspace(out: Any, start: Any, end: Any, steps: int, **_: Any) -> Any:
    """So many numbers between two."""
    return jnp.linspace(start, end, steps, dtype=out.dtype)


@row("aten.logspace", typed=True)
def logspace(
    out: Any, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any
) -> Any:
    """So many powers between two."""
    return jnp.logspace(start, end, steps, base=base, dtype=out.dtype)


@row("aten.eye", typed=True)
def eye(out: Any, *_: Any, **__: Any) -> Any:
    """Ones on the diagonal."""
    return jnp.eye(*out.shape, dtype=out.dtype)


@row("aten.tril_indices", typed=True)
def tril_indices(out: Any, rows: int, cols: int, offset: int = 0, **_: Any) -> Any:
    """Where a lower triangle is."""
    return jnp.stack(jnp.tril_indices(rows, offset, cols)).astype(out.dtype)


@row("aten.triu_indices", typed=True)
def triu_indices(out: Any, rows: int, cols: int, offset: int = 0, **_: Any) -> Any:
    """Where an upper triangle is."""
    return jnp.stack(jnp.triu_indices(rows, offset, cols)).astype(out.dtype)


# ---- numbers that were read from tensors, and what Python computed of them

rows(
    {
        "aten._local_scalar_dense": lambda x: x,
        "aten.sym_size": lambda x, dim: x.shape[dim],
        "aten.sym_numel": lambda x: x.size,
        "getitem": lambda x, i: x[i],
        "number.add": operator.add,
        "number.sub": operator.sub,
        "number.mul": operator.mul,
        "number.truediv": operator.truediv,
        "number.pow": operator.pow,
        "number.neg": operator.neg,
        "number.sym_float": lambda x: x,
        "number.sym_max": jnp.maximum,
        "number.sym_min": jnp.minimum,
        "number._sym_sqrt": jnp.sqrt,
        "number._sym_abs": jnp.abs,
        "number.abs": jnp.abs,
        # A test that torch makes at run time, with an error where it fails.
        "aten._assert_async aten._assert_scalar aten.sym_constrain_range_for_size "
        "aten.sym_constrain_range aten._linalg_check_errors": lambda *_, **__: None,
    }
)
