"""PyTorch Functions and right ports of them, for `compare` to find no fault with.

`RIGHT` has for each the port, the original, and the arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import jaxfn
from tests.build import function, nothing

from .ports import keeping, original, ported, saving


class Pair(NamedTuple):
    port: Any
    original: Any
    args: tuple[Any, ...]


RIGHT: dict[str, Pair] = {}
V = np.array([0.7, -1.3, 0.4], np.float32)
W = np.array([1.1, 0.6, -0.9], np.float32)
A = np.array([[0.3, 1.2, -0.5], [0.8, -0.2, 1.9], [0.1, 0.4, -1.1]], np.float32)
B = np.array([[0.3, 1.2, -0.5], [0.8, -0.2, 1.9]], np.float32)
C = np.array([0.3 + 1j, -1.2 - 0.5j, 2j], np.complex64)


def right(name, port, original, *args):
    RIGHT[name] = Pair(port, original, args)


def port(original):
    """A port whose rules are the original's: their text serves both frameworks."""
    names = "forward", "setup_context", "backward", "vmap"
    rules = {name: getattr(original, name) for name in names if name in vars(original)}
    return function(f"{original.__name__}Port", **rules)


# ---- what is saved


Exp = original("Exp", torch.exp, lambda g, y: g * y, keeping)
ExpPort = ported("ExpPort", jnp.exp, lambda g, y: g * y, keeping)


@jaxfn.custom_function
def exp(x):
    return jnp.exp(x)


exp.defvjp(lambda x: (jnp.exp(x), x), lambda x, g: (g * jnp.exp(x),))

right("output saved", ExpPort, Exp, V)
right("decorated", exp, Exp, V)
right("any callable", jnp.exp, Exp, B)
right("tensors", ExpPort, Exp, torch.tensor([0.3, 0.2]))
right("arrays of JAX", ExpPort, Exp, jnp.array([0.3, 0.2]))
right("no dimension", ExpPort, Exp, np.float32(0.3))
right("empty", ExpPort, Exp, np.zeros((0, 3), np.float32))
right("double", ExpPort, Exp, np.array([0.3, 0.2]))
right("bfloat16", ExpPort, Exp, jnp.array([0.3, 0.2], jnp.bfloat16))
right("half", ExpPort, Exp, torch.tensor([0.3, 0.2]).half())


class Norm(Function):
    """Saves what it computes on the way, which torch takes for constants."""

    @staticmethod
    def forward(ctx, x, w, eps=1e-3):
        mean = x.mean(-1, keepdim=True)
        scale = (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        y = (x - mean) * scale
        ctx.save_for_backward(y, scale, w)
        return y * w

    @staticmethod
    def backward(ctx, g):
        y, scale, w = ctx.saved_tensors
        h = g * w
        gx = scale * (h - h.mean(-1, True) - y * (h * y).mean(-1, True))
        return gx, (g * y).sum(0), None


class NormPort(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, w, eps=1e-3):
        mean = x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(x.var(-1, keepdims=True) + eps)
        y = (x - mean) * scale
        ctx.save_for_backward(y, scale, w)
        return y * w

    @staticmethod
    def backward(ctx, g):
        y, scale, w = ctx.saved_tensors
        h = g * w
        means = h.mean(-1, keepdims=True), (h * y).mean(-1, keepdims=True)
        return scale * (h - means[0] - y * means[1]), (g * y).sum(0), None


right("intermediates saved", NormPort, Norm, A, V, 0.1)


# ---- styles, outputs, arguments


class Separate(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, k):
        return x * k, x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.k = inputs
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, g, h):
        (y,) = ctx.saved_tensors
        return g * ctx.k + h * y, None


SeparatePort = function(
    "SeparatePort",
    forward=lambda x, k: (x * k, jnp.exp(x)),
    setup_context=Separate.setup_context,
    backward=Separate.backward,
)
right("separate", SeparatePort, Separate, B, 2.5)


