"""Second derivatives of a Function whose backward solves a linear system."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.sparse.linalg import cg, gmres

from tests.build import function, in_style, keep

D = jnp.float32([1, 2, 3])
B = jnp.float32([1, -1, 0.5])
T = jnp.float32([0.3, -1, 2])


def matrix(d):
    return jnp.diag(d) + 0.1


def times(d):
    return lambda v: matrix(d) @ v


def direct(d):
    return lambda _, b: jnp.linalg.solve(matrix(d), b)


def stepwise(start):
    """Solve by steps of constant size, from what `start` makes of the gradient."""

    def solve(d, g):
        def step(u, _):
            return u - 0.2 * (matrix(d) @ u - g), None

        return lax.scan(step, start(g), None, length=60)[0]

    return solve


def with_more(d, more):
    """Arguments of a solver that returns something more, which `more` makes."""
    solve = lambda mv, b: (direct(d)(mv, b), more(b))  # noqa: E731
    return {"solve": solve, "transpose_solve": solve, "has_aux": True}


SOLVES = {
    "steps from zero": stepwise(lambda g: jnp.zeros(3)),
    "steps from zeros_like": stepwise(jnp.zeros_like),
    "steps from the gradient": stepwise(lambda g: g),
    "cg": lambda d, g: cg(times(d), g)[0],
    "cg from ones": lambda d, g: cg(times(d), g, x0=jnp.ones(3))[0],
    "cg with M": lambda d, g: cg(times(d), g, M=lambda v: v / d)[0],
    "symmetric": lambda d, g: lax.custom_linear_solve(
        times(d), g, direct(d), symmetric=True
    ),
    "transpose_solve": lambda d, g: lax.custom_linear_solve(
        times(d), g, direct(d), direct(d)
    ),
    "auxiliary result": lambda d, g: lax.custom_linear_solve(
        times(d), g, **with_more(d, lambda b: 1)
    )[0],
    "solve": lambda d, g: jnp.linalg.solve(matrix(d), g),
    "cho_solve": lambda d, g: jax.scipy.linalg.cho_solve(
        jax.scipy.linalg.cho_factor(matrix(d)), g
    ),
    "lu_solve": lambda d, g: jax.scipy.linalg.lu_solve(
        jax.scipy.linalg.lu_factor(matrix(d)), g
    ),
    # A scatter that sets and a sort have no transpose in JAX, but a derivative.
    "solve in set": lambda d, g: (
        jnp.zeros(3).at[jnp.arange(3)].set(jnp.linalg.solve(matrix(d), g))
    ),
    "sort by others": lambda d, g: lax.sort(
        (jnp.array([2, 0, 1]), direct(d)(None, g)[jnp.array([2, 0, 1])]), num_keys=1
    )[1],
    "set in scan": lambda d, g: (
        lax.map(
            lambda v: jnp.zeros(3).at[jnp.arange(3)].set(d * v),
            direct(d)(None, g)[None],
        )[0]
        / d
    ),
    "triangular": lambda d, g: jax.scipy.linalg.solve_triangular(
        jnp.linalg.cholesky(matrix(d)),
        jax.scipy.linalg.solve_triangular(
            jnp.linalg.cholesky(matrix(d)), g, lower=True
        ),
        lower=True,
        trans="T",
    ),
    "cg in jit": lambda d, g: jax.jit(lambda g: cg(times(d), g)[0])(g),
    "cg in scan": lambda d, g: lax.scan(
        lambda c, v: (c, cg(times(d), v)[0]), 0.0, g[None]
    )[1][0],
    "cg in map": lambda d, g: lax.map(lambda v: cg(times(d), v)[0], g[None])[0],
    "cg in vmap": lambda d, g: jax.vmap(lambda v: cg(times(d), v)[0])(g[None])[0],
    "cg in cond": lambda d, g: lax.cond(
        d[0] > 0, lambda g: cg(times(d), g)[0], lambda g: g, g
    ),
}


def solving(solve, **flags):
    """x = (diag(d) + 0.1)^-1 b, with the gradients that `solve` finds."""

    def backward(ctx, g):
        d, x = ctx.saved_tensors
        u = solve(d, g)
        return -u * x, u

    save = lambda ctx, inputs, x: keep(ctx, inputs[0], x)  # noqa: E731
    rules = in_style("combined", plain, save)
    return function("Solve", backward=backward, **rules, **flags).apply


def energy(f):
    return lambda d, b=B: (f(d, b) ** 2).sum()


def plain(d, b):
    return jnp.linalg.solve(matrix(d), b)


HESSIAN = jax.jit(jax.hessian(energy(plain)))(D)


@pytest.mark.parametrize("name", SOLVES)
def test_forward_over_reverse_of_a_function_whose_backward_solves(name):
    f = solving(SOLVES[name])
    got = jax.jit(lambda d: jax.jvp(jax.grad(energy(f)), (d,), (T,))[1])(D)
    np.testing.assert_allclose(got, HESSIAN @ T, rtol=1e-3)


AROUND = {
    "eager": lambda h: h,
    "vmap": lambda h: lambda d: jax.jit(jax.vmap(h))(d[None])[0],
    "scan": lambda h: lambda d: lax.scan(lambda c, d: (c, h(d)), 0, d[None])[1][0],
    "of jit": jax.jit,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.full
def test_under_other_transformations(around):
    f = solving(SOLVES["cg"])
    if around == "of jit":
        f = jax.jit(f)
    got = AROUND[around](jax.hessian(energy(f)))(D)
    np.testing.assert_allclose(got, HESSIAN, rtol=1e-3, atol=1e-4)


def test_derived_forward_mode():
    f = solving(SOLVES["cg"], generate_jvp_rule=True)
    got = jax.jit(lambda d, b: jax.jvp(f, (d, b), (T, T))[1])(D, B)
    expected = jax.jvp(plain, (D, B), (T, T))[1]
    np.testing.assert_allclose(got, expected, rtol=1e-3)
    # of the derived jvp, with respect to what was saved
    got = jax.jit(jax.jacfwd(jax.jacfwd(energy(f))))(D)
    np.testing.assert_allclose(got, HESSIAN, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_tolerance_is_relative_to_the_right_hand_side(scale):
    f = solving(SOLVES["cg"], generate_jvp_rule=True)
    got = jax.jvp(lambda b: f(D, b), (B,), (scale * B,))[1]
    np.testing.assert_allclose(got / scale, plain(D, B), rtol=1e-4)


def test_a_wrong_solve_shows():
    f = solving(lambda d, g: 2 * cg(times(d), g)[0], generate_jvp_rule=True)
    got = jax.jvp(lambda b: f(D, b), (B,), (B,))[1]
    np.testing.assert_allclose(got, 2 * plain(D, B), rtol=1e-4)


def solver(d, g, **options):
    return cg(times(d), g, **options)[0]


REFUSED = {
    "solve of a constant": lambda d, g: solver(d, jnp.ones(3)),
    "round": lambda d, g: jnp.round(solver(d, g)),
    "sign": lambda d, g: jnp.sign(solver(d, g)),
    "sign in scan": lambda d, g: lax.map(
        lambda v: jnp.sign(gmres(times(d), v)[0]), g[None]
    )[0],
    "sign of b": lambda d, g: solver(d, jnp.sign(g)),
    "integers": lambda d, g: solver(d, g).astype(int).astype(g.dtype),
    "set, rounded": lambda d, g: jnp.zeros(3).at[:].set(jnp.round(solver(d, g))),
    "auxiliary result": lambda d, g: lax.custom_linear_solve(
        times(d), g, **with_more(d, jnp.cos)
    )[1],
    "no transpose_solve": lambda d, g: lax.custom_linear_solve(times(d), g, direct(d)),
    "ranks": lambda d, g: 1.0 * jnp.argsort(solver(d, g)),
    "while_loop": lambda d, g: iterated(d, g),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_linear_or_has_no_transpose_is_refused(name):
    f = solving(REFUSED[name])
    with pytest.raises(ValueError, match="`Solve.backward` can't be") as caught:
        jax.jit(lambda d: jax.jvp(jax.grad(energy(f)), (d,), (d,)))(D)
    text = str(caught.value)
    assert "generate_jvp_rule" not in text
    assert "issue" not in f"{text}{caught.value.__cause__}"
    assert "Define jvp: `jvp(ctx, *tangents)` of `Solve`" in text
    f = solving(REFUSED[name], generate_jvp_rule=True)
    with pytest.raises(ValueError, match="to get a jvp .generate_jvp_rule."):
        jax.jit(lambda d: jax.jvp(f, (d, B), (d, d))).lower(D)


SAID = {
    "auxiliary result": "a gradient that does not depend on them",
    "solve of a constant": "a gradient that does not depend on them",
    "integers": "a gradient that does not depend on them",
    "no transpose_solve": "transpose_solve required",
    "while_loop": r"a while loop over them \(lax.while_loop, .* JAX has no transpose",
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", SAID)
def test_the_message_says_what_it_was(name):
    with pytest.raises(
        ValueError, match=rf"(?s)`Solve\.backward`.* got .*{SAID[name]}"
    ):
        jax.jvp(jax.grad(energy(solving(REFUSED[name]))), (D,), (D,))


def iterated(d, g):
    """The solution by a while loop, of which JAX has no transpose."""
    inverse = jnp.linalg.inv(matrix(d))
    step = lambda s: (s[0] + 1, s[1] + inverse @ (g - matrix(d) @ s[1]))  # noqa: E731
    return lax.while_loop(lambda s: s[0] < 3, step, (0, 0 * g))[1]


def test_a_root_in_backward_has_a_transpose():
    """JAX has none of it, but of its derivative."""

    def root(d, g):
        return lax.custom_root(
            lambda v: matrix(d) @ v - g,
            0 * g,
            lambda f, guess: iterated(d, g),
            lambda f, y: jnp.linalg.solve(jax.jacobian(f)(y), y),
        )

    got = jax.hessian(energy(solving(root)))(D)
    np.testing.assert_allclose(got, HESSIAN, rtol=1e-3, atol=1e-4)


def test_the_jvp_that_the_message_asks_for():
    def jvp(ctx, t, s):
        d, x = ctx.saved_tensors
        return iterated(d, s - t * x)

    got = jax.jit(jax.hessian(energy(solving(iterated, jvp=jvp))))(D)
    np.testing.assert_allclose(got, HESSIAN, rtol=1e-3, atol=1e-4)
