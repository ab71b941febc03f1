"""Run a file of published Functions and say, for each, what becomes of it.

    python -m tests.torch.cases FILE [--only WORD] [--host]

The file is Python with a list CASES of (module, class, function that makes the
arguments, positions to differentiate or None, does it draw?) and a function
load(module, class). Each case is compared with torch, value and gradient, eagerly and
under jit, vmap(grad), scan and grad of scan, and is then one of

    graph       the same in all placements, as JAX operations
    host        refused as a graph, and the same with fallback="host"
    refused     by both, with the words
    wrong       a value or gradient that differs: never to be accepted
    fails       another error
    torch       torch itself raises on these arguments, or it can't be imported
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import torch

from jaxfn.torch import TorchRefusal

from . import stubs
from .compare import MODES, Case

CLOSE = 1e-4
Found = tuple[str, str, float]


class Outcome(NamedTuple):
    name: str
    kind: str
    detail: str
    worst: float


def read(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("torch_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_way(
    cls: Any, case: Any, args: list[Any], *, host: bool
) -> tuple[str, str, Any]:
    """The kind, the words and the greatest difference, by one of the two ways."""
    _, _, _, diff, random = case
    fallback = "host" if host else None
    is_wide = any(
        isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in args
    )
    with jax.enable_x64(is_wide):
        found = compared(cls, args, diff, fallback=fallback, random=random)
    if found[0] == "refused" and not random and "random=True" in found[1]:
        found = compared(cls, args, diff, fallback=fallback, random=True)
    if found[0] == "refused" and "x64 is off" in found[1]:
        with jax.enable_x64(True):
            found = compared(cls, args, diff, fallback=fallback, random=random)
    return found


def compared(cls: Any, args: list[Any], diff: Any, **how: Any) -> Found:
    try:
        made = Case(cls, args, diff, **how)
    except TorchRefusal as refusal:
        return "refused", str(refusal), 0.0
    try:
        made.in_torch()
    except Exception as error:  # noqa: BLE001  (whatever torch raises)
        return "torch", f"{type(error).__name__}: {error}", 0.0
    try:
        worst = made.worst(MODES)
    except TorchRefusal as refusal:
        return "refused", str(refusal), 0.0
    except AssertionError as error:
        return "wrong", f"{error!r}", 1.0
    except Exception as error:  # noqa: BLE001  (all are reported)
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        return "fails", f"{type(error).__name__}: {error} ({where})", 0.0
    kind = "wrong" if not worst <= CLOSE else "host" if how["fallback"] else "graph"
    return kind, "", worst


def outcome(load: Any, case: Any, *, also_host: bool) -> Outcome:
    module, cls, make, *_ = case
    name = f"{module}.{cls}"
    try:
        with stubs.stubbed() as finder:
            stubs.load(finder, module)
            found, args = load(module, cls), make()
    except Exception as error:  # noqa: BLE001  (whatever a package raises)
        return Outcome(name, "torch", f"{type(error).__name__}: {error}", 0.0)
    kind, detail, worst = one_way(found, case, args, host=False)
    if also_host or kind in ("refused", "fails"):
        by_host, why, gap = one_way(found, case, args, host=True)
        if kind in ("refused", "fails"):
            if by_host == "host":
                return Outcome(name, "host", detail, gap)
            return Outcome(name, kind, f"{detail} | on the host: {by_host} {why}", gap)
        if by_host not in ("host", "graph"):
            return Outcome(name, by_host, f"with fallback: {why}", gap)
    return Outcome(name, kind, detail, worst)


def outcomes(
    path: str, only: str = "", *, also_host: bool = False
) -> Iterator[Outcome]:
    file = read(path)
    for i, case in enumerate(file.CASES):
        if only in f"{i} {case[0]}.{case[1]}":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield outcome(file.load, case, also_host=also_host)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--host", action="store_true", help="all with fallback too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for found in outcomes(options.file, options.only, also_host=options.host):
        counts[found.kind] += 1
        took = time.perf_counter() - start
        start += took
        print(f"{found.kind:8} {found.worst:7.0e} {took:5.1f} s  {found.name}")
        if found.detail:
            print(f"         {found.detail[:600]}", flush=True)
    runnable = counts.total() - counts["torch"]
    print(f"{runnable} of {counts.total()} run in torch:", dict(counts))
    return counts["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
