"""The public API: names, docstrings, examples."""

import ast
import functools
import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import jaxfn
from tests.package import printed

ROOT = Path(__file__).parents[2]

NAMESPACES = [jaxfn, jaxfn.amp, jaxfn.autograd, jaxfn.autograd.graph]
PUBLIC = [
    (f"{space.__name__}.{name}", getattr(space, name))
    for space in NAMESPACES
    for name in space.__all__
    if not inspect.ismodule(getattr(space, name))
]
WITHOUT_SOURCE = {  # torch does not document these, or does not have them
    "jaxfn.CheckError",
    "jaxfn.CheckReport",
    "jaxfn.Explanation",
    "jaxfn.FunctionMeta",
    "jaxfn.InterpreterWarning",
    "jaxfn.RuleError",
    "jaxfn.amp.get_autocast_dtype",
    "jaxfn.amp.is_autocast_enabled",
    "jaxfn.autograd.graph.save_compressed",
}
METHODS = [
    (f"{cls.__name__}.{name}", member)
    for cls in (
        jaxfn.Function,
        jaxfn.FunctionCtx,
        jaxfn.BackwardCFunction,
        jaxfn.InplaceFunction,
        jaxfn.NestedIOFunction,
        jaxfn.CheckReport,
        jaxfn.Explanation,
    )
    for name, member in vars(cls).items()
    if not name.startswith("_")
    and (callable(member) or isinstance(member, (staticmethod, property)))
]


@pytest.mark.parametrize("space", NAMESPACES, ids=lambda s: s.__name__)
def test_the_names_of_a_namespace_are_sorted_and_its_own(space):
    assert sorted(space.__all__) == space.__all__
    for name in space.__all__:
        member = getattr(space, name)
        assert getattr(member, "__module__", member.__name__).startswith("jaxfn")


@pytest.mark.parametrize(("name", "obj"), PUBLIC, ids=[n for n, _ in PUBLIC])
def test_every_public_name_has_a_docstring_with_an_example_and_a_source(name, obj):
    doc = inspect.getdoc(obj) or ""
    assert "Example:" in doc
    assert ">>>" in doc
    if name not in WITHOUT_SOURCE:
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
    for path in (ROOT / "jaxfn").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_importing_brings_in_nothing_but_jax():
    code = (
        "import sys, jax; before = set(sys.modules); import jaxfn; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    extra = set(printed(code).split()) - set(sys.stdlib_module_names)
    assert extra <= {"jaxfn", "jax", "jaxlib", "numpy", "ml_dtypes"}, extra


def test_importing_does_not_bring_in_pallas():
    """It would take twice as long."""
    found = printed("import sys, jaxfn; print(*sys.modules)").split()
    assert "jaxfn" in found
    assert not [name for name in found if "pallas" in name or name == "jax.extend"]


def test_the_tools_are_imported_where_they_are_first_used():
    code = (
        "import sys, jax, jaxfn\n"
        "tools = {'_check', '_explain', '_gradcheck.run'}\n"
        "found = lambda: {t for t in tools if f'jaxfn.{t}' in sys.modules}\n"
        "assert set(jaxfn.__all__) <= set(dir(jaxfn))\n"
        "assert not found(), found()\n"
        "assert jaxfn.check is jaxfn.check and jaxfn.explain\n"
        "assert jaxfn.autograd.gradcheck(lambda x: x, jax.numpy.ones(1), eps=0.5)\n"
        "assert found() == tools, found()\n"
        "assert not hasattr(jaxfn, 'anything_else')\n"
    )
    printed(code)


def test_one_module_knows_versions_and_internals_of_jax():
    inner = (
        r"\b0\.1\d\b|jax(lib)?\.(__version|version)|from jax(lib)? import __version"
        r"|jax\.(_src|extend|interpreters|experimental)\b"
    )
    found = {
        path.name
        for path in (ROOT / "jaxfn").rglob("*.py")
        if re.search(inner, path.read_text())
    }
    assert found == {"jax_internals.py"}


def test_jax_own_decorators_are_used_in_few_places():
    users = defaultdict(set)
    for path in (ROOT / "jaxfn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                users[node.func.attr].add(path.name)

    assert users["custom_vjp"] == {"call.py"}
    # One `call.py` is the core's, the other one refuses to differentiate kernels.
    # `_jax_rules` gives JAX the rules of a call with a reference, and `batch` has an
    # identity that no vmap may batch.
    refuse, jax_rules = "_partitioned.py", "_jax_rules.py"
    assert users["custom_jvp"] == {"call.py", refuse, jax_rules, "batch.py"}
    assert users["custom_vmap"] == {"batch.py"}


@pytest.mark.parametrize("name", jaxfn._ELSEWHERE)
def test_a_name_of_torch_or_jax_tells_where_it_is(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': write"):
        vars(jaxfn)["__getattr__"](name)
    for word in re.findall(r"jaxfn(?:\.\w+)+", jaxfn._ELSEWHERE[name]):
        if word != "jaxfn.torch":  # which is imported by name
            found = functools.reduce(getattr, word.split(".")[1:], jaxfn)
            assert found is not None
    for method in re.findall(r"def_?\w+", jaxfn._ELSEWHERE[name]):
        assert callable(getattr(jaxfn.custom_function, method))


def test_another_name_is_not_looked_for():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'$"):
        jaxfn.nothing  # noqa: B018
