"""Functions whose rules launch kernels, one for each thing that a rule does there."""

import torch
import triton
import triton.language as tl
from torch.autograd import Function

from tests.build import function, nothing


@triton.jit
def scale_kernel(x, y, n, by, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


def scaled(x, by, out=None):
    """`by * x`, by a kernel that takes no strides."""
    out = torch.empty_like(x) if out is None else out
    scale_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), by, BLOCK=8)
    return out


class StraightThrough(Function):
    """Of the Functions whose gradient nothing is asked of."""

    @staticmethod
    def backward(ctx, g):
        return g


class Scale(Function):
    """3 x. The factor of backward is wrong on purpose."""

    @staticmethod
    def forward(ctx, x):
        return scaled(x, 3.0)

    @staticmethod
    def backward(ctx, g):
        return scaled(g, 5.0)


# The same with a jvp, whose factor is another one.
ScaleWithJvp = function("ScaleWithJvp", Scale, jvp=lambda ctx, t: scaled(t, 7.0))
# The same in the separate style, with a vmap rule that has a factor of its own.
ScaleSeparately = function(
    "ScaleSeparately",
    Scale,
    forward=lambda x: scaled(x, 3.0),
    setup_context=nothing,
    vmap=lambda info, in_dims, x: (scaled(x, 11.0), in_dims[0]),
)


