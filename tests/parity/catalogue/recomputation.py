"""Backward runs other functions again, and differentiates them."""

import jax
import jax.numpy as jnp

import jaxfn
from tests.parity.catalogue.case import Case, normal


class Recompute(jaxfn.Function):
    """A function and its arguments: backward runs the function again."""

    @staticmethod
    def forward(ctx, function, *args):
        ctx.function = function
        ctx.save_for_backward(*args)
        return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        outs, pull = jax.vjp(ctx.function, *ctx.saved_tensors)
        return None, *pull(tuple(grads) if isinstance(outs, tuple) else grads[0])


def _block(x, w, b):
    h = jnp.tanh(x @ w + b)
    return h * x, h.sum(0)


def torch_recompute(torch):
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, *args):
            ctx.function = function
            ctx.save_for_backward(*args)
            with torch.no_grad():
                return function(*args)

        @staticmethod
        def backward(ctx, *grads):
            args = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                outs = ctx.function(*args)
            return None, *torch.autograd.grad(outs, args, grads)

    def block(x, w, b):
        h = torch.tanh(x @ w + b)
        return h * x, h.sum(0)

    return lambda *args: Recompute.apply(block, *args)


class OdeAdjoint(jaxfn.Function):
    """Runge-Kutta steps of y' = f(y, w); backward solves the adjoint equation back in
    time together with y, so that no step is saved. Not the gradient of the steps."""

    @staticmethod
    def forward(ctx, f, y, w, t, steps):
        out = OdeAdjoint.solve(lambda y: f(y, w), y, t, steps)
        ctx.f, ctx.t, ctx.steps = f, t, steps
        ctx.save_for_backward(out, w)
        return out

    @staticmethod
    def solve(f, y, t, steps):
        h = t / steps

        def add(y, k, h):
            return jax.tree.map(lambda a, b: a + h * b, y, k)

        for _ in range(steps):
            k1 = f(y)
            k2 = f(add(y, k1, h / 2))
            k3 = f(add(y, k2, h / 2))
            k4 = f(add(y, k3, h))
            for k, share in ((k1, 6), (k2, 3), (k3, 3), (k4, 6)):
                y = add(y, k, h / share)
        return y

    @staticmethod
    def backward(ctx, g):
        y, w = ctx.saved_tensors

        def adjoint(state):
            y, a, _ = state
            dy, pull = jax.vjp(ctx.f, y, w)
            da, dw = pull(a)
            return dy, jax.tree.map(jnp.negative, da), -dw

        start = y, g, jnp.zeros_like(w)
        _, dy, dw = OdeAdjoint.solve(adjoint, start, -ctx.t, ctx.steps)
        return None, dy, dw, None, None


def _field(y, w):
    return jnp.tanh(y @ w) - y


def torch_ode_adjoint(torch):
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

    class OdeAdjoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, f, y, w, t, steps):
            ctx.f, ctx.t, ctx.steps = f, t, steps
            with torch.no_grad():
                (out,) = solve(lambda y: [f(y, w)], [y], t, steps)
            ctx.save_for_backward(out, w)
            return out

        @staticmethod
        def backward(ctx, g):
            y, w = ctx.saved_tensors

            def adjoint(y, a, _):
                with torch.enable_grad():
                    y = y.detach().requires_grad_()
                    p = w.detach().requires_grad_()
                    dy = ctx.f(y, p)
                    da, dw = torch.autograd.grad(dy, (y, p), a)
                return dy.detach(), -da, -dw

            start = [y, g, torch.zeros_like(w)]
            _, dy, dw = solve(adjoint, start, -ctx.t, ctx.steps)
            return None, dy, dw, None, None

    def field(y, w):
        return torch.tanh(y @ w) - y

    return lambda y, w: OdeAdjoint.apply(field, y, w, 1.0, 4)


class Reversible(jaxfn.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1): saves only its outputs, from which backward
    computes the inputs again."""

    @staticmethod
    def forward(ctx, x1, x2, f, g, *params):
        ctx.f, ctx.g = f, g
        wf, wg = params
        y1 = x1 + f(x2, wf)
        y2 = x2 + g(y1, wg)
        ctx.save_for_backward(y1, y2, *params)
        return y1, y2

    @staticmethod
    def backward(ctx, d1, d2):
        y1, y2, wf, wg = ctx.saved_tensors
        out, pull = jax.vjp(ctx.g, y1, wg)
        x2 = y2 - out
        by_y1, dwg = pull(d2)
        d1 = d1 + by_y1
        _, pull = jax.vjp(ctx.f, x2, wf)
        by_x2, dwf = pull(d1)
        return d1, d2 + by_x2, None, None, dwf, dwg


def _layer(x, w):
    return jnp.tanh(x @ w)


def reversible(x, wf, wg):
    return Reversible.apply(x[:, :2], x[:, 2:], _layer, _layer, wf, wg)


def torch_reversible(torch):
    class Reversible(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x1, x2, f, g, *params):
            ctx.f, ctx.g = f, g
            wf, wg = params
            with torch.no_grad():
                y1 = x1 + f(x2, wf)
                y2 = x2 + g(y1, wg)
            ctx.save_for_backward(y1, y2, *params)
            return y1, y2

        @staticmethod
        def backward(ctx, d1, d2):
            y1, y2, wf, wg = (v.detach().requires_grad_() for v in ctx.saved_tensors)
            with torch.enable_grad():
                out = ctx.g(y1, wg)
            by_y1, dwg = torch.autograd.grad(out, (y1, wg), d2)
            d1 = d1 + by_y1
            x2 = (y2 - out).detach().requires_grad_()
            with torch.enable_grad():
                out = ctx.f(x2, wf)
            by_x2, dwf = torch.autograd.grad(out, (x2, wf), d1)
            return d1, d2 + by_x2, None, None, dwf, dwg

    def layer(x, w):
        return torch.tanh(x @ w)

    def reversible(x, wf, wg):
        return Reversible.apply(x[:, :2], x[:, 2:], layer, layer, wf, wg)

    return reversible


def plain_reversible(x, wf, wg):
    y1 = x[:, :2] + _layer(x[:, 2:], wf)
    return y1, x[:, 2:] + _layer(y1, wg)


CASES = [
    # torch's backward leaves autograd, or saves intermediate values.
    Case(
        "recompute",
        lambda *args: Recompute.apply(_block, *args),
        torch_recompute,
        (normal(3, 4), normal(4, 4), normal(4)),
        second=False,
        exact=_block,
    ),
    Case(
        "ode_adjoint",
        lambda y, w: OdeAdjoint.apply(_field, y, w, 1.0, 4),
        torch_ode_adjoint,
        (normal(3, 4), normal(4, 4)),
        second=False,
    ),
    Case(
        "reversible",
        reversible,
        torch_reversible,
        (normal(3, 4), normal(2, 2), normal(2, 2)),
        second=False,
        exact=plain_reversible,
    ),
]
