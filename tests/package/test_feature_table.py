"""The table of features beside other ways says what happens."""

from pathlib import Path

import pytest
from jax.experimental import hijax

from tests.package.feature_table import PEERS, ROWS, cell, has

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "notebooks/design/measurements.md").read_text()
LINES = [
    [part.strip() for part in line.removeprefix("|").removesuffix("|").split("|")]
    for line in PAGE[PAGE.index("## Other ways") :].splitlines()
    if line.startswith("|")
]
COLUMNS = {peer: i for peer in PEERS for i, x in enumerate(LINES[0]) if peer in x}
TABLE = {row[0]: row for row in LINES[2:]}


def test_the_table_has_each_row_and_peer():
    assert set(COLUMNS) == set(PEERS)
    assert set(ROWS) <= set(TABLE)


@pytest.mark.parametrize("peer", [*filter(has, PEERS)])
@pytest.mark.parametrize("row", ROWS)
def test_a_cell_says_what_happens(row, peer):
    said = TABLE[row][COLUMNS[peer]]
    works, why = cell(row, peer)
    if said == "":
        assert "not tried" in why
    elif row == "reverse mode from a forward rule" and peer == "hijax":
        assert said == "yes"
        assert works == hasattr(hijax, "vjp_from_jvp"), why  # newer JAX only
    else:
        assert said.partition(" ")[0].strip(",;") == ("yes" if works else "no"), why
