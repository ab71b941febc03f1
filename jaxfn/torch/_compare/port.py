"""The port, run by JAX: what is to be compared.

Derivatives are in torch's convention for complex numbers, as those of the original are:
torch's gradient is the conjugate of JAX's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxfn
from jaxfn._base import compat, pytree
from jaxfn.torch._base import KEYS
from jaxfn.torch._compare.arguments import CommonArguments, exchanged, leaves_of
from jaxfn.torch._compare.tensors import tops_of

Arrays = list[Any]


class Port:
    """A function of JAX with the arguments of the original.

    Args:
        port: a class with an `apply`, or anything that can be called.
        arguments: what it is called on.
        seed: of the key, where it takes one.
    """

    def __init__(self, port: Any, arguments: CommonArguments, seed: int) -> None:
        has_apply = isinstance(port, type) and hasattr(port, "apply")
        self._call: Callable[..., Any] = port.apply if has_apply else port
        self._arguments = arguments
        self._key = (jax.random.key(seed),) if takes_key(port, arguments.names) else ()
        self.moving: list[int] = []

    def leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """The leaves of its outputs."""
        # Fresh buffers: a Function may mark its arguments dirty, which uses them up.
        args = self._arguments.join([_fresh(x) for x in arrays])
        tops = tops_of(self._call(*self._key, *args))
        return [leaf for top in tops for leaf in leaves_of(top)]

    def arrays(self, arrays: Sequence[Any]) -> Arrays:
        """The outputs that are arrays."""
        return [x for x in self.leaves(arrays) if pytree.is_array(x)]

    def function(
        self,
        arrays: Sequence[Any],
        chosen: Sequence[int],
        used: Sequence[bool] | None = None,
    ) -> Callable[..., Arrays]:
        """The moving outputs (those used) as a function of the chosen arrays."""

        def f(*xs: Any) -> Arrays:
            leaves = self.leaves(exchanged(arrays, chosen, xs))
            outs = [jnp.asarray(leaves[i]) for i in self.moving]
            return outs if used is None else _where(outs, used)

        return f

    def beside(self, arrays: Sequence[Any], chosen: Sequence[int]) -> Arrays:
        """The moving outputs, as they are where the chosen are differentiated."""
        xs = [jnp.asarray(arrays[i]) for i in chosen]
        return jax.vjp(self.function(arrays, chosen), *xs)[0]

    def pull(
        self,
        arrays: Sequence[Any],
        chosen: Sequence[int],
        cts: Sequence[Any | None],
    ) -> Arrays:
        """The gradients, for the outputs that have a cotangent."""
        used = [ct is not None for ct in cts]
        xs = [jnp.asarray(arrays[i]) for i in chosen]
        outs, back = jax.vjp(self.function(arrays, chosen, used), *xs)
        given = zip(outs, _where(cts, used), strict=True)
        # What is not conjugated stays the very array that it is.
        found = back([_conj(jnp.asarray(ct, o.dtype)) for o, ct in given])
        return [_conj(g) for g in found]

    def pull_twice(
        self,
        arrays: Sequence[Any],
        chosen: Sequence[int],
        cts: Sequence[Any],
        along: Sequence[Any],
    ) -> Arrays:
        """The gradients of <gradients, along>, by chosen arrays and by cotangents."""
        n = len(chosen)

        def first(*args: Any) -> Arrays:
            return self.pull(exchanged(arrays, chosen, args[:n]), chosen, args[n:])

        given = [jnp.asarray(arrays[i]) for i in chosen]
        grads, back = jax.vjp(first, *given, *map(jnp.asarray, cts))
        pairs = zip(along, grads, strict=True)
        found = back([_conj(jnp.asarray(v, g.dtype)) for v, g in pairs])
        return [_conj(g) for g in found]

    def push(self, arrays: Sequence[Any], tangents: dict[int, Any]) -> Arrays:
        """The tangents of the moving outputs."""
        chosen = list(tangents)
        xs = [jnp.asarray(arrays[i]) for i in chosen]
        ts = [jnp.asarray(t) for t in tangents.values()]
        return jax.jvp(self.function(arrays, chosen), xs, ts)[1]


def takes_key(port: Any, names: Sequence[str]) -> bool:
    """Does it take a key that the original, with arguments of these names, does not?

    So does a class of `from_torch` with random=True, and one that says so.
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


def _fresh(x: Any) -> Any:
    return x if compat.is_tracer(x) else jnp.asarray(np.array(x))


def _where(values: Sequence[Any], used: Sequence[bool]) -> list[Any]:
    return [x for x, use in zip(values, used, strict=True) if use]


def _conj(x: Any) -> Any:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x
