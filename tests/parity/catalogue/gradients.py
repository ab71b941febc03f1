"""Functions that leave the value alone and change the gradient."""

from tests.parity.catalogue.case import Family, normal, uniform

CASES = Family()


@CASES.add("reverse", normal(3, 4))
def reverse(fw):
    """Gradient reversal; the weight is a number."""

    def forward(ctx, x, weight):
        ctx.weight = weight
        return x

    def backward(ctx, g):
        return -ctx.weight * g, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: fw.np.sin(x) * apply(x, 0.5)


@CASES.add("scale", normal(3, 4), uniform(0.5, 2, 4))
def scale(fw):
    """The factor is an array, which gets no gradient."""

    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x

    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        return g * factor, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, factor: apply(x * factor, factor)


@CASES.add("clip_norm", normal(12))
def clip_norm(fw):
    """A gradient longer than the limit is made as long as the limit."""

    def forward(ctx, x, limit):
        ctx.limit = limit
        return x

    def backward(ctx, g):
        size = fw.np.sqrt((g * g).sum())
        return g * fw.np.clip(ctx.limit / size, None, 1), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x * x, 1.0)


@CASES.add("clip_value", normal(12))
def clip_value(fw):
    def forward(ctx, x, low, high):
        ctx.low, ctx.high = low, high
        return x

    def backward(ctx, g):
        return fw.np.clip(g, ctx.low, ctx.high), None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, -0.5, 0.7)


@CASES.add("clamp_through", normal(12))
def clamp_through(fw):
    """Clamped forward; the gradient is kept where it leads back into the range."""

    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return fw.np.clip(x, low, high)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        back = ((x < ctx.low) & (g < 0)) | ((x > ctx.high) & (g > 0))
        return g * (((x >= ctx.low) & (x <= ctx.high)) | back), None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, -0.5, 0.5)


@CASES.add("add_penalty", normal(12))
def add_penalty(fw):
    """The value is x; the gradient is that of x and of a penalty on its size."""

    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g + ctx.weight * fw.np.sign(x), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, 0.1)
