"""Real Functions for JAX and torch: one text for both, or two if their API differs.

One module for each family; torch is imported only if its side is asked for.
"""

from tests.parity.catalogue import (
    activations,
    arguments,
    contexts,
    function_db,
    gradients,
    indexing,
    linalg,
    losses,
    norms,
    quantisers,
    recomputation,
    sequence,
    spiking,
    structure,
)

_MODULES = (
    quantisers,
    spiking,
    gradients,
    activations,
    norms,
    losses,
    sequence,
    recomputation,
    indexing,
    linalg,
    structure,
    contexts,
    arguments,
    function_db,
)

FAMILIES = {m.__name__.rpartition(".")[2]: m.CASES for m in _MODULES}
"""The cases of each family."""
