"""JAX takes the place of a batch axis from the value, and the numbers from the rules.

If the two differ, JAX transposes the result without a word: here all axes have the same
size. So each kind of Function is tried with batch axes in all places. JAX asks for
the value first (under jit, in a loop), and for the rules later.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests.build import function, in_style, keep, rules_of

N = 2
X = jnp.float32(np.random.default_rng(0).normal(size=(N, N, N)))
KINDS = ("backward", "jvp", "both", "derived")


def values(x, k):
    """The third one ignores the arguments that may be batched."""
    return 1.5 * x + k, x.T * k, jnp.float32([[1, 2], [3, 4]])


def other_values(x, k):
    """Compute the same by operations that leave a batch axis elsewhere."""
    y, z, w = values(x.T, k)
    return y.T, z.T, w


def rules(kind):
    def backward(ctx, g, h, _):
        (k,) = ctx.saved_tensors
        return 1.5 * g + h.T * k, None

    def jvp(ctx, t, _):
        (k,) = ctx.saved_tensors
        return 1.5 * t, t.T * k, jnp.zeros((N, N), jnp.float32)

    return rules_of(kind, backward, jvp)


def saving_k(style):
    return in_style(style, values, lambda ctx, inputs, _: keep(ctx, inputs[1]))


def combined(kind):
    return function(**saving_k("combined"), **rules(kind)).apply


def saving(kind):
    """Saves an intermediate, too, so that forward keeps its own derivative."""

    def forward(ctx, x, k):
        keep(ctx, 1 * k)
        return values(x, k)

    return function(forward=forward, **rules(kind)).apply


def separate(kind, **others):
    return function(**saving_k("separate"), **rules(kind), **others).apply


def asking(kind):
    """Takes other operations in a derivative."""

    def forward(ctx, x, k):
        keep(ctx, k)
        return (other_values if any(ctx.needs_input_grad) else values)(x, k)

    return function(forward=forward, **rules(kind)).apply


def with_vmap(kind):
    def vmap(info, in_dims, x, k):
        found = jax.vmap(values, in_dims, axis_size=info.batch_size)(x, k)
        return found, (0, 0, 0)

    return separate(kind, vmap=vmap)


def decorated(kind, computed=None):
    """A decorated function; its rules may compute the value by `computed`."""
    f = jaxfn.custom_function(values, generate_jvp_rule=kind == "derived")
    if kind != "jvp":
        f.defvjp(
            lambda x, k: ((computed or values)(x, k), k),
            lambda k, g: (1.5 * g[0] + g[1].T * k, jnp.zeros_like(k)),
        )
    if kind in ("jvp", "both"):
        f.defjvp(
            lambda p, t: (
                (computed or f)(*p),
                (1.5 * t[0], t[0].T * p[1], jnp.zeros((N, N), jnp.float32)),
            )
        )
    return f


def other_fwd(kind):
    return decorated(kind, other_values)


STYLES = {
    f.__name__: f
    for f in (
        combined,
        saving,
        separate,
        asking,
        with_vmap,
        decorated,
        other_fwd,
    )
}
PLACES = [*itertools.product(range(3), range(3))]
"""Axes of `x` and of the outputs, of the inner vmap."""


def plain(x, k):
    return values(x, jax.lax.stop_gradient(k))


def nested(f, into, out):
    """Two vmaps, of which the inner one maps over an axis that was not in front."""

    def inner(x, k):
        return jax.vmap(f, (min(into, 1), None), min(out, 1))(x, k)

    def outer(x):
        stacked = jnp.stack([x, 0.5 * x], into)
        return jax.vmap(inner, (into, None), out)(stacked, jnp.float32(3))

    def scanned(x):
        return jax.lax.map(lambda s: outer(x * s), jnp.float32([1, 0.5]), batch_size=2)

    def of_jit(x):
        return jax.vmap(jax.jit(f), (into, None), out)(x[0], jnp.float32(3))

    return (outer, scanned, of_jit) if max(into, out) < 2 else (outer, scanned)


def derivatives(f, forward):
    """What JAX computes of a jitted function with `f` in it."""
    f = jax.jit(f)

    def loss(x):
        outs = jax.tree.leaves(f(x))
        total = jnp.zeros(())
        for i, y in enumerate(outs):
            weights = jnp.cos(jnp.arange(y.size) + i).reshape(y.shape)
            total += (weights * (y + 0.1 * y * y)).sum()
        return total

    found = [f(X), *jax.value_and_grad(loss)(X), *jax.vjp(f, X)[:1]]
    if forward:
        found += [jax.jvp(f, (X,), (jnp.cos(X),)), jax.linearize(f, X)[1](jnp.sin(X))]
    return jax.tree.leaves(found)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", STYLES)
def test_axes_are_where_jax_expects_them(style, kind, place):
    ours = nested(STYLES[style](kind), *place)
    for f, expected in zip(ours, nested(plain, *place), strict=True):
        forward = kind != "backward"
        got, want = derivatives(f, forward), derivatives(expected, forward)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_axes_of_saved_arrays(place):
    """One jitted call, differentiated by one argument and by the other at once."""

    def forward(ctx, x, k):
        by_x = ctx.needs_input_grad[0]
        ctx.save_for_backward(k, x * 2.0 if by_x else (2.0 * x.T).T)
        return x * x * k

    def backward(ctx, g):
        k, twice = ctx.saved_tensors
        return g * k * twice, (g * twice * twice / 4).sum()

    f = function(forward=forward, backward=backward).apply

    def pulled(f):
        into, out = place
        mapped = jax.jit(jax.vmap(jax.jit(f), (into, None), out))

        def run(x, k, g):
            _, by_x = jax.vjp(lambda x: mapped(x, k), x)
            _, by_k = jax.vjp(lambda k: mapped(x, k), k)
            return by_x(g), by_k(g), by_x(2 * g)

        return jax.tree.leaves(jax.jit(run)(X, jnp.float32(3), jnp.cos(X)))

    for got, want in zip(pulled(f), pulled(lambda x, k: x * x * k), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
