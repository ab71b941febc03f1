"""Activations that save little and compute again in backward."""

import jax
import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, normal, uniform


class Swish(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * jax.nn.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = jax.nn.sigmoid(x)
        return g * (s * (1 + x * (1 - s)))


def torch_swish(torch):
    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, g):
            x = ctx.saved_tensors[0]
            s = torch.sigmoid(x)
            return g * (s * (1 + x * (1 - s)))

    return Swish.apply


def _mish_slope(x):
    t = jnp.tanh(jax.nn.softplus(x))
    return t + x * jax.nn.sigmoid(x) * (1 - t * t)


class Mish(jaxfn.Function):
    """Both modes from the one saved input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x * jnp.tanh(jax.nn.softplus(x))

    @staticmethod
    def backward(ctx, g):
        return g * _mish_slope(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, t):
        return t * _mish_slope(*ctx.saved_tensors)


def torch_mish(torch):
    softplus = torch.nn.functional.softplus

    def slope(x):
        t = softplus(x).tanh()
        return t + x * x.sigmoid() * (1 - t * t)

    class Mish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x.mul(torch.tanh(softplus(x)))

        @staticmethod
        def backward(ctx, g):
            return g * slope(*ctx.saved_tensors)

        @staticmethod
        def jvp(ctx, t):
            return t * slope(*ctx.saved_tensors)

    return Mish.apply


def _normal_cdf(x):
    return 0.5 * (1 + jax.scipy.special.erf(x / 2**0.5))


class Geglu(jaxfn.Function):
    """gelu(gate) * value, with gate and value two inputs."""

    @staticmethod
    def forward(ctx, gate, value):
        ctx.save_for_backward(gate, value)
        return gate * _normal_cdf(gate) * value

    @staticmethod
    def backward(ctx, g):
        gate, value = ctx.saved_tensors
        cdf = _normal_cdf(gate)
        pdf = jnp.exp(-gate * gate / 2) / (2 * jnp.pi) ** 0.5
        return g * value * (cdf + gate * pdf), g * gate * cdf


def torch_geglu(torch):
    def normal_cdf(x):
        return 0.5 * (1 + torch.erf(x / 2**0.5))

    class Geglu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, value):
            ctx.save_for_backward(gate, value)
            return gate * normal_cdf(gate) * value

        @staticmethod
        def backward(ctx, g):
            gate, value = ctx.saved_tensors
            cdf = normal_cdf(gate)
            pdf = torch.exp(-gate * gate / 2) / (2 * torch.pi) ** 0.5
            return g * value * (cdf + gate * pdf), g * gate * cdf

    return Geglu.apply


class Swiglu(jaxfn.Function):
    """Gate and value are the halves of one input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        gate, value = jnp.split(x, 2, -1)
        return gate * jax.nn.sigmoid(gate) * value

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gate, value = jnp.split(x, 2, -1)
        s = jax.nn.sigmoid(gate)
        slope = s * (1 + gate * (1 - s))
        return jnp.concatenate([g * value * slope, g * gate * s], -1)


def torch_swiglu(torch):
    class Swiglu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            gate, value = x.chunk(2, -1)
            return gate * gate.sigmoid() * value

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            gate, value = x.chunk(2, dim=-1)
            s = gate.sigmoid()
            slope = s * (1 + gate * (1 - s))
            return torch.cat([g * value * slope, g * gate * s], -1)

    return Swiglu.apply


class GumbelStraightThrough(jaxfn.Function):
    """A one-hot sample forward, its softmax backward.

    The noise is an array, or a PRNG key to draw it from.
    """

    @staticmethod
    def forward(ctx, logits, noise, temperature):
        if jnp.issubdtype(noise.dtype, jax.dtypes.prng_key):
            noise = jax.random.uniform(noise, logits.shape, logits.dtype)
        score = (logits - jnp.log(-jnp.log(noise))) / temperature
        soft = jax.nn.softmax(score, -1)
        ctx.save_for_backward(soft)
        ctx.temperature = temperature
        return jax.nn.one_hot(soft.argmax(-1), soft.shape[-1], dtype=soft.dtype)

    @staticmethod
    def backward(ctx, g):
        (soft,) = ctx.saved_tensors
        mean = (g * soft).sum(-1, keepdims=True)
        return soft * (g - mean) / ctx.temperature, None, None


def torch_gumbel(torch):
    class GumbelStraightThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, noise, temperature):
            score = (logits - torch.log(-torch.log(noise))) / temperature
            soft = score.softmax(-1)
            ctx.save_for_backward(soft)
            ctx.temperature = temperature
            index = soft.argmax(-1, keepdim=True)
            return torch.zeros_like(soft).scatter_(-1, index, 1.0)

        @staticmethod
        def backward(ctx, g):
            (soft,) = ctx.saved_tensors
            mean = (g * soft).sum(-1, keepdim=True)
            return soft * (g - mean) / ctx.temperature, None, None

    return lambda logits, noise: GumbelStraightThrough.apply(logits, noise, 0.8)


class Dropout(jaxfn.Function):
    """The mask is boolean, and saved; so is the case that drops nothing."""

    @staticmethod
    def forward(ctx, x, noise, rate, training):
        if not training:
            ctx.save_for_backward(None)
            return x
        mask = noise > rate
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - rate)
        return x * mask * ctx.scale

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return (g if mask is None else g * mask * ctx.scale), None, None, None


def torch_dropout(torch):
    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, noise, rate, training):
            if not training:
                ctx.save_for_backward(None)
                return x.clone()
            mask = noise > rate
            ctx.save_for_backward(mask)
            ctx.scale = 1 / (1 - rate)
            return x * mask * ctx.scale

        @staticmethod
        def backward(ctx, g):
            (mask,) = ctx.saved_tensors
            return (g if mask is None else g * mask * ctx.scale), None, None, None

    def both(x, noise):
        return Dropout.apply(x, noise, 0.4, True), Dropout.apply(x, noise, 0.4, False)

    return both


CASES = [
    Case("swish", Swish.apply, torch_swish, (normal(3, 4),), exact=jax.nn.silu),
    Case(
        "mish",
        Mish.apply,
        torch_mish,
        (normal(3, 4),),
        exact=lambda x: x * jnp.tanh(jnp.log1p(jnp.exp(x))),
        forward=True,
    ),
    Case(
        "geglu",
        Geglu.apply,
        torch_geglu,
        (normal(3, 4), normal(3, 4)),
        exact=lambda a, b: jax.nn.gelu(a, approximate=False) * b,
    ),
    Case(
        "swiglu",
        Swiglu.apply,
        torch_swiglu,
        (normal(3, 4),),
        exact=lambda x: jax.nn.silu(x[:, :2]) * x[:, 2:],
    ),
    # The saved softmax is an intermediate value: torch loses its derivative.
    Case(
        "gumbel_straight_through",
        lambda logits, noise: GumbelStraightThrough.apply(logits, noise, 0.8),
        torch_gumbel,
        (normal(3, 4), uniform(0.1, 0.9, 3, 4)),
        second=False,
    ),
    Case(
        "dropout",
        lambda x, noise: (
            Dropout.apply(x, noise, 0.4, True),
            Dropout.apply(x, noise, 0.4, False),
        ),
        torch_dropout,
        (normal(3, 4), uniform(0, 1, 3, 4)),
    ),
]
