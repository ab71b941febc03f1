"""The command line: `demo`, `check`, `explain`, `compare`, `translate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxfn import __version__
from jaxfn._cli import commands, demo, translation


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the result is the exit code.

    Args:
        argv: the command line without the program; that of the process by default.

    Returns:
        0 if all is right, 1 if a check failed, 2 if the command is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m jaxfn", description="torch.autograd.Function for JAX."
    )
    parser.add_argument("--version", action="version", version=f"jaxfn {__version__}")
    known = parser.add_subparsers(dest="command", required=True)
    parsed = known.add_parser(
        "demo",
        help="run the examples of PyTorch's pages under JAX's transformations",
        description="Check the examples of PyTorch's pages under JAX's "
        "transformations on the default device, and print a matrix of Functions by "
        "transformations. The exit code is 1 if a cell fails.",
    )
    parsed.add_argument(
        "--break",
        dest="broken",
        choices=demo.BROKEN,
        help="make this rule wrong, and see which cells it reaches",
    )
    commands.add_parsers(known)
    translation.add_parser(known)
    options = parser.parse_args(argv)
    if options.command == "check":
        return commands.run(options)
    if options.command == "explain":
        return commands.run_explain(options)
    if options.command == "compare":
        return commands.run_compare(options)
    if options.command == "translate":
        return translation.run(options)
    rows = list(demo.cells(options.broken))
    print(demo.table(rows, options.broken))
    return 0 if all(cell.ok for cell in rows) and options.broken is None else 1


if __name__ == "__main__":
    sys.exit(main())
