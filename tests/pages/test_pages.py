"""The README and the pages: their code runs, and their links lead on."""

import importlib.util
import json
import linecache
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from jaxfn.__main__ import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "notebooks").glob("*/*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
TEXTS = {path: path.read_text() for path in (README, *PAGES)}
BLOCK = r"```(?:{})\n(.*?)```"
CODE = "python|py"  # `py` is code for PyTorch on a page that else needs none

each_page = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
each_of_pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def blocks(path, language):
    return re.findall(BLOCK.format(language), TEXTS[path], re.DOTALL)


def prose(path):
    return re.sub(BLOCK.format(r"\w+"), "", TEXTS[path], flags=re.DOTALL)


def links(text):
    return [x for x in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in x]


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in headings
    }


def missing(code):
    """The packages that a block imports and that are not installed."""
    names = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    needs = ["torch"] if "jaxfn.torch" in code else []
    return [x for x in (*names, *needs) if importlib.util.find_spec(x) is None]


def _running(path):
    """A page whose code can run here, or one to skip."""
    lacking = missing("".join(blocks(path, "python")))
    marks = [pytest.mark.skip(f"not installed: {lacking}")] if lacking else []
    return pytest.param(path, id=path.name, marks=marks)


def test_the_pages_are_found():
    assert len(PAGES) > 10
    assert NOTEBOOKS
    assert sum(bool(blocks(path, "python")) for path in TEXTS) > 5


@pytest.mark.parametrize("path", [_running(path) for path in TEXTS])
def test_code_runs_and_prints_what_the_page_says(path, capsys):
    scope: dict[str, object] = {"__name__": path.stem}
    for i, block in enumerate(blocks(path, CODE)):
        if missing(block):  # a `py` block
            continue
        name = f"{path.name}, block {i}"
        # Triton reads the text of a kernel.
        linecache.cache[name] = len(block), None, block.splitlines(True), name
        exec(compile(block, name, "exec"), scope)
    printed = " ".join(capsys.readouterr().out.split())
    for text in blocks(path, "text"):
        assert " ".join(text.split()) in printed


@pytest.mark.skipif(bool(missing("import torch")), reason="not installed: torch")
@pytest.mark.parametrize("smooth", [True, False])
def test_the_port_of_the_guide_equals_its_original(smooth):
    import jaxfn.torch

    guide = ROOT / "notebooks/guides/port_a_function.md"
    (original,), (port,) = blocks(guide, "py"), blocks(guide, "python")
    scopes: list[dict] = [{}, {}]
    for text, scope in zip((original, port), scopes, strict=True):
        exec(text, scope)
    original, port = (scope["SoftClip"] for scope in scopes)
    x = scopes[1]["x"]
    report = jaxfn.torch.compare(port, original, x, 2.0, smooth, order=1)
    assert report.ok, str(report)


@each_page
def test_every_block_is_of_a_known_kind(path):
    # One that is neither run nor compared is a command.
    assert TEXTS[path].count("```") % 2 == 0
    opened = re.findall(r"^```(.*)$", TEXTS[path], re.MULTILINE)[::2]
    assert set(opened) <= {"python", "py", "text", "sh"}


def test_pages_are_short():
    lines = {path: len(text.splitlines()) for path, text in TEXTS.items()}
    assert lines.pop(README) <= 150
    assert max(lines.values()) <= 140
    assert sum(lines.values()) <= 1300


def test_the_readme_has_two_commands():
    commands = re.findall(r"^python3 -m venv .*$", TEXTS[README], re.MULTILINE)
    assert len(commands) == 2  # which .ci/run runs


@each_page
def test_links_lead_to_what_is_there(path):
    for link in links(prose(path)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_page
def test_files_and_programs_that_are_named_are_there(path):
    for name in re.findall(r"`((?:tests|notebooks|jaxfn)/[\w/.]*)`", TEXTS[path]):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"-m (tests[\w.]*|jaxfn[\w.]*)", TEXTS[path]):
        found = ROOT / name.replace(".", "/")
        assert found.with_suffix(".py").exists() or (found / "__main__.py").exists()


@each_page
def test_extras_that_are_named_are_declared(path):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    for names in re.findall(r"'\.\[(.*?)\]'", TEXTS[path]):
        assert set(names.split(",")) <= set(extras)


@each_of_pages
def test_a_page_is_linked_both_ways(path):
    assert TEXTS[path].startswith("# ")
    assert "](../../README.md)" in TEXTS[path]
    assert path.relative_to(ROOT).as_posix() in links(TEXTS[README])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_linked_and_its_links_lead_to_what_is_there(path):
    assert path.relative_to(ROOT).as_posix() in links(TEXTS[README])
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for link in links("".join(cell["source"])):
                name, _, anchor = link.partition("#")
                assert (path.parent / name).exists(), link
                assert not anchor or anchor in anchors((path.parent / name).resolve())


def test_the_command_line_checks_the_class_of_its_page(tmp_path, monkeypatch, capsys):
    page = ROOT / "notebooks/guides/check_rules.md"
    (tmp_path / "mymodule.py").write_text(blocks(page, "python")[0])
    (command,) = [x for x in blocks(page, "sh") if "jaxfn check" in x]
    arguments = shlex.split(command.partition("jaxfn ")[2])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "mymodule", None)  # not kept for other tests
    del sys.modules["mymodule"]
    assert main(arguments) == 0
    assert "`Round`: all " in capsys.readouterr().out
    assert main([x for x in arguments if x != "--surrogate"]) == 1
