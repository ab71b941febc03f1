"""Record what torch does: `python -m tests.parity.record [SECTION ...]`.

A section is the letter of some rows, or "catalogue"; all of them if none is named. Or
"newest": of all rows, those that the installed torch does in another way than the one
that their section was recorded with, and those that this one lacked.
"""

from __future__ import annotations

import json
import sys

from . import core, frameworks
from .catalogue import record as catalogue


def version() -> str:
    """torch's version, without its build."""
    return frameworks.torch().torch.__version__.split("+")[0]


def write(section: str) -> None:
    """Write what torch is seen to do in each row of a section, or in the newest."""
    ids = core.ROWS if section == "newest" else core.ROW_IDS[section]
    found = {
        id: core.ROWS[id].seen(frameworks.torch())
        for id in ids
        if id in core.ROWS and core.ROWS[id].is_in(version())
    }
    if section == "newest":
        known = [core.recorded(x)["rows"] for x in core.load()]
        old = {id: x for rows in known for id, x in rows.items()}
        found = {
            id: x for id, x in found.items() if id not in old or core.differ(x, old[id])
        }
    lines = [
        f"  {json.dumps(id)}: {json.dumps(core.to_json(x))}" for id, x in found.items()
    ]
    text = ",\n".join(lines)
    (core.DATA / f"{section.lower()}.json").write_text(
        f'{{"torch": {json.dumps(version())}, "rows": {{\n{text}\n}}}}\n',
        encoding="utf-8",
    )


def main(names: list[str]) -> None:
    """Record these sections, the catalogue among them if it is named."""
    if "catalogue" in names:
        catalogue.main()
    core.load()
    for name in [x for x in names if x != "catalogue"]:
        write(name if name == "newest" else name.upper())


if __name__ == "__main__":
    main(sys.argv[1:] or ["catalogue", *core.load()])
