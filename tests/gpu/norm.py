"""RMSNorm of 4096 rows of 4096 numbers: times of Liger's kernel in JAX, and of others.

Each call normalises several arrays, so that the time is that of the memory and not of
Python, and so that no array is still in the cache from the call before. The contestants
run in turns:

    from_torch   Liger's Function in JAX, under jax.jit
    XLA          jax.numpy, differentiated and compiled by JAX
    torch        Liger's Function in torch, launch by launch
    torch graph  the same launches, recorded as a CUDA graph: no Python at all
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from jaxfn.torch import from_torch
from tests.benchmarks.timing import Call, Effort, Times, interleaved
from tests.gpu.comparison import expect_engine, to_jax
from tests.gpu.parts import Check, Figure, SkipError, error, expect

OPTIONS = (1e-6, 0.0, "llama", False)
"""eps, offset, casting mode, and whether the gradient is written in place."""

DTYPES = {"float32": (torch.float32, 1e-5), "bfloat16": (torch.bfloat16, 2e-2)}
PASSES = {"forward": 2, "forward and backward": 5}
"""How often memory of the size of the array is read or written."""


def checks(small: bool) -> dict[str, Check]:
    """Values, then times, for each type."""
    found: dict[str, Check] = {}
    for name in DTYPES:
        found[f"{name}: values"] = functools.partial(_check_values, name, small)
        for what in PASSES:
            check = functools.partial(_time, name, what, small)
            found[f"{name}: {what}"] = check
    return found


def liger() -> Any:
    if importlib.util.find_spec("liger_kernel") is None:
        raise SkipError("needs liger_kernel")
    expect_engine()
    return importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction


def plain(x: Any, w: Any) -> Any:
    """RMSNorm in jax.numpy, with the casts of Liger's mode "llama"."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + OPTIONS[0])
    return (wide * scale).astype(x.dtype) * w


@functools.lru_cache(maxsize=1)
def _arrays(dtype: str, small: bool) -> tuple[list[Any], Any, list[Any]]:
    """Tensors: several arrays, the weights, and gradients of the outputs."""
    torch.manual_seed(0)
    size, count = (32, 1) if small else (4096, 8)

    def draw() -> list[Any]:
        return [torch.randn(size, size).to(DTYPES[dtype][0]) for _ in range(count)]

    return draw(), torch.rand(size).to(DTYPES[dtype][0]) + 0.5, draw()


def _check_values(dtype: str, small: bool) -> Figure:
    norm = from_torch(liger())
    xs, w, dys = _arrays(dtype, small)
    arrays = ([to_jax(xs[0])], to_jax(w), [to_jax(dys[0])])
    ours = jax.jit(functools.partial(_forward_and_backward, _ours(norm)))
    results = jax.tree.leaves(ours(*arrays))
    expected = jax.tree.leaves(_forward_and_backward(plain, *arrays))
    pairs = zip(("value", "dx", "dw"), results, expected, strict=True)
    numbers = {
        what: expect(what, error(x, y), DTYPES[dtype][1]) for what, x, y in pairs
    }
    texts = ", ".join(f"{what} {found:.1e}" for what, found in numbers.items())
    return Figure(f"error beside XLA: {texts}", numbers)


# ---- contestants: each makes a call without arguments


def _ours(norm: Any) -> Callable[..., Any]:
    return lambda x, w: norm.apply(x, w, *OPTIONS)


def _forward(f: Any, xs: Any, w: Any, dys: Any) -> Any:
    return [f(x, w) for x in xs]


def _forward_and_backward(f: Any, xs: Any, w: Any, dys: Any) -> Any:
    found = []
    for x, dy in zip(xs, dys, strict=True):
        y, pull = jax.vjp(f, x, w)
        found.append((y, *pull(dy)))
    return found


def _in_jax(f: Any, what: str, tensors: Any) -> Call:
    xs, w, dys = tensors
    program = _forward if what == "forward" else _forward_and_backward
    arrays = ([to_jax(x) for x in xs], to_jax(w), [to_jax(x) for x in dys])
    compiled = jax.jit(functools.partial(program, f)).lower(*arrays).compile()
    return Call(lambda _: compiled(*arrays))


def _in_torch(what: str, tensors: Any, graph: bool) -> Call:
    cls = liger()
    if not torch.cuda.is_available():
        raise SkipError("torch has no CUDA")
    with_gradient = what != "forward"
    xs, w, dys = tensors
    xs, w, dys = [x.cuda() for x in xs], w.cuda(), [x.cuda() for x in dys]
    for x in (*xs, w):
        x.requires_grad_(with_gradient)

    def run(_: Any = None) -> Any:
        found = []
        for x, dy in zip(xs, dys, strict=True):
            y = cls.apply(x, w, *OPTIONS)
            gradients = torch.autograd.grad(y, (x, w), dy) if with_gradient else ()
            found.append((y, *gradients))
        return found

    if graph:
        run = _recorded(run)
    return Call(run, finish=lambda _: torch.cuda.synchronize())


def _recorded(run: Callable[..., Any]) -> Callable[..., Any]:
    """The launches of a call as a CUDA graph, after three calls that compile."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay(_: Any = None, kept: Any = kept) -> Any:
        graph.replay()
        return kept

    return replay


def _time(dtype: str, what: str, small: bool) -> Figure:
    tensors = _arrays(dtype, small)
    makers: dict[str, Callable[[], Call]] = {
        "XLA": lambda: _in_jax(plain, what, tensors),
        "from_torch": lambda: _in_jax(_ours(from_torch(liger())), what, tensors),
        "torch": lambda: _in_torch(what, tensors, graph=False),
        "torch graph": lambda: _in_torch(what, tensors, graph=True),
    }
    calls, left_out, failed = {}, [], []
    for name, make in makers.items():
        try:
            calls[name] = make()
        except SkipError as reason:
            left_out.append(f"{name}: {reason}")
        except Exception as exception:  # noqa: BLE001  (the others are still measured)
            failed.append(f"{name}: {type(exception).__name__}: {exception}")
    rounds, seconds = (3, 0.0) if small else (15, 0.03)
    effort = Effort(rounds=rounds, seconds=seconds, clock=time.perf_counter)
    found = _figure(interleaved(calls, effort), tensors[0], what)
    text = "; ".join([found.text, *left_out, *failed])
    if failed:
        raise AssertionError(text)
    return Figure(text, found.numbers)


def _figure(times: Times, xs: list[Any], what: str) -> Figure:
    moved = PASSES[what] * xs[0].nbytes
    texts, numbers = [], {}
    for name in times.seconds:
        seconds = times.median(name) / len(xs)
        ratio = times.ratio(name, "XLA")
        speed = moved / seconds / 1e9
        texts.append(
            f"{name} {1e6 * seconds:.1f} us ({speed:.0f} GB/s, {ratio.median:.2f} XLA)"
        )
        numbers |= {f"{name} us": 1e6 * seconds, f"{name} GB/s": speed}
        numbers[f"{name} / XLA"] = ratio.median
    for other in ("torch", "torch graph"):
        if {"from_torch", other} <= set(times.seconds):
            ratio = times.ratio("from_torch", other).median
            texts.append(f"from_torch / {other} {ratio:.2f}")
            numbers[f"from_torch / {other}"] = ratio
    return Figure(", ".join(texts), numbers)
