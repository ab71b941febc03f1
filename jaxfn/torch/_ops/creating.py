"""Arrays that need no tensor, Python numbers, and random draws.

Each draw gets a key of its own.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
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
        "aten.zeros aten._new_zeros_with_same_feature_meta": lambda out, *_, **__: (
            _filled(out, 0)
        ),
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


def _uniform(out: Any, key: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
    dtype = jnp.promote_types(out.dtype, jnp.float32)
    return jax.random.uniform(key, out.shape, dtype, low, high)


def _normal(out: Any, key: Any) -> Any:
    if jnp.issubdtype(out.dtype, jnp.complexfloating):
        return jax.random.normal(key, out.shape, out.dtype)
    return jax.random.normal(key, out.shape, jnp.promote_types(out.dtype, jnp.float32))


rows(
    {
        "aten.rand aten.rand_like": lambda out, *_, key, **__: _uniform(out, key),
        "aten.randn aten.randn_like": lambda out, *_, key, **__: _normal(out, key),
        "aten.uniform": lambda out, x, low=0.0, high=1.0, *, key, **_: _uniform(
            out, key, low, high
        ),
        "aten.bernoulli.default": lambda out, x, *, key, **_: jax.random.bernoulli(
            key, x
        ),
        "aten.bernoulli.p": lambda out, x, p=0.5, *, key, **_: jax.random.bernoulli(
            key, p, out.shape
        ),
        "aten.bernoulli.Tensor": lambda out, x, p, *, key, **_: jax.random.bernoulli(
            key, p, out.shape
        ),
        "aten.exponential": lambda out, x, rate=1.0, *, key, **_: (
            jax.random.exponential(key, out.shape, jnp.float32) / rate
        ),
        "aten.cauchy": lambda out, x, middle=0.0, scale=1.0, *, key, **_: (
            middle + scale * jax.random.cauchy(key, out.shape, jnp.float32)
        ),
        "aten.log_normal": lambda out, x, mean=1.0, std=2.0, *, key, **_: jnp.exp(
            mean + std * _normal(out, key)
        ),
        "aten.geometric": lambda out, x, p, *, key, **_: jax.random.geometric(
            key, p, out.shape
        ),
        "aten.poisson": lambda out, x, *, key, **_: jax.random.poisson(key, x),
        "aten._standard_gamma": lambda out, x, *, key, **_: jax.random.gamma(key, x),
        "aten._sample_dirichlet": lambda out, x, *, key, **_: jax.random.dirichlet(
            key, x
        ),
        "aten.binomial": lambda out, n, p, *, key, **_: jax.random.binomial(key, n, p),
        "aten.randperm": lambda out, n, *, key, **_: jax.random.permutation(key, n),
    },
    typed=True,
)


@row("aten.normal_functional", typed=True)
def normal(
    out: Any, x: Any, mean: Any = 0.0, std: Any = 1.0, *_: Any, key: Any, **__: Any
) -> Any:
    """Draw normal numbers of one mean and deviation."""
    del x
    return mean + std * _normal(out, key)


@row(
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.Tensor_Tensor",
    "aten.normal.float_float",
    typed=True,
)
def normal_of(
    out: Any, mean: Any = 0.0, std: Any = 1.0, *_: Any, key: Any, **__: Any
) -> Any:
    """Draw normal numbers, each of its own mean and deviation."""
    return mean + std * _normal(out, key)


def _integers(out: Any, key: Any, low: Any, high: Any) -> Any:
    dtype = out.dtype if jnp.issubdtype(out.dtype, jnp.integer) else jnp.int32
    return jax.random.randint(key, out.shape, low, high, dtype)


rows(
    {
        "aten.randint.default": lambda out, high, *_, key, **__: _integers(
            out, key, 0, high
        ),
        "aten.randint.low": lambda out, low, high, *_, key, **__: _integers(
            out, key, low, high
        ),
        "aten.randint_like.default": lambda out, x, high, *_, key, **__: _integers(
            out, key, 0, high
        ),
        "aten.randint_like.low_dtype": lambda out, x, low, high, *_, key, **__: (
            _integers(out, key, low, high)
        ),
    },
    typed=True,
)


@row("aten.multinomial")
def multinomial(
    p: Any, count: int, replacement: bool = False, *, key: Any, **_: Any
) -> Any:
    """Draw positions by weight."""
    logits, shape = jnp.log(p), (*p.shape[:-1], count)
    if replacement:
        return jax.random.categorical(key, logits[..., None, :], -1, shape)
    noisy = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
    return jax.lax.top_k(noisy, count)[1]


@row("aten.native_dropout", typed=True)
def native_dropout(out: Any, x: Any, p: float, train: Any, *, key: Any) -> Any:
    """Set random elements to zero and scale the others; return which are not zero."""
    del out
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    kept = jax.random.bernoulli(key, 1 - p, x.shape)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return jnp.where(kept, x * scale, x * 0).astype(x.dtype), kept