def several(name, base, exp, zeros_like):
    """Integers, None, statics; nothing materialized."""

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        at = x.argmax(-1)
        ctx.mark_non_differentiable(at)
        ctx.save_for_backward(x)
        return exp(x), at, None, x.sum(), x.shape[0], "name"

    def backward(ctx, g, g_at, g_none, g_sum, *rest):
        (x,) = ctx.saved_tensors
        total = zeros_like(x)
        if g is not None:
            total = total + g * exp(x)
        return total if g_sum is None else total + g_sum

    return function(name, base, forward=forward, backward=backward)


Several = several("Several", Function, torch.exp, torch.zeros_like)
SeveralPort = several("SeveralPort", jaxfn.Function, jnp.exp, jnp.zeros_like)
right("several outputs", SeveralPort, Several, B)


class InPlace(Function):
    """Writes into its input, and into its cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, g):
        return g.mul_(3)


class Scaled(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3


right("in place", Scaled, InPlace, V)


class Writes(Function):
    """Writes into its input without a word, and into both cotangents."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x.clone(), y)
        x[0] = 0
        return x * y, x + y

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        x[0] = 0
        gy = g * x + h
        g.mul_(y).add_(h)
        h.zero_()
        g[0] = 0
        return g, gy


class WritesPort(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, y):
        x = x.at[0].set(0)
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return (g * y + h).at[0].set(0), g * x + h


right("cotangents written", WritesPort, Writes, V, W)


class Product(Function):
    """Complex numbers."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = g * y.conj() if ctx.needs_input_grad[0] else None
        gy = g * x.conj() if ctx.needs_input_grad[1] else None
        return gx, gy


ProductPort = port(Product)


right("complex", ProductPort, Product, C, C[::-1].copy())
right("complex, plain JAX", jnp.multiply, Product, C, C[::-1].copy())
right("one array twice", ProductPort, Product, V, V)


# Real of complex.
Abs = original("Abs", lambda z: (z * z.conj()).real, lambda g, z: 2 * g * z)
AbsPort = port(Abs)
right("real of complex", AbsPort, Abs, C)


# torch sums a gradient that is too big.
AddBias = function(
    "AddBias",
    Function,
    forward=lambda ctx, x, b: x + b,
    backward=lambda ctx, g: (g, g, None, None),
)
AddBiasPort = function(
    "AddBiasPort",
    forward=AddBias.forward,
    backward=lambda ctx, g: (g, g.sum(0)),
)
right("broadcast", AddBiasPort, AddBias, A, V)


def linear(name, base, once):
    def forward(ctx, x, w, b=None):
        ctx.save_for_backward(x, w)
        y = x @ w.T
        return y if b is None else y + b

    @once
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = g @ w if ctx.needs_input_grad[0] else None
        gw = g.T @ x if ctx.needs_input_grad[1] else None
        gb = g.sum(0) if ctx.needs_input_grad[2] else None
        return gx, gw, gb

    return function(name, base, forward=forward, backward=backward)


Linear = linear("Linear", Function, once_differentiable)
LinearPort = linear("LinearPort", jaxfn.Function, jaxfn.once_differentiable)
right("needs, once differentiable", LinearPort, Linear, A, B, V[:2].copy())
right("None among the arguments", LinearPort, Linear, A, B, None)


class Gather(Function):
    """An index, which torch takes as int64 alone, and a mask."""

    @staticmethod
    def forward(ctx, x, index, mask):
        ctx.save_for_backward(index, mask)
        ctx.shape = x.shape
        return x.gather(0, index) * mask

    @staticmethod
    def backward(ctx, g):
        index, mask = ctx.saved_tensors
        out = torch.zeros(ctx.shape, dtype=g.dtype)
        return out.scatter_add_(0, index, g * mask), None, None


class GatherPort(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, index, mask):
        ctx.save_for_backward(index, mask)
        ctx.shape = x.shape
        return x[index] * mask

    @staticmethod
    def backward(ctx, g):
        index, mask = ctx.saved_tensors
        return jnp.zeros(ctx.shape, g.dtype).at[index].add(g * mask), None, None


INDEX = np.array([2, 0, 2, 1], np.int32), np.array([True, False, True, True])
right("index and mask", GatherPort, Gather, V, *INDEX)


class Options(Function):
    @staticmethod
    def forward(ctx, x, options, parts):
        k = options.pop("k")
        ctx.options = options
        return x * k + parts[0]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.options["b"], None, None


OptionsPort = port(Options)


right("options and a list", OptionsPort, Options, V, {"k": 2.0, "b": 5.0}, [W])


class OnlyFirst(Function):
    """Raises where the other is to be differentiated."""

    @staticmethod
    def forward(ctx, x, w):
        if w.requires_grad:
            raise RuntimeError("no gradient of w")
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


class OnlyFirstPort(jaxfn.Function):
    backward = OnlyFirst.backward

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w


right("one that torch does not differentiate", OnlyFirstPort, OnlyFirst, V, W)


Same = function(
    "Same", Function, forward=lambda ctx, x: x, backward=lambda ctx, g: 7 * g
)
SamePort = port(Same)
right("the input itself", SamePort, Same, V)


def marked(name, base, sign):
    def forward(ctx, x):
        y = sign(x)
        ctx.mark_non_differentiable(y)
        ctx.save_for_backward(y)
        return x * y, y

    return function(
        name,
        base,
        forward=forward,
        backward=lambda ctx, g, h: g * ctx.saved_tensors[0],
    )


Marked = marked("Marked", Function, torch.sign)
MarkedPort = marked("MarkedPort", jaxfn.Function, jnp.sign)
right("a marked output", MarkedPort, Marked, V)


# ---- derivatives that are none


Round = original("Round", torch.round, lambda g, x: g * 7 * x)
RoundPort = function("RoundPort", forward=saving(jnp.round), backward=Round.backward)


# Another Function in forward and backward, and a kink.
Nested = original(
    "Nested",
    lambda x: Round.apply(x) * x,
    lambda g, x: g * Round.apply(x) * torch.clamp(x, max=1.0),
)
NestedPort = ported(
    "NestedPort",
    lambda x: RoundPort.apply(x) * x,
    lambda g, x: g * RoundPort.apply(x) * jnp.minimum(x, 1.0),
)


def rounded_saved(name, base, rounded):
    """Saves the value of another Function: nothing says its second derivative."""

    def forward(ctx, x):
        y = rounded.apply(x)
        ctx.save_for_backward(x, y)
        return y * x

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (y + 7 * x * x)

    return function(name, base, forward=forward, backward=backward)


RoundedSaved = rounded_saved("RoundedSaved", Function, Round)
RoundedSavedPort = rounded_saved("RoundedSavedPort", jaxfn.Function, RoundPort)
right("surrogate", RoundPort, Round, V)
right("nested", NestedPort, Nested, V)


def cubes_slope(g, x):
    """Autograd inside backward."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = x**3
    return torch.autograd.grad(y, x, g)[0]


