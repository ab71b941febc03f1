"""Activations that save little and compute again in backward."""

import jax
import jax.numpy as jnp

from tests.parity.catalogue.case import (
    Family,
    exact,
    halves,
    normal,
    uniform,
)

CASES = Family()


@CASES.add("swish", normal(3, 4))
@exact(jax.nn.silu)
def swish(fw):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * fw.nn.sigmoid(x)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = fw.nn.sigmoid(x)
        return g * (s * (1 + x * (1 - s)))

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("mish", normal(3, 4), forward=True)
@exact(lambda x: x * jnp.tanh(jnp.log1p(jnp.exp(x))))
def mish(fw):
    """Both modes from the one saved input."""

    def slope(x):
        t = fw.np.tanh(fw.nn.softplus(x))
        return t + x * fw.nn.sigmoid(x) * (1 - t * t)

    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x * fw.np.tanh(fw.nn.softplus(x))

    def backward(ctx, g):
        return g * slope(*ctx.saved_tensors)

    def jvp(ctx, t):
        return t * slope(*ctx.saved_tensors)

    return fw.make(forward=forward, backward=backward, jvp=jvp).apply


@CASES.add("geglu", normal(3, 4), normal(3, 4))
@exact(lambda a, b: jax.nn.gelu(a, approximate=False) * b)
def geglu(fw):
    """gelu(gate) * value, with gate and value two inputs."""

    def normal_cdf(x):
        return 0.5 * (1 + fw.special.erf(x / 2**0.5))

    def forward(ctx, gate, value):
        ctx.save_for_backward(gate, value)
        return gate * normal_cdf(gate) * value

    def backward(ctx, g):
        gate, value = ctx.saved_tensors
        cdf = normal_cdf(gate)
        pdf = fw.np.exp(-gate * gate / 2) / (2 * fw.np.pi) ** 0.5
        return g * value * (cdf + gate * pdf), g * gate * cdf

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("swiglu", normal(3, 4))
@exact(lambda x: jax.nn.silu(x[:, :2]) * x[:, 2:])
def swiglu(fw):
    """Gate and value are the halves of one input."""

    def forward(ctx, x):
        ctx.save_for_backward(x)
        gate, value = halves(x)
        return gate * fw.nn.sigmoid(gate) * value

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gate, value = halves(x)
        s = fw.nn.sigmoid(gate)
        slope = s * (1 + gate * (1 - s))
        return fw.np.concatenate([g * value * slope, g * gate * s], -1)

    return fw.make(forward=forward, backward=backward).apply


# The saved softmax is an intermediate value: torch loses its derivative.
@CASES.add(
    "gumbel_straight_through", normal(3, 4), uniform(0.1, 0.9, 3, 4), second=False
)
def gumbel(fw, temperature=0.8):
    """A one-hot sample forward, its softmax backward.

    The noise is an array, or, in JAX, a PRNG key to draw it from.
    """

    def forward(ctx, logits, noise, temperature):
        if fw.name == "jaxfn" and jnp.issubdtype(noise.dtype, jax.dtypes.prng_key):
            noise = jax.random.uniform(noise, logits.shape, logits.dtype)
        score = (logits - fw.np.log(-fw.np.log(noise))) / temperature
        soft = fw.nn.softmax(score, -1)
        ctx.save_for_backward(soft)
        ctx.temperature = temperature
        return fw.np.ones_like(soft) * (soft == fw.np.amax(soft, -1, keepdims=True))

    def backward(ctx, g):
        (soft,) = ctx.saved_tensors
        mean = (g * soft).sum(-1, keepdims=True)
        return soft * (g - mean) / ctx.temperature, None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda logits, noise: apply(logits, noise, temperature)


@CASES.add("dropout", normal(3, 4), uniform(0, 1, 3, 4))
def dropout(fw):
    """The mask is boolean, and saved; so is the case that drops nothing."""

    def forward(ctx, x, noise, rate, training):
        if not training:
            ctx.save_for_backward(None)
            return x
        mask = noise > rate
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - rate)
        return x * mask * ctx.scale

    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return (g if mask is None else g * mask * ctx.scale), None, None, None

    apply = fw.make(forward=forward, backward=backward).apply

    def twice(x, noise):
        return apply(x, noise, 0.4, True), apply(x, noise, 0.4, False)

    return twice
