"""What holds on an NVIDIA GPU, and how fast it is: one command, under five minutes.

    python -m tests.gpu [--wheels DIR] [--only PART ...] [--out FILE.json]

It checks the examples, the laws, Pallas and Triton kernels, measures times beside
torch and XLA, and prints one table. Each part runs in a process of its own, within a
time: if a kernel breaks the GPU's context, the other checks still run. The exit code is
1 if a check fails, and 2 if there is no GPU. `--cpu` runs small sizes on a CPU, Triton
in the interpreter, which shows that the command itself works.

Needed: jaxfn's repository, and JAX with CUDA. If torch, triton, jax-triton,
liger-kernel, fla-core or transformers are missing, their checks are skipped, and the
table says so.
Pure Python wheels can be brought along to a machine without a network:

    pip download --no-deps -d wheels jax-triton liger-kernel fla-core einops
    python -m tests.gpu --wheels wheels

(with a jax-triton that fits: 0.3.1 for triton 3.6, 0.4.1 for triton 3.7 and later).
They are unpacked into a temporary folder, because Triton reads the source of kernels
from files.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.gpu import processes, table
from tests.gpu.parts import PARTS

USAGE = 2


def main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jaxfn-gpu-") as folder:
        path = _unpack(options.wheels, Path(folder)) if options.wheels else None
        environment = processes.environment(path, cpu=options.cpu)
        machine = processes.describe(environment)
        print(table.describe(machine), flush=True)
        if machine["platform"] != "gpu" and not options.cpu:
            print(
                "python -m tests.gpu needs an NVIDIA GPU that JAX finds: "
                f"{machine['why']}. With --cpu small sizes run on a CPU.",
                file=sys.stderr,
            )
            return USAGE
        names = options.only or list(PARTS)
        rows = list(_run(names, environment, options.jobs, cpu=options.cpu))
    seconds = time.monotonic() - start
    rows.sort(key=lambda row: list(PARTS).index(row.part))
    print(table.table(rows, seconds))
    if options.out:
        found = {
            "machine": machine,
            "cpu": options.cpu,
            "seconds": seconds,
            "rows": [vars(row) for row in rows],
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.result == "FAIL" for row in rows) else 0


def _run(
    names: Sequence[str], environment: dict[str, str], jobs: int, *, cpu: bool
) -> Iterator[table.Row]:
    """Run parts: first those that may run at once, then the others one by one."""

    def run(name: str) -> list[table.Row]:
        start = time.monotonic()
        rows = processes.run(name, environment, cpu=cpu)
        bad = sum(row.result == "FAIL" for row in rows)
        spent = time.monotonic() - start
        print(f"{name}: {len(rows)} checks, {bad} failed, {spent:.0f} s", flush=True)
        return rows

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for rows in pool.map(run, [name for name in names if not PARTS[name].alone]):
            yield from rows
    for name in names:
        if PARTS[name].alone:
            yield from run(name)


def _unpack(wheels: Path, folder: Path) -> Path:
    """Unpack all wheels of a folder into another."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise SystemExit(f"--wheels: there is no wheel in {wheels}")
    for wheel in found:
        if not wheel.name.endswith("-none-any.whl"):
            raise SystemExit(f"--wheels: {wheel.name} is not pure Python: install it")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    listed = "\n".join(f"  {name:8} {part.title}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description=__doc__,
        epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--only", action="append", choices=PARTS, metavar="PART", help="may be repeated"
    )
    add("--out", type=Path, metavar="FILE.json", help="write what was found there too")
    add("--wheels", type=Path, metavar="DIR", help="packages to bring along")
    add("--cpu", action="store_true", help="small sizes on a CPU")
    jobs = max(1, min(4, (os.cpu_count() or 1) // 4))
    add("--jobs", type=int, default=jobs, help=f"parts at once; {jobs} here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
