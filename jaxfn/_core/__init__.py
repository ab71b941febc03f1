"""The mechanism: rules on flat lists of arrays, through JAX."""

from jaxfn._core import closures, messages, results, values
from jaxfn._core import jax_internals as internals
from jaxfn._core.batch import Batch, Fun, batchable, closed, with_batch_rule
from jaxfn._core.call import Rules, call
from jaxfn._core.closures import find, hides_array, in_cell
from jaxfn._core.messages import short, type_name
from jaxfn._core.primitives import attach, gate, jvp_along, refusing
from jaxfn._core.values import (
    ARRAY,
    Arrays,
    Box,
    Layout,
    Mask,
    Outputs,
    Spec,
    as_jax,
    conj,
    grouped,
    is_array,
    is_extended,
    is_inexact,
    is_number,
    is_numeric,
    pair,
    split,
    spread,
)
