"""`python -m jaxfn check FILE_OR_MODULE:NAME ARGUMENT ...`."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import jax.numpy as jnp
import numpy as np

from jaxfn._base import short
from jaxfn._check.api import check

USAGE = 2
"""The exit code where the command itself is wrong, as argparse has it."""

EXAMPLES = """\
arguments:
  f32[3,4]    normal numbers; also f16, bf16, f64, c64, c128
  i32[5]      integers 0 to 2; also i8, i16, i64, u8, u16, u32, u64, bool
  f32[]       a scalar
  anything else is a Python literal (2.0, True, None, (1, 2)), or else a string

exit code: 0 if all checks passed, 1 if one failed, 2 if the command is wrong
"""

_SPEC = re.compile(r"(bool|bf16|[fiuc]\d+)\[(\d*(?:,\d+)*)\]")
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


class UsageError(Exception):
    """What was asked for can't be found or understood."""


def add_parser(commands: Any) -> None:
    """Add the command to a parser of commands."""
    parser = commands.add_parser(
        "check",
        help="check the rules of a Function on random arguments",
        description="Check value, backward, jvp and vmap of a Function, or of any "
        "function that JAX can call, on random arguments, and print a table.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="FILE_OR_MODULE:NAME")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers")
    parser.add_argument(
        "--surrogate",
        action="store_true",
        help="the derivative differs from that of the value on purpose",
    )
    parser.add_argument("--reference", metavar="FILE_OR_MODULE:NAME")
    parser.add_argument("--precision", choices=("float64", "given"), default="float64")
    parser.add_argument("--skip", metavar="CHECK", action="append", default=[])


def run(options: argparse.Namespace) -> int:
    """Run the command; the result is the exit code."""
    try:
        fun = load(options.target)
        reference = load(options.reference) if options.reference else None
        generator = np.random.default_rng(options.seed)
        args = [argument(text, generator) for text in options.arguments]
        with progress(sys.stderr) as show:
            report = check(
                fun,
                *args,
                reference=reference,
                surrogate=options.surrogate,
                skip=options.skip,
                precision=options.precision,
                seed=options.seed,
                progress=show,
            )
    except (UsageError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    sys.stdout.write(f"{report}\n")
    return 0 if report.ok else 1


def load(target: str) -> Any:
    """The object that `file.py:Name` or `module:Name` means; Name may have dots."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{target!r} is no target: expected FILE_OR_MODULE:NAME, such as "
            "rules.py:Square or package.rules:Square."
        )
    found = _module(place)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise UsageError(f"{place} has no {name}: {error}.") from error
    if not callable(found):
        raise UsageError(
            f"{target} is {short(found)}: expected a Function or another callable."
        )
    return found


def _module(place: str) -> Any:
    path = Path(place)
    if path.suffix != ".py":
        if "" not in sys.path:
            sys.path.insert(0, "")  # `python -m` has the current folder, a script not
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise UsageError(f"there is no module {place}: {error}.") from error
    if not path.is_file():
        raise UsageError(f"there is no file {place}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    sys.path.insert(0, str(path.parent.resolve()))  # as `python file.py` does
    spec.loader.exec_module(module)
    return module


def argument(text: str, generator: np.random.Generator) -> Any:
    """A random array for `f32[3,4]`; a Python value or a string for anything else."""
    match = _SPEC.fullmatch(text.replace(" ", ""))
    if match is None:
        if re.match(r"\w+\[.*\]$", text):
            raise UsageError(
                f"{text!r} is no array type: expected one such as f32[3,4], bf16[], "
                "c64[2], i32[5], bool[3]."
            )
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    name, sizes = match.groups()
    shape = tuple(int(n) for n in sizes.split(",") if n)
    dtype = _dtype(name)
    if name == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if name[0] in "iu":
        return np.asarray(generator.integers(0, 3, shape), dtype)
    numbers: Any = generator.standard_normal(shape)
    if name[0] == "c":
        numbers = numbers + 1j * generator.standard_normal(shape)
    return np.asarray(numbers, dtype)


def _dtype(name: str) -> Any:
    long = {"bf16": "bfloat16", "bool": "bool"}.get(name)
    try:
        return jnp.dtype(long or f"{_KINDS[name[0]]}{name[1:]}")
    except TypeError as error:
        raise UsageError(f"there is no dtype {name}.") from error


# ---- a line that says how far it is


@contextlib.contextmanager
def progress(stream: TextIO) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar for `check`, where somebody watches and tqdm is installed."""
    tqdm = _tqdm() if stream.isatty() else None
    if tqdm is None:
        yield None
        return
    with tqdm(file=stream, leave=False, unit="check", dynamic_ncols=True) as bar:

        def show(done: int, total: int, name: str) -> None:
            bar.total, bar.n = total, done
            bar.set_description(name)

        yield show


def _tqdm() -> Any | None:
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None
