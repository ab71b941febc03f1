"""What a refusal says: class, rule, file, line, operation, and the way out."""

from __future__ import annotations

import dis
import importlib.util
import os
import traceback
from types import FrameType, TracebackType

import jax

import jaxfn
from jaxfn.torch._base.torch_module import torch

_OURS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(package.__file__ or "")), "")  # noqa: PTH118, PTH100, PTH120
    for package in (torch, jax, jaxfn)
)
# Triton is not imported for this. What it calls is a user's kernel, at a user's line.
_TRITON = importlib.util.find_spec("triton")
if _TRITON is not None and _TRITON.origin is not None:
    _OURS = (*_OURS, os.path.join(os.path.dirname(_TRITON.origin), ""))  # noqa: PTH118, PTH120
_GENERATED = ("<eval_with_key>", "<string>", "<frozen", "<__array_function__")
HOST = (
    'Pass fallback="host" to from_torch: what can\'t be traced then runs in torch, on '
    "the host."
)
OR_HOST = HOST[0].lower() + HOST[1:]


class TorchRefusal(NotImplementedError, RuntimeError):  # noqa: N818  (it is no mistake)
    """A PyTorch Function (or a call of one) that can't become JAX operations.

    Attributes:
        name: of the class.
        rule: which of its rules.
        where: "file:line" in the rule, as far as it is known.
        operation: what is refused.
        reason: why.
        way_out: what to do.
    """

    name: str
    rule: str
    where: str
    operation: str
    reason: str
    way_out: str

    def __init__(
        self, *, operation: str, reason: str, way_out: str = HOST, where: str = ""
    ) -> None:
        super().__init__()
        self.name = self.rule = ""
        self.where, self.operation = where, operation
        self.reason, self.way_out = reason, way_out

    def of(self, name: str, rule: str) -> TorchRefusal:
        """The same, of this rule; what is known already stays."""
        if not self.name:
            self.name, self.rule = name, rule
        return self

    def bare(self) -> TorchRefusal:
        """The same without what led to it, which holds on to a whole trace."""
        same = TorchRefusal(
            operation=self.operation,
            reason=self.reason,
            way_out=self.way_out,
            where=self.where,
        )
        return same.of(self.name, self.rule)

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where else ""
        return (
            f"`{self.name}.{self.rule}`{at} can't run in JAX: {self.operation}: "
            f"{self.reason} {self.way_out}"
        )


_UNUSED = (
    "appears to not have been used in the graph",
    "does not require grad",
)


def of_unused(error: Exception) -> TorchRefusal | None:
    """The refusal for a derivative by what its computation did not use; else None."""
    if not any(words in str(error) for words in _UNUSED):
        return None
    return TorchRefusal(
        operation="autograd.grad",
        reason="it takes a derivative by a tensor that the computation did not use. A "
        "parameter that apply got beside its module is another tensor than the "
        "module's own.",
        way_out="Call the module by torch.func.functional_call(module, parameters, "
        "args), with the parameters that apply got.",
        where=place_of(error.__traceback__),
    )


def is_users(filename: str) -> bool:
    """Is this file neither torch's nor ours?"""
    return not filename.startswith((*_OURS, *_GENERATED))


def is_ours(filename: str) -> bool:
    """Is this file one of this package?"""
    return filename.startswith(_OURS[2])


def place_of(tb: TracebackType | None) -> str:
    """The innermost line of a user's file in a traceback."""
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(tb)
        if is_users(frame.filename)
    ]
    return places[-1] if places else ""


def place_now(frame: FrameType | None) -> str:
    """The innermost line of a user's file that is running."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def raised_by_user(error: BaseException) -> bool:
    """Was it raised by a line of a user's file?"""
    tb = _innermost(error)
    return tb is not None and is_users(tb.tb_frame.f_code.co_filename)


def raised_by_statement(error: BaseException) -> bool:
    """Was it raised by a `raise` in torch's public Python, as on a wrong argument?"""
    tb = _innermost(error)
    if tb is None:
        return False
    inside = os.path.relpath(tb.tb_frame.f_code.co_filename, _OURS[0])
    is_public = not inside.startswith(("_", "..", "fx", "utils"))
    return is_public and _is_raise(tb)


def raised_by_jaxfn(error: BaseException) -> bool:
    """Was it raised by a `raise` of ours, which says what a rule did wrong?"""
    tb = _innermost(error)
    return (
        tb is not None
        and tb.tb_frame.f_code.co_filename.startswith(_OURS[2])
        and _is_raise(tb)
    )


def _is_raise(tb: TracebackType) -> bool:
    return tb.tb_frame.f_code.co_code[tb.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _innermost(error: BaseException) -> TracebackType | None:
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb
