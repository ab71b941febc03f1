"""The rules of `rules` by hand, in JAX's own definitions."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from tests.laws import contexts
from tests.laws.rules import Flat, Kind, Rules, batch_rule


def twin(kind: Kind, rules: Rules, modes: tuple[str, ...]) -> Flat:
    """The same rules for derivatives in these modes, the innermost first.

    JAX takes rules for one mode: those are of the innermost derivative. Where another
    derivative is outside, the value gets the rule of that mode: else it would have the
    derivative of the body. A lone defvjp or defjvp is JAX's own, and leaves it so.
    """
    if kind.engine == "none":
        # A custom_vmap has no reverse mode; JAX's is the body's.
        return _body(rules) if "reverse" in modes else _batched(rules)
    both = kind.has_backward and kind.has_jvp
    outer = modes[1:] if kind.face != "decorator" or both else ()
    twins = _Twin(kind, rules, outer)
    if kind.has_backward and modes[:1] != ("forward",):
        return twins.reverse()
    return twins.forward()


def _body(rules: Rules) -> Flat:
    return lambda x: rules.forward(x)[0]


def _batched(rules: Rules) -> Flat:
    f = jax.custom_batching.custom_vmap(_body(rules))
    f.def_vmap(batch_rule(rules))
    return f


class _Twin:
    def __init__(self, kind: Kind, rules: Rules, outer: tuple[str, ...]) -> None:
        self._kind = kind
        self._rules = rules
        self._outer = outer
        self._forward = _batched(rules) if kind.batch else _body(rules)

    def reverse(self) -> Flat:
        """By a custom_vjp."""
        f = jax.custom_vjp(self._primal)

        def fwd(x):
            out, kept = self._run(x)
            return self._with_rule(out, x, kept), _Saved.of(self._kind, x, kept)

        f.defvjp(fwd, lambda saved, g: (self._rules.backward(*saved.read(), g),))
        return f

    def forward(self) -> Flat:
        """By a custom_jvp."""
        f = jax.custom_jvp(self._primal)

        @f.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            out, kept = self._run(x)
            saved = _Saved.of(self._kind, x, kept)
            return self._with_rule(out, x, kept), self._push(x, kept, saved, t)

        return f

    def _primal(self, x: Any) -> Any:
        out = self._forward(x)
        if self._kind.face == "separate":
            self._rules.setup_context(x)  # as a call of apply does
        return out

    def _run(self, x: Any) -> tuple[Any, Any]:
        """The value, and what is kept."""
        if self._kind.face != "separate":
            return self._rules.forward(x)
        # A custom_vmap fails where its reverse mode is asked for.
        out = self._forward(lax.stop_gradient(x))
        return out, self._rules.setup_context(x)

    def _push(self, x: Any, kept: Any, saved: _Saved, t: Any) -> Any:
        """The tangent of the value; a transposed backward is the same as itself."""
        if self._kind.has_jvp:
            return self._rules.jvp(x, kept, t)
        return self._rules.backward(*saved.read(), t)

    def _with_rule(self, out: Any, x: Any, kept: Any) -> Any:
        """`out`, with the derivative of the rule for the outer mode."""
        if not self._outer:
            return out
        if self._outer[0] == "reverse" and self._kind.has_backward:
            g = jax.custom_vjp(lambda out, x, kept: out)
            g.defvjp(
                lambda out, x, kept: (out, (x, kept)),
                lambda saved, ct: (None, self._rules.backward(*saved, ct), None),
            )
        else:
            g = jax.custom_jvp(lambda out, x, kept: out)
            g.defjvp(self._attached)
        return g(out, x, kept)

    def _attached(self, primals: Any, tangents: Any) -> tuple[Any, Any]:
        out, x, kept = primals
        return out, self._push(x, kept, _Saved(x, kept, None), tangents[1])


@jax.tree_util.register_pytree_node_class
class _Saved:
    """What is saved, packed where the caller has hooks and the rules a backward."""

    def __init__(self, x: Any, kept: Any, hooks: contexts.Hooks | None) -> None:
        self.x, self.kept, self._hooks = x, kept, hooks

    @classmethod
    def of(cls, kind: Kind, x: Any, kept: Any) -> _Saved:
        hooks = contexts.HOOKS
        if hooks is None or kind.face == "decorator" or not kind.has_backward:
            return cls(x, kept, None)
        return cls(hooks.pack(x), hooks.pack(kept), hooks)

    def read(self) -> tuple[Any, Any]:
        if self._hooks is None:
            return self.x, self.kept
        return self._hooks.unpack(self.x), self._hooks.unpack(self.kept)

    def tree_flatten(self) -> Any:
        return (self.x, self.kept), self._hooks

    @classmethod
    def tree_unflatten(cls, hooks: Any, arrays: Any) -> _Saved:
        return cls(*arrays, hooks)
