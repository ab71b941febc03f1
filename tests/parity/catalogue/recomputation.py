"""Backward runs other functions again, and differentiates them."""

import jax.numpy as jnp

from tests.parity.catalogue.case import Family, exact, normal

CASES = Family()


def block(np):
    def run(x, w, b):
        h = np.tanh(x @ w + b)
        return h * x, h.sum(0)

    return run


# torch's backward leaves autograd, or saves intermediate values.
@CASES.add("recompute", normal(3, 4), normal(4, 4), normal(4), second=False)
@exact(block(jnp))
def recompute(fw):
    """A function and its arguments: backward runs the function again."""

    def forward(ctx, function, *args):
        ctx.function = function
        ctx.save_for_backward(*args)
        return function(*args)

    def backward(ctx, *grads):
        outs, pull = fw.pullback(ctx.function, *ctx.saved_tensors)
        return None, *pull(tuple(grads) if isinstance(outs, tuple) else grads[0])

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda *args: apply(block(fw.np), *args)


@CASES.add("ode_adjoint", normal(3, 4), normal(4, 4), second=False)
def ode_adjoint(fw):
    class OdeAdjoint(fw.Function):
        """Runge-Kutta steps of y' = f(y, w); backward solves the adjoint equation back
        in time together with y, so that no step is saved. Not the gradient of the
        steps."""

        @staticmethod
        def forward(ctx, f, y, w, t, steps):
            (out,) = OdeAdjoint.solve(lambda y: [f(y, w)], [y], t, steps)
            ctx.f, ctx.t, ctx.steps = f, t, steps
            ctx.save_for_backward(out, w)
            return out

        @staticmethod
        def solve(f, ys, t, steps):
            h = t / steps

            def add(ys, ks, h):
                return [y + h * k for y, k in zip(ys, ks, strict=True)]

            for _ in range(steps):
                k1 = f(*ys)
                k2 = f(*add(ys, k1, h / 2))
                k3 = f(*add(ys, k2, h / 2))
                k4 = f(*add(ys, k3, h))
                for k, share in ((k1, 6), (k2, 3), (k3, 3), (k4, 6)):
                    ys = add(ys, k, h / share)
            return ys

        @staticmethod
        def backward(ctx, g):
            y, w = ctx.saved_tensors

            def adjoint(y, a, _):
                dy, pull = fw.pullback(ctx.f, y, w)
                da, dw = pull(a)
                return dy, -da, -dw

            start = [y, g, fw.np.zeros_like(w)]
            _, dy, dw = OdeAdjoint.solve(adjoint, start, -ctx.t, ctx.steps)
            return None, dy, dw, None, None

    def field(y, w):
        return fw.np.tanh(y @ w) - y

    return lambda y, w: OdeAdjoint.apply(field, y, w, 1.0, 4)


def plain_reversible(x, wf, wg):
    y1 = x[:, :2] + jnp.tanh(x[:, 2:] @ wf)
    return y1, x[:, 2:] + jnp.tanh(y1 @ wg)


@CASES.add("reversible", normal(3, 4), normal(2, 2), normal(2, 2), second=False)
@exact(plain_reversible)
def reversible(fw):
    """y1 = x1 + f(x2), y2 = x2 + g(y1): saves only its outputs, from which backward
    computes the inputs again."""

    def forward(ctx, x1, x2, f, g, *params):
        ctx.f, ctx.g = f, g
        wf, wg = params
        y1 = x1 + f(x2, wf)
        y2 = x2 + g(y1, wg)
        ctx.save_for_backward(y1, y2, *params)
        return y1, y2

    def backward(ctx, d1, d2):
        y1, y2, wf, wg = ctx.saved_tensors
        out, pull = fw.pullback(ctx.g, y1, wg)
        x2 = y2 - out
        by_y1, dwg = pull(d2)
        d1 = d1 + by_y1
        _, pull = fw.pullback(ctx.f, x2, wf)
        by_x2, dwf = pull(d1)
        return d1, d2 + by_x2, None, None, dwf, dwg

    apply = fw.make(forward=forward, backward=backward).apply

    def layer(x, w):
        return fw.np.tanh(x @ w)

    def reversible(x, wf, wg):
        return apply(x[:, :2], x[:, 2:], layer, layer, wf, wg)

    return reversible
