"""What real classes do to ctx: they pass it on, write to it and delete from it."""

import jax
import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, both, normal


def leaky(fw):
    def remember(context, x, slope):
        context.save_for_backward(x)
        context.options = {"slope": slope, "seen": [x.shape]}

    def slope_of(context):
        (x,) = context.saved_tensors
        return fw.np.where(x > 0, fw.np.ones_like(x), context.options["slope"])

    class LeakyRelu(fw.Function):
        """ctx has another name, and goes to helper functions."""

        @staticmethod
        def forward(self, x, slope):
            remember(self, x, slope)
            return fw.np.where(x > 0, x, slope * x)

        @staticmethod
        def backward(self, g):
            return g * slope_of(self), None

    return LeakyRelu


def leaky_relu(fw):
    return lambda x: leaky(fw).apply(x, 0.1)


def some_paths(fw):
    class SomePaths(fw.Function):
        """Attributes that exist on some paths only."""

        @staticmethod
        def forward(ctx, x, weight=None):
            ctx.save_for_backward(x, weight)
            if weight is not None:
                ctx.weighted = True
                return x * weight
            ctx.factor = 2.0
            return x * ctx.factor

        @staticmethod
        def backward(ctx, g):
            x, weight = ctx.saved_tensors
            if not getattr(ctx, "weighted", False):
                assert hasattr(ctx, "factor")
                return g * ctx.factor
            assert not hasattr(ctx, "factor")
            return g * weight, g * x

    return lambda x, w: SomePaths.apply(SomePaths.apply(x, w))


def writes_in_backward(fw):
    class WritesInBackward(fw.Function):
        """Backward counts, replaces and deletes attributes."""

        @staticmethod
        def forward(ctx, x, y):
            ctx.x, ctx.y, ctx.calls = x, y, 0
            ctx.cache = {}
            return x * y

        @staticmethod
        def backward(ctx, g):
            ctx.calls += 1
            ctx.cache["gx"] = g * ctx.y
            x = ctx.x
            del ctx.x
            ctx.y = None
            return ctx.cache.pop("gx") * ctx.calls, g * x

    return WritesInBackward.apply


def on_ctx(fw):
    class OnCtx(fw.Function):
        """Arrays on ctx in lists and dicts, next to functions and strings."""

        @staticmethod
        def forward(ctx, x, mode):
            ctx.steps = [x, fw.np.sin(x)]
            ctx.info = {
                "mode": mode,
                "inner": {"cos": fw.np.cos(x)},
                "rule": fw.np.multiply,
            }
            return ctx.steps[0] * ctx.steps[1]

        @staticmethod
        def backward(ctx, g):
            x, sin = ctx.steps
            assert ctx.info["mode"] == "product"
            return ctx.info["rule"](g, sin + x * ctx.info["inner"]["cos"]), None

    return lambda x: OnCtx.apply(x, "product")


def energy(np):
    return lambda x, w: (np.tanh(x @ w) ** 2).sum(-1)


def inner_gradient(fw):
    class InnerGradient(fw.Function):
        """Differentiates inside forward; backward calls the function that is on ctx."""

        @staticmethod
        def forward(ctx, energy, x, w):
            out, ctx.pull = fw.pullback(energy, x, w)
            return out

        @staticmethod
        def backward(ctx, g):
            return None, *ctx.pull(g)

    return lambda x, w: InnerGradient.apply(energy(fw.np), x, w)


class FullScale(jaxfn.Function):
    """Reads a number out of an array, in forward: what saves may not need values."""

    @staticmethod
    def forward(x):
        return x / 2.0 ** round(float(jnp.abs(x).max()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        largest = jnp.abs(jax.lax.stop_gradient(inputs[0])).max()
        ctx.factor = 2.0 ** jnp.round(largest)

    @staticmethod
    def backward(ctx, g):
        return g / ctx.factor


def torch_full_scale(torch):
    class FullScale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factor = 2.0 ** round(x.abs().max().item())
            return x / ctx.factor

        @staticmethod
        def backward(ctx, g):
            return g / ctx.factor

    return FullScale.apply


def borrowed(fw):
    lender = leaky(fw)

    class Borrowed(fw.Function):
        """Calls the rules of another Function with its own ctx."""

        @staticmethod
        def forward(ctx, x, slope):
            ctx.sign = -1
            return ctx.sign * lender.forward(ctx, x, slope)

        @staticmethod
        def backward(ctx, g):
            return lender.backward(ctx, ctx.sign * g)

    return lambda x: Borrowed.apply(x, 0.2)


def placeholders(fw):
    class Placeholders(fw.Function):
        """Saves None, an empty array and a mask of small integers among others."""

        @staticmethod
        def forward(ctx, x, y, keep_y):
            mask = fw.cast(x > y, "int8")
            empty = fw.np.zeros(0, dtype=x.dtype)
            ctx.save_for_backward(x, y if keep_y else empty, None, mask)
            return mask * x * (y if keep_y else 1)

        @staticmethod
        def backward(ctx, g):
            x, y, none, mask = ctx.saved_tensors
            assert none is None
            if len(y) == 0:
                return g * mask, None, None
            return g * mask * y, g * mask * x, None

    def twice(x, y):
        return Placeholders.apply(x, y, True), Placeholders.apply(x, y, False)

    return twice


X = (normal(3, 4),)

CASES = [
    Case("ctx_to_helpers", *both(leaky_relu), X),
    Case("some_paths", *both(some_paths), (normal(3, 4), normal(3, 4))),
    Case(
        "writes_in_backward",
        *both(writes_in_backward),
        (normal(3, 4), normal(3, 4)),
        exact=jnp.multiply,
    ),
    # Intermediate values on ctx: torch loses their derivative.
    Case("on_ctx", *both(on_ctx), X, second=False, exact=lambda x: x * jnp.sin(x)),
    Case(
        "inner_gradient",
        *both(inner_gradient),
        (normal(3, 4), normal(4, 4)),
        second=False,
        exact=energy(jnp),
    ),
    Case("full_scale", FullScale.apply, torch_full_scale, (normal(12),), concrete=True),
    Case("borrowed_rules", *both(borrowed), X),
    Case("placeholders", *both(placeholders), (normal(3, 4), normal(3, 4))),
]
