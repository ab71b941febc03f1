"""Both sides on the same arguments, in one precision."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxfn._check import (
    CHECKS,
    Case,
    Once,
    Outcome,
    Program,
    Run,
    Skip,
    compare_arrays,
    eps_of,
    in_float64,
    largest,
    like,
    wide,
    worst,
)
from jaxfn._core import values
from jaxfn.torch._base import torch
from jaxfn.torch._compare.arguments import CommonArguments, Outs, exchanged
from jaxfn.torch._compare.original import Accuracy, Fun, Original, OriginalError
from jaxfn.torch._compare.port import Port
from jaxfn.torch._compare.report import NOT_COMPARED, hint, of_one_kind

NUMBERS = (bool, int, float, complex)
OF_PORT = (
    *("value under jit", "backward under jit", "backward of subsets"),
    *("backward, unused outputs", "vmap", "vmap of backward"),
)
"""The checks of the port alone that are rows here."""


class Different(Exception):  # noqa: N818  (a finding, no mistake)
    """The port differs from the original; the message says how."""


@dataclasses.dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of a comparison.

    Attributes:
        seed: Seed of all random numbers.
        rtol: Relative tolerance; None for the precision's own.
        atol: Difference that passes, whatever the size.
    """

    seed: int
    rtol: float | None
    atol: float


