"""A function on tensors for one signature, under JAX's transformations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxfn._core import Arrays, Layout, Mask, Outputs, call, gate, internals
from jaxfn.torch._base import TorchRefusal, is_inexact, torch
from jaxfn.torch._function import (
    GraphFunction,
    GraphRules,
    gradients_of,
    graph_outputs,
    run_tracked,
)
from jaxfn.torch._model.joint import Branched, Joint, Parts
from jaxfn.torch._trace import LaunchSeen, Noted, TracedProgram

Masks = tuple[Mask, Any]
"""For each argument, whether it is differentiated. For each result, whether it has a
cotangent; None if that is not known yet."""


class Differentiable:
    """A function on tensors for one signature, with its derivatives.

    Forward and backward are traced together, so that backward gets what forward
    computed. Derivatives of higher order run forward again, by torch's autograd.

    Args:
        graph: The function.
    """

    def __init__(self, graph: GraphFunction) -> None:
        self.graph = graph
        self._joints: dict[Any, Joint | Branched | None] = {}
        self._cotangents: dict[Any, Mask | None] = {}
        self._refusals: dict[Any, TorchRefusal] = {}

    def __call__(self, key: Any, arrays: Sequence[Any]) -> list[Any]:
        """Return the results for these arrays, and a key if it draws."""
        try:
            return self._call(key, arrays)
        except LaunchSeen:  # a kernel of Triton: trace it as on a GPU
            self.graph = self.graph.beside(self.graph.run, self.graph.rule, as_gpu=True)
            self._joints.clear()
            return self._call(key, arrays)

    def _call(self, key: Any, arrays: Sequence[Any]) -> list[Any]:
        flat = list(arrays) if key is None else [key, *arrays]
        if not any(map(internals.is_tracer, flat)):
            return self.graph(arrays, key)
        return call(_ForwardRules(self, flat, has_key=key is not None), flat)

    def note(self, arrays: Arrays) -> Any:
        """Return the note on the results for these arrays."""
        at = self.graph.key(arrays)
        for (*_, key), joint in self._joints.items():
            if key == at and joint is not None:
                return joint.note
        return self.graph.note(arrays)

    def forward(self, mask: Mask, arrays: Arrays) -> Joint | Branched | None:
        """Return forward with the residuals of a derivative by these arguments."""
        if not any(mask):
            return None
        # Which results have a cotangent is not known yet. Expect the same as last time.
        expected = self._cotangents.get((mask, self.graph.key(arrays)))
        return self._joint((mask, expected), arrays)

    def backward(self, masks: Masks, arrays: Arrays) -> Joint | Branched | None:
        """Return backward for these arguments and cotangents."""
        self._cotangents[masks[0], self.graph.key(arrays)] = masks[1]
        return self._joint(masks, arrays)

    def _joint(self, masks: Masks, arrays: Arrays) -> Joint | Branched | None:
        """Return forward and backward; None if the function has branches."""
        key = *masks, self.graph.key(arrays)
        if key in self._refusals:  # as expensive as a trace, each time
            raise self._refusals[key].bare()
        if key not in self._joints:
            try:
                self._joints[key] = self._traced(masks, arrays)
            except TorchRefusal as refusal:
                if refusal.lasts:
                    self._refusals[key] = refusal.bare()
                raise
        return self._joints[key]

    def gradient(self, masks: Masks) -> GraphFunction:
        """Return the function that computes results and gradients."""

        def run(tensors: Sequence[Any]) -> Noted:
            return _forward_and_backward(self.graph.run, masks, tensors)

        return self.graph.beside(run, f"{self.graph.rule} and its gradient")

    def _traced(self, masks: Masks, arrays: Arrays) -> Joint | Branched | None:
        both = self.gradient(masks)
        try:
            tree = both.program(arrays)
            if isinstance(tree.root, TracedProgram):
                return Joint(tree.root, tree.note)
            # Conditions on values: trace it with the cotangents among the arguments.
            types = self.graph.program(arrays).types
            has = tree.note.has_cotangent
            cts = [t for t, x in zip(types, has, strict=True) if x]
            tree = both.program([*arrays, *cts])
        except TorchRefusal:
            if self.graph.host == "never":
                raise
            return None
        return Branched.of(tree, len(arrays))


def _forward_and_backward(run: Any, masks: Masks, tensors: Sequence[Any]) -> Noted:
    """Return results, cotangents of them and gradients.

    If the cotangents are not among the tensors, a cotangent is an empty tensor, made in
    this run, for which the program takes the real one: until here nobody knows what
    results there are.
    """
    mask, has_cotangent = masks
    xs, given = tensors[: len(mask)], iter(tensors[len(mask) :])
    is_given = len(tensors) > len(mask)
    with torch.enable_grad():
        tracked, (outs, note) = run_tracked(run, xs, mask)
    if has_cotangent is None:
        has_cotangent = _expected_cotangents(outs)
    with torch.no_grad():
        pairs = zip(outs, has_cotangent, strict=True)
        cts = [
            (next(given) if is_given else torch.empty_like(x)) if has else None
            for x, has in pairs
        ]
    grads = gradients_of(outs, cts, tracked)
    results = [None if x is None else x.detach() for x in outs]
    made = [ct for ct in cts if ct is not None and not is_given]
    return Noted([*results, *made, *grads], Parts(len(outs), has_cotangent, note))


def _expected_cotangents(outs: Sequence[Any]) -> Mask:
    """Return which results probably have a cotangent, so that one trace is enough.

    A model that returns a loss and predictions is differentiated by its loss.
    """
    can = [x is not None and is_inexact(x.dtype) for x in outs]
    losses = [has and x.dim() == 0 for has, x in zip(can, outs, strict=True)]
    return tuple(losses if any(losses) else can)


def _may_need_jvp(arrays: Sequence[Any]) -> bool:
    """Return whether forward mode may come, in the place of reverse mode.

    To trace a jvp takes longer than everything else. Under jax.grad it would be traced
    for nothing.
    """
    if any(map(internals.has_tangent, arrays)):
        return True
    return not any(map(internals.is_differentiated, arrays))


@contextlib.contextmanager
def _named(name: str, rule: str) -> Iterator[None]:
    """Let a refusal name the function that it comes from."""
    try:
        yield
    except TorchRefusal as refusal:
        raise refusal.of(name, rule) from None


class _ForwardRules(GraphRules):
    """Forward saves the arguments and the residuals."""

    def __init__(
        self, function: Differentiable, flat: Sequence[Any], *, has_key: bool
    ) -> None:
        super().__init__(function.graph, has_key=has_key)
        self._function, self._n = function, len(flat)
        # The derivative for which forward was traced first, and its program.
        self._first: tuple[Mask, Joint | Branched | None] | None = None
        self.has_jvp = _may_need_jvp(flat)

    def forward(self, arrays: Arrays, perturbed: Mask) -> tuple[Any, Any, Layout]:
        if self._first is None:
            mask, (_, xs) = tuple(perturbed[self._n_keys :]), self._split(arrays)
            self._first = mask, self._function.forward(mask, xs)
        # In a scan JAX traces it for more and more arguments, and all save the same.
        mask, joint = self._first
        if joint is None:
            outs, saved, layout = super().forward(arrays, perturbed)
            layout.saved = None
            return outs, saved, layout
        # Residuals have no derivative of their own: backward has one by the arguments.
        key, xs = self._split(list(map(gate, arrays)))
        with _named(self._graph.name, self._graph.rule):
            results, residuals = joint.forward(xs, key)
        outs = graph_outputs(results)
        layout = outs.layout
        layout.perturbed, layout.saved = perturbed, (mask, joint, tuple(residuals))
        return list(outs.arrays), [*arrays, *residuals.values()], layout

    def _pulled(
        self, layout: Layout, masks: Masks, key: Any, saved: Arrays, cts: Arrays
    ) -> list[Any]:
        n = self._n - self._n_keys
        arrays, residuals = saved[:n], saved[n:]
        if layout.saved is None:
            return super()._pulled(layout, masks, key, arrays, cts)
        mask, first, places = layout.saved
        joint = first
        if masks != (mask, first.has_cotangent):
            joint = self._function.backward(masks, arrays)
        if joint is None:
            return super()._pulled(layout, masks, key, arrays, cts)
        if joint is not first and joint.signature != first.signature:
            residuals, places = [], ()  # backward then runs forward again
        has_key = key is not None
        flat = [*([key] if has_key else []), *arrays, *cts, *residuals]
        rules = _BackwardRules(
            self._graph.vjp(*masks), joint, places, flat, has_key=has_key
        )
        return call(rules, flat)

    def jvp(self, layout: Layout, saved: Arrays, tangents: Arrays) -> list[Any]:
        return super().jvp(layout, saved[: self._n], tangents)


class _BackwardRules(GraphRules):
    """Backward of a joint program. Its derivatives are those of the whole gradient.

    Args:
        graph: The gradient, from arguments and cotangents alone.
        joint: Forward and backward.
        places: The places of the residuals in forward.
        flat: The key, the arguments, the cotangents, and the residuals.
        has_key: Whether there is a key.
    """

    def __init__(
        self,
        graph: GraphFunction,
        joint: Joint | Branched,
        places: Sequence[int],
        flat: Sequence[Any],
        *,
        has_key: bool,
    ) -> None:
        super().__init__(graph, has_key=has_key, n_extra=len(places))
        self._joint, self._places = joint, places
        self.has_jvp = _may_need_jvp(flat)

    def _value(self, *flat: Any) -> Outputs:
        key, arrays = self._split(flat)
        n = len(arrays) - self._n_extra
        residuals = dict(zip(self._places, arrays[n:], strict=True))
        with _named(self._graph.name, self._graph.rule):
            return graph_outputs(self._joint.backward(arrays[:n], residuals, key))
