"""Functions that have been traced, for primitives to carry to later stages."""

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
    jaxprs_in_params,
)
from jax._src.effects import JaxprInputEffect
from jax._src.interpreters.partial_eval import close_jaxpr, dce_jaxpr
from jax._src.state.discharge import discharge_state
from jax._src.state.types import AbstractRef, AccumEffect, ReadEffect, WriteEffect

from jaxfn._base.compat.jaxprs import evaluate, open_jaxpr, trace_flat
from jaxfn._base.compat.traces import forgotten_axes


class Staged:
    """A function that has been traced: what a primitive may carry to later stages.

    Attributes:
        jaxpr: of the function; it has no constants.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr

    @classmethod
    def trace(
        cls, fun: Callable[..., Any], values: Sequence[Any], *args: Any
    ) -> tuple[list[Any], Staged]:
        """Trace `fun(*args)`, which closes over `values`.

        Returns:
            The values, and whatever else `fun` closes over; and the traced function,
            which takes first these and then the arguments.
        """
        # A collective can be traced only where the name of its axis is known.
        axes = forgotten_axes()
        with extend_axis_env_nd(axes) if axes else contextlib.nullcontext():
            closed, consts = trace_flat(fun, args)
        # Of its own alone: those from outside would be discharged too.
        if makes_references(closed) and not any(map(is_reference, consts)):
            closed = _without_references(closed)
        if not values:
            return list(consts), cls(closed)
        jaxpr, _ = open_jaxpr(closed)
        n = len(consts)
        own = {id(x): var for x, var in zip(consts, jaxpr.invars[:n], strict=True)}
        # A value that `fun` did not use gets a variable that nothing reads: so the
        # values stand first in every Staged, and callers need not know which were used.
        of_values = [own.pop(id(x), None) or Var(jax.typeof(x)) for x in values]
        extra = [x for x in consts if id(x) in own]
        of_extra = [own[id(x)] for x in extra]
        jaxpr = jaxpr.replace(invars=[*of_values, *of_extra, *jaxpr.invars[n:]])
        return [*values, *extra], cls(close_jaxpr(jaxpr))

    @classmethod
    def of(cls, parameter: Any) -> Staged:
        """Return the traced function that is this parameter of a primitive."""
        return parameter if isinstance(parameter, Failed) else cls(parameter)

    @property
    def parameter(self) -> Any:
        """What a primitive carries: the jaxpr, because JAX looks for it there."""
        return self.jaxpr

    def without_effects(self) -> Staged:
        """Return the same, without equations of which no result is used.

        What is written into a reference (jax.new_ref) is used if it is read later.
        """
        jaxpr, _ = open_jaxpr(self.jaxpr)
        kept = _used(jaxpr)
        return self if kept is jaxpr else Staged(close_jaxpr(kept))

    def is_repeatable_after(self, first: Staged) -> bool:
        """Does it give the same as `first`, of which it is a part, when that has run?

        Not if it uses what an io_callback gives, or reads a reference that `first` has
        written to.
        """
        jaxpr, before = (open_jaxpr(x.jaxpr)[0] for x in (self, first))
        read, written = (
            {id(x) for eqn in found.eqns for x in _references(eqn, kinds)}
            for found, kinds in ((jaxpr, ReadEffect), (before, _WRITES))
        )
        given = set(map(id, jaxpr.invars))
        return not _uses_callbacks(jaxpr) and not given & read & written

    @property
    def in_avals(self) -> Sequence[Any]:
        """The types of what it is given."""
        return [x.aval for x in open_jaxpr(self.jaxpr)[0].invars]

    @property
    def out_avals(self) -> Sequence[Any]:
        """The types of its results."""
        return [x.aval for x in open_jaxpr(self.jaxpr)[0].outvars]

    @property
    def effects(self) -> Any:
        """What it does beside computing, but for reading what it is given."""
        found = open_jaxpr(self.jaxpr)[0].effects
        return found - _on_inputs(found)

    def uses_axis(self, name: Any) -> bool:
        """Does it use this axis of a vmap by its name, in a collective say?"""
        return NamedAxisEffect(name) in self.effects

    def __call__(self, *args: Any) -> list[Any]:
        return evaluate(self.jaxpr, args)

    def __repr__(self) -> str:
        return str(self.jaxpr)


def _used(jaxpr: Any, *, inside: bool = False) -> Any:
    """Return a jaxpr without equations of which no result is used.

    Args:
        jaxpr: the jaxpr, without its constants.
        inside: is it one of a call, a loop or a branch? Then nothing is known of who
            reads what it writes into a reference.
    """
    used = {id(x) for x in jaxpr.outvars}
    kept: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        written = _references(eqn, _WRITES)
        results = (*eqn.outvars, *written)
        if (written and inside) or any(id(var) in used for var in results):
            used |= {id(x) for x in eqn.invars}
            kept.append(_with_used(eqn))
    # A branch of a cond states the effects of all branches, whatever it does itself.
    effects = frozenset(e for eqn in kept for e in eqn.effects)
    kept.reverse()
    same = len(kept) == len(jaxpr.eqns) and all(map(operator.is_, kept, jaxpr.eqns))
    if same and effects == jaxpr.effects:
        return jaxpr
    return jaxpr.replace(eqns=kept, effects=effects)


def _on_inputs(effects: Any) -> frozenset[Any]:
    """Return those that are a use of a reference."""
    return frozenset(e for e in effects if isinstance(e, JaxprInputEffect))


# Calls, loops and branches: their jaxprs say all that they do.
_HOLDERS = frozenset(("jit", "pjit", "closed_call", "remat2", "checkpoint", "cond"))
_HOLDERS |= {"scan", "while"}


def _with_used(eqn: Any) -> Any:
    """Return an equation, with what is used of the jaxprs that it holds."""
    if not eqn.effects or eqn.primitive.name not in _HOLDERS:
        return eqn
    left = set(_on_inputs(eqn.effects))

    def used(x: Any) -> Any:
        if _is_jaxpr(x):
            opened, _ = open_jaxpr(x)
            kept = _used(opened, inside=True)
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


_WRITES = WriteEffect, AccumEffect


def _references(eqn: Any, kinds: Any) -> list[Any]:
    """Return the references of an equation, if it has such an effect on any."""
    has_effect = any(isinstance(effect, kinds) for effect in eqn.effects)
    return list(filter(is_reference, eqn.invars)) if has_effect else []


def is_reference(x: Any) -> bool:
    """Is this a reference (jax.new_ref), or a variable of a jaxpr that is one?"""
    aval = x.aval if isinstance(x, Var) else jax.typeof(x)
    return isinstance(aval, AbstractRef)


def makes_references(jaxpr: Any) -> bool:
    """Does a jaxpr make references (jax.new_ref) of its own?"""
    return internal_mutable_array_effect in open_jaxpr(jaxpr)[0].effects


def _uses_callbacks(jaxpr: Any) -> bool:
    """Is a result of an io_callback used in a jaxpr, or in one inside of it?"""
    used = {id(x) for x in jaxpr.outvars}
    used |= {id(x) for eqn in jaxpr.eqns for x in eqn.invars}
    for eqn in jaxpr.eqns:
        is_used = any(id(x) in used for x in eqn.outvars)
        if eqn.primitive.name == "io_callback" and is_used:
            return True
        if any(map(_uses_callbacks, jaxprs_in_params(eqn.params))):
            return True
    return False


def _without_references(closed: Any) -> Any:
    """Put values in place of the references that a jaxpr makes for itself.

    JAX does so when it compiles, but only inside of the calls that it knows, and it
    does not know ours.
    """
    # Not in a custom_jvp, for which JAX has no way to do it. Mostly nobody uses that
    # here: a defjvp rule, say, computes the value too.
    jaxpr, _ = open_jaxpr(closed)
    jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    used = close_jaxpr(jaxpr)
    try:
        if "consts" not in inspect.signature(discharge_state).parameters:
            return discharge_state(used)
        discharge: Any = discharge_state  # of JAX 0.10.0
        return close_jaxpr(discharge(jaxpr, ())[0])
    except NotImplementedError:
        return used  # it can be evaluated, but not compiled


class Failed(Staged):
    """A function that could not be traced: using it raises what tracing it raised.

    The error keeps no frames: these hold tracers, which must not outlive their trace.
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
        # The errors that it came from have frames of their own.
        self._error = error.with_traceback(None)
        self._error.__context__ = self._error.__cause__ = None

    @property
    def jaxpr(self) -> Any:
        raise self._error

    @property
    def parameter(self) -> Any:
        return self

    def without_effects(self) -> Staged:
        return self

    def is_repeatable_after(self, first: Staged) -> bool:
        del first
        return True

    @property
    def effects(self) -> Any:
        # Asked when the equation is made, where nothing is to be raised yet.
        return set()

    def __repr__(self) -> str:
        return repr(self._error)


_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]))
