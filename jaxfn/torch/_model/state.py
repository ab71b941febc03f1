"""What a module keeps from one call to the next: tensors and plain values."""

from __future__ import annotations

import io
import pickle
import types
import warnings
import weakref
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from jaxfn.torch._base import TorchFunctionMode, TorchRefusal, experimental, torch

# Parameters, buffers and hooks are looked at elsewhere. Transformers notes so that it
# has installed its hooks, at the first call.
_NO_STATE = {*vars(torch.nn.Module()), "_output_capturing_hooks_installed"}
_NO_STATE -= {"training", "_modules"}
_BY_IDENTITY = (torch.nn.Module, type, types.BuiltinFunctionType, types.ModuleType)
_LARGEST = 1_000_000  # bytes of an array of NumPy that are compared


class _Unread(torch.Tensor):
    """A tensor that refuses to be used."""

    def __deepcopy__(self, _: Any) -> _Unread:
        return self

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise TorchRefusal(
            operation="an attribute with a tensor",
            reason="it requires a gradient and is no argument: the module computed it "
            "of a parameter or a buffer before this call, and reads it.",
            way_out="Compute it in forward, or keep a copy (x.detach().clone()).",
        )


# To ask what it knows already a model needs no state.
_QUESTIONS = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "is_leaf")
}

_GRAD = torch.Tensor.grad.__get__

# Stands for a tensor of an earlier call. Modes of a trace would make another kind.
UNREAD = torch.zeros(0).as_subclass(_Unread)


class Kept(NamedTuple):
    """An attribute of a module at one moment; equal if nothing in it has changed.

    Attributes:
        plain: All but the tensors in it, as bytes.
        tensors: For each tensor which one it is, and how often it was written to.
    """

    plain: Any
    tensors: tuple[tuple[int, int], ...]


class Snapshot:
    """The attributes of a module and its parts at one moment, by their names.

    Args:
        module: The module.
        own: Numbers (`id`) of its parameters and buffers, which count as one tensor: an
            LSTM keeps a list of them.
    """

    def __init__(self, module: Any, own: Collection[int] = ()) -> None:
        self.kept: dict[str, Kept] = {}
        self.tensors: dict[str, list[Any]] = {}
        known: dict[int, tuple[Kept, list[Any]]] = {}
        for path, part in module.named_modules():
            for name, value in vars(part).items():
                if name not in _NO_STATE:
                    if id(value) not in known:  # a config that all parts have
                        known[id(value)] = _seen(value, own)
                    where = f"{path}.{name}".strip(".")
                    self.kept[where], self.tensors[where] = known[id(value)]

    def changes(self, after: Snapshot) -> tuple[list[str], list[str]]:
        """Return the names of attributes with other tensors, and with other values."""
        nothing = Kept(None, ())
        pairs = {
            name: (self.kept.get(name, nothing), after.kept.get(name, nothing))
            for name in {**self.kept, **after.kept}
        }
        tensors = [name for name, (x, y) in pairs.items() if x.tensors != y.tensors]
        plain = [name for name, (x, y) in pairs.items() if x.plain != y.plain]
        return tensors, [name for name in plain if name not in tensors]


def _seen(value: Any, own: Collection[int]) -> tuple[Kept, list[Any]]:
    file, tensors = io.BytesIO(), []
    try:
        _Pickler(file, tensors).dump(value)
        plain: Any = file.getvalue()
    except Exception:  # noqa: BLE001  (what can't be pickled has no known state)
        plain = type(value)
    others = [x for x in tensors if id(x) not in own and x is not UNREAD]
    versions = [(id(x), experimental.writes_to(x)) for x in others]
    return Kept(plain, tuple(versions)), tensors


class _Pickler(pickle.Pickler):
    """Writes all but tensors, parts of the module, code and large arrays."""

    def __init__(self, file: Any, tensors: list[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_id(self, x: Any) -> Any:
        """Return what stands for an object; None for those that are written."""
        if isinstance(x, torch.Tensor):
            self._tensors.append(x)
            return "tensor"
        if isinstance(x, weakref.ref):
            return "reference", self.persistent_id(x())
        if isinstance(x, types.FunctionType):  # the same, if it is defined again
            return id(x.__code__)
        is_large = isinstance(x, np.ndarray) and x.nbytes > _LARGEST
        return id(x) if is_large or isinstance(x, _BY_IDENTITY) else None


class Spans:
    """Where tensors lie, to find those that share memory."""

    def __init__(self) -> None:
        self._spans: dict[int, list[tuple[int, int, str]]] = {}

    def add(self, name: str, x: Any) -> None:
        """Note a tensor."""
        spans = self._spans.setdefault(experimental.storage_number(x), [])
        spans.append((*_span(x), name))

    def other(self, x: Any) -> str:
        """Return the name of a tensor in the same memory; "" if there is none."""
        start, end = _span(x)
        for low, high, name in self._spans.get(experimental.storage_number(x), ()):
            if start < high and low < end:
                return name
        return ""


def _span(x: Any) -> tuple[int, int]:
    """Return where a tensor begins and ends in its memory, in bytes."""
    size = x.element_size()
    reach = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    start = x.storage_offset() * size
    return start, start + (reach + 1) * size * (x.numel() > 0)


def hide(module: Any, name: str) -> bool:
    """Put a tensor that can't be used in the place of one; False if it is none."""
    path, _, attribute = name.rpartition(".")
    attributes = vars(module.get_submodule(path))
    if not isinstance(attributes.get(attribute), torch.Tensor):
        return False
    attributes[attribute] = UNREAD
    return True


class ModuleWatch(TorchFunctionMode):
    """A mode that notes which functions of torch a module calls.

    Args:
        first: The mode of an earlier call, if this one is to take the same branches.

    Attributes:
        calls: The functions, with the numbers among their arguments. Questions for a
            shape, a dtype or a device are left out.
        answers: The truth values that they returned, by their place in `calls`.
        written: The running statistics to which a batch norm writes. Torch's own
            operation does it without a word.
    """

    def __init__(self, first: ModuleWatch | None = None) -> None:
        super().__init__()
        self._first = first
        self.calls: list[Any] = []
        self.answers: dict[int, bool] = {}
        self.written: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, at = kwargs or {}, len(self.calls)
        plain = (bool, int, float, complex, str)
        if func in _QUESTIONS:
            return func(*args, **kwargs)
        if func == _GRAD:  # a warning that the user's parameter is no leaf is not true
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return func(*args)
        self.calls.append((func, [repr(x) for x in args if isinstance(x, plain)]))
        if func is torch.nn.functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        first = self._first
        if first and at in first.answers and self.calls[at] == first.calls[at]:
            return first.answers[at]
        found = func(*args, **kwargs)
        if isinstance(found, bool):
            self.answers[at] = found
        return found

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
