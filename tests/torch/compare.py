"""Is a Function of torch the same in JAX: value and gradient, in every placement?"""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jaxfn.torch
from jaxfn.torch import _ops as _table
from jaxfn.torch._base import TorchDispatchMode, has_draws, next_draw
from jaxfn.torch._base.dtypes import from_numpy, to_jax, to_jax_dtype, to_numpy
from jaxfn.torch._function.host_call import HostCall
from jaxfn.torch._trace.program import Type

MODES = ("eager", "jit", "vmap(grad)", "scan", "grad of scan")


def as_jax(x: Any) -> Any:
    """A dense tensor as an array; anything else as it is."""
    dense = isinstance(x, torch.Tensor) and x.layout is torch.strided
    return to_jax(x) if dense else x


def tensors(out: Any) -> list[Any]:
    outs = out if isinstance(out, tuple) else (out,)
    return [x for x in outs if isinstance(x, (torch.Tensor, jax.Array))]


def smooth(out: Any) -> list[Any]:
    """The outputs that can have a gradient."""
    return [x for x in tensors(out) if _is_inexact(x)]


def _is_inexact(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.is_floating_point() or x.is_complex()
    return jnp.issubdtype(x.dtype, jnp.inexact)


def error(ours: Sequence[Any], theirs: Sequence[Any], least: float = 1e-30) -> float:
    """The greatest difference, over the greatest entry of the array (or `least`)."""
    assert len(ours) == len(theirs)
    worst = 0.0
    for x, y in zip(ours, theirs, strict=True):
        x, y = np.asarray(x), to_numpy(y) if isinstance(y, torch.Tensor) else y
        assert x.shape == y.shape, (x.shape, y.shape)
        if x.size == 0:
            continue
        x, y = (np.asarray(v).astype(np.complex128) for v in (x, y))
        assert (np.isnan(x) == np.isnan(y)).all()
        same = (x == y) | np.isnan(x)
        gap = np.where(same, 0, np.abs(np.where(same, 0, x) - np.where(same, 0, y)))
        finite = np.abs(y[np.isfinite(y)])
        worst = max(worst, gap.max() / max(finite.max(initial=0), least))
    return float(worst)


class SameDraws(TorchDispatchMode):
    """torch draws what a traced rule draws in JAX: by the table's rows, from a key.

    Args:
        key: the key that `apply` gets.
        seed: where the draws of the rule begin, as the trace numbers them.
    """

    def __init__(self, key: Any, seed: int) -> None:
        super().__init__()
        self._key = key
        torch.default_generator.manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not has_draws(func):
            return func(*args, **kwargs)
        generator = torch.default_generator
        state = next_draw(generator)
        result = func(*args, **kwargs)
        generator.manual_seed(state)
        row = _table.find(_FUNCTIONAL.get(str(func), str(func).replace("_.", ".")))
        assert row is not None, func
        out = Type(tuple(result.shape), to_jax_dtype(result.dtype))
        arrays = [as_jax(x) for x in args]
        key = jax.random.fold_in(self._key, state)
        drawn = np.asarray(row(out, None, *arrays, key=key))
        return result.copy_(from_numpy(drawn).to(result.dtype))


_FUNCTIONAL = {
    "aten.normal_.default": "aten.normal_functional",
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.bernoulli_.Tensor": "aten.bernoulli.Tensor",
}


class Case:
    """A torch class with arguments.

    Args:
        cls: the class.
        args: of its apply, with tensors.
        diff: the arguments to differentiate by; None for all float tensors.
        how: options of `from_torch`.
    """

    def __init__(
        self, cls: Any, args: Sequence[Any], diff: Any = None, **how: Any
    ) -> None:
        self.cls, self.args = cls, list(args)
        floats = [
            i
            for i, x in enumerate(args)
            if isinstance(x, torch.Tensor)
            and x.layout is torch.strided
            and (x.is_floating_point() or x.is_complex())
        ]
        base = torch.autograd.Function
        if cls.backward is base.backward and cls.vjp is base.vjp:
            floats = []  # torch has no gradient of it either
        self.diff = list(floats if diff is None else diff)
        self.jax_args = [as_jax(x) for x in args]
        self.xs = [self.jax_args[i] for i in self.diff]
        self.made = jaxfn.torch.from_torch(cls, **how)
        self.key = jax.random.key(7) if how.get("random") else None

    def apply(self, *xs: Any) -> Any:
        args = list(self.jax_args)
        for i, x in zip(self.diff, xs, strict=True):
            args[i] = x
        return self.made.apply(*([] if self.key is None else [self.key]), *args)

    def _draws(self, rule: int) -> Any:
        """A context in which torch draws what JAX does; 1 is forward, 2 backward."""
        if self.key is None:
            return contextlib.nullcontext()
        bridge: Any = self.made.jaxfn_torch_bridge
        if any(isinstance(x, HostCall) for x in bridge._by_signature.values()):
            if rule == 1:  # torch's own draws, backward's after forward's
                data = np.asarray(jax.random.key_data(self.key)).tobytes()
                torch.manual_seed((zlib.crc32(data) + 1) & 0x7FFFFFFF)
            return contextlib.nullcontext()
        return SameDraws(self.key, rule)

    # ---- torch

    def torch_inputs(self) -> list[Any]:
        return [
            x.detach().clone().requires_grad_(i in self.diff)
            if isinstance(x, torch.Tensor) and x.layout is torch.strided
            else copy.copy(x)
            for i, x in enumerate(self.args)
        ]

    def in_torch(self) -> tuple[list[Any], list[Any]]:
        """Outputs and gradients."""
        leaves = self.torch_inputs()
        # Not the leaves themselves: a rule may write to its inputs.
        inputs = [x * 1 if i in self.diff else x for i, x in enumerate(leaves)]
        with self._draws(1):
            out = self.cls.apply(*inputs)
        outs = smooth(out)
        self.cts = [
            torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.dtype)
            for x in outs
        ]
        pairs = [(x, c) for x, c in zip(outs, self.cts, strict=True) if x.requires_grad]
        wanted = [leaves[i] for i in self.diff]
        if not wanted:
            return tensors(out), []
        with self._draws(2):
            found = torch.autograd.grad(
                [x for x, _ in pairs],
                wanted,
                [c.clone() for _, c in pairs],  # a rule may write to it
                allow_unused=True,
            )
        grads = [
            torch.zeros_like(x) if g is None else g
            for x, g in zip(wanted, found, strict=True)
        ]
        return tensors(out), grads

    # ---- JAX

    def loss(self, *xs: Any) -> Any:
        outs = smooth(self.apply(*xs))
        weights = [as_jax(c) for c in self.cts]
        return sum((x * w).sum() for x, w in zip(outs, weights, strict=True)).real

    def worst(self, modes: Sequence[str] = MODES) -> float:
        """The greatest difference from torch, in these placements."""
        if self.key is not None:
            self.apply(*self.xs)  # shows whether it runs on the host
        values, grads = self.in_torch()
        grads = [g.conj().resolve_conj() if g.is_complex() else g for g in grads]
        grad = jax.grad(self.loss, tuple(range(len(self.diff))))
        if not self.diff:
            grad = lambda: ()  # noqa: E731
            modes = [mode for mode in modes if "grad" not in mode]
        worst = 0.0
        if "eager" in modes:
            worst = max(worst, error(tensors(self.apply(*self.xs)), values))
            worst = max(worst, error(grad(*self.xs), grads))
        if "jit" in modes:
            worst = max(worst, error(tensors(jax.jit(self.apply)(*self.xs)), values))
            worst = max(worst, error(jax.jit(grad)(*self.xs), grads))
        if "vmap(grad)" in modes:
            batched = [jnp.stack([x, x]) for x in self.xs]
            found = jax.jit(jax.vmap(grad))(*batched)
            worst = max(worst, error([x[1] for x in found], grads))
        if "scan" in modes:
            found = jax.jit(self._scan)(*self.xs)[1]
            outs = [x for x in values if _is_inexact(x)]
            worst = max(worst, error([x[1] for x in found], outs))
        if "grad of scan" in modes:
            total = jax.grad(lambda *xs: self._scan(*xs)[0], range(len(self.diff)))
            found = jax.jit(total)(*self.xs)
            worst = max(worst, error([x / 2 for x in found], grads))
        return worst

    def _scan(self, *xs: Any) -> Any:
        def step(total: Any, _: Any) -> Any:
            return total + self.loss(*xs), smooth(self.apply(*xs))

        start = jnp.zeros((), jax.eval_shape(self.loss, *xs).dtype)
        return jax.lax.scan(step, start, None, length=2)

    def worst_second(self) -> float:
        """The greatest of `second_gaps`."""
        return max(self.second_gaps())

    def second_gaps(self) -> list[float]:
        """The differences of the gradients of the sum of all squared gradients.

        First by the arguments, then by the cotangents, on which gradients depend too
        where they don't depend on the arguments.
        """
        self.in_torch()
        leaves = self.torch_inputs()
        inputs = [x * 1 if i in self.diff else x for i, x in enumerate(leaves)]
        outs = smooth(self.cls.apply(*inputs))
        cts = [c.clone().requires_grad_() for c in self.cts]
        used = [i for i, x in enumerate(outs) if x.requires_grad]
        first = torch.autograd.grad(
            [outs[i] for i in used],
            [leaves[i] for i in self.diff],
            [cts[i] * 1 for i in used],
            create_graph=True,
            allow_unused=True,
        )
        total = sum((g.abs() ** 2).sum() for g in first if g is not None)
        wanted = [*[leaves[i] for i in self.diff], *cts]
        second = torch.autograd.grad(total, wanted, allow_unused=True)
        theirs = [
            torch.zeros_like(x) if g is None else g
            for x, g in zip(wanted, second, strict=True)
        ]
        for i in range(len(self.diff)):  # cotangents are conjugated twice
            theirs[i] = theirs[i].conj().resolve_conj()

        def square(xs: Any, ws: Any) -> Any:
            _, pull = jax.vjp(lambda *xs: tuple(smooth(self.apply(*xs))), *xs)
            ws = [w if i in used else jnp.zeros_like(w) for i, w in enumerate(ws)]
            return sum((jnp.abs(g) ** 2).sum() for g in pull(tuple(ws)))

        weights = [as_jax(c) for c in self.cts]
        by_x, by_ct = jax.jit(jax.grad(square, (0, 1)))(self.xs, weights)
        pairs = zip([*by_x, *by_ct], theirs, strict=True)
        return [error([ours], [true]) for ours, true in pairs]
