"""Products of matrices, factors of matrices and their uses, and Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg as jsl

from jaxfn.torch._ops.row import row, rows


def _t(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _h(x: Any) -> Any:
    return jnp.conj(_t(x))


def _of_lower(x: Any) -> Any:
    """Return the Hermitian matrix with this lower triangle, which alone torch reads."""
    lower = jnp.tril(x)
    return lower + _h(jnp.tril(lower, -1))


def _info(x: Any) -> Any:
    """Return 0 for a success, else 1: JAX's result is nan if torch has an error."""
    return jnp.any(jnp.isnan(x), axis=(-2, -1)).astype(jnp.int32)


@row("aten.linalg_cholesky_ex")
def cholesky_ex(x: Any, *, upper: bool = False, **_: Any) -> Any:
    """Return the triangular factor, and 0 if it exists."""
    full = _of_lower(_h(x) if upper else x)
    factor = jnp.tril(lax.linalg.cholesky(full, symmetrize_input=False))
    return (_h(factor) if upper else factor), _info(factor)


@row("aten.cholesky")
def cholesky(x: Any, upper: bool = False) -> Any:
    """Return the triangular factor."""
    return cholesky_ex(x, upper=upper)[0]


def _triangular(a: Any, b: Any, **how: Any) -> Any:
    """Solve with a triangular matrix. Torch broadcasts the two operands."""
    lead = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return lax.linalg.triangular_solve(a, b, **how)


@row("aten.cholesky_solve")
def cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    """Solve with a matrix whose triangular factor is known."""
    lower, how = _h(factor) if upper else factor, {"left_side": True, "lower": True}
    b = _triangular(lower, b, **how)
    return _triangular(lower, b, transpose_a=True, conjugate_a=True, **how)


@row("aten.cholesky_inverse")
def cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    """Return the inverse of a matrix whose triangular factor is known."""
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return cholesky_solve(eye, factor, upper)


