"""How real classes are built: in factories, by inheritance, in other classes."""

import jax
import jax.numpy as jnp

from tests.parity.catalogue.case import Case, both, normal


def powers(fw):
    def power(n):
        """A class made by a factory, with the number in its closure."""

        class Power(fw.Function):
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


def inherited(fw):
    class Threshold(fw.Function):
        """A base class with backward, a constant and a helper."""

        LEVEL = 0.0

        @classmethod
        def kept(cls, x):
            return x > cls.LEVEL

        @classmethod
        def forward(cls, ctx, x):
            mask = cls.kept(x)
            ctx.save_for_backward(mask)
            return fw.np.where(mask, x, 0)

        @staticmethod
        def backward(ctx, g):
            (mask,) = ctx.saved_tensors
            return g * mask

    class ThresholdScaled(Threshold):
        """Calls forward of its base, and inherits backward."""

        LEVEL = 0.5

        @classmethod
        def forward(cls, ctx, x):
            return 3 * super().forward(ctx, x)

    return lambda x: Threshold.apply(x) * ThresholdScaled.apply(x)


def undecorated(fw):
    class Undecorated(fw.Function):
        """Methods without a decorator, called through the class."""

        def forward(ctx, x):  # noqa: N805
            ctx.save_for_backward(x)
            return fw.np.cos(x)

        def backward(ctx, g):  # noqa: N805
            (x,) = ctx.saved_tensors
            return -g * fw.np.sin(x)

    return Undecorated.apply


def nested(fw):
    class Layer:
        """A class that holds its Function."""

        class Softsign(fw.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.denominator = 1 + fw.np.abs(x)
                return x / ctx.denominator

            @staticmethod
            def backward(ctx, g):
                return g / ctx.denominator**2

        def __init__(self, gain):
            self.gain = gain

        def __call__(self, x):
            return self.Softsign.apply(self.gain * x)

    return Layer(2.0)


def sigmoid(fw):
    class Sigmoid(fw.Function):
        """Backward is a Function of its own, which gives the second derivative."""

        @staticmethod
        def forward(ctx, x):
            out = 1 / (1 + fw.np.exp(-x))
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, g):
            (out,) = ctx.saved_tensors
            return SigmoidBackward.apply(g, out)

    class SigmoidBackward(fw.Function):
        @staticmethod
        def forward(ctx, g, out):
            ctx.save_for_backward(g, out)
            return g * out * (1 - out)

        @staticmethod
        def backward(ctx, gg):
            g, out = ctx.saved_tensors
            return gg * out * (1 - out), gg * g * (1 - 2 * out)

    return Sigmoid.apply


def once_only(fw):
    class OnceOnly(fw.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @fw.once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return OnceOnly.apply


def mixed(fw):
    class Mixed(fw.Function):
        """The decorators of amp, outside autocast."""

        @staticmethod
        @fw.amp.custom_fwd(device_type="cuda")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @fw.amp.custom_bwd(device_type="cuda")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g @ b.T, a.T @ g

    return Mixed.apply


X = (normal(3, 4),)

CASES = [
    Case("factory", *both(powers), X),
    Case("inherited", *both(inherited), X),
    Case("undecorated", *both(undecorated), X, exact=jnp.cos),
    Case(
        "nested_class",
        *both(nested),
        X,
        second=False,
        exact=lambda x: jax.nn.soft_sign(2 * x),
    ),
    Case("backward_calls_apply", *both(sigmoid), X, exact=jax.nn.sigmoid),
    Case("once_differentiable", *both(once_only), X, second=False),
    Case("amp", *both(mixed), (normal(3, 4), normal(4, 4))),
]
