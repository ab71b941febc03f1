"""Attention, rotations, scans, solvers of differential equations, recomputation."""

import jax
import jax.numpy as jnp
from jax import lax

import jaxfn
from tests.parity.catalogue.case import Case, normal, uniform


def _turn(x, cos, sin):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Rotary(jaxfn.Function):
    """Rotary embedding: backward turns the other way."""

    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _turn(q, cos, sin), _turn(k, cos, sin)

    @staticmethod
    def backward(ctx, gq, gk):
        cos, sin = ctx.saved_tensors
        return _turn(gq, cos, -sin), _turn(gk, cos, -sin), None, None


def rotary(q, k):
    angle = jnp.arange(q.shape[0], dtype=q.dtype)[:, None] * jnp.array(
        [1, 0.1], q.dtype
    )
    return Rotary.apply(q, k, jnp.cos(angle), jnp.sin(angle))


def torch_rotary(torch):
    def turn(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    class Rotary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, cos, sin):
            ctx.save_for_backward(cos, sin)
            return turn(q, cos, sin), turn(k, cos, sin)

        @staticmethod
        def backward(ctx, gq, gk):
            cos, sin = ctx.saved_tensors
            return turn(gq, cos, -sin), turn(gk, cos, -sin), None, None

    def rotary(q, k):
        angle = torch.arange(len(q), dtype=q.dtype)[:, None]
        angle = angle * torch.tensor([1, 0.1], dtype=q.dtype)
        return Rotary.apply(q, k, angle.cos(), angle.sin())

    return rotary


class Attention(jaxfn.Function):
    """Saves its inputs and, of the scores, only the log of their sums."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        scores = Attention.scores(q, k, causal)
        sums = jax.nn.logsumexp(scores, -1, keepdims=True)
        out = jnp.exp(scores - sums) @ v
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.causal = causal
        return out, sums

    @staticmethod
    def scores(q, k, causal):
        scores = q @ k.T / q.shape[-1] ** 0.5
        future = jnp.triu(jnp.ones(scores.shape, bool), 1)
        return jnp.where(future & causal, -1e9, scores)

    @staticmethod
    def backward(ctx, g, g_sums):
        q, k, v, out, sums = ctx.saved_tensors
        p = jnp.exp(Attention.scores(q, k, ctx.causal) - sums)
        along = (g * out).sum(-1, keepdims=True)
        ds = p * (g @ v.T - along + g_sums) / q.shape[-1] ** 0.5
        return ds @ k, ds.T @ q, p.T @ g, None


def torch_attention(torch):
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal):
            scores = Attention.scores(q, k, causal)
            sums = scores.logsumexp(-1, keepdim=True)
            out = (scores - sums).exp() @ v
            ctx.save_for_backward(q, k, v, out, sums)
            ctx.causal = causal
            return out, sums

        @staticmethod
        def scores(q, k, causal):
            scores = q @ k.T / q.size(-1) ** 0.5
            if causal:
                future = torch.ones_like(scores, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, -1e9)
            return scores

        @staticmethod
        def backward(ctx, g, g_sums):
            q, k, v, out, sums = ctx.saved_tensors
            p = (Attention.scores(q, k, ctx.causal) - sums).exp()
            along = (g * out).sum(-1, keepdim=True)
            ds = p * (g @ v.T - along + g_sums) / q.size(-1) ** 0.5
            return ds @ k, ds.T @ q, p.T @ g, None

    return lambda q, k, v: Attention.apply(q, k, v, True)


def plain_attention(q, k, v):
    scores = Attention.scores(q, k, True)
    return jax.nn.softmax(scores) @ v, jax.nn.logsumexp(scores, -1, keepdims=True)


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


class SelectiveScan(jaxfn.Function):
    """h[t] = decay[t] h[t-1] + x[t] b[t] and y[t] = h[t] . c[t], for each channel;
    backward runs the recursion from the end."""

    @staticmethod
    def forward(ctx, x, decay, b, c):
        def step(h, now):
            x, decay, b = now
            h = decay[:, None] * h + x[:, None] * b
            return h, h

        start = jnp.zeros((x.shape[1], b.shape[1]), x.dtype)
        _, hs = lax.scan(step, start, (x, decay, b))
        ctx.save_for_backward(x, decay, b, c, hs)
        return (hs * c[:, None]).sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, decay, b, c, hs = ctx.saved_tensors

        def step(later, now):
            g, decay_next, c = now
            dh = g[:, None] * c + decay_next[:, None] * later
            return dh, dh

        nexts = jnp.concatenate([decay[1:], jnp.zeros_like(decay[:1])])
        _, dhs = lax.scan(step, jnp.zeros_like(hs[0]), (g, nexts, c), reverse=True)
        before = jnp.concatenate([jnp.zeros_like(hs[:1]), hs[:-1]])
        return (
            (dhs * b[:, None]).sum(-1),
            (dhs * before).sum(-1),
            (dhs * x[..., None]).sum(1),
            (g[..., None] * hs).sum(1),
        )


def torch_selective_scan(torch):
    class SelectiveScan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, decay, b, c):
            h = x.new_zeros(x.shape[1], b.shape[1])
            hs = []
            for t in range(len(x)):
                h = decay[t, :, None] * h + x[t, :, None] * b[t]
                hs.append(h)
            ctx.save_for_backward(x, decay, b, c, *hs)
            return torch.stack([h @ c_t for h, c_t in zip(hs, c, strict=True)])

        @staticmethod
        def backward(ctx, g):
            x, decay, b, c, *hs = ctx.saved_tensors
            dx, ddecay, db, dc = (torch.zeros_like(v) for v in (x, decay, b, c))
            dh = torch.zeros_like(hs[0])
            for t in reversed(range(len(hs))):
                dh = dh + g[t, :, None] * c[t]
                dc[t] = g[t] @ hs[t]
                dx[t] = dh @ b[t]
                db[t] = x[t] @ dh
                if t > 0:
                    ddecay[t] = (dh * hs[t - 1]).sum(-1)
                dh = dh * decay[t, :, None]
            return dx, ddecay, db, dc

    return SelectiveScan.apply


def plain_selective_scan(x, decay, b, c):
    h, out = jnp.zeros((x.shape[1], b.shape[1]), x.dtype), []
    for t in range(len(x)):
        h = decay[t][:, None] * h + x[t][:, None] * b[t]
        out.append(h @ c[t])
    return jnp.stack(out)


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
    Case("rotary", rotary, torch_rotary, (normal(3, 4), normal(3, 4))),
    Case(
        "attention",
        lambda q, k, v: Attention.apply(q, k, v, True),
        torch_attention,
        (normal(3, 4), normal(3, 4), normal(3, 4)),
        exact=plain_attention,
    ),
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
        "selective_scan",
        SelectiveScan.apply,
        torch_selective_scan,
        (normal(4, 2), uniform(0.3, 0.9, 4, 2), normal(4, 3), normal(4, 3)),
        second=False,
        exact=plain_selective_scan,
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
