"""The Function of torch, run by torch: the expected results, and their accuracy.

Rules may write into their arguments and cotangents, so each call gets tensors of its
own. Every call draws the same random numbers. How accurate both sides are near the
arguments is measured if it is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxfn._check import LARGEST, MOST, Outcome, direction, eps_of, jumps, largest, wide
from jaxfn.torch._base import (
    TorchDispatchMode,
    forward_ad,
    from_numpy,
    has_draws,
    is_once_differentiable,
    place_now,
    torch,
)
from jaxfn.torch._compare.arguments import (
    Arrays,
    CommonArguments,
    Outs,
    array,
    exchanged,
    gradients,
    inexact_in,
    leaves_of,
    outs_of,
)
from jaxfn.torch._triton import KernelRuns

T = TypeVar("T")
_NO_DERIVATIVE = "a kernel has no derivative (on a GPU, PyTorch silently gives none)"


class OriginalError(RuntimeError):
    """PyTorch itself raised, or the original Function did, but not the port."""


class Original:
    """A torch class, with the arguments of a comparison.

    Each method takes the arrays among them, which differ from point to point. `chosen`
    arrays require grad.

    Args:
        cls: The class.
        arguments: The arguments of its `apply`.
        seed: Seed of its random draws.
    """

    def __init__(self, cls: Any, arguments: CommonArguments, seed: int) -> None:
        self.cls, self._seed = cls, seed
        self._arguments, self._kernels = arguments, KernelRuns()
        # Whether differentiated inputs are leaves, and int32 arrays become int64.
        self._how = (True, False)

    def owns(self, rule: str) -> bool:
        """Return whether the class itself defines this rule."""
        return getattr(self.cls, rule) is not getattr(torch.autograd.Function, rule)

    @property
    def has_backward(self) -> bool:
        """Return whether the class defines backward, under one of its names."""
        return self.owns("backward") or self.owns("vjp")

    @property
    def is_once_differentiable(self) -> bool:
        """Return whether the class refuses a second derivative."""
        rule = self.cls.vjp if self.owns("vjp") else self.cls.backward
        return is_once_differentiable(rule)

    # ---- calls

    def value(self, arrays: Arrays, chosen: Sequence[int] = ()) -> Outs:
        """Return the outputs."""
        return self._tried(lambda: outs_of(self._apply(arrays, chosen)[0]))

    def leaves(self, arrays: Arrays) -> list[Any]:
        """Return the leaves of the outputs."""
        return self.value(arrays).leaves

    def pull(
        self, arrays: Arrays, chosen: Sequence[int], cts: Sequence[np.ndarray | None]
    ) -> Arrays:
        """Return the gradients by the chosen arrays."""

        def run() -> Arrays:
            result, leaves = self._apply(arrays, chosen)
            # Rules may write into their cotangents: each call gets new tensors.
            given = [None if ct is None else from_numpy(ct) for ct in cts]
            return list(map(array, gradients(inexact_in(result), given, leaves)))

        return self._tried(run)

    def pull_twice(
        self, arrays: Arrays, chosen: Sequence[int], cts: Arrays, along: Arrays
    ) -> Arrays:
        """Return the gradients of <gradients, along>, by arrays and by cotangents."""

        def run() -> Arrays:
            result, leaves = self._apply(arrays, chosen)
            free = [from_numpy(ct).requires_grad_() for ct in cts]
            # A rule may write to its cotangents, but not to a leaf: pass clones.
            clones = [ct.clone() for ct in free]
            before = self._kernels.launches
            first = gradients(inexact_in(result), clones, leaves, again=True)
            if self._kernels.launches > before:
                raise RuntimeError(_NO_DERIVATIVE)
            found = gradients(first, list(map(from_numpy, along)), [*leaves, *free])
            return list(map(array, found))

        return self._tried(run)

    def push(self, arrays: Arrays, tangents: dict[int, np.ndarray]) -> Arrays:
        """Return the tangents of the inexact outputs."""

        def run() -> Arrays:
            tensors = self._tensors(arrays)
            with forward_ad.dual_level():
                for i, t in tangents.items():
                    tensors[i] = forward_ad.make_dual(tensors[i], from_numpy(t))
                pairs = map(forward_ad.unpack_dual, inexact_in(self._call(tensors)))
                return [
                    array(torch.zeros_like(x) if t is None else t) for x, t in pairs
                ]

        return self._tried(run)

    def batched(self, arrays: Arrays, axes: Sequence[int | None]) -> Outs:
        """Return the outputs of torch's vmap, by the class's own vmap rule."""

        def run() -> Outs:
            tensors = self._tensors(arrays)
            at = [i for i, axis in enumerate(axes) if axis is not None]
            call = torch.func.vmap(
                lambda *some: self._call(exchanged(tensors, at, some)),
                tuple(axes[i] for i in at),
            )
            return outs_of(call(*[tensors[i] for i in at]))

        return self._tried(run)

    def _call(self, tensors: Sequence[Any]) -> Any:
        return self.cls.apply(*self._arguments.join(tensors))

    def _apply(self, arrays: Arrays, chosen: Sequence[int]) -> tuple[Any, list[Any]]:
        """Return the result, and the leaves of its autograd graph."""
        tensors = self._tensors(arrays)
        leaves = [tensors[i].requires_grad_() for i in chosen]
        if not self._how[0]:
            tensors = exchanged(tensors, chosen, [x.clone() for x in leaves])
        return self._call(tensors), leaves

    def _tensors(self, arrays: Arrays) -> list[Any]:
        long = torch.int64 if self._how[1] else torch.int32
        return [from_numpy(x, long if x.dtype == np.int32 else None) for x in arrays]

    def _tried(self, run: Callable[[], T]) -> T:
        """Run; if it raises, retry with int64 indices, or without leaves."""

        def quietly() -> T:
            with self._quietly():
                return run()

        before, first = self._how, None
        ways = [before, *(w for w in itertools.product((True, False), repeat=2))]
        for way in dict.fromkeys(ways):
            self._how = way
            try:
                return self._kernels(quietly)
            except Exception as error:  # noqa: BLE001  (rules raise what they like)
                first = first or error
        self._how = before
        assert first is not None
        text = textwrap.shorten(str(first).strip().partition("\n")[0], 300)
        raise OriginalError(f"{type(first).__name__}: {text}") from first

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Ignore warnings of torch's code, and restore its generator."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(self._seed)
            yield

    # ---- properties

    def unrepeatable(self, run: Callable[[], Sequence[Any]]) -> str:
        """Return why two runs differ; an empty text if they don't."""

        def bits() -> list[bytes]:
            return [x.tobytes() for x in run() if isinstance(x, np.ndarray)]

        with _Draws() as draws:
            first = bits()
        if draws.found:
            return f"it draws random numbers ({', '.join(draws.found)})"
        return "" if first == bits() else "it returns other values each time"

    def saves_intermediates(self, chosen: Sequence[int]) -> bool:
        """Return whether forward saves more than its inputs and outputs."""

        def run() -> bool:
            result, leaves = self._apply(self._arguments.arrays, chosen)
            nodes = [x.grad_fn for x in inexact_in(result) if x.grad_fn is not None]
            if not nodes:
                return False
            node = nodes[0]
            saved = list(getattr(node, "saved_tensors", ()))
            saved += leaves_of(list(getattr(node, "__dict__", {}).values()))
            known = {None, *map(_memory_of, (*leaves, *leaves_of(result)))}
            return not known.issuperset(map(_memory_of, saved))

        try:
            return self._tried(run)
        except OriginalError:
            return False


