"""A backward whose gradients are summed over devices, in a `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxfn._base import compat, errors, short
from jaxfn._engine import have_common_part
from jaxfn._methods.returned_gradients import Sums

Call = Callable[[Sequence[Any]], tuple[list[Any], Sums]]


def may_count_twice(cts: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Is there a cotangent that devices share, and a value that they do not?"""
    axes = [compat.varying_axes(ct) for ct in cts if ct is not None]
    every = frozenset[Any]().union(*axes, *map(compat.varying_axes, saved))
    return any(own != every for own in axes)


def summed(
    call: Call, cts: Sequence[Any], arrived: Sequence[bool], *, name: str
) -> list[Any]:
    """Call backward, and refuse a sum over devices that counts a part for each of them.

    Its Python runs once: what it does is traced, looked at, and evaluated.

    Args:
        call: `call(cts) -> gradients, what was summed`.
        cts: of the outputs, None or zeros for one that did not arrive.
        arrived: which did: the others add nothing, so they are not looked at.
        name: of the Function.
    """
    places = [i for i, is_there in enumerate(arrived) if is_there]
    present: list[bool] = []
    sums: Sums = []

    def flat(*arrays: Any) -> list[Any]:
        given = list(cts)
        for i, x in zip(places, arrays, strict=True):
            given[i] = x
        found, sums[:] = call(given)
        present[:] = [x is not None for x in found]
        return [x for x in (*found, *[x for x, _, _ in sums]) if x is not None]

    held, staged = compat.Staged.trace(flat, (), *[cts[i] for i in places])
    for k, (x, axes, where) in enumerate(sums, start=sum(present)):
        for axis in axes:
            if have_common_part(staged.jaxpr, len(held), axis)[k]:
                raise errors.RuleValueError(
                    f"`{name}.backward` returned a gradient for {where.label} that "
                    f"devices along the mesh axis {axis!r} do not share, where they "
                    "share the argument: so it is summed over them. But a part of it "
                    "is made of the gradient of an output that they share, and would "
                    "be counted once for each device: expected a gradient that they "
                    f"share, got {short(x)}. Sum over the devices what is each one's "
                    f"own, by jax.lax.psum(..., {axis!r}), before the other parts are "
                    "added."
                )
    outs = iter(staged(*held, *[cts[i] for i in places]))
    return [next(outs) if is_there else None for is_there in present]
