"""Errors of kernels that run."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """A kernel can't run, or it uses an address outside its memory.

    Attributes:
        kernel: Name of the kernel that was launched.
        place: File and line in the kernel, or "" if they are unknown.
    """

    def __init__(self, kernel: str, message: str, place: str = "") -> None:
        self.kernel = kernel
        self.place = place
        super().__init__(f"{place}: {message}" if place else message)


class UnreadableError(LaunchError):
    """Triton compiles a kernel to code that only a GPU can run."""


class Fault(Exception):  # noqa: N818 (it never reaches a user)
    """An operation failed; the interpreter adds its place.

    Attributes:
        places: File and line of the operation and of the calls around it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.places: list[str] = []


class Diverges(Fault):
    """Lanes of a reduction take different branches, so they run one by one."""
