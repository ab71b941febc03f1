"""Places in lineax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import lineax as lx

from .catalogue import X, row


def chained(f):
    """A function of two numbers whose Jacobian has an inverse, and no symmetry."""
    return lambda y: y * 3 + jnp.roll(f(y), 1)


B = jnp.array([1.0, 2.0])


def solved(operator, solver=None):
    return lx.linear_solve(operator, B, solver or lx.AutoLinearSolver(well_posed=None))


def _operator_rows(jac, forward):
    words = "`JacobianLinearOperator`" + (f", `jac={jac!r}`" if jac else "")

    @row("lineax", f"{words}, `mv`", forward=forward)
    def _(f):
        return lx.JacobianLinearOperator(lambda y, _: f(y), X, jac=jac).mv(B)

    @row("lineax", f"{words}, `linear_solve` with LU", forward=forward)
    def _(f):
        operator = lx.JacobianLinearOperator(lambda y, _: chained(f)(y), X, jac=jac)
        return jax.jit(lambda: solved(operator, lx.LU()).value)()


_operator_rows(None, forward=True)
_operator_rows("fwd", forward=True)
_operator_rows("bwd", forward=False)


@row("lineax", "`JacobianLinearOperator`, `linear_solve` with GMRES", forward=True)
def _(f):
    operator = lx.JacobianLinearOperator(lambda y, _: chained(f)(y), X)
    return solved(operator, lx.GMRES(1e-6, 1e-6)).value


@row("lineax", "`linearise` of a `JacobianLinearOperator`", forward=True)
def _(f):
    operator = lx.JacobianLinearOperator(lambda y, _: f(y), X)
    return lx.linearise(operator).mv(B)


@row("lineax", "`materialise` of a transposed `JacobianLinearOperator`")
def _(f):
    operator = lx.JacobianLinearOperator(lambda y, _: chained(f)(y), X)
    return lx.materialise(operator.T).as_matrix()


@row("lineax", "`linear_solve`, the gradient for a matrix that the function makes")
def _(f):
    def loss(x):
        operator = lx.MatrixLinearOperator(2 * jnp.eye(2) + f(jnp.outer(x, x)))
        return solved(operator, lx.LU()).value.sum()

    return jax.grad(loss)(X)


@row("lineax", "`linear_solve`, the tangent for such a matrix", forward=True)
def _(f):
    def loss(x):
        operator = lx.MatrixLinearOperator(2 * jnp.eye(2) + f(jnp.outer(x, x)))
        return solved(operator, lx.LU()).value

    return jax.jvp(loss, (X,), (X,))


@row("lineax", "`linear_solve` under `vmap`, of a diagonal that it makes", batched=True)
def _(f):
    def solution(x):
        return solved(lx.DiagonalLinearOperator(2 + f(x))).value.sum()

    return jax.vmap(jax.value_and_grad(solution))(jnp.stack([X, 2 * X]))
