"""`jaxfn.triton_call` inside of a Function: value, backward and jvp launch kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jax import lax

import jaxfn
from tests.gpu.comparison import expect_engine
from tests.gpu.parts import Check, Figure, error, expect

BLOCK = 128
MOST = 5e-6


@triton.jit
def _value(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v * tl.exp(-v * v), mask=at < n)


@triton.jit
def _slope(x, by, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    slope = (1 - 2 * v * v) * tl.exp(-v * v)
    tl.store(y + at, tl.load(by + at, mask=at < n) * slope, mask=at < n)


def _launch(kernel: Any, **arrays: Any) -> Any:
    x = arrays["x"]
    return jaxfn.triton_call(
        kernel,
        (triton.cdiv(x.size, BLOCK),),
        out={"y": jax.ShapeDtypeStruct(x.shape, x.dtype)},
        n=x.size,
        BLOCK=BLOCK,
        **arrays,
    )


class Bump(jaxfn.Function):
    """x exp(-x^2)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return _launch(_value, x=x)

    @staticmethod
    @jaxfn.once_differentiable
    def backward(ctx, grad):
        return _launch(_slope, x=ctx.saved_tensors[0], by=grad)

    @staticmethod
    def jvp(ctx, tangent):
        return _launch(_slope, x=ctx.saved_tensors[0], by=tangent)


def _formula(x: Any) -> Any:
    return x * jnp.exp(-x * x)


def _loss(f: Any) -> Any:
    return lambda x: (f(x) ** 2).sum()


def _scan(f: Any) -> Any:
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]


def _jvp(f: Any) -> Any:
    return lambda x: jax.jvp(f, (x,), (jnp.cos(x),))


CASES: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "jit": jax.jit,
    "jit grad": lambda f: jax.jit(jax.grad(_loss(f))),
    "jit jvp": lambda f: jax.jit(_jvp(f)),
    "vmap": jax.vmap,
    "vmap grad": lambda f: jax.jit(jax.vmap(jax.grad(_loss(f)))),
    "grad vmap": lambda f: jax.jit(jax.grad(_loss(jax.vmap(f)))),
    "grad scan": lambda f: jax.jit(jax.grad(_loss(_scan(f)))),
    "jvp scan vmap": lambda f: jax.jit(_jvp(_scan(jax.vmap(f)))),
    "grad checkpoint": lambda f: jax.jit(jax.grad(_loss(jax.checkpoint(f)))),
}


def checks(small: bool) -> dict[str, Check]:
    shape = (3, 50) if small else (16, 5000)
    return {
        name: functools.partial(_check, case, shape) for name, case in CASES.items()
    }


def _check(case: Callable[[Any], Any], shape: tuple[int, int]) -> Figure:
    expect_engine()
    x = jax.random.normal(jax.random.key(0), shape)
    got = jax.tree.leaves(case(Bump.apply)(x))
    expected = jax.tree.leaves(case(_formula)(x))
    found = max(error(a, b) for a, b in zip(got, expected, strict=True))
    expect("beside plain JAX", found, MOST)
    return Figure(f"error {found:.1e}", {"error": found})
