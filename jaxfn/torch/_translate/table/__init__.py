"""The JAX equivalents of torch's names and tensor methods: one row each.

A table is text with columns: a name, its parameters, and its equivalent. `row` says
what they mean, and binds the arguments of a call to a row. `ROWS` has all rows, by full
name. If several have one name, the first that takes the arguments counts.
"""

from jaxfn.torch._translate.table import elementwise, reducing, shapes
from jaxfn.torch._translate.table.row import TableRow

TABLES = (elementwise, reducing, shapes)
ROWS: dict[str, list[TableRow]] = {}
for _table in TABLES:
    for _row in _table.ROWS:
        for _name in _row.names():
            ROWS.setdefault(_name, []).append(_row)

DTYPES = {
    "float32": "jnp.float32",
    "float64": "jnp.float64",
    "float16": "jnp.float16",
    "bfloat16": "jnp.bfloat16",
    "complex64": "jnp.complex64",
    "complex128": "jnp.complex128",
    "int8": "jnp.int8",
    "int16": "jnp.int16",
    "int32": "jnp.int32",
    "int64": "int",  # JAX's own: int32 if x64 is off, without a warning
    "uint8": "jnp.uint8",
    "bool": "bool",
}
"""JAX's equivalents of torch's dtypes."""

ATTRIBUTES = {
    "shape": "x.shape",
    "dtype": "x.dtype",
    "ndim": "x.ndim",
    "T": "x.T",
    "mT": "x.mT",
    "H": "x.conj().T",
    "mH": "x.conj().mT",
    "real": "x.real",
    "imag": "x.imag",
    "data": "x",
    "itemsize": "x.itemsize",
    "is_cuda": "False",
    "is_sparse": "False",
}
"""JAX's equivalents of attributes of tensors."""
