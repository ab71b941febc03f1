"""Parts in processes of their own, which may fail without taking others along.

A kernel that writes outside of its memory leaves the context of the GPU unusable for
the process that ran it. The process ends itself then, and another one runs the checks
that are left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gpu.parts import PARTS
from tests.gpu.table import Row

ROOT = Path(__file__).parents[2]
POISONED = 9
"""The exit code of a process whose GPU can't be used any more."""


def environment(wheels: Path | None, *, cpu: bool) -> dict[str, str]:
    """The variables of the processes.

    Args:
        wheels: A folder with packages that are found first.
        cpu: Whether JAX must not look for a GPU.
    """
    made = dict(os.environ)
    paths = [str(wheels)] if wheels else []
    paths += [str(ROOT), *filter(None, [made.get("PYTHONPATH")])]
    made["PYTHONPATH"] = os.pathsep.join(paths)
    if cpu:
        made["JAX_PLATFORMS"] = "cpu"
    made["JAX_ENABLE_X64"] = "0"
    return made


def describe(environment: dict[str, str]) -> dict[str, Any]:
    """The device and the versions, from a process that ends before others start."""
    command = [sys.executable, "-m", "tests.gpu.machine"]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    if run.returncode:
        raise SystemExit(f"the device can't be described:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


def run(name: str, environment: dict[str, str], *, cpu: bool) -> list[Row]:
    """Run the checks of a part.

    Args:
        name: Of the part.
        environment: The variables of its processes.
        cpu: Whether to run small sizes.
    """
    part = PARTS[name]
    if lacking := missing(part.needs, environment):
        return [Row(name, part.title, "skip", f"needs {', '.join(lacking)}")]
    seconds = 5 * part.seconds if cpu else part.seconds  # a busy CPU takes its time
    deadline = time.monotonic() + seconds
    rows: list[Row] = []
    while True:
        left = deadline - time.monotonic()
        done = [row.check for row in rows]
        names, new, end = _start(name, environment, done, max(left, 1), cpu=cpu)
        rows += new
        waiting = [check for check in names if check not in {row.check for row in rows}]
        if names and not waiting:
            return rows
        if end != f"exit code {POISONED}" or not new:
            # The first check that has no result is the one that ended the process.
            culprit = waiting.pop(0) if waiting else part.title
            rows.append(Row(name, culprit, "FAIL", end))
        if not waiting or time.monotonic() > deadline:
            late = f"not run: the part has {seconds:.0f} s"
            return rows + [Row(name, check, "FAIL", late) for check in waiting]


def _start(
    name: str, environment: dict[str, str], done: list[str], left: float, *, cpu: bool
) -> tuple[list[str], list[Row], str]:
    """Run what is not done in a process.

    Returns:
        The names of all checks, the results, and how the process ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.touch()
        job = {"part": name, "small": cpu, "done": done, "rows": str(path)}
        command = [sys.executable, "-m", "tests.gpu.child", json.dumps(job)]
        # JAX takes three quarters of the memory by default. Torch uses the same GPU,
        # and so do the processes of up to four parts.
        memory = "0.4" if PARTS[name].alone else "0.15"
        own = {"XLA_PYTHON_CLIENT_MEM_FRACTION": memory, **environment}
        with (Path(folder) / "log").open("w+", encoding="utf-8") as log:
            try:
                run = subprocess.run(
                    command,
                    env=own,
                    cwd=ROOT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=left,
                )
                end = f"exit code {run.returncode}"
            except subprocess.TimeoutExpired:
                end = "out of time"
            log.seek(0)
            said = [line.strip() for line in log if line.strip()]
        found = [json.loads(line) for line in path.read_text().splitlines()]
    if end not in ("exit code 0", f"exit code {POISONED}") and said:
        end += f": {said[-1][:300]}"
    names = found[0]["names"] if found else []
    return names, [Row(name, **line) for line in found[1:]], end


def missing(packages: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Which of these can't be imported in the processes."""
    if not packages:
        return []
    program = (
        "import importlib.util, sys; "
        "print(*[x for x in sys.argv[1:] if importlib.util.find_spec(x) is None])"
    )
    command = [sys.executable, "-c", program, *packages]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.split()