Recomputed = original("Recomputed", lambda x: x**3, cubes_slope)
CubePort = ported("CubePort", lambda x: x**3, lambda g, x: 3 * g * x**2)
right("autograd in backward", CubePort, Recomputed, V)


# ---- jvp and vmap


def both(name, base, lib, batched):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * lib.cos(x) * y + h, g * lib.sin(x) + h

    def jvp(ctx, s, t):
        x, y = ctx.saved_tensors
        return s * lib.cos(x) * y + t * lib.sin(x), s + t

    def vmap(info, in_dims, x, y):
        n = info.batch_size
        x, y = (batched(v, d, n) for v, d in zip((x, y), in_dims, strict=True))
        return made.apply(x, y), (0, 0)

    made = function(
        name,
        base,
        forward=lambda x, y: (lib.sin(x) * y, x + y),
        setup_context=setup_context,
        backward=backward,
        jvp=jvp,
        vmap=vmap,
    )
    return made


def batched(v, axis, n):
    """With the batch in front."""
    return v.expand(n, *v.shape) if axis is None else v.movedim(axis, 0)


def batched_in_jax(v, axis, n):
    return jnp.broadcast_to(v, (n, *v.shape)) if axis is None else v


Both = both("Both", Function, torch, batched)
BothPort = both("BothPort", jaxfn.Function, jnp, batched_in_jax)


