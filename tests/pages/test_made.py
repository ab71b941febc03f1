"""What scripts write into the pages is what they would write today."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

from notebooks import palette
from tests.pages import api, pictures

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "notebooks"


def test_the_page_of_the_api_is_current():
    assert api.PAGE.read_text() == api.page(), "run python -m tests.pages.api"


def test_the_page_of_the_api_has_every_public_name():
    text = api.PAGE.read_text()
    for space in api.SPACES:
        for name in api.public(space):
            is_module = any(x.exists() for x in api.files(f"{space}.{name}"))
            assert is_module or re.search(rf"`{name}\b", text), name


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_current_and_on_a_page(name):
    # Its texts: how they are placed differs among releases of matplotlib.
    path = pictures.FOLDER / f"{name}.svg"
    with mpl.rc_context(pictures.STYLE):
        expected = pictures.texts(pictures.PICTURES[name]())
    said = "run python -m tests.pages.pictures"
    assert sorted(pictures.texts_of(path)) == expected, said
    pages = [ROOT / "README.md", *PAGES.glob("*/*.md")]
    assert any(f"pictures/{name}.svg)" in page.read_text() for page in pages)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_has_the_colours_of_the_palette_on_light_and_dark_pages(name):
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    style, _, drawing = text.partition("</style>")
    assert "@media (prefers-color-scheme: dark)" in style
    used = set(re.findall(r"(?:fill|stroke): (?!none)([^;\"]+)", drawing))
    assert used <= set(palette.DARK)
    for part, light in re.findall(r"(fill|stroke): (#\w+)", drawing):
        dark = palette.DARK[light]
        assert f'[style*="{part}: {light}"] {{{part}: {dark} !important}}' in style
    # What has no colour is black, on a dark page too. The ground is transparent.
    parts = re.findall(r"<(?:path|text)\b[^>]*>", drawing.partition("<clipPath")[0])
    assert parts
    assert all(re.search(r"(?:fill|stroke): #|\"fill: none\"", x) for x in parts)


def test_the_page_of_measurements_repeats_results():
    page = (PAGES / "design/measurements.md").read_text()
    results = (ROOT / "tests/benchmarks/results.md").read_text()
    table, known = (
        text[text.index("| what | target |") :].partition("\n\n")[0].splitlines()
        for text in (page, results)
    )
    assert len(table) > 10
    assert table[:2] == known[:2]
    assert set(table) <= set(known)


def test_the_page_of_libraries_counts_the_results():
    page = (PAGES / "reference/libraries.md").read_text()
    lines = (ROOT / "tests/ecosystem/results.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert f"{len(rows)} places" in page
    said = dict(re.findall(r"^\| ([\w.]+) \| (\d+ of \d+) \|", page, re.MULTILINE))
    found: dict[str, list[bool]] = {}
    for library, _, _, _, backward, *_ in rows:
        found.setdefault(library.removeprefix("| "), []).append("*" not in backward)
    assert said == {k: f"{sum(v)} of {len(v)}" for k, v in found.items()}
