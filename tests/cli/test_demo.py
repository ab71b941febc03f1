"""`python -m jaxfn demo`: all cells right, and a wrong rule is seen where it is
used."""

import subprocess
import sys

import jax
import pytest

from jaxfn import __main__
from jaxfn._check import CheckReport, CheckResult
from jaxfn._cli import demo
from jaxfn._examples import EXAMPLES

NAMES = [example.function.__name__ for example in EXAMPLES]
TITLES = ["forward", "jit", "grad", "jvp", "vmap", "vmap(grad)", "grad(vmap)"]
TITLES += ["grad(grad)"]


@pytest.mark.full  # the first command of the README prints it
def test_the_matrix_has_functions_by_transformations(capsys):
    assert __main__.main(["demo"]) == 0
    title, _, head, _, *lines = capsys.readouterr().out.splitlines()
    device = jax.devices()[0]
    assert f"on {device.platform} ({device.device_kind})" in title
    assert head.split() == ["Function", *TITLES]
    rows = [line.split() for line in lines[: len(NAMES)]]
    assert [row[0] for row in rows] == NAMES
    starts = [head.index(f" {title}") + 1 for title in TITLES]
    for line in lines[: len(NAMES)]:
        assert all(line[i - 1] == " " and line[i] != " " for i in starts)  # aligned
    derived = {"Product", "Cube", "ExpDerived"}
    for name, *cells in rows:
        twice = "ok" if name in derived else "refused"
        jvp = "ok" if name in derived else "-"
        assert cells == ["ok", "ok", "ok", jvp, "ok", "ok", "ok", twice]
    assert "59 of 59 cells are right." in lines[-1]
    assert len(lines) == len(NAMES) + 4


# A wrong rule must fail all cells that use it and no other.
REACHED = {
    "backward": {"grad", "vmap(grad)", "grad(vmap)", "grad(grad)"},
    "jvp": {"jvp"},
    "vmap": {"vmap", "vmap(grad)", "grad(vmap)"},
}


@pytest.mark.parametrize("broken", demo.BROKEN)
@pytest.mark.full
def test_a_broken_rule_is_reached_where_it_is_used(broken, capsys, monkeypatch):
    found = list(demo.cells(broken))
    having = {
        e.function.__name__
        for e in EXAMPLES
        if demo.break_rule(e.function, broken) is not e.function
    }
    assert having
    for cell in found:
        reached = cell.column in REACHED[broken] and cell.function in having
        if cell.function == "ExpDerived" and cell.column == "jvp":
            reached = broken == "backward"  # its jvp is backward transposed
        assert cell.ok == (not reached), cell
    first = next(cell for cell in found if not cell.ok)
    assert first.outcome == "FAIL"
    text = demo.table(found, broken)
    assert f"{first.function}, {first.column}: {first.message}" in text
    assert ("FAIL*: not run" in text) == (broken != "jvp")
    monkeypatch.setattr(demo, "cells", lambda broken: found)
    assert __main__.main(["demo", "--break", broken]) == 1
    assert "cells fail: those that use this rule" in capsys.readouterr().out


@pytest.mark.full
def test_the_module_runs_as_a_command():
    run = subprocess.run(
        [sys.executable, "-m", "jaxfn", "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0
    assert "demo" in run.stdout
    run = subprocess.run(
        [sys.executable, "-m", "jaxfn", "demo", "--break", "forward"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert "invalid choice" in run.stderr


@pytest.mark.parametrize(
    ("status", "message", "outcomes"),
    [
        ("FAIL", "ValueError: mine", {"FAIL"}),
        ("skipped", "no backward rule", {"FAIL"}),
        ("skipped", "builds on 'value', which failed", {"FAIL*"}),
        ("ok", "", {"ok", "FAIL"}),
        ("skipped", "refused: once_differentiable", {"refused", "FAIL"}),
    ],
)
def test_the_outcome_of_a_cell(status, message, outcomes, monkeypatch):
    def check(function, *args, **options):
        name = "backward of backward"
        result = CheckResult(name, "backward", status, message=message)
        return CheckReport(function.__name__, (result,))

    monkeypatch.setattr(demo, "check", check)
    found = {cell.function: cell for cell in demo.cells()}
    assert {cell.outcome for cell in found.values()} == outcomes
    if status == "ok":
        assert "expected a refusal" in found["MulAdd"].message
        assert found["Product"].ok
    if message.startswith("refused"):
        assert found["MulAdd"].ok
        assert not found["Product"].ok
    if message.endswith("mine"):
        assert "MulAdd, grad(grad): ValueError: mine" in demo.table([*found.values()])
