"""A row of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """How JAX computes one operation of torch.

    Attributes:
        fn: Function of the operands. If `typed`, the type of the result comes first.
        promote: The dtype to which tensor operands are cast first: that of the result
            ("out"), that in which torch compares them ("common"), or none.
        elementwise: Whether it works on single elements, so the result of a mask may be
            an operand. For a result in half precision it computes in float32, as torch.
        half_precision: Compute in half precision instead of float32.
        typed: Whether `fn` gets the type of the result.
        lazy: Whether it may omit results that nothing uses. Their types are None.
        accumulates: Whether it computes in float32 for operands in half precision, and
            rounds once, as torch does where it adds up many numbers.
    """

    fn: Callable[..., Any]
    promote: str | None = None
    elementwise: bool = False
    half_precision: bool = False
    typed: bool = False
    lazy: bool = False
    accumulates: bool = False

    def __call__(self, out: Any, common: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result for these operands; `checked` casts it."""
        dtype = common if self.promote == "common" else getattr(out, "dtype", None)
        wide = self.elementwise and self.promote == "out" and not self.half_precision
        if wide and dtype in _HALVES:
            dtype = np.dtype(np.float32)
        if self.promote is not None and dtype is not None:
            args = tuple([_to(x, dtype) for x in args])
        if self.accumulates:
            args = tuple([_widened(x) for x in args])
        if self.typed:
            return self.fn(out, *args, **kwargs)
        return self.fn(*args, **kwargs)


_HALVES = (np.dtype(jnp.bfloat16), np.dtype(np.float16))


def _to(x: Any, dtype: Any) -> Any:
    if type(x) in (int, float, complex, bool):
        return jnp.asarray(x, dtype) if _fits(x, dtype) else x
    if not isinstance(x, (jax.Array, np.ndarray)) or x.dtype == dtype:
        return x
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return x
    return convert(x, dtype)


def _widened(x: Any) -> Any:
    dtype = getattr(x, "dtype", None)
    return x if dtype is None or dtype == wide(dtype) else convert(x, wide(dtype))


def wide(dtype: Any) -> Any:
    """Return the dtype in which torch adds up many numbers of this one."""
    return np.dtype(np.float32) if dtype in _HALVES else dtype


def convert(x: Any, dtype: Any) -> Any:
    """Cast `x`. From half precision to float32 this rounds again.

    XLA computes in float32 what JAX has in bfloat16. Before such a cast it leaves out
    the rounding of its result (in `1 - y**2` all digits can hang on it). So does a CPU
    that computes in float16, because it joins a product and a sum.
    """
    found = jax.lax.convert_element_type(x, dtype)
    if x.dtype in _HALVES and dtype == jnp.float32:
        info = jnp.finfo(x.dtype)
        rounded = jax.lax.reduce_precision(found, info.nexp, info.nmant)
        if x.dtype != jnp.float16:
            return rounded
        # It makes 0 of subnormal numbers, and those of float16 begin at 6e-5.
        return jnp.where(jnp.abs(found) < info.smallest_normal, found, rounded)
    return found


def _fits(x: Any, dtype: Any) -> bool:
    """Return whether a dtype can hold a number: an integer dtype can't hold 0.5."""
    if isinstance(x, complex):
        return jnp.issubdtype(dtype, jnp.complexfloating)
    if isinstance(x, float):
        return jnp.issubdtype(dtype, jnp.inexact)
    if isinstance(x, bool) or not jnp.issubdtype(dtype, jnp.integer):
        return True
    info = jnp.iinfo(dtype)
    return info.min <= x <= info.max


ROWS: dict[str, Row] = {}
"""The table, by names with an overload ("aten.add.Tensor") or without one."""


def row(*names: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table under these names."""

    def put(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in ROWS, name
            ROWS[name] = Row(fn, **how)
        return fn

    return put


def rows(table: dict[str, Callable[..., Any]], **how: Any) -> None:
    """Put several functions into the table."""
    for name, fn in table.items():
        row(*name.split(), **how)(fn)


def find(name: str) -> Row | None:
    """Return the row of an operation, by its full name or the one without overload."""
    if name in ROWS:
        return ROWS[name]
    base = ".".join(name.split(".")[:2])
    return ROWS.get(base)


def lowest(dtype: Any) -> Any:
    """Return the least number of a dtype."""
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """Return the greatest number of a dtype."""
    return jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


def repeated(sizes: Any, n: int) -> list[int]:
    """Return `n` sizes of windows; torch accepts one for all dimensions."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    return sizes * n if len(sizes) == 1 else sizes


def by_vjp(forward: Callable[..., Any], primals: Sequence[Any], g: Any) -> Any:
    """Return the gradients by `primals` of a smooth row."""
    return jax.vjp(forward, *primals)[1](g)


def reduce_axes(x: Any, dim: Any) -> tuple[int, ...]:
    """Return JAX's axes for torch's `dim`, not negative. None and () mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % x.ndim for d in dims) if x.ndim else ()
