"""`jaxfn.triton_call` inside of a Function: value, backward and jvp launch kernels."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

import jaxfn
from tests.gpu import programs
from tests.gpu.comparison import expect_engine
from tests.gpu.parts import Check, Figure

BLOCK = 128


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


def checks(small: bool) -> dict[str, Check]:
    shape = (3, 50) if small else (16, 5000)
    found = programs.checks(Bump.apply, _formula, 1, shape)
    return {name: functools.partial(_check, check) for name, check in found.items()}


def _check(check: Check) -> Figure:
    expect_engine()
    return check()
