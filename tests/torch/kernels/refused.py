"""Functions whose launches are refused, each with words that the message must have."""

import functools

import torch
import triton
import triton.language as tl
from torch.autograd import Function

from tests.torch.kernels.functions import StraightThrough, scale_kernel, scaled

CASES = {}


def refused(*words, args=1):
    """A forward that is refused with these words; its backward does nothing."""

    def put(forward):
        kind = type(
            forward.__name__,
            (Function,),
            {
                "forward": staticmethod(forward),
                "backward": staticmethod(lambda ctx, g: (g,) * args),
                "__module__": __name__,
            },
        )
        CASES[forward.__name__] = kind, words, args
        return kind

    return put


def launching(*words, args=1):
    """The same of a launch that fills the output."""

    def put(launch):
        def forward(ctx, x, *others):
            out = torch.empty_like(x)
            launch(x, *others, out)
            return out

        forward.__name__ = launch.__name__
        return refused(*words, args=args)(forward)

    return put


@launching("scale_kernel", "its grid is made of the value", "shapes", args=2)
def grid_of_values(x, n, out):
    scale_kernel[(n.sum().long().item(),)](x, out, x.numel(), 1.0, BLOCK=8)


@refused("scale_kernel", "its grid is made of the value", args=2)
def grid_function_of_values(ctx, x, n):
    out, many = torch.empty_like(x), n.sum().long().item()
    scale_kernel[lambda meta: (many,)](x, out, x.numel(), 1.0, BLOCK=8)
    return out


@launching("scale_kernel", "constexpr `BLOCK` is made of the value", args=2)
def constexpr_of_values(x, n, out):
    scale_kernel[(1,)](x, out, x.numel(), 1.0, BLOCK=n.sum().long().item())


@launching("scale_kernel", "option `num_warps` is made of the value", "static", args=2)
def option_of_values(x, n, out):
    warps = n.sum().long().item()
    scale_kernel[(1,)](x, out, x.numel(), 1.0, BLOCK=8, num_warps=warps)


@triton.jit
def descriptor_kernel(x, y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), x.load([0]))


class Descriptor:
    """What a TensorDescriptor of Triton has; its own asks for the tensor's address."""

    def __init__(self, x):
        self.base, self.shape, self.strides = x, list(x.shape), list(x.stride())
        self.block_shape = [8]


@launching("descriptor_kernel", "argument `x` is a Descriptor")
def descriptor(x, out):
    descriptor_kernel[(1,)](Descriptor(x), out, BLOCK=8)


@triton.jit
def tuple_kernel(xs, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(xs[0] + i) + tl.load(xs[1] + i))


@launching("tuple_kernel", "argument `xs` is a tuple", "an argument of its own")
def tuple_of_tensors(x, out):
    tuple_kernel[(1,)]((x, x), out, BLOCK=8)


@triton.jit
def hooked_kernel(x, y, n, by, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


hooked_kernel.add_pre_run_hook(lambda *args, **kwargs: None)


@launching("hooked_kernel", "hooks that run before each launch")
def pre_run_hook(x, out):
    hooked_kernel[(1,)](x, out, x.numel(), 2.0, BLOCK=8)


@triton.autotune(
    [
        triton.Config({"BLOCK": 8}, pre_hook=lambda args: args["y"].zero_()),
        triton.Config({"BLOCK": 16}),
    ],
    key=["n"],
)
@triton.jit
def differently_hooked_kernel(x, y, n, by, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


@launching("differently_hooked_kernel", "different pre_hooks")
def configs_with_different_hooks(x, out):
    differently_hooked_kernel[(1,)](x, out, x.numel(), 2.0)


HELD = torch.zeros(8)


@refused("a tensor that is not an argument")
def writes_to_what_it_holds(ctx, x):
    scale_kernel[(1,)](x, HELD, x.numel(), 2.0, BLOCK=8)
    return HELD.clone()


@refused("scale_kernel", "warmup")
def warmup(ctx, x):
    scale_kernel.warmup(x, x, x.numel(), 2.0, BLOCK=8, grid=(1,))
    return x.clone()


@torch.library.custom_op("jaxfn_tests::scaled_inside", mutates_args=())
def scaled_inside(x: torch.Tensor) -> torch.Tensor:
    return scaled(x, 2.0)


@scaled_inside.register_fake
def _(x):
    return torch.empty_like(x)


@refused("jaxfn_tests.scaled_inside", "jaxfn can't see")
def custom_op(ctx, x):
    return scaled(scaled_inside(x), 1.0)


@refused("one memory as torch.int32 and as torch.float32")
def two_dtypes(ctx, x):
    scale_kernel[(1,)](x, x.view(torch.int32), x.numel(), 2, BLOCK=8)
    return x.clone()


@refused("memory that no other tensor fills", "contiguous")
def gaps(ctx, x):
    out = torch.empty_strided((4, 2), (3, 1))
    scale_kernel[(1,)](x, out, x.numel(), 2.0, BLOCK=8)
    return out.reshape(8)


@functools.cache
def kept(n):
    return torch.arange(n) * 1.0


@triton.jit
def outside_kernel(x, y, at, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + at + i))


@launching("outside_kernel", "`x`", "8", "refused.py")
def reads_outside(x, out):
    outside_kernel[(1,)](x, out, 4, BLOCK=8)


@launching("outside_kernel", "`x`", "-3", "refused.py")
def reads_before(x, out):
    outside_kernel[(1,)](x, out, -3, BLOCK=8)


@refused("outside_kernel", "`y`", "refused.py")
def writes_outside(ctx, x):
    out = torch.empty(4)
    outside_kernel[(1,)](x, out, 0, BLOCK=8)
    return out.repeat(2)


@triton.jit
def assembly_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], tl.float32, True, 1
    )
    tl.store(y + i, v)


@launching("assembly_kernel", "assembly")
def inline_assembly(x, out):
    assembly_kernel[(1,)](x, out, BLOCK=8)


@triton.jit
def wrong_kernel(x, y, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 100, "too small")
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i))


@launching("wrong_kernel", "too small")
def does_not_compile(x, out):
    wrong_kernel[(1,)](x, out, BLOCK=8)


@launching("wrong_keyword", "unrecognised")
def wrong_keyword(x, out):
    scale_kernel[(1,)](x, out, x.numel(), 2.0, BLOCK=8, wrong_keyword=1)


@triton.jit
def other_kernel(x, y, n, by, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 4 * tl.load(x + i, mask=i < n), mask=i < n)


FACTOR = tl.constexpr(2.0)


@triton.jit
def global_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, FACTOR * tl.load(x + i))


class ReadsGlobal(StraightThrough):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        global_kernel[(1,)](x, out, BLOCK=8)
        return out


@triton.jit
def halves_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    low = tl.load(x.to(tl.pointer_type(tl.int32)) + 2 * i)
    tl.store(y + i, low.to(tl.float32))


@refused("halves_kernel", "reads memory as another type", "x64")
def recast(ctx, x):
    out, numbers = torch.empty_like(x), torch.arange(8)
    halves_kernel[(1,)](numbers, out, BLOCK=8)
    return out


def _interpreted():
    """A kernel that was made while TRITON_INTERPRET was set."""
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(scale_kernel.fn)


INTERPRETED = _interpreted()


@launching("scale_kernel", "TRITON_INTERPRET", "Unset the variable")
def interpreted_kernel(x, out):
    INTERPRETED[(1,)](x, out, x.numel(), 2.0, BLOCK=8)
