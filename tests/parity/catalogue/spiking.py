"""Spiking neurons: a step whose derivative is a bump (a surrogate gradient)."""

import math

import jax.numpy as jnp
from jax import lax

import jaxfn
from tests.parity.catalogue.case import Case, normal, uniform


class FastSigmoid(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, slope=25.0):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x > 0).astype(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (ctx.slope * jnp.abs(x) + 1) ** 2, None


def torch_fast_sigmoid(torch):
    class FastSigmoid(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, slope=25.0):
            ctx.save_for_backward(x)
            ctx.slope = slope
            return (x > 0).to(x.dtype)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g / (ctx.slope * x.abs() + 1) ** 2, None

    return FastSigmoid.apply


class Arctan(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, width):
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x)
            ctx.width = width
        return jnp.heaviside(x, 0.0).astype(x.dtype)

    @staticmethod
    def backward(ctx, g):
        grad = None
        if ctx.needs_input_grad[0]:
            (x,) = ctx.saved_tensors
            grad = g * ctx.width / 2 / (1 + (math.pi / 2 * ctx.width * x) ** 2)
        return grad, None


def torch_arctan(torch):
    class Arctan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, width):
            if x.requires_grad:
                ctx.save_for_backward(x)
                ctx.width = width
            return (x > 0).to(x)

        @staticmethod
        def backward(ctx, g):
            grad = None
            if ctx.needs_input_grad[0]:
                (x,) = ctx.saved_tensors
                bump = 1 + (math.pi / 2 * ctx.width * x).pow(2)
                grad = ctx.width / 2 / bump * g
            return grad, None

    return lambda x: Arctan.apply(x, 2.0)


class Triangle(jaxfn.Function):
    """In the separate style, with both derivatives."""

    @staticmethod
    def forward(x, height):
        return (x > 0).astype(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.height = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.height * jnp.maximum(1 - jnp.abs(x), 0), None

    @staticmethod
    def jvp(ctx, t, _):
        (x,) = ctx.saved_tensors
        return t * ctx.height * jnp.maximum(1 - jnp.abs(x), 0)


def torch_triangle(torch):
    class Triangle(torch.autograd.Function):
        @staticmethod
        def forward(x, height):
            return (x > 0).to(x.dtype)

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.height = inputs
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.height * (1 - x.abs()).clamp(min=0), None

        @staticmethod
        def jvp(ctx, t, _):
            (x,) = ctx.saved_tensors
            return t * ctx.height * (1 - x.abs()).clamp(min=0)

    return lambda x: Triangle.apply(x, 0.3)


def leaky_neuron(current, decay):
    """Leaky integrate-and-fire over time: the Function inside a scan."""

    def step(v, i):
        v = decay * v + i
        spike = FastSigmoid.apply(v - 1, 5.0)
        return v * (1 - spike), (v, spike)

    return lax.scan(step, jnp.zeros_like(current[0]), current)[1]


def torch_leaky_neuron(torch):
    fast_sigmoid = torch_fast_sigmoid(torch)

    def leaky_neuron(current, decay):
        v = torch.zeros_like(current[0])
        potentials, spikes = [], []
        for i in current:
            v = decay * v + i
            spike = fast_sigmoid(v - 1, 5.0)
            potentials.append(v)
            spikes.append(spike)
            v = v * (1 - spike)
        return torch.stack(potentials), torch.stack(spikes)

    return leaky_neuron


CASES = [
    Case(
        "fast_sigmoid", FastSigmoid.apply, torch_fast_sigmoid, (normal(6, scale=0.1),)
    ),
    Case("arctan", lambda x: Arctan.apply(x, 2.0), torch_arctan, (normal(6),)),
    Case(
        "triangle",
        lambda x: Triangle.apply(x, 0.3),
        torch_triangle,
        (normal(6),),
        forward=True,
    ),
    Case(
        "leaky_neuron",
        leaky_neuron,
        torch_leaky_neuron,
        (uniform(0.2, 1.0, 5, 3), uniform(0.6, 0.9, 3)),
    ),
]
