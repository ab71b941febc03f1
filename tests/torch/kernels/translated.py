"""Functions to translate, one for each thing that a rule does around a launch."""

import functools

import torch
import triton
import triton.language as tl
from torch.autograd import Function

FACTOR: tl.constexpr = tl.constexpr(3.0)
WARPS = [1, 2] if torch.version.hip is None else [4]


@triton.jit
def times(x, by):
    return x * by


@triton.jit
def scale_kernel(x, y, n, by, BLOCK: tl.constexpr):
    """y = by * x."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # a comment that stays
    tl.store(y + i, times(tl.load(x + i, mask=i < n), by), mask=i < n)


@triton.autotune([triton.Config({"BLOCK": 8}, num_warps=w) for w in WARPS], key=["n"])
@triton.heuristics({"EXACT": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x, y, n, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i) if EXACT else tl.load(x + i, mask=i < n)
    tl.store(y + i, v * FACTOR, mask=i < n)


@triton.jit
def two_kernel(x, y, z, n, BLOCK: tl.constexpr, SECOND: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v + 1.0, mask=i < n)
    if SECOND:
        tl.store(z + i, v * v, mask=i < n)


@triton.jit
def add_kernel(x, n, by, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + by, mask=i < n)


@triton.jit
def rows_kernel(x, y, cols, xr, xc, yr, yc, BLOCK: tl.constexpr):
    i, j = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + i * xr + j * xc, mask=j < cols)
    tl.store(y + i * yr + j * yc, v * 2.0, mask=j < cols)


@triton.jit
def twice_kernel(x, y, n):
    for i in range(n):
        tl.store(y + i, tl.load(x) * 2.0)


def contiguous(function):
    """A decorator as packages have it."""

    @functools.wraps(function)
    def wrapper(ctx, *args):
        args = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in args]
        with torch.cuda.device(args[0].device.index):
            return function(ctx, *args)

    return wrapper


def doubling(function):
    @functools.wraps(function)
    def wrapper(ctx, *args):
        return 2 * function(ctx, *args)

    return wrapper


def widening(function):
    """A decorator that changes arguments of one dtype."""

    @functools.wraps(function)
    def wrapper(ctx, *args):
        given = [x.float() if x.dtype == torch.float16 else x for x in args]
        return function(ctx, *given)

    return wrapper


def checking(function):
    """A decorator that accepts one number of axes and one dtype."""

    @functools.wraps(function)
    def wrapper(ctx, x):
        assert (x.ndim, x.dtype) == (3, torch.float32)
        return function(ctx, x)

    return wrapper


def remembering_shapes(function):
    """A decorator that takes tensors of one shape for one tensor."""
    found = {}

    @functools.wraps(function)
    def wrapper(ctx, *args):
        key = tuple(x.shape for x in args)
        if key not in found:
            found[key] = function(ctx, *args)
        return found[key]

    return wrapper


def nameless(function):
    """A decorator from which nothing leads to the function."""
    return lambda *args: function(*args)


def remembering(function):
    """A decorator that returns the last result again for the same arguments."""
    last = []

    @functools.wraps(function)
    def wrapper(*args):
        if not last or any(a is not b for a, b in zip(args, last[0], strict=True)):
            last[:] = [args, function(*args)]
        return last[1]

    return wrapper


class Written(Function):
    """An output that a kernel only writes; backward writes to its gradient."""

    @staticmethod
    @contiguous
    def forward(ctx, x):
        y = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), 8),)](x, y, x.numel(), 3.0, BLOCK=8)
        return y

    @staticmethod
    @contiguous
    def backward(ctx, g):
        scale_kernel[(1,)](g, g, g.numel(), 3.0, BLOCK=16, num_warps=2)
        return g


class Tripled(Function):
    """The gradient of three times x."""

    @staticmethod
    def backward(ctx, g):
        return 3.0 * g


class Doubled(Tripled):
    @staticmethod
    @doubling
    def forward(ctx, x):
        return scaled(x)


class Widened(Tripled):
    """Any number of arguments."""

    @staticmethod
    @widening
    def forward(ctx, *xs):
        return scaled(xs[0])


class Many(Tripled):
    @staticmethod
    @contiguous
    def forward(ctx, *xs):
        return scaled(xs[0])


class Checked(Tripled):
    @staticmethod
    @checking
    def forward(ctx, x):
        return scaled(x)


class RemembersShapes(Tripled):
    @staticmethod
    @remembering_shapes
    def forward(ctx, x):
        return scaled(x)


class Nameless(Tripled):
    @staticmethod
    @nameless
    def forward(ctx, x):
        return scaled(x)


class Unreached(Tripled):
    """A decorated helper that no run reaches."""

    @staticmethod
    def forward(ctx, x, offset=None):
        y = scaled(x)
        if offset is not None:
            y = y + (total_of(offset) + 1).div(2, rounding_mode="floor")
        return y


@remembering
def total_of(offset: torch.Tensor) -> torch.Tensor:
    return offset.sum()


def scaled(x):
    y = torch.empty_like(x)
    scale_kernel[(1,)](x, y, x.numel(), 3.0, BLOCK=16)
    return y


class Flagged(Function):
    """A kernel writes to one of its arrays only if a flag says so."""

    @staticmethod
    def forward(ctx, x):
        y, _ = with_square(x, False)
        return y

    @staticmethod
    def backward(ctx, g):
        y, square = with_square(g, True)
        return y - 1.0 + square


def with_square(x, second):
    y = torch.empty_like(x)
    squared_output = torch.empty_like(x)
    two_kernel[(1,)](x, y, squared_output, x.numel(), BLOCK=16, SECOND=second)
    return y, squared_output


def kind():
    return "cuda" if torch.cuda.is_available() else "xpu"


class AsksOnce(Tripled):
    """A name has the answer of the machine."""

    @staticmethod
    def forward(ctx, x):
        device = kind()
        if not device != "xpu":  # noqa: SIM202
            count = torch.xpu.get_device_properties(x.device).gpu_subslice_count
        elif "xpu" == device:  # noqa: SIM300
            count = torch.xpu.get_device_properties(x.device).gpu_eu_count
        elif device == "cuda":
            count = torch.cuda.get_device_properties(x.device).multi_processor_count
        y = torch.empty(count, *x.shape, device=x.device)
        scale_kernel[(1,)](x, y, x.numel(), 3.0, BLOCK=16)
        return y[0] * 1


class AsksTwice(Tripled):
    """Names that an answer is bound to, and more; a number keeps its name."""

    @staticmethod
    def forward(ctx, x):
        first = second = kind()
        is_gpu = torch.cuda.is_available()
        is_gpu &= x.shape[0] > 100
        count = torch.cuda.get_device_properties(x.device).multi_processor_count
        y = scaled(x) if first == "cuda" and not is_gpu else x
        return y * (count // count) if second == "cuda" else x


class SavesItsOutput(Function):
    """PyTorch takes the output for a constant in a second derivative."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        scale_kernel[(1,)](x, y, x.numel(), 3.0, BLOCK=16)
        ctx.save_for_backward(y)
        return y + 1

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Tuned(Function):
    """An autotuned kernel with a heuristic, whose grid asks for the choice."""

    @staticmethod
    def forward(ctx, x):
        return launched(x)

    @staticmethod
    def backward(ctx, g):
        return launched(g.contiguous())


