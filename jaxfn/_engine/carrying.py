"""How `Residuals` get from a custom_vjp's fwd to its bwd, trace by trace.

The arrays are carried by JAX; the static part stays here, under a key.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from jax import lax

from jaxfn._base import compat
from jaxfn._engine.rules import Arrays, Perturbed, Residuals, Rules


class Statics:
    """Takes the static part of residuals from fwd to the bwd of the same trace.

    JAX keeps one structure of residuals for each custom_vjp call, that of the last
    trace of fwd. But JAX traces one call in a jitted function again for each set of
    perturbed arguments, and all these traces are in use at once. As aux data of the
    residuals' pytree (in a `Box`), the static part would reach the bwd of another
    trace, and a gradient would be silently lost. The shapes of residuals do travel with
    a trace. So the static part stays here under a key, and the key travels as the
    length of an array that has no elements. An eager call runs fwd once, and needs no
    key.
    """

    def __init__(self) -> None:
        self._items: dict[int | None, Residuals] = {}
        self._next = itertools.count()

    def put(self, residuals: Residuals, args: Arrays) -> Any:
        """Keep the static part; return the key that is to travel with the arrays."""
        eager = None not in self._items and not any(map(compat.is_tracer, args))
        key = None if eager else next(self._next)
        # Shapes in place of the arrays, which must not outlive their trace. They show
        # whether bwd was given the arrays of its own trace.
        self._items[key] = Residuals(
            [_shape(x) for x in residuals.arrays],
            residuals.static,
            residuals.differentiable,
        )
        return None if key is None else _nothing(0, key)

    def get(self, key: Any, arrays: Arrays, name: str) -> Residuals:
        """Return the residuals of the trace that this key is from."""
        item = self._items[None if key is None else key.shape[1]]
        # The first ones: `Width` may have put empty arrays after them.
        arrays = [compat.as_array(x) for x in arrays[: len(item.arrays)]]
        if [_shape(x) for x in arrays] != list(item.arrays):
            raise NotImplementedError(
                f"`{name}` saved other arrays for other sets of perturbed inputs, and "
                "JAX batched them as those of another set: expected the residuals "
                f"{item.arrays}, got {[_shape(x) for x in arrays]}. Save the same "
                "arrays whatever ctx.needs_input_grad says."
            )
        return Residuals(arrays, item.static, item.differentiable)


def _nothing(*shape: int) -> Any:
    """An array without elements, made in the trace that carries it.

    A Pallas kernel refuses a constant from outside if a loop or a checkpoint in the
    kernel carries it.
    """
    return lax.broadcast(np.False_, shape)  # a third of what jnp.zeros costs


def _shape(x: Any) -> tuple[tuple[int, ...], Any]:
    return x.shape, x.dtype


_ROOM = 16


class Width:
    """Keeps the number of residuals of one call the same for all its traces.

    For the reason told in `Statics`, JAX fails if the number differs. It can differ
    only if forward asks which inputs are perturbed. Then the first trace leaves places
    free, filled with arrays that have no elements, because forward may save more for
    another set of inputs. It rarely saves more than its arguments and a few values
    beside.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._width: int | None = None

    def pad(self, residuals: Residuals, args: Arrays, perturbed: Perturbed) -> Any:
        """Return the arrays of the residuals, with empty ones up to the width."""
        n = len(residuals.arrays)
        if self._width is None:
            traced = any(map(compat.is_tracer, args))
            free = _ROOM + 2 * len(args) if residuals.pattern_used and traced else 0
            self._width = n + free
        if n > self._width:
            raise NotImplementedError(
                f"`{self._rules.name}` saved {n} arrays with needs_input_grad "
                f"{tuple(perturbed)}, and at least {_ROOM} less before, in the same "
                f"call of a jitted function: expected at most {self._width}. Save the "
                "same arrays whatever ctx.needs_input_grad says."
            )
        if n == self._width:
            return residuals.arrays
        return [*residuals.arrays, *[_nothing(0)] * (self._width - n)]
