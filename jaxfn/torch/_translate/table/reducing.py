"""Reductions, indices, matrices and transforms."""

from jaxfn.torch._translate.table.row import BoundCall, table


def _cumulative(given: BoundCall) -> str | None:
    # JAX keeps a narrow type of integers, in which sums overflow; torch takes int64.
    small = given["x"].fact.dtype in ("int8", "int16", "uint8") and "dtype" not in given
    return None if small else f"jnp.{given.row.name}(x, axis=dim, dtype=dtype)"


def _median(given: BoundCall) -> str:
    if "int" in (given["x"].fact.dtype or ""):
        return "jnp.sort(x.ravel())[(x.size - 1) // 2]"
    # Unlike sort, quantile gives nan where there is one, as torch's median does.
    return 'jnp.quantile(x, 0.5, method="lower")'


ROWS = table(
    """
all|any|argmax|argmin|nanmean|nansum x dim? keepdim?  jnp.NAME(x, axis=dim, keepdims=keepdim)
amax               x dim? keepdim?               jnp.max(x, axis=dim, keepdims=keepdim)
amin               x dim? keepdim?               jnp.min(x, axis=dim, keepdims=keepdim)
count_nonzero      x dim?                        jnp.count_nonzero(x, axis=dim)
cumprod|cumsum     x dim -dtype?                 @_cumulative
logcumsumexp       x dim                         jax.lax.cumlogsumexp(x, axis=dim)
diff               x n? dim?                     jnp.diff(x, n=n, axis=dim)
dist               x other                       jnp.linalg.norm((x - other).ravel())
logsumexp|special.logsumexp x dim keepdim?       jax.nn.logsumexp(x, axis=dim, keepdims=keepdim)
max|mean|min|trace x                             jnp.NAME(x)
max                x other:tensor                jnp.maximum(x, other)
mean               x dim keepdim? -dtype?        jnp.mean(x, axis=dim, keepdims=keepdim, dtype=dtype)
min                x other:tensor                jnp.minimum(x, other)
norm|linalg.norm   x                             jnp.linalg.norm(x.ravel())
norm               x p                           jnp.linalg.norm(x.ravel(), ord=p)
norm               x p? dim:int keepdim?         jnp.linalg.norm(x, ord=p, axis=dim, keepdims=keepdim)
prod|sum           x dim? keepdim? -dtype?       jnp.NAME(x, axis=dim, keepdims=keepdim, dtype=dtype)
std|var            x                             jnp.NAME(x, ddof=1)
std|var            x unbiased==False             jnp.NAME(x)
std|var            x unbiased==True              jnp.NAME(x, ddof=1)
std|var            x dim -keepdim?               jnp.NAME(x, axis=dim, ddof=1, keepdims=keepdim)
std|var            x dim unbiased==False keepdim?  jnp.NAME(x, axis=dim, keepdims=keepdim)
std|var            x dim unbiased==True keepdim?  jnp.NAME(x, axis=dim, ddof=1, keepdims=keepdim)
std|var            x dim? -correction -keepdim?  jnp.NAME(x, axis=dim, ddof=correction, keepdims=keepdim)
argsort            x dim? descending?            jnp.argsort(x, axis=dim, descending=descending)
median             x                             @_median
quantile           x q dim? keepdim?             jnp.quantile(x, q, axis=dim, keepdims=keepdim)
msort              x                             jnp.sort(x, axis=0)
equal              x other                       jnp.array_equal(x, other)
allclose           x other rtol? atol? equal_nan?  jnp.allclose(x, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
linalg.norm        x -dim:int -keepdim?          jnp.linalg.norm(x, axis=dim, keepdims=keepdim)
linalg.norm        x ord dim:int keepdim?        jnp.linalg.norm(x, ord=ord, axis=dim, keepdims=keepdim)
linalg.vector_norm x ord? dim? keepdim?          jnp.linalg.vector_norm(x, ord=ord, axis=dim, keepdims=keepdim)
linalg.matrix_norm x ord?="fro" keepdim?         jnp.linalg.matrix_norm(x, ord=ord, keepdims=keepdim)
max|min            x dim:int keepdim?            jnp.NAME(x, axis=dim, keepdims=keepdim)  jnp.argNAME(x, axis=dim, keepdims=keepdim)
std_mean           x dim -keepdim?               jnp.std(x, axis=dim, ddof=1, keepdims=keepdim)  jnp.mean(x, axis=dim, keepdims=keepdim)
std_mean           x dim unbiased==False keepdim?  jnp.std(x, axis=dim, keepdims=keepdim)  jnp.mean(x, axis=dim, keepdims=keepdim)
std_mean           x dim -correction -keepdim?   jnp.std(x, axis=dim, ddof=correction, keepdims=keepdim)  jnp.mean(x, axis=dim, keepdims=keepdim)
var_mean           x dim -keepdim?               jnp.var(x, axis=dim, ddof=1, keepdims=keepdim)  jnp.mean(x, axis=dim, keepdims=keepdim)
var_mean           x dim unbiased==False keepdim?  jnp.var(x, axis=dim, keepdims=keepdim)  jnp.mean(x, axis=dim, keepdims=keepdim)
var_mean           x dim -correction -keepdim?   jnp.var(x, axis=dim, ddof=correction, keepdims=keepdim)  jnp.mean(x, axis=dim, keepdims=keepdim)
sort               x dim? descending? stable?    jnp.sort(x, axis=dim, descending=descending)  jnp.argsort(x, axis=dim, descending=descending)
kthvalue           x k:int dim?=-1               jnp.take(jnp.sort(x, axis=dim), k - 1, axis=dim)  jnp.take(jnp.argsort(x, axis=dim), k - 1, axis=dim)
topk               x k dim? largest==True sorted?  jax.lax.top_k(x, k, axis=dim)[0]  jax.lax.top_k(x, k, axis=dim)[1]  jax.lax.top_k(x, k, axis=dim)
topk               x k dim?                      jax.lax.top_k(x, k, axis=dim)[0]  jax.lax.top_k(x, k, axis=dim)[1]  jax.lax.top_k(x, k, axis=dim)
""",
    locals(),
)


