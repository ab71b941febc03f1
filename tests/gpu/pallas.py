"""A kernel of Pallas inside of a Function: value, backward, jvp and vmap launch it.

The Function is tanh(a) b, computed for blocks of a flat array. JAX can't differentiate
a kernel, so that a derivative which comes out right came from a rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

import jaxfn
from tests.gpu.parts import Check, Figure, error, expect

BLOCK = 256
MOST = 5e-6
"""The greatest error: tanh of a GPU is not that of NumPy."""

STARTED: list[int] = []
"""The number of blocks of each launch that was traced."""


def _value(a: Any, b: Any, out: Any) -> None:
    out[...] = jnp.tanh(a[...]) * b[...]


def _backward(a: Any, b: Any, grad: Any, grad_a: Any, grad_b: Any) -> None:
    t = jnp.tanh(a[...])
    grad_a[...] = grad[...] * b[...] * (1 - t * t)
    grad_b[...] = grad[...] * t


def _tangent(a: Any, b: Any, da: Any, db: Any, out: Any) -> None:
    t = jnp.tanh(a[...])
    out[...] = da[...] * b[...] * (1 - t * t) + db[...] * t


def launch(kernel: Callable[..., None], outputs: int, *arrays: Any) -> tuple[Any, ...]:
    """Run a kernel on all blocks of arrays of one shape."""
    shape, size = arrays[0].shape, arrays[0].size
    blocks = pl.cdiv(size, BLOCK)
    STARTED.append(blocks)
    padded = (0, blocks * BLOCK - size)
    flat = [jnp.pad(x.reshape(-1), padded) for x in arrays]
    block = pl.BlockSpec((BLOCK,), lambda i: (i,))
    results = pl.pallas_call(
        kernel,
        grid=(blocks,),
        in_specs=[block] * len(flat),
        out_specs=[block] * outputs,
        out_shape=[jax.ShapeDtypeStruct(flat[0].shape, flat[0].dtype)] * outputs,
        **_options(),
    )(*flat)
    return tuple(x[:size].reshape(shape) for x in results)


def _options() -> dict[str, Any]:
    """Interpret the kernel on a CPU; on a GPU compile it through Triton."""
    if jax.default_backend() == "cpu":
        return {"interpret": True}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=4)}


class Gated(jaxfn.Function):
    """tanh(a) b."""

    @staticmethod
    def forward(a, b):
        return launch(_value, 1, a, b)[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @jaxfn.once_differentiable
    def backward(ctx, grad):
        return launch(_backward, 2, *ctx.saved_tensors, grad)

    @staticmethod
    def jvp(ctx, tangent_a, tangent_b):
        return launch(_tangent, 1, *ctx.saved_tensors, tangent_a, tangent_b)[0]

    @staticmethod
    def vmap(info, in_dims, a, b):
        a, b = (
            jnp.broadcast_to(x, (info.batch_size, *x.shape)) if dim is None else x
            for x, dim in zip((a, b), in_dims, strict=True)
        )
        return Gated.apply(a, b), 0  # the batch is more elements of one launch


def _reference(a: Any, b: Any) -> Any:
    return jnp.tanh(a) * b


def _loss(f: Any) -> Any:
    return lambda a, b: (f(a, b) ** 2).sum()


def _in_scan(f: Any) -> Any:
    return lambda a, b: lax.scan(lambda x, _: (f(x, b), None), a, None, length=3)[0]


def _jvp(f: Any) -> Any:
    return lambda a, b: jax.jvp(f, (a, b), (jnp.cos(a), jnp.sin(b)))


CASES: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(_loss(f), (0, 1)),
    "jit grad": lambda f: jax.jit(jax.grad(_loss(f), (0, 1))),
    "grad scan": lambda f: jax.jit(jax.grad(_loss(_in_scan(f)), (0, 1))),
    "grad checkpoint": lambda f: jax.grad(_loss(jax.checkpoint(f)), (0, 1)),
    "jvp": _jvp,
    "jit jvp": lambda f: jax.jit(_jvp(f)),
    "vmap": jax.vmap,
    "vmap, one shared": lambda f: lambda a, b: jax.vmap(f, (0, None))(a, b[0]),
    "vmap grad": lambda f: jax.jit(jax.vmap(jax.grad(_loss(f), (0, 1)))),
    "grad vmap": lambda f: jax.jit(jax.grad(_loss(jax.vmap(f)), (0, 1))),
    "jvp vmap": lambda f: _jvp(jax.vmap(f)),
}


def checks(small: bool) -> dict[str, Check]:
    """Each transformation; and how many blocks a batch takes."""
    shape = (4, 60) if small else (64, 1000)
    found: dict[str, Check] = {
        name: functools.partial(_check, case, shape) for name, case in CASES.items()
    }
    found["blocks of a batch"] = functools.partial(_check_blocks, shape)
    return found


def _arrays(shape: tuple[int, int]) -> Any:
    return jax.random.normal(jax.random.key(0), (2, *shape))


def _check(case: Callable[[Any], Any], shape: tuple[int, int]) -> Figure:
    a, b = _arrays(shape)
    got = jax.tree.leaves(case(Gated.apply)(a, b))
    expected = jax.tree.leaves(case(_reference)(a, b))
    found = max(error(x, y) for x, y in zip(got, expected, strict=True))
    expect("beside plain JAX", found, MOST)
    return Figure(f"error {found:.1e}", {"error": found})


def _check_blocks(shape: tuple[int, int]) -> Figure:
    a, b = _arrays(shape)
    STARTED.clear()
    jax.make_jaxpr(jax.vmap(Gated.apply))(a, b)
    most = pl.cdiv(int(np.prod(shape)), BLOCK)
    if STARTED[-1] != most:
        raise AssertionError(f"the launches have {STARTED} blocks, expected {most}")
    return Figure(f"{most}, one launch for the batch", {"blocks": most})
