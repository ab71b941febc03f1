"""`sin(x) * y` in every way to give it derivatives; each call makes new objects."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

import jaxfn

Fun = Callable[..., Any]


def missing(module: str, *any_of: str) -> str:
    """Why a peer can't be measured; "" where it can.

    Args:
        module: to look for. It is imported only if there are names.
        any_of: names, one of which must be in it.
    """
    if importlib.util.find_spec(module) is None:
        inside = module.startswith("jax.")
        return "not in this JAX" if inside else "not installed"
    if any_of and not any(hasattr(importlib.import_module(module), n) for n in any_of):
        return "not in this JAX"
    return ""


GAPS = {
    "equinox.filter_custom_vjp": missing("equinox"),
    "hijax": missing("jax.experimental.hijax", "HiPrim", "VJPHiPrimitive"),
    "torch": missing("torch"),
}


def bare() -> Fun:
    def sin_times(x, y):
        return jnp.sin(x) * y

    return sin_times


# ---- jaxfn


def _backward(ctx, g):
    x, y = ctx.saved_tensors
    return g * jnp.cos(x) * y, g * jnp.sin(x)


def _jvp(ctx, x_t, y_t):
    x, y = ctx.saved_tensors
    return x_t * jnp.cos(x) * y + y_t * jnp.sin(x)


def combined() -> Fun:
    class SinTimes(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return jnp.sin(x) * y

        backward = staticmethod(_backward)

    return SinTimes.apply


def separate() -> Fun:
    class SinTimes(jaxfn.Function):
        @staticmethod
        def forward(x, y):
            return jnp.sin(x) * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        backward = staticmethod(_backward)

    return SinTimes.apply


def forward_mode() -> Fun:
    class SinTimes(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_forward(x, y)
            return jnp.sin(x) * y

        jvp = staticmethod(_jvp)

    return SinTimes.apply


def both() -> Fun:
    class SinTimes(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x, y)
            return jnp.sin(x) * y

        backward = staticmethod(_backward)
        jvp = staticmethod(_jvp)

    return SinTimes.apply


def with_vmap() -> Fun:
    class SinTimes(jaxfn.Function):
        @staticmethod
        def forward(x, y):
            return jnp.sin(x) * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def vmap(info, in_dims, x, y):
            return jnp.sin(x) * y, 0

        backward = staticmethod(_backward)

    return SinTimes.apply


def with_vmap_and_jvp() -> Fun:
    class SinTimes(jaxfn.Function):
        @staticmethod
        def forward(x, y):
            return jnp.sin(x) * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def vmap(info, in_dims, x, y):
            return jnp.sin(x) * y, 0

        jvp = staticmethod(_jvp)

    return SinTimes.apply


def decorated() -> Fun:
    f = jaxfn.custom_function(bare())
    f.defvjp(lambda x, y: (f(x, y), (x, y)), _pull)
    return f


# ---- JAX


def _pull(res, g):
    x, y = res
    return g * jnp.cos(x) * y, g * jnp.sin(x)


def custom_vjp() -> Fun:
    """With symbolic zeros, which tell as much as `ctx.needs_input_grad` does."""
    f = jax.custom_vjp(bare())

    def fwd(x, y):
        return f(x.value, y.value), (x.value, y.value)

    def bwd(res, g):
        if isinstance(g, jax.custom_derivatives.SymbolicZero):
            g = jnp.zeros(g.shape, g.dtype)
        return _pull(res, g)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


def custom_vjp_without_zeros() -> Fun:
    f = jax.custom_vjp(bare())
    f.defvjp(lambda x, y: (f(x, y), (x, y)), _pull)
    return f


def custom_jvp(f: Fun | None = None) -> Fun:
    f = jax.custom_jvp(f or bare())

    @f.defjvp
    def push(primals, tangents):
        (x, y), (x_t, y_t) = primals, tangents
        return f(x, y), x_t * jnp.cos(x) * y + y_t * jnp.sin(x)

    return f


def _with_batch_rule() -> Fun:
    f = custom_vmap(bare())

    @f.def_vmap
    def batch(axis_size, in_batched, x, y):
        x, y = (
            a if b else jnp.broadcast_to(a, (axis_size, *a.shape))
            for a, b in zip((x, y), in_batched, strict=True)
        )
        return jnp.sin(x) * y, True

    return f


def custom_vjp_over_vmap() -> Fun:
    inner = _with_batch_rule()
    f = jax.custom_vjp(lambda x, y: inner(x, y))
    f.defvjp(
        lambda x, y: (f(x.value, y.value), (x.value, y.value)),
        _pull,
        symbolic_zeros=True,
    )
    return f


def custom_jvp_over_vmap() -> Fun:
    inner = _with_batch_rule()
    return custom_jvp(lambda x, y: inner(x, y))


# ---- other libraries


def equinox() -> Fun:
    import equinox as eqx

    @eqx.filter_custom_vjp
    def f(both):
        x, y = both
        return jnp.sin(x) * y

    @f.def_fwd
    def fwd(perturbed, both):
        return f(both), both

    @f.def_bwd
    def bwd(res, g, perturbed, both):
        return _pull(res, g)

    return lambda x, y: f((x, y))


def hijax() -> Fun:
    from jax.experimental import hijax as hi

    base = getattr(hi, "HiPrim", None) or hi.VJPHiPrimitive  # its older name

    class SinTimes(base):
        def __init__(self, x, y):
            self.in_avals = (x, y)
            self.out_aval = x
            self.params = {}
            super().__init__()

        def expand(self, x, y):
            return jnp.sin(x) * y

        def vjp_fwd(self, nzs_in, x, y):
            return self(x, y), (x, y)

        def vjp_bwd_retval(self, res, g):
            return _pull(res, g)

        def jvp(self, primals, tangents):
            (x, y), (x_t, y_t) = primals, tangents
            return self(x, y), x_t * jnp.cos(x) * y + y_t * jnp.sin(x)

        def batch(self, axis_data, args, dims):
            return call(*map(_to_front, args, dims)), 0

    def call(x, y):
        return SinTimes(jax.typeof(x), jax.typeof(y))(x, y)

    return call


def _to_front(x, d):
    if d is None:
        raise NotImplementedError("the benchmarks batch every argument")
    return x if d == 0 else jnp.moveaxis(x, d, 0)


BACKWARD: dict[str, Callable[[], Fun]] = {
    "bare": bare,
    "Function": combined,
    "Function, separate": separate,
    "Function, both": both,
    "Function, vmap": with_vmap,
    "custom_function": decorated,
    "custom_vjp": custom_vjp,
    "custom_vjp, no zeros": custom_vjp_without_zeros,
    "custom_vjp over custom_vmap": custom_vjp_over_vmap,
    "equinox.filter_custom_vjp": equinox,
    "hijax": hijax,
}
FORWARD: dict[str, Callable[[], Fun]] = {
    "Function, jvp": forward_mode,
    "Function, jvp, vmap": with_vmap_and_jvp,
    "custom_jvp": custom_jvp,
    "custom_jvp over custom_vmap": custom_jvp_over_vmap,
}
ALL = BACKWARD | FORWARD


def available(names: Iterable[str]) -> list[str]:
    """Those that can be measured here."""
    return [name for name in names if not GAPS.get(name)]
