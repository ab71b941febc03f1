"""The class that JAX gets."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxfn
from jaxfn.torch._base import (
    Leaf,
    Same,
    TorchRefusal,
    is_once_differentiable,
    is_separate,
    key_name,
    settings_of,
    torch,
    unflatten,
)
from jaxfn.torch._function.call import Call, Settings
from jaxfn.torch._function.graph_function import remember, types_key
from jaxfn.torch._function.host_call import HostCall
from jaxfn.torch._function.traced_forward import Needs, TracedForward
from jaxfn.torch._trace import NeedsRead

_SHAPING = ("forward", "setup_context", "vmap")
_READS = "this call reads which of its arguments are differentiated"


def is_array(x: Any) -> bool:
    """Is it an array for JAX?"""
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


class Bridge:
    """A torch class and what is known of its calls."""

    def __init__(self, cls: Any, settings: Settings) -> None:
        self.cls, self.settings = cls, settings
        self._layouts: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.RLock()

    def made(self) -> type[jaxfn.Function]:
        """The class for JAX."""
        cls = self.cls
        members: dict[str, Any] = {
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            "__qualname__": cls.__qualname__,
            "torch_class": cls,
            "forward": staticmethod(self._forward_rule()),
            "jaxfn_torch_bridge": self,
        }
        if self.has_backward:
            rule = self._backward_rule()
            members["backward"] = staticmethod(rule)
        if self.owns("jvp"):
            members["jvp"] = staticmethod(self._jvp)
        return type(cls.__name__, (jaxfn.Function,), members)

    def owns(self, rule: str) -> bool:
        """Does the class define this rule itself?"""
        return getattr(self.cls, rule) is not getattr(torch.autograd.Function, rule)

    @property
    def has_backward(self) -> bool:
        """Does the class define backward, under one of its names?"""
        return self.owns("backward") or self.owns("vjp")

    def _backward_rule(self) -> Any:
        own = self.cls.vjp if self.owns("vjp") else self.cls.backward
        once = is_once_differentiable(own)
        return jaxfn.once_differentiable(self._backward) if once else self._backward

    def _forward_rule(self) -> Any:
        def forward(ctx: Any, *args: Any) -> Any:
            return self._forward(ctx, args)

        forward.__signature__ = self._signature()
        return forward

    def _signature(self) -> inspect.Signature:
        """That of forward, with ctx, and with a key where it draws."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        try:
            known = list(inspect.signature(self.cls.forward).parameters.values())
        except (TypeError, ValueError):
            known = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
        if is_separate(self.cls):
            first = inspect.Parameter("ctx", kind)
            rest = known
        else:
            first, rest = known[0], known[1:]
            if first.kind is inspect.Parameter.VAR_POSITIONAL:
                first, rest = inspect.Parameter("ctx", kind), known
        own = [first.replace(kind=kind, default=inspect.Parameter.empty)]
        if self.settings.random:
            taken = {p.name for p in (*own, *rest)}
            own.append(inspect.Parameter(key_name(taken), kind))
        rest = [p.replace(annotation=inspect.Parameter.empty) for p in rest]
        return inspect.Signature([*own, *rest])

    # ---- forward

    def _forward(self, ctx: Any, args: tuple[Any, ...]) -> Any:
        key = None
        if self.settings.random:
            key, *rest = args
            args = tuple(rest)
            _check_key(self.cls.__name__, key)
        if is_separate(self.cls):  # there defaults count as arguments, as in torch
            bound = inspect.signature(self.cls.forward).bind(*args)
            bound.apply_defaults()
            args = bound.args
        call = Call(args, is_array)
        call.arrays = [jnp.asarray(x) for x in call.arrays]
        layout = self.layout(call, ctx)
        if isinstance(layout, HostCall):
            return self._forward_on_host(ctx, layout, call, key)
        if layout.has_intermediates() or layout.body.batch is not None:
            results = list(layout.body.function.apply(key, *call.arrays))
        else:
            results = layout.body(call.arrays, key)
        if self.settings.random and not layout.draws():
            raise ValueError(
                f"`{self.cls.__name__}` was made with random=True and draws no random "
                "numbers: expected a class that does. Leave random=True out, and the "
                "key with it."
            )
        results = _as_they_were(layout, call.arrays, results)
        self._save(ctx, layout, results, key)
        outs = results[: layout.record.n_outputs]
        return unflatten(layout.record.output, outs)

    def _forward_on_host(self, ctx: Any, layout: HostCall, call: Call, key: Any) -> Any:
        if layout.body.batch is None:
            results = layout.body(call.arrays, key)
        else:
            results = list(layout.body.function.apply(key, *call.arrays))
        ctx.jaxfn_torch = layout.kept
        ctx.save_for_backward(*call.arrays)
        ctx.save_for_forward(*call.arrays)
        ctx.set_materialize_grads(False)
        if key is not None:
            ctx.jaxfn_key = key
        return layout.outputs(results)

    def layout(self, call: Call, ctx: Any) -> TracedForward | HostCall:
        """The trace for this kind of call; made once."""
        cls = self.cls
        rules = tuple(Same(getattr(cls, n)) for n in _SHAPING)
        # Of what a rule makes without a dtype.
        made = torch.get_default_dtype()
        key = call.key(), types_key(call.arrays), rules, made, settings_of(cls)
        found: Any = self._layouts.get(key)
        if found is None:
            try:
                found = self._made_layout(call, None)
            except NeedsRead:
                found = _READS
            remember(self._layouts, key, found)
        if found is not _READS:
            return found
        needs = self._needs(ctx, call.tops)
        key = (*key, needs)
        found = self._layouts.get(key)
        if found is None:
            found = self._made_layout(call, needs)
            remember(self._layouts, key, found)
        return found

    def _needs(self, ctx: Any, tops: Sequence[int | None]) -> Needs:
        """For each argument (defaults too, where they count), is it differentiated?"""
        needs = ctx.needs_input_grad[1 if self.settings.random else 0 :]
        return tuple(
            bool(need) and top is not None for need, top in zip_longest(needs, tops)
        )

    def _made_layout(self, call: Call, needs: Needs | None) -> TracedForward | HostCall:
        try:
            return TracedForward(self.cls, call, needs, self.settings)
        except TorchRefusal as refusal:
            if not self.settings.host:
                raise
            return HostCall(self.cls, call, self.settings, refusal.bare())

    def _save(
        self, ctx: Any, layout: TracedForward, results: list[Any], key: Any
    ) -> None:
        record = layout.record
        ctx.jaxfn_torch = layout.kept
        ctx.save_for_backward(
            *[results[x] if _is_leaf(x) else None for x in record.saved]
        )
        ctx.save_for_forward(
            *[results[x] if _is_leaf(x) else None for x in record.for_forward]
        )
        for name, template in record.attributes.items():
            leaves = layout.leaves_of([template])
            if leaves:
                setattr(ctx, f"{name}", [results[i] for i in leaves])
        if key is not None:
            ctx.jaxfn_key = key
        marked = [results[i] for i in record.marked if record.inexact[i]]
        if marked:
            ctx.mark_non_differentiable(*marked)
        ctx.set_materialize_grads(record.materialize)

    # ---- backward and jvp

    def _leaves(self, ctx: Any, saved: list[Any], wanted: list[int]) -> list[Any]:
        """The arrays that were saved, in the order of the flat results."""
        layout: TracedForward = ctx.jaxfn_torch.layout
        at: dict[int, Any] = {}
        for template, x in zip(saved, ctx.saved_tensors, strict=True):
            if _is_leaf(template):
                at[int(template)] = x
        for name, template in layout.record.attributes.items():
            leaves = layout.leaves_of([template])
            if leaves:
                at.update(zip(leaves, getattr(ctx, name), strict=True))
        return [at[i] for i in wanted]

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        layout: TracedForward | HostCall = ctx.jaxfn_torch.layout
        key = getattr(ctx, "jaxfn_key", None)
        needs = self._needs(ctx, layout.tops)
        if isinstance(layout, HostCall):
            found = layout.gradients(ctx.saved_tensors, key, needs, grads)
            return (None, *found) if self.settings.random else tuple(found)
        cts = [
            g if i is not None else None
            for g, i in zip(grads, layout.record.is_output, strict=True)
        ]
        given = tuple(g is not None for g in cts)
        leaves = self._leaves(ctx, layout.record.saved, layout.saved_leaves)
        body = layout.backward(needs, given)
        found = body.function.apply(key, *leaves, *[g for g in cts if g is not None])
        return (None, *found) if self.settings.random else tuple(found)

    def _jvp(self, ctx: Any, *tangents: Any) -> Any:
        layout: TracedForward | HostCall = ctx.jaxfn_torch.layout
        key = getattr(ctx, "jaxfn_key", None)
        tangents = tangents[1:] if self.settings.random else tangents
        dots = [
            t if top is not None else None
            for t, top in zip_longest(tangents, layout.tops)
        ]
        if isinstance(layout, HostCall):
            return layout.tangents(ctx.saved_tensors, key, dots)
        given = tuple(t is not None for t in dots)
        leaves = self._leaves(ctx, layout.record.for_forward, layout.forward_leaves)
        body = layout.jvp(given)
        return body.function.apply(key, *leaves, *[t for t in dots if t is not None])


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)


