"""Import time and modules, in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.rows import Row
from tests.benchmarks.timing import Effort, Spread

HEAVY = (
    "torch",
    "matplotlib",
    "IPython",
    "ipykernel",
    "notebook",
    "nbformat",
    "pytest",
)

PROGRAM = """
import json, sys, time
cpu, wall = time.process_time(), time.perf_counter()
import jax
before = set(sys.modules)
cpu_between, wall_between = time.process_time(), time.perf_counter()
if len(sys.argv) > 1:
    import jaxfn
print(json.dumps({
    "cpu": time.process_time() - cpu,
    "own_cpu": time.process_time() - cpu_between,
    "own_wall": time.perf_counter() - wall_between,
    "modules": sorted(set(sys.modules) - before),
    "heavy": [m for m in HEAVY if m in sys.modules],
}))
"""


def fresh(*args: str) -> dict[str, Any]:
    """What a new process says that imports jax, and jaxfn if there is an argument.

    It may keep compiled modules, as pip does for what it installs (jax among it).
    """
    program = PROGRAM.replace("HEAVY", repr(HEAVY))
    command = [sys.executable, "-c", program, *args]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout)


def rows(effort: Effort) -> Iterator[Row]:
    """Import time of jaxfn over that of jax, and what it imports."""
    rounds = 5 if effort.quick else 15
    fresh("jaxfn")  # compiles what is not compiled yet
    ours, alone = [], []
    for i in range(rounds):
        for import_jaxfn in (True, False) if i % 2 else (False, True):
            (ours if import_jaxfn else alone).append(fresh(*["jaxfn"] * import_jaxfn))
    own = [1000 * o["own_cpu"] for o in ours]
    wall = [1000 * o["own_wall"] for o in ours]
    over = [1000 * (o["cpu"] - a["cpu"]) for o, a in zip(ours, alone, strict=True)]
    for what, values in (
        ("import after jax (CPU time)", own),
        ("import after jax (wall clock)", wall),
        ("process with jaxfn, less process without (CPU time)", over),
    ):
        value = Spread.of(values)
        yield Row("import", what, "jaxfn", "jax", value, target=60.0, unit="ms")
    modules = ours[-1]["modules"]
    own_modules = [m for m in modules if m.partition(".")[0] == "jaxfn"]
    for what, found in (
        ("modules of its own", own_modules),
        ("other modules that jax had not imported", set(modules) - set(own_modules)),
    ):
        value = Spread.of([float(len(found))])
        yield Row("import", what, "jaxfn", "jax", value, unit="modules")
    heavy = ours[-1]["heavy"]
    yield Row(
        "import",
        f"of {', '.join(HEAVY)}",
        "jaxfn",
        "none",
        Spread.of([float(len(heavy))]),
        target=0.0,
        unit="modules",
        note=", ".join(heavy),
    )
