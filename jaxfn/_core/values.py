"""Values as flat lists of arrays, with a `Spec` of all the rest.

JAX carries arrays; a Function takes, returns and saves anything. `split(value)` returns
the array leaves of a value and its `Spec`; `spec.join(arrays)` is the inverse.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages

Arrays = Sequence[Any]

Mask = tuple[bool, ...]
"""Which of the arrays of a call are differentiated, one entry for each."""


# ---- arrays


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether JAX has this NumPy dtype: no strings, objects, dates, records."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


def is_array(x: Any) -> bool:
    """Return whether `x` is an array leaf: of JAX (tracers, PRNG keys) or of NumPy."""
    if isinstance(x, (np.ndarray, np.generic)):
        return is_numeric(x.dtype)
    return isinstance(x, jax.Array)


def as_jax(x: Any) -> jax.Array:
    """Convert an array to JAX; for a JAX array, ten times faster than `jnp.asarray`."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


_INEXACT = frozenset("fc")


def is_inexact(x: Any) -> bool:
    """Return whether `x`, an array or a type, has tangents: if it is float or complex.

    Extended dtypes may have them too: PRNG keys don't, scales of 8-bit training do.
    """
    kind = getattr(x.dtype, "kind", None)  # faster than JAX
    if kind in _INEXACT:
        return True
    return internals.tangent_type(x).dtype != jax.dtypes.float0


def is_number(x: Any) -> bool:
    """Return whether `x` is float or complex, with values that NumPy can hold."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def is_extended(x: Any) -> bool:
    """Return whether `x` has one of JAX's own dtypes, such as that of PRNG keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.extended)


def conj(x: Any) -> Any:
    """Return the complex conjugate; a real array, or None (zero), as it is.

    For a real loss L of z = x + iy, JAX's cotangent is dL/dx - i dL/dy and torch's
    gradient is dL/dx + i dL/dy, its conjugate. Therefore jaxfn conjugates both the
    gradients that a backward in torch's terms gets and those that it returns.
    """
    if x is None or getattr(x.dtype, "kind", None) != "c":
        return x
    return jnp.conj(x)


# ---- a value without its arrays


class _Array:
    def __repr__(self) -> str:
        return "ARRAY"


ARRAY = _Array()
"""An array leaf in a `Spec`."""


@dataclasses.dataclass(slots=True)
class Spec:
    """A value without its array leaves.

    Attributes:
        treedef: Pytree structure of the value.
        leaves: Leaves in order, with `ARRAY` in place of arrays.
        n_arrays: Number of arrays.
    """

    treedef: Any
    leaves: tuple[Any, ...]
    n_arrays: int

    def join(self, arrays: Arrays) -> Any:
        """Return the value with these array leaves."""
        if self is ONE_ARRAY:
            return arrays[0]
        if self.n_arrays == len(self.leaves):
            return self.treedef.unflatten(arrays)
        rest = iter(arrays)
        return self.treedef.unflatten(
            [next(rest) if x is ARRAY else x for x in self.leaves]
        )

    def join_only(self, arrays: Arrays) -> Any:
        """Return the value with these array leaves, and None for static leaves."""
        if self.n_arrays == len(self.leaves):
            return self.join(arrays)
        blank = tuple([x if x is ARRAY else None for x in self.leaves])
        return Spec(self.treedef, blank, self.n_arrays).join(arrays)

    @property
    def is_array(self) -> bool:
        """Whether the value is a single array."""
        return self is ONE_ARRAY

    @property
    def children(self) -> list[Spec]:
        """The specs of the elements of a container."""
        children, start = [], 0
        for child in self.treedef.children():
            stop = start + child.num_leaves
            children.append(spec_of(child, self.leaves[start:stop]))
            start = stop
        return children


def spec_of(treedef: Any, leaves: Sequence[Any]) -> Spec:
    """Make a spec; the spec of a single array is always the same object."""
    if len(leaves) == 1 and leaves[0] is ARRAY and treedef == ONE_ARRAY.treedef:
        return ONE_ARRAY
    return Spec(treedef, tuple(leaves), sum([x is ARRAY for x in leaves]))


ONE_ARRAY = Spec(tree_util.tree_structure(0), (ARRAY,), 1)


def split(value: Any, is_leaf_array: Callable[[Any], bool] = is_array) -> Any:
    """Return the array leaves of `value`, and its spec.

    A dict with keys that don't compare is one static leaf: JAX can't flatten it.
    """
    if isinstance(value, jax.Array):
        return [value], ONE_ARRAY
    try:
        leaves, treedef = tree_util.tree_flatten(value)
    except (TypeError, ValueError):
        leaves, treedef = tree_util.tree_flatten(value, is_leaf=is_unsortable)
        for x in filter(is_unsortable, leaves):
            if any(map(is_leaf_array, tree_util.tree_leaves(list(x.values())))):
                raise messages.RuleTypeError(
                    "A dict with keys that can't be sorted holds an array: expected "
                    f"keys that JAX can sort, got {list(x)}. Use keys of one type, or "
                    "a list."
                ) from None
    arrays = [x for x in leaves if is_leaf_array(x)]
    if len(arrays) == len(leaves):
        return arrays, spec_of(treedef, (ARRAY,) * len(leaves))
    marked = [ARRAY if is_leaf_array(x) else x for x in leaves]
    return arrays, Spec(treedef, tuple(marked), len(arrays))


def is_unsortable(x: Any) -> bool:
    """Return whether `x` is a dict whose keys JAX can't sort."""
    if not isinstance(x, dict):
        return False
    try:
        sorted(x)
    except TypeError:
        return True
    return False


