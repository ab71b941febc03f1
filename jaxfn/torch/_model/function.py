"""A Python function on tensors as a function on JAX arrays.

What it returns has arrays in place of the tensors, in objects of the same classes, for
example a ModelOutput of transformers. JAX learns here how to take them apart, so that a
jitted function may return them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._base import (
    PLAIN,
    Flattener,
    Leaf,
    Rebuilt,
    TorchRefusal,
    closed_tensors,
    fingerprint,
    parts_of,
    sequence_like,
    torch,
    unflatten,
)
from jaxfn.torch._function import (
    GraphFunction,
    Settings,
    check_key,
    refuse_tensors,
    remember,
)
from jaxfn.torch._model.rules import Differentiable
from jaxfn.torch._trace import Noted

# ---- results


def flattened(result: Any) -> tuple[list[Any], Any]:
    """Return the tensors of a result, and its template."""
    flattener = Flattener(lambda x: isinstance(x, torch.Tensor))
    template = flattener(result)
    for part in _all_parts(template):
        if not isinstance(part, _TAKEN_APART) and _has_tensor(part):
            raise TorchRefusal(
                operation="the result",
                reason=f"it returns tensors inside a `{type(part).__name__}`, which "
                "jaxfn can't take apart.",
                way_out="Return tensors in a tuple, a list, a dict or a dataclass.",
            )
        if isinstance(part, (torch.SymFloat, torch.SymInt, torch.SymBool)):
            raise TorchRefusal(
                operation="a number that is returned",
                reason="it comes from a tensor (by x.item() or float(x)), and a "
                "trace has no values.",
                way_out="Return the tensor itself.",
            )
    return flattener.leaves, template


_TAKEN_APART = (*PLAIN, Leaf, Rebuilt, list, tuple, dict)


def _has_tensor(x: Any) -> bool:
    """Return whether a set, for example, or an object with slots holds a tensor."""
    return any(isinstance(y, torch.Tensor) for y in gc.get_referents(x))


def _all_parts(template: Any) -> Iterator[Any]:
    yield template
    for part in parts_of(template):
        yield from _all_parts(part)


def restored(template: Any, arrays: Sequence[Any]) -> Any:
    """Return the result with these arrays."""
    for kind in _kinds(template):
        _register(kind)
    return unflatten(template, arrays)


def _kinds(template: Any) -> Iterator[type]:
    """Yield the classes of objects that hold tensors, but for named tuples."""
    for part in _all_parts(template):
        if isinstance(part, Rebuilt) and not hasattr(part.kind, "_fields"):
            yield part.kind


class _Like:
    """What stays of an object without its arrays. Two of equal structure are equal."""

    def __init__(self, value: Any, names: tuple[Any, ...]) -> None:
        self.value, self.names = value, names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Like) or type(other.value) is not type(self.value):
            return False
        return other.names == self.names

    def __hash__(self) -> int:
        return hash((type(self.value), self.names))

    def with_parts(self, parts: Sequence[Any]) -> Any:
        if isinstance(self.value, (list, tuple)):
            return sequence_like(self.value, parts)
        made = copy.copy(self.value)
        items = zip(self.names, parts, strict=True)
        if isinstance(made, dict):
            for name, part in items:
                made[name] = part
        else:
            made.__dict__.update(items)
            made.__dict__[_NAMES] = self.names
        return made


_NAMES = "_jaxfn_array_attributes"


def _take_apart(value: Any) -> tuple[list[Any], _Like]:
    if isinstance(value, (list, tuple)):
        return list(value), _Like(value, tuple(range(len(value))))
    if isinstance(value, dict):
        names = tuple(value)
        return list(value.values()), _Like(value, names)
    names = value.__dict__.get(_NAMES)
    if names is None:
        names = tuple(k for k, x in value.__dict__.items() if _holds_array(x))
    return [value.__dict__[name] for name in names], _Like(value, names)


def _holds_array(value: Any) -> bool:
    flattener = Flattener(lambda x: isinstance(x, (jax.Array, torch.Tensor)))
    flattener(value)
    return bool(flattener.leaves)


_registered: set[type] = set()


def _register(kind: Any) -> None:
    if kind in _registered:
        return
    _registered.add(kind)
    with contextlib.suppress(ValueError):  # somebody else has told JAX
        jax.tree_util.register_pytree_node(
            kind, _take_apart, lambda like, parts: like.with_parts(parts)
        )


# ---- a function called with arrays


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
        return restored(function.note(arrays).template, found)

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
                leaves, template = flattened(result)
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
