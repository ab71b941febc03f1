"""`python -m jaxfn check` from a shell."""

import io
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxfn.__main__ import main
from jaxfn._cli import output, target

ROOT = Path(__file__).parents[2]

SOURCE = """
import jax.numpy as jnp
import jaxfn
from helper import twice

class Scale(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, i, k, name="a"):
        assert name in ("a", "b c") and isinstance(k, float)
        ctx.k, ctx.shape = k, x.shape
        ctx.save_for_backward(i)
        return twice(k * x[i])

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        return jnp.zeros(ctx.shape, g.dtype).at[i].add(2 * ctx.k * g), None, None, None

class Round(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        return jnp.round(x)

    @staticmethod
    def backward(ctx, g):
        return g

class Space:
    Inner = Scale

def identity(x):
    return 1 * x

NUMBER = 3
"""


@pytest.fixture
def rules(tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    path = tmp_path / "rules.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    for name in ("rules", "helper"):
        sys.modules.pop(name, None)


def test_a_right_function_gives_0_and_the_table(rules, capsys):
    code = main(["check", f"{rules}:Space.Inner", "f32[3,4]", "i32[5]", "2.0", "b c"])
    out, err = capsys.readouterr()
    assert code == 0
    assert "`Scale`: all " in out
    assert "backward of subsets" in out
    assert err == ""


def test_a_wrong_function_gives_1_and_names_the_rule(rules, capsys):
    assert main(["check", f"{rules}:Round", "f32[3]"]) == 1
    assert "Wrong: backward." in capsys.readouterr().out


def test_a_surrogate_is_said_to_be_one(rules, capsys):
    assert main(["check", f"{rules}:Round", "f32[3]", "--surrogate"]) == 0
    assert "a surrogate: not compared" in capsys.readouterr().out
    reference = ["--surrogate", "--reference", f"{rules}:identity"]
    assert main(["check", f"{rules}:Round", "f32[3]", *reference]) == 0
    assert "a surrogate: not compared" not in capsys.readouterr().out


def test_options_are_passed_on(rules, capsys):
    options = ["--skip", "scan", "--precision", "given"]
    assert main(["check", f"{rules}:identity", "f32[3]", *options]) == 0
    assert "skipped as told" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("rules.py", [], "expected FILE_OR_MODULE:NAME"),
        (":Round", [], "expected FILE_OR_MODULE:NAME"),
        ("missing.py:Round", [], "there is no file missing.py"),
        ("missing_module:Round", [], "there is no module missing_module"),
        ("{}:Missing", [], "has no Missing"),
        ("{}:NUMBER", [], "expected a Function or another callable"),
        ("{}:Round", ["f33[2]"], "there is no dtype f33"),
        ("{}:Round", ["float[2]"], "is no array type: expected one such as f32[3,4]"),
        ("{}:Round", ["f32[a]"], "is no array type"),
        ("{}:Round", ["f32[2]", "--skip", "nothing"], "expected a list of names"),
        ("{}:Round", ["f32[3,4"], "'f32[3,4' is no array type: expected one such as"),
        ("{}:Round", ["f32(3,4)"], "is no array type"),
        ("{}:Round", ["f32[3.5]"], "is no array type"),
        ("{}:Round", ["f32[3]:small"], "'f32[3]:small': float32 can't be small"),
        ("{}:Round", ["f32[3]:"], ":positive, :LOW:HIGH"),
        ("{}:Round", ["f32[3]:0"], "float32 can't be 0"),
        ("{}:Round", ["f32[3]:2:1"], "float32 can't be 2:1"),
        ("{}:Round", ["f32[3]:0:inf"], "float32 can't be 0:inf"),
        ("{}:Round", ["i32[3]:0:1.5"], "int32 can't be 0:1.5"),
        ("{}:Round", ["u8[3]:-1:5"], "uint8 can't be -1:5"),
        ("{}:Round", ["i32[3]:probabilities"], "int32 can't be probabilities"),
        ("{}:Round", ["f32[]:sorted"], "float32 can't be sorted"),
        ("{}:Round", ["f32[3]:positive:0:1"], "float32 can't be positive:0:1"),
        ("{}:Round", ["c64[3]:positive"], "complex64 can't be 1:4"),
        ("{}:Round", ["bool[3]:sorted"], "bool can't be 0:3"),
        ("{}:Round", ["[1, 2"], "'[1, 2' is no Python literal"),
        ("{}:Round", ["alpha=3.0"], "looks like a keyword argument"),
        ("{}:Round", [], "`Round` takes (x): got 0 arguments, missing a required"),
        ("{}:Round", ["f32[2]", "3"], "got 2 arguments, too many positional"),
        (
            "{}:Round",
            ["f32[2]", "--rtol", "-1"],
            "got rtol=-1.0: expected 0 or more",
        ),
    ],
)
def test_a_wrong_command_gives_2(rules, capsys, target, args, message):
    assert main(["check", target.format(rules), *args]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_file_that_cannot_be_imported_is_one_line(tmp_path, capsys, command):
    path = tmp_path / "broken.py"
    path.write_text("import jaxfn\n\nmissing_name\n")
    assert main([command, f"{path}:F", "f32[2]"]) == 2
    err = capsys.readouterr().err
    assert "can't be imported: NameError: name 'missing_name'" in err
    assert err.endswith("broken.py:3).\n")
    assert err.count("\n") == 1
    assert "broken" not in sys.modules
    path.write_text("def f(:\n")
    assert main([command, f"{path}:F", "f32[2]"]) == 2
    assert "SyntaxError: invalid syntax (broken.py, line 1)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "explain"])
@pytest.mark.parametrize("spec", ["f32[3,4", "f33[2]"])
def test_a_malformed_type_is_refused_before_any_code_runs(
    tmp_path, capsys, command, spec
):
    path = tmp_path / "raises.py"
    path.write_text("raise SystemExit('ran')")
    assert main([command, f"{path}:F", spec]) == 2
    assert spec[:3] in capsys.readouterr().err


def test_the_number_of_arguments_is_refused_before_forward_runs(tmp_path, capsys):
    path = tmp_path / "raises_when_called.py"
    path.write_text("def f(x, y):\n    raise SystemExit('ran')\n")
    for command in ("check", "explain"):
        assert main([command, f"{path}:f", "f32[2]"]) == 2
        assert "missing a required argument: 'y'" in capsys.readouterr().err
    sys.modules.pop("raises_when_called", None)


def test_tolerances_and_order(rules, capsys):
    target = [f"{rules}:Scale", "f32[3]", "i32[2]", "2.0"]
    options = ["--order", "1", "--rtol", "1e-3", "--atol", "0.5"]
    assert main(["check", *target, *options]) == 0
    out = capsys.readouterr().out
    assert "skipped: order=1" in out
    assert "1e-03" in out
    assert "5e-07" not in out


def test_the_help_lists_the_names_of_checks(capsys):
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    text = capsys.readouterr().out
    for name in ("value under jit", "backward, unused outputs", "low precision"):
        assert f'"{name}"' in " ".join(text.split())


def test_explain(rules, capsys):
    assert main(["explain", f"{rules}:Scale", "f32[3]", "i32[2]", "2.0"]) == 0
    out, err = capsys.readouterr()
    assert "jax.custom_vjp" in out
    assert err == ""


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("{}:Missing", [], "has no Missing"),
        ("{}:identity", ["f32[2]"], "explain"),
        ("{}:Round", [], "missing a required argument: 'x'"),
    ],
)
def test_a_wrong_explain_gives_2(rules, capsys, target, args, message):
    assert main(["explain", target.format(rules), *args]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("f32[3,4]", "float32", (3, 4)),
        ("f64[]", "float64", ()),
        ("bf16[2]", "bfloat16", (2,)),
        ("c64[2, 1]", "complex64", (2, 1)),
        ("i8[5]", "int8", (5,)),
        ("u32[5]", "uint32", (5,)),
        ("bool[7]", "bool", (7,)),
    ],
)
def test_arrays(text, dtype, shape):
    first, again, other = (
        target.argument(text, np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert (first.dtype.name, first.shape) == (dtype, shape)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def is_sorted(x):
    return np.all(np.diff(x.astype(float)) >= 0)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("f32[40]:positive", lambda x: np.all(x > 0)),
        ("bf16[]:positive", lambda x: x > 0),
        ("i32[40]:positive", lambda x: set(x.tolist()) == {1, 2, 3}),
        ("i64[40]:-2:3", lambda x: set(x.tolist()) == {-2, -1, 0, 1, 2}),
        ("f64[40]:0.5:0.75", lambda x: np.all((x >= 0.5) & (x < 0.75))),
        ("f32[3,4]:probabilities", lambda x: np.allclose(x.sum(-1), 1) and x.min() > 0),
        ("f32[3,9]:sorted", lambda x: is_sorted(x) and x.min() < 0),
        ("u8[9]:sorted", is_sorted),
        ("f32[9]:positive:sorted", lambda x: is_sorted(x) and x[0] > 0),
        ("f16[ 9 ]: 0 : 1 :sorted", lambda x: is_sorted(x) and 0 <= x[0] < x[-1] <= 1),
    ],
)
def test_arrays_of_some_values(text, holds):
    kind, plain = text.split(":")[0], np.random.default_rng(0)
    found = target.argument(text, np.random.default_rng(0))
    as_any = target.argument(kind, plain)
    assert (found.dtype, found.shape) == (as_any.dtype, as_any.shape)
    assert holds(found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2.0", 2.0), ("3", 3), ("True", True), ("None", None), ("(1, 2)", (1, 2)),
        ("'x'", "x"), ("relu", "relu"), ("a b", "a b"), ("[1, 2]", [1, 2]),
    ],
)  # fmt: skip
def test_other_arguments_are_python_values(text, value):
    found = target.argument(text, np.random.default_rng(0))
    assert (found, type(found)) == (value, type(value))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_to_a_terminal_alone(rules, capsys, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["check", f"{rules}:identity", "f32[3]"]) == 0
    shown = terminal.getvalue()
    assert re.search(r"value: .* 0/27", shown)
    assert re.search(r"leaks: .* 26/27", shown)
    assert shown.rpartition("\r")[2] == ""  # the bar is gone
    with output.progress(io.StringIO()) as show:
        assert show is None


