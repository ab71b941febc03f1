"""Normalisations that save their statistics, not the normalised values."""

import jax.numpy as jnp

from tests.parity.catalogue.case import Family, exact, normal

CASES = Family()


def plain_layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    size = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    return centred / size * weight + bias


# The statistics are intermediate values: torch loses their derivative.
@CASES.add("layer_norm", normal(3, 4), normal(4), normal(4), second=False)
@exact(plain_layer_norm)
def layer_norm(fw):
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdims=True)
        rstd = 1 / fw.np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return (x - mean) * rstd * weight + bias

    def backward(ctx, g):
        x, weight, mean, rstd = ctx.saved_tensors
        hat = (x - mean) * rstd
        scaled = g * weight
        along = (scaled * hat).mean(-1, keepdims=True)
        dx = (scaled - scaled.mean(-1, keepdims=True) - hat * along) * rstd
        return dx, (g * hat).sum(0), g.sum(0), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w, b: apply(x, w, b, 1e-3)


def plain_rms_norm(x, weight):
    x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 0.1)


@CASES.add("rms_norm", normal(3, 4), normal(4), second=False)
@exact(plain_rms_norm)
def rms_norm(fw):
    """The gradient of the weight has a shape that is summed to the weight's."""

    def forward(ctx, x, weight=None, eps=1e-6):
        ctx.rstd = 1 / fw.np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        ctx.save_for_backward(x, weight)
        y = x * ctx.rstd
        return y if weight is None else y * weight

    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        hat = x * ctx.rstd
        scaled = g if weight is None else g * weight
        dx = (scaled - hat * (scaled * hat).mean(-1, keepdims=True)) * ctx.rstd
        return dx, (None if weight is None else g * hat), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w: apply(apply(x, w), None, 0.1)


@CASES.add("normalise", normal(3, 4))
def normalise(fw):
    """Unit vectors and their lengths: both outputs are saved."""

    def forward(ctx, x):
        size = fw.np.sqrt((x * x).sum(-1, keepdims=True))
        unit = x / size
        ctx.save_for_backward(unit, size)
        return unit, size

    def backward(ctx, g_unit, g_size):
        unit, size = ctx.saved_tensors
        along = (g_unit * unit).sum(-1, keepdims=True)
        return (g_unit - unit * along) / size + unit * g_size

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("batch_norm", normal(3, 4), normal(4), second=False)
def batch_norm(fw):
    """Returns the new running mean too, which has no derivative."""

    def forward(ctx, x, running, momentum):
        mean = x.mean(0)
        rstd = 1 / fw.np.sqrt(((x - mean) ** 2).mean(0) + 1e-5)
        hat = (x - mean) * rstd
        new = running + momentum * (mean - running)
        ctx.mark_non_differentiable(new)
        ctx.save_for_backward(hat, rstd)
        return hat, new

    def backward(ctx, g, _):
        hat, rstd = ctx.saved_tensors
        return (g - g.mean(0) - hat * (g * hat).mean(0)) * rstd, None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, running: apply(x, running, 0.1)
