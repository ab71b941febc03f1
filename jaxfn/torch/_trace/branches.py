"""All paths through a rule whose Python has conditions on values."""

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
    """A condition, and what follows.

    Attributes:
        condition: gives one bool.
        then: the paths where it holds.
        other: the paths where it does not.
    """

    condition: TracedProgram
    then: Node
    other: Node


class RaiseLeaf:
    """The end of a path on which the rule raises.

    Args:
        error: what it raised.
    """

    def __init__(self, error: Exception) -> None:
        self._kind, self._args = type(error), error.args

    def error(self) -> Exception:
        """The same error again."""
        try:
            return self._kind(*self._args)
        except Exception:  # noqa: BLE001  (an exception may need other arguments)
            return RuntimeError(*self._args)


Node = Branch | TracedProgram | RaiseLeaf


class BranchTree:
    """The program of a rule, with all its paths.

    Where the rule raises, there is nothing to return, and JAX can't raise: results are
    nan there if values were traced, and the call fails if they are known.

    Args:
        root: where the paths begin.
        n_inputs: how many arrays it takes.
        note: what the trace found out.

    Attributes:
        outputs: for each result a number: below `n_inputs` it is that input, the same
            number is the same result; None for no result.
        types: of the results.
    """

    def __init__(self, root: Node, n_inputs: int, note: Any) -> None:
        self.root, self.n_inputs, self.note = root, n_inputs, note
        self.paths = list(_leaves(root))
        first = self.paths[0]
        self.types = first.types
        raises = _has_raised(root)
        if raises and not any(t and _is_inexact(t.dtype) for t in self.types):
            raise TorchRefusal(
                operation="raise",
                reason="it raises where values are wrong, and there is no float "
                "result that could be nan to show that.",
            )
        for path in self.paths[1:]:
            if path.types != self.types:
                raise TorchRefusal(
                    operation="bool(tensor)",
                    reason="results have other shapes or dtypes where the condition "
                    "comes out otherwise.",
                )
        self.outputs = _joined(self.paths, n_inputs)

    @property
    def launches(self) -> list[Any]:
        """The kernels that its paths launch."""
        return [launch for path in self.paths for launch in path.launches]

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]:
        """The results for these arrays."""
        if isinstance(self.root, TracedProgram):
            return self.root(arrays, key)
        return self._from(self.root, arrays, key)

    def _from(self, node: Node, arrays: Sequence[Any], key: Any) -> list[Any]:
        if isinstance(node, RaiseLeaf):
            return [None if t is None else _nothing(t) for t in self.types]
        if isinstance(node, TracedProgram):
            return node(arrays, key)
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