class _Draws(TorchDispatchMode):
    """A mode that lists the operations that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if has_draws(func):
            self.found[f"{func} at {place_now(sys._getframe(1))}"] = None
        return func(*args, **(kwargs or {}))


def _memory_of(x: Any) -> Any:
    """Return where a tensor lies; None for what is none."""
    if not isinstance(x, torch.Tensor):
        return None
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


SIDES = ("original", "port")
STEPS = 4

Fun = Callable[..., Sequence[Any]]


class Accuracy:
    """The accuracy of both sides, measured after a comparison failed, and cached.

    Args:
        function: Returns a result of a side ("value", "gradient", ...) as a function of
            arrays, and these arrays.
        seed: Seed of the steps.
    """

    def __init__(
        self,
        function: Callable[[str, str], tuple[Fun, Sequence[np.ndarray]]],
        seed: int,
    ) -> None:
        self._function, self._seed = function, seed
        self.jumps_of = functools.cache(self._jumps)
        self._moves_of = functools.cache(self._moves)

    def allow(self, outcome: Outcome, what: str, k: int, size: float) -> Outcome:
        """Return the outcome of result `k`, with the tolerance that accuracy allows."""
        for side in SIDES:
            more = outcome.tolerance + MOST * self._moves_of(side, what)[k] / size
            if outcome.error <= more:
                return dataclasses.replace(outcome, tolerance=more, where="")
        if outcome.error > outcome.tolerance + MOST * LARGEST:
            return outcome
        for side in SIDES:
            jump = self.jumps_of(side, what)[k]
            more = outcome.tolerance + MOST * jump
            if outcome.error <= more:
                note = f"the {side} is accurate to about {jump:.0e} here"
                return Outcome(outcome.error, more, note=note)
        return outcome

    def _moves(self, side: str, what: str) -> Sequence[float]:
        """Return how much each result changes with the last digits of the arguments.

        After cancellation no digits are left to compare.
        """
        f, xs = self._function(side, what)
        generator, eps = np.random.default_rng(self._seed), eps_of(xs)
        first = [wide(np.asarray(x)) for x in f(*xs)]
        found = np.zeros(len(first))
        for k in range(STEPS):
            # The first step scales arrays as a whole: symmetric ones stay symmetric.
            steps = [
                1 + eps * (1 if k == 0 else generator.choice([-1, 1], x.shape))
                for x in xs
            ]
            pairs = zip(xs, steps, strict=True)
            with contextlib.suppress(Exception):  # f may refuse these
                near = f(*[np.asarray(x * step).astype(x.dtype) for x, step in pairs])
                gaps = zip(near, first, strict=True)
                moves = [largest(wide(np.asarray(y)) - x) for y, x in gaps]
                found = np.maximum(found, moves)
        return [float(x) for x in found]

    def _jumps(self, side: str, what: str) -> Sequence[float]:
        """Return how much each result jumps near the arguments, relative to its size.

        An iteration is no more accurate than its tolerance. Code in single precision
        has no more digits than that, whatever its arguments have.
        """
        f, xs = self._function(side, what)
        generator = np.random.default_rng(self._seed)
        try:
            return jumps(f, xs, [direction(x, generator) for x in xs])
        except OriginalError:  # it refuses points near the arguments
            return [0.0] * len(f(*xs))