# An input that is returned or saved as it is must be the very array, and one result in
# two places the same one: by that jaxfn knows them.
def _as_they_were(
    layout: TracedForward, arrays: Sequence[Any], results: list[Any]
) -> list[Any]:
    n, seen = layout.program.n_inputs, {}
    found: list[Any] = []
    marked = set(layout.record.marked)
    outputs = enumerate(zip(layout.program.outputs, results, strict=True))
    # A vmap rule may give something else for an input than the input.
    free = 0 if layout.body.batch is None else layout.record.n_outputs
    for i, (ref, x) in outputs:
        assert ref is not None  # what is returned or saved is a tensor
        is_input = ref < n and i >= free
        x = arrays[ref] if is_input else seen.setdefault(ref, x)
        found.append(x)
    unmarked = {id(x) for i, x in enumerate(found) if i not in marked}
    for i in marked:
        if id(found[i]) in unmarked:  # a mark must not reach what it was copied from
            found[i] = jnp.array(found[i], copy=True)
    return found


def _check_key(name: str, key: Any) -> None:
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        or (key.dtype == np.uint32 and key.ndim == 1)
    )
    if not is_key:
        raise TypeError(
            f"`{name}` was made with random=True: expected a PRNG key as the first "
            f"argument of apply, got {type(key).__name__}. Pass jax.random.key(seed)."
        )
