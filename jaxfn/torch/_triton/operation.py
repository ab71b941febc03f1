"""A kernel launch as an operation without side effects: in torch and in JAX."""

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
    """Return the number of a launch, valid while the launch lives."""
    number = next(_NUMBERS)
    _LAUNCHES[number] = launch
    return number


def written(flat: Sequence[Any], number: int) -> list[Any]:
    """Return the new contents of the buffers that launch `number` writes."""
    return torch.ops.jaxfn.launch(list(flat), number)


def row(number: int) -> Callable[..., list[jax.Array]]:
    """Return the launch in JAX, as a function for a row of the table."""
    launch = _LAUNCHES[number]

    def run(buffers: Sequence[Any], number: int) -> list[jax.Array]:
        del number
        return run_launch(launch, buffers)

    run.__dict__["launch"] = launch
    return run


def _without_values(buffers: Sequence[Any], number: int) -> list[Any]:
    # Not empty_like: torch would take the garbage in the memory of a constant's empty
    # copy for the result.
    return [
        torch.empty(buffers[i].shape, dtype=buffers[i].dtype)
        for i in _LAUNCHES[number].writes
    ]


def _with_values(buffers: Sequence[Any], number: int) -> list[Any]:
    """Return the results for constants, whose values torch knows."""
    launch = _LAUNCHES[number]
    arrays = [
        to_numpy(x).astype(t.dtype)
        for x, t in zip(buffers, launch.buffers, strict=True)
    ]
    found = zip(launch.writes, run_on_host(launch, arrays), strict=True)
    return [from_numpy(y, buffers[i].dtype) for i, y in found]


def _no_derivative(ctx: Any, *grads: Any) -> Any:
    del grads
    raise no_derivative(_LAUNCHES[ctx.number])


def no_derivative(launch: Launch) -> TorchRefusal:
    """Make the refusal of the derivative of a rule that launches a kernel."""
    return TorchRefusal(
        operation=f"the derivative of kernel `{launch.name}`",
        reason="a kernel has no derivative except the backward of its Function, and "
        "this is the derivative of a rule that launches it.",
        way_out="In forward mode, or for a second derivative: take a first derivative "
        "in reverse mode, by jax.grad or jax.vjp. Else launch it in a Function of its "
        "own that has a backward, or write the rule without kernels. PyTorch gives no "
        "gradient here, without an error.",
        where=launch.place,
    )


def _note(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.number = inputs[1]


_LIBRARY.impl("launch", _with_values, "CPU")
torch.library.register_fake("jaxfn::launch", _without_values, lib=_LIBRARY)
torch.library.register_autograd(
    "jaxfn::launch", _no_derivative, setup_context=_note, lib=_LIBRARY
)
