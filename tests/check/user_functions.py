"""Functions as users write them: solvers with tolerances, loops, quantisers, draws.

Every one is right. `USERS` has for each the callable, its arguments, and what `check`
is told about it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.sparse.linalg import cg

import jaxfn

still = lax.stop_gradient


class User(NamedTuple):
    """A Function with arguments, and the options that `check` gets."""

    fun: Any
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  (never written)


_random = np.random.default_rng(7)


def normal(*shape):
    return _random.standard_normal(shape).astype(np.float32)


# ---- a formula


class LogCosh(jaxfn.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.logaddexp(x, -x) - jnp.log(2.0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * jnp.tanh(x)


# ---- implicit: a fixed point, a root, a linear system


def _layer(z, w, x):
    return jnp.tanh(w @ z + x)


class FixedPoint(jaxfn.Function):
    """z = tanh(w z + x), from z0, until a step is shorter than `tol`."""

    @staticmethod
    def forward(ctx, w, x, z0, tol):
        def goes_on(state):
            z, before, i = state
            return (jnp.abs(z - before).max() > tol) & (i < 500)

        def step(state):
            z, _, i = state
            return _layer(z, w, x), z, i + 1

        z = lax.while_loop(goes_on, step, (_layer(z0, w, x), z0, 0))[0]
        ctx.save_for_backward(w, x, z)
        return z

    @staticmethod
    def backward(ctx, g):
        w, x, z = ctx.saved_tensors
        slope = 1 - jnp.tanh(w @ z + x) ** 2
        u = jnp.linalg.solve(jnp.eye(z.size) - (slope[:, None] * w).T, g)
        return jnp.outer(slope * u, z), slope * u, None, None


class IterativeBackward(FixedPoint):
    """The same, with a backward that iterates, too; so it is of first order only."""

    @staticmethod
    @jaxfn.once_differentiable
    def backward(ctx, g):
        w, x, z = ctx.saved_tensors
        pull = jax.vjp(_layer, z, w, x)[1]

        def goes_on(state):
            u, before, i = state
            return (jnp.abs(u - before).max() > 1e-7) & (i < 500)

        def step(state):
            u, _, i = state
            return g + pull(u)[0], u, i + 1

        u = lax.while_loop(goes_on, step, (g, jnp.zeros_like(g), 0))[0]
        return *pull(u)[1:], None, None


class Root(jaxfn.Function):
    """y^3 + a y = b by Newton's method, until the residual is below `tol`."""

    @staticmethod
    def forward(ctx, a, b, tol):
        def residual(y):
            return y**3 + a * y - b

        def goes_on(state):
            y, i = state
            return (jnp.abs(residual(y)).max() > tol) & (i < 100)

        def step(state):
            y, i = state
            return y - residual(y) / (3 * y**2 + a), i + 1

        y = lax.while_loop(goes_on, step, (jnp.ones_like(a), 0))[0]
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        u = g / (3 * y**2 + a)
        return -y * u, u, None


class Bisection(jaxfn.Function):
    """The same root by halving, which leaves a step of `tol`."""

    @staticmethod
    def forward(ctx, a, b, tol):
        def halve(state):
            low, high = state
            middle = (low + high) / 2
            above = middle**3 + a * middle > b
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        low, high = lax.while_loop(
            lambda state: (state[1] - state[0]).max() > tol,
            halve,
            (jnp.full_like(a, -10.0), jnp.full_like(a, 10.0)),
        )
        y = (low + high) / 2
        ctx.save_for_backward(a, y)
        return y

    backward = Root.backward


class Conjugate(jaxfn.Function):
    """(a a' + 1) x = b, forward and backward by conjugate gradients."""

    @staticmethod
    def forward(ctx, a, b, tol):
        x = cg(lambda v: a @ (a.T @ v) + v, b, tol=tol)[0]
        ctx.save_for_backward(a, x)
        ctx.tol = tol
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        u = cg(lambda v: a @ (a.T @ v) + v, g, tol=ctx.tol)[0]
        return -(jnp.outer(u, a.T @ x) + jnp.outer(x, a.T @ u)), u, None


# ---- loops


class Unrolled(jaxfn.Function):
    """Steps of gradient descent, one after the other, that differentiate themselves."""

    @staticmethod
    def forward(ctx, w, x, steps):
        def descend(w, x):
            for _ in range(steps):
                w = w - 0.1 * x.T @ (jnp.tanh(x @ w) - 0.5) / len(x)
            return w

        out, ctx.pull = jax.vjp(descend, w, x)
        return out

    @staticmethod
    def backward(ctx, g):
        return *ctx.pull(g), None


