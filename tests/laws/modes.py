"""What stands outermost only: other ways to run a function, and settings of JAX."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from tests.laws.catalogue import Flat
from tests.laws.leaks import checking_leaks
from tests.laws.stacks import like, of_inexact, smooth

Run = Callable[[Flat, tuple[Any, ...]], Any]


def call(f: Flat, args: tuple[Any, ...]) -> Any:
    return f(*args)


def eval_shape(f: Flat, args: tuple[Any, ...]) -> Any:
    """Zeros of the shapes: shapes and dtypes are compared with the reference's."""
    return jax.tree.map(
        lambda s: jax.numpy.zeros(s.shape, s.dtype), jax.eval_shape(f, *args)
    )


def make_jaxpr(f: Flat, args: tuple[Any, ...]) -> Any:
    """The results of the jaxpr when it is evaluated."""
    return jaxpr_as_fun(jax.make_jaxpr(f)(*args))(*args)


def ahead_of_time(f: Flat, args: tuple[Any, ...]) -> Any:
    return jax.jit(f).lower(*args).compile()(*args)


def export(f: Flat, args: tuple[Any, ...]) -> Any:
    """Value and gradients of what was exported, written and read again."""
    exported = jax.export.export(jax.jit(smooth(f)))(*args)
    read = jax.export.deserialize(exported.serialize(vjp_order=1))
    return _value_and_pullback(read.call, args)


def _value_and_pullback(f: Flat, args: tuple[Any, ...]) -> Any:
    h, some = of_inexact(f, args)
    outs, pull = jax.vjp(h, *some)
    return outs, pull(like(outs, 0.4))


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way to run.

    Attributes:
        run: the Function's stack.
        plain: the reference's.
        setting: that both run in.
        kinds: of derivative that it takes.
        no_host, no_keys: does JAX refuse callbacks, and keys, in it?
    """

    run: Run = call
    plain: Run = call
    setting: Callable[[], contextlib.AbstractContextManager[Any]] = (
        contextlib.nullcontext
    )
    kinds: frozenset[str] = frozenset()
    no_host: bool = False
    no_keys: bool = False


MODES: dict[str, Mode] = {
    "eager": Mode(),
    "eval_shape": Mode(eval_shape, eval_shape),
    "make_jaxpr": Mode(make_jaxpr),
    "ahead of time": Mode(ahead_of_time),
    "export": Mode(
        export,
        lambda f, args: _value_and_pullback(smooth(f), args),
        kinds=frozenset({"reverse"}),
        no_host=True,
        no_keys=True,
    ),
    "disable_jit": Mode(setting=jax.disable_jit),
    "debug_nans": Mode(setting=lambda: jax.debug_nans(True)),
    "leaks": Mode(setting=checking_leaks, no_keys=True),
    "x64": Mode(setting=lambda: jax.enable_x64(True)),
}
