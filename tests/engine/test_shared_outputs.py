"""Random Functions under vmap, beside a loop over their examples.

An output that is not batched may have another derivative in each example, by what the
rules read (an argument, an output that was saved) or by where they send a cotangent.
So here all of that is drawn: which arguments each output is computed from, which of the
pairs of argument and output have a derivative, and by which factor. The derivatives
have nothing to do with the value, so a wrong sum or a lost rule shows in the numbers.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np

from tests.build import function
from tests.sizes import parametrize

SIZE = 3


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "seed", normal=range(2), full=lambda times: range(30 * times))


def test_a_vmap_gives_what_a_loop_gives(seed):
    draw = random.Random(seed)
    f, n_in, kinds, has_jvp = drawn(draw)
    f = draw.choice([lambda f: f, jax.jit, jax.checkpoint, looped])(f)
    # Each vmap maps over some of the arguments, and the outer one not over the same.
    levels = draw.choice([1, 1, 2])
    axes = [drawn_axes(draw, n_in) for _ in range(levels)]
    out_axes = [[draw.choice([0, 0, None]) for _ in kinds] for _ in range(levels)]
    arrays = []
    for i in range(n_in):
        shape = [SIZE for inner in axes[::-1] if inner[i] == 0]
        arrays.append(draw.choice([1.0, 0.5]) * (1 + jnp.arange(SIZE ** len(shape))))
        arrays[i] = arrays[i].reshape(shape)

    def mapped(*arrays):
        g = f
        for inner, out in zip(axes, out_axes, strict=True):
            g = jax.vmap(g, inner, tuple(out))
        return g(*arrays)

    def loop(*arrays):
        g = f
        for inner, out in zip(axes, out_axes, strict=True):
            g = each(g, inner, out)
        return g(*arrays)

    transform = draw.choice(transforms(n_in, has_jvp))
    try:
        found = transform(mapped)(*arrays)
    except ValueError as error:
        # An output whose derivative differs is batched, and can't be taken out as one.
        if "axis spec None" not in str(error):
            raise
        for out in out_axes:
            out[:] = [0] * len(kinds)
        found = transform(mapped)(*arrays)
    expected = transform(loop)(*arrays)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if a.dtype != jax.dtypes.float0:
            # Far above rounding, where terms may cancel, and far below any factor.
            size = np.abs(b).max(initial=1)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * size)


def drawn(draw):
    """A Function, its number of arguments, the kinds of its outputs, has it a jvp?"""
    n_in, n_out = draw.choice([2, 3]), draw.choice([1, 2, 2, 3])
    kinds = [draw.choice(["float", "float", "marked", "integer"]) for _ in range(n_out)]
    kinds[0] = "float"
    terms = [
        [(j, draw.choice([0.5, 1, 2, 3])) for j in draw.sample(range(n_in), k)]
        for k in [draw.randint(1, n_in) for _ in range(n_out)]
    ]
    factors = [[drawn_factor(draw, n_in, n_out) for _ in kinds] for _ in range(n_in)]
    behind = draw.choice([None, None, None, *BEHIND])  # what holds a jaxpr

    def value(*xs):
        outs = [sum(a * xs[j] for j, a in term) for term in terms]
        outs = BEHIND[behind](outs) if behind else outs
        pairs = zip(outs, kinds, strict=True)
        return tuple([y.astype(int) if kind == "integer" else y for y, kind in pairs])

    def keep(ctx, xs, outs):
        marked = [y for y, kind in zip(outs, kinds, strict=True) if kind == "marked"]
        ctx.mark_non_differentiable(*marked)
        ctx.save_for_backward(*xs, *outs)
        ctx.save_for_forward(*xs, *outs)

    def along(ctx, pairs):
        saved = ctx.saved_tensors
        terms = [
            x * number * (1 if place is None else saved[place])
            for x, (number, place) in pairs
            if number
        ]
        return sum(terms) if terms else None

    moving = [k for k, kind in enumerate(kinds) if kind == "float"]

    def backward(ctx, *cts):
        return tuple(
            [along(ctx, [(cts[k], row[k]) for k in moving]) for row in factors]
        )

    def jvp(ctx, *ts):
        pairs = list(zip(ts, factors, strict=True))
        return tuple(
            [
                along(ctx, [(t, row[k]) for t, row in pairs]) if k in moving else None
                for k in range(n_out)
            ]
        )

    engine = draw.choice(["backward", "jvp", "both", "derived"])
    rules = {"generate_jvp_rule": engine == "derived"}
    if engine != "jvp":
        rules["backward"] = backward
    if engine in ("jvp", "both"):
        rules["jvp"] = jvp
    combined = function(forward=in_one(value, keep), **rules).apply
    rules["setup_context"] = keep
    separate = function(forward=value, **rules).apply
    own = batched(value, terms, draw.random() < 0.5)
    with_rule = function(forward=value, vmap=own, **rules).apply
    f = draw.choice([combined, separate, with_rule])
    del rules["setup_context"]
    if draw.random() < 0.3:
        f = function(forward=in_one(f, keep), **rules).apply  # one in another's forward
    return f, n_in, kinds, engine != "backward"


def _twice(outs):
    """Compute them in a loop that carries all of them, and mixes none."""
    return jax.lax.fori_loop(0, 2, lambda _, ys: [2 * y for y in ys], outs)


def _until(outs):
    return jax.lax.while_loop(
        lambda c: c[1] < 1, lambda c: ([-y for y in c[0]], c[1] + 1), (outs, 0)
    )[0]


def _chosen(outs):
    return jax.lax.cond(True, lambda ys: [3 * y for y in ys], list, outs)


BEHIND = {
    "a call": lambda outs: [jax.jit(jnp.negative)(y) for y in outs],
    "a call of all": jax.jit(lambda outs: [2 * y for y in outs]),
    "a scan": _twice,
    "a while": _until,
    "a branch": _chosen,
    "a checkpoint": jax.checkpoint(lambda outs: [-y for y in outs]),
}


def batched(value, terms, shares):
    """A vmap staticmethod, which may give one value for all examples."""

    def vmap(info, in_dims, *xs):
        found, dims = [], []
        for y, term in zip(value(*xs), terms, strict=True):
            differs = any(in_dims[j] is not None for j, _ in term)
            spread = not differs and not shares
            found.append(jnp.broadcast_to(y, info.batch_size) if spread else y)
            dims.append(0 if differs or spread else None)
        return tuple(found), tuple(dims)

    return vmap


def drawn_factor(draw, n_in, n_out):
    """A number, and which of the saved values it is multiplied by."""
    number = draw.choice([0, 2, 3, 5])
    return number, draw.choice([None, draw.randrange(n_in + n_out)])


def drawn_axes(draw, n):
    axes = [draw.choice([0, None]) for _ in range(n)]
    return tuple(axes) if 0 in axes else (0, *axes[1:])


def in_one(value, keep):
    """Forward in the combined style."""

    def forward(ctx, *xs):
        outs = value(*xs)
        keep(ctx, xs, outs)
        return outs

    return forward


def looped(f):
    """The function in a scan of one step."""

    def run(*xs):
        return jax.lax.scan(lambda _, __: (None, f(*xs)), None, None, length=1)[1]

    return lambda *xs: tuple([y[0] for y in run(*xs)])


def each(f, axes, out_axes):
    """The function in a loop over its examples."""

    def run(*xs):
        rows = [
            f(*[x[b] if axis == 0 else x for x, axis in zip(xs, axes, strict=True)])
            for b in range(SIZE)
        ]
        columns = list(zip(*rows, strict=True))
        pairs = zip(columns, out_axes, strict=True)
        return tuple([jnp.stack(c) if axis == 0 else c[0] for c, axis in pairs])

    return run


def transforms(n, has_jvp):
    """Transformations of a function of `n` arguments and several outputs."""
    every = tuple(range(n))

    def loss(f):
        def run(*xs):
            outs = [y for y in f(*xs) if jnp.issubdtype(y.dtype, jnp.floating)]
            weights = [(1 + jnp.arange(y.size).reshape(y.shape)) ** 2 for y in outs]
            pairs = zip(outs, weights, strict=True)
            return sum(((y + 0.1 * y * y) * w).sum() for y, w in pairs)

        return run

    def gradient(f):
        return jax.grad(loss(f), every)

    def again(f):
        return jax.grad(lambda *xs: sum((g * g).sum() for g in gradient(f)(*xs)), every)

    def forward(f):
        return lambda *xs: jax.jvp(f, xs, xs)

    def forward_again(f):
        return lambda *xs: jax.jvp(gradient(f), xs, xs)

    found = [
        lambda f: f,
        gradient,
        lambda f: jax.jit(gradient(f)),
        lambda f: jax.grad(jax.jit(loss(f)), every),
        again,
        lambda f: jax.jit(again(f)),
    ]
    if has_jvp:
        found += [forward, lambda f: jax.jit(forward(f)), forward_again]
    return found
