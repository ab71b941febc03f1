"""Many elements to one."""

from jaxfn.torch._translate.table.columns import row, table

ROWS = table(
    """
all                x dim? keepdim?               jnp.all(x, axis=dim, keepdims=keepdim)
amax               x dim? keepdim?               jnp.max(x, axis=dim, keepdims=keepdim)
amin               x dim? keepdim?               jnp.min(x, axis=dim, keepdims=keepdim)
any                x dim? keepdim?               jnp.any(x, axis=dim, keepdims=keepdim)
argmax             x dim? keepdim?               jnp.argmax(x, axis=dim, keepdims=keepdim)
argmin             x dim? keepdim?               jnp.argmin(x, axis=dim, keepdims=keepdim)
count_nonzero      x dim?                        jnp.count_nonzero(x, axis=dim)
cumprod            x dim -dtype?                  jnp.cumprod(x, axis=dim, dtype=dtype)
cumsum             x dim -dtype?                  jnp.cumsum(x, axis=dim, dtype=dtype)
logcumsumexp       x dim                         jax.lax.cumlogsumexp(x, axis=dim)
diff               x n? dim?                     jnp.diff(x, n=n, axis=dim)
dist               x other                       jnp.linalg.norm((x - other).ravel())
logsumexp          x dim keepdim?                jax.nn.logsumexp(x, axis=dim, keepdims=keepdim)
special.logsumexp  x dim keepdim?                jax.nn.logsumexp(x, axis=dim, keepdims=keepdim)
max                x                             jnp.max(x)
max                x other:tensor                jnp.maximum(x, other)
mean               x                             jnp.mean(x)
mean               x dim keepdim? -dtype?         jnp.mean(x, axis=dim, keepdims=keepdim, dtype=dtype)
min                x                             jnp.min(x)
min                x other:tensor                jnp.minimum(x, other)
nanmean            x dim? keepdim?               jnp.nanmean(x, axis=dim, keepdims=keepdim)
nansum             x dim? keepdim?               jnp.nansum(x, axis=dim, keepdims=keepdim)
norm               x                             jnp.linalg.norm(x.ravel())
norm               x p                           jnp.linalg.norm(x.ravel(), ord=p)
norm               x p? dim:int keepdim?         jnp.linalg.norm(x, ord=p, axis=dim, keepdims=keepdim)
prod               x dim? keepdim? -dtype?        jnp.prod(x, axis=dim, keepdims=keepdim, dtype=dtype)
std                x                             jnp.std(x, ddof=1)
std                x unbiased==False             jnp.std(x)
std                x unbiased==True              jnp.std(x, ddof=1)
std                x dim -keepdim?               jnp.std(x, axis=dim, ddof=1, keepdims=keepdim)
std x dim unbiased==False keepdim?  jnp.std(x, axis=dim, keepdims=keepdim)
std x dim unbiased==True keepdim?  jnp.std(x, axis=dim, ddof=1, keepdims=keepdim)
std                x dim? -correction -keepdim?   jnp.std(x, axis=dim, ddof=correction, keepdims=keepdim)
sum                x dim? keepdim? -dtype?        jnp.sum(x, axis=dim, keepdims=keepdim, dtype=dtype)
trace              x                             jnp.trace(x)
var                x                             jnp.var(x, ddof=1)
var                x unbiased==False             jnp.var(x)
var                x unbiased==True              jnp.var(x, ddof=1)
var                x dim -keepdim?               jnp.var(x, axis=dim, ddof=1, keepdims=keepdim)
var x dim unbiased==False keepdim?  jnp.var(x, axis=dim, keepdims=keepdim)
var x dim unbiased==True keepdim?  jnp.var(x, axis=dim, ddof=1, keepdims=keepdim)
var                x dim? -correction -keepdim?   jnp.var(x, axis=dim, ddof=correction, keepdims=keepdim)
argsort            x dim? descending?            jnp.argsort(x, axis=dim, descending=descending)
median             x                             jnp.sort(x.ravel())[(x.size - 1) // 2]
quantile           x q dim? keepdim?             jnp.quantile(x, q, axis=dim, keepdims=keepdim)
msort              x                             jnp.sort(x, axis=0)
equal              x other                       jnp.array_equal(x, other)
allclose x other rtol? atol? equal_nan?  jnp.allclose(x, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
linalg.norm        x                             jnp.linalg.norm(x.ravel())
linalg.norm        x -dim:int -keepdim?          jnp.linalg.norm(x, axis=dim, keepdims=keepdim)
linalg.norm        x ord dim:int keepdim?        jnp.linalg.norm(x, ord=ord, axis=dim, keepdims=keepdim)
linalg.vector_norm x ord? dim? keepdim?          jnp.linalg.vector_norm(x, ord=ord, axis=dim, keepdims=keepdim)
linalg.matrix_norm x ord?="fro" keepdim?         jnp.linalg.matrix_norm(x, ord=ord, keepdims=keepdim)
"""
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
