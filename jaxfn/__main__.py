"""The command line: `demo`, `check`, `explain`, `compare`, `translate`."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence

from jaxfn import __version__, _demo
from jaxfn._check import cli, translate_cli
from jaxfn._explain import explain


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
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="run the examples of PyTorch's pages under JAX's transformations",
        description="Run the examples of PyTorch's pages under JAX's transformations "
        "on the default device, compare with finite differences or a loop, and print "
        "a table. The exit code is 1 if a cell fails.",
    )
    demo.add_argument(
        "--break",
        dest="broken",
        choices=_demo.BROKEN,
        help="make this rule wrong, and see which cells it reaches",
    )
    cli.add_parsers(commands)
    translate_cli.add_parser(commands)
    options = parser.parse_args(argv)
    if options.command == "check":
        return cli.run(options)
    if options.command == "explain":
        return cli.run_explain(options, explain)
    if options.command == "compare":
        room = functools.partial(importlib.import_module, "jaxfn.torch")
        return cli.run_compare(options, room, (options.port, options.original))
    if options.command == "translate":
        return translate_cli.run(options)
    rows = list(_demo.cells(options.broken))
    print(_demo.table(rows, options.broken))
    return 0 if all(cell.ok for cell in rows) and options.broken is None else 1


if __name__ == "__main__":
    sys.exit(main())
