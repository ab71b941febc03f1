"""New arrays. Without a dtype, they have JAX's default in place of torch's."""

from jaxfn.torch._translate.syntax import code
from jaxfn.torch._translate.table.columns import table
from jaxfn.torch._translate.table.row import BoundCall


def _tensor(given: BoundCall) -> str | None:
    """Refuse data whose type is not known."""
    if given.has("dtype"):
        return "jnp.array(data, dtype=dtype)"
    known = ("tensor", "array", "int", "float", "bool", "seq")
    return "jnp.array(data)" if given.kind("data") in known else None


def _spaced(given: BoundCall) -> str | None:
    """Refuse integers: torch rounds them towards 0, JAX down."""
    if given.has("dtype") and "float" not in (given.result_dtype() or "unknown"):
        return None
    name = given.row.name
    return f"jnp.{name}(start, end, steps, dtype=dtype)"


def _new(given: BoundCall) -> str | None:
    """Take sizes only: of a list or tuple, torch makes a tensor of its numbers."""
    sizes = given.every("size")
    alone = len(sizes) == 1 and code(sizes[0].original)
    is_shape = alone and alone.endswith((".shape", ".size()"))
    if is_shape and sizes[0].owner.is_tensor:
        return "jnp.zeros(size, x.dtype)"
    if sizes and {size.fact.kind for size in sizes} == {"int"}:
        return "jnp.zeros(size, x.dtype)"
    return None


ROWS = table(
    """
arange             end -dtype?                   jnp.arange(end, dtype=dtype)
arange             start end -dtype?             jnp.arange(start, end, dtype=dtype)
arange             start end step -dtype?        jnp.arange(start, end, step, dtype=dtype)
as_tensor|asarray|tensor data -dtype?            @_tensor
torch.from_numpy   data                          jnp.asarray(data)
torch.Tensor       data:array                    jnp.array(data, dtype=float)
torch.Tensor       data:seq                      jnp.array(data, dtype=float)
torch.FloatTensor  data:array                    jnp.array(data, dtype=jnp.float32)
torch.FloatTensor  data:seq                      jnp.array(data, dtype=jnp.float32)
torch.DoubleTensor data:array                    jnp.array(data, dtype=jnp.float64)
torch.LongTensor   data:array                    jnp.array(data, dtype=int)
empty              *size -dtype?                 jnp.zeros(size, dtype)
empty_like         x -dtype?                     jnp.zeros_like(x, dtype=dtype)
eye                n m? -dtype?                  jnp.eye(n, m, dtype=dtype)
full               size fill_value -dtype?       jnp.full(size, fill_value, dtype)
full_like          x fill_value -dtype?          jnp.full_like(x, fill_value, dtype=dtype)
linspace|logspace  start end steps -dtype?       @_spaced
ones|zeros         *size -dtype?                 jnp.NAME(size, dtype)
ones_like|zeros_like x -dtype?                   jnp.NAME(x, dtype=dtype)
scalar_tensor      s -dtype?                     jnp.array(s, dtype=dtype)
.new               x data:array                  jnp.array(data, dtype=x.dtype)
.new               x *size                       @_new
.new_empty|.new_zeros x *size                    jnp.zeros(size, x.dtype)
.new_empty|.new_zeros x *size -dtype:dtype       jnp.zeros(size, dtype)
.new_full          x size fill_value             jnp.full(size, fill_value, x.dtype)
.new_full          x size fill_value -dtype:dtype  jnp.full(size, fill_value, dtype)
.new_ones          x *size                       jnp.ones(size, x.dtype)
.new_ones          x *size -dtype:dtype          jnp.ones(size, dtype)
.new_tensor        x data                        jnp.array(data, dtype=x.dtype)
.new_tensor        x data -dtype:dtype           jnp.array(data, dtype=dtype)
tril|triu|diag     x diagonal?                   jnp.NAME(x, diagonal)
diag_embed         x                             jnp.where(jnp.eye(x.shape[-1], dtype=bool), x[..., None], 0)
diagflat           x offset?                     jnp.diagflat(x, offset)
vander             x                             jnp.vander(x)
""",
    locals(),
)
