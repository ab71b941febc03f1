"""The table of operations: how JAX computes what torch's traces are made of.

One row an operation, by jax.numpy and lax, a file a kind. A row need not care for
dtypes that torch promotes to: each result is cast to what torch's trace had.
"""

from jaxfn.torch._ops import (
    activations,
    comparing,
    creating,
    distances,
    elementwise,
    fourier,
    indexing,
    linalg,
    networks,
    orders,
    pooling,
    products,
    random,
    reducing,
    sampling,
    shapes,
    special,
)
from jaxfn.torch._ops.row import ROWS, Row, find

__all__ = ["ROWS", "Row", "find"]
