"""Linear algebra and implicit functions: backward solves a linear system."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from tests.parity.catalogue.case import (
    Family,
    complex_normal,
    exact,
    normal,
    positive_definite,
    uniform,
)

CASES = Family()


@CASES.add("matrix_root", positive_definite(3))
def matrix_root(fw):
    """The square root S of a positive definite matrix. Its gradient G solves
    Lyapunov's equation S G + G S = g, as a system in the elements of G."""

    def forward(ctx, a):
        values, vectors = fw.np.linalg.eigh(a)
        root = (vectors * fw.np.sqrt(values)) @ vectors.T
        ctx.save_for_backward(root)
        return root

    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        one = fw.np.eye(len(root), dtype=root.dtype)
        system = fw.np.kron(root, one) + fw.np.kron(one, root)
        return fw.np.linalg.solve(system, g.reshape(-1)).reshape(g.shape)

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("fixed_point", normal(4), uniform(-1, 1, 4, 4))
def fixed_point(fw):
    """z = tanh(z w + x): a layer of infinite depth. Backward solves for what all
    depths together send back."""

    def forward(ctx, x, w):
        z = fw.repeat(60, lambda z: fw.np.tanh(z @ w + x), fw.np.zeros_like(x))
        ctx.save_for_backward(z, w)
        return z

    def backward(ctx, g):
        z, w = ctx.saved_tensors
        slope = 1 - z * z
        u = fw.np.linalg.solve(fw.np.eye(len(z), dtype=z.dtype) - w * slope, g)
        return u * slope, fw.np.outer(z, u * slope)

    apply = fw.make(forward=forward, backward=backward).apply
    return lambda x, w: apply(x, w / 4)


@CASES.add(
    "quadratic_program",
    positive_definite(3),
    normal(3),
    normal(2, 3),
    uniform(-0.5, 0.5, 2),
)
def quadratic_program(fw):
    """The x that minimises x q x / 2 + p x where a x <= b.

    The multipliers are found by turns, each with the others held; they are an
    output, too. Backward differentiates the conditions of Karush, Kuhn and Tucker.
    """

    def forward(ctx, q, p, a, b):
        inverse = fw.np.linalg.inv(q)
        h, d = a @ inverse @ a.T, b + a @ inverse @ p

        def turn(m):
            for i in range(len(b)):
                new = fw.np.clip(m[i] - (h[i] @ m + d[i]) / h[i, i], 0)
                m = fw.np.concatenate([m[:i], new[None], m[i + 1 :]])
            return m

        m = fw.repeat(200, turn, fw.np.zeros_like(b))
        x = -inverse @ (p + a.T @ m)
        ctx.save_for_backward(q, a, x, m)
        return x, m

    def backward(ctx, gx, gm):
        q, a, x, m = ctx.saved_tensors
        # d/dx, d/dm of (q x + p + a m, active (a x - b) + (1 - active) m)
        active = fw.np.ones_like(m) * (m > 0)
        lower = [active[:, None] * a, fw.np.diag(1 - active)]
        upper = fw.np.concatenate([q, a.T], 1)
        system = fw.np.concatenate([upper, fw.np.concatenate(lower, 1)])
        u = -fw.np.linalg.solve(system.T, fw.np.concatenate([gx, gm]))
        ux, um, outer = u[: len(x)], u[len(x) :] * active, fw.np.outer
        return outer(ux, x), ux, outer(um, x) + outer(m, ux), -um

    return fw.make(forward=forward, backward=backward).apply


def _host_solve(a, b):
    return scipy.linalg.solve(np.asarray(a), np.asarray(b)).astype(b.dtype)


@CASES.add("scipy_solve", positive_definite(3), normal(3))
@exact(jnp.linalg.solve)
def scipy_solve(fw):
    """a x = b by SciPy, on the host; backward is a solve with the transposed matrix
    by the same Function, so that it has a derivative again."""

    def solve(a, b):
        if fw.name == "torch":
            return fw.from_numpy(_host_solve(a.detach().numpy(), b.detach().numpy()))
        shape = jax.ShapeDtypeStruct(b.shape, b.dtype)
        return jax.pure_callback(_host_solve, shape, a, b, vmap_method="sequential")

    def forward(ctx, a, b):
        x = solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    def backward(ctx, g):
        a, x = ctx.saved_tensors
        u = apply(a.T, g)
        return -fw.np.outer(u, x), u

    apply = fw.make(forward=forward, backward=backward).apply
    return apply


# the inverse is an intermediate value
@CASES.add("log_det", positive_definite(3), second=False)
@exact(lambda a: tuple(jnp.linalg.slogdet(a)))
def log_det(fw):
    """Keeps the inverse on ctx; no gradient where none is needed."""

    def forward(ctx, a):
        sign, out = fw.np.linalg.slogdet(a)
        ctx.mark_non_differentiable(sign)
        ctx.inverse = fw.np.linalg.inv(a)
        return sign, out

    def backward(ctx, _, g):
        return g * ctx.inverse.T

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("phase", complex_normal(6))
@exact(jnp.angle)
def phase(fw):
    """The angle of complex numbers; the gradient in torch's convention."""

    def forward(ctx, z):
        ctx.save_for_backward(z)
        return fw.np.angle(z)

    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * 1j * z / (z.real**2 + z.imag**2)

    return fw.make(forward=forward, backward=backward).apply


@CASES.add("unit_phase", complex_normal(6))
@exact(lambda z: z / jnp.abs(z))
def unit_phase(fw):
    """z / |z|: complex in and out, and not holomorphic."""

    def forward(ctx, z):
        unit = z / fw.np.abs(z)
        ctx.save_for_backward(z, unit)
        return unit

    def backward(ctx, g):
        z, unit = ctx.saved_tensors
        across = (g * unit.conj()).imag
        return 1j * unit * across / fw.np.abs(z)

    return fw.make(forward=forward, backward=backward).apply


# the spectra are intermediate values
@CASES.add("fourier_product", normal(6), normal(6), second=False)
@exact(lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), 6))
def fourier_product(fw):
    """Circular convolution; the complex spectra are kept on ctx, in a dict."""

    def forward(ctx, x, kernel):
        ctx.spectra = {"x": fw.np.fft.rfft(x), "kernel": fw.np.fft.rfft(kernel)}
        ctx.n = x.shape[-1]
        return fw.np.fft.irfft(ctx.spectra["x"] * ctx.spectra["kernel"], ctx.n)

    def backward(ctx, g):
        spectrum = fw.np.fft.rfft(g)
        return (
            fw.np.fft.irfft(spectrum * ctx.spectra["kernel"].conj(), ctx.n),
            fw.np.fft.irfft(spectrum * ctx.spectra["x"].conj(), ctx.n),
        )

    return fw.make(forward=forward, backward=backward).apply
