"""Gathering and scattering: integer arguments, integer outputs, masks."""

import jax.numpy as jnp
import numpy as np

import jaxfn
from tests.parity.catalogue.case import Case, both, integers, normal


def embedding_bag(fw):
    class EmbeddingBag(fw.Function):
        """Sums of rows of a table, one for each bag; only the shape is kept."""

        @staticmethod
        def forward(ctx, table, index, bag, bags):
            ctx.rows = table.shape[0]
            ctx.save_for_backward(index, bag)
            return fw.add_at(bags, bag, table[index])

        @staticmethod
        def backward(ctx, g):
            index, bag = ctx.saved_tensors
            return fw.add_at(ctx.rows, index, g[bag]), None, None, None

    return lambda table, index, bag: EmbeddingBag.apply(table, index, bag, 3)


def scatter_mean(fw):
    class ScatterMean(fw.Function):
        @staticmethod
        def forward(ctx, x, group, groups):
            count = fw.add_at(groups, group, fw.np.ones_like(x[:, :1]))
            count = fw.np.clip(count, 1)
            ctx.save_for_backward(group, count)
            ctx.mark_non_differentiable(count)
            return fw.add_at(groups, group, x) / count, count

        @staticmethod
        def backward(ctx, g, _):
            group, count = ctx.saved_tensors
            return (g / count)[group], None, None

    return lambda x, group: ScatterMean.apply(x, group, 4)


def top_k(fw):
    class TopK(fw.Function):
        """The biggest values of each row, and where they are."""

        @staticmethod
        def forward(ctx, x, k):
            index = fw.np.argsort(-x, 1)[:, :k]
            ctx.mark_non_differentiable(index)
            ctx.save_for_backward(index)
            ctx.shape = x.shape
            return fw.take(x, index, 1), index

        @staticmethod
        def backward(ctx, g, _):
            (index,) = ctx.saved_tensors
            hot = index[..., None] == fw.np.arange(ctx.shape[1])
            return (g[..., None] * hot).sum(1), None

    return lambda x: TopK.apply(x, 2)


def max_pool(fw):
    class MaxPool(fw.Function):
        """The separate style; the place of the maximum is kept on ctx, both modes."""

        @staticmethod
        def forward(x, width):
            windows = x.reshape(-1, width)
            return fw.np.amax(windows, 1), windows.argmax(1)

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
            hot = index[:, None] == fw.np.arange(ctx.width)
            return (g[:, None] * hot).reshape(ctx.shape), None

        @staticmethod
        def jvp(ctx, t, _):
            (index,) = ctx.saved_tensors
            windows = t.reshape(-1, ctx.width)
            return fw.take(windows, index[:, None], 1)[:, 0], None

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
        *both(embedding_bag),
        (normal(4, 3), integers(4, 6), integers(3, 6)),
    ),
    Case("scatter_mean", *both(scatter_mean), (normal(6, 3), integers(4, 6))),
    Case("top_k", *both(top_k), (normal(3, 4),)),
    Case("max_pool", *both(max_pool), (normal(12),), forward=True),
    Case(
        "keep_positive",
        KeepPositive.apply,
        torch_keep_positive,
        (normal(12),),
        concrete=True,
    ),
]
