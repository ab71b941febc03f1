"""Gathering and scattering: integer arguments, integer outputs, masks."""

import jax.numpy as jnp
import numpy as np

import jaxfn
from tests.parity.catalogue.case import Case, Family, integers, normal

CASES = Family()


@CASES.add("embedding_bag", normal(4, 3), integers(4, 6), integers(3, 6))
def embedding_bag(fw):
    """Sums of rows of a table, one for each bag; only the shape is kept."""

    def forward(ctx, table, index, bag, bags):
        ctx.rows = table.shape[0]
        ctx.save_for_backward(index, bag)
        return fw.add_at(bags, bag, table[index])

    def backward(ctx, g):
        index, bag = ctx.saved_tensors
        return fw.add_at(ctx.rows, index, g[bag]), None, None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda table, index, bag: apply(table, index, bag, 3)


@CASES.add("scatter_mean", normal(6, 3), integers(4, 6))
def scatter_mean(fw):
    def forward(ctx, x, group, groups):
        count = fw.add_at(groups, group, fw.np.ones_like(x[:, :1]))
        count = fw.np.clip(count, 1)
        ctx.save_for_backward(group, count)
        ctx.mark_non_differentiable(count)
        return fw.add_at(groups, group, x) / count, count

    def backward(ctx, g, _):
        group, count = ctx.saved_tensors
        return (g / count)[group], None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, group: apply(x, group, 4)


@CASES.add("top_k", normal(3, 4))
def top_k(fw):
    """The biggest values of each row, and where they are."""

    def forward(ctx, x, k):
        index = fw.np.argsort(-x, 1)[:, :k]
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return fw.take(x, index, 1), index

    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        hot = index[..., None] == fw.np.arange(ctx.shape[1])
        return (g[..., None] * hot).sum(1), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, 2)


@CASES.add("max_pool", normal(12), forward=True)
def max_pool(fw):
    """The separate style; the place of the maximum is kept on ctx, both modes."""

    def forward(x, width):
        windows = x.reshape(-1, width)
        return fw.np.amax(windows, 1), windows.argmax(1)

    def setup_context(ctx, inputs, output):
        x, ctx.width = inputs
        _, index = output
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.shape = x.shape

    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        hot = index[:, None] == fw.np.arange(ctx.width)
        return (g[:, None] * hot).reshape(ctx.shape), None

    def jvp(ctx, t, _):
        (index,) = ctx.saved_tensors
        windows = t.reshape(-1, ctx.width)
        return fw.take(windows, index[:, None], 1)[:, 0], None

    apply = fw.make(
        forward=forward, setup_context=setup_context, backward=backward, jvp=jvp
    ).apply
    return lambda x: apply(x, 3)


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


CASES.append(
    Case(
        "keep_positive",
        KeepPositive.apply,
        torch_keep_positive,
        (normal(12),),
        concrete=True,
    )
)
