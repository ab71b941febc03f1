"""How real classes are built: factories, inheritance, helpers, what they do to ctx."""

import jax
import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, integers, normal


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


def _remember(context, x, slope):
    context.save_for_backward(x)
    context.options = {"slope": slope, "seen": [x.shape]}


def _slope(context):
    (x,) = context.saved_tensors
    return jnp.where(x > 0, 1, context.options["slope"])


class LeakyRelu(jaxfn.Function):
    """ctx has another name, and goes to helper functions."""

    @staticmethod
    def forward(self, x, slope):
        _remember(self, x, slope)
        return jnp.where(x > 0, x, slope * x)

    @staticmethod
    def backward(self, g):
        return g * _slope(self), None


def torch_leaky_relu(torch):
    def remember(context, x, slope):
        context.save_for_backward(x)
        context.options = {"slope": slope, "seen": [x.shape]}

    def slope_of(context):
        (x,) = context.saved_tensors
        return torch.ones_like(x).masked_fill(x <= 0, context.options["slope"])

    class LeakyRelu(torch.autograd.Function):
        @staticmethod
        def forward(self, x, slope):
            remember(self, x, slope)
            return torch.where(x > 0, x, slope * x)

        @staticmethod
        def backward(self, g):
            return g * slope_of(self), None

    return lambda x: LeakyRelu.apply(x, 0.1)


class SomePaths(jaxfn.Function):
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


def torch_some_paths(torch):
    class SomePaths(torch.autograd.Function):
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
                return g * ctx.factor
            return g * weight, g * x

    return lambda x, w: SomePaths.apply(SomePaths.apply(x, w))


class WritesInBackward(jaxfn.Function):
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


def torch_writes_in_backward(torch):
    class WritesInBackward(torch.autograd.Function):
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


class Linear(jaxfn.Function):
    """An optional argument, and only the gradients that are needed."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        out = x @ weight.T
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = g @ weight
        if ctx.needs_input_grad[1]:
            dw = g.T @ x
        if bias is not None and ctx.needs_input_grad[2]:
            db = g.sum(0)
        return dx, dw, db


def torch_linear(torch):
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias=None):
            ctx.save_for_backward(x, weight, bias)
            out = x.mm(weight.t())
            if bias is not None:
                out += bias.unsqueeze(0).expand_as(out)
            return out

        @staticmethod
        def backward(ctx, g):
            x, weight, bias = ctx.saved_tensors
            dx = dw = db = None
            if ctx.needs_input_grad[0]:
                dx = g.mm(weight)
            if ctx.needs_input_grad[1]:
                dw = g.t().mm(x)
            if bias is not None and ctx.needs_input_grad[2]:
                db = g.sum(0)
            return dx, dw, db

    return lambda x, w, b: Linear.apply(Linear.apply(x, w, b), w, None)


class Variadic(jaxfn.Function):
    """Any number of arrays in, saved and out; backward takes *grads."""

    @staticmethod
    def forward(ctx, scale, *xs):
        ctx.scale, ctx.n = scale, len(xs)
        ctx.save_for_backward(*xs)
        return tuple(scale * x * x for x in xs)

    @staticmethod
    def backward(ctx, *grads):
        pairs = zip(grads, ctx.saved_tensors, strict=True)
        return None, *(2 * ctx.scale * g * x for g, x in pairs)


def torch_variadic(torch):
    class Variadic(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scale, *xs):
            ctx.scale, ctx.n = scale, len(xs)
            ctx.save_for_backward(*xs)
            return tuple(scale * x * x for x in xs)

        @staticmethod
        def backward(ctx, *grads):
            pairs = zip(grads, ctx.saved_tensors, strict=True)
            return None, *(2 * ctx.scale * g * x for g, x in pairs)

    return lambda *xs: Variadic.apply(0.5, *xs)


class ManyDefaults(jaxfn.Function):
    """More gradients than arguments were passed; keywords are torch's own trouble."""

    @staticmethod
    def forward(ctx, x, a=2.0, b=None, mode="sum", eps=1e-3):
        ctx.a = a
        return a * x + (eps if mode == "sum" else 0)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.a, None, None, None, None, None


def torch_many_defaults(torch):
    class ManyDefaults(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, a=2.0, b=None, mode="sum", eps=1e-3):
            ctx.a = a
            return a * x + (eps if mode == "sum" else 0)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.a, None, None, None, None, None

    return lambda x: ManyDefaults.apply(x) * ManyDefaults.apply(x, 3.0, None, "mean")


