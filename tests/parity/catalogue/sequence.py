"""Rotary embedding, attention, a selective scan."""

import jax
import jax.numpy as jnp

from tests.parity.catalogue.case import (
    Family,
    exact,
    halves,
    normal,
    uniform,
)

CASES = Family()


@CASES.add("rotary", normal(3, 4), normal(3, 4))
def rotary(fw):
    """Rotary embedding: backward turns the other way."""

    def turn(x, cos, sin):
        a, b = halves(x)
        return fw.np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return turn(q, cos, sin), turn(k, cos, sin)

    def backward(ctx, gq, gk):
        cos, sin = ctx.saved_tensors
        return turn(gq, cos, -sin), turn(gk, cos, -sin), None, None

    apply = fw.make(forward=forward, backward=backward).apply

    def rotary(q, k):
        angle = fw.np.arange(len(q), dtype=q.dtype)[:, None]
        angle = angle * fw.np.asarray([1, 0.1], dtype=q.dtype)
        return apply(q, k, fw.np.cos(angle), fw.np.sin(angle))

    return rotary


def plain_attention(q, k, v):
    scores = jnp.where(jnp.tri(len(q)), q @ k.T / q.shape[-1] ** 0.5, -1e9)
    return jax.nn.softmax(scores) @ v, jax.nn.logsumexp(scores, -1, keepdims=True)


@CASES.add("attention", normal(3, 4), normal(3, 4), normal(3, 4))
@exact(plain_attention)
def attention(fw):
    class Attention(fw.Function):
        """Saves its inputs and, of the scores, only the log of their sums."""

        @staticmethod
        def forward(ctx, q, k, v, causal):
            scores = Attention.scores(q, k, causal)
            sums = fw.special.logsumexp(scores, -1, keepdims=True)
            out = fw.np.exp(scores - sums) @ v
            ctx.save_for_backward(q, k, v, out, sums)
            ctx.causal = causal
            return out, sums

        @staticmethod
        def scores(q, k, causal):
            scores = q @ k.T / q.shape[-1] ** 0.5
            future = fw.np.triu(fw.np.ones_like(scores), 1) > 0
            return fw.np.where(future & causal, -1e9, scores)

        @staticmethod
        def backward(ctx, g, g_sums):
            q, k, v, out, sums = ctx.saved_tensors
            p = fw.np.exp(Attention.scores(q, k, ctx.causal) - sums)
            along = (g * out).sum(-1, keepdims=True)
            ds = p * (g @ v.T - along + g_sums) / q.shape[-1] ** 0.5
            return ds @ k, ds.T @ q, p.T @ g, None

    return lambda q, k, v: Attention.apply(q, k, v, True)


def plain_selective_scan(x, decay, b, c):
    h, out = jnp.zeros((x.shape[1], b.shape[1]), x.dtype), []
    for t in range(len(x)):
        h = decay[t][:, None] * h + x[t][:, None] * b[t]
        out.append(h @ c[t])
    return jnp.stack(out)


@CASES.add(
    "selective_scan",
    normal(4, 2),
    uniform(0.3, 0.9, 4, 2),
    normal(4, 3),
    normal(4, 3),
    second=False,
)
@exact(plain_selective_scan)
def selective_scan(fw):
    """h[t] = decay[t] h[t-1] + x[t] b[t] and y[t] = h[t] . c[t], for each channel;
    backward runs the recursion from the end."""

    def forward(ctx, x, decay, b, c):
        def step(h, now):
            x, decay, b = now
            h = decay[:, None] * h + x[:, None] * b
            return h, (h,)

        start = fw.np.zeros((x.shape[1], b.shape[1]), dtype=x.dtype)
        _, (hs,) = fw.scan(step, start, (x, decay, b))
        ctx.save_for_backward(x, decay, b, c, hs)
        return (hs * c[:, None]).sum(-1)

    def backward(ctx, g):
        x, decay, b, c, hs = ctx.saved_tensors

        def step(later, now):
            g, decay_next, c = now
            dh = g[:, None] * c + decay_next[:, None] * later
            return dh, (dh,)

        zeros, concatenate = fw.np.zeros_like, fw.np.concatenate
        nexts = concatenate([decay[1:], zeros(decay[:1])])
        _, (dhs,) = fw.scan(step, zeros(hs[0]), (g, nexts, c), reverse=True)
        before = concatenate([zeros(hs[:1]), hs[:-1]])
        return (
            (dhs * b[:, None]).sum(-1),
            (dhs * before).sum(-1),
            (dhs * x[..., None]).sum(1),
            (g[..., None] * hs).sum(1),
        )

    return fw.make(forward=forward, backward=backward).apply
