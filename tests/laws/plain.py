"""The rules of `rules` by hand, in JAX's own definitions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from tests.laws import contexts
from tests.laws.contexts import OfTheCall
from tests.laws.rules import Flat, Kind, Rules, batch_rule

PUSH = "push"
"""The name under which the twins count the runs of their tangent rule beside others."""


def twin(kind: Kind, rules: Rules, levels: Sequence[str]) -> Flat:
    """The same rules for derivatives one of another, the innermost first.

    JAX takes one rule for a function. It is that of the innermost derivative. Where
    another derivative is outside, the value gets the rule of that one: else it would
    have the derivative of the body. A lone defvjp or defjvp is JAX's own, and leaves
    it so.

    Args:
        kind: of the Function.
        rules: the bodies.
        levels: which definition each derivative meets, "vjp" or "jvp".
    """
    batched = _batched(rules)  # once for a decorator; apply makes its own
    if kind.engine == "none":
        # A custom_vmap has no reverse mode; JAX's is the body's.
        return _body(rules) if "vjp" in levels else batched
    outer = () if kind.is_native else levels[1:]
    reverse = levels[0] == "vjp" if levels else kind.engine == "backward"

    def call(x: Any) -> Any:
        made = _Twin(kind, rules, outer, contexts.of_the_call(), batched)
        return (made.reverse() if reverse else made.forward())(x)

    return call


def levels(kind: Kind, modes: Sequence[str]) -> tuple[str, ...]:
    """The definition for each mode of derivative: reverse mode takes a backward."""
    found = ["vjp" if m == "reverse" else "jvp" for m in modes]
    return tuple("jvp" if kind.engine == "jvp" else level for level in found)


def _body(rules: Rules) -> Flat:
    return lambda x: rules.forward(x)[0]


def _batched(rules: Rules) -> Flat:
    f = jax.custom_batching.custom_vmap(_body(rules))
    f.def_vmap(batch_rule(rules))
    return f


class _Twin:
    """One call.

    Args:
        kind: of the Function.
        rules: the bodies.
        outer: the definitions that derivatives outside of the innermost meet.
        caller: jaxfn's contexts at the call, which count wherever forward is run.
        batched: the body with its batch rule, of a decorator.
    """

    def __init__(
        self,
        kind: Kind,
        rules: Rules,
        outer: Sequence[str],
        caller: OfTheCall,
        batched: Flat,
    ) -> None:
        self._kind = kind
        self._rules = rules
        self._outer = outer
        self._caller = caller if kind.form != "decorator" else None
        self._batched = batched

    def reverse(self) -> Flat:
        """By a custom_vjp."""
        f = jax.custom_vjp(self._primal)

        def fwd(x):
            out, kept = self._run(x)
            return self._with_rule(out, x, kept), self._pack(x, kept)

        f.defvjp(fwd, self._bwd)
        return f

    def forward(self) -> Flat:
        """By a custom_jvp."""
        f = jax.custom_jvp(self._primal)

        @f.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            out, kept = self._run(x)
            saved = self._pack(x, kept)
            return self._with_rule(out, x, kept), self._push(x, kept, saved, t)

        return f

    def _primal(self, x: Any) -> Any:
        if self._kind.batch and self._kind.form == "decorator":
            return self._batched(x)
        return self._run(x)[0]  # setup_context too, as in a call of apply

    def _run(self, x: Any) -> tuple[Any, Any]:
        """The value, and what is kept."""
        kind, rules = self._kind, self._rules
        with contextlib.nullcontext() if self._caller is None else self._caller():
            if kind.form != "separate":
                return rules.forward(x)
            # A custom_vmap fails where its reverse mode is asked for.
            forward = _batched(rules) if kind.batch else _body(rules)
            return forward(lax.stop_gradient(x)), rules.setup_context(x)

    def _bwd(self, saved: Any, g: Any) -> Any:
        return (self._rules.backward(*self._unpack(saved), g),)

    def _push(self, x: Any, kept: Any, saved: Any, t: Any) -> Any:
        """The tangent of the value; a transposed backward is the same as itself."""
        self._rules.runs[PUSH] += 1
        if self._kind.has_jvp:
            return self._rules.jvp(x, kept, t)
        return self._rules.backward(*self._unpack(saved), t)

    # ---- the derivative outside

    def _with_rule(self, out: Any, x: Any, kept: Any) -> Any:
        """`out`, with the derivative of the rule for the outer mode."""
        if not self._outer:
            return out
        if self._outer[0] == "vjp":
            g = jax.custom_vjp(lambda out, x, kept: out)
            g.defvjp(
                lambda out, x, kept: (out, (x, kept)),
                lambda saved, g: (None, self._rules.backward(*saved, g), None),
            )
        else:
            g = jax.custom_jvp(lambda out, x, kept: out)
            g.defjvp(self._attached)
        return g(out, x, kept)

    def _attached(self, primals: Any, tangents: Any) -> tuple[Any, Any]:
        out, x, kept = primals
        return out, self._push(x, kept, (x, kept), tangents[1])

    # ---- hooks on what is saved for backward

    def _pack(self, x: Any, kept: Any) -> Any:
        hooks = self._hooks
        return (x, kept) if hooks is None else (hooks.pack(x), hooks.pack(kept))

    def _unpack(self, saved: Any) -> Any:
        hooks = self._hooks
        return saved if hooks is None else [hooks.unpack(value) for value in saved]

    @property
    def _hooks(self) -> contexts.Hooks | None:
        if self._caller is None or not self._kind.has_backward:
            return None
        return self._caller.hooks
