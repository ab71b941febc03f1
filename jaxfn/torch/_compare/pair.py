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
from jaxfn._check import Outcome, compare_arrays, eps_of, largest, wide, worst
from jaxfn.torch._base import torch
from jaxfn.torch._compare.accuracy import Accuracy, normal
from jaxfn.torch._compare.arguments import CommonArguments, exchanged
from jaxfn.torch._compare.hints import hint, of_one_kind
from jaxfn.torch._compare.original import Original, OriginalError
from jaxfn.torch._compare.port import Port
from jaxfn.torch._compare.tensors import Found, Outs

NUMBERS = (bool, int, float, complex)


class Different(Exception):  # noqa: N818  (it is what is looked for)
    """The two are not the same; the message says how."""


@dataclasses.dataclass(frozen=True, slots=True)
class CompareOptions:
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
        self.double, self.exact = double, exact
        self.x64 = double or arguments.has_wide
        xs = [self.arrays[i] for i in arguments.at]
        self._accuracy = Accuracy(self._function, xs, options.seed)

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
        return self.original.value(self.arrays)

    @functools.cached_property
    def got(self) -> list[Any]:
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
        """By the chosen arrays."""
        return self.torch_gradients(self.arrays, self.chosen, self.cts)

    def torch_gradients(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> list[np.ndarray]:
        """Of the original; None is the same as zero."""
        found = self.original.pull(arrays, chosen, cts)
        return filled(found, [arrays[i] for i in chosen])

    @functools.cached_property
    def got_gradients(self) -> list[np.ndarray]:
        """By the chosen arrays."""
        return self.jax_gradients(self.arrays, self.chosen, self.cts)

    def jax_gradients(
        self, arrays: Sequence[Any], chosen: Sequence[int], cts: Sequence[Any]
    ) -> list[np.ndarray]:
        """Of the port."""
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
        """Arrays, each relative to its largest element.

        Args:
            got: of the port.
            expected: of the original.
            labels: what to call them.
            what: "value", "gradient", "tangent" or "second derivative".
            which: which of all values, gradients, ... they are; None for all.
            slack: allowed for each, beside the tolerance.
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
                outcome = self._accuracy.allow(outcome, what, k, size)
            if not outcome.ok:
                looks = hint(a, b, i, labels, what, tolerance)
                where = "; ".join(filter(None, [outcome.where, looks]))
                outcome = dataclasses.replace(outcome, where=where)
            found.append(outcome)
        wrong = [o.where for o in found if not o.ok]
        note = next((o.note for o in found if o.ok and o.note), "")
        return dataclasses.replace(worst(found), where="\n  ".join(wrong), note=note)

    def tolerance(self, *arrays: Any) -> float:
        """Half of the digits that all of these have."""
        if self.options.rtol is not None:
            return self.options.rtol
        return eps_of([*self.arrays, *self._short, *map(np.asarray, arrays)]) ** 0.5

    @functools.cached_property
    def _short(self) -> list[Any]:
        """Outputs of the port that have less precision than those of the original.

        It is said once, of the dtype; what comes from them is no more precise.
        """
        pairs = zip(self.got, self.expected.leaves, strict=False)
        both = [two for two in pairs if all(map(pytree.is_array, two))]
        return [x for x, y in both if eps_of([x]) > eps_of([y])]

    def _function(self, side: str, what: str) -> Callable[..., Sequence[Any]]:
        """Values, gradients, ... as a function of what can be differentiated."""
        is_port, chosen = side == "port", self.chosen
        runs: dict[tuple[str, bool], Callable[[Any], Sequence[Any]]] = {
            ("value", True): lambda xs: numbers_in(self.port.leaves(xs)),
            ("value", False): lambda xs: numbers_in(self.original.value(xs).leaves),
            ("gradient", True): lambda xs: self.jax_gradients(xs, chosen, self.cts),
            ("gradient", False): lambda xs: self.torch_gradients(xs, chosen, self.cts),
            ("tangent", True): lambda xs: self.port.push(xs, self.tangents),
            ("tangent", False): lambda xs: self.torch_tangents(xs, self.tangents),
            ("second derivative", True): self.jax_second,
            ("second derivative", False): self.torch_second,
        }
        return lambda *xs: runs[what, is_port](
            exchanged(self.arrays, self.arguments.at, [np.asarray(x) for x in xs])
        )

    # ---- further derivatives

    @functools.cached_property
    def along(self) -> list[np.ndarray]:
        """A cotangent for each gradient."""
        generator = self.rng()
        self.random_cts(generator)
        return [normal(self.arrays[i], generator) for i in self.chosen]

    @functools.cached_property
    def tangents(self) -> dict[int, np.ndarray]:
        """A tangent for each array that can have one."""
        generator = self.rng()
        return {i: normal(self.arrays[i], generator) for i in self.arguments.at}

    def torch_tangents(
        self, arrays: Sequence[Any], tangents: dict[int, np.ndarray]
    ) -> list[np.ndarray]:
        """Of the original."""
        outs = [self.expected.leaves[i] for i in self.expected.moving]
        return filled(self.original.push(arrays, tangents), outs)

    def jax_second(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The gradients of <gradients, along>, by arguments and cotangents."""
        found = self.port.pull_twice(arrays, self.chosen, self.cts, self.along)
        return [np.asarray(g) for g in found]

    def torch_second(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The same of the original."""
        found = self.original.pull_twice(arrays, self.chosen, self.cts, self.along)
        return filled(found, [*(arrays[i] for i in self.chosen), *self.cts])


def numbers_in(leaves: Sequence[Any]) -> list[np.ndarray]:
    """Leaves of an output as arrays; what is no number as 0, in its place."""
    return [
        np.asarray(x) if pytree.is_array(x) or isinstance(x, NUMBERS) else np.zeros(())
        for x in leaves
    ]


def filled(found: Found, like_these: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Zeros in place of None."""
    return [
        np.zeros(x.shape, x.dtype) if g is None else g
        for g, x in zip(found, like_these, strict=True)
    ]


def subsets_in_words(arguments: CommonArguments, chosen: Sequence[int]) -> str:
    """Which arguments are differentiated."""
    numbers = [str(arguments.position(i)) for i in chosen]
    words = "argument" if len(numbers) == 1 else "arguments"
    return f"{words} {', '.join(numbers)} alone differentiated"
