"""Random numbers. Only this draw uses `key`, which the rewriter names.

`shape` and `dtype` are those of the tensor that a method fills. The same expression may
make that tensor, as in `torch.empty_like(x).uniform_()`. Then they are those of `x`, and
no empty tensor is made.
"""

from jaxfn.torch._translate.syntax import cst, zeros_made
from jaxfn.torch._translate.table.columns import table
from jaxfn.torch._translate.table.row import BoundCall


def _filled(given: BoundCall, default: str | None = None) -> None:
    """Name the shape and the dtype of the tensor that is filled."""
    node = given.node("x")
    like, shape, dtype = zeros_made(node) or (node, None, None)
    if like is not None:
        shape = cst.Attribute(like, cst.Name("shape"))
        dtype = cst.Attribute(like, cst.Name("dtype"))
    elif dtype is None and default is not None:
        dtype = cst.Name(default)
    given.hold("shape", shape)
    given.hold("dtype", dtype)


def _uniform(given: BoundCall) -> str:
    _filled(given)
    bounds = ", minval=start, maxval=to" if given.has("start") else ""
    return f"jax.random.uniform(key, shape, dtype{bounds})"


def _normal(given: BoundCall) -> str:
    _filled(given)
    return _moved(given, "jax.random.normal(key, shape, dtype)")


def _moved(given: BoundCall, standard: str) -> str:
    """Return normal numbers with another mean and deviation."""
    if given.literal("std", 1) != 1:
        standard = f"std * {standard}"
    return f"mean + {standard}" if given.literal("mean", 0) != 0 else standard


def _normal_of(given: BoundCall) -> str | None:
    """Draw each number with its own mean and deviation."""
    tensors = [name for name in ("mean", "std") if given.kind(name) == "tensor"]
    if not tensors or len({given.dtype(name) for name in tensors}) > 1:
        return None
    shape = f"{tensors[0]}.shape"
    if len(tensors) > 1:
        shape = "jnp.broadcast_shapes(mean.shape, std.shape)"
    return _moved(given, f"jax.random.normal(key, {shape}, {tensors[0]}.dtype)")


def _bernoulli(given: BoundCall) -> str:
    _filled(given, "float")
    return "jax.random.bernoulli(key, p, shape).astype(dtype)"


def _exponential(given: BoundCall) -> str:
    _filled(given)
    rate = " / lambd" if given.literal("lambd", 1) != 1 else ""
    return f"jax.random.exponential(key, shape, dtype){rate}"


def _integers(given: BoundCall) -> str:
    """Cast the numbers: JAX draws only integers, and `dtype` may be a float one."""
    low = "low" if given.has("low") else "0"
    cast = ".astype(dtype)" if given.has("dtype") else ""
    return f"jax.random.randint(key, size, {low}, high){cast}"


# Times 0, because NaN stays NaN in torch.
_DROPPED = "jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), x * 0)"
ROWS = table(
    """
torch.rand         *size -dtype?          jax.random.uniform(key, size, dtype)
torch.randn        *size -dtype?          jax.random.normal(key, size, dtype)
torch.rand_like    x                      jax.random.uniform(key, x.shape, x.dtype)
torch.rand_like    x -dtype:dtype          jax.random.uniform(key, x.shape, dtype)
torch.randn_like   x                      jax.random.normal(key, x.shape, x.dtype)
torch.randn_like   x -dtype:dtype          jax.random.normal(key, x.shape, dtype)
torch.randint      high size -dtype?      @_integers
torch.randint      low high size -dtype?  @_integers
torch.randint_like x high                 jax.random.randint(key, x.shape, 0, high).astype(x.dtype)
torch.randint_like x low high             jax.random.randint(key, x.shape, low, high).astype(x.dtype)
torch.randperm     n                      jax.random.permutation(key, n)
torch.normal       mean std size          mean + std * jax.random.normal(key, size)
torch.normal       mean std?=1            @_normal_of
torch.poisson      x                      jax.random.poisson(key, x).astype(x.dtype)
bernoulli          x                      jax.random.bernoulli(key, x).astype(x.dtype)
bernoulli          x p                    jax.random.bernoulli(key, p, x.shape).astype(x.dtype)
.bernoulli_        x p?=0.5               @_bernoulli
.uniform_          x                      @_uniform
.uniform_          x start to?=1          @_uniform
.normal_           x mean?=0 std?=1       @_normal
.exponential_      x lambd?=1             @_exponential
torch.dropout      x p train==True        @_DROPPED
F.dropout          x p?=0.5               @_DROPPED
F.dropout          x p training==True     @_DROPPED
""",
    locals(),
)
