"""Forward and backward of a function on tensors, as two parts of one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax

from jaxfn.torch._base import to_jax
from jaxfn.torch._trace import (
    Branch,
    BranchTree,
    Node,
    Operation,
    Ref,
    TracedProgram,
    Type,
    run_step,
    with_zeros,
)

# Their results are as large as their argument, or larger. So backward computes them
# again from it, and an argument or a parameter is not saved a second time.
_AGAIN = {
    f"aten.{name}"
    for name in (
        *("alias", "detach", "view", "_unsafe_view", "reshape", "permute", "t"),
        *("transpose.int", "expand", "unsqueeze", "squeeze", "squeeze.dim"),
        *("squeeze.dims", "lift_fresh"),
    )
}


@dataclasses.dataclass(slots=True)
class Parts:
    """The note on a run of forward and backward.

    Attributes:
        n_results: The number of results.
        has_cotangent: For each result, whether it has a cotangent.
        note: The note on the results.
    """

    n_results: int
    has_cotangent: tuple[bool, ...]
    note: Any


class Joint:
    """A program that computes results and gradients, in two parts.

    Forward has the operations on which the results depend, and backward the others. A
    value of forward that backward uses is a residual.

    Args:
        program: A program of the arguments, which returns results, cotangents of them,
            and gradients. It makes the cotangents, in the place of the real ones. If
            `n_args` is given, it takes these after so many arguments instead.
        parts: The parts of its results.
        n_args: The number of arguments.

    Attributes:
        note: The note on the results.
        has_cotangent: For each result, whether it has a cotangent.
    """

    def __init__(
        self, program: TracedProgram, parts: Parts, n_args: int | None = None
    ) -> None:
        self._program = program
        self.note, self.has_cotangent = parts.note, parts.has_cotangent
        n, n_cts = parts.n_results, sum(parts.has_cotangent)
        self._first = program.n_inputs + len(program.constants)
        self._operands = [list(_refs((x.args, x.kwargs))) for x in program.steps]
        self._results = program.outputs[:n]
        self._n_args = program.n_inputs if n_args is None else n_args
        self._cotangents = [*range(self._n_args, program.n_inputs)]
        if n_args is None:
            self._cotangents, n = program.outputs[n : n + n_cts], n + n_cts
        self._gradients = program.outputs[n:]
        self._forward = self._needed(self._results)
        self._residuals = self._find_residuals()

    def _find_residuals(self) -> list[int]:
        forward, cts = set(self._forward), set(self._cotangents)
        # An operation with several results: those that backward takes belong to it.
        for i in self._needed(self._gradients, without=forward | cts):
            step = self._step(i)
            if step.name == "getitem" and step.args[0] in forward:
                forward.add(i)
        self._forward = sorted(forward)
        kept = {i for i in forward if not self._is_computed_again(self._step(i))}
        used: set[int] = set()
        for i in self._needed(self._gradients, without=kept | cts):
            used.update(self._operands[i - self._first])
        used.update(ref for ref in self._gradients if ref is not None)
        return sorted(used & kept)

    def _is_computed_again(self, step: Operation) -> bool:
        # Where something is written, the second pass makes view_copy of view.
        name = step.name.removesuffix(".default").replace("_copy", "")
        is_array = isinstance(step.out, Type) and step.out.shape is not None
        return name in _AGAIN or not is_array

    def _step(self, i: int) -> Operation:
        return self._program.steps[i - self._first]

    def _needed(
        self, wanted: Iterable[Any], without: AbstractSet[int] = frozenset()
    ) -> Any:
        """Return the operations that the wanted values need, if some are known."""
        found: set[int] = set()
        left = [ref for ref in wanted if ref is not None]
        while left:
            i = int(left.pop())
            if i >= self._first and i not in found and i not in without:
                found.add(i)
                left.extend(self._operands[i - self._first])
        return sorted(found)

    @property
    def signature(self) -> list[Any]:
        """The operations of forward; equal for two with the same residuals."""
        return [(self._step(i).name, repr(self._step(i).out)) for i in self._forward]

    @property
    def places(self) -> set[int]:
        """The places of the residuals in forward."""
        places = {i: place for place, i in enumerate(self._forward)}
        return {places[i] for i in self._residuals}

    def forward(
        self, arrays: Sequence[Any], key: Any, places: Iterable[int] | None = None
    ) -> tuple[list[Any], dict[int, Any]]:
        """Return the results, and the residuals by their places in forward."""
        values = self._values(arrays)
        for i in self._forward:
            values[i] = run_step(self._step(i), values, key)
        results = [None if ref is None else values[ref] for ref in self._results]
        places = self.places if places is None else places
        # The result of a mask is no array; backward computes it again.
        saved = {place: values[self._forward[place]] for place in sorted(places)}
        return results, {k: x for k, x in saved.items() if isinstance(x, jax.Array)}

    def backward(
        self,
        arrays: Sequence[Any],
        residuals: dict[int, Any],
        key: Any,
    ) -> list[Any]:
        """Return the gradients, from arguments and cotangents.

        What is not among the residuals is computed again.
        """
        n = self._n_args
        values = self._values(arrays[:n])
        values |= dict(zip(self._cotangents, arrays[n:], strict=True))
        values |= {self._forward[place]: x for place, x in residuals.items()}
        for i in self._needed(self._gradients, without=set(values)):
            values[i] = run_step(self._step(i), values, key)
        return [None if ref is None else values[ref] for ref in self._gradients]

    def _values(self, arrays: Sequence[Any]) -> dict[int, Any]:
        constants = enumerate(self._program.constants, self._program.n_inputs)
        return dict(enumerate(arrays)) | {i: to_jax(t) for i, t in constants}


class Branched:
    """A joint program whose backward has conditions on the values of cotangents.

    Args:
        tree: The conditions and the programs of arguments and cotangents.
        n_args: The number of arguments.
    """

    def __init__(self, tree: BranchTree, n_args: int) -> None:
        parts = tree.note
        self._root = self._with_joints(tree.root, parts, n_args)
        self._types = tree.types[parts.n_results :]
        self._first = next(_joints(self._root))
        self.note, self.has_cotangent = parts.note, parts.has_cotangent
        self.signature = self._first.signature
        self._places = set[int]().union(*[x.places for x in _joints(self._root)])

    @staticmethod
    def of(tree: BranchTree, n_args: int) -> Joint | Branched | None:
        """Return forward and backward; None if forward has conditions, too."""
        if isinstance(tree.root, TracedProgram):
            return Joint(tree.root, tree.note, n_args)
        if not _asks_cotangents(tree.root, n_args):
            return None
        found = Branched(tree, n_args)
        same = all(x.signature == found.signature for x in _joints(found._root))
        return found if same else None

    def _with_joints(self, node: Any, parts: Parts, n_args: int) -> Any:
        if isinstance(node, TracedProgram):
            return Joint(node, parts, n_args)
        then, other = (
            self._with_joints(x, parts, n_args) for x in (node.then, node.other)
        )
        return dataclasses.replace(node, then=then, other=other)

    def forward(
        self, arrays: Sequence[Any], key: Any
    ) -> tuple[list[Any], dict[int, Any]]:
        """Return the results, and the residuals of all branches."""
        return self._first.forward(arrays, key, self._places)

    def backward(
        self, arrays: Sequence[Any], residuals: dict[int, Any], key: Any
    ) -> list[Any]:
        """Return the gradients, of the branch that the cotangents choose."""

        def of(node: Any) -> list[Any]:
            if isinstance(node, Joint):
                return with_zeros(node.backward(arrays, residuals, key), self._types)
            (holds,) = node.condition(arrays, key)
            return jax.lax.cond(holds, lambda: of(node.then), lambda: of(node.other))

        return of(self._root)


def _joints(node: Any) -> Iterator[Joint]:
    if isinstance(node, Joint):
        yield node
    else:
        yield from _joints(node.then)
        yield from _joints(node.other)


def _asks_cotangents(node: Node, n_args: int) -> bool:
    """Return whether all conditions depend on cotangents alone, and no path raises."""
    if isinstance(node, TracedProgram):
        return True
    if not isinstance(node, Branch):
        return False
    steps = node.condition.steps
    used = {ref for step in steps for ref in _refs((step.args, step.kwargs))}
    if used & set(range(n_args)):
        return False
    return all(_asks_cotangents(x, n_args) for x in (node.then, node.other))


def _refs(x: Any) -> Iterator[int]:
    """Yield the references in arguments of an operation."""
    if type(x) is Ref:
        yield int(x)
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from _refs(y)
    elif isinstance(x, dict):
        yield from _refs(list(x.values()))
