"""Reductions."""

from jaxfn.torch._translate.table.columns import row, table
from jaxfn.torch._translate.table.row import BoundCall


def _cumulative(given: BoundCall) -> str | None:
    # JAX keeps a narrow type of integers, in which sums overflow; torch takes int64.
    small = given.dtype("x") in ("int8", "int16", "uint8") and not given.has("dtype")
    return None if small else f"jnp.{given.row.name}(x, axis=dim, dtype=dtype)"


def _median(given: BoundCall) -> str:
    if "int" in (given.dtype("x") or ""):
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
""",
    locals(),
) + [
    # Values and indices.
    row(
        "max",
        "x dim:int keepdim?",
        "jnp.max(x, axis=dim, keepdims=keepdim)",
        second="jnp.argmax(x, axis=dim, keepdims=keepdim)",
    ),
    row(
        "min",
        "x dim:int keepdim?",
        "jnp.min(x, axis=dim, keepdims=keepdim)",
        second="jnp.argmin(x, axis=dim, keepdims=keepdim)",
    ),
    *[
        row(
            f"{kind}_mean",
            takes,
            f"jnp.{kind}(x, axis=dim{ddof}, keepdims=keepdim)",
            second="jnp.mean(x, axis=dim, keepdims=keepdim)",
        )
        for kind in ("std", "var")
        for takes, ddof in (
            ("x dim -keepdim?", ", ddof=1"),
            ("x dim unbiased==False keepdim?", ""),
            ("x dim -correction -keepdim?", ", ddof=correction"),
        )
    ],
    row(
        "sort",
        "x dim? descending? stable?",
        "jnp.sort(x, axis=dim, descending=descending)",
        second="jnp.argsort(x, axis=dim, descending=descending)",
    ),
    row(
        "kthvalue",
        "x k:int dim?=-1",
        "jnp.take(jnp.sort(x, axis=dim), k - 1, axis=dim)",
        second="jnp.take(jnp.argsort(x, axis=dim), k - 1, axis=dim)",
    ),
    row(
        "topk",
        "x k dim? largest==True sorted?",
        "jax.lax.top_k(x, k, axis=dim)[0]",
        second="jax.lax.top_k(x, k, axis=dim)[1]",
        pair="jax.lax.top_k(x, k, axis=dim)",
    ),
    row(
        "topk",
        "x k dim?",
        "jax.lax.top_k(x, k, axis=dim)[0]",
        second="jax.lax.top_k(x, k, axis=dim)[1]",
        pair="jax.lax.top_k(x, k, axis=dim)",
    ),
]
