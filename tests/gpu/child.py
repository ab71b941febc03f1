"""The process of one part: it runs checks, and writes a line for each."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

from tests.gpu.parts import PARTS, Check, SkipError
from tests.gpu.processes import POISONED

# Parts of what CUDA, XLA, torch and Triton say once a context is broken.
BROKEN = (
    "illegal memory",
    "illegal address",
    "misaligned",
    "device-side",
    "unspecified launch",
)


def main(job: dict[str, Any]) -> int:
    """Run the checks that are not done.

    Args:
        job: `part`, `small`, the names of checks that are `done`, and the file `rows`.
    """
    module = importlib.import_module(f"tests.gpu.{PARTS[job['part']].module}")
    checks = module.checks(job["small"])
    with open(job["rows"], "a", encoding="utf-8") as file:  # noqa: PTH123

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        write({"names": list(checks)})
        for name, check in checks.items():
            if name in job["done"]:
                continue
            result, text = _run(check)
            write({"check": name, **result})
            if any(words in text.lower() for words in BROKEN):
                # Destructors would wait for the GPU.
                os._exit(POISONED)
    return 0


def _run(check: Check) -> tuple[dict[str, Any], str]:
    """The row of a check, and what it said in full; an exception is a result too."""
    start = time.perf_counter()
    numbers: dict[str, float] = {}
    try:
        found = check()
        result, text, numbers = "ok", found.text, found.numbers
    except SkipError as reason:
        result, text = "skip", str(reason)
    except Exception as exception:  # noqa: BLE001
        traceback.print_exc()
        result, text = "FAIL", f"{type(exception).__name__}: {exception}"
    row = {
        "result": result,
        "figure": _one_line(text),
        "numbers": numbers,
        "seconds": time.perf_counter() - start,
    }
    return row, text


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else f"{text[:250]} ... {text[-145:]}"


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
