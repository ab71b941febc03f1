"""One small API for both frameworks, so that one program can run in either."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn
from tests.build import function, nothing

from .core import attempt


class Framework:
    """What a program may use: this, and what `Torch` documents.

    Attributes:
        name: "torch" or "jaxfn".
        np: the array functions: `torch` or `jax.numpy`.
        nn: those of networks: `torch.nn.functional` or `jax.nn`.
        special: `torch.special` or `jax.scipy.special`.
        function: the module `autograd.function`.
        graph: the module `autograd.graph`.
        Function: the base class; and so on for the other public names.
    """

    name: str
    np: Any
    nn: Any
    special: Any
    amp: Any
    function: Any
    graph: Any
    Function: Any
    FunctionCtx: Any
    BackwardCFunction: Any
    InplaceFunction: Any
    NestedIOFunction: Any
    once_differentiable: Any
    gradcheck: Any
    gradgradcheck: Any

    attempt = staticmethod(attempt)

    def make(self, name: str = "MyF", base: Any = None, **members: Any) -> Any:
        """A Function class with these rules; plain functions become static."""
        return function(name, base or self.Function, **members)

    def separate(self, forward: Any, save: Any = nothing, **rules: Any) -> Any:
        """A Function in the separate style; `save` is its setup_context."""
        return self.make(forward=forward, setup_context=save, **rules)


class Torch(Framework):
    """PyTorch, by its eager engine (torch.func refuses much of what is tested)."""

    name = "torch"

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside torch itself
            import torch
            from torch.autograd import forward_ad, function

            with forward_ad.dual_level():  # imports more of torch, once
                forward_ad.make_dual(torch.ones(()), torch.ones(()))

        self.np = self.torch = torch
        self.nn, self.special = torch.nn.functional, torch.special
        self.amp = torch.amp
        self._ad = forward_ad
        self.function, self.graph = function, torch.autograd.graph
        self.Function = function.Function
        self.FunctionCtx = function.FunctionCtx
        self.BackwardCFunction = function.BackwardCFunction
        self.InplaceFunction = function.InplaceFunction
        self.NestedIOFunction = function.NestedIOFunction
        self.once_differentiable = function.once_differentiable
        self.gradcheck = torch.autograd.gradcheck
        self.gradgradcheck = torch.autograd.gradgradcheck

    def double(self) -> Any:
        """A context in which arrays may be float64."""
        return contextlib.nullcontext()

    def from_numpy(self, x: Any) -> Any:
        """An array with the dtype of `x`."""
        return self.torch.from_numpy(x)

    def array(self, value: Any, dtype: str = "float32") -> Any:
        """An array; nested lists of Python numbers are its value."""
        return self.torch.tensor(value, dtype=getattr(self.torch, dtype))

    def is_array(self, x: Any) -> bool:
        """Is it an array of this framework?"""
        return isinstance(x, self.torch.Tensor)

    def constant(self, x: Any) -> Any:
        """`x` without its derivative."""
        return x.detach()

    def leaf(self, x: Any) -> Any:
        """`x` as something to differentiate by."""
        if self.is_array(x) and (x.is_floating_point() or x.is_complex()):
            return x.detach().clone().requires_grad_()
        return x

    def total(self, out: Any) -> Any:
        """The sum of all outputs that have a gradient."""
        outs = [o for o in leaves(out) if self.is_array(o) and o.requires_grad]
        if not outs:
            raise RuntimeError("torch: no output requires grad")
        return sum(o.real.sum() for o in outs)

    def call(self, f: Callable[..., Any], *xs: Any) -> Any:
        """`f(*xs)`, in the mode that is being tested."""
        return f(*xs)

    def _grads(self, total: Any, xs: Sequence[Any], **options: Any) -> list[Any]:
        moving = [x for x in xs if self.is_array(x) and x.requires_grad]
        found = iter(
            self.torch.autograd.grad(total, moving, allow_unused=True, **options)
        )
        return [
            next(found) if self.is_array(x) and x.requires_grad else None for x in xs
        ]

    def grad(self, f: Callable[..., Any], *xs: Any) -> Any:
        """The gradient of the sum of all outputs, for each argument.

        None for an integer argument. Undefined gradients are zeros: that torch has them
        is the matter of rows of their own.
        """
        xs = tuple(self.leaf(x) for x in xs)
        return self._grads(self.total(f(*xs)), xs, materialize_grads=True)

    def grad2(self, f: Callable[..., Any], *xs: Any) -> Any:
        """The gradients of the sum of all gradients."""
        xs = tuple(self.leaf(x) for x in xs)
        first = self._grads(self.total(f(*xs)), xs, create_graph=True)
        return self._grads(self.total(first), xs, materialize_grads=True)

    def func_grad(self, f: Callable[..., Any], *xs: Any) -> Any:
        """`grad`, by torch.func in torch."""

        def total(*xs: Any) -> Any:
            return sum(o.sum() for o in leaves(f(*xs)) if o.requires_grad)

        return list(self.torch.func.grad(total, tuple(range(len(xs))))(*xs))

    def pull_twice(self, f: Callable[..., Any], x: Any, *, retain: bool) -> Any:
        """The gradient by one record of the call, used twice."""
        x = self.leaf(x)
        y = f(x)
        ones = self.torch.ones_like(y)
        return [
            self.torch.autograd.grad(y, x, ones, retain_graph=retain)[0]
            for _ in range(2)
        ]

    def cast(self, x: Any, dtype: str) -> Any:
        """`x` with another dtype."""
        return x.to(getattr(self.torch, dtype))

    def add(self, x: Any, y: Any) -> Any:
        """`x + y`, written into `x` where arrays can change."""
        return x.add_(y)

    def take(self, x: Any, index: Any, axis: int) -> Any:
        """The elements of `x` at an index for each place of the other axes."""
        return self.torch.take_along_dim(x, index, axis)

    def add_at(self, n: int, index: Any, rows: Any) -> Any:
        """`n` rows of zeros, to which these are added at an index."""
        return rows.new_zeros(n, *rows.shape[1:]).index_add(0, index, rows)

    def repeat(self, n: int, f: Callable[[Any], Any], x: Any) -> Any:
        """`f(f(... f(x)))`, in a loop."""
        for _ in range(n):
            x = f(x)
        return x

    def scan(self, f: Any, start: Any, xs: Any, *, reverse: bool = False) -> Any:
        """`jax.lax.scan`."""
        found = []
        rows = list(zip(*xs, strict=True))
        for row in reversed(rows) if reverse else rows:
            start, out = f(start, row)
            found.append(out)
        columns = zip(*(reversed(found) if reverse else found), strict=True)
        return start, tuple(self.torch.stack(column) for column in columns)

    def pullback(self, f: Callable[..., Any], *xs: Any) -> tuple[Any, Any]:
        """The outputs of `f`, and what pulls cotangents back: `jax.vjp`."""
        xs = tuple(x.detach().requires_grad_() for x in xs)
        with self.torch.enable_grad():
            outs = f(*xs)
        values = [x.detach() for x in leaves(outs)]
        return (
            tuple(values) if isinstance(outs, tuple) else values[0],
            lambda cts: self.torch.autograd.grad(outs, xs, cts),
        )

    def vjp(self, f: Callable[..., Any], xs: Sequence[Any], cts: Any) -> Any:
        """The cotangents of the arguments for these of the outputs (None: not used)."""
        xs = tuple(self.leaf(x) for x in xs)
        pairs = [
            (o, ct)
            for o, ct in zip(leaves(f(*xs)), leaves(cts), strict=True)
            if ct is not None
        ]
        outs, given = zip(*pairs, strict=True)
        return list(self.torch.autograd.grad(outs, xs, given, materialize_grads=True))

    def jvp(self, f: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> Any:
        """The tangents of the outputs for these of the arguments (None: a constant)."""
        with self._ad.dual_level():
            duals = [
                x if t is None else self._ad.make_dual(x, t)
                for x, t in zip(xs, ts, strict=True)
            ]
            out = f(*duals)
            return [self._ad.unpack_dual(o).tangent for o in leaves(out)]


class Jaxfn(Framework):
    """jaxfn, in one of the modes."""

    name = "jaxfn"
    np = jnp
    nn, special = jax.nn, jax.scipy.special
    amp = jaxfn.amp
    function, graph = jaxfn.autograd.function, jaxfn.autograd.graph
    Function = jaxfn.Function
    FunctionCtx = jaxfn.FunctionCtx
    BackwardCFunction = jaxfn.BackwardCFunction
    InplaceFunction = jaxfn.InplaceFunction
    NestedIOFunction = jaxfn.NestedIOFunction
    once_differentiable = staticmethod(jaxfn.once_differentiable)
    gradcheck = staticmethod(jaxfn.autograd.gradcheck)
    gradgradcheck = staticmethod(jaxfn.autograd.gradgradcheck)

    def __init__(self, mode: str = "eager") -> None:
        self.mode = mode

    def double(self) -> Any:
        return jax.enable_x64(True)

    def from_numpy(self, x: Any) -> Any:
        return jnp.asarray(x)

    def constant(self, x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    def leaf(self, x: Any) -> Any:
        return x

    def array(self, value: Any, dtype: str = "float32") -> Any:
        return jnp.asarray(value, dtype)

    def is_array(self, x: Any) -> bool:
        return isinstance(x, jax.Array)

    def call(self, f: Callable[..., Any], *xs: Any) -> Any:
        if self.mode == "jit":
            return jax.jit(f)(*xs)
        if self.mode == "vmap":
            twice = [jax.tree.map(lambda x: jnp.stack([x, x]), x) for x in xs]
            return jax.tree.map(lambda x: x[1], jax.vmap(f, axis_size=2)(*twice))
        return f(*xs)

    def _gradient(self, f: Callable[..., Any], xs: Sequence[Any]) -> Any:
        def total(*moving: Any) -> Any:
            found = iter(moving)
            args = [next(found) if _moves(x) else x for x in xs]
            outs = [o for o in leaves(f(*args)) if _moves(o)]
            return sum((o.real.sum() for o in outs), jnp.float32(0))

        moving = [x for x in xs if _moves(x)]
        found = iter(jax.grad(total, tuple(range(len(moving))))(*moving))
        return [next(found) if _moves(x) else None for x in xs]

    def grad(self, f: Callable[..., Any], *xs: Any) -> Any:
        return self.call(lambda *xs: self._gradient(f, xs), *xs)

    def grad2(self, f: Callable[..., Any], *xs: Any) -> Any:
        def first(*xs: Any) -> Any:
            return self._gradient(f, xs)

        return self.call(lambda *xs: self._gradient(first, xs), *xs)

    func_grad = grad

    def pull_twice(self, f: Callable[..., Any], x: Any, *, retain: bool) -> Any:
        def run(x: Any) -> Any:
            y, pull = jax.vjp(f, x)
            return [pull(jnp.ones_like(y))[0] for _ in range(2)]

        return self.call(run, x)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def take(self, x: Any, index: Any, axis: int) -> Any:
        return jnp.take_along_axis(x, index, axis)

    def add_at(self, n: int, index: Any, rows: Any) -> Any:
        return jnp.zeros((n, *rows.shape[1:]), rows.dtype).at[index].add(rows)

    def repeat(self, n: int, f: Callable[[Any], Any], x: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, x: f(x), x)

    def scan(self, f: Any, start: Any, xs: Any, *, reverse: bool = False) -> Any:
        return jax.lax.scan(f, start, xs, reverse=reverse)

    def pullback(self, f: Callable[..., Any], *xs: Any) -> tuple[Any, Any]:
        return jax.vjp(f, *xs)

    def vjp(self, f: Callable[..., Any], xs: Sequence[Any], cts: Any) -> Any:
        def run(*xs: Any) -> Any:
            out, pull = jax.vjp(lambda *xs: leaves(f(*xs)), *xs)
            given = [
                jnp.zeros_like(o) if ct is None else ct
                for o, ct in zip(out, leaves(cts), strict=True)
            ]
            return list(pull(given))

        return self.call(run, *xs)

    def jvp(self, f: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> Any:
        moving = [i for i, t in enumerate(ts) if t is not None]

        def run(xs: Any, given: Any) -> Any:
            def of_moving(*values: Any) -> Any:
                args = list(xs)
                for i, x in zip(moving, values, strict=True):
                    args[i] = x
                return leaves(f(*args))

            return jax.jvp(of_moving, [xs[i] for i in moving], given)[1]

        return self.call(run, list(xs), [ts[i] for i in moving])


def _moves(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)


def leaves(out: Any) -> list[Any]:
    """The parts of an output, in order; None is one of them."""
    if isinstance(out, (tuple, list)):
        return [x for part in out for x in leaves(part)]
    if isinstance(out, dict):
        return [x for part in out.values() for x in leaves(part)]
    return [out]


@functools.cache
def torch() -> Torch:
    """PyTorch, imported once."""
    return Torch()