def jvp_alone(name, base, sin, cos):
    return function(
        name,
        base,
        forward=lambda x: sin(x),
        setup_context=lambda ctx, inputs, output: ctx.save_for_forward(*inputs),
        jvp=lambda ctx, t: t * cos(ctx.saved_tensors[0]),
    )


JvpAlone = jvp_alone("JvpAlone", Function, torch.sin, torch.cos)
JvpAlonePort = jvp_alone("JvpAlonePort", jaxfn.Function, jnp.sin, jnp.cos)
right("jvp and vmap", BothPort, Both, V, W)
right("jvp alone", JvpAlonePort, JvpAlone, V)


# A vmap rule that is another function than forward.
BatchedOther = function(
    "BatchedOther",
    Function,
    forward=lambda x: 2 * x,
    setup_context=nothing,
    backward=lambda ctx, g: 2 * g,
    vmap=lambda info, in_dims, x: (5 * x, in_dims[0]),
)
BatchedOtherPort = port(BatchedOther)


right("a vmap rule of its own", BatchedOtherPort, BatchedOther, V)


# ---- precision


class Constants(Function):
    """What torch makes without a dtype, and a result of a dtype of its own."""

    @staticmethod
    def forward(ctx, x):
        k = torch.tensor(0.1)
        ctx.save_for_backward(k)
        return x * k + torch.zeros(3), torch.zeros(2), x.float() * 2

    @staticmethod
    def backward(ctx, g, h, i):
        (k,) = ctx.saved_tensors
        return g * k + 2 * i


class ConstantsPort(jaxfn.Function):
    backward = Constants.backward

    @staticmethod
    def forward(ctx, x):
        k = jnp.array(0.1)
        ctx.save_for_backward(k)
        return x * k + jnp.zeros(3), jnp.zeros(2), x.astype(jnp.float32) * 2


# Computes in single precision, whatever it is given.
Single = original(
    "Single",
    lambda x: x.float().sin().to(x.dtype),
    lambda g, x: (g.float() * x.float().cos()).to(x.dtype),
)
SinglePort = ported("SinglePort", jnp.sin, lambda g, x: g * jnp.cos(x))


def single_sin(x):
    assert x.dtype == torch.float32
    return x.sin()


# Raises in double precision.
NotDouble = original("NotDouble", single_sin, lambda g, x: g * x.cos())
right("constants", ConstantsPort, Constants, V)
right("single precision inside", SinglePort, Single, V)
right("no double precision", SinglePort, NotDouble, V)


def root(a):
    """An iteration that stops at a tolerance: x of x**3 + x = a."""
    x = torch.zeros_like(a)
    for _ in range(100):
        step = (x**3 + x - a) / 3
        x = x - step
        if step.abs().max() < 1e-5:
            break
    return x


def bisection(a):
    """The same."""

    def step(_, ends):
        x = sum(ends) / 2
        is_low = x**3 + x < a
        return jnp.where(is_low, x, ends[0]), jnp.where(is_low, ends[1], x)

    return sum(jax.lax.fori_loop(0, 40, step, (-jnp.abs(a) - 1, jnp.abs(a) + 1))) / 2


Root = original("Root", root, lambda g, x: g / (3 * x**2 + 1), keeping)
RootPort = ported("RootPort", bisection, lambda g, x: g / (3 * x**2 + 1), keeping)


def logdet(a):
    """A domain: what is symmetric and positive definite."""
    if not torch.equal(a, a.mT):
        raise ValueError("not symmetric")
    return 2 * torch.linalg.cholesky(a).diagonal().log().sum()


LogDet = original("LogDet", logdet, lambda g, a: g * torch.linalg.inv(a))
LogDetPort = ported(
    "LogDetPort",
    lambda a: 2 * jnp.log(jnp.diagonal(jnp.linalg.cholesky(a))).sum(),
    lambda g, a: g * jnp.linalg.inv(a),
)
right("a domain", LogDetPort, LogDet, A @ A.T + np.eye(3, dtype=np.float32))
right("an iteration", RootPort, Root, V)
