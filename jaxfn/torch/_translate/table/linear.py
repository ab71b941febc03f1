"""Matrices, products and transforms."""

from jaxfn.torch._translate.table.columns import table
from jaxfn.torch._translate.table.row import BoundCall


def _triangular(given: BoundCall) -> str | None:
    """Torch has `upper`, JAX `lower`."""
    upper = given.literal("upper", None)
    lower = "not upper" if upper is None else str(not upper)
    left = ", left_side=left" if given.has("left") else ", left_side=True"
    unit = ", unit_diagonal=unitriangular" if given.has("unitriangular") else ""
    if given.ndim("x") is None or given.ndim("x") != given.ndim("B"):
        return None
    return f"jax.lax.linalg.triangular_solve(x, B{left}, lower={lower}{unit})"


def _solve(given: BoundCall) -> str | None:
    """Refuse batches of vectors, which JAX takes for matrices."""
    same = given.ndim("A") is not None and given.ndim("A") == given.ndim("B")
    if same or given.ndim("B") == 1:
        return "jnp.linalg.solve(A, B)"
    return None


def _cholesky_solve(given: BoundCall) -> str | None:
    upper = given.literal("upper", False)
    if upper is None or given.ndim("x") != given.ndim("L") or given.ndim("x") != 2:
        return None
    return f"jax.scipy.linalg.cho_solve((L, {not upper}), x)"


ROWS = table(
    """
addbmm             x batch1 batch2               x + (batch1 @ batch2).sum(axis=0)
addmm              x mat1 mat2                   x + mat1 @ mat2
addmm              x mat1 mat2 -beta             beta * x + mat1 @ mat2
addmm              x mat1 mat2 -alpha            x + alpha * (mat1 @ mat2)
addmm              x mat1 mat2 -beta -alpha      beta * x + alpha * (mat1 @ mat2)
addmv              x mat vec                     x + mat @ vec
addr               x vec1 vec2                   x + jnp.outer(vec1, vec2)
baddbmm            x batch1 batch2               x + batch1 @ batch2
baddbmm            x batch1 batch2 -beta         beta * x + batch1 @ batch2
baddbmm            x batch1 batch2 -alpha        x + alpha * (batch1 @ batch2)
baddbmm            x batch1 batch2 -beta -alpha  beta * x + alpha * (batch1 @ batch2)
bmm|mm             x mat2                        x @ mat2
cdist              x other                       jnp.linalg.norm(x[..., :, None, :] - other[..., None, :, :], axis=-1)
chain_matmul       *matrices                     jnp.linalg.multi_dot(matrices)
cross              x other dim                   jnp.cross(x, other, axis=dim)
det|linalg.det     x                             jnp.linalg.det(x)
dot                x tensor                      jnp.dot(x, tensor)
einsum             equation *operands            jnp.einsum(equation, *operands)
ger                x vec2                        jnp.outer(x, vec2)
inner|kron|vdot    x other                       jnp.NAME(x, other)
inverse|linalg.inv x                             jnp.linalg.inv(x)
logdet             x                             jnp.log(jnp.linalg.det(x))
matmul|linalg.matmul x other                     x @ other
matrix_exp|linalg.matrix_exp x                   jax.scipy.linalg.expm(x)
matrix_power|linalg.matrix_power x n             jnp.linalg.matrix_power(x, n)
mv                 x vec                         x @ vec
outer              x vec2                        jnp.outer(x, vec2)
pinverse|linalg.pinv x                           jnp.linalg.pinv(x)
slogdet|linalg.slogdet x                         jnp.linalg.slogdet(x)
tensordot          x other dims                  jnp.tensordot(x, other, axes=dims)
cholesky|linalg.cholesky x                       jnp.linalg.cholesky(x, symmetrize_input=False)
cholesky_solve     x L upper?                    @_cholesky_solve
linalg.cross       x other dim?                  jnp.cross(x, other, axis=dim)
linalg.eigh        x                             jnp.linalg.eigh(x, symmetrize_input=False)
linalg.eigvalsh    x                             jnp.linalg.eigvalsh(x, symmetrize_input=False)
linalg.multi_dot   tensors                       jnp.linalg.multi_dot(tensors)
linalg.qr          x mode?                       jnp.linalg.qr(x, mode=mode)
linalg.solve       A B                           @_solve
linalg.solve_triangular x B upper left? unitriangular?  @_triangular
linalg.svd         x full_matrices?              jnp.linalg.svd(x, full_matrices=full_matrices)
linalg.svdvals     x                             jnp.linalg.svd(x, compute_uv=False)
linalg.vecdot      x y                           jnp.linalg.vecdot(x, y)
func.vjp           func *primals                 jax.vjp(func, *primals)
fft.fft            x n? dim? norm?               jnp.fft.fft(x, n=n, axis=dim, norm=norm)
fft.ifft           x n? dim? norm?               jnp.fft.ifft(x, n=n, axis=dim, norm=norm)
fft.rfft           x n? dim? norm?               jnp.fft.rfft(x, n=n, axis=dim, norm=norm)
fft.irfft          x n? dim? norm?               jnp.fft.irfft(x, n=n, axis=dim, norm=norm)
fft.hfft           x n? dim? norm?               jnp.fft.hfft(x, n=n, axis=dim, norm=norm)
fft.ihfft          x n? dim? norm?               jnp.fft.ihfft(x, n=n, axis=dim, norm=norm)
fft.fft2           x s? dim? norm?               jnp.fft.fft2(x, s=s, axes=dim, norm=norm)
fft.ifft2          x s? dim? norm?               jnp.fft.ifft2(x, s=s, axes=dim, norm=norm)
fft.fftn           x s? dim? norm?               jnp.fft.fftn(x, s=s, axes=dim, norm=norm)
fft.ifftn          x s? dim? norm?               jnp.fft.ifftn(x, s=s, axes=dim, norm=norm)
fft.fftshift       x dim?                        jnp.fft.fftshift(x, axes=dim)
fft.ifftshift      x dim?                        jnp.fft.ifftshift(x, axes=dim)
""",
    locals(),
)
