"""Programs in which a Function is called inside a context, and how they compare."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests import next_jax
from tests.laws.contexts import CONTEXTS, Runs, X
from tests.laws.plain import PUSH, levels, twin
from tests.laws.rules import KINDS, Flat, Kind, Rules, ours

SEED = 20
WEIGHTS = np.array([1.0, 2.0], np.float32)

# ---- around the Function, inside of what is taken


def _constant_too(f: Flat, half: jax.Array) -> Flat:
    """A call that nothing is known to transform, beside one that something is."""
    return lambda x: f(x) + f(half)


WRAPPINGS: dict[str, Callable[[Flat], Flat]] = {
    "alone": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, None, 2)[0],
    "cond": lambda f: lambda x: lax.cond(x[0] < 9, f, lambda x: 100 * x, x),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum(0),
    "checkpoint": jax.checkpoint,
    "constant too": lambda f: _constant_too(f, jnp.full(2, 0.5)),
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
    """A Function, the rule that acts, and a program.

    Attributes:
        kind: of the Function.
        rule: that reads the context, or has the effect.
        acts: the name of the context or effect.
        outside: what is around the context.
        taken: what is in it.
        wrapping: around the Function.
    """

    kind: Kind
    rule: str
    acts: str
    outside: str
    taken: str
    wrapping: str

    def __str__(self) -> str:
        return (
            f"{self.outside}: {self.acts}: {self.taken} of {self.wrapping} of "
            f"{self.kind}, in {self.rule}"
        )

    def meetings(self) -> set[Any]:
        """Which parts meet in it."""
        return {
            (axes, tuple(getattr(self, axis) for axis in axes))
            for axes in itertools.combinations(AXES, 2)
        }

    @property
    def modes(self) -> tuple[str, ...]:
        """Of the derivatives, the innermost first."""
        return TAKEN[self.taken].modes + OUTSIDE[self.outside].modes

    def is_valid(self) -> bool:
        """Is it a program of JAX's, and does it use the rule?"""
        modes, kind = self.modes, self.kind
        if len(modes) > 2 or self.rule not in kind.rules:
            return False
        if modes[:1] == ("forward",) and kind.engine == "backward":
            return False
        if self.rule in ("backward", "jvp") and not modes:
            return False
        if self.rule == "vmap" and self.wrapping != "vmap":
            return False
        # JAX has no reverse mode of a custom_vmap, and no second order.
        if kind.engine == "none" and self.wrapping == "vmap" and "reverse" in modes:
            return False
        return not (kind.batch and len(modes) == 2)

    def is_cheap(self) -> bool:
        """Is it of the first order, or compiled as a whole?"""
        return self.outside != "eager" or len(self.modes) < 2

    # ---- running

    def got(self, acting: Any) -> Seen:
        """Through jaxfn.

        Args:
            acting: the context or effect.
        """
        return self._run(acting, lambda rules: ours(self.kind, rules))

    def expected(self, acting: Any) -> Seen:
        """In plain JAX, with the exceptions in how often a rule runs."""
        seen, met = self.plain(acting), levels(self.kind, self.modes)
        seen_pushes = pushes = seen.runs.pop(PUSH, 0)
        pushed = tuple("jvp" if self._is_pushed(i) else x for i, x in enumerate(met))
        if pushed != met:
            again = self._run(
                acting,
                lambda rules: twin(self.kind, rules, pushed),
                lambda program: jax.eval_shape(program, X),  # how often is enough
            )
            pushes = again.runs[PUSH]
        for exception in EXCEPTIONS:
            if exception.concerns(self, seen.runs):
                seen.runs[exception.rule] += exception.more(
                    pushes - seen_pushes, pushes
                )
        return seen

    def check(self, acting: Any) -> None:
        """Compare the two: the same numbers, text or effects, and the same runs."""
        got, expected = self.got(acting), self.expected(acting)
        assert same(got.what, expected.what), f"{got.what} for {expected.what}"
        # JAX's next implementation traces the rules of the twin in other places.
        assert next_jax.IS_ON or got.runs == expected.runs

    def plain(self, acting: Any) -> Seen:
        """In plain JAX."""
        met = levels(self.kind, self.modes)
        return self._run(acting, lambda rules: twin(self.kind, rules, met))

    def _is_pushed(self, level: int) -> bool:
        """Is there a tangent map at this level, whatever its mode is?"""
        return not self.kind.is_native and (level > 0 or self.kind.engine != "backward")

    def _run(
        self,
        acting: Any,
        make: Callable[[Rules], Flat],
        see: Callable[[Flat], Any] | None = None,
    ) -> Seen:
        runs = Runs()
        f = make(Rules(self.rule, acting.act, runs))
        f = TAKEN[self.taken].of(WRAPPINGS[self.wrapping](f))

        def inside(x: Any) -> Any:
            with acting.scope(runs):
                return f(x)

        program = OUTSIDE[self.outside].of(inside)
        return Seen((see or acting.see)(program), runs)


