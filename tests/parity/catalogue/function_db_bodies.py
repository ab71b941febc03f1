"""The bodies of PyTorch's autograd_function_db, for `function_db`.

Written from what each one computes; where torch's body is NumPy, ours is NumPy too, on
the host.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxfn
from tests.build import function, keep, nothing, saving


def on_host(f, like, *args):
    """`f` of NumPy arrays, under any transformation; the result is as `like`."""
    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    return jax.pure_callback(f, shape, *args, vmap_method="sequential")


def _mul(name, forward, **members):
    """A product. Its gradients have the broadcast shape, and are products again."""

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = made.apply(g, y) if ctx.needs_input_grad[0] else None
        gy = made.apply(g, x) if ctx.needs_input_grad[1] else None
        return gx, gy

    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return made.apply(x, ty) + made.apply(tx, y)

    rules = {"setup_context": saving(), "backward": backward, "jvp": jvp}
    made = function(name, forward=forward, **rules, **members)
    return made


def _mul_on_host(x, y):
    return on_host(np.multiply, jax.eval_shape(jnp.multiply, x, y), x, y)


def _mul_batched(info, in_dims, x, y):
    return NumpyMul.apply(*_aligned(in_dims, x, y)), 0


NumpyMul = _mul("NumpyMul", _mul_on_host, vmap=_mul_batched)
MulGenVmap = _mul("MulGenVmap", lambda x, y: x * y, generate_vmap_rule=True)


def _aligned(in_dims, *arrays):
    """The arrays with the batch axis first and then equally many axes."""
    n = max(x.ndim - (d is not None) for x, d in zip(arrays, in_dims, strict=True))
    return [
        x if d is None else x.reshape(len(x), *(1,) * (n + 1 - x.ndim), *x.shape[1:])
        for x, d in zip(arrays, in_dims, strict=True)
    ]


def _cube(x):
    return x**3


def _three_squares(x):
    return 3 * x**2


class NumpyCube(jaxfn.Function):
    """The derivative is the second output, and saved."""

    @staticmethod
    def forward(x):
        return on_host(_cube, x, x), on_host(_three_squares, x, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        keep(ctx, *inputs, output[1])

    @staticmethod
    def backward(ctx, g, g_slope):
        x, slope = ctx.saved_tensors
        return NumpyMul.apply(g, slope) + 6 * NumpyMul.apply(g_slope, x)

    @staticmethod
    def jvp(ctx, t):
        x, slope = ctx.saved_tensors
        return NumpyMul.apply(t, slope), 6 * NumpyMul.apply(x, t)

    @staticmethod
    def vmap(info, in_dims, x):
        assert in_dims == (0,)
        return NumpyCube.apply(x), (0, 0)


class NumpyCubeNotComposable(jaxfn.Function):
    """Its second output has no derivative; its backward has none either."""

    @staticmethod
    def forward(x):
        return on_host(_cube, x, x), on_host(np.asarray, x, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.copy, ctx.device = output[1], "cpu"

    @staticmethod
    @jaxfn.once_differentiable
    def backward(ctx, g, _):
        return g * on_host(_three_squares, ctx.copy, ctx.copy)


class NumpyExp(jaxfn.Function):
    """In place in torch; here x is used up and the new value returned."""

    @staticmethod
    def forward(x):
        return on_host(np.exp, x, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)
        keep(ctx, output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return NumpyMul.apply(g, out)

    @staticmethod
    def jvp(ctx, t):
        (out,) = ctx.saved_tensors
        return NumpyMul.apply(t, out)

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpyExp.apply(x), 0


# ---- sorting: the order, and what undoes it


def _order(x, dim):
    return np.argsort(x, dim, kind="stable").astype(np.int32)


def _ranks(x, dim):
    return np.argsort(np.argsort(x, dim, kind="stable"), dim).astype(np.int32)


def _take(name, forward, **members):
    """Along an axis, by an order of it; the other way by what undoes the order."""

    def setup_context(ctx, inputs, output):
        _, order, ranks, ctx.dim = inputs
        keep(ctx, order, ranks)

    def backward(ctx, g):
        order, ranks = ctx.saved_tensors
        return made.apply(g, ranks, order, ctx.dim), None, None, None

    def jvp(ctx, t, *no_tangents):
        assert no_tangents == (None, None, None)
        order, ranks = ctx.saved_tensors
        return made.apply(t, order, ranks, ctx.dim)

    rules = {"setup_context": setup_context, "backward": backward, "jvp": jvp}
    made = function(name, forward=forward, **rules, **members)
    return made


def _take_on_host(x, order, ranks, dim):
    return on_host(lambda x, i: np.take_along_axis(x, i, dim), x, x, order)


def _take_batched(info, in_dims, x, order, ranks, dim):
    dims, n = in_dims[:3], x.ndim - (in_dims[0] is not None)
    whole = [
        jnp.broadcast_to(a, (info.batch_size, *a.shape)) if d is None else a
        for a, d in zip((x, order, ranks), dims, strict=True)
    ]
    return NumpyTake.apply(*whole, dim % n + 1), 0


def _take_in_jax(x, order, ranks, dim):
    return jnp.take_along_axis(x, order, dim)


NumpyTake = _take("NumpyTake", _take_on_host, vmap=_take_batched)
TakeGenVmap = _take("TakeGenVmap", _take_in_jax, generate_vmap_rule=True)


def _sort(name, forward, take, **members):
    """The sorted values, their order, and what undoes it."""

    def setup_context(ctx, inputs, output):
        _, order, ranks = output
        ctx.mark_non_differentiable(order, ranks)
        keep(ctx, order, ranks)
        ctx.dim = inputs[1]

    def backward(ctx, g, *_):
        order, ranks = ctx.saved_tensors
        return take.apply(g, ranks, order, ctx.dim), None

    def jvp(ctx, t, _):
        order, ranks = ctx.saved_tensors
        return take.apply(t, order, ranks, ctx.dim), None, None

    rules = {"setup_context": setup_context, "backward": backward, "jvp": jvp}
    return function(name, forward=forward, **rules, **members)


def _sort_on_host(x, dim):
    index = jax.ShapeDtypeStruct(x.shape, jnp.int32)
    order = on_host(lambda x: _order(x, dim), index, x)
    ranks = on_host(lambda x: _ranks(x, dim), index, x)
    return on_host(lambda x: np.sort(x, dim), x, x), order, ranks


def _sort_batched(info, in_dims, x, dim):
    return NumpySort.apply(x, dim % (x.ndim - 1) + 1), (0, 0, 0)


def _sort_in_jax(x, dim):
    order = jnp.argsort(x, dim)
    return jnp.take_along_axis(x, order, dim), order, jnp.argsort(order, dim)


NumpySort = _sort("NumpySort", _sort_on_host, NumpyTake, vmap=_sort_batched)
SortGenVmap = _sort("SortGenVmap", _sort_in_jax, TakeGenVmap, generate_vmap_rule=True)


# ---- selecting, scaling, nothing


class Select(jaxfn.Function):
    """One row. Nothing is saved but numbers, on ctx."""

    @staticmethod
    def forward(x, index):
        return x[index]

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.index = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx, g):
        return jnp.zeros(ctx.shape, g.dtype).at[ctx.index].set(g), None

    @staticmethod
    def jvp(ctx, t, _):
        return Select.apply(t, ctx.index)

    @staticmethod
    def vmap(info, in_dims, x, index):
        return Select.apply(jnp.moveaxis(x, 0, 1), index), 0


class SelectGenVmap(jaxfn.Function):
    generate_vmap_rule = True
    forward = Select.forward
    setup_context = Select.setup_context
    backward = Select.backward

    @staticmethod
    def jvp(ctx, t, _):
        return SelectGenVmap.apply(t, ctx.index)


class ForwardHasDefaultArgs(jaxfn.Function):
    """The default counts as an argument: the other rules get it too."""

    setup_context = Select.setup_context
    backward = Select.backward

    @staticmethod
    def forward(x, index=(2,)):
        return x[index]

    @staticmethod
    def jvp(ctx, t, _):
        return ForwardHasDefaultArgs.apply(t, ctx.index)

    @staticmethod
    def vmap(info, in_dims, x, index):
        assert in_dims == (0, (None,))
        return ForwardHasDefaultArgs.apply(jnp.moveaxis(x, 0, 1), index), 0


class CubeGenVmap(jaxfn.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    setup_context = NumpyCube.setup_context

    @staticmethod
    def backward(ctx, g, g_slope):
        x, slope = ctx.saved_tensors
        return g * slope + 6 * x * g_slope

    @staticmethod
    def jvp(ctx, t):
        x, slope = ctx.saved_tensors
        return MulGenVmap.apply(t, slope), 6 * MulGenVmap.apply(t, x)


class ScaleGradGenVmap(jaxfn.Function):
    generate_vmap_rule = True
    scale = 3.14

    @staticmethod
    def forward(x):
        return 1 * x

    setup_context = staticmethod(nothing)

    @staticmethod
    def backward(ctx, g):
        return g * ScaleGradGenVmap.scale

    @staticmethod
    def jvp(ctx, t):
        return t * ScaleGradGenVmap.scale


class ZeroGradientsGenVmap(jaxfn.Function):
    """Zeros; those of x have two axes too many, which are summed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return 1 * x, 1 * y

    setup_context = staticmethod(nothing)

    @staticmethod
    def backward(ctx, gx, gy):
        return jnp.zeros((3, 4, *gx.shape), gx.dtype), jnp.zeros_like(gy)

    @staticmethod
    def jvp(ctx, tx, ty):
        return jnp.zeros_like(tx), jnp.zeros_like(ty)
