"""Functions of torch with kernels of their own, each with something that is hard.

They are written as packages write them: for tensors on a GPU, with strides, masks and
grids of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd import Function

# ---- elementwise: two inputs, two gradients from one kernel


@triton.jit
def _logistic(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _gated_value(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at, mask=at < n)
    y = tl.load(b + at, mask=at < n)
    tl.store(out + at, x * _logistic(x) * y, mask=at < n)


@triton.jit
def _gated_gradients(a, b, grad, grad_a, grad_b, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at, mask=at < n)
    g = tl.load(grad + at, mask=at < n)
    s = _logistic(x)
    slope = s * (1 + x * (1 - s))
    tl.store(grad_a + at, g * tl.load(b + at, mask=at < n) * slope, mask=at < n)
    tl.store(grad_b + at, g * x * s, mask=at < n)


class Gated(Function):
    """a sigmoid(a) b."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        out = torch.empty_like(a)
        grid = (triton.cdiv(a.numel(), 256),)
        _gated_value[grid](a, b, out, a.numel(), BLOCK=256, num_warps=2)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        grads = torch.empty_like(a), torch.empty_like(b)
        grid = (triton.cdiv(a.numel(), 256),)
        _gated_gradients[grid](a, b, grad.contiguous(), *grads, a.numel(), BLOCK=256)
        return grads


# ---- a row for each program: reductions, and an output that is saved


@triton.jit
def _softmax_rows(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    row = tl.load(x + start + at, mask=at < columns, other=-float("inf"))
    shifted = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + start + at, shifted / tl.sum(shifted, axis=0), mask=at < columns)


@triton.jit
def _softmax_gradients(out, grad, into, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    y = tl.load(out + start + at, mask=at < columns, other=0.0)
    g = tl.load(grad + start + at, mask=at < columns, other=0.0)
    tl.store(into + start + at, y * (g - tl.sum(y * g, axis=0)), mask=at < columns)


class Softmax(Function):
    """Softmax of each row."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        _softmax_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=block)
        ctx.save_for_backward(out)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (out,) = ctx.saved_tensors
        into, grad = torch.empty_like(out), grad.contiguous()
        rows, columns = out.shape
        _softmax_gradients[(rows,)](out, grad, into, columns, BLOCK=ctx.block)
        return into


# ---- sums by atomics, into a number


@triton.jit
def _add_squares(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(total, tl.sum(values * values, axis=0))


class Squares(Function):
    """The sum of squares."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        total = torch.zeros((), device=x.device)
        _add_squares[(triton.cdiv(x.numel(), 128),)](x, total, x.numel(), BLOCK=128)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad * ctx.saved_tensors[0]


# ---- products by tiles: a loop in the kernel, a grid of two axes, any strides


@triton.jit
def _multiply(
    a,
    b,
    out,
    rows,
    columns,
    inner,
    ar,
    ac,
    br,
    bc,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    k = tl.arange(0, STEP)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, inner, STEP):
        left, down = (start + k)[None, :], (start + k)[:, None]
        x = tl.load(a + i * ar + left * ac, mask=(i < rows) & (left < inner), other=0.0)
        y = tl.load(
            b + down * br + j * bc, mask=(down < inner) & (j < columns), other=0.0
        )
        total = tl.dot(x, y, acc=total, input_precision="ieee")
    tl.store(out + i * columns + j, total, mask=(i < rows) & (j < columns))


def _product(a: Any, b: Any) -> Any:
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty(rows, columns, device=a.device)
    sizes = rows, columns, inner
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
    _multiply[grid](a, b, out, *sizes, *a.stride(), *b.stride(), TILE=32, STEP=16)
    return out


class Product(Function):
    """a b for matrices; the gradients are products of transposed ones."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return _product(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        return _product(grad, b.t()), _product(a.t(), grad)


# ---- integers as addresses; the gradient is scattered by atomics


@triton.jit
def _take_rows(table, index, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(index + tl.program_id(0))
    values = tl.load(table + row * columns + at, mask=at < columns)
    tl.store(out + tl.program_id(0) * columns + at, values, mask=at < columns)


@triton.jit
def _add_rows(table, index, values, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(index + tl.program_id(0))
    add = tl.load(values + tl.program_id(0) * columns + at, mask=at < columns)
    tl.atomic_add(table + row * columns + at, add, mask=at < columns)


class Rows(Function):
    """Rows of a table."""

    @staticmethod
    def forward(ctx: Any, table: Any, index: Any) -> Any:
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        columns = table.shape[1]
        out = torch.empty(len(index), columns, device=table.device)
        ctx.block = triton.next_power_of_2(columns)
        _take_rows[(len(index),)](table, index, out, columns, BLOCK=ctx.block)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (index,) = ctx.saved_tensors
        into, grad = torch.zeros(ctx.shape, device=grad.device), grad.contiguous()
        columns = grad.shape[1]
        _add_rows[(len(index),)](into, index, grad, columns, BLOCK=ctx.block)
        return into, None


# ---- a scan in the kernel, forwards and backwards


@triton.jit
def _sum_along(x, out, columns, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    row = tl.load(x + start + at, mask=at < columns, other=0.0)
    sums = tl.cumsum(row, axis=0, reverse=REVERSE)
    tl.store(out + start + at, sums, mask=at < columns)


def _summed(x: Any, reverse: bool) -> Any:
    out, columns = torch.empty_like(x), x.shape[1]
    block = triton.next_power_of_2(columns)
    _sum_along[(x.shape[0],)](x, out, columns, BLOCK=block, REVERSE=reverse)
    return out


class Sums(Function):
    """Cumulative sums of each row."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return _summed(x, reverse=False)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _summed(grad.contiguous(), reverse=True)


# ---- tuned, with a heuristic; the grid depends on the choice


@triton.autotune(
    [
        triton.Config({"BLOCK": 64}, num_warps=1),
        triton.Config({"BLOCK": 256}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK": 1024}, num_warps=8),
    ],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def _bend(x, out, n, slope, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        value = tl.load(x + at)
        tl.store(out + at, tl.where(value > 0, value, slope * value))
    else:
        value = tl.load(x + at, mask=at < n)
        tl.store(out + at, tl.where(value > 0, value, slope * value), mask=at < n)


class Bent(Function):
    """x, times a slope if x is negative."""

    @staticmethod
    def forward(ctx: Any, x: Any, slope: float) -> Any:
        ctx.save_for_backward(x)
        ctx.slope = slope
        out, n = torch.empty_like(x), x.numel()
        _bend[lambda chosen: (triton.cdiv(n, chosen["BLOCK"]),)](x, out, n, slope)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, ctx.slope * grad), None
