"""Rules in JAX's own terms: `fwd` and `bwd`, `jvp`, a batch rule.

JAX's own decorators get a derivative of one kind, so everything is as JAX has it. If
there are both kinds, which JAX does not combine, they become `Rules` for the engine
that has both (`jax_call`).
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
from jaxfn._decorator.kept import kept_jvp
from jaxfn._decorator.places import Places, Rule, named
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
        kinds = (jax.custom_vjp, jax.custom_jvp)
        foreign = [c for c in last if c.is_foreign and c.decorator in kinds]
        return bool(foreign) and self.has_reverse and self.has_forward

    # ---- by JAX's decorators

    def by_jax(self, decorator: Any, fun: Rule) -> Any:
        """Put JAX's decorator around `fun`, and make those calls that are its own.

        Only JAX knows what its method does to the decorator. So the calls are the
        user's, in their order.
        """
        has_nondiff = decorator is not jax_own.custom_vmap
        f = decorator(fun, **({"nondiff_argnums": self.nondiff} if has_nondiff else {}))
        for call in self.calls:
            if call.decorator is decorator:
                getattr(f, call.method)(*call.args, **call.options)
        return f

    def attribute(self, name: str) -> Any:
        """Return the value that JAX's decorators give this attribute after the calls.

        If several have one of that name, the first whose rule is defined counts.

        Raises:
            AttributeError: None has it.
        """
        having = [d for d in jax_own.DECORATORS if name in jax_own.names(d)]
        if not having:
            raise AttributeError(name)
        used = {call.decorator for call in self.calls}
        first = next((d for d in having if d in used), having[0])
        return getattr(self.by_jax(first, self.fun), name)

    @functools.cached_property
    def primal(self) -> Rule:
        """The function with its batch rule."""
        if self._is_left_to(jax_own.custom_vmap):
            return self.by_jax(jax_own.custom_vmap, self.fun)
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
            return self.by_jax(jax.custom_jvp, self.primal)
        assert self.jvp is not None
        if compat.SCAN_DROPS_JVP:
            return kept_jvp(self.name, self.primal, *self.jvp)
        return jax_jvp(self.primal, *self.jvp)

    @functools.cached_property
    def reverse(self) -> Rule:
        """The function with its vjp, as JAX makes it."""
        if self._is_left_to(jax.custom_vjp):
            return self.by_jax(jax.custom_vjp, self.primal)
        assert self.vjp is not None
        return jax_vjp(self.primal, *self.vjp, nondiff=self.nondiff)

    # ---- a call whose arguments JAX can't hold

    def is_split(self, places: Places) -> bool:
        """Say if JAX gets only the arrays of this call (`on_arrays`)."""
        has_own_jvp = self.jvp is not None and not self._is_left_to(jax.custom_jvp)
        if has_own_jvp and places.nondiff:
            return True
        # If there is only a reverse rule, JAX refuses a tracer in nondiff_argnums.
        nondiff = tree_util.tree_leaves(places.nondiff)
        refused = self.has_reverse and any(map(compat.is_tracer, nondiff))
        return places.has_static and not refused

    def on_arrays(self, places: Places) -> JaxRules:
        """Return these rules as rules on arrays, which close over the rest of the call.

        Each call makes new functions. So JAX never reuses what it traced or compiled
        for other static values. Rules of both kinds get their fwd and bwd as they are,
        because JAX does not call these.
        """
        fun, vjp, jvp, batch = self.fun, self.vjp, self.jvp, self.batch
        if vjp is None and jvp is not None:
            # A tracer in nondiff_argnums has no derivative, as in jax.custom_jvp.
            nondiff = {
                i: jax.lax.stop_gradient(x) if compat.is_tracer(x) else x
                for i, x in places.nondiff.items()
            }
            places = dataclasses.replace(places, nondiff=nondiff)
        if jvp is not None:
            jvp = jvp[0], places.jvps(*jvp[:2]), jvp[2]
        elif vjp is not None:
            vjp = *places.vjp(*vjp[:2], name=self.name), vjp[2]
        if batch is not None:
            batch = places.batch(batch)
        elif self._is_left_to(jax_own.custom_vmap):
            fun = self.primal
        on_arrays = named(lambda *xs: fun(*places.whole(xs)), self.fun)
        on_arrays.__name__ = self.name
        calls = [c for c in self.calls if c.decorator is not jax_own.custom_vmap]
        return JaxRules(on_arrays, (), vjp, jvp, batch, tuple(calls))


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