class OnCtx(jaxfn.Function):
    """Arrays on ctx in lists and dicts, next to functions and strings."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.steps = [x, jnp.sin(x)]
        ctx.info = {"mode": mode, "inner": {"cos": jnp.cos(x)}, "rule": jnp.multiply}
        return ctx.steps[0] * ctx.steps[1]

    @staticmethod
    def backward(ctx, g):
        x, sin = ctx.steps
        assert ctx.info["mode"] == "product"
        return ctx.info["rule"](g, sin + x * ctx.info["inner"]["cos"]), None


def torch_on_ctx(torch):
    class OnCtx(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, mode):
            ctx.steps = [x, x.sin()]
            ctx.info = {"mode": mode, "inner": {"cos": x.cos()}, "rule": torch.mul}
            return ctx.steps[0] * ctx.steps[1]

        @staticmethod
        def backward(ctx, g):
            x, sin = ctx.steps
            return ctx.info["rule"](g, sin + x * ctx.info["inner"]["cos"]), None

    return lambda x: OnCtx.apply(x, "product")


class InnerGradient(jaxfn.Function):
    """Differentiates inside forward; backward calls the function that is on ctx."""

    @staticmethod
    def forward(ctx, energy, x, w):
        out, ctx.pull = jax.vjp(energy, x, w)
        return out

    @staticmethod
    def backward(ctx, g):
        return None, *ctx.pull(g)


def _energy(x, w):
    return (jnp.tanh(x @ w) ** 2).sum(-1)


def torch_inner_gradient(torch):
    class InnerGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, energy, x, w):
            with torch.enable_grad():
                ctx.inner = x.detach().requires_grad_(), w.detach().requires_grad_()
                ctx.out = energy(*ctx.inner)
            return ctx.out.detach()

        @staticmethod
        def backward(ctx, g):
            return None, *torch.autograd.grad(ctx.out, ctx.inner, g)

    def energy(x, w):
        return (torch.tanh(x @ w) ** 2).sum(-1)

    return lambda x, w: InnerGradient.apply(energy, x, w)


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


class MixedOutputs(jaxfn.Function):
    """None, a string and a number among the outputs; backward gets None for them."""

    @staticmethod
    def forward(ctx, x, flag):
        ctx.save_for_backward(x)
        return x * x, None, "label", x.ndim, -x

    @staticmethod
    def backward(ctx, g, none, label, number, g_last):
        assert none is None
        assert label is None
        assert number is None
        (x,) = ctx.saved_tensors
        return 2 * x * g - g_last, None


def mixed_outputs(x):
    square, none, label, n, minus = MixedOutputs.apply(x, True)
    assert (none, label, n) == (None, "label", 1)
    return square, minus


def torch_mixed_outputs(torch):
    class MixedOutputs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, flag):
            ctx.save_for_backward(x)
            return x * x, None, "label", x.ndim, -x

        @staticmethod
        def backward(ctx, g, none, label, number, g_last):
            (x,) = ctx.saved_tensors
            return 2 * x * g - g_last, None

    def mixed_outputs(x):
        square, _, _, _, minus = MixedOutputs.apply(x, True)
        return square, minus

    return mixed_outputs


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


class Broadcasting(jaxfn.Function):
    """Gradients of the broadcast shape, which are summed to that of the argument."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


def torch_broadcasting(torch):
    class Broadcasting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    return Broadcasting.apply


class Unmaterialized(jaxfn.Function):
    """None for an output that nobody used."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return jnp.sin(x), jnp.cos(x)

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        (x,) = ctx.saved_tensors
        total = None
        if g_sin is not None:
            total = g_sin * jnp.cos(x)
        if g_cos is not None:
            part = -g_cos * jnp.sin(x)
            total = part if total is None else total + part
        return total


def torch_unmaterialized(torch):
    class Unmaterialized(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return torch.sin(x), torch.cos(x)

        @staticmethod
        def backward(ctx, g_sin, g_cos):
            (x,) = ctx.saved_tensors
            total = None
            if g_sin is not None:
                total = g_sin * torch.cos(x)
            if g_cos is not None:
                part = -g_cos * torch.sin(x)
                total = part if total is None else total + part
            return total

    return lambda x: Unmaterialized.apply(x)[0] + sum(Unmaterialized.apply(2 * x))


class ReluDirty(jaxfn.Function):
    """In place in torch; here the new value is returned and the old one used up."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        out = jnp.maximum(x, 0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (out > 0)


