"""Linear algebra and implicit functions: backward solves a linear system."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import lax

import jaxfn
from tests.parity.catalogue.case import (
    Case,
    complex_normal,
    normal,
    positive_definite,
    uniform,
)


class MatrixRoot(jaxfn.Function):
    """The square root S of a positive definite matrix. Its gradient G solves Lyapunov's
    equation S G + G S = g, as a system in the elements of G."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = jnp.linalg.eigh(a)
        root = (vectors * jnp.sqrt(values)) @ vectors.T
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        one = jnp.eye(len(root), dtype=root.dtype)
        system = jnp.kron(root, one) + jnp.kron(one, root)
        return jnp.linalg.solve(system, g.reshape(-1)).reshape(g.shape)


def torch_matrix_root(torch):
    class MatrixRoot(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            values, vectors = torch.linalg.eigh(a)
            root = (vectors * values.sqrt()) @ vectors.T
            ctx.save_for_backward(root)
            return root

        @staticmethod
        def backward(ctx, g):
            root = ctx.saved_tensors[0].contiguous()
            one = torch.eye(len(root), dtype=root.dtype)
            system = torch.kron(root, one) + torch.kron(one, root)
            return torch.linalg.solve(system, g.reshape(-1)).reshape(g.shape)

    return MatrixRoot.apply


class FixedPoint(jaxfn.Function):
    """z = tanh(z w + x): a layer of infinite depth. Backward solves for what all
    depths together send back."""

    @staticmethod
    def forward(ctx, x, w):
        z = lax.fori_loop(0, 60, lambda _, z: jnp.tanh(z @ w + x), jnp.zeros_like(x))
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        slope = 1 - z * z
        u = jnp.linalg.solve(jnp.eye(len(z), dtype=z.dtype) - w * slope, g)
        return u * slope, jnp.outer(z, u * slope)


def torch_fixed_point(torch):
    class FixedPoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            z = torch.zeros_like(x)
            for _ in range(60):
                z = torch.tanh(z @ w + x)
            ctx.save_for_backward(z, w)
            return z

        @staticmethod
        def backward(ctx, g):
            z, w = ctx.saved_tensors
            slope = 1 - z * z
            u = torch.linalg.solve(torch.eye(len(z), dtype=z.dtype) - w * slope, g)
            return u * slope, torch.outer(z, u * slope)

    return lambda x, w: FixedPoint.apply(x, w / 4)


class QuadraticProgram(jaxfn.Function):
    """The x that minimises x q x / 2 + p x where a x <= b.

    The multipliers are found by turns, each with the others held; they are an output,
    too. Backward differentiates the conditions of Karush, Kuhn and Tucker.
    """

    @staticmethod
    def forward(ctx, q, p, a, b):
        inverse = jnp.linalg.inv(q)
        h, d = a @ inverse @ a.T, b + a @ inverse @ p

        def turn(_, m):
            for i in range(len(b)):
                m = m.at[i].set(jnp.maximum(0, m[i] - (h[i] @ m + d[i]) / h[i, i]))
            return m

        m = lax.fori_loop(0, 200, turn, jnp.zeros_like(b))
        x = -inverse @ (p + a.T @ m)
        ctx.save_for_backward(q, a, x, m)
        return x, m

    @staticmethod
    def backward(ctx, gx, gm):
        q, a, x, m = ctx.saved_tensors
        # d/dx, d/dm of (q x + p + a m, active (a x - b) + (1 - active) m)
        active = (m > 0).astype(m.dtype)
        lower = jnp.concatenate([active[:, None] * a, jnp.diag(1 - active)], 1)
        system = jnp.concatenate([jnp.concatenate([q, a.T], 1), lower])
        u = -jnp.linalg.solve(system.T, jnp.concatenate([gx, gm]))
        ux, um = u[: len(x)], u[len(x) :] * active
        return jnp.outer(ux, x), ux, jnp.outer(um, x) + jnp.outer(m, ux), -um


def torch_quadratic_program(torch):
    class QuadraticProgram(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, p, a, b):
            inverse = torch.linalg.inv(q)
            h, d = a @ inverse @ a.T, b + a @ inverse @ p
            m = torch.zeros_like(b)
            for _ in range(200):
                for i in range(len(b)):
                    m[i] = (m[i] - (h[i] @ m + d[i]) / h[i, i]).clamp(min=0)
            x = -inverse @ (p + a.T @ m)
            ctx.save_for_backward(q, a, x, m)
            return x, m

        @staticmethod
        def backward(ctx, gx, gm):
            q, a, x, m = ctx.saved_tensors
            active = (m > 0).to(m)
            lower = torch.cat([active[:, None] * a, torch.diag(1 - active)], 1)
            system = torch.cat([torch.cat([q, a.T], 1), lower])
            u = -torch.linalg.solve(system.T, torch.cat([gx, gm]))
            ux, um = u[: len(x)], u[len(x) :] * active
            return torch.outer(ux, x), ux, torch.outer(um, x) + torch.outer(m, ux), -um

    return QuadraticProgram.apply


def _host_solve(a, b):
    return scipy.linalg.solve(np.asarray(a), np.asarray(b)).astype(b.dtype)


class ScipySolve(jaxfn.Function):
    """a x = b by SciPy, on the host; backward is a solve with the transposed matrix
    by the same Function, so that it has a derivative again."""

    @staticmethod
    def forward(ctx, a, b):
        shape = jax.ShapeDtypeStruct(b.shape, b.dtype)
        x = jax.pure_callback(_host_solve, shape, a, b, vmap_method="sequential")
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        u = ScipySolve.apply(a.T, g)
        return -jnp.outer(u, x), u


def torch_scipy_solve(torch):
    class ScipySolve(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            x = scipy.linalg.solve(a.detach().numpy(), b.detach().numpy())
            x = torch.as_tensor(x, dtype=b.dtype)
            ctx.save_for_backward(a, x)
            return x

        @staticmethod
        def backward(ctx, g):
            a, x = ctx.saved_tensors
            u = ScipySolve.apply(a.T, g)
            return -torch.outer(u, x), u

    return ScipySolve.apply


class LogDet(jaxfn.Function):
    """Keeps the inverse on ctx; no gradient where none is needed."""

    @staticmethod
    def forward(ctx, a):
        sign, out = jnp.linalg.slogdet(a)
        ctx.mark_non_differentiable(sign)
        ctx.inverse = jnp.linalg.inv(a)
        return sign, out

    @staticmethod
    def backward(ctx, _, g):
        return g * ctx.inverse.T


def torch_log_det(torch):
    class LogDet(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            sign, out = torch.linalg.slogdet(a)
            ctx.mark_non_differentiable(sign)
            ctx.inverse = torch.linalg.inv(a)
            return sign, out

        @staticmethod
        def backward(ctx, _, g):
            return g * ctx.inverse.T

    return LogDet.apply


class Phase(jaxfn.Function):
    """The angle of complex numbers; the gradient in torch's convention."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return jnp.angle(z)

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * 1j * z / (z.real**2 + z.imag**2)


def torch_phase(torch):
    class Phase(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z.angle()

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return g * 1j * z / (z.real**2 + z.imag**2)

    return Phase.apply


class UnitPhase(jaxfn.Function):
    """z / |z|: complex in and out, and not holomorphic."""

    @staticmethod
    def forward(ctx, z):
        unit = z / jnp.abs(z)
        ctx.save_for_backward(z, unit)
        return unit

    @staticmethod
    def backward(ctx, g):
        z, unit = ctx.saved_tensors
        across = (g * unit.conj()).imag
        return 1j * unit * across / jnp.abs(z)


def torch_unit_phase(torch):
    class UnitPhase(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            unit = z / z.abs()
            ctx.save_for_backward(z, unit)
            return unit

        @staticmethod
        def backward(ctx, g):
            z, unit = ctx.saved_tensors
            across = (g * unit.conj()).imag
            return 1j * unit * across / z.abs()

    return UnitPhase.apply


class FourierProduct(jaxfn.Function):
    """Circular convolution; the complex spectra are kept on ctx, in a dict."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.spectra = {"x": jnp.fft.rfft(x), "kernel": jnp.fft.rfft(kernel)}
        ctx.n = x.shape[-1]
        return jnp.fft.irfft(ctx.spectra["x"] * ctx.spectra["kernel"], ctx.n)

    @staticmethod
    def backward(ctx, g):
        spectrum = jnp.fft.rfft(g)
        return (
            jnp.fft.irfft(spectrum * ctx.spectra["kernel"].conj(), ctx.n),
            jnp.fft.irfft(spectrum * ctx.spectra["x"].conj(), ctx.n),
        )


def torch_fourier_product(torch):
    class FourierProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kernel):
            ctx.spectra = {"x": torch.fft.rfft(x), "kernel": torch.fft.rfft(kernel)}
            ctx.n = x.shape[-1]
            return torch.fft.irfft(ctx.spectra["x"] * ctx.spectra["kernel"], ctx.n)

        @staticmethod
        def backward(ctx, g):
            spectrum = torch.fft.rfft(g)
            return (
                torch.fft.irfft(spectrum * ctx.spectra["kernel"].conj(), ctx.n),
                torch.fft.irfft(spectrum * ctx.spectra["x"].conj(), ctx.n),
            )

    return FourierProduct.apply


CASES = [
    Case("matrix_root", MatrixRoot.apply, torch_matrix_root, (positive_definite(3),)),
    Case(
        "fixed_point",
        lambda x, w: FixedPoint.apply(x, w / 4),
        torch_fixed_point,
        (normal(4), uniform(-1, 1, 4, 4)),
    ),
    Case(
        "quadratic_program",
        QuadraticProgram.apply,
        torch_quadratic_program,
        (positive_definite(3), normal(3), normal(2, 3), uniform(-0.5, 0.5, 2)),
    ),
    Case(
        "scipy_solve",
        ScipySolve.apply,
        torch_scipy_solve,
        (positive_definite(3), normal(3)),
        exact=jnp.linalg.solve,
    ),
    Case(
        "log_det",
        LogDet.apply,
        torch_log_det,
        (positive_definite(3),),
        second=False,  # the inverse is an intermediate value
        exact=lambda a: tuple(jnp.linalg.slogdet(a)),
    ),
    Case("phase", Phase.apply, torch_phase, (complex_normal(6),), exact=jnp.angle),
    Case(
        "unit_phase",
        UnitPhase.apply,
        torch_unit_phase,
        (complex_normal(6),),
        exact=lambda z: z / jnp.abs(z),
    ),
    Case(
        "fourier_product",
        FourierProduct.apply,
        torch_fourier_product,
        (normal(6), normal(6)),
        second=False,  # the spectra are intermediate values
        exact=lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), 6),
    ),
]
