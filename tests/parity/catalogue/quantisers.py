"""Quantisers: forward rounds, backward pretends that it did not."""

from tests.parity.catalogue.case import Family, normal, uniform

CASES = Family()


@CASES.add("round", normal(3, 4, scale=3))
def rounding(fw):
    def forward(ctx, x):
        return fw.np.round(x)

    def backward(ctx, g):
        return g

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("learned_step", normal(12, scale=2), uniform(0.3, 0.6))
def learned_step(fw):
    """The step size is learned: its gradient is the rounding error or the limit."""

    def forward(ctx, x, step, bits):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        ctx.save_for_backward(x, step)
        ctx.limits = low, high
        return fw.np.clip(fw.np.round(x / step), low, high) * step

    def backward(ctx, g):
        x, step = ctx.saved_tensors
        low, high = ctx.limits
        q = x / step
        below, above = q < low, q > high
        inside = ~(below | above)
        scale = 1.0 / (len(x) * high) ** 0.5
        error = fw.np.where(below, low, fw.np.where(above, high, fw.np.round(q) - q))
        return g * inside, (g * error).sum() * scale, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, step: apply(x, step, 3)


@CASES.add("clipped_activation", normal(12, scale=2), uniform(0.8, 1.2))
def clipped_activation(fw):
    """Clipped at a learned height, then rounded to a number of levels."""

    def forward(ctx, x, height, levels):
        ctx.save_for_backward(x, height)
        clipped = fw.np.minimum(fw.np.clip(x, 0), height)
        return fw.np.round(clipped * levels / height) * height / levels

    def backward(ctx, g):
        x, height = ctx.saved_tensors
        over = x >= height
        return g * ((x >= 0) & ~over), (g * over).sum(), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, height: apply(x, height, 7)


@CASES.add("dorefa", normal(3, 4))
def dorefa(fw):
    """Numbers from 0 to 1 rounded to multiples of 1 / (2^bits - 1)."""

    def forward(ctx, x, bits):
        n = 2**bits - 1
        return fw.np.round(x * n) / n

    def backward(ctx, g):
        return g, None

    apply = fw.make(forward=forward, backward=backward).apply

    def dorefa(w):
        squashed = fw.np.tanh(w)
        unit = squashed / (2 * fw.np.abs(squashed).max()) + 0.5
        return 2 * apply(unit, 2) - 1

    return dorefa


@CASES.add("ternary", normal(12))
def ternary(fw):
    """Weights of one size and three signs; gradients of big weights are cut."""

    def forward(ctx, w, ratio):
        ctx.save_for_backward(w)
        size = fw.np.abs(w)
        kept = size > ratio * size.mean()
        return fw.np.sign(w) * kept * (size * kept).sum() / kept.sum()

    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return fw.np.clip(g, -1, 1) * (fw.np.abs(w) <= 1), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda w: apply(w, 0.7)


@CASES.add("per_channel", normal(2, 6))
def per_channel(fw):
    """Scales per channel from the data, kept on ctx; with a zero point."""

    def forward(ctx, x, bits):
        low = fw.np.amin(x, 1, keepdims=True)
        high = fw.np.amax(x, 1, keepdims=True)
        scale = (high - low) / (2**bits - 1)
        zero = fw.np.round(-low / scale)
        ctx.range = {"low": low, "high": high}
        ctx.save_for_backward(x)
        q = fw.np.clip(fw.np.round(x / scale) + zero, 0, 2**bits - 1)
        return (q - zero) * scale

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        kept = (x > ctx.range["low"]) & (x < ctx.range["high"])
        return g * kept, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, 4)
