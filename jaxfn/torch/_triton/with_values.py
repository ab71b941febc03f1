"""Launches of tensors with values, on a CPU: the interpreter runs them, in place.

PyTorch itself can't launch a kernel without a GPU. Here a launch writes into the memory
of its tensors, as on a GPU, so that `apply` and autograd work as there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from jaxfn._triton import Binding, Launch, run_on_host
from jaxfn.torch._base import (
    TorchFunctionMode,
    experimental,
    from_numpy,
    is_ours,
    is_users,
    place_now,
    to_numpy,
    torch,
)
from jaxfn.torch._triton import capture
from jaxfn.torch._triton.buffers import Storages, flat_storage
from jaxfn.torch._triton.capture import LaunchSeen
from jaxfn.torch._triton.operation import no_derivative
from jaxfn.torch._triton.surroundings import NOT_SHOWN, GpuLook, is_loaded

T = TypeVar("T")
Note = Callable[[Any, Binding, Launch], None]
# Torch runs nodes of its graph without this mode, so a hook enters it for each.
_ENGINE = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


class KernelRuns:
    """Runs rules on tensors with values, as on a GPU if they launch kernels.

    Args:
        derivatives: Whether a launch may get tensors that autograd follows. PyTorch
            then gives no gradient, without an error.

    Attributes:
        on_gpu: Whether tensors look as on a GPU, from the next run on.
        launches: Number of all launches.
    """

    def __init__(self, *, derivatives: bool = True) -> None:
        self._derivatives = derivatives
        self.on_gpu = False
        self.launches = 0

    def __call__(self, run: Callable[[], T]) -> T:
        """Return what `run` returns; it may be called twice."""
        if not is_loaded():
            return run()
        error: Exception | None = None
        if not self.on_gpu:
            try:
                with _refused() as places:
                    found = run()
                if not places:
                    return found
            except LaunchSeen:
                pass
            except Exception as raised:  # noqa: BLE001  (it may want a GPU)
                error = raised
        try:
            with running(self._count):
                found = run()
        except Exception:
            if error is not None:
                raise error from None
            raise
        self.on_gpu = True
        return found

    def _count(self, _: Any, binding: Binding, launch: Launch) -> None:
        self.launches += 1
        tensors = [x for x in binding.arguments.values() if isinstance(x, torch.Tensor)]
        followed = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if followed and not self._derivatives:
            raise no_derivative(launch)


@contextlib.contextmanager
def _refused() -> Iterator[list[str]]:
    """While this lasts, a launch of this thread raises `LaunchSeen`.

    Yields:
        The lines that launched: a rule may catch anything.
    """
    places: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        places.append(place_now(sys._getframe(1)))
        raise LaunchSeen

    with experimental.launches_caught(refuse):
        yield places


@contextlib.contextmanager
def running(note: Note | None = None) -> Iterator[None]:
    """While this lasts, tensors look as on a GPU, and launches of this thread run.

    Args:
        note: Function that gets each launch before it runs: the kernel as it was
            called, the binding of its arguments, and the launch.
    """
    gpu = GpuLook()
    with gpu.shows(), _Look(gpu), capture.caught(_Runner(note)):
        yield


class _Runner(capture.Capture):
    """Runs each launch at once."""

    def __init__(self, note: Note | None) -> None:
        super().__init__(_Whole())
        self._note = note

    def _done(self, kernel: Any, chosen: Binding, launch: Launch, flat: Any) -> None:
        if self._note is not None:
            self._note(kernel, chosen, launch)
        arrays = [to_numpy(x) for x in flat.tensors]
        found = zip(launch.writes, run_on_host(launch, arrays), strict=True)
        with torch.no_grad():
            for i, new in found:
                flat.tensors[i].copy_(from_numpy(new))

    def __call__(self, kernel: Any, args: Any, kwargs: Any, grid: Any) -> None:
        """Run one launch, with numbers as wide as torch's."""
        with jax.enable_x64(True):
            super().__call__(kernel, args, kwargs, grid)


class _Whole(Storages):
    """Storages of tensors with values, each as a flat tensor in the same memory."""

    have_values = True

    def flat(self, x: Any) -> Any:
        """Return the storage of a tensor."""
        return flat_storage(x)


class _Look(TorchFunctionMode):
    """What torch shows the rules of a GPU, and how it makes tensors meanwhile."""

    def __init__(self, gpu: GpuLook) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        frame, kwargs = sys._getframe(1), kwargs or {}
        name = frame.f_code.co_filename
        if func in _ENGINE and args:
            return self._differentiate(func, args, kwargs)
        if is_ours(name):
            return func(*args, **kwargs)
        found = self._gpu.shown(func, args, by_user=is_users(name))
        if found is not NOT_SHOWN:
            return found
        args, kwargs = self._gpu.moved(func, args, kwargs)
        return func(*args, **kwargs)

    def _differentiate(self, func: Any, args: Any, kwargs: Any) -> Any:
        nodes = experimental.nodes_of(args[0])
        hooks = [n.register_prehook(lambda *_: self._enter()) for n in nodes]
        try:
            return func(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self) -> None:
        self.__enter__()  # torch takes it off again after each node
