"""`Residuals` on their way from the fwd of a custom_vjp to its bwd, for each trace."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from jax import lax

from jaxfn._base import compat
from jaxfn._engine.rules import Arrays, Residuals

_PADDING = 16


class Carrier:
    """Takes residuals from the fwd of one call to the bwd of the same trace.

    JAX keeps one structure of residuals for each custom_vjp call: from the last trace
    of fwd. But in a jitted function, JAX traces a call again for each set of perturbed
    arguments, and uses all these traces at once. As aux data of the residuals' pytree
    (in a `Box`), the static part would reach the bwd of another trace, and a gradient
    would be silently lost. Only the shapes of residuals stay with a trace. So the
    static part stays here under a key. The key travels as the length of an array
    without elements. An eager call runs fwd once, and needs no key.

    For the same reason JAX fails if the number of residuals differs among traces. It
    can differ only if forward asks which inputs are perturbed. Then the first trace
    adds spare places, filled with arrays without elements, because forward may save
    more for another set of inputs. It rarely saves more than its arguments and a few
    other values.

    Args:
        name: Name of the Function, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: dict[int | None, Residuals] = {}
        self._next = itertools.count()
        self._width: int | None = None

    def pack(self, residuals: Residuals, args: Arrays) -> tuple[Arrays, Any]:
        """Store the static part; return the arrays, and the key to send along."""
        is_traced, n = any(map(compat.is_tracer, args)), len(residuals.arrays)
        if self._width is None:
            padded = residuals.pattern_used and is_traced
            self._width = n + (_PADDING + 2 * len(args) if padded else 0)
        if n > self._width:
            raise NotImplementedError(
                f"`{self._name}` saved {n} arrays, at least {_PADDING} more than in "
                "the same call of a jitted function with other arguments "
                f"differentiated: expected at most {self._width}. Save the same arrays "
                "whatever ctx.needs_input_grad or symbolic_zeros say; ask in backward."
            )
        key = next(self._next) if is_traced or None in self._items else None
        # Keep shapes in place of the arrays, which must not outlive their trace. They
        # show whether bwd gets the arrays of its own trace.
        shapes = [_shape(x) for x in residuals.arrays]
        self._items[key] = Residuals(shapes, residuals.static, residuals.differentiable)
        padding = [_nothing(0) for _ in range(self._width - n)]
        return [*residuals.arrays, *padding], None if key is None else _nothing(0, key)

    def unpack(self, saved: tuple[Arrays, Any]) -> Residuals:
        """Return the residuals of the trace that made the key."""
        arrays, key = saved
        item = self._items[None if key is None else key.shape[1]]
        arrays = [compat.as_array(x) for x in arrays[: len(item.arrays)]]
        if [_shape(x) for x in arrays] != list(item.arrays):
            raise NotImplementedError(
                f"`{self._name}` saved other arrays for other sets of differentiated "
                "arguments, and JAX mixed them up when it batched them: expected the "
                f"residuals {item.arrays}, got {[_shape(x) for x in arrays]}. Save the "
                "same arrays whatever is differentiated."
            )
        return Residuals(arrays, item.static, item.differentiable)


def _nothing(*shape: int) -> Any:
    """Make an array without elements, in the trace that carries it.

    In a Pallas kernel, a loop or checkpoint can't carry a constant from outside.
    """
    return lax.broadcasted_iota(np.int8, shape, 0)  # fast; it copies no scalar


def _shape(x: Any) -> tuple[tuple[int, ...], Any]:
    return x.shape, x.dtype
