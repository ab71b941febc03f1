"""Losses, and the maps that losses are made of."""

import jax
import jax.numpy as jnp

from tests.parity import frameworks
from tests.parity.catalogue.case import Family, exact, integers, normal

CASES = Family()


@CASES.add("sparsemax", normal(3, 4))
def sparsemax(fw):
    """The point of the simplex that is nearest."""

    def forward(ctx, x, dim=-1):
        ctx.dim = dim
        order = fw.np.argsort(-x, dim)
        ordered = fw.take(x, order, dim)
        sums = fw.np.cumsum(ordered, dim) - 1
        rank = fw.np.arange(1, x.shape[dim] + 1, dtype=x.dtype)
        size = (rank * ordered > sums).sum(dim, keepdims=True)
        level = fw.take(sums, size - 1, dim) / size
        out = fw.np.clip(x - level, 0)
        ctx.save_for_backward(size, out)
        return out

    def backward(ctx, g):
        size, out = ctx.saved_tensors
        support = out > 0
        mean = (g * support).sum(ctx.dim, keepdims=True) / size
        return support * (g - mean), None

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("log_sum_exp", normal(3, 4), forward=True)
@exact(lambda x: jax.nn.logsumexp(x, 1))
def log_sum_exp(fw):
    """Of the last axis. Saves its input and its output; both modes."""

    def forward(ctx, x, dim):
        top = fw.np.amax(x, dim)
        out = fw.np.log(fw.np.exp(x - top[..., None]).sum(dim)) + top
        ctx.save_for_backward(x, out)
        ctx.save_for_forward(x, out)
        ctx.dim = dim
        return out

    def backward(ctx, g):
        x, out = ctx.saved_tensors
        softmax = fw.np.exp(x - out[..., None])
        return g[..., None] * softmax, None

    def jvp(ctx, t, _):
        x, out = ctx.saved_tensors
        return (t * fw.np.exp(x - out[..., None])).sum(ctx.dim)

    apply = fw.make(forward=forward, backward=backward, jvp=jvp).apply
    return lambda x: apply(x, -1)


_FAR = -1e30  # the log of nothing, which can still be subtracted


def forward_scores(fw, logp):
    """Scores of all ways to reach a state that stay or go on by one at each step."""

    def step(score, row):
        before = fw.np.concatenate([fw.np.full_like(score[:1], _FAR), score[:-1]])
        score = fw.np.logaddexp(score, before) + row[0]
        return score, (score,)

    far = fw.np.full_like(logp[0, 1:], _FAR)
    first = fw.np.concatenate([logp[0, :1], far])
    last, (rest,) = fw.scan(step, first, (logp[1:],))
    return fw.np.concatenate([first[None], rest]), last[-1]


# From here on intermediate values are saved: torch loses their derivative.
@CASES.add("alignment", normal(5, 3), second=False)
@exact(lambda x: -forward_scores(frameworks.Jaxfn(), jax.nn.log_softmax(x))[1])
def alignment(fw):
    """Minus the log of the sum over all monotone paths from the first to the last
    state, as in CTC without blanks. The gradient is known in forward: minus the
    probability that a path goes through a state."""

    def forward(ctx, logp):
        alpha, total = forward_scores(fw, logp)
        beta = fw.np.flip(forward_scores(fw, fw.np.flip(logp, (0, 1)))[0], (0, 1))
        ctx.save_for_backward(-fw.np.exp(alpha + beta - logp - total))
        return -total

    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        return g * grad

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x: apply(fw.nn.log_softmax(x, 1))


def plain_linear_cross_entropy(x, w, targets):
    logp = jax.nn.log_softmax(x @ w)
    return -jnp.take_along_axis(logp, targets[:, None], 1).mean()


@CASES.add(
    "linear_cross_entropy", normal(5, 3), normal(3, 4), integers(4, 5), second=False
)
@exact(plain_linear_cross_entropy)
def linear_cross_entropy(fw):
    """Mean cross entropy of x @ w, a few rows at a time, so that the logits of all
    rows never exist together; forward computes the gradients too."""

    def forward(ctx, x, w, targets, chunk):
        n = x.shape[0]
        loss, dw, dx = 0.0, fw.np.zeros_like(w), []
        for start in range(0, n, chunk):
            rows, labels = x[start : start + chunk], targets[start : start + chunk]
            logp = fw.nn.log_softmax(rows @ w, 1)
            hot = labels[:, None] == fw.np.arange(w.shape[1])
            loss = loss - (logp * hot).sum() / n
            dlogits = (fw.np.exp(logp) - fw.np.ones_like(logp) * hot) / n
            dx.append(dlogits @ w.T)
            dw = dw + rows.T @ dlogits
        ctx.save_for_backward(fw.np.concatenate(dx), dw)
        return loss

    def backward(ctx, g):
        dx, dw = ctx.saved_tensors
        return g * dx, g * dw, None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w, targets: apply(x, w, targets, 2)


def twice_smooth_l1(f, fw):
    return lambda x, y: f(x, fw.constant(y), 0.7) + f(x, y, 0.3)


def plain_smooth_l1(x, y, beta):
    size = jnp.abs(x - y)
    return jnp.where(size < beta, size * size / (2 * beta), size - beta / 2)


@CASES.add("smooth_l1", normal(3, 4), normal(3, 4), second=False)
@exact(twice_smooth_l1(plain_smooth_l1, frameworks.Jaxfn()))
def smooth_l1(fw):
    """Only the gradients that are needed are computed; the loss is not reduced."""

    def forward(ctx, x, y, beta):
        ctx.beta = beta
        ctx.save_for_backward(x - y)
        size = fw.np.abs(x - y)
        return fw.np.where(size < beta, size * size / (2 * beta), size - beta / 2)

    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        slope = fw.np.where(fw.np.abs(d) < ctx.beta, d / ctx.beta, fw.np.sign(d))
        need_x, need_y, _ = ctx.needs_input_grad
        return g * slope if need_x else None, -g * slope if need_y else None, None

    apply = fw.make(forward=forward, backward=backward).apply
    return twice_smooth_l1(apply, fw)
