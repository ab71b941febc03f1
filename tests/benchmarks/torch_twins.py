"""Functions of the parity catalogue, in jaxfn and in torch, on the same inputs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks import peers
from tests.benchmarks.rows import Pair, Row, measured
from tests.benchmarks.timing import Call, Effort, Spread, Times, interleaved
from tests.parity.catalogue import FAMILIES
from tests.parity.catalogue.case import Case, Maker, normal, uniform
from tests.twins import shape

SIZES = (10_000, 10_000_000)
Fun = Callable[..., Any]
EAGER, COMPILED = "torch eager", "torch.compile"


def _same(count: int) -> Callable[[int], tuple[Maker, ...]]:
    return lambda n: tuple(normal(*shape(n)) for _ in range(count))


def _with_columns(count: int) -> Callable[[int], tuple[Maker, ...]]:
    return lambda n: (normal(*shape(n)), *[normal(shape(n)[1])] * count)


# name in the catalogue: the inputs, by number of elements
INPUTS: dict[str, Callable[[int], tuple[Maker, ...]]] = {
    "swish": _same(1),
    "mish": _same(1),
    "geglu": _same(2),
    "swiglu": _same(1),
    "layer_norm": _with_columns(2),
    "rms_norm": _with_columns(1),
    "normalise": _same(1),
    "log_sum_exp": _same(1),
    "smooth_l1": _same(2),
    "round": _same(1),
    "learned_step": lambda n: (normal(n, scale=2), uniform(0.3, 0.6)),
    "clamp_through": lambda n: (normal(n),),
    "fast_sigmoid": lambda n: (normal(n, scale=0.1),),
    "reverse": _same(1),
}
CASES = {c.name: c for cases in FAMILIES.values() for c in cases if c.name in INPUTS}


def data(case: Case, n: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and cotangents, in float32."""
    rng = case.rng("benchmark", 0)
    xs = [np.asarray(m(rng), np.float32) for m in INPUTS[case.name](n)]
    outs = jax.eval_shape(lambda *xs: jax.tree.leaves(case.jax(*xs)), *xs)
    return xs, [rng.normal(size=o.shape).astype(np.float32) for o in outs]


@dataclasses.dataclass(frozen=True)
class Twin:
    """A function of JAX, and that of torch (given torch), which compute the same."""

    jax: Fun
    torch: Fun


def step(twin: Twin | Case, *, backward: bool = True) -> Any:
    """Value and gradients as one program; or the value alone."""

    def forward(xs: list[Any], _: list[Any]) -> Any:
        return jax.tree.leaves(twin.jax(*xs)), ([],)

    def both(xs: list[Any], cts: list[Any]) -> Any:
        outs, pull = jax.vjp(lambda xs: jax.tree.leaves(twin.jax(*xs)), xs)
        return outs, pull(cts)

    return jax.jit(both if backward else forward)


def ours(
    twin: Twin | Case, xs: list[Any], cts: list[Any], *, backward: bool = True
) -> Call:
    """`step`, compiled once; everything is on the device."""
    run = step(twin, backward=backward)
    xs, cts = jax.tree.map(jnp.asarray, (xs, cts))
    return Call(lambda _: run(xs, cts))