@row("aten.linalg_solve_triangular")
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Solve with a triangular matrix."""
    return _triangular(
        a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


@row("aten.triangular_solve")
def triangular_solve(
    b: Any,
    a: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    """Solve like `solve_triangular`, its newer name, and return the matrix too."""
    how = {"lower": not upper, "unit_diagonal": unitriangular}
    return _triangular(a, b, left_side=True, transpose_a=transpose, **how), a


def _lu(a: Any) -> tuple[Any, Any]:
    """Return both factors in one matrix, and pivots that count from 1."""
    lu, pivots, _ = lax.linalg.lu(a)
    return lu, pivots + 1


@row("aten.linalg_inv_ex")
def inv_ex(a: Any, **_: Any) -> Any:
    """Return the inverse, and 0 if it exists."""
    found = jnp.linalg.inv(a)
    return found, _info(found)


rows(
    {
        "aten.linalg_matrix_exp": lambda x: jsl.expm(
            x.astype(jnp.promote_types(x.dtype, jnp.float32))
        ).astype(x.dtype),
        "aten.linalg_eig": lambda x: tuple(jnp.linalg.eig(x)),
        "aten.linalg_householder_product": lax.linalg.householder_product,
    }
)


@row("aten.linalg_lu_factor_ex")
def lu_factor_ex(a: Any, *, pivot: bool = True, **_: Any) -> Any:
    """Return both factors in one matrix, the pivots, and 0 if they exist."""
    _check_pivot(pivot)
    lu, pivots = _lu(a)
    return lu, pivots, _info(lu)


def _check_pivot(pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError("factors without pivots")


@row("aten.lu_unpack")
def lu_unpack(
    lu: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    """Return the permutation and both factors; empty arrays for unwanted ones."""
    m, n = lu.shape[-2:]
    k = min(m, n)
    order = lax.linalg.lu_pivots_to_permutation(pivots - 1, m)
    eye = jnp.eye(m, dtype=lu.dtype)
    lower = jnp.tril(lu[..., :, :k], -1) + jnp.eye(m, k, dtype=lu.dtype)
    nothing = jnp.zeros(0, lu.dtype)
    upper = jnp.triu(lu[..., :k, :])
    factors = (lower, upper) if unpack_data else (nothing, nothing)
    return jnp.swapaxes(eye[order], -1, -2) if unpack_pivots else nothing, *factors


@row("aten.linalg_lu")
def lu(a: Any, *, pivot: bool = True) -> Any:
    """Return the permutation and both factors."""
    _check_pivot(pivot)
    return lu_unpack(*_lu(a))


@row("aten.linalg_lu_solve")
def lu_solve(
    lu: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False
) -> Any:
    """Solve with a matrix whose factors are known. Torch broadcasts the operands."""
    # From the right, it solves the transposed equation.
    flip, transposed = (lambda x: x), 2 if adjoint else 0
    if not left:
        flip, transposed = (_h, 0) if adjoint else (_t, 1)
    b = flip(b)
    lead = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu, b = (jnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (lu, b))
    pivots = jnp.broadcast_to(pivots, (*lead, pivots.shape[-1]))
    return flip(jsl.lu_solve((lu, pivots - 1), b, transposed))


@row("aten._linalg_solve_ex")
def solve_ex(a: Any, b: Any, *, left: bool = True, **_: Any) -> Any:
    """Return the solution, the factors, and 0 if there is a solution."""
    lu, pivots = _lu(a)
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    found = lu_solve(lu, pivots, b[..., None] if is_vector else b, left=left)
    return found[..., 0] if is_vector else found, lu, pivots, _info(lu)


@row("aten._linalg_eigh")
def eigh(x: Any, uplo: str = "L", compute_v: bool = True) -> Any:
    """Return eigenvalues and vectors of a Hermitian matrix, read from one triangle."""
    del compute_v
    values, vectors = jnp.linalg.eigh(_of_lower(x if uplo.upper() == "L" else _h(x)))
    return values, vectors


@row("aten.linalg_matrix_sqrth")
def matrix_sqrth(x: Any) -> Any:
    """Return the square root of a positive definite matrix."""
    values, vectors = eigh(x)
    roots = jnp.sqrt(jnp.maximum(values, 0))
    return (vectors * roots[..., None, :]) @ _h(vectors)


@row("aten._linalg_svd", typed=True)
def svd(out: Any, x: Any, full_matrices: bool = False, *_: Any, **__: Any) -> Any:
    """Return singular vectors and values."""
    u, s, vh = jnp.linalg.svd(x, full_matrices=full_matrices)
    if out[0] is not None and out[0].shape != u.shape:  # only the values are wanted
        u, vh = (jnp.zeros(t.shape, t.dtype) for t in (out[0], out[2]))
    return u, s, vh


@row("aten.linalg_qr", typed=True)
def qr(out: Any, x: Any, mode: str = "reduced") -> Any:
    """Return an orthogonal and a triangular factor."""
    if mode == "r":
        return jnp.zeros(out[0].shape, x.dtype), jnp.linalg.qr(x, mode="r")
    q, r = jnp.linalg.qr(x, mode=mode)
    return q, r


@row("aten.linalg_pinv.atol_rtol_tensor")
def pinv(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """Return the pseudo-inverse; singular values below a tolerance count as 0."""
    if hermitian:
        x = _of_lower(x)
    u, s, vh = jnp.linalg.svd(x, full_matrices=False)
    if rtol is None:
        least = max(x.shape[-2:]) * jnp.finfo(s.dtype).eps
        rtol = least if atol is None else jnp.where(atol > 0, 0, least)
    most = jnp.max(s, -1, keepdims=True, initial=0)
    bound = most * jnp.asarray(rtol, s.dtype)[..., None]
    if atol is not None:
        bound = jnp.maximum(bound, jnp.asarray(atol, s.dtype)[..., None])
    inverse = jnp.where(s > bound, 1 / jnp.where(s > bound, s, 1), 0)
    return _h(vh) @ (inverse[..., None].astype(x.dtype) * _h(u))


_SCALES = ("backward", "ortho", "forward")
"""JAX's names for torch's scales of a forward transform: 1, by root, by size."""


@row("aten._fft_c2c")
def fft_c2c(x: Any, dim: Any, normalization: int, forward: bool) -> Any:
    """Transform complex numbers to complex numbers."""
    if not dim:
        return x
    if forward:
        return jnp.fft.fftn(x, axes=dim, norm=_SCALES[normalization])
    return jnp.fft.ifftn(x, axes=dim, norm=_SCALES[2 - normalization])


@row("aten._fft_r2c")
def fft_r2c(x: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    """Transform real numbers to complex numbers."""
    fn = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return fn(x, axes=dim, norm=_SCALES[normalization])


@row("aten._fft_c2r")
def fft_c2r(x: Any, dim: Any, normalization: int, last: int) -> Any:
    """Transform half of the complex numbers to real numbers."""
    sizes = [*[x.shape[d] for d in dim[:-1]], last]
    return jnp.fft.irfftn(x, s=sizes, axes=dim, norm=_SCALES[2 - normalization])


@row("aten.mm", "aten.bmm", promote="out")
def matmul(x: Any, y: Any, *_: Any) -> Any:
    """Multiply matrices, in the precision of torch on the CPU."""
    inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST if inexact else None)


def _scaled(value: Any, x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        value = int(value)  # torch does so too
    return x if value == 1 else value * x


@row("aten.addmm", "aten.addmv", promote="out")
def addmm(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta c + alpha x @ y; if beta is 0, a nan in c has no effect."""
    product = _scaled(alpha, matmul(x, y))
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten.addbmm", promote="out")
def addbmm(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta c + alpha times the sum of all x @ y."""
    product = _scaled(alpha, jnp.sum(matmul(x, y), 0))
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten._trilinear", promote="out")
def trilinear(
    x: Any, y: Any, z: Any, x_new: Any, y_new: Any, z_new: Any, axes: Any, *_: Any
) -> Any:
    """Return the sum over `axes` of a product, after adding new axes to each factor."""
    product = jnp.expand_dims(x, tuple(x_new)) * jnp.expand_dims(y, tuple(y_new))
    return jnp.sum(product * jnp.expand_dims(z, tuple(z_new)), tuple(axes))


@row("aten._int_mm")
def int_mm(x: Any, y: Any) -> Any:
    """Multiply int8 matrices in int32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.int32)


@row("aten._scaled_mm", typed=True)
def scaled_mm(
    out: Any, x: Any, y: Any, scale_x: Any, scale_y: Any, bias: Any = None,
    scale_result: Any = None, *_: Any, **__: Any,
) -> Any:  # fmt: skip
    """Multiply float8 matrices and their scales."""
    product = matmul(x.astype(jnp.float32), y.astype(jnp.float32))
    product = product * scale_x * scale_y
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    if scale_result is not None and "float8" in str(out.dtype):
        product = product * scale_result
    return product
