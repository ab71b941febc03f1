"""`sin(x) * y` in every way to give it derivatives; each call makes new objects."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

import jaxfn
from tests.build import function, rules_of

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


@dataclasses.dataclass(frozen=True)
class Formulas:
    """A function of x and y, and its derivatives.

    Attributes:
        value: of x and y.
        pull: the gradients, of x, y and the cotangent.
        push: the tangent, of x, y and their tangents.
    """

    value: Fun
    pull: Fun
    push: Fun


SIN_TIMES = Formulas(
    lambda x, y: jnp.sin(x) * y,
    lambda x, y, g: (g * jnp.cos(x) * y, g * jnp.sin(x)),
    lambda x, y, x_t, y_t: x_t * jnp.cos(x) * y + y_t * jnp.sin(x),
)


def bare(formulas: Formulas = SIN_TIMES) -> Fun:
    return lambda x, y: formulas.value(x, y)


# ---- jaxfn


def by_function(
    formulas: Formulas = SIN_TIMES,
    engine: str = "backward",
    *,
    style: str = "combined",
    batch: bool = False,
) -> Fun:
    """A Function with the rules of an engine; with a vmap rule if `batch`."""

    def save(ctx, inputs, output):
        if engine != "jvp":
            ctx.save_for_backward(*inputs)
        if engine != "backward":
            ctx.save_for_forward(*inputs)

    def combined(ctx, x, y):
        save(ctx, (x, y), None)
        return formulas.value(x, y)

    members: dict[str, Any] = rules_of(
        engine,
        lambda ctx, g: formulas.pull(*ctx.saved_tensors, g),
        lambda ctx, x_t, y_t: formulas.push(*ctx.saved_tensors, x_t, y_t),
    )
    if style == "combined":
        return function("SinTimes", forward=combined, **members).apply
    if batch:
        members["vmap"] = lambda info, in_dims, x, y: (formulas.value(x, y), 0)
    forward = bare(formulas)
    return function("SinTimes", forward=forward, setup_context=save, **members).apply


def decorated() -> Fun:
    f = jaxfn.custom_function(bare())
    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda res, g: SIN_TIMES.pull(*res, g))
    return f


# ---- JAX


def custom_vjp(formulas: Formulas = SIN_TIMES) -> Fun:
    """With symbolic zeros, which tell as much as `ctx.needs_input_grad` does."""
    f = jax.custom_vjp(bare(formulas))

    def fwd(x, y):
        return f(x.value, y.value), (x.value, y.value)

    def bwd(res, g):
        if isinstance(g, jax.custom_derivatives.SymbolicZero):
            g = jnp.zeros(g.shape, g.dtype)
        return formulas.pull(*res, g)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


def custom_vjp_without_zeros() -> Fun:
    f = jax.custom_vjp(bare())
    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda res, g: SIN_TIMES.pull(*res, g))
    return f


def custom_jvp(formulas: Formulas = SIN_TIMES) -> Fun:
    f = jax.custom_jvp(bare(formulas))
    f.defjvp(lambda xs, ts: (f(*xs), formulas.push(*xs, *ts)))
    return f


def _with_batch_rule() -> Formulas:
    f = custom_vmap(bare())

    @f.def_vmap
    def batch(axis_size, in_batched, x, y):
        x, y = (
            a if b else jnp.broadcast_to(a, (axis_size, *a.shape))
            for a, b in zip((x, y), in_batched, strict=True)
        )
        return SIN_TIMES.value(x, y), True

    return dataclasses.replace(SIN_TIMES, value=f)


# ---- other libraries


def equinox() -> Fun:
    import equinox as eqx

    f = eqx.filter_custom_vjp(lambda both: SIN_TIMES.value(*both))
    f.def_fwd(lambda perturbed, both: (f(both), both))
    f.def_bwd(lambda res, g, perturbed, both: SIN_TIMES.pull(*res, g))
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
            return SIN_TIMES.value(x, y)

        def vjp_fwd(self, nzs_in, x, y):
            return self(x, y), (x, y)

        def vjp_bwd_retval(self, res, g):
            return SIN_TIMES.pull(*res, g)

        def jvp(self, primals, tangents):
            return self(*primals), SIN_TIMES.push(*primals, *tangents)

        def batch(self, axis_data, args, dims):
            return call(*map(_to_front, args, dims)), 0

    def call(x, y):
        return SinTimes(jax.typeof(x), jax.typeof(y))(x, y)

    return call


def _to_front(x, d):
    if d is None:
        raise NotImplementedError("the benchmarks batch every argument")
    return x if d == 0 else jnp.moveaxis(x, d, 0)


# The first ones take other formulas, too.
ALL: dict[str, Callable[..., Fun]] = {
    "bare": bare,
    "Function": by_function,
    "Function, both": lambda *formulas: by_function(*formulas, engine="both"),
    "custom_vjp": custom_vjp,
    "custom_jvp": custom_jvp,
    "Function, separate": lambda: by_function(style="separate"),
    "Function, jvp": lambda: by_function(engine="jvp"),
    "Function, vmap": lambda: by_function(style="separate", batch=True),
    "Function, jvp, vmap": lambda: by_function(
        engine="jvp", style="separate", batch=True
    ),
    "custom_function": decorated,
    "custom_vjp, no zeros": custom_vjp_without_zeros,
    "custom_vjp over custom_vmap": lambda: custom_vjp(_with_batch_rule()),
    "custom_jvp over custom_vmap": lambda: custom_jvp(_with_batch_rule()),
    "equinox.filter_custom_vjp": equinox,
    "hijax": hijax,
}


def available(names: Iterable[str]) -> list[str]:
    """Those that can be measured here."""
    return [name for name in names if not GAPS.get(name)]
