"""Gathering and scattering: integer arguments, integer outputs, masks."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxfn
from tests.parity.catalogue.case import Case, integers, normal


class EmbeddingBag(jaxfn.Function):
    """Sums of rows of a table, one for each bag; only the shape is kept."""

    @staticmethod
    def forward(ctx, table, index, bag, bags):
        ctx.rows = table.shape[0]
        ctx.save_for_backward(index, bag)
        return jax.ops.segment_sum(table[index], bag, bags)

    @staticmethod
    def backward(ctx, g):
        index, bag = ctx.saved_tensors
        grad = jnp.zeros((ctx.rows, g.shape[1]), g.dtype)
        return grad.at[index].add(g[bag]), None, None, None


def torch_embedding_bag(torch):
    class EmbeddingBag(torch.autograd.Function):
        @staticmethod
        def forward(ctx, table, index, bag, bags):
            ctx.rows = table.shape[0]
            ctx.save_for_backward(index, bag)
            out = table.new_zeros(bags, table.shape[1])
            return out.index_add_(0, bag, table[index])

        @staticmethod
        def backward(ctx, g):
            index, bag = ctx.saved_tensors
            grad = g.new_zeros(ctx.rows, g.shape[1])
            return grad.index_add(0, index, g[bag]), None, None, None

    return lambda table, index, bag: EmbeddingBag.apply(table, index, bag, 3)


class ScatterMean(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, group, groups):
        count = jnp.zeros(groups, x.dtype).at[group].add(1)
        count = jnp.maximum(count, 1)[:, None]
        ctx.save_for_backward(group, count)
        ctx.mark_non_differentiable(count)
        return jnp.zeros((groups, x.shape[1]), x.dtype).at[group].add(x) / count, count

    @staticmethod
    def backward(ctx, g, _):
        group, count = ctx.saved_tensors
        return (g / count)[group], None, None


def torch_scatter_mean(torch):
    class ScatterMean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group, groups):
            count = x.new_zeros(groups).index_add_(0, group, x.new_ones(len(x)))
            count = count.clamp(min=1)[:, None]
            ctx.save_for_backward(group, count)
            ctx.mark_non_differentiable(count)
            out = x.new_zeros(groups, x.shape[1]).index_add_(0, group, x)
            return out / count, count

        @staticmethod
        def backward(ctx, g, _):
            group, count = ctx.saved_tensors
            return (g / count)[group], None, None

    return lambda x, group: ScatterMean.apply(x, group, 4)


class TopK(jaxfn.Function):
    """The biggest values of each row, and where they are."""

    @staticmethod
    def forward(ctx, x, k):
        values, index = jax.lax.top_k(x, k)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return values, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        rows = jnp.arange(ctx.shape[0])[:, None]
        return jnp.zeros(ctx.shape, g.dtype).at[rows, index].set(g), None


def torch_top_k(torch):
    class TopK(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            values, index = x.topk(k)
            ctx.mark_non_differentiable(index)
            ctx.save_for_backward(index)
            ctx.shape = x.shape
            return values, index

        @staticmethod
        def backward(ctx, g, _):
            (index,) = ctx.saved_tensors
            return g.new_zeros(ctx.shape).scatter(1, index, g), None

    return lambda x: TopK.apply(x, 2)


class MaxPool(jaxfn.Function):
    """The separate style; the place of the maximum is kept on ctx, both modes."""

    @staticmethod
    def forward(x, width):
        windows = x.reshape(-1, width)
        index = windows.argmax(1)
        return windows.max(1), index

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.width = inputs
        _, index = output
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        hot = jax.nn.one_hot(index, ctx.width, dtype=g.dtype)
        return (g[:, None] * hot).reshape(ctx.shape), None

    @staticmethod
    def jvp(ctx, t, _):
        (index,) = ctx.saved_tensors
        windows = t.reshape(-1, ctx.width)
        return jnp.take_along_axis(windows, index[:, None], 1)[:, 0], None


def torch_max_pool(torch):
    class MaxPool(torch.autograd.Function):
        @staticmethod
        def forward(x, width):
            values, index = x.reshape(-1, width).max(1)
            return values, index

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.width = inputs
            _, index = output
            ctx.mark_non_differentiable(index)
            ctx.save_for_backward(index)
            ctx.save_for_forward(index)
            ctx.shape = x.shape

        @staticmethod
        def backward(ctx, g, _):
            (index,) = ctx.saved_tensors
            grad = g.new_zeros(len(g), ctx.width).scatter(1, index[:, None], g[:, None])
            return grad.reshape(ctx.shape), None

        @staticmethod
        def jvp(ctx, t, _):
            (index,) = ctx.saved_tensors
            return t.reshape(-1, ctx.width).gather(1, index[:, None])[:, 0], None

    return lambda x: MaxPool.apply(x, 3)


class KeepPositive(jaxfn.Function):
    """As many elements as are positive: the shape depends on the values."""

    @staticmethod
    def forward(x):
        return x[x > 0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0] > 0)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return jnp.zeros(mask.shape, g.dtype).at[np.nonzero(mask)].set(g)


def torch_keep_positive(torch):
    class KeepPositive(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mask = x > 0
            ctx.save_for_backward(mask)
            return x[mask]

        @staticmethod
        def backward(ctx, g):
            (mask,) = ctx.saved_tensors
            grad = g.new_zeros(mask.shape)
            grad[mask] = g
            return grad

    return KeepPositive.apply


CASES = [
    Case(
        "embedding_bag",
        lambda table, index, bag: EmbeddingBag.apply(table, index, bag, 3),
        torch_embedding_bag,
        (normal(4, 3), integers(4, 6), integers(3, 6)),
    ),
    Case(
        "scatter_mean",
        lambda x, group: ScatterMean.apply(x, group, 4),
        torch_scatter_mean,
        (normal(6, 3), integers(4, 6)),
    ),
    Case("top_k", lambda x: TopK.apply(x, 2), torch_top_k, (normal(3, 4),)),
    Case(
        "max_pool",
        lambda x: MaxPool.apply(x, 3),
        torch_max_pool,
        (normal(12),),
        forward=True,
    ),
    Case(
        "keep_positive",
        KeepPositive.apply,
        torch_keep_positive,
        (normal(12),),
        concrete=True,
    ),
]
