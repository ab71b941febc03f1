"""Functions that leave the value alone and change the gradient."""

import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, normal, uniform


class Reverse(jaxfn.Function):
    """Gradient reversal; the weight is a number."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x

    @staticmethod
    def backward(ctx, g):
        return -ctx.weight * g, None


def torch_reverse(torch):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g.neg() * ctx.weight, None

    return lambda x: torch.sin(x) * Reverse.apply(x, 0.5)


class Scale(jaxfn.Function):
    """The factor is an array, which gets no gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x

    @staticmethod
    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        return g * factor, None


def torch_scale(torch):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(factor)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            (factor,) = ctx.saved_tensors
            return g * factor, None

    return lambda x, factor: Scale.apply(x * factor, factor)


class ClipNorm(jaxfn.Function):
    """A gradient longer than the limit is made as long as the limit."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x

    @staticmethod
    def backward(ctx, g):
        size = jnp.sqrt((g * g).sum())
        return g * jnp.minimum(ctx.limit / size, 1), None


def torch_clip_norm(torch):
    class ClipNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit):
            ctx.limit = limit
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            size = g.norm()
            if size > ctx.limit:
                g = g * (ctx.limit / size)
            return g, None

    return lambda x: ClipNorm.apply(x * x, 1.0)


class ClipValue(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.low, ctx.high = low, high
        return x

    @staticmethod
    def backward(ctx, g):
        return jnp.clip(g, ctx.low, ctx.high), None, None


def torch_clip_value(torch):
    class ClipValue(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, low, high):
            ctx.low, ctx.high = low, high
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g.clamp(ctx.low, ctx.high), None, None

    return lambda x: ClipValue.apply(x, -0.5, 0.7)


class ClampThrough(jaxfn.Function):
    """Clamped forward; the gradient is kept where it leads back into the range."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return jnp.clip(x, low, high)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        back = ((x < ctx.low) & (g < 0)) | ((x > ctx.high) & (g > 0))
        return g * (((x >= ctx.low) & (x <= ctx.high)) | back), None, None


def torch_clamp_through(torch):
    class ClampThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, low, high):
            ctx.save_for_backward(x)
            ctx.low, ctx.high = low, high
            return x.clamp(low, high)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            lost = ((x < ctx.low) & (g >= 0)) | ((x > ctx.high) & (g <= 0))
            return g.masked_fill(lost, 0), None, None

    return lambda x: ClampThrough.apply(x, -0.5, 0.5)


class AddPenalty(jaxfn.Function):
    """The value is x; the gradient is that of x and of a penalty on its size."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g + ctx.weight * jnp.sign(x), None


def torch_add_penalty(torch):
    class AddPenalty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x)
            ctx.weight = weight
            return x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            grad = g.clone()
            grad += ctx.weight * x.sign()
            return grad, None

    return lambda x: AddPenalty.apply(x, 0.1)


CASES = [
    Case(
        "reverse",
        lambda x: jnp.sin(x) * Reverse.apply(x, 0.5),
        torch_reverse,
        (normal(3, 4),),
    ),
    Case(
        "scale",
        lambda x, factor: Scale.apply(x * factor, factor),
        torch_scale,
        (normal(3, 4), uniform(0.5, 2, 4)),
    ),
    Case(
        "clip_norm",
        lambda x: ClipNorm.apply(x * x, 1.0),
        torch_clip_norm,
        (normal(12),),
    ),
    Case(
        "clip_value",
        lambda x: ClipValue.apply(x, -0.5, 0.7),
        torch_clip_value,
        (normal(12),),
    ),
    Case(
        "clamp_through",
        lambda x: ClampThrough.apply(x, -0.5, 0.5),
        torch_clamp_through,
        (normal(12),),
    ),
    Case(
        "add_penalty",
        lambda x: AddPenalty.apply(x, 0.1),
        torch_add_penalty,
        (normal(12),),
    ),
]
