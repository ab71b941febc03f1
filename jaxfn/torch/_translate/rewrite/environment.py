"""What code asks of the machine, and what only a GPU of PyTorch needs."""

from __future__ import annotations

import inspect
import re
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.rewrite.base import Rewriting
from jaxfn.torch._translate.source import literal
from jaxfn.torch._translate.syntax import cst

_MACHINE = ("torch.cuda.", "torch.version.", "torch.xpu.", "torch.backends.")
_CALLED = {"contiguous", "isinstance", "wraps", "items", "values", "append", "index"}
_CALLED |= {"signature", "keys", "list", "tuple", "dict", "set", "len", "range", "zip"}
_CALLED |= {"enumerate", "fn", "func", "f", "function", "device", "nullcontext"}
_CALLED |= {"is_contiguous"}


def answer(rewriter: Rewriting, node: Any) -> Any:
    """Return the observed number or name that a question to the machine gave.

    For example `torch.cuda.get_device_properties(x.device).multi_processor_count`.
    """
    root = node
    while isinstance(root, (cst.Attribute, cst.Call)):
        target = rewriter.unit.references.get(root)
        if target is not None and target.kind == "torch":
            break
        root = root.func if isinstance(root, cst.Call) else root.value
    target = rewriter.unit.references.get(root)
    if target is None or not target.name.startswith(_MACHINE):
        return None
    seen = rewriter.infer.of(node)
    value = target.value if root is node and seen.kind == "unknown" else seen.value
    plain = isinstance(value, (bool, int, float, str))
    known = plain or (seen.kind == "none" or (root is node and target.value is None))
    text = literal(value) if known else None
    return None if text is None else cst.parse_expression(text)


def is_device_context(rewriter: Rewriting, item: Any) -> bool:
    """Return whether a `with` item only chooses a device: JAX places arrays itself."""
    call = item.item
    if not isinstance(call, cst.Call):
        return False
    target = rewriter.unit.references.get(call.func)
    if target is not None and target.name in ("torch.cuda.device", "torch.device"):
        return True
    kinds = {rewriter.infer.of(arg.value).kind for arg in call.args}
    return rewriter.on_gpu and (kinds == {"device"} or _asks_index(call))


def _asks_index(call: Any) -> bool:
    """Return whether the only argument is `x.device.index`."""
    text = [cst.Module([]).code_for_node(arg.value) for arg in call.args]
    return len(text) == 1 and text[0].endswith(".device.index")


def only_prepares(decorator: Any) -> bool:
    """Return whether a decorator only makes tensors contiguous and chooses a device.

    Args:
        decorator: The function; arrays in JAX are contiguous, on a device of JAX's.
    """
    try:
        text = inspect.getsource(inspect.unwrap(decorator))
    except (OSError, TypeError):
        return False
    text = re.sub(r'""".*?"""|#[^\n]*', "", text, flags=re.DOTALL)
    if ".contiguous()" not in text:
        space = getattr(decorator, "__globals__", {})
        helpers = [space.get(n) for n in re.findall(r"\b(\w+)\(", text)]
        texts = [_source(h) for h in helpers if inspect.isfunction(h)]
        if not any(".contiguous()" in t for t in texts):
            return False
        text += "".join(t for t in texts)
    defined = set(re.findall(r"def (\w+)\(", text))
    called = set(re.findall(r"(\w+)\(", text)) - defined
    called -= {"if", "for", "in", "return", "and", "or", "not", "with", "lambda", "fn"}
    return called <= _CALLED | {"custom_device_ctx"}


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def is_other_tensor(rewriter: Rewriting, call: Any) -> bool:
    """Return whether it asks if a tensor is of a class that JAX has nothing like."""
    if len(call.args) != 2 or not isinstance(call.func, cst.Name):
        return False
    target = rewriter.unit.references.get(call.args[1].value)
    cls = getattr(target, "value", None)
    is_one = call.func.value == "isinstance" and isinstance(cls, type)
    return is_one and issubclass(cls, torch.Tensor) and cls is not torch.Tensor
