"""What the package says of itself: its version and what it needs."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxfn
from jaxfn.__main__ import main
from tests.package import printed

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements):
    return {re.split(r"[<>=~;\[ ]", text)[0]: text for text in requirements}


NEEDED = names(SETTINGS["project"]["dependencies"])
EXTRAS = names(
    text
    for requirements in SETTINGS["project"]["optional-dependencies"].values()
    for text in requirements
)


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+", jaxfn.__version__)
    assert "version" not in SETTINGS["project"]
    assert SETTINGS["project"]["dynamic"] == ["version"]
    path = ROOT / SETTINGS["tool"]["hatch"]["version"]["path"]
    assert path.read_text().count(f'__version__ = "{jaxfn.__version__}"') == 1


def test_the_installed_package_has_the_version():
    assert importlib.metadata.version("jaxfn") == jaxfn.__version__


def test_the_version_is_had_without_an_installed_package(tmp_path):
    (tmp_path / "jaxfn").symlink_to(ROOT / "jaxfn")
    code = (
        "import importlib.metadata as m; m.version = m.distribution = None\n"
        "import jaxfn; print(jaxfn.__version__)"
    )
    assert printed(code, cwd=tmp_path).strip() == jaxfn.__version__


def test_the_command_line_prints_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"jaxfn {jaxfn.__version__}\n"


def test_what_is_imported_is_declared():
    imported = set()
    for path in (ROOT / "jaxfn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"jaxfn"}
    assert set(NEEDED) <= others <= {*NEEDED, *EXTRAS}


def test_ci_reads_the_oldest_jax_from_the_dependencies():
    (command,) = re.findall(r"oldest=\$\((sed .*)\)", (ROOT / ".ci/run").read_text())
    run = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert f"jax>={run.stdout.strip()}" == NEEDED["jax"]
    assert f"JAX {run.stdout.strip()} or newer" in _readme()


def _readme():
    return " ".join((ROOT / "README.md").read_text().split())
