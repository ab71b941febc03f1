"""vmap together with other rules and transformations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.build import saving

from .core import EAGER, expect, raises, row
from .rows_h import doubling, matrix
from .transforms import func


def orders(fw, f, x=None):
    """The gradients of a vector Function, by vmap of grad and by grad of vmap."""
    t, x = func(fw), matrix(fw) if x is None else x
    examples = t.vmap(t.grad(lambda x: f(x).sum()))
    whole = t.grad(lambda x: t.vmap(f)(x).sum())
    return {
        "vmap of grad": fw.attempt(lambda: fw.call(examples, x)),
        "grad of vmap": fw.attempt(lambda: fw.call(whole, x)),
    }


@row("VMAP-21", "same", "a keyword-only array is refused")
def _(fw):
    def forward(x, *, y):
        return x + y

    f = fw.separate(forward, vmap=lambda info, in_dims, x, *, y: (x + y, 0))
    return fw.call(func(fw).vmap(lambda x: f.apply(x, y=x)), matrix(fw))


@row("VMAP-22", "same", "a keyword-only static argument, given or by default")
def _(fw):
    def forward(x, *, k=2):
        return k * x

    def rule(info, in_dims, x, *, k=2):
        return k * x, 0

    f = fw.separate(forward, vmap=rule).apply
    vmap = func(fw).vmap
    return [
        fw.call(vmap(lambda x: f(x, k=5)), matrix(fw)),
        fw.call(vmap(lambda x: f(x)), matrix(fw)),
    ]


@row(
    "VMAP-23",
    "same",
    "the rule batches forward; backward is batched as it is",
    modes=("eager", "jit"),  # under vmap, the rule gets batches of batches
)
def _(fw):
    dims, shapes = [], []

    def backward(ctx, g):
        shapes.append(tuple(g.shape))
        x, k = ctx.saved_tensors
        return k * x * g, x * x * g

    def rule(info, in_dims, x, k):
        dims.append(in_dims)
        return k * x * x / 2, 0

    f = fw.separate(
        lambda x, k: k * x * x / 2, saving(), backward=backward, vmap=rule
    ).apply
    t = func(fw)

    def run(x):
        return t.vmap(t.grad(lambda x: f(x, 3 * x).sum()))(x)

    return [fw.call(run, matrix(fw)), dims, sorted(set(shapes))]


@row("VMAP-24", "must differ", "both orders use the class's backward")
@expect(
    lambda fw: dict.fromkeys(("vmap of grad", "grad of vmap"), jnp.full((2, 3), 100.0))
)
def _(fw):
    f = doubling(
        fw, backward=lambda ctx, g: 100 * g, vmap=lambda info, in_dims, x: (5 * x, 0)
    )
    return orders(fw, f)


@row("VMAP-25", "same", "a generated rule shows one example", modes=EAGER)
def _(fw):
    shapes = {"forward": set(), "setup_context": set(), "backward": set()}

    def forward(x):
        shapes["forward"].add(tuple(x.shape))
        return x.sum()

    def setup_context(ctx, inputs, output):
        shapes["setup_context"].add(tuple(inputs[0].shape))

    def backward(ctx, g):
        shapes["backward"].add(tuple(g.shape))
        return g * fw.np.ones(3)

    f = fw.separate(forward, setup_context, backward=backward, generate_vmap_rule=True)
    found = orders(fw, f.apply)
    return [found, {key: sorted(x) for key, x in shapes.items()}]


@row("VMAP-27", "must differ", "NumPy in a batched forward is refused in JAX's words")
@raises(TypeError, "method __array__() was called on traced array")
def _(fw):
    def forward(x):
        return fw.array(2 * (x.numpy() if fw.name == "torch" else np.asarray(x)))

    f = fw.separate(forward, generate_vmap_rule=True)
    return fw.call(func(fw).vmap(f.apply), matrix(fw))


@row("VMAP-29", "same", "a generated rule with None, marks and no zeros")
def _(fw):
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1], output[2])

    def forward(x, k):
        return k * x, x > 1, -x

    def gradients(result):
        seen = []

        def backward(ctx, g, *others):
            seen.append(others)
            return result(g)

        f = fw.separate(
            forward, setup_context, backward=backward, generate_vmap_rule=True
        )
        t = func(fw)
        run = t.vmap(t.grad(lambda x: f.apply(x, 2)[0].sum()))
        return [fw.call(run, matrix(fw)), seen]

    return [gradients(lambda g: (3 * g, None)), gradients(lambda g: (None, None))]


@row("VMAP-31", "must differ", "ctx has one class, batched or not", modes=EAGER)
@expect(lambda fw: ["MyFBackward"])
def _(fw):
    names = []

    def setup_context(ctx, inputs, output):
        names.append(type(ctx).__name__)

    def backward(ctx, g):
        names.append(type(ctx).__name__)
        return 2 * g

    f = fw.separate(
        lambda x: 2 * x, setup_context, backward=backward, generate_vmap_rule=True
    )
    orders(fw, f.apply)
    return sorted(set(names))


@row("VMAP-32", "superset", "a list as the output of a batched forward")
@expect(lambda fw: [2 * matrix(fw), 3 * matrix(fw)])
def _(fw):
    f = fw.separate(lambda x: [2 * x, 3 * x], generate_vmap_rule=True)
    return fw.call(func(fw).vmap(f.apply), matrix(fw))


@row("VMAP-33", "same", "a tuple of one output")
def _(fw):
    f = fw.separate(lambda x: (2 * x,), generate_vmap_rule=True)
    return fw.call(func(fw).vmap(f.apply), matrix(fw))


@row("VMAP-34", "same", "a batched Function that consumes its input")
def _(fw):
    def exp(x):
        return x.exp_() if fw.name == "torch" else jnp.exp(x)

    f = fw.separate(
        exp,
        lambda ctx, inputs, output: ctx.mark_dirty(*inputs),
        vmap=lambda info, in_dims, x: (exp(x), in_dims[0]),
    )
    return fw.call(func(fw).vmap(f.apply), matrix(fw))


@row("VMAP-35", "must differ", "random numbers have keys, one for each example")
def vmap_35(fw):
    f = fw.separate(lambda x: x + fw.np.randn_like(x), generate_vmap_rule=True)
    return func(fw).vmap(f.apply, randomness="error")(matrix(fw))


@vmap_35.jaxfn
def _(fw):
    f = fw.separate(lambda key, x: x + jax.random.normal(key, x.shape))
    keys = jax.random.split(jax.random.key(0), 2)
    return [
        fw.call(jax.vmap(f.apply), keys, matrix(fw)),
        fw.call(jax.vmap(f.apply, in_axes=(None, 0)), keys[0], matrix(fw)),
    ]


@vmap_35.expect
def _(fw):
    keys = jax.random.split(jax.random.key(0), 2)
    a, b = (jax.random.normal(key, (3,)) for key in keys)
    return [matrix(fw) + jnp.stack([a, b]), matrix(fw) + a]


@row("VMAP-36", "same", "a batch in chunks: the rule gets the size of a chunk")
def vmap_36(fw):
    sizes = set()
    f = chunked(fw, sizes)
    return [fw.torch.func.vmap(f, chunk_size=1)(matrix(fw)), sorted(sizes)]


@vmap_36.jaxfn
def _(fw):
    sizes = set()
    f = chunked(fw, sizes)
    chunks = [x[None] for x in matrix(fw)]
    by_hand = jnp.concatenate([fw.call(jax.vmap(f), x) for x in chunks])
    looped = fw.call(lambda x: jax.lax.map(f, x, batch_size=1), matrix(fw))
    np.testing.assert_array_equal(by_hand, looped)
    return [looped, sorted(sizes)]


def chunked(fw, sizes):
    def rule(info, in_dims, x):
        sizes.add(info.batch_size)
        return 2 * x, 0

    return doubling(fw, vmap=rule)


@row("VMAP-37", "same", "an input kept as an attribute of ctx, batched")
def _(fw):
    def setup_context(ctx, inputs, output):
        (ctx.x,) = inputs

    f = fw.separate(
        lambda x: x * x,
        setup_context,
        backward=lambda ctx, g: 2 * ctx.x * g,
        generate_vmap_rule=True,
    )
    return orders(fw, f.apply)


@row("VMAP-38", "same", "setup_context sees one example", modes=EAGER)
def _(fw):
    def seen(rule):
        shapes = []

        def setup_context(ctx, inputs, output):
            shapes.append([tuple(inputs[0].shape), tuple(output.shape)])

        f = fw.separate(
            lambda x: 2 * x,
            setup_context,
            backward=lambda ctx, g: 2 * g,
            vmap=lambda info, in_dims, x: (rule(f, x), in_dims[0]),
        ).apply
        t = func(fw)
        x = matrix(fw)
        run = t.vmap(t.grad(lambda x: f(x).sum()))
        run(fw.leaf(x) if fw.name == "torch" else x)
        return shapes

    return {
        "operations": seen(lambda f, x: 2 * x),
        "a call of itself": seen(lambda f, x: f(x)),
    }
