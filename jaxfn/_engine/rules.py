"""A Function in JAX's terms: its rules, on flat lists of arrays.

A Function class always becomes `Rules`. A decorated function does if it has derivative
rules of both kinds; JAX's own decorators handle rules of one kind. `engines` makes a
JAX function from `Rules`. None is a zero tangent or cotangent throughout.

Here and elsewhere, a dataclass that every call makes anew is not frozen, because a
frozen one takes three times as long to make. Only `Run` and `OutSpec` change later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxfn._base import pytree

Arrays = Sequence[Any]

Perturbed = tuple[bool, ...]
"""A mask of the array arguments that are being differentiated."""

Fun = Callable[..., pytree.Outputs]
"""A function of flat arrays."""

Batch = Callable[
    [int, Sequence[bool], list[Any]], tuple[pytree.Outputs, pytree.Outputs]
]
"""The batch rule of a `Fun`: `batch(size, batched, arrays) -> outs, which are batched`.

Batch axes are first, and `batched` says which arrays have one.
"""


@dataclasses.dataclass(slots=True)
class Residuals:
    """The residuals of one call.

    Attributes:
        arrays: JAX arrays.
        static: All other values; never an array or a tracer.
        differentiable: A mask of the outputs that have a derivative.
        pattern_used: Whether the saved values may depend on which inputs are perturbed.
    """

    arrays: Arrays
    static: Any
    differentiable: tuple[bool, ...]
    pattern_used: bool = False


class Origin(NamedTuple):
    """The source of a function, for JAX's messages.

    Attributes:
        arguments: Name of each array.
        sources: File and line of each rule, by its name.
    """

    arguments: tuple[str, ...]
    sources: Mapping[str, str]


@dataclasses.dataclass(slots=True)
class Rules:
    """The rules of one Function for one structure of arguments.

    Attributes:
        name: Name for messages and jaxprs.
        primal: `primal(args) -> Outputs`.
        fwd: `fwd(args, perturbed) -> Outputs, Residuals`.
        bwd: `bwd(residuals, cts) -> cts of the args`, or None. It gets a ct for each
            output array; the results have the types of the args.
        jvp: `jvp(residuals, tangents) -> out tangents`, or None. It gets a tangent for
            each argument; the results have the types of the outputs.
        derive_jvp: Whether forward mode transposes `bwd` (`generate_jvp_rule`).
        once: Whether `bwd` refuses to be differentiated.
        origin: Names and places, for JAX's errors.
    """

    name: str
    primal: Callable[[Arrays], pytree.Outputs]
    fwd: Callable[[Arrays, Perturbed], tuple[pytree.Outputs, Residuals]]
    bwd: Callable[[Residuals, Arrays], Arrays] | None = None
    jvp: Callable[[Residuals, Arrays], Arrays] | None = None
    derive_jvp: bool = False
    once: bool = False
    origin: Origin | None = None


def spread(values: Arrays, places: Sequence[bool]) -> list[Any]:
    """Return the next value for each place that is True, and None for the others."""
    rest = iter(values)
    return [next(rest) if place else None for place in places]


def jvp_along(
    f: Callable[..., Arrays],
    inputs: Arrays,
    tangents: Arrays,
    differentiable: Sequence[bool],
) -> list[Any]:
    """Return the tangents of the outputs of `f(*inputs)`, by jax.jvp.

    None stands for the tangent of an input that is not perturbed, and of an output that
    is not differentiable.
    """
    # Leave out the others: with symbolic_zeros, JAX would call them perturbed.
    perturbed = [i for i, t in enumerate(tangents) if t is not None]

    def along(*values: Any) -> list[Any]:
        at = list(inputs)
        for i, x in zip(perturbed, values, strict=True):
            at[i] = x
        return [x for x, s in zip(f(*at), differentiable, strict=True) if s]

    at = tuple([inputs[i] for i in perturbed])
    _, found = jax.jvp(along, at, tuple([tangents[i] for i in perturbed]))
    return spread(found, differentiable)
