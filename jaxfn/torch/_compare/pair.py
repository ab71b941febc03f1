"""Both sides on the same arguments, in one precision."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxfn._check import (
    Once,
    Outcome,
    Program,
    Skip,
    compare_arrays,
    eps_of,
    in_float64,
    largest,
    wide,
    worst,
)
from jaxfn._core import values
from jaxfn.torch._base import torch
from jaxfn.torch._compare.accuracy import Accuracy, normal
from jaxfn.torch._compare.arguments import CommonArguments, exchanged
from jaxfn.torch._compare.hints import hint, of_one_kind
from jaxfn.torch._compare.original import Original, OriginalError
from jaxfn.torch._compare.port import Port
from jaxfn.torch._compare.tensors import Found, Outs

NOT_COMPARED = "not compared: "
"""A row that is skipped with a message that begins with it: the report is not ok."""
NUMBERS = (bool, int, float, complex)


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
        self.accuracy = Accuracy(self._function, self._points, options.seed)

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
        return self.original.value(self.arrays)

    @functools.cached_property
    def got(self) -> list[Any]:
        """The outputs of the port."""
        # A single operation takes long to compile. The exact pair alone runs each.
        run = self.port.leaves if self.exact is None else self.port.leaves_compiled
        return run(self.arrays)

    @functools.cached_property
    def cts(self) -> list[np.ndarray]:
        """A cotangent for each inexact output."""
        self.port.inexact = self.expected.inexact
        return self.random_cts(self.rng())

    def random_cts(self, generator: np.random.Generator) -> list[np.ndarray]:
        """Return cotangents of the inexact outputs."""
        leaves = self.expected.leaves
        return [normal(leaves[i], generator) for i in self.expected.inexact]

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
        return self.torch_gradients(self.arrays, self.chosen, self.cts)

    def torch_gradients(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> list[np.ndarray]:
        """Return the original's gradients, with zeros for None."""
        found = self.original.pull(arrays, chosen, cts)
        return filled(found, [arrays[i] for i in chosen])

    @functools.cached_property
    def got_gradients(self) -> list[np.ndarray]:
        """The port's gradients by the chosen arrays."""
        if self.exact is None:
            return self.jax_gradients(self.arrays, self.chosen, self.cts)
        pull = Once(lambda xs, cts: self.port.pull(xs, self.chosen, cts))
        return [np.asarray(g) for g in pull(self.arrays, self.cts)]

    def jax_gradients(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> list[np.ndarray]:
        """Return the port's gradients."""
        return [np.asarray(g) for g in self.port.pull(arrays, chosen, cts)]

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
            which: Their indices among all values, gradients, ...; None for all.
            slack: Additional tolerance of each.
        """
        if len(got) != len(expected):
            raise Different(f"expected {len(expected)} arrays, got {len(got)}")
        a, b = ([wide(np.asarray(x)) for x in xs] for xs in (got, expected))
        found = []
        for i, label in enumerate(labels):
            tolerance = self.tolerance(got[i], expected[i])
            tolerance += 0.0 if slack is None else slack[i]
            atol = self.options.atol
            outcome = compare_arrays(
                *of_one_kind(a[i], b[i]), label, tolerance, atol=atol
            )
            if not outcome.ok and np.isfinite(outcome.error):
                k, size = i if which is None else which[i], max(largest(b[i]), 1e-30)
                outcome = self.accuracy.allow(outcome, what, k, size)
            if not outcome.ok:
                looks = hint(a, b, i, labels, what, tolerance)
                where = "; ".join(filter(None, [outcome.where, looks]))
                outcome = dataclasses.replace(outcome, where=where)
            found.append(outcome)
        wrong = [o.where for o in found if not o.ok]
        note = next((o.note for o in found if o.ok and o.note), "")
        return dataclasses.replace(worst(found), where="\n  ".join(wrong), note=note)

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

    def _points(self, what: str) -> list[np.ndarray]:
        """Return the inexact arguments, and the cotangents or tangents."""
        more = {
            "gradient": lambda: self.cts,
            "tangent": lambda: list(self.tangents.values()),
            "second derivative": lambda: [*self.cts, *self.along],
        }
        xs = [self.arrays[i] for i in self.arguments.at]
        return xs + (more[what]() if what in more else [])

    def _function(self, side: str, what: str) -> Callable[..., Sequence[Any]]:
        """Return values, gradients, ... as a function of `_points`."""
        is_port, at, n = side == "port", self.arguments.at, len(self.cts)
        # JAX can trace the port's derivatives. All else takes NumPy arrays.
        is_compiled = is_port and what != "value"
        gradients = self.port.pull if is_port else self.torch_gradients
        push = self.port.push if is_port else self.torch_tangents
        second = self.jax_second if is_port else self.torch_second

        def run(*points: Any) -> Sequence[Any]:
            if not is_compiled:
                points = tuple(map(np.asarray, points))
            xs, more = exchanged(self.arrays, at, points[: len(at)]), points[len(at) :]
            if what == "gradient":
                return gradients(xs, self.chosen, more)
            if what == "tangent":
                return push(xs, dict(zip(self.tangents, more, strict=True)))
            if what == "second derivative":
                return second(xs, more[:n], more[n:])
            if is_port:
                return numbers_in(self.port.leaves(xs))
            return numbers_in(self.original.value(xs).leaves)

        return Program(run) if is_compiled else run

    # ---- further derivatives

    @functools.cached_property
    def along(self) -> list[np.ndarray]:
        """A cotangent for each gradient."""
        generator = self.rng()
        self.random_cts(generator)
        return [normal(self.arrays[i], generator) for i in self.chosen]

    @functools.cached_property
    def tangents(self) -> dict[int, np.ndarray]:
        """A tangent for each inexact argument."""
        generator = self.rng()
        return {i: normal(self.arrays[i], generator) for i in self.arguments.at}

    def torch_tangents(
        self, arrays: Sequence[Any], tangents: dict[int, np.ndarray]
    ) -> list[np.ndarray]:
        """Return the original's tangents, with zeros for None."""
        outs = [self.expected.leaves[i] for i in self.expected.inexact]
        return filled(self.original.push(arrays, tangents), outs)

    def jax_second(
        self, arrays: Sequence[Any], cts: Sequence[Any], along: Sequence[Any]
    ) -> list[Any]:
        """Return the gradients of <gradients, along>, by arguments and cotangents."""
        return self.port.pull_twice(arrays, self.chosen, cts, along)

    def torch_second(
        self, arrays: Sequence[Any], cts: Sequence[Any], along: Sequence[Any]
    ) -> list[np.ndarray]:
        """Return the same of the original, with zeros for None."""
        found = self.original.pull_twice(arrays, self.chosen, cts, along)
        return filled(found, [*(arrays[i] for i in self.chosen), *cts])


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


def filled(found: Found, like_these: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays with zeros in place of None."""
    return [
        np.zeros(x.shape, x.dtype) if g is None else g
        for g, x in zip(found, like_these, strict=True)
    ]


def subsets_in_words(arguments: CommonArguments, chosen: Sequence[int]) -> str:
    """Return the arguments that are differentiated, in words."""
    numbers = [str(arguments.position(i)) for i in chosen]
    words = "argument" if len(numbers) == 1 else "arguments"
    return f"{words} {', '.join(numbers)} alone differentiated"
