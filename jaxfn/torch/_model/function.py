"""A Python function on tensors as a function on JAX arrays."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._base import Flattener, closed_tensors, fingerprint, torch, unflatten
from jaxfn.torch._function import (
    GraphFunction,
    Settings,
    check_key,
    refuse_tensors,
    remember,
)
from jaxfn.torch._model import results
from jaxfn.torch._model.rules import Differentiable
from jaxfn.torch._trace import Noted

_SEED = 0


@dataclasses.dataclass(slots=True)
class _Output:
    """The note on the results of a run: the template of what it returned."""

    template: Any


class OnArrays:
    """A function on tensors, called with arrays. It is traced once per signature.

    Args:
        run: A function of the values that a call gives it. It is called for each trace.
        name: Its name in messages.
        settings: The settings of `from_torch`.
        state: Returns a key of the values that it reads beside its arguments.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        name: str,
        settings: Settings,
        *,
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        self._run, self._name, self._settings = run, name, settings
        self._state = state
        self._by_signature: OrderedDict[Any, Differentiable] = OrderedDict()

    def __call__(self, args: Any, kwargs: Any, *values: Any) -> Any:
        """Return what the function returns, with arrays in place of tensors.

        Args:
            args: The arguments of a call. The first is a key if the function draws.
            kwargs: Its keyword arguments.
            *values: What the function takes before these.
        """
        key = None
        if self._settings.random:
            key, args = (args[0] if args else None), args[1:]
            check_key(self._name, key)
        function, arrays = self.traced(*values, args, kwargs)
        found = function(key, arrays)
        return results.restored(function.note(arrays).template, found)

    def traced(self, *values: Any) -> tuple[Differentiable, list[Any]]:
        """Return the function for the signature of a call, and the arrays."""
        flattener = Flattener(_is_array, lambda x: isinstance(x, jax.Array))
        templates = [flattener(x) for x in values]
        refuse_tensors(self._name, closed_tensors(templates))
        arrays = [jnp.asarray(x) for x in flattener.leaves]
        return self._at(templates), arrays

    def _at(self, templates: list[Any]) -> Differentiable:
        key = fingerprint(templates)
        found = self._by_signature.get(key)
        if found is None:

            def run(tensors: Sequence[Any]) -> Noted:
                with torch.enable_grad():
                    result = self._run(*unflatten(templates, tensors))
                leaves, template = results.flattened(result)
                return Noted(leaves, _Output(template))

            graph = GraphFunction(
                run,
                name=self._name,
                rule="apply",
                seed=self._settings.seed(_SEED),
                host=self._settings.host,
                state=self._state,
                launches_raise=True,
                is_whole=True,
            )
            found = Differentiable(graph)
            remember(self._by_signature, key, found)
        return found


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray, np.generic))