def launched(x):
    n = x.numel()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tuned_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    return y


class Two(Function):
    """Two outputs, one of them for a gradient alone."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        square = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        second = square is not None
        two_kernel[(1,)](x, y, square, x.shape[0], BLOCK=16, SECOND=second)
        ctx.save_for_backward(square)
        return y

    @staticmethod
    def backward(ctx, g):
        (square,) = ctx.saved_tensors
        add_kernel[(1,)](square, square.shape[0], 1.0, BLOCK=16)
        return g * square


class InPlace(Function):
    """A clone is updated; it is read before and after."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        before = y.sum()
        add_kernel[(1,)](y, y.numel(), 2.0, BLOCK=16)
        return y * before

    @staticmethod
    def backward(ctx, g):
        return g * 0.0


class ByRows(Function):
    """Strides of contiguous tensors, starred or not; a device is asked."""

    @staticmethod
    def forward(ctx, x):
        rows, cols = x.shape
        many = 1
        if x.device.type == "cuda":
            many = torch.cuda.get_device_properties(x.device).multi_processor_count
        elif x.device.type == "xpu":
            many = torch.xpu.get_device_properties(x.device).gpu_eu_count
        assert many > 0
        y = torch.empty_like(x)
        rows_kernel[(rows,)](
            x, y, cols, *x.stride(), y.stride(0), y.stride(-1), BLOCK=8
        )
        return y

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Transposed(Function):
    """A kernel gets a view with strides of its own."""

    @staticmethod
    def forward(ctx, x):
        x, y = x.t(), torch.empty(x.shape[1], x.shape[0])
        rows_kernel[(x.shape[0],)](
            x, y, x.shape[1], x.stride(0), x.stride(1), y.stride(0), 1, BLOCK=8
        )
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * g.t()


