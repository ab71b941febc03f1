"""What the rules of a class call each residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import tree_util

from jaxfn._methods import Layout, fields, is_record


def saved_names(layout: Layout, n: int) -> list[str]:
    """Say what a rule calls each of its `n` residuals: `ctx.scale`, say.

    A residual that is reached in several ways has all its names, and one that no rule
    reaches has none.
    """
    # The templates of the layout are filled with marks in place of arrays. Where a mark
    # turns up, by identity, is where the array will be.
    packed = layout.packed
    marks = [object() for _ in range(n)]
    found: dict[int, list[str]] = {id(mark): [] for mark in marks}
    at: Sequence[Any] = marks if packed is None else packed.restore(marks)
    # With saved-tensor hooks backward gets what the hooks unpack, which is named below.
    for puts in (layout.for_forward, () if packed else layout.for_backward):
        for i, put in enumerate(puts):
            _note(found, put(at), f"saved_tensors[{i}]")
    if packed is not None:
        rest = iter(marks[len(packed.kept) :])
        # The rest of the residuals is what the hooks packed, array by array.
        for i, whole in enumerate(packed.wholes(layout.for_backward)):
            places: dict[int, list[str]] = {id(spec): [] for spec in packed.specs[i]}
            _note(places, whole, f"saved_tensors[{i}]")
            for spec in packed.specs[i]:
                value = [next(rest) for _ in range(spec.n_arrays)]
                _note(found, value, f"{', '.join(places[id(spec)])}, packed")
    for name, put in layout.attributes.items():
        _note(found, put(at), f"ctx.{name}")
    return [", ".join(found[id(mark)]) for mark in marks]


def _note(found: dict[int, list[str]], value: Any, name: str) -> None:
    """Say of each object in `value` that is to be found how it is reached."""
    for path, x in tree_util.tree_flatten_with_path(value)[0]:
        here = name + tree_util.keystr(path)
        if id(x) in found:
            if here not in found[id(x)]:
                found[id(x)].append(here)
        elif is_record(x):
            # A dataclass or a SimpleNamespace, which JAX takes for a leaf.
            for key, part in fields(x).items():
                _note(found, part, f"{here}.{key}")
