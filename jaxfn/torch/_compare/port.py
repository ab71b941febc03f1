"""The port, run by JAX: the results that are compared.

Derivatives follow torch's convention for complex numbers, like the original's: torch's
gradient is the conjugate of JAX's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn
from jaxfn._check import Once, copies
from jaxfn._core import values
from jaxfn.torch._base import KEYS
from jaxfn.torch._compare.arguments import (
    CommonArguments,
    exchanged,
    leaves_of,
    tops_of,
)

Arrays = list[Any]


class Port:
    """A function of JAX with the arguments of the original.

    Args:
        port: A class with an `apply`, or any callable.
        arguments: The arguments of the call.
        seed: Seed of the key, if it takes one.

    Attributes:
        inexact: The leaves of its outputs that are differentiated.
    """

    def __init__(self, port: Any, arguments: CommonArguments, seed: int) -> None:
        has_apply = isinstance(port, type) and hasattr(port, "apply")
        self._call: Callable[..., Any] = port.apply if has_apply else port
        self._arguments = arguments
        self._key = (jax.random.key(seed),) if takes_key(port, arguments.names) else ()
        self.inexact: list[int] = []

    def leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the leaves of its outputs."""
        args = self._arguments.join(copies(arrays))
        tops = tops_of(self._call(*self._key, *args))
        return [leaf for top in tops for leaf in leaves_of(top)]

    def leaves_compiled(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the same of one program, which compiles faster than its operations."""
        found: list[Any] = []

        def run(arrays: Sequence[Any]) -> Arrays:
            found[:] = self.leaves(arrays)
            return [x for x in found if values.is_array(x)]

        computed = iter(Once(run)(list(arrays)))
        return [next(computed) if values.is_array(x) else x for x in found]

    def function(
        self, arrays: Sequence[Any], chosen: Sequence[int]
    ) -> Callable[..., Arrays]:
        """Return the inexact outputs as a function of the chosen arrays."""

        def f(*xs: Any) -> Arrays:
            leaves = self.leaves(exchanged(arrays, chosen, xs))
            return [jnp.asarray(leaves[i]) for i in self.inexact]

        return f

    def beside(self, arrays: Sequence[Any], chosen: Sequence[int]) -> Arrays:
        """Return the inexact outputs while the chosen arrays are differentiated."""
        xs = [jnp.asarray(arrays[i]) for i in chosen]
        return jax.vjp(self.function(arrays, chosen), *xs)[0]

    def pull(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> Arrays:
        """Return the gradients."""
        xs = [arrays[i] for i in chosen]
        return _pulled(self.function(arrays, chosen), xs, cts)

    def pull_twice(
        self,
        arrays: Sequence[Any],
        chosen: Sequence[int],
        cts: Sequence[Any],
        along: Sequence[Any],
    ) -> Arrays:
        """Return the gradients of <gradients, along>, by arrays and by cotangents."""
        n = len(chosen)

        def first(*args: Any) -> Arrays:
            return self.pull(exchanged(arrays, chosen, args[:n]), chosen, args[n:])

        return _pulled(first, [*(arrays[i] for i in chosen), *cts], along)

    def push(self, arrays: Sequence[Any], tangents: dict[int, Any]) -> Arrays:
        """Return the tangents of the inexact outputs."""
        chosen = list(tangents)
        xs = [jnp.asarray(arrays[i]) for i in chosen]
        ts = [jnp.asarray(t) for t in tangents.values()]
        return jax.jvp(self.function(arrays, chosen), xs, ts)[1]


def _pulled(
    f: Callable[..., Arrays], xs: Sequence[Any], cts: Sequence[Any]
) -> list[Any]:
    """Return the gradients of <f, cts>."""
    outs, back = jax.vjp(f, *map(jnp.asarray, xs))
    pairs = zip(outs, cts, strict=True)
    # `_conj` hands a real array on as the same object, without a copy.
    found = back([_conj(jnp.asarray(ct, o.dtype)) for o, ct in pairs])
    return [_conj(g) for g in found]


def _conj(x: Any) -> Any:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


def takes_key(port: Any, names: Sequence[str]) -> bool:
    """Return whether the port takes a key that the original does not.

    A class of `from_torch` takes one if it was made with random=True. Another Function
    does if its forward begins with a key whose name is none of `names`, the original's.
    """
    bridge = getattr(port, "jaxfn_torch_bridge", None)
    if bridge is not None:
        return bridge.settings.random
    if not (isinstance(port, type) and issubclass(port, jaxfn.Function)):
        return False
    own = list(inspect.signature(port.forward).parameters)
    if port.setup_context is jaxfn.Function.setup_context:
        own = own[1:]  # without ctx
    return bool(own) and own[0] in KEYS and own[0] not in names
