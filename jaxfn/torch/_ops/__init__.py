"""The table of operations: how JAX computes each operation of torch's graphs.

Each operation has a row, made of jax.numpy and lax; each file has rows of one kind. A
row ignores torch's promotion: jaxfn casts each result to the dtype in torch's trace.
"""

from jaxfn.torch._ops import (
    comparing,
    creating,
    elementwise,
    indexing,
    linalg,
    networks,
    reducing,
    sampling,
    shapes,
)
from jaxfn.torch._ops.row import ROWS, Row, convert, find

__all__ = ["ROWS", "Row", "convert", "find"]
