"""What a module keeps from one call to the next: tensors and plain values."""

from __future__ import annotations

import types
from typing import Any

from jaxfn.torch._base import TorchFunctionMode, torch

_PLAIN = (bool, int, float, complex, str)
# Transformers notes so that it has installed its hooks, at the first call.
_NO_STATE = ("_output_capturing_hooks_installed",)


def is_plain(x: Any) -> bool:
    """Return whether it is a number, a truth value or a text."""
    return isinstance(x, _PLAIN)


def changed_in(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what has another tensor or another plain value, by its name.

    A plain value where there was none is no state: nothing has read it before.
    """
    changed = {}
    for name, x in after.items():
        old = before.get(name)
        if is_plain(x):  # repr, because a nan differs from itself
            differs = is_plain(old) and repr(old) != repr(x)
        else:
            differs = old is not x
        if differs:
            changed[name] = x
    return changed


def state_of(module: Any) -> dict[str, Any]:
    """Return the tensors and plain values in attributes of a module and its parts."""
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def look(value: Any, path: str) -> None:
        if isinstance(value, (torch.Tensor, *_PLAIN)):
            found[path] = value
        elif id(value) not in seen and not isinstance(value, torch.nn.Module):
            seen.add(id(value))
            if isinstance(value, (list, dict, set)):
                found[f"len({path})"] = len(value)
            for k, x in _parts(value).items():
                look(x, f"{path}.{k}")

    own = {*vars(torch.nn.Module()), *_NO_STATE}  # parameters and hooks, for example
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in own:
                look(value, f"{path}.{name}".strip("."))
    return found


def _parts(value: Any) -> dict[Any, Any]:
    """Return the parts of a container, or the attributes of an object."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return dict(enumerate(value))
    is_code = isinstance(value, (type, types.ModuleType)) or callable(value)
    return {} if is_code else getattr(value, "__dict__", {})


class ModuleWatch(TorchFunctionMode):
    """A mode that notes which functions of torch a module calls.

    Attributes:
        calls: The functions, with the numbers among their arguments.
        written: The running statistics to which a batch norm writes. Torch's own
            operation does it without a word.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.written: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.calls.append((func, [repr(x) for x in args if is_plain(x)]))
        if func is torch.nn.functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _batch_norm(
        self,
        x: Any,
        mean: Any,
        var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if not training or mean is None:
            args = weight, bias, training, momentum, eps
            return torch.nn.functional.batch_norm(x, mean, var, *args)
        self.written += [mean, var]
        legit = torch.ops.aten._native_batch_norm_legit.default
        return legit(x, weight, bias, mean, var, training, momentum, eps)[0]
