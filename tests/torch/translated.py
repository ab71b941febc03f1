"""Translate a file of published Functions and say, for each, what becomes of it.

    python -m tests.torch.translated FILE [--only WORD] [--out FOLDER]

The file is as for `tests.torch.cases`. Each class is translated with its arguments
and compared with torch by `jaxfn.torch.compare` (value and gradients, eagerly, under
jit and vmap, second derivatives); it is then one of

    equal       all is translated, and no row of the comparison differs
    partly      the same, but for marked lines that these arguments do not reach
    left        a marked line is reached, or what it left undefined: an error, no value
    draws       no row differs, but not all was compared, mostly because it draws
    differs     all is translated, and a row differs: never to be accepted
    fails       the translator itself raises
    torch       torch raises on these arguments, or can't import the module
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from jaxfn.torch import Translation, translate

from . import stubs
from .cases import read


class Outcome(NamedTuple):
    name: str
    kind: str
    detail: str
    source: str = ""


def kind_of(found: Translation) -> str:
    """What became of it."""
    assert found.comparison is not None
    if found.comparison.ok:
        return "partly" if found.left else "equal"
    if found.left and all("the port raises" in why for why in _failures(found)):
        return "left"
    if found.comparison.failures:
        return "differs"
    return "draws"


def _failures(found: Translation) -> list[str]:
    assert found.comparison is not None
    return [f"{f.check}: {f.message}" for f in found.comparison.failures]


def outcome(load: Any, case: Any) -> Outcome:
    """Translate and compare one."""
    module, cls, make, diff, _ = case
    name = f"{module}.{cls}"
    try:
        with stubs.stubbed() as finder:
            stubs.load(finder, module)
            original, args = load(module, cls), make()
        for i in diff or ():
            args[i].requires_grad_()
    except Exception as error:  # noqa: BLE001  (whatever a package raises)
        return Outcome(name, "torch", f"{type(error).__name__}: {error}")
    try:
        found = translate(original, *args)
    except ValueError as error:
        kind = "torch" if "itself fails" in str(error) else "fails"
        return Outcome(name, kind, str(error))
    except Exception as error:  # noqa: BLE001  (all are reported)
        return Outcome(name, "fails", f"{type(error).__name__}: {error}")
    detail = [*map(str, found.left), *_failures(found)]
    return Outcome(name, kind_of(found), "\n".join(detail), found.source)


def outcomes(path: str, only: str = "") -> Iterator[Outcome]:
    """All cases of a file whose name has a word in it."""
    file = read(path)
    for i, case in enumerate(file.CASES):
        if only in f"{i} {case[0]}.{case[1]}":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield outcome(file.load, case)


def main() -> int:
    """Print a line for each, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--out", type=Path, help="where to write the translations")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for i, found in enumerate(outcomes(options.file, options.only)):
        counts[found.kind] += 1
        took = time.perf_counter() - start
        start += took
        print(f"{found.kind:8} {took:5.1f} s  {found.name}", flush=True)
        for line in found.detail.splitlines():
            print(f"         {line[:160]}")
        if options.out is not None and found.source:
            options.out.mkdir(parents=True, exist_ok=True)
            name = f"{i:03}_{found.name.replace('.', '_')}.py"
            (options.out / name).write_text(found.source)
    runnable = counts.total() - counts["torch"]
    print(f"{runnable} of {counts.total()} run in torch:", dict(counts))
    return counts["differs"] + counts["fails"] > 0


if __name__ == "__main__":
    sys.exit(main())
