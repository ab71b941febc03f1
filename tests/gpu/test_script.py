"""`python -m tests.gpu --cpu`, which shows that the command itself works."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.gpu import processes
from tests.gpu.parts import PARTS
from tests.gpu.table import Row

HAS_ALL = all(map(importlib.util.find_spec, ("torch", "triton")))

# What a normal run has, if it can do more than be skipped.
NORMAL = ("alias",) if HAS_ALL else ()


def command(*options, **environment):
    run = [sys.executable, "-m", "tests.gpu", *options]
    made = processes.environment(None, cpu=True) | environment
    return subprocess.run(
        run, capture_output=True, text=True, env=made, cwd=processes.ROOT
    )


@pytest.mark.full(unless=lambda part: part in NORMAL)
@pytest.mark.parametrize("part", PARTS)
def test_each_part_on_a_cpu(part, tmp_path):
    out = tmp_path / "found.json"
    run = command("--cpu", "--only", part, "--out", str(out))
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())
    assert found["machine"]["platform"] == "cpu"
    results = {row["result"] for row in found["rows"]}
    if not PARTS[part].needs or HAS_ALL:
        assert "ok" in results, found["rows"]
    else:
        assert results == {"skip"}
        assert "needs t" in run.stdout


def test_without_a_gpu_it_says_so_and_exits_with_2():
    run = command()
    assert run.returncode == 2
    assert "device: cpu" in run.stdout
    assert "needs an NVIDIA GPU" in run.stderr


# ---- processes that end early


@pytest.fixture
def started(monkeypatch):
    """Make processes that end as a list says, each with its results."""

    def make(*ends):
        waiting = list(ends)

        def start(name, environment, done, left, *, cpu):
            results, end = waiting.pop(0)
            rows = [Row(name, check, word, "") for check, word in results.items()]
            return ["a", "b", "c"], rows, end

        monkeypatch.setattr(processes, "_start", start)
        return {row.check: row for row in processes.run("demo", {}, cpu=True)}

    return make


def test_a_check_that_ends_the_process_fails_and_the_others_run(started):
    rows = started(({"a": "ok"}, "exit code -11"), ({"c": "ok"}, "exit code 0"))
    assert {name: row.result for name, row in rows.items()} == {
        "a": "ok",
        "b": "FAIL",
        "c": "ok",
    }
    assert rows["b"].figure == "exit code -11"


def test_a_process_that_ends_itself_has_told_what_failed(started):
    rows = started(
        ({"a": "FAIL"}, f"exit code {processes.POISONED}"),
        ({"b": "ok", "c": "ok"}, "exit code 0"),
    )
    assert [row.result for row in rows.values()] == ["FAIL", "ok", "ok"]


def test_what_the_time_does_not_allow_has_failed(started, monkeypatch):
    now = iter((0.0, 0.0, 1000.0))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(now))
    rows = started(({"a": "ok"}, "out of time"))
    assert rows["b"].figure == "out of time"
    assert "not run" in rows["c"].figure
    assert rows["c"].result == "FAIL"


def test_a_process_that_does_not_start_fails(monkeypatch):
    monkeypatch.setattr(
        processes, "_start", lambda *_, **__: ([], [], "exit code 1: ImportError")
    )
    (row,) = processes.run("demo", {}, cpu=True)
    assert (row.result, row.figure) == ("FAIL", "exit code 1: ImportError")
