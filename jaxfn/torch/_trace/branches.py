"""The paths through a rule whose Python has conditions on values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxfn.torch._base import TorchRefusal
from jaxfn.torch._trace.program import TracedProgram, Type


@dataclasses.dataclass(slots=True)
class Branch:
    """A condition and its two branches.

    Attributes:
        condition: The program of one bool.
        then: The paths for True.
        other: The paths for False.
    """

    condition: TracedProgram
    then: Node
    other: Node


class RaiseLeaf:
    """The end of a path on which the rule raises.

    Args:
        error: The error.
    """

    def __init__(self, error: Exception) -> None:
        self._kind, self._args = type(error), error.args

    def error(self) -> Exception:
        """Return a new copy of the error."""
        try:
            return self._kind(*self._args)
        except Exception:  # noqa: BLE001  (an exception may need other arguments)
            return RuntimeError(*self._args)


Node = Branch | TracedProgram | RaiseLeaf


class BranchTree:
    """The program of a rule, with all its paths.

    On a path on which the rule raises, there are no results, and compiled code can't
    raise. If values are traced, the results are nan there; if they are known, the call
    raises.

    Args:
        root: The first node.
        n_inputs: The number of arrays that it takes.
        note: The note on the results, if any.

    Attributes:
        outputs: A number for each result; None for no result. A number below `n_inputs`
            is that input; results with the same number are the same.
        types: The types of the results.
    """

    def __init__(self, root: Node, n_inputs: int, note: Any) -> None:
        self.root, self.n_inputs, self.note = root, n_inputs, note
        self.paths = list(_leaves(root))
        self.types: list[Any] = [
            _common(x) for x in zip(*[p.types for p in self.paths], strict=True)
        ]
        raises = _has_raised(root)
        if raises and not any(t and _is_inexact(t.dtype) for t in self.types):
            raise TorchRefusal(
                operation="raise",
                reason="it raises for some values. Compiled code can't raise, and no "
                "result is a float, which could be nan instead.",
            )
        self.outputs = _joined(self.paths, n_inputs)

    @property
    def launches(self) -> list[Any]:
        """The kernels that its paths launch."""
        return [launch for path in self.paths for launch in path.launches]

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]:
        """Return the results for these arrays."""
        if isinstance(self.root, TracedProgram):
            return self.root(arrays, key)
        return self._from(self.root, arrays, key)

    def _from(self, node: Node, arrays: Sequence[Any], key: Any) -> list[Any]:
        if isinstance(node, RaiseLeaf):
            return [None if t is None else _nothing(t) for t in self.types]
        if isinstance(node, TracedProgram):
            return with_zeros(node(arrays, key), self.types)
        (holds,) = node.condition(arrays, key)
        if not isinstance(holds, Tracer):
            node = node.then if holds else node.other
            if isinstance(node, RaiseLeaf):
                raise node.error()
            return self._from(node, arrays, key)
        return jax.lax.cond(
            holds,
            lambda: self._from(node.then, arrays, key),
            lambda: self._from(node.other, arrays, key),
        )


def _common(types: Sequence[Type | None]) -> Type | None:
    """Return the type of a result on all paths. A gradient may be None on some."""
    known = [t for t in types if t is not None]
    is_dynamic = len(known) < len(types) and any(t.shape is None for t in known)
    if is_dynamic or any(t != known[0] for t in known):
        raise TorchRefusal(
            operation="bool(tensor)",
            reason="the results of its two branches differ in shape or dtype.",
        )
    return known[0] if known else None


def with_zeros(results: Sequence[Any], types: Sequence[Type | None]) -> list[Any]:
    """Return results with zeros for None where another path has a result."""
    return [
        x if x is not None or t is None else jnp.zeros(t.shape or (), t.dtype)
        for x, t in zip(results, types, strict=True)
    ]


def _leaves(node: Node) -> list[TracedProgram]:
    if isinstance(node, Branch):
        return [*_leaves(node.then), *_leaves(node.other)]
    return [node] if isinstance(node, TracedProgram) else []


def _has_raised(node: Node) -> bool:
    if isinstance(node, Branch):
        return _has_raised(node.then) or _has_raised(node.other)
    return isinstance(node, RaiseLeaf)


def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _joined(paths: list[TracedProgram], n_inputs: int) -> list[int | None]:
    seen: dict[Any, int] = {}
    found: list[int | None] = []
    for refs in zip(*[path.outputs for path in paths], strict=True):
        if all(ref is None for ref in refs):
            found.append(None)
        elif len(set(refs)) == 1 and refs[0] < n_inputs:
            found.append(int(refs[0]))
        else:
            found.append(seen.setdefault(refs, n_inputs + len(seen)))
    return found


def _nothing(t: Type) -> Any:
    assert t.shape is not None
    if jnp.issubdtype(t.dtype, jnp.inexact):
        return jnp.full(t.shape, jnp.nan, t.dtype)
    return jnp.zeros(t.shape, t.dtype)
