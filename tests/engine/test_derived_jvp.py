"""`generate_jvp_rule`: forward mode from backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from tests.build import function, in_style, keep, saving

S = jnp.float32(3)
X = jnp.float32([1, 2, 3])


def derived(forward, pull):
    """A Function of one array whose backward is `pull(x, g)`."""
    return function(
        "Derived",
        **in_style("combined", forward, saving()),
        backward=lambda ctx, g: (pull(ctx.saved_tensors[0], g),),
        generate_jvp_rule=True,
    ).apply


def rounded(g):
    return g.astype(jnp.int32).astype(g.dtype)


def parts(z):
    return z.real, z.imag


wraps = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
INDEX = jnp.array([2, 0])

LINEAR = {
    "scale": (lambda x: 2 * x, lambda x, g: 2 * g),
    "nonlinear in x": (jnp.sin, lambda x, g: g * jnp.cos(x)),
    "negative": (lambda x: -x, lambda x, g: -g),
    "sum": (jnp.sum, lambda x, g: jnp.broadcast_to(g, x.shape)),
    "broadcast sum": (lambda x: x + jnp.zeros((2, 1)), lambda x, g: g),  # summed
    "gather": (lambda x: x[INDEX], lambda x, g: jnp.zeros_like(x).at[INDEX].add(g)),
    "set": (
        lambda x: x[INDEX],
        lambda x, g: jnp.zeros(3).at[INDEX].set(g, unique_indices=True),
    ),
    "where": (
        lambda x: jnp.where(x > 1, x, 0),
        lambda x, g: jnp.where(x > 1, g, jnp.zeros_like(g)),
    ),
    "pad": (lambda x: x[1:], lambda x, g: jnp.pad(g, (1, 0))),
    "concatenate": (lambda x: x[1:], lambda x, g: jnp.concatenate([jnp.zeros(1), g])),
    "update": (
        lambda x: x[:1],
        lambda x, g: lax.dynamic_update_slice(jnp.zeros(3), g, (0,)),
    ),
    "matmul": (
        lambda x: jnp.arange(9.0).reshape(3, 3) @ x,
        lambda x, g: jnp.arange(9.0).reshape(3, 3).T @ g,
    ),
    "cumsum": (jnp.cumsum, lambda x, g: jnp.cumsum(g[::-1])[::-1]),
    "outer": (lambda x: x[:, None] * x, lambda x, g: (g + g.T) @ x),
    "scan": (
        lambda x: jnp.cumsum(x),
        lambda x, g: lax.scan(lambda c, v: (c + v, c + v), 0.0, g, reverse=True)[1],
    ),
    "scan that also carries x": (
        lambda x: 2 * x**4,
        lambda x, g: lax.scan(
            lambda c, _: ((2 * c[0] + 0 * jnp.sin(c[0]), c[0] * c[1]), None),
            (x, g),
            length=3,
        )[0][1],
    ),
    "cond": (
        lambda x: 2 * x,
        lambda x, g: lax.cond(x[0] > 0, lambda g: 2 * g, lambda g: 3 * g, g),
    ),
    "jit": (lambda x: 2 * x, lambda x, g: jax.jit(lambda g: 2 * g + 0)(g)),
    "zero": (lambda x: 0 * x, lambda x, g: jnp.zeros_like(x)),
    "none": (lambda x: 0 * x, lambda x, g: None),
    "constant times": (lambda x: 2 * x, lambda x, g: (1 + 1.0) * g + 0.0 * g),
    "checkpoint": (lambda x: 2 * x, lambda x, g: jax.checkpoint(lambda g: 2 * g)(g)),
    "multiplied in a place": (
        lambda x: x.at[0].multiply(3.0),
        lambda x, g: g.at[0].multiply(3.0),
    ),
    "zeros, multiplied in a place": (
        lambda x: 2 * x,
        lambda x, g: 2 * g + jnp.zeros(3).at[0].multiply(g[0]),
    ),
    "taken": (
        lambda x: x[jnp.array([2, 0, 1])],
        lambda x, g: jnp.take(g, jnp.array([1, 2, 0])),
    ),
    "filled with zeros": (
        lambda x: x[:2],
        lambda x, g: g.at[jnp.arange(3)].get(mode="fill", fill_value=0),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
@wraps
def test_a_linear_backward_gives_the_jvp(name, wrap):
    forward, pull = LINEAR[name]
    f = derived(forward, pull)
    t = jnp.float32([0.3, -1, 2])
    expected = jax.jvp(forward, (X,), (t,))[1]
    got = wrap(lambda x, t: jax.jvp(f, (x,), (t,))[1])(X, t)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@wraps
def test_what_a_backward_computes_for_a_log_needs_no_transpose(wrap):
    seen = {}

    def pull(x, g):
        seen["norm"] = jnp.sqrt(jnp.vdot(g, g))
        return 2 * g + jnp.float32([0, 1, 2]) * g

    f = derived(lambda x: jnp.float32([2, 3, 4]) * x, pull)
    np.testing.assert_allclose(wrap(jax.jacfwd(f))(X), np.diag([2, 3, 4]))


NONLINEAR = {
    "clip": lambda x, g: jnp.clip(g, -1, 1),
    "square": lambda x, g: g * g,
    "branch on g": lambda x, g: jnp.where(g > 0, g, 2 * g),
    "cond on g": lambda x, g: lax.cond(g.sum() > 0, lambda: g, lambda: 2 * g),
    "normalise": lambda x, g: g / (jnp.sqrt(g @ g + 1) + 1),
    "guard": lambda x, g: jnp.where(jnp.isfinite(g), g, 7.0) * x,
    "nan_to_num": lambda x, g: jnp.nan_to_num(g) * x,
    "cond": lambda x, g: lax.cond(jnp.isnan(g).any(), jnp.sin, lambda g: 3 * g, g),
    "sort": lambda x, g: jnp.sort(g),
}

# With a term that stays when the cotangents are zero.
NONLINEAR |= {
    "constant term": lambda x, g: 2 * g + 1,
    "term of x": lambda x, g: g + x,
    "subtracted": lambda x, g: g - 1,
    "where with a constant": lambda x, g: jnp.where(x > 1, g, 1.0),
    "set on ones": lambda x, g: jnp.ones(3).at[0].set(g[0]),
    "padded with ones": lambda x, g: jnp.pad(g[1:], (1, 0), constant_values=1),
    "concatenated": lambda x, g: jnp.concatenate([jnp.ones(1), g[1:]]),
    "inside jit": lambda x, g: jax.jit(lambda g: g + 1)(g),
    "inside scan": lambda x, g: lax.scan(lambda c, v: (c + 1, v + c), 0.0, g)[1],
    "inside cond": lambda x, g: lax.cond(x[0] > 0, lambda: g + 1, lambda: g),
    "inside checkpoint": lambda x, g: jax.checkpoint(lambda g: g + 1)(g),
}

NONLINEAR |= {
    "stacked": lambda x, g: jnp.stack([g, jnp.ones(3)]).sum(0),
    "put together": lambda x, g: sum(jax.device_put((g, jnp.ones(3)))),
    "behind a barrier": lambda x, g: sum(lax.optimization_barrier((g, jnp.ones(3)))),
    "complex": lambda x, g: sum(parts(lax.complex(g, jnp.ones(3)))),
    "multiplied in a place": lambda x, g: jnp.ones(3).at[0].multiply(g[0]),
    "filled": lambda x, g: g.at[jnp.arange(1, 4)].get(mode="fill", fill_value=1),
    "subtracted in a place": lambda x, g: jnp.ones(3).at[0].subtract(g[0]),
}

CONSTANT = {
    "ones": lambda x, g: jnp.ones_like(x),
    "x": lambda x, g: x,
    "numpy": lambda x, g: np.ones(3, np.float32),
    # For JAX these have no derivative.
    "sign": lambda x, g: jnp.sign(g),
    "rounded": lambda x, g: rounded(g),
    "rounded in jit": lambda x, g: jax.jit(rounded)(g),
    "rounded in scan": lambda x, g: lax.scan(lambda c, y: (c, rounded(y)), 0, g)[1],
    "stopped": lambda x, g: lax.stop_gradient(g) * x,
    "set": lambda x, g: jnp.zeros(3).at[INDEX].set(jnp.round(g[:2])),
    "chosen": lambda x, g: jnp.where(g > 0, jnp.nan, x),
}


@wraps
@pytest.mark.parametrize("name", NONLINEAR)
def test_of_a_backward_that_is_not_linear_the_linear_part_is_transposed(name, wrap):
    pull, t = NONLINEAR[name], jnp.float32([0.3, -1, 2])
    f = derived(lambda x: 2 * x, pull)
    got = wrap(lambda x: jax.jvp(f, (x,), (t,))[1])(X)
    (expected,) = jax.vjp(lambda g: pull(X, g), jnp.zeros(3))[1](t)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    # reverse mode takes any backward
    np.testing.assert_allclose(
        jax.grad(lambda x: (f(x) * X).sum())(X), pull(X, X), rtol=1e-6
    )


@wraps
@pytest.mark.parametrize("name", CONSTANT)
def test_a_gradient_that_does_not_depend_on_the_cotangents_is_refused(name, wrap):
    f = derived(lambda x: 2 * x, CONSTANT[name])
    said = "a gradient that does not depend on them"
    with pytest.raises(ValueError, match=rf"(?s)`Derived.backward` can't be.*{said}"):
        wrap(lambda x: jax.jvp(f, (x,), (x,))[1])(X)
    np.testing.assert_allclose(
        jax.grad(lambda x: (f(x) * X).sum())(X), CONSTANT[name](X, X), rtol=1e-6
    )


def test_so_is_one_gradient_of_two():
    f = function(
        "Derived",
        forward=lambda ctx, x, y: x * y,
        backward=lambda ctx, g: (2 * g, jnp.ones(3)),
        generate_jvp_rule=True,
    ).apply
    with pytest.raises(ValueError, match="a gradient that does not depend on them"):
        jax.jvp(f, (X, X), (X, X))
    assert jax.jvp(lambda x: f(x, X), (X,), (X,))[1].tolist() == (2 * X).tolist()


def test_several_inputs_and_outputs():
    def forward(ctx, a, k, b):
        ctx.save_for_backward(a, b)
        ctx.k = k
        return a * b, jnp.int32(1), {"s": k * a}

    def backward(ctx, g, _, g2):
        a, b = ctx.saved_tensors
        return g * b + ctx.k * g2["s"], None, g * a

    f = function(forward=forward, backward=backward, generate_jvp_rule=True).apply

    def plain(a, b):
        return a * b, {"s": 5 * a}

    def floats(a, b):
        out = f(a, 5, b)
        return out[0], out[2]

    args, dots = (S, S + 1), (S + 2, S + 3)
    got, expected = jax.jvp(floats, args, dots), jax.jvp(plain, args, dots)
    jax.tree.map(np.testing.assert_allclose, got, expected)
    # only one perturbed input
    got = jax.jvp(lambda b: floats(S, b), (S,), (S,))
    expected = jax.jvp(lambda b: plain(S, b), (S,), (S,))
    jax.tree.map(np.testing.assert_allclose, got, expected)


def test_once_differentiable_permits_the_transpose_and_no_derivative():
    f = function(
        **in_style("combined", lambda x: x * x, saving()),
        backward=jaxfn.once_differentiable(lambda ctx, g: 2 * g * ctx.saved_tensors[0]),
        generate_jvp_rule=True,
    ).apply
    one = jnp.float32(1)
    assert jax.jvp(f, (S,), (one,))[1] == 6
    assert jax.grad(f)(S) == 6
    assert jax.jit(jax.vmap(jax.grad(f)))(X).tolist() == [2, 4, 6]
    for second in (
        jax.jacfwd(jax.jacfwd(f)),
        jax.jacfwd(jax.jacrev(f)),
        jax.jacrev(jax.jacfwd(f)),
        jax.jacrev(jax.jacrev(f)),
        jax.jit(jax.jacfwd(jax.jacfwd(f))),
    ):
        with pytest.raises(RuntimeError, match="@once_differentiable"):
            second(S)


@wraps
def test_the_transpose_of_a_backward_that_calls_a_function_is_its_backward(wrap):
    inner = function(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g).apply
    f = derived(lambda x: 2 * x, lambda x, g: inner(g))
    assert jax.grad(f)(S) == 2
    assert wrap(lambda x: jax.jvp(f, (x,), (x,))[1])(S) == 15


@pytest.mark.full
def test_a_backward_that_scatters():
    # JAX has no transpose of a scatter that sets.
    def forward(ctx, x):
        values, places = jax.lax.top_k(x, 2)
        ctx.shape = x.shape
        ctx.save_for_backward(places)
        return values

    def backward(ctx, g):
        (places,) = ctx.saved_tensors
        return jnp.zeros(ctx.shape, g.dtype).at[places].set(3 * g)

    x = jnp.float32([1, 4, 2, 3])
    for extra in ({"generate_jvp_rule": True}, {}):
        f = function(forward=forward, backward=backward, **extra).apply
        hessian = jax.hessian(lambda x, f=f: (f(x) ** 2).sum())
        np.testing.assert_allclose(hessian(x), np.diag([0, 18, 0, 18]))
        np.testing.assert_allclose(jax.jit(jax.vmap(hessian))(x[None])[0], hessian(x))
        np.testing.assert_allclose(
            hessian(x), jax.jacrev(jax.grad(lambda x, f=f: (f(x) ** 2).sum()))(x)
        )
    f = function(forward=forward, backward=backward, generate_jvp_rule=True).apply
    np.testing.assert_allclose(jax.jvp(f, (x,), (x,))[1], [12, 9])


def test_a_backward_may_compute_with_integers():
    def backward(x, g):
        mask = jnp.arange(g.size) % 2 == x.astype(jnp.int32) % 2
        at = jnp.argsort(x)[::-1]
        return jnp.where(mask, g, 0).at[at].add(g[at])

    f = derived(lambda x: x, backward)
    _, got = jax.jvp(f, (X,), (X,))
    (expected,) = jax.linear_transpose(lambda g: backward(X, g), X)(X)
    np.testing.assert_allclose(got, expected)


def test_forward_over_reverse_with_backward_only():
    # jax.hessian works although forward mode itself is refused: the tangent of the
    # value that the reverse pass computes is backward transposed.
    f = function(
        **in_style("combined", jnp.exp, lambda ctx, _, out: ctx.save_for_backward(out)),
        backward=lambda ctx, g: 2 * g * ctx.saved_tensors[0],
    ).apply
    got = jax.hessian(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(got, np.diag(4 * np.exp(X)), rtol=1e-6)
    _, dot = jax.jvp(jax.value_and_grad(f), (S,), (jnp.float32(1),))
    np.testing.assert_allclose(dot[0], 2 * np.exp(3), rtol=1e-6)


def test_forward_over_reverse_with_a_nonlinear_backward():
    # The tangent of the output is that of f itself, although its cotangent is clipped.
    f = function(
        "Clip", forward=lambda ctx, x: 1 * x, backward=lambda ctx, g: jnp.clip(g, -1, 1)
    ).apply
    square = lambda x: f(x) ** 2  # noqa: E731
    for x, expected in [(0.1, 1 * 2), (3.0, 0)]:
        assert jax.jacfwd(jax.grad(square))(jnp.float32(x)) == expected
        assert jax.jit(jax.hessian(square))(jnp.float32(x)) == expected


def test_a_literal_of_python_in_backward():
    f = derived(lambda x: 2 * x, lambda x, g: jnp.where((x > 0) & True, 2 * g, g))
    assert jax.jvp(f, (S,), (S,))[1] == 6


def test_a_backward_that_applies_a_function_to_what_was_saved():
    """Its own jaxpr joins arrays without elements, which are zero like any."""
    pull = function(
        "Pull",
        **in_style(
            "combined",
            lambda x, g, square: g * square,
            lambda ctx, inputs, _: keep(ctx, *inputs[1:]),
        ),
        backward=lambda ctx, ct: (None, *[ct * y for y in ctx.saved_tensors[::-1]]),
        jvp=lambda ctx, _, dg, ds: (
            dg * ctx.saved_tensors[1] + ds * ctx.saved_tensors[0]
        ),
    ).apply

    f = function(
        "Cube",
        **in_style(
            "combined",
            lambda x: x**3,
            lambda ctx, inputs, _: ctx.save_for_backward(*inputs, inputs[0] ** 2),
        ),
        backward=lambda ctx, g: 7 * pull(ctx.saved_tensors[0], g, ctx.saved_tensors[1]),
        generate_jvp_rule=True,
    ).apply
    assert jnp.allclose(jax.jvp(f, (X,), (jnp.ones(3),))[1], 7 * X**2)


@pytest.mark.parametrize("name", CONSTANT)
def test_under_jit_no_transpose_is_asked_for_that_nobody_uses(name):
    f = function(
        "Derived",
        forward=lambda ctx, x: 2 * x,
        backward=lambda ctx, g: CONSTANT[name](X, g),
    ).apply
    hessian = jax.hessian(lambda x: (X * f(x)).sum())
    assert jax.jit(hessian)(X).tolist() == np.zeros((3, 3)).tolist()
    with pytest.raises(ValueError, match="can't be transposed"):
        hessian(X)
