"""Functions whose rules compute with NumPy and SciPy."""

# ruff: noqa: N803, N806, PERF401, RUF059, UP018
# They are written as the authors of such Functions write.

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.special
import torch
from numpy.fft import irfft2, rfft2
from scipy import ndimage
from scipy.interpolate import CubicSpline
from scipy.signal import convolve2d, correlate2d, lfilter
from torch.autograd import Function


class BadFFT(Function):
    @staticmethod
    def forward(ctx, input):
        numpy_input = input.detach().numpy()
        result = abs(rfft2(numpy_input))
        return input.new(result)

    @staticmethod
    def backward(ctx, grad_output):
        numpy_go = grad_output.numpy()
        result = irfft2(numpy_go)
        return grad_output.new(result)


class ScipyConv2d(Function):
    @staticmethod
    def forward(ctx, input, filter, bias):
        # detach so we can cast to NumPy
        input, filter, bias = input.detach(), filter.detach(), bias.detach()
        result = correlate2d(input.numpy(), filter.detach().numpy(), mode="valid")
        result += bias.numpy()
        ctx.save_for_backward(input, filter, bias)
        return torch.as_tensor(result, dtype=input.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        grad_output = grad_output.detach()
        input, filter, bias = ctx.saved_tensors
        grad_output = grad_output.numpy()
        grad_bias = np.sum(grad_output, keepdims=True)
        grad_input = convolve2d(grad_output, filter.numpy(), mode="full")
        grad_filter = correlate2d(input.numpy(), grad_output, mode="valid")
        return (
            torch.from_numpy(grad_input),
            torch.from_numpy(grad_filter).to(torch.float),
            torch.from_numpy(grad_bias).to(torch.float),
        )


def to_numpy(tensor):
    return tensor.cpu().numpy()


class NumpySort(Function):
    @staticmethod
    def forward(x, dim):
        device = x.device
        x = to_numpy(x)
        ind = np.argsort(x, axis=dim)
        ind_inv = np.argsort(ind, axis=dim)
        result = np.take_along_axis(x, ind, axis=dim)
        return (
            torch.tensor(result, device=device),
            torch.tensor(ind, device=device),
            torch.tensor(ind_inv, device=device),
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, dim = inputs
        _, ind, ind_inv = output
        ctx.mark_non_differentiable(ind, ind_inv)
        ctx.save_for_backward(ind, ind_inv)
        ctx.dim = dim

    @staticmethod
    def backward(ctx, grad_output, _0, _1):
        ind, ind_inv = ctx.saved_tensors
        g = to_numpy(grad_output)
        return torch.tensor(
            np.take_along_axis(g, to_numpy(ind_inv), axis=ctx.dim)
        ), None


class NumpyCube(Function):
    @staticmethod
    def forward(ctx, x):
        x_np = to_numpy(x)
        dx = torch.tensor(3 * x_np**2)
        ctx.save_for_backward(x, dx)
        return torch.tensor(x_np**3)

    @staticmethod
    def backward(ctx, g):
        x, dx = ctx.saved_tensors
        return g * dx


def soft_dtw_forward(D, gamma):
    """The recursion."""
    n, m = D.shape
    R = np.ones((n + 2, m + 2)) * np.inf
    R[0, 0] = 0
    for j in range(1, m + 1):
        for i in range(1, n + 1):
            r0 = -R[i - 1, j - 1] / gamma
            r1 = -R[i - 1, j] / gamma
            r2 = -R[i, j - 1] / gamma
            rmax = max(max(r0, r1), r2)  # the largest
            rsum = np.exp(r0 - rmax) + np.exp(r1 - rmax) + np.exp(r2 - rmax)
            softmin = -gamma * (np.log(rsum) + rmax)
            R[i, j] = D[i - 1, j - 1] + softmin
    return R


def soft_dtw_backward(D_, R, gamma):
    n, m = D_.shape
    D = np.zeros((n + 2, m + 2))
    E = np.zeros((n + 2, m + 2))
    D[1 : n + 1, 1 : m + 1] = D_
    E[-1, -1] = 1
    R = R.copy()
    R[:, -1] = -np.inf
    R[-1, :] = -np.inf
    R[-1, -1] = R[-2, -2]
    for j in range(m, 0, -1):
        for i in range(n, 0, -1):
            a0 = (R[i + 1, j] - R[i, j] - D[i + 1, j]) / gamma
            b0 = (R[i, j + 1] - R[i, j] - D[i, j + 1]) / gamma
            c0 = (R[i + 1, j + 1] - R[i, j] - D[i + 1, j + 1]) / gamma
            E[i, j] = (
                E[i + 1, j] * np.exp(a0)
                + E[i, j + 1] * np.exp(b0)
                + E[i + 1, j + 1] * np.exp(c0)
            )
    return E[1 : n + 1, 1 : m + 1]


class SoftDTW(Function):
    @staticmethod
    def forward(ctx, D, gamma=1.0):
        D_ = D.detach().cpu().numpy()
        R = torch.Tensor(soft_dtw_forward(D_, gamma)).type(D.dtype)
        ctx.save_for_backward(D, R)
        ctx.gamma = gamma
        return R[-2, -2]

    @staticmethod
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        E = torch.Tensor(
            soft_dtw_backward(
                D.detach().cpu().numpy(), R.detach().cpu().numpy(), ctx.gamma
            )
        ).type(D.dtype)
        return grad_output * E, None


class Digamma(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(scipy.special.gammaln(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.from_numpy(scipy.special.digamma(x.numpy()))


class Inline(Function):
    """Writes into arrays of NumPy, in place."""

    @staticmethod
    def forward(ctx, x, k):
        a = x.detach().numpy()
        n = a.shape[0]
        out = np.zeros_like(a)
        table = np.zeros(n, dtype=np.float32)
        for i in range(n):
            table[i] = np.sqrt(i + 1)
        for i in range(n):
            out[i] = a[max(0, i - k) : i + 1].mean(axis=0)
        out *= 2
        scale = np.float32(1 / np.sqrt(n))
        ctx.n, ctx.k = n, k
        ctx.table = table
        return torch.from_numpy(out * scale * table[:, None])

    @staticmethod
    def backward(ctx, g):
        n, k = ctx.n, ctx.k
        g = (g.numpy() * 2) * np.float32(1 / np.sqrt(n)) * ctx.table[:, None]
        grad = np.zeros_like(g)
        for i in range(n):
            lo = max(0, i - k)
            grad[lo : i + 1] += g[i] / (i + 1 - lo)
        return torch.from_numpy(grad), None


class Inverse(Function):
    @staticmethod
    def forward(ctx, a):
        b = np.linalg.inv(a.detach().numpy())
        b_t = torch.from_numpy(b)
        ctx.save_for_backward(b_t)
        return b_t

    @staticmethod
    def backward(ctx, g):
        (b,) = ctx.saved_tensors
        b = b.numpy()
        return torch.from_numpy(-b.T @ g.numpy() @ b.T)


class Loops(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        rows = []
        for row in a:
            rows.append(row / np.linalg.norm(row))
        tot = 0.0
        for v in a[0]:
            tot = tot + v * v
        return torch.from_numpy(np.stack(rows) * tot)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Ints(Function):
    @staticmethod
    def forward(ctx, i, x):
        a, n = x.detach().numpy(), i.numpy()
        m = n.mean()
        s = n.sum() / n.size
        h = np.bincount(n.ravel(), minlength=5)
        return (
            torch.from_numpy(
                (a * np.float32(s) + n // 2 + n / 3 + m).astype(np.float32)
            )
            + torch.from_numpy(h).sum()
        )

    @staticmethod
    def backward(ctx, g):
        return None, g * 2


class Masked2(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy().copy()
        a[a < 0] = 0
        b = np.where(a > 1, np.float32(1), a)
        ctx.m = b > 0
        return torch.from_numpy(b)

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(ctx.m.astype(np.float32))


class Optimise(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().double().numpy()
        r = scipy.optimize.minimize(lambda w: ((w - a) ** 2).sum(), np.zeros(5))
        return torch.from_numpy(r.x).float()

    @staticmethod
    def backward(ctx, g):
        return g


class Sqrtm(Function):
    @staticmethod
    def forward(ctx, x):
        m = x.detach().cpu().numpy().astype(np.float64)
        m = m @ m.T + np.eye(3)
        s = torch.from_numpy(scipy.linalg.sqrtm(m).real).to(x)
        ctx.save_for_backward(s)
        return s

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g @ s


class Gaussian(Function):
    @staticmethod
    def forward(ctx, x, sigma=1.5):
        ctx.sigma = sigma
        return torch.tensor(
            ndimage.gaussian_filter1d(x.detach().numpy(), sigma, axis=-1)
        )

    @staticmethod
    def backward(ctx, g):
        return torch.tensor(ndimage.gaussian_filter1d(g.numpy(), ctx.sigma, axis=-1))


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        a = np.asarray(x.detach())
        q, r = np.linalg.qr(a.T)
        ctx.shape = a.shape
        return torch.from_numpy(np.ascontiguousarray(q)), torch.from_numpy(r)

    @staticmethod
    def backward(ctx, gq, gr):
        return torch.zeros(*ctx.shape, dtype=torch.double)


class Scalars(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        mu, sd = a.mean(), a.std()
        n = np.float32(np.sqrt(a.size))
        big = np.float64(2.0) * a
        ctx.c = n / sd
        return torch.from_numpy(((a - mu) / sd * n + big).astype("float32"))

    @staticmethod
    def backward(ctx, g):
        return g * torch.tensor(ctx.c)


class Helpers:
    @staticmethod
    def window(n):
        return np.hanning(n).astype(np.float32)


def smooth(a, w):
    """Smoothed rows."""
    return np.stack([np.convolve(row, w, mode="same") for row in a])


def both(x, w):
    return torch.from_numpy(smooth(x.detach().numpy(), w))


class ViaHelpers(Function):
    @staticmethod
    def forward(ctx, x):
        w = Helpers.window(5)
        ctx.w = w
        return both(x, w)

    @staticmethod
    def backward(ctx, g):
        return both(g, ctx.w[::-1])


class Many(Function):
    @staticmethod
    def forward(ctx, x, y):
        x, y = x.detach().numpy(), y.detach().numpy()
        ctx.x, ctx.y = x, y
        d = np.subtract.outer(x, y)
        e = np.exp(-np.abs(d))
        v, w = np.linalg.eigh(e + e.T)
        return torch.from_numpy(e), torch.from_numpy(np.abs(v))

    @staticmethod
    def backward(ctx, g, h):
        d = ctx.x[:, None] - ctx.y[None, :]
        s = -np.sign(d) * np.exp(-np.abs(d)) * g.numpy()
        return torch.from_numpy(s.sum(1)), torch.from_numpy(-s.sum(axis=0))


class Annotated(Function):
    @staticmethod
    def forward(ctx, x):
        a: np.ndarray = x.detach().numpy()
        return torch.from_numpy(scaled(a, 2.0))

    @staticmethod
    def backward(ctx, g):
        return torch.Tensor(scaled(g.numpy(), 2.0))


def scaled(a: np.ndarray, by: float) -> np.ndarray:
    out = np.empty_like(a)
    for i, row in enumerate(a):
        out[i] = row * by
    return out


class Device(Function):
    @staticmethod
    def forward(ctx, x):
        device = x.device
        ctx.device = x.device
        w = torch.ones(3, device=device)
        ctx.save_for_backward(w)
        return x * w + filled(3, device)

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        here = g.device
        return g.to(ctx.device) * w.to(here)


def filled(n, device):
    return torch.full((n,), 2.0, device=device)


class LiftedConstant(Function):
    """A table that is filled with constants stays one of NumPy."""

    @staticmethod
    def forward(ctx, x):
        table = np.ones(3) * 2
        table[1] = 5
        table += 1
        a = x.detach().numpy()
        moved = np.ones(3, dtype=a.dtype) * 2
        moved += a
        return torch.from_numpy(moved * table.astype(a.dtype))

    @staticmethod
    def backward(ctx, g):
        return g * 3


class FromScalar(Function):
    """A number that NumPy computed is traced; one of a shape is not."""

    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        top = a.max()
        if np.sqrt(a.shape[0]) > 1:
            top = top * np.float32(2)
        ctx.top = top
        return torch.from_numpy(a * top)

    @staticmethod
    def backward(ctx, g):
        return g * float(2.0) * torch.as_tensor(ctx.top)


class FromList(Function):
    @staticmethod
    def forward(ctx, x):
        rows = [r.numpy() for r in x.detach()]
        return torch.from_numpy(np.concatenate([rows[1], rows[0]]))

    @staticmethod
    def backward(ctx, g):
        a, b = np.split(g.numpy(), 2)
        return torch.from_numpy(np.stack([b, a]))


class HelperWrites(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy().copy()
        doubled_in_place(a)
        return torch.from_numpy(a)

    @staticmethod
    def backward(ctx, g):
        return g


def doubled_in_place(a):
    a *= 2


class Chance(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(jittered(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        return g


def jittered(a):
    return a + np.random.default_rng(0).normal(size=a.shape).astype(np.float32)


class Shared(Function):
    """A helper that gets tensors too is no function of NumPy."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(twice(x.detach().numpy())) + twice(x)

    @staticmethod
    def backward(ctx, g):
        return g * 4


def twice(x):
    return x * 2


class Counts(Function):
    """Of whole numbers NumPy has other dtypes than JAX."""

    @staticmethod
    def forward(ctx, i, x):
        n = np.sum(i.numpy(), axis=0)
        return x * torch.from_numpy(n)

    @staticmethod
    def backward(ctx, g):
        return None, g * 2


class ImagView(Function):
    @staticmethod
    def forward(ctx, z):
        a = z.detach().numpy().copy()
        b = np.imag(a)
        b[0] = 5
        return torch.from_numpy(a)

    @staticmethod
    def backward(ctx, g):
        return g


class Unreached(Function):
    """A helper calls, on another day, what computes with tensors."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(chosen(x.detach().numpy(), True)) + last_sums(x)

    @staticmethod
    def backward(ctx, g):
        return g * 2 + g.sum(-1, keepdim=True)


def last_sums(x):
    return x.sum(-1)[..., None]


def chosen(a, plain):
    return a * 2 if plain else last_sums(a)


class Sparse(Function):
    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix.T.tocsr()
        return torch.from_numpy(matrix @ x.detach().numpy())

    @staticmethod
    def backward(ctx, g):
        return None, torch.from_numpy(np.asarray(ctx.matrix.dot(g.numpy())))


class Interpolated(Function):
    @staticmethod
    def forward(ctx, x):
        grid = np.linspace(-5, 5, 9)
        found = CubicSpline(grid, np.sin(grid))
        ctx.slope, ctx.at = found.derivative(), x.detach().numpy()
        return torch.from_numpy(found(x.detach().numpy())).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(ctx.slope(ctx.at)).to(g.dtype)


class Fitted(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        found = CubicSpline(np.arange(len(a)), a)
        return torch.from_numpy(found(a)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class Comprehended(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        w = np.ones(2, dtype=a.dtype)
        return torch.from_numpy(np.stack([np.convolve(r, w, "same") for r in a]))

    @staticmethod
    def backward(ctx, g):
        return g


LEVELS = np.array([0.5, 2.0])


class LookUp(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        i = (a > 0).astype(np.int64)
        return torch.from_numpy(LEVELS[i] + np.eye(2)[i][..., 0]).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class Ranks(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()

        order = np.argsort(a)
        rank = np.empty(len(a), dtype=np.int64)
        rank[order] = np.arange(len(a))
        counts = np.zeros(3)
        counts[rank[0]] += 1
        return torch.from_numpy(rank + counts.sum()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class ConstantMethod(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        w = np.arange(9.0, dtype=np.float32).reshape(3, 3)
        ctx.w = w
        return torch.from_numpy(w.dot(a))

    @staticmethod
    def backward(ctx, g):
        return torch.from_numpy(ctx.w.T.dot(g.numpy()))


class Filtered(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        return torch.from_numpy(
            lfilter(np.array([1.0, 2.0]), np.array([1.0, 0.3]), a)
        ).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class InnerLambda(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()

        f = lambda v: np.abs(v) ** 2  # noqa: E731

        def twice(v):
            return f(v) * 2

        return torch.from_numpy(twice(a))

    @staticmethod
    def backward(ctx, g):
        return g


SHARED = np.zeros(4, dtype=np.float32)


class SharedTable(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        SHARED[:3] = a * 2
        return torch.from_numpy(SHARED[:3] + a)

    @staticmethod
    def backward(ctx, g):
        return g


class ClipNames(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        return torch.from_numpy(np.clip(a, a_min=0, a_max=None))

    @staticmethod
    def backward(ctx, g):
        return g


class Ordered(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        out = np.zeros((2, 3), dtype=a.dtype, order="F")
        out[0] = a[1]
        return torch.from_numpy(out.T.flatten("F").reshape(3, 2))

    @staticmethod
    def backward(ctx, g):
        return torch.zeros(2, 3)


class LoopCarry(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()

        before = np.zeros(3, dtype=a.dtype)
        for i in range(2):
            after = before.copy()
            after[i] = a[i]
            before = after
        return torch.from_numpy(before)

    @staticmethod
    def backward(ctx, g):
        return g


def normed(a):
    return a / np.sqrt((a * a).sum())


class HostedConstant(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        w = normed(np.arange(1.0, 4.0))
        w[0] = 5
        return torch.from_numpy(normed(a) * w.astype(a.dtype))

    @staticmethod
    def backward(ctx, g):
        return g


class LeastOfThree(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        m = min(a[0], a[1], a[2])
        return torch.from_numpy(a - m)

    @staticmethod
    def backward(ctx, g):
        return g
