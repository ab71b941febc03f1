"""Programs in which a Function is called inside a context, and how they compare."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.laws.contexts import CONTEXTS, Context, Runs
from tests.laws.plain import twin
from tests.laws.rules import KINDS, Flat, Kind, Rules, ours

SEED = 20
X = np.array([0.5, 0.25], np.float32)
WEIGHTS = np.array([1.0, 2.0], np.float32)

# ---- around the Function, inside of what is taken

WRAPPINGS: dict[str, Callable[[Flat], Flat]] = {
    "alone": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, None, 2)[0],
    "cond": lambda f: lambda x: lax.cond(x[0] < 9, f, lambda x: 100 * x, x),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum(0),
    "checkpoint": jax.checkpoint,
}

# ---- what is taken, in the context


@dataclasses.dataclass(frozen=True)
class Taken:
    """A derivative of a wrapped Function, from arrays to arrays.

    Attributes:
        of: makes it.
        modes: of its derivatives, the innermost first.
    """

    of: Callable[[Flat], Flat]
    modes: tuple[str, ...] = ()


def _total(f: Flat) -> Flat:
    return lambda x: (jnp.asarray(WEIGHTS, x.dtype) * f(x)).sum()


def _squared(f: Flat) -> Flat:
    return lambda x: (f(x) ** 2).sum()


def _pushed(f: Flat) -> Flat:
    return lambda x: jax.jvp(f, (x,), (jnp.asarray(WEIGHTS, x.dtype),))


def _value_and_tangent(f: Flat) -> Flat:
    return lambda x: (lambda out, dot: out + 8 * dot)(*_pushed(f)(x))


def _hessian(f: Flat) -> Flat:
    return lambda x: (jnp.asarray(WEIGHTS, x.dtype) * jax.hessian(f)(x)).sum(1)


TAKEN = {
    "value": Taken(lambda f: f),
    "grad": Taken(lambda f: jax.grad(_total(f)), ("reverse",)),
    "jvp": Taken(_value_and_tangent, ("forward",)),
    "value of jvp": Taken(lambda f: lambda x: _pushed(f)(x)[0], ("forward",)),
    "hessian": Taken(lambda f: _hessian(_squared(f)), ("reverse", "forward")),
    "grad of grad": Taken(
        lambda f: jax.grad(_total(jax.grad(_squared(f)))), ("reverse", "reverse")
    ),
}

# ---- around the context


@dataclasses.dataclass(frozen=True)
class Outside:
    """What is done with the function that enters the context.

    Attributes:
        of: makes what is called.
        modes: of its derivatives, the innermost first.
    """

    of: Callable[[Flat], Flat]
    modes: tuple[str, ...] = ()


OUTSIDE = {
    "eager": Outside(lambda f: f),
    "jit": Outside(jax.jit),
    "jit of scan": Outside(lambda f: jax.jit(WRAPPINGS["scan"](f))),
    "grad": Outside(lambda f: jax.grad(_total(f)), ("reverse",)),
    "grad of jit": Outside(lambda f: jax.grad(_total(jax.jit(f))), ("reverse",)),
    "jvp of jit": Outside(lambda f: _value_and_tangent(jax.jit(f)), ("forward",)),
}


# ---- cells


@dataclasses.dataclass(frozen=True)
class Cell:
    """A Function, the rule that reads a context, and a program.

    Attributes:
        kind: of the Function.
        rule: that reads the context.
        context: its name.
        outside: what is around the context.
        taken: what is in it.
        wrapping: around the Function.
    """

    kind: Kind
    rule: str
    context: str
    outside: str
    taken: str
    wrapping: str

    def __str__(self) -> str:
        return (
            f"{self.outside}: {self.context}: {self.taken} of {self.wrapping} of "
            f"{self.kind}, read by {self.rule}"
        )

    @property
    def modes(self) -> tuple[str, ...]:
        return TAKEN[self.taken].modes + OUTSIDE[self.outside].modes

    def is_valid(self) -> bool:
        """Is it a program of JAX, and of this Function?"""
        modes, kind = self.modes, self.kind
        if len(modes) > 2 or self.rule not in kind.rules:
            return False
        if modes[:1] == ("forward",) and kind.engine == "backward":
            return False
        if self.context == "hooks" and (len(modes) == 2 or not kind.has_backward):
            return False
        if self.context == "hooks" and kind.face == "decorator":
            return False
        if CONTEXTS[self.context].text and self.outside == "eager":
            return False
        # JAX has no reverse mode of a custom_vmap, nor a second order.
        if kind.engine == "none" and self.wrapping == "vmap" and "reverse" in modes:
            return False
        return not (kind.batch and len(modes) == 2)

    def run(self, *, ours_too: bool = True) -> Seen:
        """Through jaxfn; or, in plain JAX, the twin."""
        context, runs = CONTEXTS[self.context], Runs()
        rules = Rules(self.rule, context.act, runs)
        f = ours(self.kind, rules) if ours_too else twin(self.kind, rules, self.modes)
        f = TAKEN[self.taken].of(WRAPPINGS[self.wrapping](f))

        def inside(x: Any) -> Any:
            with context.scope(runs):
                return f(x)

        program = OUTSIDE[self.outside].of(inside)
        if context.text is None:
            return Seen([np.asarray(x) for x in jax.tree.leaves(program(X))], runs)
        text = jax.jit(program).lower(X).as_text(debug_info=True)
        return Seen(context.text(text), runs)


@dataclasses.dataclass
class Seen:
    """What one sees of a run: values, or what the program's text has; and the runs."""

    what: Any
    runs: Runs
