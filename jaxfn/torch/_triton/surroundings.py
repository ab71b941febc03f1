"""The context of a rule that may launch kernels, while it is traced: a pretended GPU.

`GpuLook` has the answers of torch and Triton to a rule.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxfn.torch._base import experimental, is_users, torch
from jaxfn.torch._triton import capture, operation
from jaxfn.torch._triton.buffers import Storages

_CUDA = torch.device("cuda", 0)
_SHOWN = {
    torch.Tensor.device.__get__: _CUDA,
    torch.Tensor.is_cuda.__get__: True,
    torch.Tensor.is_cpu.__get__: False,
    torch.Tensor.get_device: 0,
}
_STAYS = (torch.Tensor.cuda, torch.Tensor.pin_memory)
NOT_SHOWN = object()
"""The result of `GpuLook.shown` for a function that does not ask for a device."""


def is_loaded() -> bool:
    """Return whether Triton is imported, without which nothing launches a kernel."""
    return "triton" in sys.modules


class GpuLook:
    """The GPU that rules see: the one that JAX has, or else a common one.

    If JAX has no GPU, the programs of a kernel run one after the other. Many rules use
    one for each multiprocessor, so their number is small then.
    """

    def __init__(self) -> None:
        gpus = [d for d in jax.local_devices() if d.platform in ("gpu", "cuda")]
        gpu: Any = gpus[0] if gpus else None
        capability = str(getattr(gpu, "compute_capability", "9.0"))
        self.capability = tuple(int(x) for x in capability.split(".")[:2])
        self.multiprocessors = int(getattr(gpu, "core_count", 4))
        self.name = getattr(gpu, "device_kind", "NVIDIA H100 (none is here)")

    def shown(self, func: Any, args: Any, *, by_user: bool) -> Any:
        """Return what a tensor reports, or `NOT_SHOWN`."""
        if func in _STAYS:
            return args[0]
        return _SHOWN.get(func, NOT_SHOWN) if by_user else NOT_SHOWN

    def moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the same arguments, with the CPU for a GPU."""
        if func is torch.device:
            return args, kwargs
        kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        return tuple(map(_moved, args)), {k: _moved(v) for k, v in kwargs.items()}

    @contextlib.contextmanager
    def shows(self) -> Iterator[None]:
        """Let torch.cuda and Triton's driver answer for this GPU."""
        with contextlib.ExitStack() as stack:
            for name, answer in self._answers().items():
                if name in vars(torch.cuda):
                    stack.enter_context(experimental.replaced(torch.cuda, name, answer))
            stack.enter_context(experimental.device_shown(_CUDA, _is_users))
            stack.enter_context(self._driver())
            yield

    def _answers(self) -> dict[str, Callable[..., Any]]:
        major, minor = self.capability
        return {
            "is_available": _always(True),
            "is_initialized": _always(True),
            "is_bf16_supported": _always(major >= 8),
            "device_count": _always(1),
            "current_device": _always(0),
            "set_device": _always(None),
            "synchronize": _always(None),
            "get_device_name": _always(self.name),
            "get_device_capability": _always((major, minor)),
            "get_device_properties": _always(self._properties()),
            "current_stream": _always(
                types.SimpleNamespace(cuda_stream=0, device=_CUDA, device_index=0)
            ),
            "is_current_stream_capturing": _always(False),
            "mem_get_info": _always((_MEMORY, _MEMORY)),
            "_exchange_device": _always(0),
            "_maybe_exchange_device": _always(0),
        }

    def _properties(self) -> Any:
        major, minor = self.capability
        return types.SimpleNamespace(
            name=self.name,
            major=major,
            minor=minor,
            multi_processor_count=self.multiprocessors,
            total_memory=_MEMORY,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=_SHARED,
            shared_memory_per_multiprocessor=233472,
            L2_cache_size=50 << 20,
            gcnArchName="",
        )

    @contextlib.contextmanager
    def _driver(self) -> Iterator[None]:
        from jaxfn._triton import experimental as triton

        major, minor = self.capability
        properties = {
            "max_shared_mem": _SHARED,
            "max_num_regs": 65536,
            "multiprocessor_count": self.multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }
        mine = types.SimpleNamespace(
            get_current_target=_always(triton.target(10 * major + minor)),
            get_current_device=_always(0),
            set_current_device=_always(None),
            get_current_stream=_always(0),
            get_active_torch_device=_always(_CUDA),
            get_device_interface=_always(torch.cuda),
            utils=types.SimpleNamespace(get_device_properties=_always(properties)),
        )
        with triton.driver_for_this_thread(mine):
            yield


_SHARED, _MEMORY = 232448, 80 << 30


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _is_users(frame: Any) -> bool:
    return is_users(frame.f_code.co_filename)


def _moved(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == "cuda":
        return torch.device("cpu")
    if isinstance(x, str) and x.startswith("cuda"):
        return "cpu"
    return x


class Surroundings:
    """A context around one run of a rule: tensors seem to be on a GPU.

    Attributes:
        gpu: The GPU that rules see.
        storages: The storages of the tensors of this run.
        launches: The launches; the program refers to them by number.
    """

    def __init__(self) -> None:
        self.gpu = GpuLook()
        self.storages = Storages()
        self.launches: list[Any] = []

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Catch launches of this thread."""
        act = capture.Capture(self.storages)
        self.launches = act.launches
        before, _NOW.storages = storages_now(), self.storages
        try:
            with self.gpu.shows(), capture.caught(act):
                yield
        finally:
            _NOW.storages = before


_NOW = threading.local()


def storages_now() -> Storages | None:
    """Return the storages of the rule in this thread, if it runs as on a GPU."""
    return getattr(_NOW, "storages", None)


def launch_of(row: Any) -> Any:
    """Return the launch that a row of the table runs; None for any other row."""
    return getattr(row.fn, "launch", None)


def launch_row(name: str, number: Any) -> Any:
    """Return the function that runs a launch in JAX; None for other operations.

    Args:
        name: Name of the operation.
        number: Its second argument; for a launch, its number.
    """
    if name != "jaxfn.launch.default":
        return None
    return operation.row(number)
