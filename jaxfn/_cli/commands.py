"""The commands: `demo`, `guide`, `check`, `explain`, `compare`, `translate`.

torch and LibCST are imported only when a command that needs them runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfn._check import CHECKS, check, expect_options
from jaxfn._cli import demo
from jaxfn._cli.output import progress, say
from jaxfn._cli.target import (
    UsageError,
    argument,
    expect_fits,
    load,
    torch_functions,
)
from jaxfn._explain import explain

USAGE = 2
"""The exit code if the command itself is wrong, as in argparse."""

ARGUMENTS = """\
arguments:
  f32[3,4]    normal numbers; also f16, bf16, f64, c64, c128
  i32[5]      integers 0 to 2; also i8, i16, i64, u8, u16, u32, u64, bool
  f32[]       a scalar
  f32[3]:positive            positive numbers; also of integers
  i32[5]:0:10                from 0 up to 10, which is left out; also of floats
  f32[3,4]:probabilities     positive, with the sum 1 along the last axis
  f32[5]:sorted              ascending along the last axis; also :0:1:sorted
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

exit code: 0 if nothing differs; 1 if something does or can't be compared, because the
original draws random numbers or all is nan; 2 if the command is wrong
"""
TRANSLATE = f"""\
{ARGUMENTS}
With arguments, the original runs on them, which shows the tensors, and the result is
compared with it. Without arguments, only code of certain meaning is translated.

exit code: 0 if all is translated, and equal if arguments were given; 1 if something
is left or differs; 2 if the command is wrong
"""


def add_parsers(commands: Any) -> None:
    """Add the commands to a parser of commands; `run` of the options runs one."""
    _add_demo(commands)
    guide = commands.add_parser(
        "guide",
        help="print how to write and prove a Function, on one page",
        description="Print how to write and prove a Function, on one page.",
    )
    guide.set_defaults(run=run_guide)
    _add_check(commands)
    _parser(
        commands,
        run_explain,
        "explain",
        "show what JAX does with a call of a Function",
        "Show the JAX definition that the rules of a Function become, the "
        "transformations that work, the residuals, and the cost.",
        EXPLAIN,
    )
    compared = _parser(
        commands,
        run_compare,
        "compare",
        "compare a port with the original PyTorch Function",
        "Run a port and its original, a torch.autograd.Function, on the same random "
        "arguments, and print a table of the differences.",
        COMPARE,
        names=("port", "original"),
    )
    _add_comparisons(compared, "row")
    translated = _parser(
        commands,
        run_translate,
        "translate",
        "write PyTorch Functions in jax.numpy",
        "Translate the torch.autograd.Functions of a file to source text that needs "
        "jax and jaxfn alone. What can't be translated is marked, and raises when it "
        "runs.",
        TRANSLATE,
        metavar="FILE_OR_MODULE[:CLASS]",
    )
    translated.add_argument("-o", dest="out", metavar="OUT", help="the file to write")
    translated.add_argument(
        "--brief",
        action="store_true",
        help="print only what is needed to finish the port: lines, types, rows",
    )


def _add_check(commands: Any) -> None:
    parser = _parser(
        commands,
        run_check,
        "check",
        "check the rules of a Function on random arguments",
        "Check value, backward, jvp and vmap of a Function, or of any function that "
        "JAX can call, on random arguments, and print a table.",
        CHECK,
    )
    parser.add_argument(
        "--surrogate",
        action="store_true",
        help="the derivative differs from the value's on purpose",
    )
    parser.add_argument(
        "--reference",
        metavar="FILE_OR_MODULE:NAME",
        help="a function with the right derivative, to compare with",
    )
    _add_comparisons(parser, "check")


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="run the examples of PyTorch's pages under JAX's transformations",
        description="Check the examples of PyTorch's pages under JAX's "
        "transformations on the default device, and print a matrix of Functions by "
        "transformations. The exit code is 1 if a cell fails.",
    )
    parser.add_argument(
        "--break",
        dest="broken",
        choices=demo.BROKEN,
        help="make this rule wrong, and see which cells it reaches",
    )
    parser.set_defaults(run=run_demo)


def _add_comparisons(parser: Any, what: str) -> None:
    """Add the options of a command that compares numbers."""
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
    """Return the options of `_add_comparisons`, by the names of parameters."""
    names = ("rtol", "atol", "order", "precision", "skip")
    return {name: getattr(options, name) for name in names}


def _parser(
    commands: Any,
    run: Callable[[argparse.Namespace], int],
    name: str,
    line: str,
    text: str,
    epilog: str,
    names: Sequence[str] = ("target",),
    metavar: str = "FILE_OR_MODULE:NAME",
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
            metavar=metavar,
            help="" if len(names) == 1 else f"the {target}",
        )
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers")
    parser.set_defaults(run=run)
    return parser


# ---- each takes the options, and returns the exit code


def run_demo(options: argparse.Namespace) -> int:
    found = list(demo.cells(options.broken))
    say(f"{demo.table(found, options.broken)}\n")
    return 0 if options.broken is None and all(cell.ok for cell in found) else 1


def run_check(options: argparse.Namespace) -> int:
    given = _comparisons(options)
    try:
        # Before any code of the user runs.
        expect_options("check", CHECKS, **given)
        fun, args = _call(options)
        reference = load(options.reference) if options.reference else None
        with progress(sys.stderr) as show:
            report = check(
                fun,
                *args,
                reference=reference,
                surrogate=options.surrogate,
                seed=options.seed,
                progress=show,
                **given,
            )
    except (UsageError, TypeError, ValueError) as error:
        return _wrong(error)
    say(f"{report}\n")
    return 0 if report.ok else 1


def run_guide(_: argparse.Namespace) -> int:
    """Print the page for those who write a Function, agents above all."""
    say((Path(__file__).parents[1] / "llms.txt").read_text(encoding="utf-8"))
    return 0


def run_explain(options: argparse.Namespace) -> int:
    try:
        fun, args = _call(options)
        report = explain(fun, *args)
    except (UsageError, TypeError) as error:
        return _wrong(error)
    except RuntimeError as error:
        _wrong(error)
        return 1
    say(f"{report}\n")
    return 0


def run_compare(options: argparse.Namespace) -> int:
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
                seed=options.seed,
                progress=show,
                **_comparisons(options),
            )
    except (UsageError, ImportError, TypeError, ValueError, RuntimeError) as error:
        return _wrong(error)
    say(f"{report}\n")
    return 0 if report.ok else 1


def run_translate(options: argparse.Namespace) -> int:
    try:
        args = _arguments(options)
        translated = importlib.import_module("jaxfn.torch._translate").translated
        classes = torch_functions(options.target, args)
        with progress(sys.stderr, "row") as show:
            found = translated(classes, args, ":" not in options.target, show)
    except (UsageError, ImportError, ValueError) as error:
        return _wrong(error)
    text = f"{found}\n\nTo finish the port:\n{found.brief()}" if found.left else found
    if options.out is not None:
        Path(options.out).write_text(found.source, encoding="utf-8")
    if options.brief:
        say(f"{found.brief()}\n")
    elif options.out is None:
        say(found.source)
        sys.stderr.write(f"{text}\n")
    else:
        say(f"{text}\n")
    return 0 if found.ok else 1


def _call(options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Return the function and its arguments; read these first, without user code."""
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
