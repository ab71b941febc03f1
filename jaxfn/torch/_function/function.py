"""The class that JAX gets."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import jaxfn
from jaxfn.torch._base import (
    Same,
    TorchRefusal,
    backward_of,
    is_once_differentiable,
    is_separate,
    key_name,
    settings_of,
    torch,
)
from jaxfn.torch._function.call import Mask, Settings, TorchCall
from jaxfn.torch._function.graph_function import remember, types_key
from jaxfn.torch._function.host_call import HostCall
from jaxfn.torch._function.traced_forward import traced_forward
from jaxfn.torch._trace import NeedsRead

_SHAPING = ("forward", "setup_context", "vmap")


def is_array(x: Any) -> bool:
    """Return whether JAX gets it as an array."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


class SignatureRules(Protocol):
    """The rules of a class for one signature: a trace, or torch in a host callback.

    Attributes:
        hidden: A class with this object as `rules`. jaxfn searches no class for arrays.
        tops: For each argument, its number among the arrays; None if it is no array.
    """

    hidden: Any
    tops: list[int | None]

    def forward(self, ctx: Any, arrays: Sequence[Any], key: Any) -> Any:
        """Return the result of forward, and save in jaxfn's ctx."""
        ...

    def gradients(
        self, ctx: Any, key: Any, needs_input_grad: Mask, cts: Sequence[Any]
    ) -> Sequence[Any]:
        """Return a gradient, or None, for each argument."""
        ...

    def tangents(self, ctx: Any, key: Any, tangents: Sequence[Any]) -> Sequence[Any]:
        """Return a tangent, or None, for each output."""
        ...


class Bridge:
    """A torch class and its rules by signature."""

    def __init__(self, cls: Any, settings: Settings) -> None:
        self.cls, self.settings = cls, settings
        self._by_signature: OrderedDict[Any, Any] = OrderedDict()

    def made(self) -> type[jaxfn.Function]:
        """Return the class for JAX."""
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
            members["jvp"] = staticmethod(_in_place_of(self.cls.jvp, self._jvp))
        return type(cls.__name__, (jaxfn.Function,), members)

    def owns(self, rule: str) -> bool:
        """Return whether the class itself defines this rule."""
        return getattr(self.cls, rule) is not getattr(torch.autograd.Function, rule)

    @property
    def has_backward(self) -> bool:
        """Whether the class defines backward or vjp."""
        return self.owns("backward") or self.owns("vjp")

    def _backward_rule(self) -> Any:
        written = backward_of(self.cls)
        rule = _in_place_of(written, self._backward)
        once = is_once_differentiable(written)
        return jaxfn.once_differentiable(rule) if once else rule

    def _forward_rule(self) -> Any:
        forward = functools.partial(self._forward)
        forward.__dict__["__signature__"] = self._signature()
        return forward

    def _signature(self) -> inspect.Signature:
        """Return the signature of forward, with ctx, and with a key if it draws."""
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

    def _forward(self, ctx: Any, *args: Any) -> Any:
        key = None
        if self.settings.random:
            key, args = args[0], args[1:]
            check_key(self.cls.__name__, key)
        refuse_tensors(self.cls.__name__, args)
        if is_separate(self.cls):  # torch then passes defaults to setup_context
            bound = inspect.signature(self.cls.forward).bind(*args)
            bound.apply_defaults()
            args = bound.args
        call = TorchCall(args, is_array)
        call.arrays = [jnp.asarray(x) for x in call.arrays]
        rules = self.rules_for(call, ctx)
        ctx.jaxfn_torch = rules.hidden
        ctx.jaxfn_key = key
        return rules.forward(ctx, call.arrays, key)

    def rules_for(self, call: TorchCall, ctx: Any) -> SignatureRules:
        """Return the rules for the signature of this call, made once."""
        cls = self.cls
        own = tuple(Same(getattr(cls, n)) for n in _SHAPING)
        key = call.key(), types_key(call.arrays), own, settings_of(cls)
        key = (*key, jax.default_backend())
        found: Any = self._by_signature.get(key)
        if found is None:
            try:
                found = self._make(call, None)
            except NeedsRead:
                found = NeedsRead  # for each set of differentiated arguments
            except TorchRefusal as refusal:
                if refusal.lasts:
                    remember(self._by_signature, key, refusal.bare())
                raise
            remember(self._by_signature, key, found)
        if isinstance(found, TorchRefusal):  # as expensive as a trace, each time
            raise found.bare()
        if found is not NeedsRead:
            return found
        needs_input_grad = self._needs(ctx, call.tops)
        key = (*key, needs_input_grad)
        found = self._by_signature.get(key)
        if found is None:
            found = self._make(call, needs_input_grad)
            remember(self._by_signature, key, found)
        return found

    def _needs(self, ctx: Any, tops: Sequence[int | None]) -> Mask:
        """Return `needs_input_grad`; defaults count as arguments, as in torch."""
        mask = ctx.needs_input_grad[1 if self.settings.random else 0 :]
        return tuple(bool(m) and top is not None for m, top in zip_longest(mask, tops))

    def _make(self, call: TorchCall, needs_input_grad: Mask | None) -> SignatureRules:
        try:
            return traced_forward(self.cls, call, needs_input_grad, self.settings)
        except TorchRefusal as refusal:
            if self.settings.host == "never":
                raise
            return HostCall(self.cls, call, self.settings, refusal.bare())

    # ---- backward and jvp

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        rules: SignatureRules = ctx.jaxfn_torch.rules
        key = ctx.jaxfn_key
        found = rules.gradients(ctx, key, self._needs(ctx, rules.tops), grads)
        return (None, *found) if self.settings.random else tuple(found)

    def _jvp(self, ctx: Any, *tangents: Any) -> Any:
        rules: SignatureRules = ctx.jaxfn_torch.rules
        key = ctx.jaxfn_key
        tangents = tangents[1:] if self.settings.random else tangents
        by_argument = [
            t if top is not None else None
            for t, top in zip_longest(tangents, rules.tops)
        ]
        return tuple(rules.tangents(ctx, key, by_argument))


