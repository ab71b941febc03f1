"""Which parts of a gradient do all devices have, and which are each device's own?

In a `shard_map` that checks types, the gradient of an argument that all devices share
is the sum of what each of them finds. What is made of a cotangent that they share too,
and of nothing else that differs between them, is no device's own part: summed over the
devices it would be counted once for each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from jaxfn._base import compat
from jaxfn._engine.linearity import body_of

# Their result is a sum, or an arrangement, of what their operands are.
_SUMS = frozenset(
    ("add", "add_any", "sub", "concatenate", "stack", "pad", "complex")
    + ("scatter", "scatter-add", "scatter-sub", "dynamic_update_slice")
)


class Fact(NamedTuple):
    """What is known of a value.

    Attributes:
        depends: does it depend on the arguments?
        common: is a part of it, if it does, the same on all devices?
        differs: does it differ between devices, if it does not?
    """

    depends: bool = False
    common: bool = False
    differs: bool = False


def have_common_part(jaxpr: Any, n_first: int, axis: Hashable) -> list[bool]:
    """Say for each output of a function whether all devices along an axis have a part.

    Args:
        jaxpr: of the function, which is linear in its arguments.
        n_first: how many of its first inputs are no arguments.
        axis: the name of the mesh axis.
    """
    variables = compat.open_jaxpr(jaxpr)[0].invars
    ins = [
        Fact(depends=i >= n_first, differs=axis in compat.varying_axes(x.aval))
        for i, x in enumerate(variables)
    ]
    return [fact.common for fact in _outputs(jaxpr, ins, axis)]


def _outputs(jaxpr: Any, ins: Sequence[Fact], axis: Hashable) -> list[Fact]:
    """Say what is known of the outputs of a jaxpr, from what is of its inputs."""
    opened, _ = compat.open_jaxpr(jaxpr)
    known: dict[int, Fact] = {}

    def write(variables: Sequence[Any], facts: Sequence[Fact]) -> None:
        for x, fact in zip(variables, facts, strict=True):
            # What all devices share is the same on all, whatever it was made of.
            shared = axis not in compat.varying_axes(x.aval)
            known[id(x)] = Fact(
                fact.depends,
                fact.depends and (fact.common or shared),
                fact.differs and not shared,
            )

    write(opened.invars, ins)
    for eqn in opened.eqns:
        facts = [known.get(id(x), Fact()) for x in eqn.invars]
        write(eqn.outvars, _results(eqn, facts, axis))
    return [known.get(id(x), Fact()) for x in opened.outvars]


def _results(eqn: Any, ins: Sequence[Fact], axis: Hashable) -> list[Fact]:
    """Say what is known of the results of an equation."""
    body = body_of(eqn)
    if body is not None and len(compat.open_jaxpr(body)[0].invars) == len(ins):
        return _outputs(body, ins, axis)
    differs = any(x.differs and not x.depends for x in ins)
    # A product with something that differs between devices is each device's own.
    own = differs and eqn.primitive.name not in _SUMS
    found = Fact(
        depends=any(x.depends for x in ins),
        common=any(x.common for x in ins) and not own,
        differs=differs or not ins,  # without operands: the index of the device
    )
    return [found] * len(eqn.outvars)
