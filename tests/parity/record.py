"""Record what torch does: `python -m tests.parity.record [SECTION ...]`.

A section is the letter of some rows, or "catalogue"; all of them if none is named.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from . import core, frameworks
from .catalogue import record as catalogue


def sightings(section: str) -> dict[str, Any]:
    """What torch is seen to do in each row of a section."""
    torch = frameworks.torch()
    ids = [id for id in core.ROW_IDS[section] if id in core.ROWS]
    return {id: core.to_json(core.ROWS[id].seen(torch)) for id in ids}


def version() -> str:
    """torch's version, without its build."""
    return frameworks.torch().torch.__version__.split("+")[0]


def write(section: str, path: pathlib.Path) -> None:
    """Write the sightings of a section, one line for each row."""
    lines = [
        f"  {json.dumps(id)}: {json.dumps(seen, sort_keys=False)}"
        for id, seen in sightings(section).items()
    ]
    text = ",\n".join(lines)
    path.write_text(
        f'{{"torch": {json.dumps(version())}, "rows": {{\n{text}\n}}}}\n',
        encoding="utf-8",
    )


def main(names: list[str]) -> None:
    """Record these sections, the catalogue among them if it is named."""
    if "catalogue" in names:
        catalogue.main()
    for section in [x.upper() for x in names if x != "catalogue"]:
        core.load()
        write(section, core.DATA / f"{section.lower()}.json")


if __name__ == "__main__":
    main(sys.argv[1:] or ["catalogue", *core.load()])
