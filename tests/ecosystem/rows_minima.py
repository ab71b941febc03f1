"""Places in optimistix and jaxopt: roots, fixed points, least squares, minima."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jaxopt
import optax
import optimistix as optx

from .catalogue import X, row

# ---- optimistix


def _equation(f):
    """A root y of y + y^3 = f(p)."""
    return lambda y, p: y + y**3 - f(p)


def _coupled(f):
    """A root y of y + f(y) = p: the derivative of f is in the Jacobian."""
    return lambda y, p: y + f(y) - p


NEWTON = optx.Newton(1e-6, 1e-6)


def root(fn, p):
    return optx.root_find(fn, NEWTON, 0.5 * p, p, throw=False).value.sum()


@row(
    "optimistix", "`root_find`, the gradient for what the function makes of a parameter"
)
def _(f):
    return jax.grad(lambda p: root(_equation(f), p))(X)


@row(
    "optimistix",
    "`root_find` with the function in the equation, `Newton`, implicit adjoint",
    forward=True,
)
def _(f):
    return jax.grad(lambda p: root(_coupled(f), p))(X)


def fixed_slope(f, **options):
    """The gradient of a fixed point for a parameter."""

    def found(p):
        solver = optx.FixedPointIteration(1e-6, 1e-6)
        step = lambda y, p: 0.3 * f(y) + p  # noqa: E731
        return optx.fixed_point(step, solver, p, p, **options).value.sum()

    return jax.grad(found)(X)


@row("optimistix", "`fixed_point`, implicit adjoint", forward=True)
def _(f):
    return fixed_slope(f)


@row("optimistix", "`fixed_point`, `RecursiveCheckpointAdjoint`")
def _(f):
    adjoint = optx.RecursiveCheckpointAdjoint()
    return fixed_slope(f, max_steps=4, throw=False, adjoint=adjoint)


def _residual(f):
    """Residuals that are zero nowhere, so that rules other than the true one show."""
    return lambda y, p: jnp.stack([f(y) - p, 0.5 * y])


def fitted(f, solver, **options):
    found = optx.least_squares(
        _residual(f), solver, 0.5 * X, X, max_steps=3, throw=False, **options
    )
    return found.value.sum()


@row("optimistix", "`least_squares`, three steps of `LevenbergMarquardt`", forward=True)
def _(f):
    return fitted(f, optx.LevenbergMarquardt(1e-6, 1e-6))


@row("optimistix", "`least_squares`, three steps of `GaussNewton`, `jac='bwd'`")
def _(f):
    solver = optx.GaussNewton(1e-6, 1e-6)
    return fitted(f, solver, options={"jac": "bwd"})


def least(f, solver, p, **options):
    """A minimum over y of a sum, whose gradient is `f`'s."""
    found = optx.minimise(
        lambda y, p: (y**2 + p * f(y)).sum(), solver, 0.5 * p, p, throw=False, **options
    )
    return found.value.sum()


@row("optimistix", "`minimise`, three steps of `BFGS`")
def _(f):
    return least(f, optx.BFGS(1e-6, 1e-6), X, max_steps=3)


@row("optimistix", "`minimise`, implicit adjoint")
def _(f):
    return jax.grad(lambda p: least(f, optx.BFGS(1e-6, 1e-6), p))(X)


@row("optimistix", "`OptaxMinimiser`")
def _(f):
    solver = optx.OptaxMinimiser(optax.sgd(0.1), 1e-6, 1e-6)
    return least(f, solver, X, max_steps=3)


# ---- jaxopt


def _squares(f):
    return lambda y, p: (y**2 + p * f(y)).sum()


@row("jaxopt", "`GradientDescent`, three steps")
def _(f):
    solver = jaxopt.GradientDescent(_squares(f), maxiter=3, stepsize=0.1)
    return solver.run(0.5 * X, X).params


@row("jaxopt", "`GradientDescent`, the gradient through unrolled steps")
def _(f):
    options = {"implicit_diff": False, "unroll": True, "acceleration": False}
    solver = jaxopt.GradientDescent(_squares(f), maxiter=2, stepsize=0.1, **options)
    return jax.grad(lambda p: solver.run(0.5 * X, p).params.sum())(X)


@row("jaxopt", "`implicit_diff.custom_root`")
def _(f):
    @jaxopt.implicit_diff.custom_root(_coupled(f))
    def solve(init, p):
        return jax.lax.fori_loop(0, 30, lambda _, y: y - (_coupled(f)(y, p)) / 2, init)

    return jax.grad(lambda p: solve(0.5 * X, p).sum())(X)


@row("jaxopt", "`GradientDescent`, the implicit gradient")
def _(f):
    solver = jaxopt.GradientDescent(_squares(f), stepsize=0.2, maxiter=100)
    return jax.grad(lambda p: solver.run(0.5 * X, p).params.sum())(X)


@row("jaxopt", "`FixedPointIteration`, the implicit gradient")
def _(f):
    solver = jaxopt.FixedPointIteration(lambda y, p: 0.3 * f(y) + p, maxiter=100)
    return jax.grad(lambda p: solver.run(0.5 * X, p).params.sum())(X)


@row("jaxopt", "`GaussNewton`, three steps", mixed=True)
def _(f):
    solver = jaxopt.GaussNewton(lambda y, p: _residual(f)(y, p).ravel(), maxiter=3)
    return solver.run(0.5 * X, X).params
