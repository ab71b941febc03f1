"""What real classes do to ctx: they pass it on, write to it and delete from it."""

import jax
import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, Family, exact, normal

CASES = Family()


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


@CASES.add("ctx_to_helpers", normal(3, 4))
def leaky_relu(fw):
    return lambda x: leaky(fw).apply(x, 0.1)


@CASES.add("some_paths", normal(3, 4), normal(3, 4))
def some_paths(fw):
    """Attributes that exist on some paths only."""

    def forward(ctx, x, weight=None):
        ctx.save_for_backward(x, weight)
        if weight is not None:
            ctx.weighted = True
            return x * weight
        ctx.factor = 2.0
        return x * ctx.factor

    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        if not getattr(ctx, "weighted", False):
            assert hasattr(ctx, "factor")
            return g * ctx.factor
        assert not hasattr(ctx, "factor")
        return g * weight, g * x

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w: apply(apply(x, w))


@CASES.add("writes_in_backward", normal(3, 4), normal(3, 4))
@exact(jnp.multiply)
def writes_in_backward(fw):
    """Backward counts, replaces and deletes attributes."""

    def forward(ctx, x, y):
        ctx.x, ctx.y, ctx.calls = x, y, 0
        ctx.cache = {}
        return x * y

    def backward(ctx, g):
        ctx.calls += 1
        ctx.cache["gx"] = g * ctx.y
        x = ctx.x
        del ctx.x
        ctx.y = None
        return ctx.cache.pop("gx") * ctx.calls, g * x

    return fw.make(forward=forward, backward=backward).apply


# Intermediate values on ctx: torch loses their derivative.
@CASES.add("on_ctx", normal(3, 4), second=False)
@exact(lambda x: x * jnp.sin(x))
def on_ctx(fw):
    """Arrays on ctx in lists and dicts, next to functions and strings."""

    def forward(ctx, x, mode):
        ctx.steps = [x, fw.np.sin(x)]
        ctx.info = {
            "mode": mode,
            "inner": {"cos": fw.np.cos(x)},
            "rule": fw.np.multiply,
        }
        return ctx.steps[0] * ctx.steps[1]

    def backward(ctx, g):
        x, sin = ctx.steps
        assert ctx.info["mode"] == "product"
        return ctx.info["rule"](g, sin + x * ctx.info["inner"]["cos"]), None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, "product")


def energy(np):
    return lambda x, w: (np.tanh(x @ w) ** 2).sum(-1)


@CASES.add("inner_gradient", normal(3, 4), normal(4, 4), second=False)
@exact(energy(jnp))
def inner_gradient(fw):
    """Differentiates inside forward; backward calls the function that is on ctx."""

    def forward(ctx, energy, x, w):
        out, ctx.pull = fw.pullback(energy, x, w)
        return out

    def backward(ctx, g):
        return None, *ctx.pull(g)

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w: apply(energy(fw.np), x, w)


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


CASES.append(
    Case("full_scale", FullScale.apply, torch_full_scale, (normal(12),), concrete=True)
)


@CASES.add("borrowed_rules", normal(3, 4))
def borrowed(fw):
    """Calls the rules of another Function with its own ctx."""

    lender = leaky(fw)

    def forward(ctx, x, slope):
        ctx.sign = -1
        return ctx.sign * lender.forward(ctx, x, slope)

    def backward(ctx, g):
        return lender.backward(ctx, ctx.sign * g)

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x, 0.2)


@CASES.add("placeholders", normal(3, 4), normal(3, 4))
def placeholders(fw):
    """Saves None, an empty array and a mask of small integers among others."""

    def forward(ctx, x, y, keep_y):
        mask = fw.cast(x > y, "int8")
        empty = fw.np.zeros(0, dtype=x.dtype)
        ctx.save_for_backward(x, y if keep_y else empty, None, mask)
        return mask * x * (y if keep_y else 1)

    def backward(ctx, g):
        x, y, none, mask = ctx.saved_tensors
        assert none is None
        if len(y) == 0:
            return g * mask, None, None
        return g * mask * y, g * mask * x, None

    apply = fw.make(forward=forward, backward=backward).apply

    def twice(x, y):
        return apply(x, y, True), apply(x, y, False)

    return twice
