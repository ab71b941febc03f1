"""What a class reads beside its arguments, and numbers that it reads from tensors."""

from __future__ import annotations

import importlib
import sys

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.autograd import Function

from jaxfn.torch import TorchRefusal, from_torch

from .classes import torch_class
from .compare import Case

X = torch.linspace(-1.3, 2.0, 12).reshape(3, 4)
FACTOR = 2.0


class Sloped(Function):
    slope = 3.0

    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, g):
        return g * Sloped.slope


class Inherits(Sloped):
    @staticmethod
    def backward(ctx, g):
        return g * Inherits.slope


@pytest.mark.parametrize("cls", [Sloped, Inherits])
def test_settings_count_at_the_next_call(cls, monkeypatch):
    made = from_torch(cls)
    x = jnp.ones(2)

    def found():
        value, pull = jax.vjp(made.apply, x)
        return float(value[0]), float(pull(x)[0][0])

    assert found() == (2.0, 3.0)
    monkeypatch.setattr(Sloped, "slope", 5.0)
    assert found() == (2.0, 5.0)
    monkeypatch.setitem(globals(), "FACTOR", 7.0)
    assert found() == (7.0, 5.0)


class Options:
    gain = 1.0


class Held:
    def __init__(self):
        self.shift = 0.0


HELD = Held()


def scaled(x):
    (y,) = [y * FACTOR for y in (x,)]
    return y


def deep(x):
    return scaled(x) * Options.gain + HELD.shift


Helped = torch_class(lambda ctx, x: deep(x), lambda ctx, g: g)
Around = torch_class(lambda ctx, x: Helped.apply(x), lambda ctx, g: g)


@pytest.mark.parametrize("cls", [Helped, Around])
def test_what_helpers_read_may_change(cls, monkeypatch):
    """In a comprehension, of a class, of an object, in another Function."""
    made = from_torch(cls)
    assert float(made.apply(jnp.float32(1))) == 2
    monkeypatch.setitem(globals(), "FACTOR", 7.0)
    assert float(made.apply(jnp.float32(1))) == 7
    monkeypatch.setattr(Options, "gain", 3.0)
    assert float(made.apply(jnp.float32(1))) == 21
    monkeypatch.setattr(HELD, "shift", 1.0)
    assert float(made.apply(jnp.float32(1))) == 22


def test_what_a_rule_closes_over_may_change():
    k = 2.0
    made = from_torch(torch_class(lambda ctx, x: x * k, lambda ctx, g: g * k))
    assert float(made.apply(jnp.ones(()))) == 2.0
    k = 4.0
    assert float(jax.grad(made.apply)(1.0)) == 4.0
    assert float(made.apply(jnp.ones(()))) == 4.0


