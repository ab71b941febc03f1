"""Effects that a rule can have, each with a way to see them.

A rule has one by `act(v, at)`. What it shows is the point `at`, an input or what was
saved of it: in a transposed backward there are no cotangents to be shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, io_callback

from tests.laws.contexts import Runs, X

HAS_ZERO = np.array([0.5, 0.0], np.float32)

See = Callable[[Callable[[Any], Any]], Any]


@dataclasses.dataclass(frozen=True)
class Effect:
    """Something that a rule does.

    Attributes:
        act: what a rule does with its result `v` at the point `at`.
        see: runs a program; its results and its effects.
        ordered: must the effects keep their order?
    """

    act: Callable[[Any, Any], Any]
    see: See
    ordered: bool = False

    @staticmethod
    def scope(_: Runs) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


# ---- on the host

LOG: list[str] = []


def _note(at: Any) -> None:
    LOG.append(str(np.asarray(at).tolist()))


def _note_and_answer(at: Any) -> Any:
    _note(at)
    return np.float32(3.0)


def _logged(*, ordered: bool) -> See:
    def see(program: Callable[[Any], Any]) -> Any:
        LOG.clear()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            out = np.asarray(program(jnp.asarray(X)))
            jax.effects_barrier()
        lines = LOG + printed.getvalue().splitlines()
        return [out, lines if ordered else sorted(lines)]

    return see


def _on_host(act: Callable[..., Any], *, ordered: bool) -> Effect:
    return Effect(lambda v, at: act(v, at, ordered), _logged(ordered=ordered), ordered)


def _print(v: Any, at: Any, ordered: bool) -> Any:
    jax.debug.print("at {}", at, ordered=ordered)
    return v


def _call(v: Any, at: Any, ordered: bool) -> Any:
    jax.debug.callback(_note, at, ordered=ordered)
    return v


def _ask(v: Any, at: Any, ordered: bool) -> Any:
    shape = jax.ShapeDtypeStruct((), np.float32)
    return v * io_callback(_note_and_answer, shape, at, ordered=ordered)


# ---- errors that checkify makes values


def _checked(errors: Any) -> See:
    def see(program: Callable[[Any], Any]) -> Any:
        error, out = checkify.checkify(program, errors=errors)(jnp.asarray(HAS_ZERO))
        message = error.get()
        return [np.asarray(out), message and message.split(" (")[0]]

    return see


def _check(v: Any, at: Any) -> Any:
    checkify.check(jnp.all(at != 0), "a zero was seen")
    return v


# ---- state of a rule's own


def _with_a_ref(v: Any, at: Any) -> Any:
    ref = jax.new_ref(at)
    ref[...] = ref[...] * 2
    return v * ref[...]


EFFECTS = {
    "print": _on_host(_print, ordered=False),
    "ordered print": _on_host(_print, ordered=True),
    "callback": _on_host(_call, ordered=False),
    "ordered callback": _on_host(_call, ordered=True),
    "io_callback": _on_host(_ask, ordered=False),
    "ordered io_callback": _on_host(_ask, ordered=True),
    "check": Effect(_check, _checked(checkify.user_checks)),
    "float check": Effect(
        lambda v, at: jnp.divide(v, at), _checked(checkify.float_checks)
    ),
    "ref": Effect(_with_a_ref, lambda program: np.asarray(program(jnp.asarray(X)))),
}
