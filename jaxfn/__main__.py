"""The command line: `demo`, `guide`, `check`, `explain`, `compare`, `translate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxfn import __version__
from jaxfn._cli import commands, say


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code.

    Args:
        argv: The command line without the program; by default the process's own.

    Returns:
        0 for success, 1 if a check failed, 2 if the command is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m jaxfn", description="torch.autograd.Function for JAX."
    )
    parser.add_argument("--version", action="version", version=f"jaxfn {__version__}")
    known = parser.add_subparsers(dest="command", required=True)
    commands.add_parsers(known)
    try:
        options = parser.parse_args(argv)
    finally:
        say("")  # flush the output of `--help`
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
