"""Shapes, dtypes and order of elements, and new arrays.

Without a dtype, new arrays have JAX's default in place of torch's.
"""

from jaxfn.torch._translate.table.row import BoundCall, table


def _expand(given: BoundCall) -> str | None:
    """`broadcast_to`, with the sizes that -1 keeps."""
    sizes = given.sizes("size")
    if sizes is None:
        return "jnp.broadcast_to(x, size)"
    ndim = given["x"].fact.ndim
    kept = []
    for i, text in enumerate(sizes):
        if text == "-1":
            if ndim is None:
                return None
            kept.append(f"x.shape[{i - len(sizes) + ndim}]")
        else:
            kept.append(text)
    return f"jnp.broadcast_to(x, ({', '.join(kept)},))" if kept else None


def _squeeze(given: BoundCall) -> str | None:
    """Torch leaves a size other than 1 alone; JAX refuses it."""
    sizes = given.sizes_at("x", "dim")
    if sizes is None or all(n == 1 for n in sizes):
        return "jnp.squeeze(x, axis=dim)"
    return "x if x.shape[dim] != 1 else jnp.squeeze(x, axis=dim)"


def _chunk(given: BoundCall) -> str | None:
    dim = given.literal("dim", 0)
    sizes, n = given["x"].fact.shape, given.literal("chunks", None)
    if sizes is None or not isinstance(n, int) or not isinstance(dim, int):
        return None
    if sizes[dim] % n == 0:
        return "jnp.split(x, chunks, axis=dim)"
    step = "-(-x.shape[dim] // chunks)"  # the last one is smaller
    return f"jnp.split(x, list(range({step}, x.shape[dim], {step})), axis=dim)"


