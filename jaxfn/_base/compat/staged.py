"""Traced functions, as parameters of primitives."""

from __future__ import annotations

import contextlib
import inspect
import operator
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src.core import (
    NamedAxisEffect,
    Var,
    extend_axis_env_nd,
    internal_mutable_array_effect,
)
from jax._src.effects import JaxprInputEffect
from jax._src.interpreters.partial_eval import close_jaxpr, dce_jaxpr
from jax._src.state.discharge import discharge_state
from jax._src.state.types import AbstractRef

from jaxfn._base.compat.jaxprs import evaluate, open_jaxpr, trace_flat
from jaxfn._base.compat.traces import forgotten_axes


class Staged:
    """A traced function, which a primitive may carry to later stages.

    Attributes:
        jaxpr: Its jaxpr, without constants.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr

    @classmethod
    def trace(
        cls, fun: Callable[..., Any], values: Sequence[Any], *args: Any
    ) -> tuple[list[Any], Staged]:
        """Trace `fun(*args)`, which closes over `values`.

        Returns:
            The values and all other closed-over values; and the traced function, which
            takes first these and then the arguments.
        """
        # A collective needs the name of its axis.
        axes = forgotten_axes()
        with extend_axis_env_nd(axes) if axes else contextlib.nullcontext():
            closed, consts = trace_flat(fun, args)
        # Discharging would include references from outside.
        if makes_references(closed) and not any(map(is_reference, consts)):
            closed = _without_references(closed)
        if not values:
            return list(consts), cls(closed)
        jaxpr, _ = open_jaxpr(closed)
        n = len(consts)
        own = {id(x): var for x, var in zip(consts, jaxpr.invars[:n], strict=True)}
        # An unused value gets an unused variable, so the values always come first.
        of_values = [own.pop(id(x), None) or Var(jax.typeof(x)) for x in values]
        extra = [x for x in consts if id(x) in own]
        of_extra = [own[id(x)] for x in extra]
        jaxpr = jaxpr.replace(invars=[*of_values, *of_extra, *jaxpr.invars[n:]])
        return [*values, *extra], cls(close_jaxpr(jaxpr))

    @classmethod
    def of(cls, parameter: Any) -> Staged:
        """Return the traced function of a parameter of a primitive."""
        return parameter if isinstance(parameter, Failed) else cls(parameter)

    @property
    def parameter(self) -> Any:
        """The parameter of a primitive: a jaxpr, which JAX looks for."""
        return self.jaxpr

    def repeated(self) -> Staged | None:
        """Return a function that computes the same values again, without effects.

        Returns:
            None if a value needs an effect: an io_callback or a reference from outside
            may give another result.
        """
        jaxpr, _ = open_jaxpr(self.jaxpr)
        kept = _used(jaxpr)
        # Effects on references that the function made itself are harmless.
        own = not any(map(is_reference, jaxpr.invars))
        harmless = (NamedAxisEffect, JaxprInputEffect) if own else NamedAxisEffect
        effects = kept.effects - {internal_mutable_array_effect}
        if not all(isinstance(effect, harmless) for effect in effects):
            return None
        return self if kept is jaxpr else Staged(close_jaxpr(kept))

    @property
    def out_avals(self) -> Sequence[Any]:
        return [x.aval for x in open_jaxpr(self.jaxpr)[0].outvars]

    @property
    def effects(self) -> Any:
        return open_jaxpr(self.jaxpr)[0].effects

    def uses_axis(self, name: Any) -> bool:
        """Return whether it uses this named axis of a vmap, as a collective does."""
        return NamedAxisEffect(name) in self.effects

    def __call__(self, *args: Any) -> list[Any]:
        return evaluate(self.jaxpr, args)

    def __repr__(self) -> str:
        return str(self.jaxpr)


def _used(jaxpr: Any) -> Any:
    """Remove equations with unused results from a jaxpr without constants."""
    used = {id(x) for x in jaxpr.outvars}
    kept: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        # A later equation may read what this one writes to a reference.
        on_references = any(isinstance(e, JaxprInputEffect) for e in eqn.effects)
        if on_references or any(id(var) in used for var in eqn.outvars):
            used |= {id(x) for x in eqn.invars}
            kept.append(_with_used(eqn))
    # A branch of a cond has the effects of all branches. An effect on a reference has
    # the index of an input, of the jaxpr or of the equation.
    effects = frozenset(
        [e for eqn in kept for e in eqn.effects if not isinstance(e, JaxprInputEffect)]
    )
    effects |= {e for e in jaxpr.effects if isinstance(e, JaxprInputEffect)}
    kept.reverse()
    same = len(kept) == len(jaxpr.eqns) and all(map(operator.is_, kept, jaxpr.eqns))
    if same and effects == jaxpr.effects:
        return jaxpr
    return jaxpr.replace(eqns=kept, effects=effects)


# Calls, loops and branches, whose effects are those of their jaxprs.
_HOLDERS = frozenset(("jit", "pjit", "closed_call", "remat2", "checkpoint", "cond"))
_HOLDERS |= {"scan", "while"}


def _with_used(eqn: Any) -> Any:
    """Remove unused equations from the jaxprs of an equation."""
    if not eqn.effects or eqn.primitive.name not in _HOLDERS:
        return eqn
    left = {e for e in eqn.effects if isinstance(e, JaxprInputEffect)}

    def used(x: Any) -> Any:
        if _is_jaxpr(x):
            opened, _ = open_jaxpr(x)
            kept = _used(opened)
            left.update(eqn.effects & kept.effects)
            if kept is opened:
                return x
            return kept if x is opened else x.replace(jaxpr=kept)
        if isinstance(x, (tuple, list)) and any(map(_is_jaxpr, x)):
            parts = [used(part) for part in x]
            return x if all(map(operator.is_, parts, x)) else type(x)(parts)
        return x

    params = {key: used(x) for key, x in eqn.params.items()}
    if all(params[key] is x for key, x in eqn.params.items()):
        return eqn
    return eqn.replace(params=params, effects=frozenset(left))


def _is_jaxpr(x: Any) -> bool:
    return hasattr(x, "eqns")


def is_reference(x: Any) -> bool:
    """Return whether `x` is a reference (jax.new_ref), or a variable of that type."""
    aval = x.aval if isinstance(x, Var) else jax.typeof(x)
    return isinstance(aval, AbstractRef)


def makes_references(jaxpr: Any) -> bool:
    """Return whether a jaxpr makes references (jax.new_ref)."""
    return internal_mutable_array_effect in open_jaxpr(jaxpr)[0].effects


def _without_references(closed: Any) -> Any:
    """Replace the references that a jaxpr makes by values.

    JAX does this when it compiles, but not inside our primitives.
    """
    # JAX can't do this for a custom_jvp. First remove an unused one, for example the
    # value in a defjvp rule.
    jaxpr, _ = open_jaxpr(closed)
    jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    used = close_jaxpr(jaxpr)
    try:
        if "consts" not in inspect.signature(discharge_state).parameters:
            return discharge_state(used)
        discharge: Any = discharge_state  # of JAX 0.10.0
        return close_jaxpr(discharge(jaxpr, ())[0])
    except NotImplementedError:
        return used  # JAX can evaluate it, but can't compile it


class Failed(Staged):
    """A function whose trace failed; its use raises the error of the trace.

    The error has no frames, because they hold tracers, which must not outlive a trace.
    """

    def __init__(self, error: Exception) -> None:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not any(part in frame.filename for part in _NOT_THE_USERS)
        ]
        if frames:
            at = frames[-1]
            error.add_note(f"Raised in {at.name}, {at.filename}:{at.lineno}.")
        # Its causes have frames too.
        self._error = error.with_traceback(None)
        self._error.__context__ = self._error.__cause__ = None

    @property
    def jaxpr(self) -> Any:
        raise self._error

    @property
    def parameter(self) -> Any:
        return self

    def repeated(self) -> Staged:
        return self

    @property
    def effects(self) -> Any:
        # JAX reads this when it makes the equation, which must not raise yet.
        return set()

    def __repr__(self) -> str:
        return repr(self._error)


_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]))
