"""Kernel launches of a rule that is traced, as operations of its graph."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxfn._triton import (
    Binding,
    KernelError,
    Launch,
    Loaded,
    Pointer,
    Variant,
    bindings,
    split,
)
from jaxfn._triton import experimental as triton
from jaxfn.torch._base import (
    TorchRefusal,
    experimental,
    has_x64,
    is_users,
    place_now,
    raised_by_jaxfn,
    to_jax_dtype,
    torch,
)
from jaxfn.torch._triton import operation
from jaxfn.torch._triton.buffers import Storages

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextlib.contextmanager
def caught(capture: Capture) -> Iterator[None]:
    """Let `capture` get the launches of this thread, instead of the kernels."""

    def run(kernel: Any, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if warmup:
            raise _refusal(kernel, "kernel.warmup compiles it without a launch.")
        capture(kernel, args, kwargs, grid)

    with (
        experimental.launches_caught(run),
        experimental.plain_launches(),
        _told_when_asked(capture),
    ):
        yield


# A rule may compute with the best configuration. If it does not read that, the GPU
# chooses one when the program runs.
@contextlib.contextmanager
def _told_when_asked(capture: Capture) -> Iterator[None]:
    """Tell `capture` when this thread reads a `best_config`."""
    kind = triton.name("Autotuner")
    what, owner = "best_config", threading.get_ident()
    before = kind.__dict__.get(what)

    def read(tuner: Any) -> Any:
        if threading.get_ident() == owner:
            capture.pin(tuner)
        try:
            return tuner.__dict__[what]
        except KeyError:
            raise AttributeError(what) from None

    setattr(kind, what, property(read, lambda t, x: t.__dict__.update({what: x})))
    try:
        yield
    finally:
        delattr(kind, what)
        if before is not None:
            setattr(kind, what, before)


class LaunchSeen(BaseException):
    """A rule launched a kernel, and tensors did not look as on a GPU.

    It is no Exception, because rules may catch those.
    """


class Capture:
    """A function that makes an operation of each launch.

    Args:
        storages: The storages of the tensors of this trace.

    Attributes:
        launches: The launches, in order.
    """

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self.launches: list[Launch] = []
        self._last: dict[int, Launch] = {}

    def pin(self, tuner: Any) -> None:
        """Restrict the last launch of a tuned kernel to its first configuration."""
        if id(tuner) in self._last:
            self._last[id(tuner)].pin()

    def __call__(self, kernel: Any, args: Any, kwargs: Any, grid: Any) -> None:
        """Make an operation of one launch."""
        place = place_now(sys._getframe(1))
        experimental.note_place(place)
        try:
            found = bindings(kernel, args, kwargs, _known(kernel, grid))
        except (NotImplementedError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, TorchRefusal) or not raised_by_jaxfn(error):
                raise
            raise _refusal(kernel, str(error.args[0])) from error
        flat = _Flat(self._storages)
        launch = _launch(found, flat, place)
        chosen = found[launch.variants.index(launch.usable[0])]
        if chosen.config is not None:
            self._tuned(kernel, launch, chosen)
        if 0 not in chosen.grid:
            self._done(kernel, chosen, launch, flat)

    def _done(self, kernel: Any, chosen: Binding, launch: Launch, flat: _Flat) -> None:
        """Take the launch over."""
        del kernel, chosen
        self.launches.append(launch)
        if launch.writes:
            new = operation.written(flat.tensors, operation.number_of(launch))
            for i, value in zip(launch.writes, new, strict=True):
                flat.tensors[i].copy_(value)

    def _tuned(self, kernel: Any, launch: Launch, chosen: Binding) -> None:
        """Set `best_config` and call the hook, as an autotuner does after a choice."""
        kernel.best_config = chosen.config  # rules may ask
        self._last[id(kernel)] = launch
        if chosen.hook is not None:
            launch.pin()  # the hook might act differently for another configuration
            chosen.hook({**chosen.arguments, **chosen.config.all_kwargs()})


def _launch(found: list[Binding], flat: _Flat, place: str) -> Launch:
    """Return the launch of these configurations; its tensors go into `flat`."""
    first = found[0]
    shared, own = split(found)
    common = {
        name: _argument(flat, first.kernel, name, value)
        for name, value in shared.items()
    }
    variants = tuple(
        Variant(
            {k: _constant(b.kernel, k, v) for k, v in constants.items()},
            {k: _option(b.kernel, k, v) for k, v in b.options.items()},
            b.grid,
        )
        for b, constants in zip(found, own, strict=True)
    )
    types = tuple(
        jax.ShapeDtypeStruct((x.numel(),), to_jax_dtype(x.dtype)) for x in flat.tensors
    )
    launch = Launch(first.kernel, common, variants, types, place)
    _check(launch, flat.tensors)
    if any(i in flat.constants for i in launch.writes):
        raise _refusal(
            launch.kernel,
            "it writes to a tensor that is not an argument, and the write would be "
            "lost.",
            "Pass it to apply and return its new value",
        )
    return launch


def _check(launch: Launch, tensors: list[Any]) -> None:
    """Refuse a kernel that does not compile, or that needs torch's own widths."""
    try:
        launch.effects  # noqa: B018  (it compiles the kernel)
        narrowed = [
            i
            for i, (x, t) in enumerate(zip(tensors, launch.buffers, strict=True))
            if x.element_size() > t.dtype.itemsize
        ]
        recasts = narrowed and _as_in_torch(launch, narrowed).effects.recasts
    except KernelError as error:
        raise _refusal(launch.kernel, str(error), "Correct the kernel") from error
    if recasts:
        raise _refusal(
            launch.kernel,
            "it gets int64 or float64, which JAX holds in 32 bits while x64 is off, "
            "and reads memory as another type.",
            "Enable x64: jax.config.update('jax_enable_x64', True)",
        )


