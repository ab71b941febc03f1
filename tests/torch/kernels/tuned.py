"""Kernels under triton.autotune and triton.heuristics, in all nestings."""

import torch
import triton
import triton.language as tl
from torch.autograd import Function

from tests.torch.kernels.functions import StraightThrough

HOOKS = []


def cleared(args):
    """What a configuration runs before the kernel: the output starts at zero."""
    HOOKS.append(set(args))
    args["y"].zero_()


@triton.autotune(
    [
        triton.Config({"BLOCK": 8, "TWICE": False}, num_warps=1, pre_hook=cleared),
        triton.Config({"BLOCK": 16, "TWICE": False}, num_warps=2, pre_hook=cleared),
    ],
    key=["n"],
)
@triton.jit
def added_kernel(x, y, n, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + i, tl.load(x + i, mask=i < n), mask=i < n)
    if TWICE:
        tl.atomic_add(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


class Hooked(StraightThrough):
    """x, added to an output that a hook has cleared."""

    @staticmethod
    def forward(ctx, x):
        out = torch.full_like(x, 100.0)
        added_kernel[grid](x, out, len(x))
        assert added_kernel.best_config.kwargs["BLOCK"] == 8
        return out


@triton.autotune(
    [
        triton.Config({"BLOCK": 2}),  # its assertion fails when it is compiled
        triton.Config({"BLOCK": 8}),
        triton.Config({"BLOCK": 16}),
    ],
    key=["n"],
    reset_to_zero=["y"],
    restore_value=["x"],
)
@triton.heuristics({"EXACT": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def doubled_kernel(x, y, n, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    tl.static_assert(BLOCK >= 4)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EXACT:
        tl.store(y + i, 2 * tl.load(x + i))
    else:
        tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


class OneFails(Function):
    """2 x, by a kernel one of whose configurations does not compile."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        doubled_kernel[grid](x, out, len(x))
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        doubled_kernel[grid](g, out, len(g))
        return out


def few(configs, args, **kwargs):
    """Prunes configurations by what the device has, as many packages do."""
    assert "x" in args
    assert kwargs["n"] > 0
    device = triton.runtime.driver.active.get_current_device()
    shared = triton.runtime.driver.active.utils.get_device_properties(device)
    assert shared["max_shared_mem"] > 0
    assert torch.cuda.get_device_capability()[0] >= 8
    return [c for c in configs if c.kwargs["BLOCK"] > 8]


@triton.heuristics({"BY": lambda args: 3 if args["flag"] else 4})
@triton.autotune(
    [triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})],
    key=["n"],
    prune_configs_by={"early_config_prune": few},
)
@triton.jit
def pruned_kernel(x, y, n, flag: tl.constexpr, BLOCK: tl.constexpr, BY: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, BY * tl.load(x + i, mask=i < n), mask=i < n)


class Pruned(Function):
    """3 x or 4 x, as a heuristic says of a flag."""

    @staticmethod
    def forward(ctx, x, flag):
        out = torch.empty_like(x)
        pruned_kernel[grid](x, out, n=len(x), flag=flag)
        return out

    @staticmethod
    def backward(ctx, g):
        return g, None


@triton.autotune(
    [
        triton.Config({"BLOCK": 8, "ALSO": False}),
        triton.Config({"BLOCK": 8, "ALSO": True}),
    ],
    key=["n"],
)
@triton.jit
def differing_kernel(x, y, z, n, BLOCK: tl.constexpr, ALSO: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
    if ALSO:
        tl.store(z + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


class Differing(Function):
    """2 x; one configuration writes to a second output too."""

    @staticmethod
    def forward(ctx, x):
        out, other = torch.empty_like(x), torch.full_like(x, 5.0)
        differing_kernel[grid](x, out, other, len(x))
        return out, other

    @staticmethod
    def backward(ctx, g, h):
        return g + h


@triton.jit
def named_kernel(x, y, n, num_warps, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n) * num_warps * num_stages
    tl.store(y + i, v, mask=i < n)


class NamedAsOptions(StraightThrough):
    """A kernel whose parameters have names of launch options."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        named_kernel[(1,)](x, out, len(x), num_warps=4, BLOCK=16, num_stages=2)
        return out


def cleared_if_split(args):
    """Clears the output for a configuration that adds to it; needs num_warps too."""
    assert args["num_warps"] > 0
    if args["SPLIT"] > 1:
        args["y"].zero_()


@triton.autotune(
    [
        triton.Config({"BLOCK": 2, "SPLIT": 1}, pre_hook=cleared_if_split),
        triton.Config({"BLOCK": 16, "SPLIT": 2}, pre_hook=cleared_if_split),
        triton.Config({"BLOCK": 32, "SPLIT": 1}, pre_hook=cleared_if_split),
    ],
    key=["n"],
)
@triton.jit
def split_kernel(x, y, n, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    tl.static_assert(BLOCK >= 4)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    if SPLIT > 1:
        tl.atomic_add(y + i, v, mask=i < n)
    else:
        tl.store(y + i, v, mask=i < n)


class FirstFails(StraightThrough):
    """x; the first configuration does not compile, and the hook depends on which."""

    @staticmethod
    def forward(ctx, x):
        out = torch.full_like(x, 9.0)
        split_kernel[(1,)](x, out, len(x))
        return out