def theirs(
    case: Twin | Case,
    xs: list[Any],
    cts: list[Any],
    device: str,
    *,
    fused: bool,
    threads: int,
    backward: bool = True,
) -> Call:
    """The same in torch: eager, or by `torch.compile`."""
    import torch

    torch.set_num_threads(threads)  # which torch.compile writes into its code

    def tensors(arrays: list[Any], *, grad: bool) -> list[Any]:
        found = [torch.tensor(np.asarray(x), device=device) for x in arrays]
        return [x.requires_grad_(grad) for x in found]

    f = case.torch(torch)
    if fused:
        torch._dynamo.reset()  # of another size, which would make this one dynamic
        f = torch.compile(f)
    xs, cts = tensors(xs, grad=backward), tensors(cts, grad=False)

    def run(_: Any) -> Any:
        outs = f(*xs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        return outs, torch.autograd.grad(outs, xs, cts) if backward else []

    def prepare() -> None:
        torch.set_num_threads(threads)

    return Call(run, prepare, finish=lambda _: _wait(device))


def _wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def agree(mine: Call, other: Call) -> None:
    """Both must compute the same, or their times mean nothing.

    The tolerance is that of float32 sums of millions of terms in different orders. One
    number in 100,000 may differ by more: what is rounded can fall on either side.
    """
    mine_outs, (mine_grads,) = mine.run(None)
    outs, grads = other.run(None)
    pairs = [*zip(mine_outs, outs, strict=True), *zip(mine_grads, grads, strict=True)]
    for one, two in pairs:
        one, two = np.asarray(one), two.detach().cpu().numpy()
        assert one.shape == two.shape
        size = max(1.0, float(np.abs(two).max()))
        close = np.isclose(one, two, rtol=1e-3, atol=1e-3 * size)
        assert (~close).mean() <= 1e-5, f"{(~close).sum()} of {close.size} differ"


def compiler_gap(effort: Effort) -> str:
    """Why torch.compile can't be measured; "" where it can."""
    if effort.quick:
        return "left out by --quick"
    import torch

    try:
        torch.compile(lambda x: torch.sin(x) * 2)(torch.ones(4))
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways
        return _reason(error)
    return ""


def calls(
    case: Case, n: int, device: str, *, compiler: bool
) -> tuple[dict[str, Call], str]:
    """What to time for one Function, and why torch.compile is missing."""
    xs, cts = data(case, n)
    found = {"Function": ours(case, xs, cts)}
    return beside(case, found, xs, cts, device, compiler=compiler)


def beside(
    case: Twin | Case,
    found: dict[str, Call],
    xs: list[Any],
    cts: list[Any],
    device: str,
    *,
    compiler: bool,
    backward: bool = True,
) -> tuple[dict[str, Call], str]:
    """Those that are found already with those of torch, with which they must agree.

    Torch runs with one thread, and with one for each core: its threads wait for each
    other in a loop, and where neighbours hold the cores, two can take a hundred times
    as long as one. `fastest` then takes the better.
    """
    group, gap = dict(found), ""
    for threads in sorted({1, os.cpu_count() or 1}):
        for other in (EAGER, COMPILED) if compiler and not gap else (EAGER,):
            fused = other == COMPILED
            call = theirs(
                case, xs, cts, device, fused=fused, threads=threads, backward=backward
            )
            try:
                for mine in found.values():
                    agree(mine, call)
            except Exception as error:
                if not fused or isinstance(error, AssertionError):
                    raise
                gap = _reason(error)
                continue
            group[f"{other}, {threads}"] = call
    return group, gap


def _reason(error: Exception) -> str:
    """An error of torch.compile in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


def fastest(times: Times, other: str) -> str:
    """The name of the fastest of the calls that have a number of threads."""
    found = [name for name in times.seconds if name.startswith(f"{other}, ")]
    return min(found, key=times.median, default="")


def beside_torch(row: Row, times: Times, other: str, gap: str) -> tuple[Row, str]:
    """The row against the fastest call of torch, and which that is; or the gap."""
    best = fastest(times, other)
    if not best:
        return dataclasses.replace(row, gap=gap), ""
    row = dataclasses.replace(row, note=f"best threads: {best.rpartition(' ')[2]}")
    return measured(row, times, Pair(row.ours, best)), best


def rows(effort: Effort) -> Iterator[Row]:
    """Forward and backward on the CPU, compiled here, eager and compiled there."""
    if gap := peers.GAPS["torch"]:
        for other in (EAGER, COMPILED):
            yield Row("torch", "forward and backward", against=other, gap=gap)
        return
    gap = compiler_gap(effort)
    with jax.default_device(jax.devices("cpu")[0]):
        for n in SIZES[:1] if effort.quick else SIZES:
            yield from at_size(n, "torch", "cpu", gap, effort.for_size(n))


def at_size(
    n: int,
    part: str,
    device: str,
    gap: str,
    effort: Effort,
    *,
    names: Iterable[str] = tuple(CASES),
) -> Iterator[Row]:
    """Each Function, and the geometric mean of all, for one size.

    Args:
        n: number of elements.
        part: of the benchmarks.
        device: as torch calls it.
        gap: why torch.compile can't be measured.
        effort: how long to measure.
        names: of the Functions.
    """
    merged: dict[str, list[float]] = {}
    pairs: dict[str, list[tuple[str, str]]] = {EAGER: [], COMPILED: []}
    for name in names:
        group, reason = calls(CASES[name], n, device, compiler=not gap)
        times = interleaved(group, effort)
        merged |= {f"{name}, {key}": s for key, s in times.seconds.items()}
        for other in (EAGER, COMPILED):
            row = Row(part, f"{name}, {n:,} elements", against=other)
            row, best = beside_torch(row, times, other, reason or gap)
            if best:
                pairs[other].append((f"{name}, {best}", f"{name}, Function"))
            yield row
    for other in (EAGER, COMPILED):
        yield from _overall(part, n, other, pairs[other], Times(merged), gap)


def _overall(
    part: str, n: int, other: str, pairs: list[tuple[str, str]], times: Times, gap: str
) -> Iterator[Row]:
    """How much faster ours are, as a geometric mean, and which are slower."""
    what = f"speed-up, {n:,} elements: geometric mean of {len(pairs)}"
    if not pairs:
        yield Row(part, what, against=other, gap=gap or "no Function compiled")
        return
    ratios = {pair: times.ratio(*pair).median for pair in pairs}
    slower = [f"{p[0].partition(',')[0]} {r:.2f}" for p, r in ratios.items() if r < 1]
    yield Row(
        part,
        what,
        against=other,
        value=times.overall(pairs),
        target=2.0 if other == EAGER and part == "torch" else None,
        at_least=True,
        note=f"slower: {', '.join(slower) or 'none'}",
    )
    yield Row(
        part,
        f"Functions where we are slower, {n:,} elements",
        against=other,
        value=Spread.of([float(len(slower))]),
        unit=f"of {len(pairs)}",
        note=", ".join(slower),
    )