def test_without_tqdm_there_is_no_progress(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with output.progress(Terminal()) as show:
        assert show is None


@pytest.mark.full
def test_a_module_in_the_current_folder(rules):
    run = subprocess.run(
        [sys.executable, "-m", "jaxfn", "check", "rules:identity", "f32[3]"],
        capture_output=True,
        text=True,
        cwd=rules.parent,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": ""},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "`identity`: all " in run.stdout


@pytest.mark.full(unless=lambda arguments: arguments[0] == "check")
@pytest.mark.parametrize(
    "arguments",
    [
        ["demo"],
        ["check", "{}:Round", "f32[3]"],
        ["explain", "{}:Scale", "f32[3]", "i32[2]", "2.0"],
        ["--help"],
    ],
    ids=["demo", "check", "explain", "help"],
)
def test_a_reader_that_goes_away_is_met_with_silence(rules, arguments):
    command = [sys.executable, "-m", "jaxfn", *(x.format(rules) for x in arguments)]
    expected = {"check": 1}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        run.stdout.close()  # as `head` does once it has its lines
        assert run.stderr.read() == ""
    assert run.returncode == expected.get(arguments[0], 0)


# ---- guide


def test_the_guide_runs_and_is_a_page(capsys):
    assert main(["guide"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# jaxfn")
    assert len(text.splitlines()) < 90
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, scope)
    assert scope["gradient"].tolist() == [3, 3]
    assert jax.jacfwd(scope["cube"])(2.0) == 12
    assert jax.grad(scope["cube"])(2.0) == 12


def test_the_guide_is_in_the_wheel():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    assert wheel["build"]["targets"]["wheel"]["packages"] == ["jaxfn"]
    assert (ROOT / "jaxfn/llms.txt").exists()  # hatch takes each file of the package
