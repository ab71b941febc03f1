"""A user's batch rule into `jax.custom_batching.custom_vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn import _compat
from jaxfn._tree import Outputs

Batch = Callable[[int, Sequence[bool], list[Any]], tuple[Outputs, Outputs]]


def with_batch_rule(
    fun: Callable[..., Outputs], batch: Batch | None
) -> Callable[..., Outputs]:
    """`fun(*arrays)`, batched by `batch(size, batched, arrays) -> outs, outs batched`.

    Batch axes are first, and `batched` says which arrays have one. Where no argument is
    a tracer there is nothing to batch, and `fun` runs as it is: custom_vmap would trace
    it, and a NumPy body could not run.
    """
    if batch is None:
        return fun

    # custom_vmap calls its rule with nothing batched when its own jvp is batched (it is
    # never differentiated here, but the check costs nothing).
    def rule(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        if not any(batched):
            outs = fun(*arrays)
            return outs, jax.tree.map(lambda _: False, outs)
        return batch(size, batched, list(arrays))

    def call(*arrays: Any) -> Outputs:
        if not any(_compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        f = jax.custom_batching.custom_vmap(fun)
        f.def_vmap(rule)
        return f(*arrays)

    return call
