"""The first pass: every operation that the Python of a rule runs, as a graph.

Torch's own `make_fx` does the same, and takes three times as long. It is used where
sizes or numbers may be unknown, because this knows no symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jaxfn.torch._base import experimental, torch

_LIFT = torch.ops.aten.lift_fresh.default
_LIFTED_COPY = torch.ops.aten.lift_fresh_copy.default


def record(body: Callable[..., Any], examples: Sequence[Any]) -> Any:
    """Return the graph of a function of tensors without values, writes included."""
    recorder = _Recorder(examples)
    with recorder:
        results = body(*examples)
    return recorder.module(results)


class _Recorder(experimental.TorchDispatchMode):
    """A mode that notes each operation on tensors, and lets it run."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self._graph, self._constants = torch.fx.Graph(), torch.nn.Module()
        self._nodes: dict[int, Any] = {}
        # An object that is gone would leave its number to another one.
        self._alive: list[Any] = []
        for i, x in enumerate(inputs):
            self._note(x, self._graph.placeholder(f"input_{i}"))

    def module(self, results: Sequence[Any]) -> Any:
        """Return the graph, with these results."""
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
        found = func(*args, **kwargs)
        # The argument of lift_fresh is a constant, to which the rule may then write.
        target = _LIFTED_COPY if func is _LIFT else func
        node = self._graph.call_function(
            target,
            tuple([self._arg(x) for x in args]),
            {k: self._arg(x) for k, x in kwargs.items()},
        )
        node.meta["stack_trace"] = experimental.place_noted()
        self._note(found, node)
        return found

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
            return self._nodes.get(id(x)) or self._constant(x)
        if isinstance(x, (list, tuple)):
            return [self._arg(y) for y in x]
        return x

    def _constant(self, x: Any) -> Any:
        """Return a node for a tensor that no operation made."""
        name = f"constant_{len(self._alive)}"
        self._constants.register_buffer(name, x)
        node = self._graph.get_attr(name)
        node.meta["val"] = x
        self._nodes[id(x)] = node
        self._alive.append(x)
        return node
