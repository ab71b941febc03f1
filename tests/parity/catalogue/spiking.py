"""Spiking neurons: a step whose derivative is a bump (a surrogate gradient)."""

import math

from tests.parity.catalogue.case import Family, normal, uniform

CASES = Family()


@CASES.add("fast_sigmoid", normal(6, scale=0.1))
def fast_sigmoid(fw):
    def forward(ctx, x, slope=25.0):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return fw.np.ones_like(x) * (x > 0)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (ctx.slope * fw.np.abs(x) + 1) ** 2, None

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("arctan", normal(6))
def arctan(fw):
    def forward(ctx, x, width):
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x)
            ctx.width = width
        return fw.np.ones_like(x) * (x > 0)

    def backward(ctx, g):
        grad = None
        if ctx.needs_input_grad[0]:
            (x,) = ctx.saved_tensors
            grad = g * ctx.width / 2 / (1 + (math.pi / 2 * ctx.width * x) ** 2)
        return grad, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, 2.0)


@CASES.add("triangle", normal(6), forward=True)
def triangle(fw):
    """In the separate style, with both derivatives."""

    def forward(x, height):
        return fw.np.ones_like(x) * (x > 0)

    def setup_context(ctx, inputs, output):
        x, ctx.height = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.height * fw.np.clip(1 - fw.np.abs(x), 0), None

    def jvp(ctx, t, _):
        (x,) = ctx.saved_tensors
        return t * ctx.height * fw.np.clip(1 - fw.np.abs(x), 0)

    apply = fw.make(
        forward=forward, setup_context=setup_context, backward=backward, jvp=jvp
    ).apply
    return lambda x: apply(x, 0.3)


@CASES.add("leaky_neuron", uniform(0.2, 1.0, 5, 3), uniform(0.6, 0.9, 3))
def leaky_neuron(fw):
    """Leaky integrate-and-fire over time: the Function inside a scan."""
    fire = fast_sigmoid(fw)

    def run(current, decay):
        def step(v, row):
            v = decay * v + row[0]
            spike = fire(v - 1, 5.0)
            return v * (1 - spike), (v, spike)

        return fw.scan(step, fw.np.zeros_like(current[0]), (current,))[1]

    return run
