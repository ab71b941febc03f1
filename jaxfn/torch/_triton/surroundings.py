"""The context of a rule that may launch kernels, while it is traced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from jaxfn.torch._triton.buffers import Storages
from jaxfn.torch._triton.gpu import GpuLook


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
        from jaxfn.torch._triton import capture

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
    from jaxfn.torch._triton import operation

    return operation.row(number)