def test_a_module_may_be_loaded_again(tmp_path, monkeypatch):
    text = (
        "from torch.autograd import Function\n"
        "class Scale(Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x * FACTOR\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        return g * FACTOR\n"
        "FACTOR = {}\n"
    )
    file = tmp_path / "loaded_again.py"
    file.write_text(text.format("2.0"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("loaded_again")
    old = from_torch(module.Scale)
    assert float(jax.grad(old.apply)(1.0)) == 2.0
    file.write_text(text.format("5.0").replace("return g", "return 10 * g"))
    new = from_torch(importlib.reload(module).Scale)
    assert float(jax.grad(new.apply)(1.0)) == 50.0
    # The old class reads the same module, as it does in torch; its rules are its own.
    assert float(jax.grad(old.apply)(1.0)) == 5.0


def quantises(ctx, x):
    ctx.scale = x.abs().max().item()
    ctx.many = (x > 0).sum().item()
    return (x / ctx.scale * 127).round() * ctx.scale / 127


def saves_numbers(ctx, x, dim):
    """Saves numbers as tensors, one of which depends on the argument."""
    twice, total = torch.tensor(1.0), torch.tensor(0.0)
    twice.mul_(2)
    total += x.sum()
    ctx.save_for_backward(x, torch.tensor(dim), twice, total > 2)
    return x.logsumexp(dim)


def reads_numbers(ctx, g):
    x, dim, twice, total = ctx.saved_tensors
    return g.unsqueeze(dim) * x.softmax(dim) * float(twice) * total, None


NUMBERS = {
    "on ctx": (quantises, lambda ctx, g: g / ctx.scale * ctx.many, [X]),
    "saved as tensors": (saves_numbers, reads_numbers, [X.reshape(1, -1), 1]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_a_rule_keeps_for_backward(name):
    forward, backward, args = NUMBERS[name]
    case = Case(torch_class(forward, backward), args)
    assert case.worst() <= 1e-6
    assert max(case.second_gaps()) <= 1e-6


def test_a_number_from_a_tensor_can_not_be_returned():
    returns = torch_class(lambda ctx, x: (x * 2, x.max().item()))
    with pytest.raises(TorchRefusal, match=r"tensor\.item\(\): the number is returned"):
        from_torch(returns).apply(jnp.ones(3))


class Factor:
    factor = 1.0


class Late(Function):
    """Its rules read a static and a setting of the class when they are traced."""

    slope = 1.0

    @staticmethod
    def forward(ctx, x, held):
        ctx.held = held
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.held.factor * Late.slope * ctx.saved_tensors[0], None


def test_what_changes_before_a_trace_counts_for_that_trace_alone():
    held, apply = Factor(), from_torch(Late).apply
    held.factor = 1.0
    _, pull = jax.vjp(lambda x: apply(x, held), 1.0)
    held.factor = 5.0
    assert float(pull(1.0)[0]) == 5  # as in torch
    held.factor = 1.0
    assert float(jax.grad(lambda x: apply(x, held))(1.0)) == 1
    assert float(jax.grad(jax.grad(lambda x: apply(x, held)))(1.0)) == 1


def test_a_setting_that_changes_before_a_second_derivative(monkeypatch):
    held, apply = Factor(), from_torch(Late).apply
    _, pull = jax.vjp(jax.grad(lambda x: apply(x, held)), 1.0)
    monkeypatch.setattr(Late, "slope", 5.0)
    pull(1.0)
    monkeypatch.setattr(Late, "slope", 1.0)
    assert float(jax.grad(jax.grad(lambda x: apply(x, held)))(1.0)) == 1


SCALE = 2.0


def by_scale(x):
    return x * SCALE


def test_a_global_that_a_static_function_reads(monkeypatch):
    apply = from_torch(torch_class(lambda ctx, x, f: f(x))).apply
    assert float(apply(jnp.ones(()), by_scale)) == 2
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert float(apply(jnp.ones(()), by_scale)) == 3


def catches(ctx, x):
    try:
        needed = ctx.needs_input_grad[0]
    except BaseException:  # noqa: BLE001
        return x * 100
    return x * 2 if needed else x


def test_a_rule_that_catches_everything_still_sees_what_is_needed():
    cls = torch_class(catches, lambda ctx, g: g * 3)
    value, pull = jax.vjp(from_torch(cls).apply, 1.0)
    assert (float(value), float(pull(1.0)[0])) == (2, 3)


class Anything:
    """Has every attribute that it is asked for, like torch.ops or a mock."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args):
        pass


ANYTHING, OPERATIONS = Anything(), torch.ops


def names_what_has_all_attributes(ctx, x):
    ANYTHING.note(x)
    return OPERATIONS.aten.mul(x, 2.0)


def test_globals_that_have_every_attribute_are_no_kernels():
    cls = torch_class(names_what_has_all_attributes, lambda ctx, g: 2 * g)
    assert from_torch(cls).apply(jnp.ones(3)).tolist() == [2.0] * 3


class LoadsLate:
    def __getattr__(self, name):
        raise RuntimeError("no driver")


def test_a_global_that_raises_for_every_attribute():
    """A library that loads late may raise any error where its parts are missing."""
    late = LoadsLate()
    cls = torch_class(
        lambda ctx, x: late.launch(x) if x.dim() == 9 else 2 * x,
        lambda ctx, g: 3 * g,
    )
    assert jax.grad(from_torch(cls).apply)(1.0) == 3
