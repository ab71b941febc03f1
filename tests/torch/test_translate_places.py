"""Where the translator finds a class, and what it says of the places of its lines."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import types

import jax.numpy as jnp
import pytest
from torch.autograd import Function

from jaxfn.torch import translate

TEXT = """import torch
from torch.autograd import Function


class Inner(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if g.unknown():
            return g
        return g * (1 - torch.tanh(x) ** 2)
"""
X = jnp.array([0.3, -1.2])


@pytest.fixture
def cell(monkeypatch):
    """Run a text as a notebook does: `__main__` has no file, a cell has its lines."""

    def run(text):
        main = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        name = "<cell of a notebook>"
        entry = (len(text), None, text.splitlines(keepends=True), name)
        monkeypatch.setitem(linecache.cache, name, entry)
        exec(compile(text, name, "exec"), main.__dict__)
        return main

    return run


def test_a_class_of_a_notebook_is_found(cell):
    found = translate(cell(TEXT.replace("if g.unknown()", "if False")).Inner, X)
    assert "1 - jnp.tanh(x) ** 2" in found.source


def test_a_mark_tells_its_line(tmp_path, monkeypatch):
    path = tmp_path / "original_places.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    (left, *_) = translate(module.Inner).left
    line = TEXT[: TEXT.index("if g")].count("\n") + 1
    assert left.where == f"original_places.py:{line}"


def test_a_module_of_the_users_keeps_its_name(cell, monkeypatch):
    """What is compared is loaded under a name, which a module may have."""
    mine = types.ModuleType("translated")
    monkeypatch.setitem(sys.modules, "translated", mine)
    assert translate(cell(TEXT.replace("if g.unknown()", "if False")).Inner, X).ok
    assert sys.modules["translated"] is mine


REGISTRY = {}  # by name


def register(function):
    REGISTRY[function.__name__] = function
    return function


@register
def double(x):
    return x * 2


class Registered(Function):
    @staticmethod
    def forward(ctx, x):
        return REGISTRY["double"](x)

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_what_a_module_fills_elsewhere_is_marked():
    found = translate(Registered, X)
    assert {x.text for x in found.left} == {
        "REGISTRY = {}  # by name",
        'return REGISTRY["double"](x)',
    }
    assert all("fills elsewhere" in x.reason for x in found.left)
