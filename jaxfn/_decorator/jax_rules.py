"""Rules in JAX's own terms: `fwd` and `bwd`, `jvp`, a batch rule.

JAX's own decorators get a derivative rule of one kind, so everything is as in JAX. JAX
does not combine both kinds, so these become `Rules` for `_engine` (`jax_call`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import tree_util

from jaxfn._base import compat
from jaxfn._decorator import jax_own
from jaxfn._decorator.jax_own import Call, custom_vmap
from jaxfn._decorator.places import Places, Rule, named
from jaxfn._decorator.scans import jvp_for_scans
from jaxfn._decorator.vmapped import vmapped


@dataclasses.dataclass(frozen=True)
class JaxRules:
    """The rules that were defined for a function.

    Attributes:
        fun: The function.
        nondiff: Positions of the arguments named by nondiff_argnums and -argnames.
        calls: All calls that defined something, in their order.
        derive_jvp: Whether forward mode transposes bwd (generate_jvp_rule).
    """

    fun: Rule
    nondiff: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    derive_jvp: bool = False

    @property
    def name(self) -> str:
        # A partial or another callable object has no name of its own.
        return getattr(self.fun, "__name__", type(self.fun).__name__)

    def _last(self, *methods: str) -> Call | None:
        """Return the last call of these methods, which replaced earlier ones."""
        return next((c for c in self.calls[::-1] if c.method in methods), None)

    @functools.cached_property
    def vjp(self) -> Call | None:
        """The call of defvjp in effect, with the arguments fwd and bwd."""
        return self._last("defvjp")

    @functools.cached_property
    def jvp(self) -> Call | None:
        """The call of defjvp or defjvps in effect."""
        return self._last("defjvp", "defjvps")

    @functools.cached_property
    def batch(self) -> Call | None:
        """The call of def_vmap in effect."""
        return self._last("def_vmap")

    @functools.cached_property
    def foreign(self) -> list[Call]:
        """The calls of methods that only the installed JAX knows."""
        return [c for c in self.calls if c.method not in jax_own.KNOWN]

    @functools.cached_property
    def kinds(self) -> list[str]:
        """The methods that defined rules; defjvps counts as defjvp."""
        rules = {"defvjp": self.vjp, "defjvp": self.jvp, "def_vmap": self.batch}
        known = [name for name, rule in rules.items() if rule is not None]
        return [*known, *dict.fromkeys([c.method for c in self.foreign])]

    @functools.cached_property
    def _decorators(self) -> set[Any]:
        """JAX's decorators whose methods were called."""
        return {c.decorator for c in self.calls}

    @property
    def has_reverse(self) -> bool:
        """Whether there is a reverse rule."""
        return jax.custom_vjp in self._decorators

    @property
    def has_forward(self) -> bool:
        """Whether there is a forward rule."""
        return jax.custom_jvp in self._decorators

    def _has_foreign(self, decorator: Any) -> bool:
        """Return whether a method of this decorator that only JAX knows was called."""
        return any(c.decorator is decorator for c in self.foreign)

    @property
    def has_both(self) -> bool:
        """Whether there are rules of both kinds; bwd may stand for both."""
        return self.vjp is not None and (self.jvp is not None or self.derive_jvp)

    @property
    def is_combined(self) -> bool:
        """Whether there are both kinds, one by a call that only JAX understands.

        Each of its decorators has one kind, so nothing can carry out such a call.
        """
        # A later defvjp replaces an earlier one. Other methods may not.
        last = {c.method: c for c in self.calls}.values()
        kinds = (jax.custom_vjp, jax.custom_jvp)
        foreign = [c for c in last if c.is_foreign and c.decorator in kinds]
        has_forward = self.has_forward or self.derive_jvp
        return bool(foreign) and self.has_reverse and has_forward

    # ---- by JAX's decorators

    def by_jax(self, decorator: Any, fun: Rule) -> Any:
        """Put JAX's decorator around `fun`, and repeat the calls of its methods.

        Only JAX knows the effect of its methods. So the calls are the user's, in their
        order.
        """
        has_nondiff = decorator is not custom_vmap
        f = decorator(fun, **({"nondiff_argnums": self.nondiff} if has_nondiff else {}))
        for call in self.calls:
            if call.decorator is decorator:
                getattr(f, call.method)(*call.args, **call.options)
        return f

    def attribute(self, name: str) -> Any:
        """Return the value of this attribute of JAX's decorators, after the calls.

        If several decorators have the attribute, the first whose rule is defined
        counts.

        Raises:
            AttributeError: None has it.
        """
        having = [d for d in jax_own.DECORATORS if name in jax_own.names(d)]
        if not having:
            raise AttributeError(name)
        first = next((d for d in having if d in self._decorators), having[0])
        return getattr(self.by_jax(first, self.fun), name)

    @functools.cached_property
    def primal(self) -> Rule:
        """The function with its batch rule."""
        if self._has_foreign(custom_vmap):
            return self.by_jax(custom_vmap, self.fun)
        if self.batch is None:
            return self.fun
        if not self.nondiff:
            has_derivative = self.has_reverse or self.has_forward
            return vmapped(self.fun, *self.batch.args, has_derivative=has_derivative)

        # custom_vmap has no nondiff_argnums.
        @functools.wraps(self.fun)
        def primal(*args: Any) -> Any:
            places, lists = Places.of(self.nondiff, args)
            return self.on_arrays(places).primal(*lists)

        return primal

    @functools.cached_property
    def forward(self) -> Rule:
        """The function with its jvp, as JAX makes it."""
        if compat.SCAN_DROPS_JVP and not self._has_foreign(jax.custom_jvp):
            assert self.jvp is not None
            return jvp_for_scans(self.name, self.primal, *self.jvp)
        return self.by_jax(jax.custom_jvp, self.primal)

    @functools.cached_property
    def reverse(self) -> Rule:
        """The function with its vjp, as JAX makes it."""
        return self.by_jax(jax.custom_vjp, self.primal)

    # ---- a call with arguments that JAX can't hold

    def is_split(self, places: Places) -> bool:
        """Return whether JAX gets only the arrays of this call (`on_arrays`)."""
        has_own_jvp = self.jvp is not None and not self._has_foreign(jax.custom_jvp)
        if self.nondiff and (has_own_jvp or self.has_both):
            return True
        # If there is only a reverse rule, JAX refuses a tracer in nondiff_argnums.
        nondiff = tree_util.tree_leaves(places.nondiff)
        refused = self.has_reverse and any(map(compat.is_tracer, nondiff))
        return places.has_static and not refused

    def on_arrays(self, places: Places) -> JaxRules:
        """Return these rules as rules on arrays, which close over the rest of the call.

        Each call makes new functions. So JAX never reuses a trace or a program for
        other static values. If there are rules of both kinds, fwd and bwd stay as they
        are, because JAX does not call them.
        """
        fun, vjp, jvp, batch = self.fun, self.vjp, self.jvp, self.batch
        calls = [c for c in self.foreign if c.decorator is not custom_vmap]
        if vjp is not None and not self.has_both:
            vjp = vjp._replace(args=places.vjp(*vjp.args, name=self.name))
        if vjp is not None:
            calls.append(vjp)
        if jvp is not None:
            if vjp is None:
                # A tracer in nondiff_argnums has no derivative, as in jax.custom_jvp.
                nondiff = {
                    i: jax.lax.stop_gradient(x) if compat.is_tracer(x) else x
                    for i, x in places.nondiff.items()
                }
                places = dataclasses.replace(places, nondiff=nondiff)
            calls.append(jvp._replace(args=places.jvps(jvp.method, jvp.args)))
        if batch is not None:
            calls.append(batch._replace(args=(places.batch(*batch.args),)))
        elif self._has_foreign(custom_vmap):
            fun = self.primal
        on_arrays = named(lambda *xs: fun(*places.whole(xs)), self.fun)
        on_arrays.__name__ = self.name
        return JaxRules(on_arrays, (), tuple(calls), self.derive_jvp)


def positions(
    fun: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str]
) -> tuple[int, ...]:
    """Return the positions of nondiff_argnums and nondiff_argnames."""
    numbers = {argnums} if isinstance(argnums, int) else set(argnums)
    names = (argnames,) if isinstance(argnames, str) else argnames
    # A builtin may have no signature with names.
    if not names and all(i >= 0 for i in numbers):
        return tuple(sorted(numbers))
    known = list(inspect.signature(fun).parameters)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"custom_function got nondiff_argnames {unknown}, which `{fun}` does not "
            f"take: expected names among {known}."
        )
    numbers = {i if i >= 0 else len(known) + i for i in numbers}
    return tuple(sorted(numbers | {known.index(name) for name in names}))
