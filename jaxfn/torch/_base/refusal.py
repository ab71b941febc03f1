"""The error for what can't run in JAX: class, rule, place, operation, what to do."""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import linecache
import os
import traceback
from types import FrameType, TracebackType
from typing import Any

import jax

import jaxfn
from jaxfn.torch._base.torch_module import torch

_OURS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(package.__file__ or "")), "")  # noqa: PTH118, PTH100, PTH120
    for package in (torch, jax, jaxfn)
)
# Triton's own frames are no user's lines either. This does not import it.
_TRITON = importlib.util.find_spec("triton")
if _TRITON is not None and _TRITON.origin is not None:
    _OURS = (*_OURS, os.path.join(os.path.dirname(_TRITON.origin), ""))  # noqa: PTH118, PTH120
_GENERATED = ("<eval_with_key>", "<string>", "<frozen", "<__array_function__")
HOST = (
    'Pass fallback="host" to from_torch: rules that can\'t be traced then run in '
    "PyTorch, by a host callback."
)
OR_HOST = HOST[0].lower() + HOST[1:]


class TorchRefusal(NotImplementedError, RuntimeError):  # noqa: N818  (it is no mistake)
    """A PyTorch Function (or a call of one) that can't become JAX operations.

    Attributes:
        name: The name of the class.
        rule: The name of its rule.
        where: "file:line" in the rule, if it is known.
        operation: The operation that jaxfn refuses.
        reason: Why jaxfn refuses it.
        way_out: What to do instead.
        lasts: Whether the next call of the same signature is refused, too.
    """

    name: str
    rule: str
    where: str
    operation: str
    reason: str
    way_out: str
    lasts: bool

    def __init__(
        self,
        *,
        operation: str,
        reason: str,
        way_out: str = HOST,
        where: str = "",
        lasts: bool = True,
    ) -> None:
        super().__init__()
        self.name = self.rule = ""
        self.where, self.operation, self.lasts = where, operation, lasts
        self.reason, self.way_out = reason, way_out

    def of(self, name: str, rule: str) -> TorchRefusal:
        """Return the refusal itself, with the name of its rule if it had none."""
        if not self.name:
            self.name, self.rule = name, rule
        return self

    def bare(self) -> TorchRefusal:
        """Return a copy without causes and traceback, which keep a trace alive."""
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
    """Return the refusal for a derivative by a tensor that was not used; else None."""
    if not any(words in str(error) for words in _UNUSED):
        return None
    return TorchRefusal(
        operation="autograd.grad",
        reason="it takes a derivative by a tensor that the computation did not use. If "
        "you passed a module's parameters to apply, they are other tensors than those "
        "in the module.",
        way_out="Call the module by torch.func.functional_call(module, parameters, "
        "args), with the parameters that apply got. If the tensor requires no "
        "gradient, call x.requires_grad_() before the computation.",
        where=place_of(error.__traceback__),
    )


@functools.cache  # a trace asks thousands of times
def is_users(filename: str) -> bool:
    """Return whether this file is neither torch's, JAX's, Triton's nor jaxfn's."""
    return not filename.startswith((*_OURS, *_GENERATED))


def is_ours(filename: str) -> bool:
    """Return whether this file is one of jaxfn."""
    return filename.startswith(_OURS[2])


_SAYS = {"warn", "print", "debug", "info", "warning", "error", "exception"}


def is_in_message(frame: FrameType) -> bool:
    """Return whether a frame makes a message: it raises, warns, prints or logs.

    People read what it formats there; elsewhere it may become a value again.
    """
    line, end_line, column, end_column = list(frame.f_code.co_positions())[
        frame.f_lasti // 2
    ]
    if None in (line, end_line, column, end_column):
        return False
    text = "".join(linecache.getlines(frame.f_code.co_filename))
    here: Any = (line, column), (end_line, end_column)
    return any(start <= here[0] and here[1] <= end for start, end in _messages_in(text))


@functools.lru_cache(maxsize=32)
def _messages_in(text: str) -> list[tuple[Any, Any]]:
    """Return where each message in a file starts and ends: line and column."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a cell of a notebook with magics
        return []
    found: list[ast.expr | ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.msg is not None:
            found.append(node.msg)
        elif isinstance(node, ast.Raise):
            found.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func).rpartition(".")[2]
            found += [node] if name in _SAYS else []
    return [((x.lineno, x.col_offset), (x.end_lineno, x.end_col_offset)) for x in found]


def place_of(tb: TracebackType | None) -> str:
    """Return the innermost line of a user's file in a traceback."""
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(tb)
        if is_users(frame.filename)
    ]
    return places[-1] if places else ""


def place_now(frame: FrameType | None) -> str:
    """Return the innermost line of a user's file that is running."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def raised_by_user(error: BaseException) -> bool:
    """Return whether a line of a user's file raised it."""
    tb = _innermost(error)
    return tb is not None and is_users(tb.tb_frame.f_code.co_filename)


def raised_by_statement(error: BaseException) -> bool:
    """Return whether a `raise` in torch's public Python raised it."""
    tb = _innermost(error)
    if tb is None:
        return False
    inside = os.path.relpath(tb.tb_frame.f_code.co_filename, _OURS[0])
    is_public = not inside.startswith(("_", "..", "fx", "utils"))
    return is_public and _is_raise(tb)


def raised_by_jaxfn(error: BaseException) -> bool:
    """Return whether a `raise` of jaxfn raised it: a message about a rule."""
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
