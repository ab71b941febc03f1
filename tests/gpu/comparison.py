"""Functions of torch that launch Triton kernels: in JAX, in torch, and as a formula.

A Function runs in JAX by `from_torch`. Values and gradients are compared with a formula
in float64 and, if torch has CUDA, with the same class on the same GPU, where torch
launches the same kernels itself.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxfn.torch import from_torch
from tests.gpu.parts import Check, Figure, SkipError, error, expect

Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A Function with arguments and a formula.

    Attributes:
        name: Of the check.
        load: Gives the class: its package is imported when the check runs.
        make: Makes the arguments, on a CPU; they are small if its argument is true.
        formula: The outputs in plain torch, for arguments in float64.
        differentiate: Positions of the arguments that have gradients.
        most: The greatest error beside the formula.
        most_torch: The greatest error beside torch's own launches. These are the same
            kernels, but sums by atomics depend on the order, and tuners may choose
            other blocks.
        needs: Packages beside torch and triton.
        batch: Whether to try `vmap` of the gradient too.
    """

    name: str
    load: Callable[[], Any]
    make: Callable[[bool], list[Any]]
    formula: Callable[..., Any]
    differentiate: tuple[int, ...] = (0,)
    most: float = 1e-5
    most_torch: float = 1e-6
    needs: tuple[str, ...] = ()
    batch: bool = False


def checks(cases: Iterable[Case], small: bool) -> dict[str, Check]:
    """A check for each case."""
    return {case.name: functools.partial(check, case, small) for case in cases}


def expect_engine() -> None:
    """On a GPU kernels run through jax-triton."""
    if jax.default_backend() != "gpu":
        return
    before = os.environ.get("TRITON_CACHE_DIR")
    try:
        importlib.import_module("jax_triton")
    except ImportError as error:
        raise SkipError(f"needs jax_triton: {error}") from error
    finally:  # jax-triton changes it for all of Triton
        os.environ.pop("TRITON_CACHE_DIR", None)
        if before is not None:
            os.environ["TRITON_CACHE_DIR"] = before


def check(case: Case, small: bool) -> Figure:
    """Compare value and gradient."""
    expect_engine()
    lacking = [x for x in case.needs if importlib.util.find_spec(x) is None]
    if lacking:
        raise SkipError(f"needs {', '.join(lacking)}")
    torch.manual_seed(0)
    cls, args = case.load(), case.make(small)
    ours = in_jax(cls, case, args)
    numbers = _compare("formula", ours, by_formula(case, args), case.most)
    texts = [f"formula {_pair(numbers, 'formula')}"]
    if torch.cuda.is_available():
        found = _compare("torch", ours, in_torch(cls, case, args), case.most_torch)
        texts.append(f"torch {_pair(found, 'torch')}")
        numbers |= found
    else:
        texts.append("torch has no CUDA")
    if case.batch:
        numbers["vmap"] = _vmap(cls, case, args, case.make(small))
        texts.append(f"vmap {numbers['vmap']:.0e}")
    return Figure("error (value, gradient): " + "; ".join(texts), numbers)


def _pair(numbers: dict[str, float], of: str) -> str:
    return f"{numbers[of + ' value']:.0e}, {numbers[of + ' gradient']:.0e}"


def _compare(
    of: str, ours: tuple[Arrays, Arrays], other: tuple[Arrays, Arrays], most: float
) -> dict[str, float]:
    found = {}
    for what, got, expected in zip(("value", "gradient"), ours, other, strict=True):
        errors = [
            expect(f"{what} {i} beside {of}", error(x, y), most)
            for i, (x, y) in enumerate(zip(got, expected, strict=True))
        ]
        found[f"{of} {what}"] = max(errors)
    return found


# ---- three ways


def in_jax(cls: Any, case: Case, args: list[Any]) -> tuple[Arrays, Arrays]:
    """Outputs and gradients by `from_torch`, each compiled."""
    at, moving, whole = _placed(case, args)
    apply = from_torch(cls).apply
    outputs = jax.jit(lambda *xs: apply(*whole(xs)))(*moving)
    gradients = jax.jit(_gradient(apply, whole, at))(*moving)
    return _arrays(outputs), _arrays(gradients)


