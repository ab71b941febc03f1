"""On a GPU: against the hand-written twin, and against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from tests.benchmarks import compiled, peers, torch_twins
from tests.benchmarks.rows import Row
from tests.benchmarks.timing import Effort

N = 10_000_000
FUSED = ("geglu", "layer_norm", "rms_norm")


def gap() -> str:
    """Why nothing can be measured; "" where it can."""
    try:
        jax.devices("gpu")
    except RuntimeError:
        return "no GPU that JAX finds"
    return ""


def torch_gap() -> str:
    """Why torch can't be measured on the GPU; "" where it can."""
    if found := peers.GAPS["torch"]:
        return found
    import torch

    return "" if torch.cuda.is_available() else "no GPU that torch finds"


def rows(effort: Effort) -> Iterator[Row]:
    """Compiled gradients, and forward and backward of three fused Functions."""
    if reason := gap():
        yield Row("gpu", f"run grad, {N:,} elements", against="custom_vjp", gap=reason)
    else:
        with jax.default_device(jax.devices("gpu")[0]):
            yield from compiled.run_at_size("gpu", "grad", N, effort.for_size(N))
    if reason := reason or torch_gap():
        for other in (torch_twins.EAGER, torch_twins.COMPILED):
            what = f"forward and backward, {N:,} elements"
            yield Row("gpu", what, against=other, gap=reason)
        return
    with jax.default_device(jax.devices("gpu")[0]):
        found = torch_twins.compiler_gap(effort)
        spent = effort.for_size(N)
        yield from torch_twins.at_size(N, "gpu", "cuda", found, spent, names=FUSED)
