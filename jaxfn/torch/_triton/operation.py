"""A launch as one operation of torch, which changes nothing, and in JAX."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._triton import Launch, run_launch, run_on_host
from jaxfn.torch._base import TorchRefusal, from_numpy, to_numpy, torch

_LAUNCHES: weakref.WeakValueDictionary[int, Launch] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
_LIBRARY = torch.library.Library("jaxfn", "DEF")
_LIBRARY.define("launch(Tensor[] buffers, int number) -> Tensor[]")


def number_of(launch: Launch) -> int:
    """A number for a launch, under which it is known as long as it lives."""
    number = next(_NUMBERS)
    _LAUNCHES[number] = launch
    return number


def written(flat: Sequence[Any], number: int) -> list[Any]:
    """The new contents of what launch `number` writes, as one operation."""
    return torch.ops.jaxfn.launch(list(flat), number)


def row(number: int) -> Callable[..., list[jax.Array]]:
    """The launch in JAX, as a row of the table of operations."""
    held = _LAUNCHES[number]

    def run(buffers: Sequence[Any], number: int) -> list[jax.Array]:
        del number
        return run_launch(held, buffers)

    run.__dict__["launch"] = held
    return run


def _without_values(buffers: Sequence[Any], number: int) -> list[Any]:
    # No empty_like: for a constant, torch would take what happens to be in memory there
    # for the result.
    return [
        torch.empty(buffers[i].shape, dtype=buffers[i].dtype)
        for i in _LAUNCHES[number].writes
    ]


def _with_values(buffers: Sequence[Any], number: int) -> list[Any]:
    """The results for constants of a rule, of which torch knows the values."""
    held = _LAUNCHES[number]
    arrays = [
        to_numpy(x).astype(t.dtype) for x, t in zip(buffers, held.buffers, strict=True)
    ]
    found = zip(held.writes, run_on_host(held, arrays), strict=True)
    return [from_numpy(y, buffers[i].dtype) for i, y in found]


def _no_derivative(ctx: Any, *grads: Any) -> Any:
    del grads
    held = _LAUNCHES[ctx.number]
    raise TorchRefusal(
        operation=f"the derivative of kernel `{held.name}`",
        reason="a kernel has no derivative but what backward of its Function computes, "
        "and here the derivative of a rule is taken that launches it.",
        way_out="Launch it in a Function of its own that has a backward, or write the "
        "rule without kernels. torch gives no gradient here, and does not say so.",
        where=held.place,
    )


def _note(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.number = inputs[1]


_LIBRARY.impl("launch", _with_values, "CPU")
torch.library.register_fake("jaxfn::launch", _without_values, lib=_LIBRARY)
torch.library.register_autograd(
    "jaxfn::launch", _no_derivative, setup_context=_note, lib=_LIBRARY
)
