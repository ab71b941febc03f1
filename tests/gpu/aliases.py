"""Tensors that share memory: kernels read and write it by strides and offsets.

JAX has neither. Each Function does one thing that goes wrong if a tensor is copied at
the wrong time, or not at all.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd import Function

from tests.gpu import comparison
from tests.gpu.comparison import Case
from tests.gpu.parts import Check


@triton.jit
def _scale(x, out, columns, xr, xc, outr, outc, by, BLOCK: tl.constexpr):
    """A row for each program: out = by x, both by their strides."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    values = tl.load(x + row * xr + at * xc, mask=at < columns)
    tl.store(out + row * outr + at * outc, by * values, mask=at < columns)


def scale(x: Any, out: Any, by: float) -> Any:
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    _scale[(rows,)](x, out, columns, *x.stride(), *out.stride(), by, BLOCK=block)
    return out


class Strided(Function):
    """Two times every second column of x, stored into every third one of a buffer."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.shape = x.shape
        part = x[:, ::2]
        buffer = torch.zeros(x.shape[0], 3 * part.shape[1], device=x.device)
        return scale(part, buffer[:, 1::3], 2.0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        into = torch.zeros(ctx.shape, device=grad.device)
        scale(grad, into[:, ::2], 2.0)
        return into


class Turned(Function):
    """Three times the transposed x; nothing is made contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return scale(x.t(), torch.empty(x.t().shape, device=x.device), 3.0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        into = torch.empty(grad.t().shape, device=grad.device)
        scale(grad, into.t(), 3.0)
        return into


class Offset(Function):
    """x, with five times its inner part: read and written at an offset."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = x.clone()
        scale(x[1:-1, 2:], out[1:-1, 2:], 5.0)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        into = grad.clone()
        scale(grad[1:-1, 2:], into[1:-1, 2:], 5.0)
        return into


class InPlace(Function):
    """49 x: a buffer times seven, twice, through two views of it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = x.clone()
        scale(out, out, 7.0)
        view = out.view(-1, 2)
        scale(view, view, 7.0)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        into = grad.clone()
        scale(into, into, 49.0)
        return into


class Halves(Function):
    """[2 x, 4 x]: the second launch reads what the first has stored beside it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        rows = x.shape[0]
        out = torch.empty(2 * rows, x.shape[1], device=x.device)
        scale(x, out[:rows], 2.0)
        scale(out[:rows], out[rows:], 2.0)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = grad.chunk(2)
        into = torch.empty(a.shape, device=grad.device)
        scale(a, into, 2.0)
        return into + 4 * b


@triton.jit
def _times(g, x, into, columns, gr, xr, xc, back, BLOCK: tl.constexpr):
    """into = g times x, of which the pointer is `back` elements too far."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    values = tl.load(x - back + row * xr + at * xc, mask=at < columns)
    given = tl.load(g + row * gr + at, mask=at < columns)
    tl.store(into + row * columns + at, given * values, mask=at < columns)


class SavedView(Function):
    """x squared; backward gets the transposed x, and reads it by its strides."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.t())
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (turned,) = ctx.saved_tensors
        grad = 2 * grad.contiguous()
        return _product(grad, turned.t(), 0)


class BeyondSavedView(Function):
    """x squared; backward gets all but the first column, and reads that one too."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x[:, 1:])
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (rest,) = ctx.saved_tensors
        return _product(2 * grad.contiguous(), rest, rest.storage_offset())


def _product(g: Any, x: Any, back: int) -> Any:
    rows, columns = g.shape
    into = torch.empty_like(g)
    block = triton.next_power_of_2(columns)
    _times[(rows,)](g, x, into, columns, g.stride(0), *x.stride(), back, BLOCK=block)
    return into


def _inner(x: Any) -> Any:
    factor = torch.ones_like(x)
    factor[1:-1, 2:] = 5
    return factor * x


def _make(small: bool) -> list[Any]:
    return [torch.randn((6, 8) if small else (300, 200))]


FORMULAS = {
    Strided: lambda x: 2 * x[:, ::2],
    Turned: lambda x: 3 * x.t(),
    Offset: _inner,
    InPlace: lambda x: 49 * x,
    Halves: lambda x: torch.cat([2 * x, 4 * x]),
    SavedView: lambda x: x * x,
    BeyondSavedView: lambda x: x * x,
}


def checks(small: bool) -> dict[str, Check]:
    cases = [
        Case(cls.__name__, lambda cls=cls: cls, _make, formula, batch=True)
        for cls, formula in FORMULAS.items()
    ]
    return comparison.checks(cases, small)