def _in_place_of(written: Any, rule: Any) -> Any:
    """Return a rule; messages show the file and line of the one that the user wrote."""

    def run(ctx: Any, *args: Any) -> Any:
        return rule(ctx, *args)

    return functools.wraps(written)(run)


def bridged(
    cls: type, settings: Settings, *, generate_jvp_rule: bool
) -> type[jaxfn.Function]:
    """Make a `jaxfn.Function` of a torch Function.

    Raises:
        TypeError: `cls` is no torch Function.
    """
    if not issubclass(cls, torch.autograd.Function):
        raise TypeError(
            "from_torch expected a class derived from torch.autograd.Function, got "
            f"{cls!r}. Of a module, pass an instance."
        )
    made = Bridge(cls, settings).made()
    made.generate_jvp_rule = generate_jvp_rule
    return made


def refuse_tensors(name: str, values: Sequence[Any]) -> None:
    """Refuse tensors in the place of arrays."""
    for x in values:
        if isinstance(x, torch.Tensor):
            raise TypeError(
                f"`{name}` got a torch.Tensor of shape {tuple(x.shape)} as an argument:"
                " expected JAX or NumPy arrays. Pass jnp.asarray(tensor.numpy()); of a "
                "model's parameters model.params."
            )


def check_key(name: str, key: Any) -> None:
    """Refuse what is no PRNG key."""
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        or (key.dtype == np.uint32 and key.ndim == 1)
    )
    if not is_key:
        raise TypeError(
            f"`{name}` was made with random=True: expected a PRNG key as the first "
            f"argument of apply, got {type(key).__name__}. Pass jax.random.key(seed)."
        )
