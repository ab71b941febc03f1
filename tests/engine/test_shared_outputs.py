"""Random Functions under vmap, beside a loop over their examples.

An output that is not batched may have another derivative in each example, by what the
rules read (an argument, an output that was saved) or by where they send a cotangent.
So here all of that is drawn: which arguments each output is computed from, which of the
pairs of argument and output have a derivative, and by which factor. The derivatives
have nothing to do with the value, so a wrong sum or a lost rule shows in the numbers.
"""

import functools
import operator
import random

import jax
import jax.numpy as jnp
import numpy as np

from tests.build import function, in_style, keep, rules_of
from tests.sizes import parametrize

SIZES = (3, 2)
"""Of the outer axis and the inner one."""

# Of a normal run: these see if an output that ignores what is mapped is not batched,
# which is seen by 12 of the first 30, or if its batch axis is not in front, by 3.
NORMAL, FULL = (12, 22, 28), 80


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "seed", NORMAL, full=lambda times: range(FULL * times))


def test_a_vmap_gives_what_a_loop_gives(seed):
    draw = random.Random(seed)
    f, n_in, kinds, has_jvp = drawn(draw)
    f = draw.choice([lambda f: f, jax.jit, jax.checkpoint, looped])(f)
    # Each vmap maps over some of the arguments, and the outer one not over the same.
    # The innermost comes first here.
    sizes = SIZES[: draw.choice([1, 2])][::-1]
    axes = [drawn_axes(draw, n_in) for _ in sizes]
    out_axes = [[draw.choice([0, 0, None]) for _ in kinds] for _ in sizes]
    compiled = draw.choice([None, *range(len(sizes))])  # before which vmap
    arrays = []
    for i in range(n_in):
        mapped_sizes = zip(sizes, axes, strict=True)
        shape = [n for n, places in mapped_sizes if places[i] == 0][::-1]
        array = draw.choice([1.0, 0.5]) * (1 + jnp.arange(np.prod(shape, dtype=int)))
        arrays.append(array.reshape(shape))

    def mapped(*arrays):
        g = f
        for level, (inner, out) in enumerate(zip(axes, out_axes, strict=True)):
            g = jax.vmap(jax.jit(g) if level == compiled else g, inner, tuple(out))
        return g(*arrays)

    def loop(*arrays):
        g = f
        for size, inner, out in zip(sizes, axes, out_axes, strict=True):
            g = each(g, size, inner, out)
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


VALUES = {
    "sum": lambda xs, numbers: sum(map(operator.mul, numbers, xs)),
    "product": lambda xs, numbers: functools.reduce(operator.mul, xs),
    "one of them": lambda xs, numbers: xs[0],
    "none of them": lambda xs, numbers: jnp.ones(()),
}
"""What an output is, of some of the arguments."""

CHOICES = {
    "all": lambda g, saved: g,
    "select": lambda g, saved: jax.lax.select(saved > 1.5, g, jnp.zeros_like(g)),
    "where": lambda g, saved: jnp.where(saved > 2, g, 0),
}
"""What of a (co)tangent counts, by a value that was saved."""


def drawn(draw):
    """A Function, its number of arguments, the kinds of its outputs, has it a jvp?"""
    n_in, n_out = draw.choice([2, 3]), draw.choice([1, 2, 2, 3])
    kinds = [draw.choice(["float", "float", "marked", "integer"]) for _ in range(n_out)]
    kinds[0] = "float"
    terms = [drawn_term(draw, n_in, kind) for kind in kinds]
    factors = [[drawn_factor(draw, n_in, n_out) for _ in kinds] for _ in range(n_in)]
    behind = draw.choice([None, None, None, *BEHIND])  # what holds a jaxpr

    def value(*xs):
        outs = [VALUES[how]([xs[j] for j in js], numbers) for how, js, numbers in terms]
        outs = BEHIND[behind](outs) if behind else outs
        pairs = zip(outs, kinds, strict=True)
        return tuple([y.astype(int) if kind == "integer" else y for y, kind in pairs])

    def save(ctx, xs, outs):
        marked = [y for y, kind in zip(outs, kinds, strict=True) if kind == "marked"]
        ctx.mark_non_differentiable(*marked)
        keep(ctx, *xs, *outs)

    def along(ctx, pairs):
        saved = ctx.saved_tensors
        terms = [
            CHOICES[choice](x, saved[by]) * number * product(saved[i] for i in places)
            for x, (number, places, choice, by) in pairs
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

    engine = draw.choice(["backward", "backward", "jvp", "both", "derived"])
    rules = rules_of(engine, backward, jvp)
    combined = function(**in_style("combined", value, save), **rules).apply
    separate = in_style("separate", value, save) | rules
    own = batched(value, terms, draw.random() < 0.5)
    f = draw.choice(
        [combined, function(**separate).apply, function(**separate, vmap=own).apply]
    )
    if draw.random() < 0.3:  # one in another's forward
        f = function(**in_style("combined", f, save), **rules).apply
    return f, n_in, kinds, engine != "backward"


def product(xs):
    return functools.reduce(operator.mul, xs, 1)


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
        for y, (_, js, _) in zip(value(*xs), terms, strict=True):
            differs = any(in_dims[j] is not None for j in js)
            spread = not differs and not shares
            found.append(jnp.broadcast_to(y, info.batch_size) if spread else y)
            dims.append(0 if differs or spread else None)
        return tuple(found), tuple(dims)

    return vmap


def drawn_term(draw, n_in, kind):
    """What an output is of which arguments, and numbers to multiply these with."""
    how = draw.choice(["sum", "sum", "product", *VALUES])
    if kind != "float" and how == "one of them":
        how = "sum"  # an argument has a derivative
    n = {"one of them": 1, "none of them": 0}.get(how, draw.randint(1, n_in))
    return how, draw.sample(range(n_in), n), draw.choices([0.5, 1, 2, 3], k=n)


def drawn_factor(draw, n_in, n_out):
    """A number, which of the saved values it is multiplied by, and what counts."""
    saved = range(n_in + n_out)
    places = draw.sample(saved, draw.choice([0, 0, 1, 1, 2]))
    choice = draw.choice(["all", "all", *CHOICES])
    return draw.choice([0, 2, 3, 5]), places, choice, draw.choice(saved)


def drawn_axes(draw, n):
    axes = [draw.choice([0, None]) for _ in range(n)]
    return tuple(axes) if 0 in axes else (0, *axes[1:])


def looped(f):
    """The function in a scan of one step."""

    def run(*xs):
        return jax.lax.scan(lambda _, __: (None, f(*xs)), None, None, length=1)[1]

    return lambda *xs: tuple([y[0] for y in run(*xs)])


def each(f, size, axes, out_axes):
    """The function in a loop over its examples."""

    def run(*xs):
        rows = [
            f(*[x[b] if axis == 0 else x for x, axis in zip(xs, axes, strict=True)])
            for b in range(size)
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