def _along(given: BoundCall) -> bool:
    """Return whether the index has the shape of the array, except along the axis."""
    x, index = given["x"].fact.shape, given["index"].fact.shape
    dim = given.traced("dim", None)
    if x is None or index is None or len(x) != len(index) or dim is None:
        return False
    axis = dim % max(len(x), 1)
    pairs = zip(x, index, strict=True)
    return all(a == b for i, (a, b) in enumerate(pairs) if i != axis)


def _gather(given: BoundCall) -> str | None:
    """If the index is smaller along other axes, torch reads the first elements."""
    if _along(given):
        return "jnp.take_along_axis(x, index, axis=dim)"
    ndim, dim = given["x"].fact.ndim, given.traced("dim", None)
    if not ndim or not isinstance(dim, int):
        return None
    sizes = [":" if i == dim % ndim else f":index.shape[{i}]" for i in range(ndim)]
    return f"jnp.take_along_axis(x[{', '.join(sizes)}], index, axis=dim)"


def _source(given: BoundCall) -> str:
    """Torch ignores the elements that the index lacks."""
    fits = given["src"].fact.shape == given["index"].fact.shape
    is_number = not given["src"].fact.is_tensor
    return "src" if fits or is_number else "src[tuple(map(slice, index.shape))]"


def _grid(given: BoundCall) -> str | None:
    """Return the index of `.at` with `index` along one axis and all of the others."""
    dim = given.literal("dim", None)
    if not given["index"].fact.shape or not isinstance(dim, int):
        return None
    grid = "*jnp.indices(index.shape, sparse=True)"
    head = f"{grid}[:{dim}], " if dim else ""
    tail = f", {grid}[{dim + 1}:]" if dim != -1 else ""
    return f"({head}index{tail})"


def _axis(given: BoundCall) -> str | None:
    """Return the index of `.at` with `index` along one axis."""
    dim = given.literal("dim", None)
    if not given["x"].fact.ndim or not isinstance(dim, int):
        return None
    head = ":, " * dim if dim >= 0 else "..., "
    return f"{head}index{', :' * (-dim - 1)}"


ROWS += table(
    """
gather             x dim index                   @_gather
take_along_dim     x indices dim                 jnp.take_along_axis(x, indices, axis=dim)
index_select       x dim index                   jnp.take(x, index, axis=dim)
take               x index                       jnp.take(x.ravel(), index)
index_add          x dim index source            x.at[@_axis].add(source)
index_add          x dim index source -alpha     x.at[@_axis].add(alpha * source)
index_copy         x dim index source            x.at[@_axis].set(source)
index_fill         x dim index value             x.at[@_axis].set(value)
scatter            x dim index src               x.at[@_grid].set(@_source)
scatter            x dim index -value            x.at[@_grid].set(value)
scatter_add        x dim index src               x.at[@_grid].add(@_source)
searchsorted       sorted_sequence x right==True  jnp.searchsorted(sorted_sequence, x, side="right")
searchsorted       sorted_sequence x right==False  jnp.searchsorted(sorted_sequence, x)
searchsorted       sorted_sequence x             jnp.searchsorted(sorted_sequence, x)
bucketize          x boundaries right==True      jnp.searchsorted(boundaries, x, side="right")
bucketize          x boundaries                  jnp.searchsorted(boundaries, x)
isin               x test_elements               jnp.isin(x, test_elements)
""",
    locals(),
)


def _matrices(given: BoundCall) -> str | None:
    """Refuse batches of vectors, which JAX takes for matrices."""
    one, two = (given[p.name].fact.ndim for p in given.row.params[:2])
    return "" if two == 1 or (one == two and two is not None) else None


ROWS += table(
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
cholesky_solve     x L                           jax.scipy.linalg.cho_solve((L, True), x)@_matrices
cholesky_solve     x L upper==False              jax.scipy.linalg.cho_solve((L, True), x)@_matrices
cholesky_solve     x L upper==True               jax.scipy.linalg.cho_solve((L, False), x)@_matrices
linalg.cross       x other dim?                  jnp.cross(x, other, axis=dim)
linalg.eigh        x                             jnp.linalg.eigh(x, symmetrize_input=False)
linalg.eigvalsh    x                             jnp.linalg.eigvalsh(x, symmetrize_input=False)
linalg.multi_dot   tensors                       jnp.linalg.multi_dot(tensors)
linalg.qr          x mode?                       jnp.linalg.qr(x, mode=mode)
linalg.solve       A B                           jnp.linalg.solve(A, B)@_matrices
linalg.solve_triangular x B upper==True left?=True unitriangular?  jax.lax.linalg.triangular_solve(x, B, left_side=left, lower=False, unit_diagonal=unitriangular)@_matrices
linalg.solve_triangular x B upper==False left?=True unitriangular?  jax.lax.linalg.triangular_solve(x, B, left_side=left, lower=True, unit_diagonal=unitriangular)@_matrices
linalg.solve_triangular x B upper left?=True unitriangular?  jax.lax.linalg.triangular_solve(x, B, left_side=left, lower=not upper, unit_diagonal=unitriangular)@_matrices
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
