"""A `GraphFunction` as `Rules` for jaxfn's engine: its derivatives are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp

from jaxfn._base import Outputs, compat, pytree
from jaxfn._engine import (
    Arrays,
    OnePass,
    Perturbed,
    Residuals,
    Rules,
    Run,
    call,
    with_batch_rule,
)
from jaxfn.torch._function.call import Mask


class DerivableGraph(Protocol):
    """The members of `GraphFunction`, which imports this file, that are used here."""

    name: str
    rule: str
    batch: Callable[..., list[Any]] | None

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]: ...
    def vjp(self, needs_input_grad: Mask, has_cotangent: Mask) -> Any: ...
    def jvp(self, has_tangent: Mask) -> Any: ...


def apply(graph: DerivableGraph, key: Any, arrays: Sequence[Any]) -> list[Any]:
    """Call a graph under JAX's transformations.

    Args:
        graph: The function.
        key: A PRNG key; None if it draws nothing.
        arrays: Its arguments.
    """
    if not any(map(compat.is_tracer, arrays)) and not compat.is_tracer(key):
        return graph(arrays, key)
    flat = list(arrays) if key is None else [key, *arrays]
    return call(_GraphRules(graph, has_key=key is not None).rules, flat)


class _GraphRules:
    """The rules of one call. Each saves the arguments, and nothing else."""

    def __init__(self, graph: DerivableGraph, *, has_key: bool) -> None:
        self._graph, self._n_keys = graph, int(has_key)
        name = f"{graph.name}.{graph.rule}"
        one_pass = OnePass(self._forward, _residuals, lambda: self.rules, rule=name)

        def primal(arrays: Arrays) -> Outputs:
            nothing = (False,) * len(arrays)
            # In such a JAX the reverse derivative of a scan drops `jvp`.
            if compat.SCAN_DROPS_JVP:
                return one_pass.fwd(arrays, nothing)[0]
            return one_pass.primal(arrays, nothing)

        self.rules = Rules(
            name=name, primal=primal, fwd=one_pass.fwd, bwd=self._pull, jvp=self._push
        )

    def _split(self, flat: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Split the key, or None, from the arrays."""
        n = self._n_keys
        return flat[0] if n else None, list(flat[n:])

    def _forward(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        def forward(*flat: Any) -> Outputs:
            key, arrays = self._split(flat)
            return pytree.outputs(self._graph(arrays, key))

        if self._graph.batch is not None:
            forward = with_batch_rule(forward, self._batch, name=self.rules.name)
        outs = forward(*inputs)
        return outs.arrays, list(inputs), Run(outs.static, perturbed, False, None)

    def _batch(
        self, size: int, batched: Sequence[bool], flat: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Compute a batch by the vmap rule of the class."""
        assert self._graph.batch is not None
        key, arrays = self._split(flat)
        key_dim, dims = self._split([0 if b else None for b in batched])
        found = self._graph.batch(size, key_dim, tuple(dims), key, arrays)
        outs = pytree.outputs(found)
        return outs, Outputs([True] * len(outs.arrays), outs.static)

    def _pull(self, residuals: Residuals, cts: Arrays) -> list[Any]:
        """Compute the gradients of the arguments that need one."""
        key, arrays = self._split(residuals.arrays)
        perturbed, out = residuals.static
        needs_input_grad = tuple(perturbed[self._n_keys :])
        # A result that is None (a missing gradient) has no cotangent.
        whole = out.whole.join_only([None if ct is None else _conj(ct) for ct in cts])
        has_cotangent = tuple(ct is not None for ct in whole)
        if not any(needs_input_grad) or not any(has_cotangent):
            return [None] * len(perturbed)
        pulled = self._graph.vjp(needs_input_grad, has_cotangent).apply
        found = iter(pulled(key, *arrays, *[ct for ct in whole if ct is not None]))
        grads = [_conj(next(found)) if need else None for need in needs_input_grad]
        return [*[None] * self._n_keys, *grads]

    def _push(self, residuals: Residuals, tangents: Arrays) -> list[Any]:
        """Compute the tangents of the results."""
        key, arrays = self._split(residuals.arrays)
        _, out = residuals.static
        tangents = tangents[self._n_keys :]
        has_tangent = tuple(t is not None for t in tangents)
        pushed = self._graph.jvp(has_tangent).apply
        found = pushed(key, *arrays, *[t for t in tangents if t is not None])
        present = out.whole.join([True] * len(residuals.differentiable))
        return [t for t, is_there in zip(found, present, strict=True) if is_there]


def _residuals(run: Run, leaves: Arrays, arrays: Arrays, outs: Arrays) -> Residuals:
    del arrays
    return Residuals(leaves, (run.perturbed, run.out), run.out.differentiable(outs))


def _conj(x: Any) -> Any:
    """Convert a gradient between JAX's convention and torch's."""
    return jnp.conj(x) if jnp.iscomplexobj(x) else x