def grouped(specs: Sequence[Spec], values: Sequence[Any]) -> list[list[Any]]:
    """Group values, one for each array, by specs."""
    rest = iter(values)
    return [list(itertools.islice(rest, spec.n_arrays)) for spec in specs]


def pair(value: Any, spec: Spec, *, copies: bool = False) -> list[tuple[Any, Any]]:
    """Pair the leaves of `value` with the leaves of `spec`.

    `value` has the structure of `spec`, or None for a part of it.

    Args:
        value: Any pytree.
        spec: The spec.
        copies: Whether any leaf may stand for a part, as in JAX, and not None alone.

    Raises:
        ValueError: The structures don't match.
    """
    leaves = _broadcast(value, spec.treedef, copies=copies)
    return list(zip(leaves, spec.leaves, strict=True))


def _broadcast(value: Any, treedef: Any, *, copies: bool) -> list[Any]:
    """Return a leaf of `value` for each leaf of the structure.

    It makes no object of the structure: the flattening of a custom node may depend on
    the types of its leaves.
    """
    n = treedef.num_leaves
    may_stand = copies or n == 0 or tree_util.treedef_is_leaf(treedef)
    if value is None or (may_stand and tree_util.all_leaves([value])):
        return [value] * n
    parts, own = tree_util.tree_flatten(value, is_leaf=lambda x: x is not value)
    children = treedef.children()
    if own.node_data() != treedef.node_data() or len(parts) != len(children):
        raise ValueError(f"expected {treedef}, got {tree_util.tree_structure(value)}")
    pairs = zip(parts, children, strict=True)
    return [
        leaf for part, child in pairs for leaf in _broadcast(part, child, copies=copies)
    ]


# ---- the outputs of forward


@dataclasses.dataclass(slots=True)
class Layout:
    """What one run of forward left, without any array: it outlives the trace.

    Attributes:
        out: Spec of the result.
        outputs: Spec of each output: each element of a tuple, or the result.
        kind: Type of the result.
        marked: Indices of the array outputs that the rules give no derivative.
        grad_dtypes: Dtype of each array output's gradient, if forward chose any.
        perturbed: Which arguments are differentiated.
        asked: Whether forward asked for `needs_input_grad`, and may have saved by it.
        saved: Structure of the saved values, in the form of the rules.
        sources: Origin of each saved array: ("input", i), ("output", i), or ("other",
            i) for the i-th of the others.
        setup: Jaxpr that computes the other saved arrays from what it closes over, the
            inexact inputs and the inexact outputs; None if they have been computed.
        in_types: Types of the arguments.
        out_types: Types of the array outputs.
    """

    out: Spec
    outputs: list[Spec]
    kind: type
    marked: frozenset[int] = frozenset()
    grad_dtypes: tuple[Any, ...] = ()
    perturbed: Mask = ()
    asked: bool = False
    saved: Any = None
    sources: tuple[tuple[str, int], ...] = ()
    setup: Any = None
    in_types: tuple[Any, ...] = ()
    out_types: tuple[Any, ...] = ()

    @classmethod
    def of_result(cls, result: Any, spec: Spec) -> Layout:
        outputs = spec.children if isinstance(result, tuple) else [spec]
        return cls(spec, outputs, type(result))

    @property
    def differentiable(self) -> list[bool]:
        """Whether each array output has a derivative."""
        pairs = enumerate(map(is_inexact, self.out_types))
        return [inexact and i not in self.marked for i, inexact in pairs]

    def note_sources(self, saved: Arrays, inputs: Arrays, outs: Arrays) -> list[Any]:
        """Note the origin of each saved array, by identity; return the others."""
        places = {id(x): ("output", i) for i, x in enumerate(outs)}
        # Inputs come last, in reverse order: a dict keeps the last of equal keys, and
        # an input that is returned as it is must count as the input.
        places |= {id(x): ("input", i) for i, x in reversed(list(enumerate(inputs)))}
        others: list[Any] = []
        for x in saved:
            if id(x) not in places:
                places[id(x)] = "other", len(others)
                others.append(x)
        self.sources = tuple([places[id(x)] for x in saved])
        return others

    def leaves(self, inputs: Arrays, outs: Arrays, others: Arrays) -> list[Any]:
        """Return the saved arrays, made of these."""
        if self.setup is not None:
            floats = filter(is_inexact, (*inputs, *outs))
            others = internals.evaluate(self.setup, [*others, *floats])
        origin = {"input": inputs, "output": outs, "other": others}
        return [origin[kind][i] for kind, i in self.sources]


class Box:
    """Aux data of a pytree that compares equal to any other box.

    JAX compares the structures of two traces, whose static values may differ or not
    compare (a lambda made in forward). For outputs, it uses only the values of the
    current trace. For residuals it doesn't: see `_Residuals`.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box)

    def __hash__(self) -> int:
        return hash(Box)


@tree_util.register_pytree_node_class
@dataclasses.dataclass(slots=True)
class Outputs:
    """The result of a call on its way through JAX: arrays, and their `Layout`."""

    arrays: Arrays
    layout: Any

    def tree_flatten(self) -> tuple[Arrays, Box]:
        return self.arrays, Box(self.layout)

    @classmethod
    def tree_unflatten(cls, box: Box, arrays: Sequence[Any]) -> Outputs:
        return cls(list(arrays), box.value)

    def __repr__(self) -> str:
        return repr(self.layout.out.join(self.arrays))  # in JAX's errors, as the user's


def spread(values: Arrays, places: Sequence[bool]) -> list[Any]:
    """Return the next value for each place that is True, and None for the others."""
    rest = iter(values)
    return [next(rest) if place else None for place in places]
