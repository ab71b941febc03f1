"""How real classes are built: in factories, by inheritance, in other classes."""

import jax
import jax.numpy as jnp

from tests.parity.catalogue.case import Family, exact, normal

CASES = Family()


@CASES.add("factory", normal(3, 4))
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


@CASES.add("inherited", normal(3, 4))
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


@CASES.add("undecorated", normal(3, 4))
@exact(jnp.cos)
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


@CASES.add("nested_class", normal(3, 4), second=False)
@exact(lambda x: jax.nn.soft_sign(2 * x))
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


@CASES.add("backward_calls_apply", normal(3, 4))
@exact(jax.nn.sigmoid)
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


@CASES.add("once_differentiable", normal(3, 4), second=False)
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


@CASES.add("amp", normal(3, 4), normal(4, 4))
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
