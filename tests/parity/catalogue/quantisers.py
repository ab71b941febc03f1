"""Quantisers: forward rounds, backward pretends that it did not."""

import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, normal, uniform


class Round(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        return jnp.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


def torch_round(torch):
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.round(x)

        @staticmethod
        def backward(ctx, g):
            return g

    return Round.apply


class LearnedStep(jaxfn.Function):
    """The step size is learned: its gradient is the rounding error, or the limit."""

    @staticmethod
    def forward(ctx, x, step, bits):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        ctx.save_for_backward(x, step)
        ctx.limits = low, high
        return jnp.clip(jnp.round(x / step), low, high) * step

    @staticmethod
    def backward(ctx, g):
        x, step = ctx.saved_tensors
        low, high = ctx.limits
        q = x / step
        below, above = q < low, q > high
        inside = ~(below | above)
        scale = 1.0 / (x.size * high) ** 0.5
        error = jnp.where(below, low, jnp.where(above, high, jnp.round(q) - q))
        return g * inside, (g * error).sum() * scale, None


def torch_learned_step(torch):
    class LearnedStep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, step, bits):
            low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
            ctx.save_for_backward(x, step)
            ctx.limits = low, high
            return torch.round(x / step).clamp(low, high) * step

        @staticmethod
        def backward(ctx, g):
            x, step = ctx.saved_tensors
            low, high = ctx.limits
            q = x / step
            below, above = (q < low).to(g), (q > high).to(g)
            inside = 1.0 - below - above
            scale = 1.0 / (x.numel() * high) ** 0.5
            error = below * low + above * high + inside * (torch.round(q) - q)
            return g * inside, (g * error).sum() * scale, None

    return lambda x, step: LearnedStep.apply(x, step, 3)


class ClippedActivation(jaxfn.Function):
    """Clipped at a learned height, then rounded to a number of levels."""

    @staticmethod
    def forward(ctx, x, height, levels):
        ctx.save_for_backward(x, height)
        return jnp.round(jnp.clip(x, 0, height) * levels / height) * height / levels

    @staticmethod
    def backward(ctx, g):
        x, height = ctx.saved_tensors
        over = x >= height
        return jnp.where((x >= 0) & ~over, g, 0), jnp.where(over, g, 0).sum(), None


def torch_clipped_activation(torch):
    class ClippedActivation(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, height, levels):
            ctx.save_for_backward(x, height)
            clipped = torch.minimum(x.clamp(min=0), height)
            return torch.round(clipped * levels / height) * height / levels

        @staticmethod
        def backward(ctx, g):
            x, height = ctx.saved_tensors
            grad = g.clone()
            grad[x < 0] = 0
            grad[x >= height] = 0
            return grad, g[x >= height].sum(), None

    return lambda x, height: ClippedActivation.apply(x, height, 7)


class Levels(jaxfn.Function):
    """Numbers from 0 to 1 rounded to multiples of 1 / (2^bits - 1)."""

    @staticmethod
    def forward(ctx, x, bits):
        n = 2**bits - 1
        return jnp.round(x * n) / n

    @staticmethod
    def backward(ctx, g):
        return g, None


def dorefa(w):
    squashed = jnp.tanh(w)
    return 2 * Levels.apply(squashed / (2 * jnp.abs(squashed).max()) + 0.5, 2) - 1


def torch_dorefa(torch):
    class Levels(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bits):
            n = 2**bits - 1
            return torch.round(x * n) / n

        @staticmethod
        def backward(ctx, g):
            return g, None

    def dorefa(w):
        squashed = torch.tanh(w)
        return 2 * Levels.apply(squashed / (2 * squashed.abs().max()) + 0.5, 2) - 1

    return dorefa


class Ternary(jaxfn.Function):
    """Weights of one size and three signs; gradients of big weights are cut."""

    @staticmethod
    def forward(ctx, w, ratio):
        ctx.save_for_backward(w)
        size = jnp.abs(w)
        kept = size > ratio * size.mean()
        return jnp.sign(w) * kept * (size * kept).sum() / kept.sum()

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return jnp.clip(g, -1, 1) * (jnp.abs(w) <= 1), None


def torch_ternary(torch):
    class Ternary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, ratio):
            ctx.save_for_backward(w)
            size = w.abs()
            kept = size > ratio * size.mean()
            return w.sign() * kept * size[kept].mean()

        @staticmethod
        def backward(ctx, g):
            (w,) = ctx.saved_tensors
            grad = g.clamp(-1, 1)
            grad = grad.masked_fill(w.abs() > 1, 0)
            return grad, None

    return lambda w: Ternary.apply(w, 0.7)


class PerChannel(jaxfn.Function):
    """Scales per channel from the data, kept on ctx; asymmetric, with a zero point."""

    @staticmethod
    def forward(ctx, x, bits):
        low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
        scale = (high - low) / (2**bits - 1)
        zero = jnp.round(-low / scale)
        ctx.range = {"low": low, "high": high}
        ctx.save_for_backward(x)
        return (jnp.clip(jnp.round(x / scale) + zero, 0, 2**bits - 1) - zero) * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        kept = (x > ctx.range["low"]) & (x < ctx.range["high"])
        return g * kept, None


def torch_per_channel(torch):
    class PerChannel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bits):
            low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
            scale = (high - low) / (2**bits - 1)
            zero = torch.round(-low / scale)
            ctx.range = {"low": low, "high": high}
            ctx.save_for_backward(x)
            q = (torch.round(x / scale) + zero).clamp(0, 2**bits - 1)
            return (q - zero) * scale

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            kept = (x > ctx.range["low"]) & (x < ctx.range["high"])
            return g * kept, None

    return lambda x: PerChannel.apply(x, 4)


CASES = [
    Case("round", Round.apply, torch_round, (normal(3, 4, scale=3),)),
    Case(
        "learned_step",
        lambda x, step: LearnedStep.apply(x, step, 3),
        torch_learned_step,
        (normal(12, scale=2), uniform(0.3, 0.6)),
    ),
    Case(
        "clipped_activation",
        lambda x, height: ClippedActivation.apply(x, height, 7),
        torch_clipped_activation,
        (normal(12, scale=2), uniform(0.8, 1.2)),
    ),
    Case("dorefa", dorefa, torch_dorefa, (normal(3, 4),)),
    Case("ternary", lambda w: Ternary.apply(w, 0.7), torch_ternary, (normal(12),)),
    Case(
        "per_channel",
        lambda x: PerChannel.apply(x, 4),
        torch_per_channel,
        (normal(2, 6),),
    ),
]