class TransposedIfAsked(Function):
    """The same, in a line that the arguments don't reach, and by the strides of x."""

    @staticmethod
    def forward(ctx, x, asked=False):
        y = torch.zeros(x.shape[1], x.shape[0])
        if asked:
            rows_kernel[(x.shape[1],)](
                x.t(), y, x.shape[0], x.stride(1), x.stride(0), y.stride(0), 1, BLOCK=8
            )
        return y

    @staticmethod
    def backward(ctx, g):
        return 0 * g.t(), None


class Bound(Tripled):
    """A launcher has a name of its own."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        launch = scale_kernel[(1,)]
        launch(x, y, x.numel(), 3.0, BLOCK=16)
        return y


class Run(Tripled):
    """A launch by a method."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        scale_kernel.run(x, y, x.numel(), 3.0, BLOCK=16, grid=(1,), warmup=False)
        return y


class ShareALine(Tripled):
    """A launch shares its line."""

    @staticmethod
    def forward(ctx, x):
        y = x * 0; scale_kernel[(1,)](x, y, 6, 3.0, BLOCK=16)  # fmt: skip # noqa: E702
        return y


class Multiplied(Tripled):
    """An operand is transposed, in a line that the arguments don't reach."""

    @staticmethod
    def forward(ctx, x, asked=False):
        y = scaled(x)
        if asked:
            y = y @ x.t()
        return y


class OfATotal(Function):
    """A kernel reads a tensor without axes."""

    @staticmethod
    def forward(ctx, x):
        total, y = x.sum(), torch.empty_like(x)
        twice_kernel[(1,)](total, y, x.numel())
        return y

    @staticmethod
    def backward(ctx, g):
        return (2.0 * g.sum()).expand(6)


class LosesAWrite(Function):
    """Another name shows what the kernel has written."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        part = y[:3]
        add_kernel[(1,)](y, y.numel(), 2.0, BLOCK=16)
        return part * 1

    @staticmethod
    def backward(ctx, g):
        return torch.cat([g, g])


def fill(x, y):
    scale_kernel[(1,)](x, y, x.numel(), 2.0, BLOCK=16)


FILLS = {"double": fill}


class LosesThroughADict(Written):
    """A helper out of a dict writes to its argument."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        FILLS["double"](x, y)
        return y


class LosesInAHelper(LosesAWrite):
    """The same; a helper has written."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        added(y, 2.0)
        return y[:3] * 1


def added(y, by):
    add_kernel[(1,)](y, y.numel(), by, BLOCK=16)


class LosesThroughTwoNames(LosesAWrite):
    """A helper gets one tensor twice, writes to it by one name, reads the other."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        return total(y, y)


def total(y, z):
    added(y, 2.0)
    return (y + z)[:3]


class PartWritten(Function):
    """Kernels fill parts of an array; torch has filled the rest."""

    @staticmethod
    def forward(ctx, x):
        n = x.shape[0]
        out = torch.ones(3 * n, dtype=x.dtype, device=x.device)
        scale_kernel[(1,)](x, out[:n], n, 2.0, BLOCK=16)
        scale_kernel[(1,)](x, out[n : 2 * n], n, 3.0, BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, g):
        a, b, _ = g.chunk(3)
        return 2.0 * a + 3.0 * b


class ByValue(Function):
    """Backward branches on a value, which JAX can't while it traces."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        scale_kernel[(1,)](x, y, x.numel(), 3.0, BLOCK=16)
        return y.sum()

    @staticmethod
    def backward(ctx, g):
        if torch.equal(g, torch.tensor(1.0, device=g.device)):
            return torch.full((6,), 3.0, dtype=g.dtype)
        return (3.0 * g).expand(6)


class IntoOutput(Function):
    """A helper makes its output, or gets it."""

    @staticmethod
    def forward(ctx, x):
        y = scaled_into(x, 2.0)
        z = scaled_into(x, 3.0, torch.ones_like(x))
        return y + z

    @staticmethod
    def backward(ctx, g):
        return scaled_into(g, 5.0)


def scaled_into(x, by, out=None):
    if out is None:
        out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, x.numel(), by, BLOCK=16)
    return out


class Overlapping(Function):
    """A kernel reads through one pointer what it has written through another."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        twice_kernel[(1,)](y, y, y.numel())
        return y

    @staticmethod
    def backward(ctx, g):
        return g * 0


class Chosen(Function):
    """One of two kernels, which is no name of the file."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        {"scale": scale_kernel}["scale"][(1,)](x, y, x.numel(), 3.0, BLOCK=16)
        return y

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class Hooked(Function):
    """Configurations with a hook."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        hooked_kernel[(1,)](x, y, x.numel())
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def zeroed(args):
    args["y"].zero_()


@triton.autotune([triton.Config({"BLOCK": 16}, pre_hook=zeroed)], key=[])
@triton.jit
def hooked_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(y + i, tl.load(x + i, mask=i < n), mask=i < n)
