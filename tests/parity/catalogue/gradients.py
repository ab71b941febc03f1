"""Functions that leave the value alone and change the gradient."""

from tests.parity.catalogue.case import Case, both, normal, uniform


def reverse(fw):
    class Reverse(fw.Function):
        """Gradient reversal; the weight is a number."""

        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x

        @staticmethod
        def backward(ctx, g):
            return -ctx.weight * g, None

    return lambda x: fw.np.sin(x) * Reverse.apply(x, 0.5)


def scale(fw):
    class Scale(fw.Function):
        """The factor is an array, which gets no gradient."""

        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(factor)
            return x

        @staticmethod
        def backward(ctx, g):
            (factor,) = ctx.saved_tensors
            return g * factor, None

    return lambda x, factor: Scale.apply(x * factor, factor)


def clip_norm(fw):
    class ClipNorm(fw.Function):
        """A gradient longer than the limit is made as long as the limit."""

        @staticmethod
        def forward(ctx, x, limit):
            ctx.limit = limit
            return x

        @staticmethod
        def backward(ctx, g):
            size = fw.np.sqrt((g * g).sum())
            return g * fw.np.clip(ctx.limit / size, None, 1), None

    return lambda x: ClipNorm.apply(x * x, 1.0)


def clip_value(fw):
    class ClipValue(fw.Function):
        @staticmethod
        def forward(ctx, x, low, high):
            ctx.low, ctx.high = low, high
            return x

        @staticmethod
        def backward(ctx, g):
            return fw.np.clip(g, ctx.low, ctx.high), None, None

    return lambda x: ClipValue.apply(x, -0.5, 0.7)


def clamp_through(fw):
    class ClampThrough(fw.Function):
        """Clamped forward; the gradient is kept where it leads back into the range."""

        @staticmethod
        def forward(ctx, x, low, high):
            ctx.save_for_backward(x)
            ctx.low, ctx.high = low, high
            return fw.np.clip(x, low, high)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            back = ((x < ctx.low) & (g < 0)) | ((x > ctx.high) & (g > 0))
            return g * (((x >= ctx.low) & (x <= ctx.high)) | back), None, None

    return lambda x: ClampThrough.apply(x, -0.5, 0.5)


def add_penalty(fw):
    class AddPenalty(fw.Function):
        """The value is x; the gradient is that of x and of a penalty on its size."""

        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x)
            ctx.weight = weight
            return x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g + ctx.weight * fw.np.sign(x), None

    return lambda x: AddPenalty.apply(x, 0.1)


CASES = [
    Case("reverse", *both(reverse), (normal(3, 4),)),
    Case("scale", *both(scale), (normal(3, 4), uniform(0.5, 2, 4))),
    Case("clip_norm", *both(clip_norm), (normal(12),)),
    Case("clip_value", *both(clip_value), (normal(12),)),
    Case("clamp_through", *both(clamp_through), (normal(12),)),
    Case("add_penalty", *both(add_penalty), (normal(12),)),
]
