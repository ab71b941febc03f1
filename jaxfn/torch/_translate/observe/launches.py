"""What the launches of Triton kernels did, by the expression that launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxfn._triton import Binding, Launch, Pointer, run_on_host
from jaxfn.torch._base import to_numpy, torch
from jaxfn.torch._triton import flat_storage

_HOOK = "a kernel whose configurations have a pre_hook"
_OVERLAP = "the kernel reads through one pointer what it wrote through another"


@dataclasses.dataclass
class LaunchFact:
    """What the launches of one expression did.

    Attributes:
        kernel: The kernel as it was called; None if there were several.
        effects: For each parameter, what happened to it: "none" (it was None), "read",
            "written", "number".
        problem: The reason that JAX can't launch it.
    """

    kernel: Any
    effects: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    problem: str = ""


class Launches:
    """The launches of all runs."""

    def __init__(self) -> None:
        self._found: dict[Any, LaunchFact] = {}
        self._now: list[Any] = []

    def of(self, node: Any) -> LaunchFact | None:
        """Return what the launches of a call did; None if it launched nothing."""
        return self._found.get(node)

    def same(self, new: Any, old: Any) -> None:
        """Let a new call have launched what an old one has."""
        if old in self._found:
            self._found[new] = self._found[old]

    def watched(self, node: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose launches are those of a call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._now.append(node)
            try:
                return function(*args, **kwargs)
            finally:
                self._now.pop()

        return call

    def note(self, kernel: Any, chosen: Binding, launch: Launch) -> None:
        """Note one launch."""
        if not self._now or self._now[-1] is None:
            return  # by code that is not translated, and so is marked
        fact = self._found.setdefault(self._now[-1], LaunchFact(kernel))
        if fact.kernel is not kernel:
            fact.problem = fact.problem or "several kernels are launched here"
        if chosen.hook is not None:
            fact.problem = fact.problem or _HOOK
        given = {k: v for k, v in chosen.arguments.items() if _is_tensor(v)}
        apart = _apart(launch)
        if apart is not launch and not _are_same(launch, apart, given):
            fact.problem = fact.problem or _OVERLAP
        for name, value in chosen.arguments.items():
            effects = fact.effects.setdefault(name, set())
            effects.add("none" if value is None else "number")
            if name in given:
                effects.discard("number")
                is_written = apart.arguments[name].buffer in apart.writes
                effects.add("written" if is_written else "read")


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _apart(launch: Launch) -> Launch:
    """Return the launch with memory of its own for each tensor, as in JAX."""
    pointers = {k: x for k, x in launch.arguments.items() if isinstance(x, Pointer)}
    if len({x.buffer for x in pointers.values()}) == len(pointers):
        return launch
    buffers, arguments = [], dict(launch.arguments)
    for i, (name, x) in enumerate(pointers.items()):
        arguments[name] = dataclasses.replace(x, buffer=i)
        buffers.append(launch.buffers[x.buffer])
    return dataclasses.replace(launch, arguments=arguments, buffers=tuple(buffers))


def _are_same(launch: Launch, apart: Launch, given: dict[str, Any]) -> bool:
    """Return whether both write the same into each tensor."""

    def after(one: Launch) -> dict[str, np.ndarray]:
        pointers = {k: x for k, x in one.arguments.items() if isinstance(x, Pointer)}
        by_buffer = {x.buffer: given[k] for k, x in pointers.items()}
        whole = [to_numpy(flat_storage(by_buffer[i])) for i in range(len(by_buffer))]
        written = dict(zip(one.writes, run_on_host(one, whole), strict=True))
        found = {}
        for name, x in pointers.items():
            if x.buffer in written and name in wanted:
                t = given[name]
                buffer = written[x.buffer][t.storage_offset() :]
                steps = [s * buffer.itemsize for s in t.stride()]
                strided = np.lib.stride_tricks.as_strided
                found[name] = strided(buffer, tuple(t.shape), steps)
        return found

    with jax.enable_x64(True):
        wanted = {
            k
            for k, x in apart.arguments.items()
            if isinstance(x, Pointer) and x.buffer in apart.writes
        }
        one, two = after(launch), after(apart)
    return all(np.array_equal(one[k], two[k], equal_nan=True) for k in wanted)
