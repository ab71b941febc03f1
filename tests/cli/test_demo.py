"""`python -m jaxfn demo`: all cells right, and a wrong rule is seen where it is
used."""

import subprocess
import sys

import pytest

from jaxfn import __main__
from jaxfn._cli import demo
from jaxfn._examples import EXAMPLES
from tests.sizes import only


def test_every_cell_is_right(capsys):
    assert __main__.main(["demo"]) == 0
    text = capsys.readouterr().out
    n = len(text.splitlines()) - 4
    assert f"{n} of {n} cells are right." in text
    for example in EXAMPLES:
        assert f" {example.function.__name__} " in text
    rows = text.splitlines()[2:-2]
    assert len({row.index(" ok") for row in rows}) == 1  # aligned
    assert all(row.startswith("cpu (cpu)") for row in rows)


# A wrong rule must fail all cells that use it and no other.
REACHED = {
    "backward": {"reverse mode", "vmap of grad", "grad of vmap"},
    "jvp": {"forward mode"},
    "vmap": {"vmap", "vmap of grad", "grad of vmap"},
}


@pytest.mark.parametrize("broken", only(demo.BROKEN, lambda rule: rule == "vmap"))
def test_a_broken_rule_is_reached_where_it_is_used(broken, capsys, monkeypatch):
    rows = list(demo.cells(broken))
    having = {
        e.function.__name__
        for e in EXAMPLES
        if demo.break_rule(e, broken).function is not e.function
    }
    assert having
    for cell in rows:
        if cell.check == "second derivative":
            continue  # fails for a wrong backward, unless it is refused
        reached = cell.check in REACHED[broken] and cell.function in having
        if cell.function == "ExpDerived" and cell.check == "forward mode":
            reached = broken == "backward"  # its jvp is backward transposed
        if broken == "vmap" and cell.check == "grad of vmap":
            reached = reached and not cell.ok  # only what was saved is off
        assert cell.ok == (not reached), cell
    assert any(not cell.ok for cell in rows)
    assert f"<- {broken} is wrong on purpose" in demo.table(rows, broken)
    monkeypatch.setattr(demo, "cells", lambda broken: rows)
    assert __main__.main(["demo", "--break", broken]) == 1
    assert "cells fail: those that use this rule" in capsys.readouterr().out


def test_second_derivatives_fail_with_a_wrong_backward():
    rows = [c for c in demo.cells("backward") if c.check == "second derivative"]
    outcome = {c.function: c.ok for c in rows}
    assert outcome["MulAdd"]  # refused as before
    assert not outcome["Product"]
    assert not outcome["Cube"]


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


def test_a_cell_that_raises_is_not_right(monkeypatch):
    def fail(example):
        raise ValueError("mine. And more")

    monkeypatch.setattr(demo, "CHECKS", {"check": fail})
    rows = list(demo.cells())
    assert not any(cell.ok for cell in rows)
    assert "ValueError: mine" in demo.table(rows)
    monkeypatch.setattr(demo, "CHECKS", {"second derivative": lambda e: 0.0})
    by_name = {c.function: c.ok for c in demo.cells()}
    assert not by_name["MulAdd"]  # must refuse
    assert by_name["Product"]
