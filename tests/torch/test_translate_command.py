"""`python -m jaxfn translate`: what it prints, and its exit codes."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys

import pytest

from jaxfn.__main__ import main

TWO = '''
"""Two Functions."""
import torch


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.mul(x, 2)

    @staticmethod
    def backward(ctx, g):
        return g.mul(2)


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x.max().item()

    @staticmethod
    def backward(ctx, g):
        return g


twice = Twice.apply
NUMBER = 3
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / f"two_{tmp_path.name}.py"
    path.write_text(TWO)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


def test_what_is_equal_ends_with_0(file, tmp_path, capsys):
    out = tmp_path / "port.py"
    assert main(["translate", f"{file}:Twice", "f32[2,3]", "-o", str(out)]) == 0
    assert "the original `Twice`: all 15 rows agree" in capsys.readouterr().out
    assert "return x * 2\n" in out.read_text()


def test_without_a_file_the_source_is_printed(file, capsys):
    assert main(["translate", f"{file}:Twice", "f32[2,3]"]) == 0
    done = capsys.readouterr()
    assert done.out.startswith("import jaxfn\n")
    assert "the original `Twice`: all 15 rows agree" in done.err


BRIEF = """\
{file}:19: return x * x.max().item()
    why:  Tensor.item: values are not known while JAX traces
    seen: x: float32[2,3]
    row:  Tensor.max(x) -> jnp.max(x)
    row:  Tensor.max(x, other) -> jnp.maximum(x, other)
"""


def test_brief_has_what_is_needed_to_finish(file, capsys):
    assert main(["translate", f"{file}:Asks", "f32[2,3]", "--brief"]) == 1
    done = capsys.readouterr()
    assert done.out.startswith(BRIEF.format(file=file.name))
    assert "\ndiffers: outputs: the port raises" in done.out
    assert "class Asks" not in done.out
    assert not done.err
    assert main(["translate", f"{file}:Asks", "f32[2,3]"]) == 1
    done = capsys.readouterr()
    assert f"To finish the port:\n{BRIEF.format(file=file.name)}" in done.err
    assert "raise NotImplementedError" in done.out


def test_brief_of_what_is_whole_says_so(file, capsys, tmp_path):
    out = tmp_path / "port.py"
    words = ["translate", f"{file}:Twice", "f32[2,3]", "--brief", "-o", str(out)]
    assert main(words) == 0
    said = "nothing is left\nno row of the comparison differs\n"
    assert capsys.readouterr().out == said
    assert "return x * 2\n" in out.read_text()


def test_a_whole_file_keeps_its_docstring_and_other_names(file, capsys):
    assert main(["translate", str(file)]) == 1
    done = capsys.readouterr()
    assert done.out.startswith('"""Two Functions."""\n')
    assert "class Twice(jaxfn.Function):" in done.out
    assert "twice = Twice.apply\n" in done.out


WRONG = [
    (["{file}:Nothing"], "has no Nothing"),
    (["{file}:NUMBER"], "expected a Function"),
    (["{file}:torch"], "expected a Function"),
    (["{file}:torch.nn.Linear"], "is no torch.autograd.Function"),
    (["{file}", "f32[2]"], "defines 2 Functions"),
    (["no_such_file.py"], "there is no file"),
    (["no_such_module"], "there is no module"),
    (["json"], "defines no torch.autograd.Function"),
    (["{broken}"], "can't be imported"),
    (["{file}:Twice", "f32[2"], "is no array type"),
    (["{file}:Twice", "abc"], "itself fails on these arguments"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_what_is_wrong_ends_with_2_and_one_line(file, tmp_path, capsys, words, message):
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_package")
    words = [w.format(file=file, broken=broken) for w in words]
    assert main(["translate", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_without_libcst_one_line_says_so(file, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == "libcst" else find(n)
    )
    assert main(["translate", f"{file}:Twice"]) == 2
    assert "pip install 'jaxfn[translate]'" in capsys.readouterr().err


def test_without_torch_one_line_says_so():
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from jaxfn.__main__ import main\n"
        "raise SystemExit(main(['translate', 'json:T']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs PyTorch" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_to_a_terminal(file, monkeypatch):
    pytest.importorskip("tqdm", reason="progress is an extra")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["translate", f"{file}:Twice", "f32[2,3]"]) == 0
    assert "gradients of subsets" in sys.stderr.getvalue()


def test_the_version_needs_neither_torch_nor_libcst():
    code = (
        "import sys\nfrom jaxfn.__main__ import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'libcst'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
