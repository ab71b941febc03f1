"""What is around a rule while it is traced, if it may launch kernels."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from jaxfn.torch._triton.buffers import Storages
from jaxfn.torch._triton.gpu import GpuLook


class Surroundings:
    """A context around one run of a rule: tensors look as on a GPU.

    Attributes:
        gpu: The GPU that is shown.
        storages: The storages of the tensors of this run.
        launches: What was launched; who builds the program takes it over by number.
    """

    def __init__(self) -> None:
        self.gpu = GpuLook()
        self.storages = Storages()
        self.launches: list[Any] = []

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """While this lasts, launches of this thread are caught."""
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
    """The storages of the rule that runs in this thread, if it looks like on a GPU."""
    return getattr(_NOW, "storages", None)


def launch_of(row: Any) -> Any:
    """The launch that a row of the table runs; None for any other row."""
    return getattr(row.fn, "launch", None)


def launch_row(name: str, number: Any) -> Any:
    """How JAX runs a launch; None for any other operation.

    Args:
        name: Name of the operation.
        number: Its second argument: for a launch, its number.
    """
    if name != "jaxfn.launch.default":
        return None
    from jaxfn.torch._triton import operation

    return operation.row(number)