@triton.jit
def product_kernel(x, g, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = 2 * tl.load(x + i, mask=i < n) * tl.load(g + i, mask=i < n)
    tl.store(y + i, v, mask=i < n)


class Square(Function):
    """x², whose derivative is a kernel of what was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = torch.empty_like(g)
        product_kernel[(1,)](x, g, out, len(x), BLOCK=8)
        return out


@triton.jit
def strided_kernel(x, y, cols, xr, xc, yr, yc, by, BLOCK: tl.constexpr):
    i, j = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + i * xr + j * xc, mask=j < cols)
    tl.store(y + i * yr + j * yc, v * by, mask=j < cols)


def strided(x, y, by):
    """Writes `by * x` to `y`, by their strides."""
    rows, cols = x.shape
    strided_kernel[(rows,)](x, y, cols, *x.stride(), *y.stride(), by, BLOCK=8)


class Views(Function):
    """A view of the input, as another view of a larger output."""

    @staticmethod
    def forward(ctx, x, view, place):
        whole = torch.full((12, 12), -1.0, device=x.device)
        strided(view(x), place(whole), 2.0)
        ctx.view, ctx.place = view, place
        return whole

    @staticmethod
    def backward(ctx, g):
        out = torch.zeros(6, 6, device=g.device)
        strided(ctx.place(g), ctx.view(out), 2.0)
        return out, None, None


@triton.jit
def beyond_kernel(x, y, stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    here = tl.load(x + i * stride, mask=i < n)
    tl.store(y + i, here + 10.0 * tl.load(x + i * stride + 1, mask=i < n), mask=i < n)


class BeyondSaved(Function):
    """Backward reads beside the column that forward saved, by its stride."""

    @staticmethod
    def forward(ctx, x):
        y = x * 2.0
        ctx.save_for_backward(y[:, 0])
        ctx.column = y[:, 0]
        ctx.stride = y.stride(0)
        return y[:, 0].clone()

    @staticmethod
    def backward(ctx, g):
        (column,) = ctx.saved_tensors
        out = torch.empty(len(g), device=g.device)
        beyond_kernel[(1,)](column, out, ctx.stride, len(g), BLOCK=8)
        again = torch.empty(len(g), device=g.device)
        beyond_kernel[(1,)](ctx.column, again, ctx.stride, len(g), BLOCK=8)
        return torch.stack([out, again], 1)


class InPlace(Function):
    """Backward overwrites the gradient that it gets; forward overwrites a clone."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.save_for_backward(y)  # what it holds when forward ends
        scaled(y, 2.0, out=y)
        return y + 1.0

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        scaled(g, 4.0, out=g)
        return g * y


class Dirty(Function):
    """Forward overwrites its argument, and says so."""

    @staticmethod
    def forward(ctx, x):
        scaled(x, 2.0, out=x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return scaled(g, 2.0)


@triton.jit
def part_kernel(y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + 2 * i, 1.0 * i, mask=i < n)


class Part(Function):
    """A kernel fills every second element; torch has filled the others."""

    @staticmethod
    def forward(ctx, x):
        y = torch.cat([x, x])
        part_kernel[(1,)](y, len(x), BLOCK=8)
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[: 2 * (len(g) // 2) : 2] = 0
        a, b = g.chunk(2)
        return a + b


class SavedOutput(Function):
    """The output is saved, and is a part of a larger buffer."""

    @staticmethod
    def forward(ctx, x):
        whole = torch.empty(2 * len(x), device=x.device)
        scaled(x, 2.0, out=whole[: len(x)])
        scaled(x, 3.0, out=whole[len(x) :])
        out = whole[: len(x)]
        ctx.save_for_backward(out)
        ctx.n = len(x)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        three = torch.empty_like(g)
        beyond_kernel[(1,)](out, three, 1, ctx.n, BLOCK=8)  # reads one beyond out
        return g * three


class Number(Function):
    """A number that is the value of a tensor goes into the kernel."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by.item()
        return scaled(x, ctx.by)

    @staticmethod
    def backward(ctx, g):
        return scaled(g, ctx.by), None


class Wrapped(Scale):
    """Launched by torch.library.wrap_triton."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        kernel = torch.library.wrap_triton(scale_kernel)
        kernel[(1,)](x, out, x.numel(), 3.0, BLOCK=32)
        return out


@torch.library.triton_op("jaxfn_test::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel = torch.library.wrap_triton(scale_kernel)
    kernel[(1,)](x, out, x.numel(), 3.0, BLOCK=32)
    return out


@torch.library.triton_op("jaxfn_test::differentiable", mutates_args=())
def differentiable(x: torch.Tensor) -> torch.Tensor:
    return thrice(x)


differentiable.register_autograd(lambda ctx, g: 7 * g)


@torch.library.triton_op("jaxfn_test::otherwise", mutates_args=())
def otherwise(x: torch.Tensor) -> torch.Tensor:
    return thrice(x)


@otherwise.register_kernel("cpu")
def _(x):
    return 11 * x


# Launched by an operation of torch.library.triton_op, whose Python jaxfn runs.
ByTritonOp = function("ByTritonOp", Scale, forward=lambda ctx, x: thrice(x))
# The same, by an operation with a backward, which its Python has not.
ByDifferentiableOp = function(
    "ByDifferentiableOp", Scale, forward=lambda ctx, x: differentiable(x)
)
# The same, by an operation with another kernel for the CPU.
ByOpWithKernel = function("ByOpWithKernel", Scale, forward=lambda ctx, x: otherwise(x))


class NeedsValues(Scale):
    """Asks for a value, which a trace does not have, and launches."""

    @staticmethod
    def forward(ctx, x):
        by = float(x.max().item())
        return scaled(x, by) if by > 1 else x


@triton.jit
def pick_kernel(x, index, keep, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    j = tl.load(index + i, mask=i < n, other=0)
    kept = tl.load(keep + i, mask=i < n, other=0)
    tl.store(y + i, tl.where(kept, tl.load(x + j, mask=i < n), 0.0), mask=i < n)


class Pick(Scale):
    """A kernel takes an int64 tensor and one of bool, which Triton reads as int8."""

    @staticmethod
    def forward(ctx, x):
        index = torch.arange(x.numel(), device=x.device).flip(0)
        y = torch.empty_like(x)
        pick_kernel[(1,)](x, index, x > 4, y, x.numel(), BLOCK=16)
        return y


class OnGpuAlone(Function):
    """Wants tensors on a GPU, and asks torch and Triton for it."""

    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda
        assert x.device == torch.device("cuda:0")
        assert torch.cuda.is_available()
        with torch.cuda.device(x.device.index):
            many = torch.cuda.get_device_properties(x.device).multi_processor_count
            target = triton.runtime.driver.active.get_current_target()
        assert many > 0
        assert target.backend == "cuda"
        out = torch.empty(x.shape, device=torch.device("cuda"))
        return scaled(x.to("cuda").cuda(), 3.0, out=out)

    @staticmethod
    def backward(ctx, g):
        assert g.is_cuda
        return scaled(g, 5.0)


# Launches nothing, and computes another thing on a GPU.
OtherOnGpu = function(
    "OtherOnGpu",
    Function,
    forward=lambda ctx, x: x * 100 if x.is_cuda else torch.from_numpy(x.numpy() * 3),
    backward=lambda ctx, g: 5 * g,
)


LAUNCHERS = {"scaled": scaled}  # no search of the rules finds this kernel


class BackwardOnGpu(Function):
    """Wants tensors on a GPU, where backward alone launches."""

    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return LAUNCHERS["scaled"](g, 5.0)


class PlainBesideKernel(Function):
    """Forward launches nothing; backward launches."""

    @staticmethod
    def forward(ctx, x):
        y = x.t() * 1.0
        ctx.save_for_backward(y.t())
        ctx.strides = y.t().stride()
        return y.sum(0)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        out = torch.empty(y.shape, device=g.device)
        rows, cols = y.shape
        strided_kernel[(rows,)](y, out, cols, *ctx.strides, *out.stride(), 2.0, BLOCK=8)
        return out * g[:, None]


@triton.jit
def add_kernel(x, n, by, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + by, mask=i < n)


class SavedTogether(Function):
    """Backward writes to one saved tensor; another one lies in the same memory."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x[1])
        ctx.row = x[0]
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        x, row = ctx.saved_tensors
        add_kernel[(1,)](row, 4, 100.0, BLOCK=4)
        add_kernel[(1,)](ctx.row, 4, 10.0, BLOCK=4)
        return g * x


class NumberOfConstant(StraightThrough):
    """A kernel writes to a constant, by another name; then its number is asked for."""

    @staticmethod
    def forward(ctx, x):
        c = torch.tensor([1.0, 2.0])
        scale_kernel[(1,)](x, c, 2, 3.0, BLOCK=2)
        return x * c[1].item()


class AllConstant(StraightThrough):
    """A launch on constants of the rule alone."""

    @staticmethod
    def forward(ctx, x):
        c = torch.tensor([1.0, 2.0])
        add_kernel[(1,)](c, 2, 3.0, BLOCK=2)
        return x * c[1].item() + c[0]


class SavedNumber(Function):
    """An integer that is the value of a tensor is kept for backward."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n.item()
        return scaled(x, ctx.n)

    @staticmethod
    def backward(ctx, g):
        out = torch.zeros_like(g)
        scale_kernel[(1,)](g, out, ctx.n, 2.0, BLOCK=16)
        return out, None


# A number that is -0.0.
MinusZero = function(
    "MinusZero",
    StraightThrough,
    forward=lambda ctx, x: scaled(torch.ones_like(x), -0.0),
)


class SavesViewsBesideVmap(ScaleSeparately):
    """A vmap rule, and a saved tensor that is a part of its memory."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0][1:], output)


# A vmap rule, and a saved output.
SavesOutputBesideVmap = function(
    "SavesOutputBesideVmap",
    ScaleSeparately,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    backward=lambda ctx, g: scaled(g * ctx.saved_tensors[0], 1.0),
)


KERNELS = {"scale": scale_kernel}


class NotNamed(Function):
    """A kernel out of a dict, and a way around it that gives something else."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        try:
            KERNELS["scale"][(1,)](x, out, len(x), 3.0, BLOCK=16)
        except:  # noqa: E722  (as bad as it can be)
            return x * 100.0
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        KERNELS["scale"][(1,)](g, out, len(g), 5.0, BLOCK=16)
        return out


# The same in backward alone.
NotNamedInBackward = function(
    "NotNamedInBackward",
    Function,
    forward=lambda ctx, x: x * 3.0,
    backward=NotNamed.backward,
)
