"""New arrays. torch's are float32 unless told otherwise, with x64 on too."""

from jaxfn.torch._translate._names._row import Bound
from jaxfn.torch._translate._names._table import table

_DEFAULTS: dict[type, str] = {float: "float32", int: "int64", bool: "bool"}


def _tensor(given: Bound) -> str | None:
    """A tensor of Python numbers has a dtype of its own: float32, int64 or bool."""
    if given.has("dtype"):
        return "jnp.array(data, dtype=dtype)"
    dtype = given.result_dtype() or _DEFAULTS.get(type(given.literal("data", None)))
    if dtype is None:
        return None
    if dtype == "float32" and given.kind("data") != "tensor":
        return "jnp.array(data, dtype=jnp.float32)"
    return "jnp.array(data)"


def _arange(given: Bound) -> str | None:
    names = [n for n in ("start", "end", "step") if given.has(n)]
    inside = ", ".join(names)
    if given.has("dtype"):
        return f"jnp.arange({inside}, dtype=dtype)"
    if given.result_dtype() == "float32":
        return f"jnp.arange({inside}, dtype=jnp.float32)"
    return f"jnp.arange({inside})" if given.result_dtype() == "int64" else None


def _full(given: Bound) -> str | None:
    if given.has("dtype"):
        return "jnp.full(size, fill_value, dtype)"
    if given.result_dtype() == "float32":
        return "jnp.full(size, fill_value, jnp.float32)"
    return "jnp.full(size, fill_value)" if given.result_dtype() else None


ROWS = table(
    """
arange             end -dtype?                    @_arange
arange             start end -dtype?              @_arange
arange             start end step -dtype?         @_arange
as_tensor          data -dtype?                   @_tensor
asarray            data -dtype?                   @_tensor
tensor             data -dtype?                   @_tensor
empty              *size -dtype?=jnp.float32    jnp.zeros(size, dtype)
empty_like         x -dtype?                      jnp.zeros_like(x, dtype=dtype)
eye                n m? -dtype?=jnp.float32     jnp.eye(n, m, dtype=dtype)
full               size fill_value -dtype?        @_full
full_like          x fill_value -dtype?           jnp.full_like(x, fill_value, dtype=dtype)
linspace start end steps -dtype?=jnp.float32  jnp.linspace(start, end, steps, dtype=dtype)
logspace start end steps -dtype?=jnp.float32  jnp.logspace(start, end, steps, dtype=dtype)
ones               *size -dtype?=jnp.float32    jnp.ones(size, dtype)
ones_like          x -dtype?                      jnp.ones_like(x, dtype=dtype)
zeros              *size -dtype?=jnp.float32    jnp.zeros(size, dtype)
zeros_like         x -dtype?                      jnp.zeros_like(x, dtype=dtype)
scalar_tensor      s -dtype?=jnp.float32        jnp.array(s, dtype=dtype)
.new_empty         x *size                       jnp.zeros(size, x.dtype)
.new_empty         x *size -dtype                 jnp.zeros(size, dtype)
.new_full          x size fill_value             jnp.full(size, fill_value, x.dtype)
.new_full          x size fill_value -dtype       jnp.full(size, fill_value, dtype)
.new_ones          x *size                       jnp.ones(size, x.dtype)
.new_ones          x *size -dtype                 jnp.ones(size, dtype)
.new_tensor        x data                        jnp.array(data, dtype=x.dtype)
.new_tensor        x data -dtype                  jnp.array(data, dtype=dtype)
.new_zeros         x *size                       jnp.zeros(size, x.dtype)
.new_zeros         x *size -dtype                 jnp.zeros(size, dtype)
tril               x diagonal?                   jnp.tril(x, diagonal)
triu               x diagonal?                   jnp.triu(x, diagonal)
diag               x diagonal?                   jnp.diag(x, diagonal)
diagflat           x offset?                     jnp.diagflat(x, offset)
vander             x                             jnp.vander(x)
""",
    locals(),
)
