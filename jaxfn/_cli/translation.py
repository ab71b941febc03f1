"""`python -m jaxfn translate FILE_OR_MODULE[:CLASS] [ARGUMENT ...]`.

torch and LibCST are imported when the command runs: not before.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jaxfn._cli import commands
from jaxfn._cli.target import UsageError, argument, load, module

_TEXT = f"""\
{commands.ARGUMENTS}
With arguments the original runs on them, which shows what is a tensor, and the result
is compared with it. Without, only what is certain is translated.

exit code: 0 if all is translated, and equal where arguments were given; 1 if something
is left or differs; 2 if the command is wrong
"""


def add_parser(commands: Any) -> None:
    """Add the command to a parser of commands."""
    parser = commands.add_parser(
        "translate",
        help="write PyTorch Functions in jax.numpy",
        description="Translate the torch.autograd.Functions of a file to source text "
        "that needs jax and jaxfn alone. What can't be translated is marked, and "
        "raises when it runs.",
        epilog=_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="FILE_OR_MODULE[:CLASS]")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*")
    parser.add_argument("-o", dest="out", metavar="OUT", help="the file to write")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers")


def run(options: argparse.Namespace) -> int:
    """Run `translate`; the result is the exit code."""
    generator = np.random.default_rng(options.seed)
    try:
        args = [argument(text, generator) for text in options.arguments]
        translated = importlib.import_module("jaxfn.torch._translation").translated
        classes = _classes(options.target, args)
        with commands.progress(sys.stderr, "row") as show:
            found = translated(classes, args, _is_whole(options), show)
    except (UsageError, ImportError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return commands.USAGE
    if options.out is None:
        sys.stdout.write(found.source)
        sys.stderr.write(f"{found}\n")
    else:
        Path(options.out).write_text(found.source, encoding="utf-8")
        sys.stdout.write(f"{found}\n")
    return 0 if found.ok else 1


def _is_whole(options: argparse.Namespace) -> bool:
    return ":" not in options.target


def _classes(target: str, args: list[Any]) -> list[Any]:
    """The class that is named, or all Functions that the file defines."""
    base = importlib.import_module("jaxfn.torch._lib").torch.autograd.Function
    found = load(target) if ":" in target else module(target)
    if ":" in target:
        if isinstance(found, type) and issubclass(found, base):
            return [found]
        raise UsageError(f"{target} is no torch.autograd.Function: got {found!r}.")
    classes = [
        value
        for value in vars(found).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == found.__name__
    ]
    if not classes:
        raise UsageError(f"{target} defines no torch.autograd.Function.")
    if args and len(classes) > 1:
        names = ", ".join(cls.__name__ for cls in classes)
        raise UsageError(
            f"{target} defines {len(classes)} Functions ({names}): name the one that "
            f"the arguments are for, as in {target}:{classes[0].__name__}."
        )
    return classes
