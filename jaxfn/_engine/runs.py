"""What one run of forward gave, without its arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxfn._base import OutSpec
from jaxfn._engine.rules import Arrays, Perturbed


@dataclasses.dataclass(slots=True)
class Run:
    """What one run gave, without the arrays.

    Attributes:
        out: structure of the outputs.
        perturbed: for each array argument, whether it is differentiated.
        pattern_used: may what was saved depend on `perturbed`?
        saved: what was saved; of the face's own kind.
        sources: for each leaf that was saved where its value comes from: ("input", i),
            ("output", i) or ("other", i), counting within each kind. Filled in last.
        marks: indices of the outputs that were marked as without derivative.
        constants: where NumPy values of float type were kept.
        opaque: where objects were kept that hide arrays.
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
    sources: tuple[tuple[str, int], ...] = ()
    marks: frozenset[int] = frozenset()
    constants: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()

    def fits(self, perturbed: Perturbed) -> bool:
        """Is this also what would be saved with these inputs perturbed?"""
        return not self.pattern_used or perturbed == self.perturbed

    def others(self, leaves: Arrays) -> list[Any]:
        """Return the leaves that are neither inputs nor outputs."""
        pairs = zip(leaves, self.sources, strict=True)
        return [leaf for leaf, (kind, _) in pairs if kind == "other"]
