"""Ten Functions of torch by `from_torch`, beside what one would write by hand."""

from __future__ import annotations

import functools
import time
from typing import Any

import jax

from jaxfn.torch import from_torch
from tests.benchmarks.timing import Call, Effort, interleaved
from tests.gpu.parts import Check, Figure, error, expect
from tests.jaxprs import instructions
from tests.torch.ports import PAIRS, Pair

MOST = 1e-5


def checks(small: bool) -> dict[str, Check]:
    """One for each pair."""
    # Products in full precision: by default a GPU rounds the factors to ten bits.
    jax.config.update("jax_default_matmul_precision", "highest")
    times = 1 if small else 64
    return {pair.name: functools.partial(_check, pair, times) for pair in PAIRS}


def _check(pair: Pair, times: int) -> Figure:
    shapes = [tuple(times * n for n in shape) for shape in pair.shapes]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    # Wide products stay of the size that they have in the small arrays.
    args = [
        jax.random.normal(key, shape) / times**0.25
        for key, shape in zip(keys, shapes, strict=True)
    ]
    ours, by_hand = (
        jax.jit(functools.partial(_value_and_grad, cls)).lower(*args).compile()
        for cls in (from_torch(pair.torch), pair.port)
    )
    results = [jax.tree.leaves(f(*args)) for f in (ours, by_hand)]
    found = max(error(x, y) for x, y in zip(*results, strict=True))
    expect("beside the port", found, MOST)
    calls = {
        "ours": Call(lambda _: ours(*args)),
        "by hand": Call(lambda _: by_hand(*args)),
    }
    effort = Effort(rounds=11, seconds=0.01, clock=time.perf_counter)
    measured = interleaved(calls, effort)
    ratio = measured.ratio("ours", "by hand")
    micro = 1e6 * measured.median("ours")
    more = instructions(ours) - instructions(by_hand)
    return Figure(
        f"error {found:.1e}; time {ratio.median:.2f} of the port's "
        f"({ratio.low:.2f} to {ratio.high:.2f}), {micro:.0f} us; "
        f"{more:+d} instructions",
        {"error": found, "ratio": ratio.median, "us": micro, "instructions": more},
    )


def _value_and_grad(cls: Any, *args: Any) -> Any:
    def loss(*args: Any) -> Any:
        out = cls.apply(*args)
        return (out**2).sum(), out

    return jax.value_and_grad(loss, tuple(range(len(args))), has_aux=True)(*args)
