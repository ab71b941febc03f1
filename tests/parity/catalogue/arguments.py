"""What real classes take and give back: optional, variable, static, too big, none."""

import jax.numpy as jnp

from tests.parity.catalogue.case import Family, exact, integers, normal

CASES = Family()


@CASES.add("optional_argument", normal(3, 4), normal(4, 4), normal(4))
def linear(fw):
    """An optional argument, and only the gradients that are needed."""

    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        out = x @ weight.T
        return out if bias is None else out + bias

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

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w, b: apply(apply(x, w, b), w, None)


@CASES.add("variadic", normal(3, 4), normal(4), normal())
def variadic(fw):
    """Any number of arrays in, saved and out; backward takes *grads."""

    def forward(ctx, scale, *xs):
        ctx.scale, ctx.n = scale, len(xs)
        ctx.save_for_backward(*xs)
        return tuple(scale * x * x for x in xs)

    def backward(ctx, *grads):
        pairs = zip(grads, ctx.saved_tensors, strict=True)
        return None, *(2 * ctx.scale * g * x for g, x in pairs)

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda *xs: apply(0.5, *xs)


@CASES.add("many_defaults", normal(3, 4))
def many_defaults(fw):
    """More gradients than arguments; keywords are torch's own trouble."""

    def forward(ctx, x, a=2.0, b=None, mode="sum", eps=1e-3):
        ctx.a = a
        return a * x + (eps if mode == "sum" else 0)

    def backward(ctx, g):
        return g * ctx.a, None, None, None, None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x) * apply(x, 3.0, None, "mean")


@CASES.add("mixed_outputs", normal(12))
def mixed_outputs(fw):
    """None, a string and a number among the outputs; backward gets None."""

    def forward(ctx, x, flag):
        ctx.save_for_backward(x)
        return x * x, None, "label", x.ndim, -x

    def backward(ctx, g, none, label, number, g_last):
        assert none is None
        assert label is None
        assert number is None
        (x,) = ctx.saved_tensors
        return 2 * x * g - g_last, None

    apply = fw.make(forward=forward, backward=backward).apply

    def mixed_outputs(x):
        square, none, label, n, minus = apply(x, True)
        assert (none, label, n) == (None, "label", 1)
        return square, minus

    return mixed_outputs


@CASES.add("broadcasting", normal(4), normal(3, 4))
@exact(jnp.multiply)
def broadcasting(fw):
    """Gradients of the broadcast shape; they are summed to the argument's."""

    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("unmaterialized", normal(3, 4))
@exact(lambda x: jnp.sin(x) + jnp.sin(2 * x) + jnp.cos(2 * x))
def unmaterialized(fw):
    """None for an output that nobody used."""

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return fw.np.sin(x), fw.np.cos(x)

    def backward(ctx, g_sin, g_cos):
        (x,) = ctx.saved_tensors
        total = None
        if g_sin is not None:
            total = g_sin * fw.np.cos(x)
        if g_cos is not None:
            part = -g_cos * fw.np.sin(x)
            total = part if total is None else total + part
        return total

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(x)[0] + sum(apply(2 * x))


@CASES.add("dirty", normal(3, 4))
def relu_dirty(fw):
    """In place in torch; in JAX the new value is returned and the old one used up."""

    def forward(ctx, x):
        ctx.mark_dirty(x)
        out = x.clamp_(min=0) if fw.name == "torch" else jnp.maximum(x, 0)
        ctx.save_for_backward(out)
        return out

    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (out > 0)

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(2 * x)


@CASES.add("guarded", normal(4), integers(3, 4))
def guarded(fw):
    """Raises if an argument that has no derivative needs one."""

    def forward(ctx, x, target):
        if ctx.needs_input_grad[1]:
            raise ValueError("target has no gradient")
        ctx.save_for_backward(x, target)
        return ((x - target) ** 2).sum()

    def backward(ctx, g):
        x, target = ctx.saved_tensors
        return g * 2 * (x - target), None

    return fw.make(forward=forward, backward=backward).apply
