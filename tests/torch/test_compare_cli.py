"""`python -m jaxfn compare` from a shell."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxfn.__main__ import main

ROOT = Path(__file__).parents[2]

PORT = """
import jaxfn
import jaxfn.torch

class F(jaxfn.Function):
    factor = 1

    @staticmethod
    def forward(ctx, x, k):
        assert isinstance(k, float)
        ctx.k = k
        return x * k

    @classmethod
    def backward(cls, ctx, g):
        return cls.factor * g * ctx.k, None

class Wrong(F):
    factor = -1

NUMBER = 3
"""

ORIGINAL = """
import torch

class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None

class Dropout(G):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * torch.rand_like(x)
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "port.py").write_text(PORT)
    (tmp_path / "original.py").write_text(ORIGINAL)
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("port", "original", "broken"):
        sys.modules.pop(name, None)


def run(files, port, original, *rest):
    targets = f"{files}/{port}", f"{files}/{original}"
    return main(["compare", *targets, *rest])


def test_equal_gives_0_and_the_table(files, capsys):
    code = run(files, "port.py:F", "original.py:G", "f32[3,4]", "2.0")
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "`F` and the original `G`: all " in out
    assert "gradient of argument 0" in out


def test_what_differs_gives_1_and_is_named(files, capsys):
    code = run(files, "port.py:Wrong", "original.py:G", "f32[3,4]", "2.0")
    assert code == 1
    out = capsys.readouterr().out
    assert "the whole gradient is the expected one with the sign turned" in out
    assert "Wrong: backward." in out


def test_what_draws_gives_1(files, capsys):
    code = run(files, "port.py:F", "original.py:Dropout", "f32[3]", "2.0")
    assert code == 1
    assert "values were not compared: it draws random" in capsys.readouterr().out


def test_options_are_passed_on(files, capsys):
    options = ["--skip", "vmap", "--order", "1", "--precision", "given", "--rtol", "3"]
    code = run(files, "port.py:Wrong", "original.py:G", "f32[3]", "2.0", *options)
    out = capsys.readouterr().out
    assert code == 0
    assert "skipped as told" in out
    assert "order=1" in out
    assert "value as given" not in out


@pytest.mark.parametrize(
    ("port", "original", "args", "message"),
    [
        ("port.py:F", "original.py:Missing", ["f32[2]", "2.0"], "has no Missing"),
        ("port.py:F", "missing.py:G", ["f32[2]", "2.0"], "there is no file"),
        ("port.py:F", "original.py", ["f32[2]", "2.0"], "FILE_OR_MODULE:NAME"),
        ("port.py:F", "port.py:F", ["f32[2]", "2.0"], "derived from torch.autograd"),
        ("port.py:NUMBER", "original.py:G", ["f32[2]", "2.0"], "expected a Function"),
        ("original.py:G", "original.py:G", ["f32[2]", "2.0"], "from_torch(G)"),
        ("port.py:F", "original.py:G", ["f32[2]"], "missing a required argument: 'k'"),
        ("port.py:F", "original.py:G", ["f33[2]", "2.0"], "there is no dtype f33"),
        ("port.py:F", "original.py:G", ["f32[2]", "None"], "`G.apply` raised on these"),
        ("port.py:F", "broken.py:G", ["f32[2]", "2.0"], "broken.py:2)"),
        ("broken.py:F", "original.py:G", ["f32[2]", "2.0"], "ZeroDivisionError: div"),
        ("port.py:F", "original.py:G", ["f32[2]", "2.0", "--skip", "x"], "among outp"),
    ],
)
def test_a_wrong_command_gives_2_and_one_line(
    files, capsys, port, original, args, message
):
    assert run(files, port, original, *args) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_to_a_terminal(files, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(files, "port.py:F", "original.py:G", "f32[3]", "2.0") == 0
    shown = terminal.getvalue()
    assert re.search(r"outputs: .* 0/18", shown)
    assert re.search(r"vmap of gradients: .* 17/18", shown)
    assert shown.rpartition("\r")[2] == ""  # the bar is gone


def test_modules_in_the_current_folder(files):
    command = ["-m", "jaxfn", "compare", "port:F", "original:G", "f32[]", "2.0"]
    found = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=files,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": ""},
    )
    assert found.returncode == 0, found.stderr
    assert "`F` and the original `G`: all " in found.stdout
