"""Both passes: every operation that a function runs on tensors, as a graph.

The first pass runs the Python of a rule, the second one the graph of the first without
writes. Torch's own `make_fx` does the same, and takes three times as long. It is used
where sizes or numbers may be unknown, because this knows no symbols.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from jaxfn.torch._base import READ, experimental, has_draws, torch

_LIFT = torch.ops.aten.lift_fresh.default
_LIFTED_COPY = torch.ops.aten.lift_fresh_copy.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_INDEXED = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
}
"""Their second argument may be masks."""
_SHAPED = {
    torch.ops.aten.nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.unique_consecutive.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten.bincount.default,
}
"""The shapes of their results depend on values."""


class Recorder(experimental.TorchDispatchMode):
    """A mode that notes each operation on tensors, and lets it run.

    Args:
        inputs: The arguments, tensors without values.
        fakes: Their maker.
    """

    def __init__(self, inputs: Sequence[Any], fakes: experimental.Fakes) -> None:
        super().__init__()
        self._fakes, self._inputs = fakes, inputs
        self._graph, self._constants = torch.fx.Graph(), torch.nn.Module()
        self._nodes: dict[int, Any] = {}
        self._until: Any = None
        self._values: dict[Any, Any] = {}
        # An object that is gone would leave its number to another one.
        self._alive: list[Any] = []
        for i, x in enumerate(inputs):
            self._note(x, self._graph.placeholder(f"input_{i}"))

    def graph(self, body: Callable[..., Any]) -> Any:
        """Run a function, and return all operations of it, writes included."""
        try:
            with experimental.tracing(self._fakes), self:
                results = body(*self._inputs)
        finally:
            self._fakes.forget()
        self._graph.output([None if x is None else self._arg(x) for x in results])
        self._constants.graph = self._graph
        return self._constants

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        simpler = experimental.decomposition(func)
        if simpler is not None:
            with self:
                found = simpler(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if func is _ITEM and (number := self._number(args[0])) is not None:
            return number
        if func in _SHAPED and (known := self._known((args, kwargs))) is not None:
            with experimental.with_values(), torch.no_grad():
                return jax.tree.map(self._fixed, func(*known[0], **known[1]))
        if func in _INDEXED:
            args = (args[0], self._places(args[1]), *args[2:])
        found = func(*args, **kwargs)
        # The argument of lift_fresh is a constant, to which the rule may then write.
        target = _LIFTED_COPY if func is _LIFT else func
        node = self._graph.call_function(
            target,
            tuple([self._arg(x) for x in args]),
            {k: self._arg(x) for k, x in kwargs.items()},
        )
        node.meta["stack_trace"] = experimental.place_noted()
        node.meta["default_dtype"] = torch.get_default_dtype()
        self._note(found, node)
        return found

    def give_values(self, conditions: Sequence[Any]) -> None:
        """Give each constant that the user's program keeps its value.

        A rule may make a tensor once and keep it, in its class or in a cache. Without
        values, it would be of no use to the next trace, nor to PyTorch itself. Call it
        after a run that came to its end: otherwise a constant may be half made.

        Args:
            conditions: The conditions on values. After the first one, another run may
                make other constants.
        """
        self._until = self._nodes[id(conditions[0])] if conditions else None
        kept = self._kept(self._constant_nodes())
        if not kept:
            return
        values: dict[Any, Any] = {}
        self._compute(self._constant_nodes(self._spoilt()), values)
        found = [(x, values.get(self._nodes[id(x)])) for x in kept]
        self._alive = list(kept)
        numbers = frozenset(map(id, kept))
        for node in self._graph.nodes:
            node.meta["val"] = _without_base(node.meta.get("val"), numbers)
        # A view refers to its base, and torch exchanges no tensor that others refer to.
        for x, value in sorted(found, key=lambda pair: experimental.is_base(pair[0])):
            if value is not None:
                experimental.give_value(x, value)

    def _number(self, x: Any) -> Any:
        """Return the number in a tensor if it depends on no argument; None if it may.

        For example one of the axes `torch.arange(1, x.ndim).tolist()`.
        """
        known = self._known(x)
        if known is None:
            return None
        with experimental.with_values():
            return known.item()

    def _places(self, indices: Sequence[Any]) -> list[Any]:
        """Return indices with the places of a mask for the mask, if it is known."""
        found: list[Any] = []
        for x in indices:
            is_mask = isinstance(x, torch.Tensor) and x.dtype == torch.bool and x.ndim
            known = self._known(x) if is_mask else None
            if known is None:
                found.append(x)
                continue
            with experimental.with_values():
                places = known.nonzero(as_tuple=True)
            found += map(self._fixed, places)
        return found

    def _known(self, values: Any) -> Any:
        """Return the values with known tensors; None if one depends on an argument."""
        leaves, spec = jax.tree.flatten(values)
        at = [self._arg(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        tensors = [x for x in at if isinstance(x, torch.fx.Node)]
        nodes = self._constant_nodes(self._spoilt(_has_no_value), _has_no_value)
        if not tensors or not set(nodes).issuperset(tensors):
            return None
        self._compute(nodes, self._values)
        found = [self._values[x] if isinstance(x, torch.fx.Node) else x for x in at]
        return jax.tree.unflatten(spec, found)

    def _fixed(self, x: Any) -> Any:
        """Return a constant of the graph, without values like all its tensors."""
        if not isinstance(x, torch.Tensor):
            return x
        made = self._fakes(x.shape, x.dtype)
        self._nodes[id(made)] = node = self._own(x)
        node.meta |= {"val": made, "is_made": True}
        self._alive.append(made)
        return made

    def _compute(self, nodes: Iterable[Any], values: dict[Any, Any]) -> None:
        """Compute the results of these operations, each once and in their order."""
        with experimental.with_values(), torch.no_grad():
            for node in nodes:
                if node in values:
                    continue
                if node.op == "get_attr":
                    values[node] = getattr(self._constants, node.target)
                    if not (_is_new(node) or experimental.is_fake(values[node])):
                        READ.note(values[node])
                    continue
                args, kwargs = torch.fx.node.map_arg(
                    (node.args, node.kwargs), values.__getitem__
                )
                with _default_dtype(node.meta.get("default_dtype")):
                    values[node] = node.target(*args, **kwargs)

    def _kept(self, nodes: Sequence[Any]) -> list[Any]:
        """Return the tensors of these nodes that something else may refer to."""
        tensors = {id(x): x for node in nodes for x in _made_by(node)}
        own = Counter(id(x) for node in self._graph.nodes for x in _made_by(node))
        own += Counter(map(id, self._alive))
        more = 3  # the dict, the name `x`, and the argument of getrefcount
        return [
            x
            for x in tensors.values()
            if experimental.is_fake(x)
            and not _has_graph(x)  # PyTorch could not differentiate through its value
            and sys.getrefcount(x) > own[id(x)] + more
        ]

    def _constant_nodes(
        self,
        spoilt: frozenset[int] = frozenset(),
        leave_out: Callable[[Any], bool] = lambda _: False,
    ) -> list[Any]:
        """Return the operations whose results depend on no argument and no draw.

        Args:
            spoilt: Memory whose tensors don't count.
            leave_out: Says which other operations don't count.
        """
        found: dict[Any, None] = {}
        for node in self._graph.nodes:
            if node is self._until:
                break
            is_constant = node.op == "get_attr" or (
                node.op == "call_function"
                and not has_draws(node.target)
                and found.keys() >= set(node.all_input_nodes)
            )
            is_spoilt = spoilt and _memory(node) & spoilt
            if is_constant and not is_spoilt and not leave_out(node):
                found[node] = None
        return list(found)

    def _spoilt(
        self, leave_out: Callable[[Any], bool] = lambda _: False
    ) -> frozenset[int]:
        """Return the memory of constants into which the rule wrote other values.

        Also that of the user's own tensors, which must not be written to here.
        """
        spoilt: frozenset[int] = frozenset()
        writes = [n for n in self._graph.nodes if experimental.writes(n.target)]
        n = -1
        while n < len(spoilt):  # a value from spoilt memory spoils where it is written
            n, constant = len(spoilt), set(self._constant_nodes(spoilt, leave_out))
            for node in writes:
                inputs = node.all_input_nodes
                if node not in constant or any(x.op == "get_attr" for x in inputs):
                    spoilt = spoilt.union(*map(_memory, (node, *inputs)))
        return spoilt

    def _note(self, value: Any, node: Any) -> None:
        """Note which node has made a value."""
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)
        elif isinstance(value, (list, tuple)):
            for i, x in enumerate(value):
                part = self._graph.call_function(operator.getitem, (node, i))
                part.meta["stack_trace"] = node.stack_trace
                self._note(x, part)

    def _arg(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self._nodes.get(id(x)) or self._own(x)
        if isinstance(x, (list, tuple)):
            return [self._arg(y) for y in x]
        return x

    def _own(self, x: Any) -> Any:
        """Return a node for a tensor that no operation made."""
        name = f"constant_{len(self._alive)}"
        self._constants.register_buffer(name, x)
        node = self._graph.get_attr(name)
        node.meta["val"] = x
        self._nodes[id(x)] = node
        self._alive.append(x)
        return node


def _has_no_value(node: Any) -> bool:
    """Return whether a tensor is empty, or of another trace.

    An empty tensor may stand for a cotangent.
    """
    of_another = node.op == "get_attr" and "is_made" not in node.meta
    of_another = of_another and experimental.is_fake(node.meta["val"])
    return of_another or "empty" in str(node.target)


def _is_new(node: Any) -> bool:
    """Return whether a tensor was made in this run: torch copies it at once."""
    users = list(node.users)
    is_copied = bool(users) and all(user.target is _LIFTED_COPY for user in users)
    return is_copied or "is_made" in node.meta


@contextlib.contextmanager
def _default_dtype(dtype: Any) -> Iterator[None]:
    """Let torch have the default dtype that it had when it recorded an operation."""
    before = torch.get_default_dtype()
    if dtype in (None, before):
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _made_by(node: Any) -> list[Any]:
    """Return the tensors that an operation made."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return [x for x in parts if isinstance(x, torch.Tensor)]


def _memory(node: Any) -> set[int]:
    """Return the memory of the tensors that an operation made."""
    return {experimental.storage_number(x) for x in _made_by(node)}


def _has_graph(x: Any) -> bool:
    try:
        return x.grad_fn is not None
    except RuntimeError:  # it would be the derivative of a write that has none
        return True


def _without_base(value: Any, kept: frozenset[int]) -> Any:
    """Return the value of a node; a view of a kept tensor with no reference to it."""
    if isinstance(value, (list, tuple)):
        return [_without_base(x, kept) for x in value]
    if isinstance(value, torch.Tensor) and id(value) not in kept:
        is_view = id(experimental.whole_of(value)) in kept
        return value.detach() if is_view else value
    return value
