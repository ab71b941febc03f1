"""Random draws: each gets a key of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._ops.row import row, rows


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
