"""Stands in for what published packages import and their Functions don't use."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Anything(type):
    """A class with every attribute; called with a function it gives it back."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if issubclass(cls, type):
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__call__()

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __lshift__ = __rshift__ = __or__


def _make(name: str) -> Any:
    if name.endswith(("Type", "Meta")):
        return _Anything(name, (type,), {})
    members = {
        "__call__": lambda self, *args, **_: args[0] if args else self,
        "__getattr__": lambda self, name: _missing(name),
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__init__": lambda self, *_, **__: None,
        "__enter__": lambda self: self,
        "__exit__": lambda self, *_: None,
    }
    return _Anything(name, (), members)


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _make(name)


class _Module(types.ModuleType):
    __version__ = "99.0"
    __file__ = __file__
    __all__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


@contextlib.contextmanager
def stubbed():
    """While it lasts, `load` can import packages without what they depend on."""
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)


def load(finder: _Finder, module: str) -> Any:
    """A module; what it imports and is not installed is stubbed."""
    for _ in range(100):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            root = (error.name or "").split(".")[0]
            if not root or root in finder.names or root == module.split(".")[0]:
                raise
            finder.names.add(root)
            # A package whose import was broken off is imported anew.
            for name in [
                n for n in sys.modules if n.split(".")[0] == module.split(".")[0]
            ]:
                del sys.modules[name]
    raise ImportError(module)
