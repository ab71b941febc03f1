"""Rules in JAX's own terms: `fwd` and `bwd`, `jvp`, a batch rule.

JAX's own decorators get a derivative of one kind, so everything is as JAX has it. If
there are both kinds, which JAX does not combine, they become `Rules` for the engine
that has both (`both`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import compat
from jaxfn._decorator import jax_own
from jaxfn._decorator.kept import kept_jvp
from jaxfn._decorator.on_arrays import (
    batch_on_arrays,
    for_custom_vjp,
    jvps_on_arrays,
    named,
    vjp_on_arrays,
)
from jaxfn._decorator.places import Places, Rule
from jaxfn._decorator.vmapped import vmapped
from jaxfn._engine import jax_jvp, jax_vjp


@dataclasses.dataclass(frozen=True)
class JaxRules:
    """The rules that were defined for a function.

    Attributes:
        fun: The function.
        nondiff: Positions of the arguments named by nondiff_argnums and -argnames.
        vjp: Arguments fwd and bwd of defvjp, and its options.
        jvp: Name of the method ("defjvp" or "defjvps"), its arguments and options.
        batch: Rule of def_vmap.
        calls: All calls that defined something, in their order.
    """

    fun: Rule
    nondiff: tuple[int, ...] = ()
    vjp: tuple[Rule, Rule, dict[str, Any]] | None = None
    jvp: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
    batch: Rule | None = None
    calls: tuple[jax_own.Call, ...] = ()

    @property
    def name(self) -> str:
        # A partial or another callable object has no name of its own.
        return getattr(self.fun, "__name__", type(self.fun).__name__)

    @property
    def kinds(self) -> list[str]:
        """The methods that defined rules; defjvps counts as defjvp."""
        rules = {"defvjp": self.vjp, "defjvp": self.jvp, "def_vmap": self.batch}
        known = [name for name, rule in rules.items() if rule is not None]
        return [*known, *dict.fromkeys([c.method for c in self.foreign])]

    @functools.cached_property
    def foreign(self) -> list[jax_own.Call]:
        """The calls of methods that only the installed JAX knows."""
        return [c for c in self.calls if c.method not in jax_own.KNOWN]

    def _is_left_to(self, decorator: Any) -> bool:
        """Say if JAX's decorator gets the calls themselves, and not the rules."""
        return any(call.decorator is decorator for call in self.foreign)

    def _by_jax(self, decorator: Any, fun: Rule) -> Rule:
        return jax_own.decorated(decorator, fun, self.nondiff, self.calls)

    @property
    def has_reverse(self) -> bool:
        """Say if there is a reverse rule."""
        return self.vjp is not None or self._is_left_to(jax.custom_vjp)

    @property
    def has_forward(self) -> bool:
        """Say if there is a forward rule."""
        return self.jvp is not None or self._is_left_to(jax.custom_jvp)

    @property
    def is_combined(self) -> bool:
        """Say if there are both kinds, one by a call that only JAX understands.

        Each of its decorators has one kind, so nothing can carry out such a call.
        """
        # A later defvjp replaces an earlier one; of other methods nobody knows.
        last = {c.method: c for c in self.calls}.values()
        foreign = [c for c in last if c.is_foreign and c.decorator in _DERIVATIVES]
        return bool(foreign) and self.has_reverse and self.has_forward

    @property
    def decorator(self) -> str:
        """The name of JAX's decorator for the first rule, for words of JAX's errors."""
        return jax_own.decorator_of(self.kinds[0]).__name__

    # ---- a call

    def is_split(self, places: Places) -> bool:
        """Say if JAX gets only the arrays of this call (`on_arrays`)."""
        has_own_jvp = self.jvp is not None and not self._is_left_to(jax.custom_jvp)
        if has_own_jvp and places.nondiff:
            return True
        # If there is only a reverse rule, JAX refuses a tracer in nondiff_argnums.
        refused = self.has_reverse and places.has_tracer
        return places.has_static and not refused

    def on_arrays(self, places: Places) -> JaxRules:
        """Return these rules as rules on arrays, which close over the rest of the call.

        Each call makes new functions. So JAX never reuses what it traced or compiled
        for other static values.
        """
        fun, vjp, jvp, batch = self.fun, self.vjp, self.jvp, self.batch
        if vjp is None and jvp is not None:
            # As in jax.custom_jvp.
            still = {i: _still(x) for i, x in places.nondiff.items()}
            places = dataclasses.replace(places, nondiff=still)
        if vjp is not None:
            fwd, bwd = vjp_on_arrays(places, *vjp[:2])
            if jvp is None:
                fwd, bwd = for_custom_vjp(places, fwd, bwd, name=self.name)
            vjp = fwd, bwd, vjp[2]
        if jvp is not None:
            jvp = jvp[0], tuple(jvps_on_arrays(places, *jvp[:2])), jvp[2]
        if batch is not None:
            batch = batch_on_arrays(places, batch)
        elif self._is_left_to(jax_own.custom_vmap):
            fun = self.primal
        on_arrays = named(lambda *xs: fun(*places.whole(xs)), self.fun)
        on_arrays.__name__ = self.name
        calls = [c for c in self.calls if c.decorator is not jax_own.custom_vmap]
        return JaxRules(on_arrays, (), vjp, jvp, batch, tuple(calls))

    @functools.cached_property
    def primal(self) -> Rule:
        """The function with its batch rule."""
        if self._is_left_to(jax_own.custom_vmap):
            return self._by_jax(jax_own.custom_vmap, self.fun)
        if self.batch is None:
            return self.fun
        if not self.nondiff:
            has_derivative = self.has_reverse or self.has_forward
            return vmapped(self.fun, self.batch, has_derivative=has_derivative)

        # custom_vmap has no nondiff_argnums.
        @functools.wraps(self.fun)
        def primal(*args: Any) -> Any:
            places, lists = Places.of(self.nondiff, args)
            return self.on_arrays(places).primal(*lists)

        return primal

    @functools.cached_property
    def forward(self) -> Rule:
        """The function with its jvp, as JAX makes it."""
        if self._is_left_to(jax.custom_jvp):
            return self._by_jax(jax.custom_jvp, self.primal)
        assert self.jvp is not None
        if compat.SCAN_DROPS_JVP:
            return kept_jvp(self.name, self.primal, *self.jvp)
        return jax_jvp(self.primal, *self.jvp)

    @functools.cached_property
    def reverse(self) -> Rule:
        """The function with its vjp, as JAX makes it."""
        if self._is_left_to(jax.custom_vjp):
            return self._by_jax(jax.custom_vjp, self.primal)
        assert self.vjp is not None
        return jax_vjp(self.primal, *self.vjp, nondiff=self.nondiff)


_DERIVATIVES = (jax.custom_vjp, jax.custom_jvp)


def _still(x: Any) -> Any:
    return jax.lax.stop_gradient(x) if compat.is_tracer(x) else x


def positions(
    fun: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str]
) -> tuple[int, ...]:
    """Return the positions that nondiff_argnums and nondiff_argnames mean."""
    numbers = {argnums} if isinstance(argnums, int) else set(argnums)
    names = (argnames,) if isinstance(argnames, str) else argnames
    # Builtins may have no signature to look names up in.
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