def _split(given: BoundCall) -> str | None:
    """Torch takes sizes, or one for all; JAX takes the indices to cut at."""
    if given["split_size"].fact.kind == "int":
        return (
            "jnp.split(x, list(range(split_size, x.shape[dim], split_size)), axis=dim)"
        )
    sizes = given.elements("split_size")
    if sizes is None:
        return None
    cuts = [" + ".join(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return f"jnp.split(x, [{', '.join(cuts)}], axis=dim)"


def _sum_to_size(given: BoundCall) -> str | None:
    """Sum over the axes that are 1, or missing, in the result."""
    sizes, found = given["x"].fact.shape, given.result.shape
    if sizes is None or found is None:
        return None
    n = len(sizes) - len(found)
    axes = [*range(n), *(n + i for i, k in enumerate(found) if k == 1 != sizes[n + i])]
    if not axes:
        return "x"
    if n == len(axes):
        return f"jnp.sum(x, axis={axes[0] if n == 1 else tuple(axes)})"
    if n:
        return None
    return f"jnp.sum(x, axis={tuple(axes)}, keepdims=True)"


def _flatten(given: BoundCall) -> str | None:
    """Axes are counted from the end only if they are written so."""
    start, end = given.literal("start_dim", None), given.literal("end_dim", None)
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    head = f"*x.shape[:{start}], " if start else ""
    tail = f", *x.shape[{end + 1}:]" if end != -1 else "" if head else ","
    return f"x.reshape(({head}-1{tail}))"


def _cast_to(given: BoundCall) -> str | None:
    """`to` takes a dtype, a device or a tensor, in any order."""
    wanted = [n for n in ("first", "second", "dtype") if n in given]
    found = "x"
    for name in wanted:
        kind = given[name].fact.kind
        if kind == "dtype":
            found = f"x.astype({name})"
        elif kind == "tensor":
            found = f"x.astype({name}.dtype)"
        elif kind not in ("device", "str", "bool", "int"):
            return None
    return found


ROWS = table(
    """
.to                x first? second? -dtype? copy?  @_cast_to
.type              x dtype:dtype                 x.astype(dtype)
.type_as           x other                       x.astype(other.dtype)
.float             x                             x.astype(jnp.float32)
.double            x                             x.astype(jnp.float64)
.half              x                             x.astype(jnp.float16)
.bfloat16          x                             x.astype(jnp.bfloat16)
.int               x                             x.astype(jnp.int32)
.long              x                             x.astype(int)
.short             x                             x.astype(jnp.int16)
.char              x                             x.astype(jnp.int8)
.byte              x                             x.astype(jnp.uint8)
.bool              x                             x.astype(bool)
.cpu|.contiguous|clone x                         x
.cuda              x device?                     x
.requires_grad_    x requires_grad?              x
broadcast_to       x *size                       @_expand
cat|concat         tensors dim?                  jnp.concatenate(tensors, axis=dim)
concatenate|stack  tensors dim?                  jnp.NAME(tensors, axis=dim)
flip               x dims                        jnp.flip(x, axis=dims)
.flip              x *dims                       jnp.flip(x, axis=dims)
fliplr|flipud      x                             jnp.NAME(x)
hstack|vstack      tensors                       jnp.NAME(tensors)
.repeat            x *sizes                      jnp.tile(x, sizes)
tile               x dims                        jnp.tile(x, dims)
.tile              x *dims                       jnp.tile(x, dims)
repeat_interleave  x repeats:int dim?            jnp.repeat(x, repeats, axis=dim)
roll               x shifts dims?                jnp.roll(x, shifts, axis=dims)
rot90              x k? dims?                    jnp.rot90(x, k=k, axes=dims)
.size              x                             x.shape
.size              x dim                         x.shape[dim]
.dim|.ndimension   x                             x.ndim
.numel|.nelement|numel x                         x.size
.element_size      x                             x.dtype.itemsize
.is_contiguous     x                             True
.is_floating_point|is_floating_point x           jnp.issubdtype(x.dtype, jnp.floating)
.is_complex|is_complex x                         jnp.iscomplexobj(x)
broadcast_tensors  *tensors                      jnp.broadcast_arrays(*tensors)
broadcast_shapes   *shapes                       jnp.broadcast_shapes(*shapes)
meshgrid           *tensors -indexing?="ij"      jnp.meshgrid(*tensors, indexing=indexing)
jit.is_scripting|jit.is_tracing ()               False
finfo|iinfo        type                          jnp.NAME(type)
is_tensor          x                             isinstance(x, jax.Array)
""",
    locals(),
) + table(
    """
atleast_1d|atleast_2d|squeeze x                  jnp.NAME(x)
chunk              x chunks dim?=0               @_chunk
diagonal           x offset? dim1? dim2?         jnp.diagonal(x, offset=offset, axis1=dim1, axis2=dim2)
.detach            x                             x
.expand            x *size                       @_expand
.expand_as         x other                       jnp.broadcast_to(x, other.shape)
linalg.diagonal    x offset? dim1?=-2 dim2?=-1   jnp.diagonal(x, offset=offset, axis1=dim1, axis2=dim2)
flatten|ravel      x                             x.ravel()
flatten            x start_dim                   x.reshape((*x.shape[:start_dim], -1))
flatten            x start_dim end_dim           @_flatten
movedim            x source destination          jnp.moveaxis(x, source, destination)
moveaxis           x source destination          jnp.moveaxis(x, source, destination)
permute            x dims                        jnp.transpose(x, dims)
.permute           x *dims                       jnp.transpose(x, dims)
reshape            x shape                       jnp.reshape(x, shape)
.reshape           x **shape                     x.reshape(*shape)
.reshape_as|.view_as x other                     x.reshape(other.shape)
split              x split_size dim?=0           @_split
squeeze            x dim                         @_squeeze
swapaxes           x axis0 axis1                 jnp.swapaxes(x, axis0, axis1)
t                  x                             x.T
adjoint            x                             x.conj().mT
transpose          x dim0 dim1                   jnp.swapaxes(x, dim0, dim1)
unbind             x dim?                        jnp.unstack(x, axis=dim)
unflatten          x dim:int sizes               x.reshape((*x.shape[:dim], *sizes, *x.shape[dim:][1:]))
unsqueeze          x dim                         jnp.expand_dims(x, dim)
.view              x **shape:size                x.reshape(*shape)
.sum_to_size       x *size                       @_sum_to_size
select             x dim index                   jnp.take(x, index, axis=dim)
narrow             x dim start length            jax.lax.dynamic_slice_in_dim(x, start, length, axis=dim)
view_as_complex    x                             jax.lax.complex(x[..., 0], x[..., 1])
view_as_real       x                             jnp.stack([x.real, x.imag], axis=-1)
real               x                             x.real
imag               x                             x.imag
""",
    locals(),
)


def _tensor(given: BoundCall) -> str | None:
    """Refuse data whose type is not known."""
    if "dtype" in given:
        return "jnp.array(data, dtype=dtype)"
    known = ("tensor", "array", "int", "float", "bool", "seq")
    return "jnp.array(data)" if given["data"].fact.kind in known else None


def _floating(given: BoundCall) -> str | None:
    """Refuse integers: torch rounds them towards 0, JAX down."""
    is_float = "float" in (given.result.dtype or "")
    return "" if is_float or "dtype" not in given else None


ROWS += table(
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
linspace|logspace  start end steps -dtype?       jnp.NAME(start, end, steps, dtype=dtype)@_floating
ones|zeros         *size -dtype?                 jnp.NAME(size, dtype)
ones_like|zeros_like x -dtype?                   jnp.NAME(x, dtype=dtype)
scalar_tensor      s -dtype?                     jnp.array(s, dtype=dtype)
.new               x data:array                  jnp.array(data, dtype=x.dtype)
.new               x shape:shape                 jnp.zeros(shape, x.dtype)
.new               x *size:int                   jnp.zeros(size, x.dtype)
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
.zero_             x                             jnp.zeros_like(x)
.fill_             x value                       jnp.full_like(x, value)
.copy_             x other                       jnp.broadcast_to(other, x.shape).astype(x.dtype)
vander             x                             jnp.vander(x)
""",
    locals(),
)
