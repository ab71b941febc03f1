"""Every cell of the table is run, and is what the page says."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from tests.wrong import BATCH

from . import catalogue, definitions, page
from .catalogue import ROWS
from .definitions import BY_HAND, DEFINITIONS, OURS

ROOT = Path(__file__).parents[2]
SAID = {tuple(x.split(" | ")[:2]): x for x in page.written()[2:]}


def key(row):
    return f"| {row.library}", row.place


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row(row):
    cells = catalogue.run(row)
    # No cell fails in jaxfn that works by hand.
    for ours, by_hand in (("backward", "custom_vjp"), ("jvp", "custom_jvp")):
        assert cells[ours].ran == cells[by_hand].ran, cells
    if any(cells[name].ran for name in BY_HAND):
        assert all(cells[name].ran for name in ("both", "derived", "decorator")), cells
    # The rule that ran is the one that the definition has for this mode.
    for name, cell in cells.items():
        assert cell.ran in (row.rules[name], None), (name, cell)
        assert cell.ran or "**" not in page.words(cell), (name, cell)
    assert page.line(row, cells) == SAID[key(row)]


def test_the_page_has_the_rows_and_no_others():
    assert page.written()[:2] == page.table([])
    assert list(SAID) == [key(row) for row in ROWS]
    assert len(SAID) == len(page.written()) - 2


def test_the_page_counts_its_cells():
    text = page.PATH.read_text()
    assert f"{len(ROWS)} places, {len(ROWS) * len(DEFINITIONS)} cells" in text


def test_the_page_says_what_its_reasons_mean():
    text = page.PATH.read_text()
    said = {x for line in SAID.values() for x in re.findall(r"\*([^|]+)\*", line)}
    assert said == set(page.REASONS)
    for reason in said:
        assert f"- *{reason}*: " in text


def test_the_page_and_the_group_name_the_versions_that_are_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = settings["dependency-groups"]["ecosystem"]
    text = page.PATH.read_text()
    for pin in pins:
        name, _, version = pin.partition("==")
        assert importlib.metadata.version(name) == version
        assert f"{name} {version}" in text
    for name in ("jax", "jaxlib"):
        assert importlib.metadata.version(name) >= "0.12"


def test_the_rows_of_the_issue_are_there():
    names = {row.library for row in ROWS}
    assert names == {
        *("flax.linen", "flax.nnx", "haiku", "optax", "orbax", "chex", "equinox"),
        *("lineax", "optimistix", "jaxopt", "diffrax", "numpyro", "blackjax"),
        *("jaxtyping", "folx", "jax.export", "Pallas", "JAX"),
    }


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_definitions_are_wrong_on_purpose(name):
    # Else a row could not tell which rule ran.
    import jax
    import jax.numpy as jnp

    x = jnp.float32(0.3)
    f = definitions.define(name, batch=True)
    factor = {"backward": 2, "jvp": 3}[definitions.REVERSE[name]]
    assert jnp.allclose(jax.grad(f)(x), factor * jnp.cos(x))
    assert jnp.allclose(jax.vmap(f)(x[None]), jnp.sin(x) + BATCH)


def test_batch_rules_run_in_rows_that_have_one():
    # One place shows it for each definition: its values are half more.
    (row,) = [x for x in ROWS if "fake_jit" in x.place and x.batch]
    plain = catalogue.numbers(row.run, definitions.define("backward"))
    for name in OURS:
        found = catalogue.numbers(row.run, definitions.define(name, batch=True))
        assert (found - plain)[:2].tolist() == pytest.approx([2 * BATCH] * 2)