def _as_in_torch(launch: Launch, narrowed: list[int]) -> Launch:
    """Return the launch with torch's own dtypes in the narrowed buffers."""

    def wide(dtype: Any) -> np.dtype:
        return np.dtype(f"{np.dtype(dtype).kind}{2 * np.dtype(dtype).itemsize}")

    buffers = list(launch.buffers)
    for i in narrowed:
        buffers[i] = jax.ShapeDtypeStruct(buffers[i].shape, wide(buffers[i].dtype))
    arguments = {
        name: Pointer(x.buffer, x.offset, wide(x.dtype))
        if isinstance(x, Pointer) and x.buffer in narrowed
        else x
        for name, x in launch.arguments.items()
    }
    return dataclasses.replace(launch, arguments=arguments, buffers=tuple(buffers))


class _Flat:
    """The buffers of one launch, each storage once."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._at: dict[Any, int] = {}
        self._dtypes: dict[int, Any] = {}
        self.constants: set[int] = set()
        self.tensors: list[Any] = []

    def pointer(self, x: Any) -> Pointer:
        """Return the place of a tensor in its buffer."""
        number = experimental.storage_number(x)
        if self._dtypes.setdefault(number, x.dtype) != x.dtype:
            raise TorchRefusal(
                operation="a kernel launch",
                reason=f"it gets one memory as {x.dtype} and as "
                f"{self._dtypes[number]}.",
                way_out="Give the kernel a copy in one of them.",
            )
        if number not in self._at:
            flat = self._storages.flat(x)
            if not (self._storages.have_values or experimental.is_fake(x)):
                self.constants.add(len(self.tensors))
                flat = flat.detach().clone()  # it must come from an operation
            self._at[number] = self.add(flat)
        return Pointer(self._at[number], x.storage_offset(), to_jax_dtype(x.dtype))

    def add(self, x: Any) -> int:
        """Add a buffer, and return its number."""
        self.tensors.append(x)
        return len(self.tensors) - 1


def _argument(flat: _Flat, kernel: Any, name: str, x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return flat.pointer(x)
    if isinstance(x, _NUMBERS):
        parameters = {p.name: p for p in triton.parameters(kernel)}
        if triton.is_constexpr(parameters[name]):
            raise _refusal(
                kernel,
                f"its constexpr `{name}` is made of the value of a tensor.",
                "Pass it as a static argument of apply",
            )
        dtype = {torch.SymFloat: torch.float32, torch.SymBool: torch.bool}
        whole = torch.int64 if has_x64() else torch.int32
        number = torch.scalar_tensor(x, dtype=dtype.get(type(x), whole))
        return Loaded(flat.add(number.view(1)))
    if hasattr(x, "data_ptr") or hasattr(x, "block_shape") or _has_tensor(x):
        raise _refusal(
            kernel,
            f"argument `{name}` is a {type(x).__name__}, and only tensors, numbers and "
            "None can be passed on.",
            "Pass each tensor as an argument of its own",
        )
    return x


def _has_tensor(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and any(
        isinstance(y, torch.Tensor) or _has_tensor(y) for y in x
    )


def _constant(kernel: Any, name: str, x: Any) -> Any:
    """Return the value of an argument that differs between configurations."""
    if isinstance(x, (torch.Tensor, *_NUMBERS)):
        raise _refusal(kernel, f"argument `{name}` differs between configurations.")
    return x


def _option(kernel: Any, name: str, x: Any) -> Any:
    """Return the value of an option of a launch."""
    if isinstance(x, (torch.Tensor, *_NUMBERS)):
        raise _refusal(
            kernel,
            f"its option `{name}` is made of the value of a tensor.",
            "Pass it as a static argument of apply",
        )
    return x


def _known(kernel: Any, grid: Any) -> Any:
    """Return the grid; refuse one that depends on the values of tensors."""
    if callable(grid):
        return lambda meta: _known(kernel, grid(meta))
    sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
    if any(isinstance(n, (torch.Tensor, *_NUMBERS)) for n in sizes):
        raise _refusal(
            kernel,
            "its grid is made of the value of a tensor.",
            "Make the grid of shapes, or of static arguments of apply",
        )
    return grid


def _refusal(kernel: Any, reason: str, way_out: str = "") -> TorchRefusal:
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return TorchRefusal(
        operation=f"a launch of kernel `{triton.name_of(kernel)}`",
        reason=reason,
        way_out=f"{way_out or 'Compute it with torch operations in the rule'}.",
        where=place_now(frame),
    )