class Pair:
    """A port and its original, on the same arguments.

    Args:
        port: Any callable, or a class with `apply`.
        original: The torch class.
        arguments: The arguments of both.
        options: The options of the comparison.
        double: Whether all has double precision, constants of rules included.
        exact: The same pair in double precision, if this one has less.
    """

    def __init__(
        self,
        port: Any,
        original: type,
        arguments: CommonArguments,
        options: CompareOptions,
        *,
        double: bool,
        exact: Pair | None = None,
    ) -> None:
        self.arguments, self.options = arguments, options
        self.original = Original(original, arguments, options.seed)
        self.port = Port(port, arguments, options.seed)
        self._port = port
        self.double, self.exact = double, exact
        self.x64 = double or arguments.has_wide
        self.accuracy = Accuracy(self._function, options.seed)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Set the precision of both sides, also for constants that rules make."""
        before = torch.get_default_dtype()
        with in_float64(self._port) if self.x64 else contextlib.nullcontext():
            torch.set_default_dtype(torch.float64 if self.double else before)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    def rng(self) -> np.random.Generator:
        """Return a generator, whose numbers are the same for each row."""
        return np.random.default_rng(self.options.seed)

    @property
    def arrays(self) -> list[np.ndarray]:
        """All arrays among the arguments."""
        return self.arguments.arrays

    # ---- computed once, for all rows

    @functools.cached_property
    def expected(self) -> Outs:
        """The outputs of the original."""
        outs = self.original.value(self.arrays)
        self.port.inexact = outs.inexact
        return outs

    @functools.cached_property
    def got(self) -> list[Any]:
        """The outputs of the port."""
        # A single operation takes long to compile. The exact pair alone runs each.
        run = self.port.leaves if self.exact is None else self.port.leaves_compiled
        return run(self.arrays)

    @functools.cached_property
    def checks(self) -> Run:
        """The checks of the port alone, as a function of all arrays."""
        case = Case(
            lambda *arrays: list(filter(values.is_array, self.port.leaves(arrays))),
            self.arrays,
            reference=None,
            surrogate=False,
            precision="given",
            **dataclasses.asdict(self.options),
        )
        case.at = self.arguments.at
        with contextlib.suppress(OriginalError):  # rows of gradients say so
            case.at = list(self.chosen) or case.at
        for i in case.at:
            case.labels[i] = self.arguments.label(i)
        case.first_value = list(filter(values.is_array, self.got))
        return Run(case, {}, {name: CHECKS[name] for name in OF_PORT})

    @functools.cached_property
    def cts(self) -> list[np.ndarray]:
        """A cotangent for each inexact output."""
        return self._random_cts(self.rng())

    def _random_cts(self, generator: np.random.Generator) -> list[np.ndarray]:
        outs = [self.expected.leaves[i] for i in self.expected.inexact]
        return [np.asarray(like(x, generator)) for x in outs]

    @functools.cached_property
    def why_not(self) -> dict[int, str]:
        """The arrays by which torch has no gradient, with the reasons."""
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
            self.original.pull(self.arrays, chosen, self.cts)
        except OriginalError as error:
            return str(error)
        return ""

    @functools.cached_property
    def chosen(self) -> tuple[int, ...]:
        """The arrays by which torch has a gradient."""
        return tuple(i for i in self.arguments.at if i not in self.why_not)

    @functools.cached_property
    def expected_gradients(self) -> list[np.ndarray]:
        """The original's gradients by the chosen arrays."""
        return self.original.pull(self.arrays, self.chosen, self.cts)

    @functools.cached_property
    def got_gradients(self) -> list[np.ndarray]:
        """The port's gradients by the chosen arrays."""
        pull = lambda xs, cts: self.port.pull(xs, self.chosen, cts)  # noqa: E731
        run = pull if self.exact is None else Once(pull)
        return [np.asarray(g) for g in run(self.arrays, self.cts)]

    # ---- comparing

    def compare(
        self,
        got: Sequence[Any],
        expected: Sequence[Any],
        labels: Sequence[str],
        what: str,
        *,
        which: Sequence[int] | None = None,
        slack: Sequence[float] | None = None,
    ) -> Outcome:
        """Compare arrays, each relative to its largest element.

        Args:
            got: Arrays of the port.
            expected: Arrays of the original.
            labels: Their names in messages.
            what: "value", "gradient", "tangent" or "second derivative".
            which: Their indices among all values; None for all.
            slack: Additional tolerance of each.
        """
        if len(got) != len(expected):
            raise Different(f"expected {len(expected)} arrays, got {len(got)}")
        more = slack or [0.0] * len(got)
        at = enumerate(which or range(len(got)))
        every = got, expected, labels, what
        found = [self.compare_one(i, *every, k=k, slack=more[i]) for i, k in at]
        wrong = [o.where for o in found if not o.ok]
        note = next((o.note for o in found if o.ok and o.note), "")
        return dataclasses.replace(worst(found), where="\n  ".join(wrong), note=note)

    def compare_one(
        self,
        i: int,
        got: Sequence[Any],
        expected: Sequence[Any],
        labels: Sequence[str],
        what: str,
        *,
        k: int | None = None,
        slack: float = 0.0,
    ) -> Outcome:
        """Compare array `i`, which is number `k` of all values."""
        a, b = ([wide(np.asarray(x)) for x in xs] for xs in (got, expected))
        tolerance = self.tolerance(got[i], expected[i]) + slack
        pair, atol = of_one_kind(a[i], b[i]), self.options.atol
        outcome = compare_arrays(*pair, labels[i], tolerance, atol=atol)
        if not outcome.ok and np.isfinite(outcome.error):
            size = max(largest(b[i]), 1e-30)
            outcome = self.accuracy.allow(outcome, what, i if k is None else k, size)
        if outcome.ok:
            return outcome
        looks = hint(a, b, i, labels, what, tolerance)
        where = "; ".join(filter(None, [outcome.where, looks]))
        return dataclasses.replace(outcome, where=where)

    def tolerance(self, *arrays: Any) -> float:
        """Return half of the digits that all of these have."""
        if self.options.rtol is not None:
            return self.options.rtol
        return eps_of([*self.arrays, *self._short, *map(np.asarray, arrays)]) ** 0.5

    @functools.cached_property
    def _short(self) -> list[Any]:
        """The outputs of the port that are less precise than the original's.

        The row of the dtype reports that. Their derivatives are no more precise.
        """
        pairs = zip(self.got, self.expected.leaves, strict=False)
        both = [two for two in pairs if all(map(values.is_array, two))]
        return [x for x, y in both if eps_of([x]) > eps_of([y])]

    def _function(self, side: str, what: str) -> tuple[Fun, Sequence[np.ndarray]]:
        """Return values, gradients, ... as a function of arrays, and these."""
        is_port, at, n = side == "port", self.arguments.at, len(self.cts)
        this = self.port if is_port else self.original
        more = {
            "gradient": lambda: self.cts,
            "tangent": lambda: list(self.tangents.values()),
            "second derivative": lambda: [*self.cts, *self.along],
        }.get(what, list)()

        def run(*points: Any) -> Sequence[Any]:
            xs, more = points[: len(at)], list(points[len(at) :])
            xs = exchanged(self.arrays, at, xs)
            if what == "gradient":
                return this.pull(xs, self.chosen, more)
            if what == "tangent":
                return this.push(xs, dict(zip(self.tangents, more, strict=True)))
            if what == "second derivative":
                return this.pull_twice(xs, self.chosen, more[:n], more[n:])
            return numbers_in(this.leaves(xs))

        # JAX can trace the port's derivatives. All else takes NumPy arrays.
        is_compiled = is_port and what != "value"
        f = Program(run) if is_compiled else lambda *xs: run(*map(np.asarray, xs))
        return f, [*(self.arrays[i] for i in at), *more]

    # ---- further derivatives

    @functools.cached_property
    def along(self) -> list[np.ndarray]:
        """A cotangent for each gradient."""
        generator = self.rng()
        self._random_cts(generator)
        return [np.asarray(like(self.arrays[i], generator)) for i in self.chosen]

    @functools.cached_property
    def tangents(self) -> dict[int, np.ndarray]:
        """A tangent for each inexact argument."""
        generator, at = self.rng(), self.arguments.at
        return {i: np.asarray(like(self.arrays[i], generator)) for i in at}


def expect_numbers(got: Sequence[Any], expected: Sequence[Any]) -> None:
    """Skip a row if nan is all that it compares: it equals itself, and proves nothing.

    Raises:
        Skip: There is nan in the arrays, and no finite number.
    """
    numbers = [wide(np.asarray(x)).ravel() for x in (*got, *expected)]
    if any(np.isnan(x).any() for x in numbers) and not any(
        np.isfinite(x).any() for x in numbers
    ):
        raise Skip(
            f"{NOT_COMPARED}it is nan here, on both sides. Choose arguments in the "
            "domain of the function"
        )


def numbers_in(leaves: Sequence[Any]) -> list[np.ndarray]:
    """Return the leaves of an output as arrays, with 0 for what is no number."""
    return [
        np.asarray(x) if values.is_array(x) or isinstance(x, NUMBERS) else np.zeros(())
        for x in leaves
    ]