def _gradient(apply: Any, whole: Any, at: Any) -> Any:
    """A function of the tensors, to the gradients of the loss."""

    def loss(*moving: Any) -> Any:
        total = jnp.zeros(())
        for i, out in enumerate(jax.tree.leaves(apply(*whole(moving)))):
            if jnp.issubdtype(out.dtype, jnp.floating):
                total += (out.astype(jnp.float32) * _weights(out.shape, i)).sum()
        return total

    return jax.grad(loss, at)


def _placed(case: Case, args: list[Any]) -> tuple[tuple[int, ...], list[Any], Any]:
    """Tensors as arrays apart from the other arguments, which are no data for JAX.

    Returns:
        The places of the differentiated ones among the tensors, the arrays, and what
        puts arrays into the list of all arguments.
    """
    places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]

    def whole(moving: Any) -> list[Any]:
        full = list(args)
        for i, x in zip(places, moving, strict=True):
            full[i] = x
        return full

    at = tuple(places.index(i) for i in case.differentiate)
    return at, [to_jax(args[i]) for i in places], whole


def to_jax(x: torch.Tensor) -> jax.Array:
    """A tensor as an array of the same type, with integers of 32 bits."""
    if x.dtype == torch.bfloat16:
        return jnp.asarray(x.float().numpy(), jnp.bfloat16)
    if x.dtype == torch.int64:
        x = x.int()
    return jnp.asarray(x.numpy())


def by_formula(case: Case, args: list[Any]) -> tuple[Arrays, Arrays]:
    """Outputs and gradients of the formula, in float64 on the CPU."""
    exact = [x.double() if _is_float(x) else x for x in args]
    return _with_gradients(case.formula, case, exact)


def in_torch(cls: Any, case: Case, args: list[Any]) -> tuple[Arrays, Arrays]:
    """Outputs and gradients by torch on the GPU."""
    there = [x.cuda() if isinstance(x, torch.Tensor) else x for x in args]
    return _with_gradients(cls.apply, case, there)


def _with_gradients(f: Any, case: Case, args: list[Any]) -> tuple[Arrays, Arrays]:
    args = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    leaves = [args[i].requires_grad_() for i in case.differentiate]
    outputs = f(*args)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    total = 0
    for i, out in enumerate(outputs):
        if out.is_floating_point() and out.requires_grad:
            weights = torch.from_numpy(_weights(tuple(out.shape), i)).to(out.device)
            wide = out if out.dtype == torch.float64 else out.float()
            total = total + (wide * weights).sum()
    gradients = torch.autograd.grad(total, leaves)
    return _arrays(outputs), _arrays(gradients)


def _vmap(cls: Any, case: Case, *sets: list[Any]) -> float:
    """The error of `vmap` of the gradient of two sets of arguments."""
    apply = from_torch(cls).apply
    at, _, whole = _placed(case, sets[0])
    gradient = _gradient(apply, whole, at)
    moving = [_placed(case, args)[1] for args in sets]
    stacked = [jnp.stack(pair) for pair in zip(*moving, strict=True)]
    got = jax.tree.leaves(jax.jit(jax.vmap(gradient))(*stacked))
    one = jax.jit(gradient)
    each = [jax.tree.leaves(one(*arrays)) for arrays in moving]
    expected = [np.stack(_arrays(pair)) for pair in zip(*each, strict=True)]
    errors = [error(x, y) for x, y in zip(_arrays(got), expected, strict=True)]
    return expect("vmap beside a loop", max(errors), case.most_torch)


# ---- numbers


def _weights(shape: tuple[int, ...], shift: int) -> np.ndarray:
    """Cotangents that differ from each other."""
    count = int(np.prod(shape))
    return np.cos(1.3 * np.arange(count) + shift).reshape(shape).astype(np.float32)


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _arrays(values: Any) -> Arrays:
    """As float64, which has room for all types."""
    found = []
    for x in jax.tree.leaves(values):
        if isinstance(x, torch.Tensor):
            x = x.detach().cpu().double().numpy()
        found.append(np.asarray(x).astype(np.float64))
    return found
