"""An autotuned kernel with a heuristic, where it holds and where it does not."""

from __future__ import annotations

import torch

from tests.gpu import comparison, kernels
from tests.gpu.comparison import Case
from tests.gpu.parts import Check


def checks(small: bool) -> dict[str, Check]:
    sizes = {
        "the heuristic holds": 1024 if small else 1 << 20,
        "it does not hold": 1000 if small else 1_000_003,
    }
    cases = [
        Case(
            name,
            lambda: kernels.Bent,
            lambda _, size=size: [torch.randn(size), 0.1],
            lambda x, slope: torch.where(x > 0, x, slope * x),
            batch=True,
        )
        for name, size in sizes.items()
    ]
    return comparison.checks(cases, small)