@dataclasses.dataclass
class Seen:
    """What one sees of a program: values, text or effects; and what ran."""

    what: Any
    runs: Runs


AXES = ("kind", "rule", "acts", "outside", "taken", "wrapping")

CANDIDATES = 6000


def sample(
    acts: Iterable[str],
    is_wanted: Callable[[Cell], bool],
    times: int = 0,
) -> list[Cell]:
    """A seeded sample in which most parts that can meet do: see `_sample`."""
    return list(_sample(tuple(acts), is_wanted, times))


@functools.cache
def _sample(
    acts: tuple[str, ...], is_wanted: Callable[[Cell], bool], times: int
) -> list[Cell]:
    """A seeded sample in which most parts that can meet do, two by two.

    Args:
        acts: the names of the contexts or effects.
        is_wanted: which cells have a meaning.
        times: how many samples in which nearly all do. None is what a normal run has:
            without cells that compile much, and of the others those that bring many
            parts together that have not met before.
    """
    rules = ("forward", "setup_context", "backward", "jvp", "vmap")
    parts = [list(p) for p in (KINDS, rules, acts, OUTSIDE, TAKEN, WRAPPINGS)]
    found: dict[Cell, None] = {}
    for k in range(times or 1):
        chosen = random.Random(f"{SEED} {k}")
        cells = [Cell(*map(chosen.choice, parts)) for _ in range(CANDIDATES)]
        cells = [c for c in cells if c.is_valid() and (times or c.is_cheap())]
        meetings = {c: c.meetings() for c in cells if is_wanted(c)}
        met: set[Any] = set()
        for least in (6, 4) if times else (6,):
            for cell, meeting in meetings.items():
                if len(meeting - met) >= least:
                    met |= meeting
                    found[cell] = None
    return list(found)


# ---- where a rule runs more often than in plain JAX


@dataclasses.dataclass(frozen=True)
class MoreOften:
    """An exception to the law, for a good reason.

    Attributes:
        concerns: which cells, in which these rules have run?
        rule: that runs more often.
        more: how much: given how often a tangent map is made beside those of the twin,
            which has none where it has a custom_vjp; and how often in all.
        why: the reason.
    """

    concerns: Callable[[Cell, Runs], bool]
    rule: str
    more: Callable[[int, int], int]
    why: str


EXCEPTIONS = [
    MoreOften(
        lambda cell, _: cell.kind.engine == "both",
        "jvp",
        lambda beside, _: beside,
        "One definition serves both modes. In reverse mode too its tangent map is "
        "traced where the derivative is taken, as that of a custom_jvp is: "
        "jax.linearize uses it.",
    ),
    MoreOften(
        lambda cell, _: cell.kind.engine in ("derived", "backward"),
        "backward",
        lambda beside, _: beside,
        "The same; the tangent map is backward, transposed. A Function that has no "
        "more than backward needs it for derivatives of its value from outside.",
    ),
    MoreOften(
        lambda cell, runs: cell.kind.engine == "derived" and "pack" in runs,
        "unpack",
        lambda beside, _: 2 * beside,
        "That backward reads the two arrays that were saved.",
    ),
    MoreOften(
        lambda cell, _: cell.kind.form == "decorator" and cell.kind.engine == "both",
        "forward",
        lambda _, in_all: in_all,
        "A rule of defjvp computes the value beside its tangent; fwd computes it too, "
        "and what the transpose of the tangent map needs.",
    ),
]


