"""How real classes are built: in factories, by inheritance, in other classes."""

import jax
import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, normal


def power(n):
    """A class made by a factory, with the number in its closure."""

    class Power(jaxfn.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**n

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * n * x ** (n - 1)

    return Power.apply


def torch_powers(torch):
    def power(n):
        class Power(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**n

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * n * x ** (n - 1)

        return Power.apply

    return lambda x: power(2)(x) + power(3)(x)


class _Threshold(jaxfn.Function):
    """A base class with backward, constants and helpers; forward is a classmethod."""

    LEVEL = 0.0

    @classmethod
    def kept(cls, x):
        return x > cls.LEVEL

    @classmethod
    def forward(cls, ctx, x):
        mask = cls.kept(x)
        ctx.save_for_backward(mask)
        return jnp.where(mask, x, 0)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class ThresholdScaled(_Threshold):
    """Calls forward of its base, and inherits backward."""

    LEVEL = 0.5

    @classmethod
    def forward(cls, ctx, x):
        return 3 * super().forward(ctx, x)


def torch_inherited(torch):
    class Threshold(torch.autograd.Function):
        LEVEL = 0.0

        @classmethod
        def kept(cls, x):
            return x > cls.LEVEL

        @classmethod
        def forward(cls, ctx, x):
            mask = cls.kept(x)
            ctx.save_for_backward(mask)
            return torch.where(mask, x, torch.zeros_like(x))

        @staticmethod
        def backward(ctx, g):
            (mask,) = ctx.saved_tensors
            return g * mask

    class ThresholdScaled(Threshold):
        LEVEL = 0.5

        @classmethod
        def forward(cls, ctx, x):
            return 3 * super().forward(ctx, x)

    return lambda x: Threshold.apply(x) * ThresholdScaled.apply(x)


class Undecorated(jaxfn.Function):
    """Methods without a decorator, called through the class."""

    def forward(ctx, x):  # noqa: N805
        ctx.save_for_backward(x)
        return jnp.cos(x)

    def backward(ctx, g):  # noqa: N805
        (x,) = ctx.saved_tensors
        return -g * jnp.sin(x)


def torch_undecorated(torch):
    class Undecorated(torch.autograd.Function):
        def forward(ctx, x):  # noqa: N805
            ctx.save_for_backward(x)
            return torch.cos(x)

        def backward(ctx, g):  # noqa: N805
            (x,) = ctx.saved_tensors
            return -g * torch.sin(x)

    return Undecorated.apply


class Layer:
    """A class that holds its Function."""

    class Softsign(jaxfn.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.denominator = 1 + jnp.abs(x)
            return x / ctx.denominator

        @staticmethod
        def backward(ctx, g):
            return g / ctx.denominator**2

    def __init__(self, gain):
        self.gain = gain

    def __call__(self, x):
        return self.Softsign.apply(self.gain * x)


def torch_nested(torch):
    class Layer:
        class Softsign(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.denominator = 1 + x.abs()
                return x / ctx.denominator

            @staticmethod
            def backward(ctx, g):
                return g / ctx.denominator**2

        def __init__(self, gain):
            self.gain = gain

        def __call__(self, x):
            return self.Softsign.apply(self.gain * x)

    return Layer(2.0)


class Sigmoid(jaxfn.Function):
    """Backward is a Function of its own, which says what the second derivative is."""

    @staticmethod
    def forward(ctx, x):
        out = 1 / (1 + jnp.exp(-x))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return SigmoidBackward.apply(g, out)


class SigmoidBackward(jaxfn.Function):
    @staticmethod
    def forward(ctx, g, out):
        ctx.save_for_backward(g, out)
        return g * out * (1 - out)

    @staticmethod
    def backward(ctx, gg):
        g, out = ctx.saved_tensors
        return gg * out * (1 - out), gg * g * (1 - 2 * out)


def torch_sigmoid(torch):
    class Sigmoid(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = 1 / (1 + torch.exp(-x))
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, g):
            (out,) = ctx.saved_tensors
            return SigmoidBackward.apply(g, out)

    class SigmoidBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, g, out):
            ctx.save_for_backward(g, out)
            return g * out * (1 - out)

        @staticmethod
        def backward(ctx, gg):
            g, out = ctx.saved_tensors
            return gg * out * (1 - out), gg * g * (1 - 2 * out)

    return Sigmoid.apply


class OnceOnly(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @jaxfn.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def torch_once_only(torch):
    class OnceOnly(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return OnceOnly.apply


class Mixed(jaxfn.Function):
    """The decorators of amp, outside autocast."""

    @staticmethod
    @jaxfn.amp.custom_fwd(device_type="cuda")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @jaxfn.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.T, a.T @ g


def torch_mixed(torch):
    class Mixed(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g.mm(b.t()), a.t().mm(g)

    return Mixed.apply


X = (normal(3, 4),)

CASES = [
    Case("factory", lambda x: power(2)(x) + power(3)(x), torch_powers, X),
    Case(
        "inherited",
        lambda x: _Threshold.apply(x) * ThresholdScaled.apply(x),
        torch_inherited,
        X,
    ),
    Case("undecorated", Undecorated.apply, torch_undecorated, X, exact=jnp.cos),
    Case(
        "nested_class",
        Layer(2.0),
        torch_nested,
        X,
        second=False,
        exact=lambda x: jax.nn.soft_sign(2 * x),
    ),
    Case("backward_calls_apply", Sigmoid.apply, torch_sigmoid, X, exact=jax.nn.sigmoid),
    Case("once_differentiable", OnceOnly.apply, torch_once_only, X, second=False),
    Case("amp", Mixed.apply, torch_mixed, (normal(3, 4), normal(4, 4))),
]