def torch_relu_dirty(torch):
    class ReluDirty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.clamp_(min=0)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            (out,) = ctx.saved_tensors
            return g * (out > 0)

    return lambda x: ReluDirty.apply(2 * x)


class Guarded(jaxfn.Function):
    """Raises if an argument that has no derivative needs one."""

    @staticmethod
    def forward(ctx, x, target):
        if ctx.needs_input_grad[1]:
            raise ValueError("target has no gradient")
        ctx.save_for_backward(x, target)
        return ((x - target) ** 2).sum()

    @staticmethod
    def backward(ctx, g):
        x, target = ctx.saved_tensors
        return g * 2 * (x - target), None


def torch_guarded(torch):
    class Guarded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, target):
            if target.requires_grad:
                raise ValueError("target has no gradient")
            ctx.save_for_backward(x, target)
            return ((x - target) ** 2).sum()

        @staticmethod
        def backward(ctx, g):
            x, target = ctx.saved_tensors
            return g * 2 * (x - target), None

    return Guarded.apply


class FullScale(jaxfn.Function):
    """Reads a number out of an array, and returns it."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0 ** round(float(jnp.abs(x).max()))
        return x / ctx.factor

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


X = (normal(3, 4),)

CASES = [
    Case("factory", lambda x: power(2)(x) + power(3)(x), torch_powers, X),
    Case(
        "inherited",
        lambda x: _Threshold.apply(x) * ThresholdScaled.apply(x),
        torch_inherited,
        X,
    ),
    Case("ctx_to_helpers", lambda x: LeakyRelu.apply(x, 0.1), torch_leaky_relu, X),
    Case(
        "some_paths",
        lambda x, w: SomePaths.apply(SomePaths.apply(x, w)),
        torch_some_paths,
        (normal(3, 4), normal(3, 4)),
    ),
    Case(
        "writes_in_backward",
        WritesInBackward.apply,
        torch_writes_in_backward,
        (normal(3, 4), normal(3, 4)),
        exact=jnp.multiply,
    ),
    Case("backward_calls_apply", Sigmoid.apply, torch_sigmoid, X, exact=jax.nn.sigmoid),
    Case(
        "optional_argument",
        lambda x, w, b: Linear.apply(Linear.apply(x, w, b), w, None),
        torch_linear,
        (normal(3, 4), normal(4, 4), normal(4)),
    ),
    Case(
        "variadic",
        lambda *xs: Variadic.apply(0.5, *xs),
        torch_variadic,
        (normal(3, 4), normal(4), normal()),
    ),
    Case(
        "many_defaults",
        lambda x: ManyDefaults.apply(x) * ManyDefaults.apply(x, 3.0, None, "mean"),
        torch_many_defaults,
        X,
    ),
    # Intermediate values on ctx: torch loses their derivative.
    Case(
        "on_ctx",
        lambda x: OnCtx.apply(x, "product"),
        torch_on_ctx,
        X,
        second=False,
        exact=lambda x: x * jnp.sin(x),
    ),
    Case(
        "inner_gradient",
        lambda x, w: InnerGradient.apply(_energy, x, w),
        torch_inner_gradient,
        (normal(3, 4), normal(4, 4)),
        second=False,
        exact=_energy,
    ),
    Case("once_differentiable", OnceOnly.apply, torch_once_only, X, second=False),
    Case("amp", Mixed.apply, torch_mixed, (normal(3, 4), normal(4, 4))),
    Case("undecorated", Undecorated.apply, torch_undecorated, X, exact=jnp.cos),
    Case("mixed_outputs", mixed_outputs, torch_mixed_outputs, (normal(12),)),
    Case(
        "nested_class",
        Layer(2.0),
        torch_nested,
        X,
        second=False,
        exact=lambda x: jax.nn.soft_sign(2 * x),
    ),
    Case(
        "broadcasting",
        Broadcasting.apply,
        torch_broadcasting,
        (normal(4), normal(3, 4)),
        exact=jnp.multiply,
    ),
    Case(
        "unmaterialized",
        lambda x: Unmaterialized.apply(x)[0] + sum(Unmaterialized.apply(2 * x)),
        torch_unmaterialized,
        X,
        exact=lambda x: jnp.sin(x) + jnp.sin(2 * x) + jnp.cos(2 * x),
    ),
    Case("dirty", lambda x: ReluDirty.apply(2 * x), torch_relu_dirty, X),
    Case("guarded", Guarded.apply, torch_guarded, (normal(4), integers(3, 4))),
    Case("full_scale", FullScale.apply, torch_full_scale, (normal(12),), concrete=True),
]