@dataclasses.dataclass(frozen=True)
class Different:
    """Cells that are not equal to the twin in other respects, for a good reason.

    Attributes:
        concerns: which cells.
        example: one that differs.
        why: the reason.
    """

    concerns: Callable[[Cell], bool]
    example: Cell
    why: str


def _shows_in_text(cell: Cell) -> bool:
    return cell.acts in CONTEXTS and CONTEXTS[cell.acts].text is not None


def _has_two_directions(cell: Cell) -> bool:
    """Is there a tangent map whose transpose is a rule of its own?"""
    return cell.kind.has_backward and cell.kind.engine in ("both", "derived")


BOTH = Kind("separate", "both")
DECORATED, NONE = Kind("decorator", "both"), Kind("decorator", "none", batch=True)
DIFFERENT = [
    Different(
        lambda cell: (
            cell.kind == Kind("decorator", "both", cell.kind.batch)
            and cell.rule == "forward"
            and cell.modes[:1] == ("forward",)
        ),
        Cell(DECORATED, "forward", "callback", "eager", "jvp", "alone"),
        "fwd and the rule of defjvp both compute the value: effects happen twice.",
    ),
    Different(
        lambda cell: cell.kind == DECORATED and len(cell.modes) == 2,
        Cell(DECORATED, "forward", "contextvar", "jvp of jit", "value of jvp", "scan"),
        "JAX's own custom_jvp runs a rule of defjvp again for the derivative of its "
        "value, where and as often as that derivative is taken.",
    ),
    Different(
        lambda cell: (
            cell.kind.engine == "none"
            and (_shows_in_text(cell) or cell.wrapping == "checkpoint")
            and cell.modes != ()
        ),
        Cell(NONE, "forward", "named scope", "jit", "jvp", "alone"),
        "What ran is differentiated without its effects. That computes the value again "
        "(XLA drops and merges it), and nothing runs once more in jax.checkpoint.",
    ),
    Different(
        lambda cell: (
            _has_two_directions(cell)
            and cell.wrapping == "scan"
            and cell.taken == "jvp"
            and cell.modes == ("forward", "reverse")
        ),
        Cell(BOTH, "backward", "global", "grad", "jvp", "scan"),
        "The second turn's tangent depends on the first one's, so the derivative from "
        "outside transposes the tangent map: by backward, where and when it is "
        "transposed. JAX transposes what the twin's tangent rule did.",
    ),
    Different(
        lambda cell: (
            _has_two_directions(cell)
            and cell.acts == "named scope"
            and cell.taken == "jvp"
            and cell.modes == ("forward", "forward")
        ),
        Cell(BOTH, "jvp", "named scope", "jvp of jit", "jvp", "jit"),
        "The derivative of a tangent map, by what it saved, computes its tangent "
        "again. XLA merges the two.",
    ),
]
if jax.__version_info__ < (0, 12):
    DIFFERENT.append(
        Different(
            lambda cell: cell.wrapping == "scan" and len(cell.modes) == 2,
            Cell(Kind("separate", "jvp"), "forward", "x64", "jit", "hessian", "scan"),
            "Before JAX 0.12 a scan drops the rule of the twin's custom_jvp.",
        )
    )


def is_different(cell: Cell) -> bool:
    """Does the cell differ from its twin, for one of these reasons?"""
    return any(row.concerns(cell) for row in DIFFERENT)


def same(a: Any, b: Any) -> bool:
    """Are they equal, but for how numbers are rounded?"""
    if isinstance(a, np.ndarray):
        close = np.allclose(a, b, rtol=1e-5, atol=0, equal_nan=True)
        return (a.shape, a.dtype) == (b.shape, b.dtype) and close
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
