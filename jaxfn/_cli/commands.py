"""`python -m jaxfn check FILE_OR_MODULE:NAME ARGUMENT ...`, `explain`, `compare`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from jaxfn._check import CHECKS, check
from jaxfn._cli.target import UsageError, argument, expect_fits, load
from jaxfn._explain import explain

USAGE = 2
"""The exit code where the command itself is wrong, as argparse has it."""

ARGUMENTS = """\
arguments:
  f32[3,4]    normal numbers; also f16, bf16, f64, c64, c128
  i32[5]      integers 0 to 2; also i8, i16, i64, u8, u16, u32, u64, bool
  f32[]       a scalar
  anything else is a Python literal (2.0, True, None, (1, 2)), or else a string
"""
NAMES = textwrap.fill(
    ", ".join(f'"{name}"' for name in CHECKS),
    width=79,
    initial_indent="  ",
    subsequent_indent="  ",
)
CHECK = f"""\
{ARGUMENTS}
checks, for --skip:
{NAMES}

exit code: 0 if all checks passed, 1 if one failed, 2 if the command is wrong
"""
EXPLAIN = f"""\
{ARGUMENTS}
exit code: 0, or 1 if the rules contradict each other, 2 if the command is wrong
"""
COMPARE = f"""\
{ARGUMENTS}
rows, for --skip: as in the report; "gradients" for those of each argument

exit code: 0 if nothing differs, 1 if something does, or if the original draws random
numbers, so that values can't be compared, 2 if the command is wrong
"""


def add_parsers(commands: Any) -> None:
    """Add the commands to a parser of commands."""
    parser = _parser(
        commands,
        "check",
        "check the rules of a Function on random arguments",
        "Check value, backward, jvp and vmap of a Function, or of any function that "
        "JAX can call, on random arguments, and print a table.",
        CHECK,
    )
    add = parser.add_argument
    add(
        "--surrogate",
        action="store_true",
        help="the derivative differs from that of the value on purpose",
    )
    add(
        "--reference",
        metavar="FILE_OR_MODULE:NAME",
        help="a function with the right derivative, to compare with",
    )
    _add_comparisons(parser, "check")
    _parser(
        commands,
        "explain",
        "tell what JAX does with a call of a Function",
        "Tell which of JAX's definitions the rules of a Function become, which "
        "transformations work, what is kept for the backward pass, and the cost.",
        EXPLAIN,
    )
    parser = _parser(
        commands,
        "compare",
        "compare a port with the PyTorch Function that it is a port of",
        "Run a port and its original, a torch.autograd.Function, on the same random "
        "arguments, and print a table of what is equal and what differs.",
        COMPARE,
        names=("port", "original"),
    )
    _add_comparisons(parser, "row")


def _add_comparisons(parser: Any, what: str) -> None:
    """Add the options of what compares numbers."""
    add = parser.add_argument
    add("--rtol", type=float, help="relative tolerance of all comparisons")
    add("--atol", type=float, default=0.0, help="a difference that always passes")
    add(
        "--order",
        type=int,
        choices=(1, 2),
        default=2,
        help="1 leaves second derivatives out",
    )
    add(
        "--precision",
        choices=("float64", "given"),
        default="float64",
        help="of the arguments: cast to float64, or as they are given",
    )
    add(
        "--skip",
        metavar=what.upper(),
        action="append",
        default=[],
        help=f"leave out a {what}, by its name (below); may be repeated",
    )


def _comparisons(options: argparse.Namespace) -> dict[str, Any]:
    """What `_add_comparisons` added, and the seed, by the names of parameters."""
    names = ("rtol", "atol", "order", "precision", "skip", "seed")
    return {name: getattr(options, name) for name in names}


def _parser(
    commands: Any,
    name: str,
    line: str,
    text: str,
    epilog: str,
    names: Sequence[str] = ("target",),
) -> Any:
    parser = commands.add_parser(
        name,
        help=line,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for target in names:
        parser.add_argument(
            target,
            metavar="FILE_OR_MODULE:NAME",
            help="" if len(names) == 1 else f"the {target}",
        )
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run `check`; the result is the exit code."""
    try:
        _expect_known(options)
        fun, args = _call(options)
        reference = load(options.reference) if options.reference else None
        with progress(sys.stderr) as show:
            report = check(
                fun,
                *args,
                reference=reference,
                surrogate=options.surrogate,
                progress=show,
                **_comparisons(options),
            )
    except (UsageError, ValueError) as error:
        return _wrong(error)
    sys.stdout.write(f"{report}\n")
    return 0 if report.ok else 1


def run_explain(options: argparse.Namespace) -> int:
    """Run `explain`; the result is the exit code."""
    try:
        fun, args = _call(options)
        report = explain(fun, *args)
    except (UsageError, TypeError) as error:
        return _wrong(error)
    except RuntimeError as error:
        _wrong(error)
        return 1
    sys.stdout.write(f"{report}\n")
    return 0


def run_compare(options: argparse.Namespace) -> int:
    """Run `compare`; the result is the exit code."""
    try:
        args = _arguments(options)  # before any code of the user runs
        bridge: Any = importlib.import_module("jaxfn.torch")
        port, original = load(options.port), load(options.original)
        expect_fits(port, args)
        with progress(sys.stderr, "row") as show:
            report = bridge.compare(
                port,
                original,
                *args,
                progress=show,
                **_comparisons(options),
            )
    except (UsageError, ImportError, TypeError, ValueError, RuntimeError) as error:
        return _wrong(error)
    sys.stdout.write(f"{report}\n")
    return 0 if report.ok else 1


def _expect_known(options: argparse.Namespace) -> None:
    """Refuse what can be seen to be wrong before any code of the user runs."""
    for name in options.skip:
        if name not in CHECKS:
            raise UsageError(
                f"--skip {name!r}: expected a list of names among {', '.join(CHECKS)}."
            )
    for name in ("rtol", "atol"):
        x = getattr(options, name)
        if x is not None and not x >= 0:
            raise UsageError(f"--{name} {x}: expected 0 or more.")


def _call(options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """The function and its arguments; these first, as no code of the user runs."""
    args = _arguments(options)
    fun = load(options.target)
    expect_fits(fun, args)
    return fun, args


def _arguments(options: argparse.Namespace) -> list[Any]:
    generator = np.random.default_rng(options.seed)
    return [argument(text, generator) for text in options.arguments]


def _wrong(error: Exception) -> int:
    sys.stderr.write(f"{error}\n")
    return USAGE


# ---- a line that says how far it is


@contextlib.contextmanager
def progress(
    stream: TextIO, unit: str = "check"
) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar for `check`, where somebody watches and tqdm is installed."""
    tqdm = _tqdm() if stream.isatty() else None
    if tqdm is None:
        yield None
        return
    with tqdm(file=stream, leave=False, unit=unit, dynamic_ncols=True) as bar:

        def show(done: int, total: int, name: str) -> None:
            bar.total, bar.n = total, done
            bar.set_description(name)

        yield show


def _tqdm() -> Any | None:
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None
