"""Places in diffrax: every adjoint, and solvers that take derivatives themselves."""

from __future__ import annotations

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp

from .catalogue import KEY, X, row

LOOSE = dfx.PIDController(1e-2, 1e-2)
IMPLICIT = dfx.ImplicitEuler(root_finder=dfx.VeryChord(1e-3, 1e-3))


def field(f):
    """A vector field with the function in it."""
    return dfx.ODETerm(lambda t, y, p: p * f(y) - 0.5 * y)


def last(f, p=1.0, y0=X, *, solver=None, n=2, term=None, **options):
    """The sum of the solution at time 1."""
    found = dfx.diffeqsolve(
        term or field(f),
        solver or dfx.Euler(),
        t0=0.0,
        t1=1.0,
        dt0=1 / n,
        y0=y0,
        args=p,
        max_steps=4 * n,
        throw=False,
        **options,
    )
    return found.ys.sum()


def slopes(f, **options):
    """The gradients for the parameter and the first value."""
    loss = lambda p, y0: last(f, p, y0, **options)  # noqa: E731
    return jax.jit(jax.grad(loss, (0, 1)))(1.0, X)


def tangent(f, **options):
    loss = lambda p, y0: last(f, p, y0, **options)  # noqa: E731
    return jax.jvp(loss, (1.0, X), (1.0, X))[1]


@row("diffrax", "`RecursiveCheckpointAdjoint`")
def _(f):
    return slopes(f)


@row("diffrax", "`DirectAdjoint`, reverse mode")
def _(f):
    return slopes(f, adjoint=dfx.DirectAdjoint())


@row("diffrax", "`DirectAdjoint`, forward mode", forward=True)
def _(f):
    return tangent(f, adjoint=dfx.DirectAdjoint())


@row("diffrax", "`ForwardMode`", forward=True)
def _(f):
    return tangent(f, adjoint=dfx.ForwardMode())


@row("diffrax", "`BacksolveAdjoint`")
def _(f):
    return slopes(f, adjoint=dfx.BacksolveAdjoint())


@row("diffrax", "`ImplicitAdjoint`, of a steady state", forward=True)
def _(f):
    def rest(p):
        found = dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, p: p - y - 0.3 * f(y)),
            dfx.Heun(),
            t0=0.0,
            t1=jnp.inf,
            dt0=0.25,
            y0=0.5 * p,
            args=p,
            max_steps=None,
            stepsize_controller=dfx.PIDController(1e-3, 1e-6),
            event=dfx.Event(dfx.steady_state_event(1e-4, 1e-4)),
            adjoint=dfx.ImplicitAdjoint(),
        )
        return found.ys.sum()

    return jax.grad(rest)(X)


@row("diffrax", "an adaptive step (`Heun`, `PIDController`)", forward=True)
def _(f):
    return tangent(
        f, solver=dfx.Heun(), stepsize_controller=LOOSE, adjoint=dfx.ForwardMode()
    )


@row("diffrax", "an implicit solver (`ImplicitEuler`), reverse mode", mixed=True)
def _(f):
    return slopes(f, solver=IMPLICIT, n=1, adjoint=dfx.DirectAdjoint())


@row("diffrax", "an equation with noise (`Euler`, `UnsafeBrownianPath`)", forward=True)
def _(f):
    def loss(p):
        path = dfx.UnsafeBrownianPath((2,), KEY)
        noise = lambda t, y, p: jnp.diag(0.1 + 0.1 * f(y))  # noqa: E731
        term = dfx.MultiTerm(field(f), dfx.ControlTerm(noise, path))
        return last(f, p, term=term, adjoint=dfx.DirectAdjoint())

    return jax.jvp(loss, (1.0,), (1.0,))[1]


@row("diffrax", "a batch of solutions by `vmap`", batched=True)
def _(f):
    direct = dfx.DirectAdjoint()
    each = jax.vmap(jax.grad(lambda y0: last(f, 1.0, y0, n=1, adjoint=direct)))
    return each(jnp.stack([X, 2 * X]))


@row("diffrax", "in an `eqx.Module` with the function inside, `filter_grad`")
def _(f):
    class Field(eqx.Module):
        w: jax.Array

        def __call__(self, t, y, args):
            return f(self.w * y)

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(model):
        direct = dfx.DirectAdjoint()
        return last(f, term=dfx.ODETerm(model), adjoint=direct)

    return slope(Field(jnp.array([0.9, 0.8])))
