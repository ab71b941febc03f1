"""The public face: names, docstrings, examples."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxfn

ROOT = Path(__file__).parent.parent

PUBLIC = [(name, getattr(jaxfn, name)) for name in jaxfn.__all__]
METHODS = [
    (f"{cls.__name__}.{name}", member)
    for cls in (jaxfn.Function, jaxfn.FunctionCtx, jaxfn.BackwardCFunction)
    for name, member in vars(cls).items()
    if not name.startswith("_")
    and (callable(member) or isinstance(member, (staticmethod, property)))
]


def test_the_names_of_the_package():
    assert sorted(jaxfn.__all__) == jaxfn.__all__
    for name in jaxfn.__all__:
        assert getattr(jaxfn, name).__module__.startswith("jaxfn")


@pytest.mark.parametrize(("name", "obj"), PUBLIC, ids=[n for n, _ in PUBLIC])
def test_every_public_name_has_a_docstring_with_an_example_and_a_source(name, obj):
    doc = inspect.getdoc(obj) or ""
    assert "Example:" in doc
    assert ">>>" in doc
    if name != "FunctionMeta":  # torch does not document it
        assert "Source: https://" in doc


@pytest.mark.parametrize(("name", "obj"), METHODS, ids=[n for n, _ in METHODS])
def test_every_public_method_has_a_docstring(name, obj):
    obj = getattr(obj, "__func__", obj)
    assert inspect.getdoc(obj)


@pytest.mark.parametrize(
    "name",
    ["apply", "forward", "setup_context", "backward", "jvp", "vmap"],
)
def test_every_rule_has_an_example(name):
    assert ">>>" in inspect.getdoc(getattr(jaxfn.Function, name))


def test_every_module_has_a_docstring():
    for info in pkgutil.walk_packages(jaxfn.__path__, "jaxfn."):
        if not info.name.endswith("__main__"):
            assert importlib.import_module(info.name).__doc__


def test_readme_code_runs():
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)


def test_importing_brings_in_nothing_but_jax():
    code = (
        "import sys, jax; before = set(sys.modules); import jaxfn; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    extra = set(run.stdout.split()) - set(sys.stdlib_module_names)
    assert extra <= {"jaxfn", "jax", "jaxlib", "numpy", "ml_dtypes"}, extra
