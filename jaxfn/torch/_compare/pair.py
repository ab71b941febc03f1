"""Both sides on the same arguments, in one precision."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._base import pytree
from jaxfn._check import (
    MOST,
    Outcome,
    Skip,
    compare_arrays,
    eps_of,
    jumps,
    likeness,
    wide,
    worst,
)
from jaxfn.torch._compare.arguments import Arguments
from jaxfn.torch._compare.original import Found, Original, OriginalError, Outs
from jaxfn.torch._compare.port import Port
from jaxfn.torch._lib import torch

Values = Callable[..., Sequence[Any]]


class Different(Exception):  # noqa: N818  (it is what is looked for)
    """The two are not the same; the message says how."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How results are compared.

    Attributes:
        seed: of all random numbers.
        rtol: relative tolerance; None for that of the precision.
        atol: a difference that passes whatever the size.
    """

    seed: int
    rtol: float | None
    atol: float


class Pair:
    """A port and its original, on the same arguments.

    Args:
        port: anything that can be called, or a class with `apply`.
        original: the torch class.
        arguments: what both are called on.
        options: how results are compared.
        double: is everything in double precision, also what rules make themselves?
        exact: the same in double precision, if this is not.
    """

    def __init__(
        self,
        port: Any,
        original: Original,
        arguments: Arguments,
        options: Options,
        *,
        double: bool,
        exact: Pair | None = None,
    ) -> None:
        self.original, self.arguments, self.options = original, arguments, options
        self.port = Port(port, arguments, options.seed)
        self.double, self.exact = double, exact
        self.x64 = double or arguments.has_wide

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Where both are run: in double precision, constants of rules are that too."""
        before = torch.get_default_dtype()
        with jax.enable_x64(True) if self.x64 else contextlib.nullcontext():
            torch.set_default_dtype(torch.float64 if self.double else before)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    def rng(self) -> np.random.Generator:
        """Random numbers, the same for each row."""
        return np.random.default_rng(self.options.seed)

    @property
    def arrays(self) -> list[np.ndarray]:
        """All arrays among the arguments."""
        return self.arguments.arrays

    # ---- once for all rows

    @functools.cached_property
    def expected(self) -> Outs:
        """What the original returns."""
        return self.original.value(self.arguments, self.arrays)

    @functools.cached_property
    def got(self) -> tuple[list[Any], list[str]]:
        """What the port returns."""
        return self.port.leaves(self.arrays)

    @functools.cached_property
    def cts(self) -> list[np.ndarray]:
        """A cotangent for each moving output."""
        self.port.moving = self.expected.moving
        return self.random_cts(self.rng())

    def random_cts(self, generator: np.random.Generator) -> list[np.ndarray]:
        """Cotangents of the moving outputs."""
        leaves = self.expected.leaves
        return [normal(leaves[i], generator) for i in self.expected.moving]

    @functools.cached_property
    def why_not(self) -> dict[int, str]:
        """The arrays by which torch has no gradient, though others have one."""
        found = {}
        if not self._raises(tuple(self.arguments.at)):
            return found
        for i in self.arguments.at:
            if why := self._raises((i,)):
                found[i] = why
        rest = tuple(i for i in self.arguments.at if i not in found)
        if rest and (why := self._raises(rest)):
            raise OriginalError(why)
        return found

    def _raises(self, chosen: tuple[int, ...]) -> str:
        try:
            self.original.pull(self.arguments, self.arrays, chosen, self.cts)
        except OriginalError as error:
            return str(error)
        return ""

    @functools.cached_property
    def chosen(self) -> tuple[int, ...]:
        """The arrays by which torch has a gradient."""
        return tuple(i for i in self.arguments.at if i not in self.why_not)

    @functools.cached_property
    def expected_gradients(self) -> list[np.ndarray]:
        """By the chosen arrays."""
        return self.torch_gradients(self.arrays, self.chosen, self.cts)

    def torch_gradients(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> list[np.ndarray]:
        """Of the original; None is the same as zero."""
        found = self.original.pull(self.arguments, arrays, chosen, cts)
        return filled(found, [arrays[i] for i in chosen])

    @functools.cached_property
    def got_gradients(self) -> list[np.ndarray]:
        """By the chosen arrays."""
        return self.jax_gradients(self.arrays, self.chosen, self.cts)

    def jax_gradients(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> list[np.ndarray]:
        """Of the port."""
        found = self.port.pull(arrays, chosen, cts)[1]
        return [np.asarray(g) for g in found]

    # ---- other points

    def points(self, n: int, run: Callable[[list[np.ndarray]], Any]) -> list[Any]:
        """`n` other points near the arguments, at which `run` is what torch takes.

        Domains come from the arguments: the first attempt keeps signs, and what lies
        between 0 and 1; the second what is positive definite, sorted, or symmetric.
        """
        for near in (_shrunk, _scaled):
            with contextlib.suppress(OriginalError):
                generator = self.rng()
                points = [self._moved(near, k, generator) for k in range(1, n + 1)]
                for point in points:
                    run(point)
                return points
        raise Skip("PyTorch itself raises at other points near these arguments")

    def _moved(self, near: Any, k: int, generator: np.random.Generator) -> Any:
        found = list(self.arrays)
        for i, x in enumerate(found):
            if pytree.is_inexact(x):
                found[i] = np.asarray(near(x, k, generator)).astype(x.dtype)
        return found

    # ---- comparing

    def compare(
        self,
        got: Sequence[Any],
        expected: Sequence[Any],
        labels: Sequence[str],
        what: str,
        *,
        slack: Sequence[float] | None = None,
    ) -> Outcome:
        """Arrays, each relative to its largest element; `slack` is allowed beside."""
        if len(got) != len(expected):
            raise Different(f"expected {len(expected)} arrays, got {len(got)}")
        a, b = ([wide(np.asarray(x)) for x in xs] for xs in (got, expected))
        found = []
        for i, label in enumerate(labels):
            more = 0.0 if slack is None else slack[i]
            tolerance = self.tolerance(got[i], expected[i]) + more
            outcome = compare_arrays(
                *_of_one_kind(a[i], b[i]), label, tolerance, atol=self.options.atol
            )
            if not outcome.ok:
                hint = _hint(a, b, i, labels, what, tolerance)
                where = "; ".join(filter(None, [outcome.where, hint]))
                outcome = dataclasses.replace(outcome, where=where)
            found.append(outcome)
        wrong = [o.where for o in found if not o.ok]
        return dataclasses.replace(worst(found), where="\n  ".join(wrong))

    def tolerance(self, *arrays: Any) -> float:
        """Half of the digits that all of these have."""
        if self.options.rtol is not None:
            return self.options.rtol
        floats = [x for x in self.arrays if pytree.is_inexact(x)]
        return eps_of([*floats, *map(np.asarray, arrays)]) ** 0.5

    def allowing(self, outcome: Outcome, sides: Sequence[Values]) -> Outcome:
        """The outcome, with what the accuracy of both sides explains allowed.

        An iteration is no more accurate than its tolerance, and what computes in single
        precision no more than that, whatever its arguments are.
        """
        if outcome.ok or not np.isfinite(outcome.error):
            return outcome
        generator = self.rng()
        xs = [self.arrays[i] for i in self.arguments.at]
        along = [normal(x, generator, size_of(x)) for x in xs]
        more = max((max(jumps(f, xs, along), default=0.0) for f in sides), default=0.0)
        if not more or outcome.error > outcome.tolerance + MOST * more:
            return outcome
        note = f"accurate to about {more:.0e} here"
        tolerance = outcome.tolerance + MOST * more
        return dataclasses.replace(outcome, tolerance=tolerance, where="", note=note)

    def whole(self, xs: Sequence[Any]) -> list[Any]:
        """All arrays, with these in place of those that can be differentiated."""
        every = list(self.arrays)
        for i, x in zip(self.arguments.at, xs, strict=True):
            every[i] = np.asarray(x)
        return every


def normal(
    x: np.ndarray, generator: np.random.Generator, size: float = 1.0
) -> np.ndarray:
    """Normal numbers in the space of `x`."""
    numbers: Any = size * generator.standard_normal(x.shape)
    if np.iscomplexobj(x):
        numbers = numbers + size * 1j * generator.standard_normal(x.shape)
    return np.asarray(numbers).astype(x.dtype)


def size_of(x: np.ndarray) -> float:
    """How large the elements are, for a direction about as long."""
    mean = float(np.sqrt(np.mean(np.abs(wide(x)) ** 2))) if x.size else 1.0
    return float(np.clip(mean, 1e-3, 1e3))


def filled(found: Found, like_these: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Zeros in place of None."""
    return [
        np.zeros(x.shape, x.dtype) if g is None else g
        for g, x in zip(found, like_these, strict=True)
    ]


def _shrunk(x: np.ndarray, k: int, generator: np.random.Generator) -> Any:
    return x * (1 - 0.05 * k * generator.random(x.shape))


def _scaled(x: np.ndarray, k: int, _: np.random.Generator) -> Any:
    return x * (1 - 0.05 * k)


def _of_one_kind(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if np.iscomplexobj(a) == np.iscomplexobj(b):
        return a, b
    return a.astype(np.complex128), b.astype(np.complex128)


def _hint(
    got: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    i: int,
    labels: Sequence[str],
    what: str,
    tolerance: float,
) -> str:
    """What a wrong array looks like, also beside the others."""

    def same(a: np.ndarray, b: np.ndarray) -> bool:
        if a.shape != b.shape or not b.any():
            return False
        return compare_arrays(*_of_one_kind(a, b), "", tolerance).ok

    others = [k for k in range(len(got)) if k != i and same(got[i], expected[k])]
    swapped = [k for k in others if same(got[k], expected[i])]
    if swapped:
        k = min(i, swapped[0]), max(i, swapped[0])
        return f"{_short(labels[k[0]])} and {_short(labels[k[1]])} are swapped"
    if others:
        return f"it is what {_short(labels[others[0]])} must be"
    a, b = _of_one_kind(got[i], expected[i])
    found = likeness(a, b, what)
    if not found and a.shape == b.shape and a.size > 1:
        n = int(np.sum(~np.isclose(a, b, rtol=tolerance, atol=0, equal_nan=True)))
        return f"{n} of {a.size} elements differ"
    return found


def _short(label: str) -> str:
    """A label without the type, which is the same for both."""
    return label.partition(" (")[0].partition(",")[0]


def subsets_in_words(arguments: Arguments, chosen: Sequence[int]) -> str:
    """Which arguments are differentiated."""
    numbers = [str(arguments.position(i)) for i in chosen]
    words = "argument" if len(numbers) == 1 else "arguments"
    return f"{words} {', '.join(numbers)} alone differentiated"
