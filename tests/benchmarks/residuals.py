"""Bytes kept from the forward pass for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn
from tests.benchmarks import peers
from tests.benchmarks.compiled import peak
from tests.benchmarks.eager import arrays
from tests.benchmarks.rows import Row
from tests.benchmarks.timing import Effort, Spread
from tests.build import function

Fun = Callable[..., Any]
N = 10_000


def _exp(ctx, x):
    out = jnp.exp(x)
    ctx.save_for_backward(out)
    return out


EXP = function(forward=_exp, backward=lambda ctx, g: g * ctx.saved_tensors[0])
"""Saves its output."""


def exp_by_hand() -> Fun:
    f = jax.custom_vjp(jnp.exp)

    def fwd(x):
        out = f(x.value)
        return out, out

    f.defvjp(fwd, lambda out, g: (g * out,), symbolic_zeros=True)
    return f


class Matmul(jaxfn.Function):
    """Saves only what the gradients that are needed need."""

    @staticmethod
    def forward(ctx, x, w):
        need_x, need_w = ctx.needs_input_grad
        ctx.save_for_backward(x if need_w else None, w if need_x else None)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return None if w is None else g @ w.T, None if x is None else x.T @ g


def matmul_by_hand() -> Fun:
    f = jax.custom_vjp(lambda x, w: x @ w)

    def fwd(x, w):
        kept = x.value if w.perturbed else None, w.value if x.perturbed else None
        return f(x.value, w.value), kept

    def bwd(kept, g):
        x, w = kept  # what is missing is for a gradient that nobody needs
        dx = jnp.zeros_like(x) if w is None else g @ w.T
        dw = jnp.zeros_like(w) if x is None else x.T @ g
        return dx, dw

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


class Both(jaxfn.Function):
    """`sin(x) * y`; backward needs the inputs, jvp one input and a cosine."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(jnp.cos(x) * y, jnp.sin(x), y)
        return jnp.sin(x) * y

    @staticmethod
    def backward(ctx, g):
        return peers.SIN_TIMES.pull(*ctx.saved_tensors, g)

    @staticmethod
    def jvp(ctx, x_t, y_t):
        by_x, by_y, _ = ctx.saved_tensors
        return x_t * by_x + y_t * by_y


UNION = 4  # x, y, cos(x) * y and sin(x): y is saved twice, and kept once


def of_some(f: Fun, args: Any, moving: tuple[int, ...]) -> tuple[Fun, list[Any]]:
    """A function of some of the arguments, and those."""

    def along(*values):
        moved = dict(zip(moving, values, strict=True))
        return f(*(moved.get(i, x) for i, x in enumerate(args)))

    return along, [args[i] for i in moving]


def pull(f: Fun, args: Any, moving: tuple[int, ...]) -> Any:
    """The pullback along some of the arguments."""
    along, values = of_some(f, args, moving)
    return jax.vjp(along, *values)[1]


def kept(f: Fun, args: Any, moving: tuple[int, ...]) -> int:
    """Bytes of the different arrays that an eager pullback holds."""
    return size(pull(f, args, moving))


def kept_by_jit(f: Fun, args: Any, moving: tuple[int, ...]) -> int:
    """Bytes of the arrays that a compiled program returns in a pullback."""
    return size(jax.jit(lambda *xs: pull(f, xs, moving))(*args))


def size(tree: Any) -> int:
    """Bytes of the arrays in it, each buffer once."""
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    return sum({x.unsafe_buffer_pointer(): x.nbytes for x in arrays}.values())


def looped(f: Fun, args: Any, moving: tuple[int, ...]) -> int:
    """Bytes of the compiled gradient of 50 applies in a scan."""

    def loss(x, *others):
        def step(x, _):
            return f(x, *others), None

        return jax.lax.scan(step, x, None, length=50)[0].sum()

    along, values = of_some(loss, args, moving)
    every = tuple(range(len(moving)))
    return peak(jax.jit(jax.grad(along, every)).lower(*values).compile())


def compared(
    what: str, measure: Callable[..., int], names: dict[str, Fun], *args: Any
) -> Iterator[Row]:
    """Bytes of the first against those of each of the others.

    Args:
        what: is measured.
        measure: the bytes of a function, given it and `args`.
        names: the functions: ours, the hand-written one, and plain autodiff.
        args: for `measure`.
    """
    (mine, f), *others = names.items()
    ours = measure(f, *args)
    for name, other in others:
        theirs = measure(other, *args)
        yield _row(what, mine, name, ours, theirs, target=name != "plain autodiff")


def _row(what: str, mine: str, name: str, ours: int, theirs: int, *, target: bool):
    return Row(
        "residuals",
        what,
        mine,
        name,
        Spread.of([ours / theirs]),
        target=1.0 if target else None,
        note=f"{ours:,} to {theirs:,} bytes",
    )


def rows(effort: Effort) -> Iterator[Row]:
    """All measurements of what is kept."""
    x, y = arrays(N)
    a, w = x.reshape(100, 100), y[:2000].reshape(100, 20)
    square = y.reshape(100, 100) / 100
    sin = {
        "Function": peers.by_function(),
        "custom_vjp": peers.custom_vjp(),
        "plain autodiff": peers.bare(),
    }
    exp = {
        "Function": EXP.apply,
        "custom_vjp": exp_by_hand(),
        "plain autodiff": jnp.exp,
    }
    matmul = {
        "Function": Matmul.apply,
        "custom_vjp": matmul_by_hand(),
        "plain autodiff": lambda x, w: x @ w,
    }
    both = {"Function, both": Both.apply} | {k: sin[k] for k in list(sin)[1:]}
    for how, measure in (("vjp", kept), ("vjp in jit", kept_by_jit)):
        yield from compared(f"{how} of exp", measure, exp, (x,), (0,))
        yield from compared(f"{how} of sin(x) * y", measure, sin, (x, y), (0, 1))
        yield from compared(f"{how} of x @ w", measure, matmul, (a, w), (0, 1))
        yield from compared(f"{how} of x @ w, by x", measure, matmul, (a, w), (0,))
        yield from compared(f"{how} of x @ w, by w", measure, matmul, (a, w), (1,))
    union = UNION * x.nbytes
    ours = kept(Both.apply, (x, y), (0, 1))
    what = "vjp of sin(x) * y with both rules"
    yield _row(what, "Function, both", "union of both", ours, union, target=True)
    title = "compiled gradient of a scan, peak memory"
    yield from compared(f"{title}: sin(x) * y", looped, sin, (x, y), (0, 1))
    yield from compared(f"{title}: both rules", looped, both, (x, y), (0, 1))
    yield from compared(f"{title}: x @ w", looped, matmul, (a, square), (0, 1))
    yield from compared(f"{title}: x @ w, by x", looped, matmul, (a, square), (0,))
