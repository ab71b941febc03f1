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
from jax.experimental import pallas as pl

import jaxfn
from tests.gpu import programs
from tests.gpu.parts import Check, Figure

BLOCK = 256
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


def _one_shared(f: Any) -> Any:
    return lambda a, b: jax.vmap(f, (0, None))(a, b[0])


def checks(small: bool) -> dict[str, Check]:
    """Each transformation; and how many blocks a batch takes."""
    shape = (4, 60) if small else (64, 1000)
    a, b = jax.random.normal(jax.random.key(0), (2, *shape))
    found = programs.checks(Gated.apply, _reference, 2, shape)
    found["vmap, one shared"] = functools.partial(
        programs.check, _one_shared, Gated.apply, _reference, [a, b]
    )
    found["blocks of a batch"] = functools.partial(_check_blocks, a, b)
    return found


def _check_blocks(a: Any, b: Any) -> Figure:
    STARTED.clear()
    jax.make_jaxpr(jax.vmap(Gated.apply))(a, b)
    most = pl.cdiv(a.size, BLOCK)
    if STARTED[-1] != most:
        raise AssertionError(f"the launches have {STARTED} blocks, expected {most}")
    return Figure(f"{most}, one launch for the batch", {"blocks": most})
