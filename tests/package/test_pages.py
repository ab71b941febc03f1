"""The README and the pages of reference: what they say works, and links lead on."""

import importlib.util
import json
import linecache
import re
import sys
import tomllib
from pathlib import Path

import pytest

from jaxfn.__main__ import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
REFERENCE = sorted((ROOT / "notebooks/reference").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TEXTS = {path: path.read_text() for path in (README, *REFERENCE)}
BLOCK = r"```{}\n(.*?)```"

each_page = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
each_reference = pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)


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


def _running(path):
    """A page whose code can run here, or one to skip."""
    code = "".join(blocks(path, "python"))
    lacking = [
        package
        for package in ("torch", "triton", "liger_kernel")
        if re.search(rf"^(import|from) {package}\b", code, re.MULTILINE)
        and importlib.util.find_spec(package) is None
    ]
    reason = f"{' and '.join(lacking)} not installed here"
    marks = [pytest.mark.skip(reason)] if lacking else []
    return pytest.param(path, id=path.name, marks=marks)


def test_the_pages_are_found():
    assert REFERENCE
    assert NOTEBOOKS
    with_code = {path for path in TEXTS if blocks(path, "python")}
    assert README in with_code
    assert len(with_code) > 3
    assert any(blocks(path, "text") for path in with_code)


@pytest.mark.parametrize("path", [_running(path) for path in TEXTS])
def test_code_runs_and_prints_what_the_page_says(path, capsys):
    scope: dict[str, object] = {"__name__": path.stem}
    for i, block in enumerate(blocks(path, "python")):
        name = f"{path.name}, block {i}"
        # Triton reads the text of a kernel.
        linecache.cache[name] = len(block), None, block.splitlines(True), name
        exec(compile(block, name, "exec"), scope)
    printed = " ".join(capsys.readouterr().out.split())
    for text in blocks(path, "text"):
        assert " ".join(text.split()) in printed


@each_page
def test_every_block_is_of_a_known_kind(path):
    # One that is neither run nor compared is a command.
    assert TEXTS[path].count("```") % 2 == 0
    opened = re.findall(r"^```(.*)$", TEXTS[path], re.MULTILINE)[::2]
    assert set(opened) <= {"python", "text", "sh"}


def test_the_readme_is_short():
    assert len(TEXTS[README].splitlines()) <= 170


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


@each_reference
def test_a_page_says_what_it_is_and_is_linked_both_ways(path):
    title, first = TEXTS[path].split("\n\n")[:2]
    assert title.startswith("# ")
    assert first.startswith("This page ")
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
    page = ROOT / "notebooks/reference/check_and_explain.md"
    (tmp_path / "mymodule.py").write_text(blocks(page, "python")[0])
    (command,) = [x for x in blocks(page, "sh") if "jaxfn check" in x]
    target, argument = re.findall(r'jaxfn check (\S+) "(.*)"', command)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "mymodule", None)  # not kept for other tests
    del sys.modules["mymodule"]
    assert main(["check", target, argument]) == 0
    assert "`Exp`: all " in capsys.readouterr().out
