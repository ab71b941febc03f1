"""Real Functions, each written in JAX and in torch from the same mathematics.

One module for each family; torch is imported only where its side is asked for.
"""

from tests.parity.catalogue import quantisers, spiking

FAMILIES = {
    "quantisers": quantisers.CASES,
    "spiking": spiking.CASES,
}
"""The cases of each family."""
