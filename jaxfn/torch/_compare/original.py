"""The Function of torch, run by torch: what is expected.

Each call gets tensors of its own, cotangents too, as rules may write into both. The
random numbers that a call may draw are the same in each.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxfn.torch._base import (
    TorchDispatchMode,
    forward_ad,
    from_numpy,
    has_draws,
    is_once_differentiable,
    place_now,
    torch,
)
from jaxfn.torch._compare.arguments import CommonArguments
from jaxfn.torch._compare.tensors import (
    Found,
    Outs,
    array,
    gradients,
    memory_of,
    moving_in,
    outs_of,
    paired,
    tensor,
    tensors_in,
)

T = TypeVar("T")


class OriginalError(RuntimeError):
    """PyTorch itself raised, or its Function did: the port has no part in it."""


class Original:
    """A torch class.

    Args:
        cls: the class.
        seed: of the random numbers that it may draw.
    """

    def __init__(self, cls: Any, seed: int) -> None:
        self.cls, self.name, self._seed = cls, cls.__name__, seed
        # Are inputs that are differentiated leaves? Are int32 arrays int64 tensors?
        self._how = (True, False)

    def owns(self, rule: str) -> bool:
        """Does the class define this rule itself?"""
        return getattr(self.cls, rule) is not getattr(torch.autograd.Function, rule)

    @property
    def has_backward(self) -> bool:
        """Does the class define backward, under one of its names?"""
        return self.owns("backward") or self.owns("vjp")

    @property
    def is_once_differentiable(self) -> bool:
        """Is no second derivative meant?"""
        rule = self.cls.vjp if self.owns("vjp") else self.cls.backward
        return is_once_differentiable(rule)

    # ---- calls

    def value(
        self,
        arguments: CommonArguments,
        arrays: Sequence[np.ndarray],
        chosen: Sequence[int] = (),
    ) -> Outs:
        """What it returns; `chosen` arrays require grad."""
        return self._tried(
            lambda: outs_of(self._apply(arguments, arrays, chosen)[0]),
        )

    def pull(
        self,
        arguments: CommonArguments,
        arrays: Sequence[np.ndarray],
        chosen: Sequence[int],
        cts: Sequence[np.ndarray | None],
    ) -> Found:
        """The gradients by the chosen arrays; None where torch has none."""

        def run() -> Found:
            result, leaves = self._apply(arguments, arrays, chosen)
            pairs = paired(result, [tensor(ct) for ct in cts])
            return [array(g) for g in gradients(pairs, leaves)]

        return self._tried(run)

    def pull_twice(
        self,
        arguments: CommonArguments,
        arrays: Sequence[np.ndarray],
        chosen: Sequence[int],
        cts: Sequence[np.ndarray],
        along: Sequence[np.ndarray],
    ) -> Found:
        """The gradients of <gradients, along>, by chosen arrays and by cotangents."""

        def run() -> Found:
            result, leaves = self._apply(arguments, arrays, chosen)
            free = [tensor(ct).requires_grad_() for ct in cts]
            # Clones, as a rule may write to what it gets, and to a leaf it may not.
            pairs = paired(result, [ct.clone() for ct in free])
            first = gradients(pairs, leaves, again=True)
            moving = [
                (g, tensor(v))
                for g, v in zip(first, along, strict=True)
                if g is not None and g.requires_grad
            ]
            return [array(g) for g in gradients(moving, [*leaves, *free])]

        return self._tried(run)

    def push(
        self,
        arguments: CommonArguments,
        arrays: Sequence[np.ndarray],
        tangents: dict[int, np.ndarray],
    ) -> Found:
        """The tangents of the moving outputs."""

        def run() -> Found:
            tensors = self._tensors(arrays, ())
            with forward_ad.dual_level():
                for i, t in tangents.items():
                    tensors[i] = forward_ad.make_dual(tensors[i], tensor(t))
                result = self.cls.apply(*arguments.join(tensors))
                dots = [forward_ad.unpack_dual(x).tangent for x in moving_in(result)]
                return [array(t) for t in dots]

        return self._tried(run)

    def batched(
        self,
        arguments: CommonArguments,
        arrays: Sequence[np.ndarray],
        axes: Sequence[int | None],
    ) -> Outs:
        """What torch's vmap of it gives, by its own vmap rule."""

        def run() -> Outs:
            tensors = self._tensors(arrays, ())
            at = [i for i, axis in enumerate(axes) if axis is not None]

            def call(*some: Any) -> Any:
                every = list(tensors)
                for i, x in zip(at, some, strict=True):
                    every[i] = x
                return self.cls.apply(*arguments.join(every))

            dims = tuple(axes[i] for i in at)
            return outs_of(torch.func.vmap(call, dims)(*[tensors[i] for i in at]))

        return self._tried(run)

    def _apply(
        self,
        arguments: CommonArguments,
        arrays: Sequence[np.ndarray],
        chosen: Sequence[int],
    ) -> tuple[Any, list[Any]]:
        tensors = self._tensors(arrays, chosen)
        leaves = [tensors[i] for i in chosen]
        if not self._how[0]:
            for i in chosen:
                tensors[i] = tensors[i].clone()
        return self.cls.apply(*arguments.join(tensors)), leaves

    def _tensors(
        self, arrays: Sequence[np.ndarray], chosen: Sequence[int]
    ) -> list[Any]:
        long = torch.int64 if self._how[1] else torch.int32
        found = [from_numpy(x, long if x.dtype == np.int32 else None) for x in arrays]
        for i in chosen:
            found[i].requires_grad_()
        return found

    def _tried(self, run: Callable[[], T]) -> T:
        """Run, in another way if it raises: torch takes no int32 for an index."""
        before, first = self._how, None
        ways = [before, *(w for w in itertools.product((True, False), repeat=2))]
        for way in dict.fromkeys(ways):
            self._how = way
            try:
                with self._quietly():
                    return run()
            except Exception as error:  # noqa: BLE001  (rules raise what they like)
                first = first or error
        self._how = before
        assert first is not None
        text = str(first).strip().partition("\n")[0]
        raise OriginalError(f"{type(first).__name__}: {text}") from first

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Warnings of torch's code are not ours; nor is the state of its generator."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(self._seed)
            yield

    # ---- what is known of it

    def unrepeatable(self, run: Callable[[], Sequence[Any]]) -> str:
        """Why two runs need not give the same; an empty text if they do."""
        draws = _Draws()
        with draws:
            first = run()
        if draws.found:
            return f"it draws random numbers ({', '.join(draws.found)})"
        return "" if _are_same(first, run()) else "it gives something else each time"

    def saves_intermediates(
        self, arguments: CommonArguments, chosen: Sequence[int]
    ) -> bool:
        """Does forward keep tensors that are neither its inputs nor its outputs?"""

        def run() -> bool:
            result, leaves = self._apply(arguments, arguments.arrays, chosen)
            nodes = [x.grad_fn for x in moving_in(result) if x.grad_fn is not None]
            if not nodes:
                return False
            known = {memory_of(x) for x in (*leaves, *tensors_in(result))}
            node = nodes[0]
            kept = list(getattr(node, "saved_tensors", ()))
            kept += tensors_in(list(getattr(node, "__dict__", {}).values()))
            return any(memory_of(x) not in known for x in kept if x is not None)

        try:
            return self._tried(run)
        except OriginalError:
            return False


class _Draws(TorchDispatchMode):
    """Notes the operations that draw random numbers, and where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if has_draws(func):
            self.found[f"{func} at {place_now(sys._getframe(1))}"] = None
        return func(*args, **(kwargs or {}))


def _are_same(first: Sequence[Any], again: Sequence[Any]) -> bool:
    return len(first) == len(again) and all(
        not isinstance(x, np.ndarray)
        or not isinstance(y, np.ndarray)
        or (x.shape == y.shape and x.tobytes() == y.tobytes())
        for x, y in zip(first, again, strict=True)
    )