class Orbit(jaxfn.Function):
    """A pendulum by Runge-Kutta; backward goes through the steps again."""

    @staticmethod
    def forward(ctx, y, k):
        ctx.save_for_backward(y, k)
        return _orbit(y, k)

    @staticmethod
    def backward(ctx, g):
        return jax.vjp(_orbit, *ctx.saved_tensors)[1](g)


def _orbit(y, k):
    def slope(y):
        return jnp.stack([y[1], -k * jnp.sin(y[0])])

    def step(y, _):
        h = 0.05
        a = slope(y)
        b = slope(y + h / 2 * a)
        c = slope(y + h / 2 * b)
        d = slope(y + h * c)
        return y + h / 6 * (a + 2 * b + 2 * c + d), None

    return lax.scan(step, y, None, length=20)[0]


# ---- rounding, draws, kinks


class LearnedStep(jaxfn.Function):
    """A quantiser that learns its step."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return jnp.clip(jnp.round(x / step), -4, 3) * step

    @staticmethod
    def backward(ctx, g):
        x, step = ctx.saved_tensors
        q = x / step
        inside = (q >= -4) & (q <= 3)
        error = jnp.where(inside, jnp.round(q) - q, jnp.where(q < -4, -4.0, 3.0))
        scale = 1 / (3 * x.size) ** 0.5
        return g * inside, (g * error).sum() * scale


def learned_step(x, step):
    """The value of LearnedStep, with the derivative that is meant."""
    q = x / step
    inside = (q >= -4) & (q <= 3)
    error = jnp.where(inside, jnp.round(q) - q, jnp.where(q < -4, -4.0, 3.0))
    slopes = still(1.0 * inside), still(error / (3 * x.size) ** 0.5)
    value = jnp.clip(jnp.round(q), -4, 3) * step
    like = slopes[0] * x + slopes[1] * step
    return like + still(value - like)


class Dropout(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, key, rate):
        kept = jax.random.bernoulli(key, 1 - rate, x.shape) / (1 - rate)
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g * kept, None, None


class Hinges(jaxfn.Function):
    """A sum of many hinges: everywhere a kink is near."""

    @staticmethod
    def forward(ctx, x, w):
        y = x @ w
        ctx.save_for_backward(x, w, y)
        return jnp.maximum(y, 0.1 * y).sum()

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        slope = g * jnp.where(y > 0, 1.0, 0.1).astype(y.dtype)
        return jnp.outer(slope, w), x.T @ slope


class Norm(jaxfn.Function):
    """A normalised layer with three arguments, of first order only."""

    @staticmethod
    def forward(ctx, x, scale, bias):
        mean = x.mean(-1, keepdims=True)
        inverse = lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        unit = (x - mean) * inverse
        ctx.save_for_backward(unit, inverse, scale)
        return unit * scale + bias

    @staticmethod
    @jaxfn.once_differentiable
    def backward(ctx, g):
        unit, inverse, scale = ctx.saved_tensors
        h = g * scale
        mean = functools.partial(jnp.mean, axis=-1, keepdims=True)
        dx = inverse * (h - mean(h) - unit * mean(h * unit))
        return dx, (g * unit).sum(0), g.sum(0)


W = 0.3 * normal(4, 4)
USERS = {
    "logcosh": User(LogCosh.apply, (normal(5),)),
    "fixed point": User(FixedPoint, (W, normal(4), normal(4), 1e-10)),
    "backward that iterates": User(
        IterativeBackward, (W, normal(4), np.zeros(4, np.float32), 1e-7)
    ),
    "root": User(Root, (np.abs(normal(3)), normal(3), 1e-6)),
    "conjugate gradients": User(Conjugate, (normal(6, 6), normal(6), 1e-6)),
    "unrolled": User(Unrolled, (normal(3), normal(8, 3), 50)),
    "orbit": User(Orbit, (normal(2), np.float32(1.3))),
    "learned step": User(
        LearnedStep,
        (normal(64), np.float32(0.37)),
        {"reference": learned_step},
    ),
    "dropout": User(Dropout, (normal(8), jax.random.key(3), 0.25)),
    "hinges": User(Hinges, (normal(500, 6), normal(6))),
    "norm": User(Norm, (normal(3, 5), normal(5), normal(5))),
}
