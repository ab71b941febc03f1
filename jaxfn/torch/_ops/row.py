"""What a row of the table is."""

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
        fn: of the operands; with `typed` the type of the result comes first.
        promote: the dtype to which tensor operands are brought first: that of the
            result ("out"), that in which torch compares them ("common"), or none.
        elementwise: does it work on each element alone? Then it also works on what a
            mask has picked; and if it is brought to the dtype of a result in half
            precision, it is computed in float32, as torch does, where a number such as
            0.3 keeps its digits.
        narrow: or is it computed in half precision there?
        typed: does `fn` get the type of the result?
        lazy: may it leave out what is not asked for of several results? The type of
            such a one is None then.
    """

    fn: Callable[..., Any]
    promote: str | None = None
    elementwise: bool = False
    narrow: bool = False
    typed: bool = False
    lazy: bool = False

    def __call__(self, out: Any, common: Any, *args: Any, **kwargs: Any) -> Any:
        """The result for these operands, whose type `checked` then makes right."""
        dtype = common if self.promote == "common" else getattr(out, "dtype", None)
        wide = self.elementwise and self.promote == "out" and not self.narrow
        if wide and dtype in _HALVES:
            dtype = np.dtype(np.float32)
        if self.promote is not None and dtype is not None:
            args = tuple([_to(x, dtype) for x in args])
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
    return jax.lax.convert_element_type(x, dtype)


def _fits(x: Any, dtype: Any) -> bool:
    """Can this dtype hold the number? An integer dtype can't hold 0.5."""
    if isinstance(x, complex):
        return jnp.issubdtype(dtype, jnp.complexfloating)
    if isinstance(x, float):
        return jnp.issubdtype(dtype, jnp.inexact)
    if isinstance(x, bool) or not jnp.issubdtype(dtype, jnp.integer):
        return True
    info = jnp.iinfo(dtype)
    return info.min <= x <= info.max


ROWS: dict[str, Row] = {}
"""The table: names with an overload ("aten.add.Tensor"), or without one."""


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
    """The row of an operation, by its full name or that without overload."""
    if name in ROWS:
        return ROWS[name]
    base = ".".join(name.split(".")[:2])
    return ROWS.get(base)


def lowest(dtype: Any) -> Any:
    """The least number of a dtype."""
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """The greatest number of a dtype."""
    return jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


def repeated(sizes: Any, n: int) -> list[int]:
    """`n` sizes of windows; torch takes one for all dimensions."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    return sizes * n if len(sizes) == 1 else sizes


def by_vjp(forward: Callable[..., Any], primals: Sequence[Any], g: Any) -> Any:
    """The gradients by `primals` of a row that is smooth."""
    return jax.vjp(forward, *primals)[1](g)


def reduce_axes(x: Any, dim: Any) -> tuple[int, ...]:
    """JAX's axes for torch's `dim`, from the front. None and () mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % x.ndim for d in dims) if x.ndim else ()
