"""`compare`: the comparison of a port with its original."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxfn._check import expect_options, name_of
from jaxfn.torch._base import torch
from jaxfn.torch._compare.arguments import CommonArguments, names_of
from jaxfn.torch._compare.module import compare_module
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import CompareOptions, Pair
from jaxfn.torch._compare.report import CompareReport
from jaxfn.torch._compare.rows import NAMES, ComparisonRun


def compare(
    port: Any,
    original: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    skip: Collection[str] = (),
    order: int = 2,
    rtol: float | None = None,
    atol: float = 0.0,
    precision: str = "float64",
    seed: int = 0,
    raise_on_failure: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CompareReport:
    """Compare a port with the PyTorch Function, or a model with the module, it is from.

    Both run on the same arguments, the original in PyTorch. The rows compare outputs,
    their shapes, dtypes and values, and values at other points. They compare gradients,
    also for each subset of the arguments and for each output alone. They compare second
    derivatives, vmap, jit, and `jvp` if both have one. If the original runs in double
    precision, values are compared in it, and also in the precision given.

    None from PyTorch's backward counts as zero. If PyTorch itself raises, or has no
    such rule, the row is skipped and says so. A difference that is known and right is
    "expected": PyTorch treats tensors that forward saved as constants in a second
    derivative, but finite differences of PyTorch's own gradient agree with the port.
    If they agree with neither, and the gradient is not the slope of the value, then a
    second derivative that differs is "not compared", and the report is not ok.

    For a module, the rows compare the outputs, in the module's precision: for double
    precision call `module.double()` before `from_torch`, and enable x64. Then come the
    gradients of a weighted sum of them, and those of a weighted sum of these. A part in
    less precision, such as a softmax in float32, limits the digits that are compared.

    Args:
        port: A model from `from_torch(module)`. Or a `jaxfn.Function`, a
            `custom_function`, a class from `from_torch`, or any function that JAX can
            call on the arguments. It gets a key first if it was
            made with random=True, or if its forward takes a `key` before the original's
            arguments.
        original: The module; or the class, derived from `torch.autograd.Function`.
        *args: The arguments of `apply`, for a model without its parameters: JAX or
            NumPy arrays, tensors, and the rest. Each side gets arrays of its own kind,
            and the rest as it is. The other points are scaled towards zero: positive
            arguments stay positive.
        kwargs: Keyword arguments of a module.
        skip: Names of rows to leave out; "gradients" for those of each argument.
        order: 1 to leave out the second derivative, else 2.
        rtol: Tolerance of every comparison, relative to the largest element; by default
            half of the digits of the precision (1.5e-8 in double precision).
        atol: Difference that an element may have, whatever its size.
        precision: For a Function: "float64" casts all float arguments to it, complex
            ones to complex128, and modules among them by `double()`. If the original
            does not run on these, and for "given", the arguments stay as they are.
        seed: Seed of cotangents, tangents and the original's random draws.
        raise_on_failure: Whether to raise if something differs.
        progress: Function that is called before each row, with the number of rows done,
            the number of all rows, and the name.

    Returns:
        The report: print it, or read `ok`, `failures` and `wrong_rules`.

    Raises:
        CheckError: (an AssertionError) With raise_on_failure: something differs, or
            can't be compared, because the original draws random numbers, its backward
            raises another error than NotImplementedError, or all is nan.
        OriginalError: (a RuntimeError) PyTorch's forward raises on these arguments.
        TypeError: `original` is no torch Function; `port` is one, or can't be called.
        ValueError: An unknown precision, order or row; a tolerance below 0; or other
            parameters in the model than in the module.

    Example:
        >>> import jax.numpy as jnp, torch, jaxfn.torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * g * x
        >>> class Port(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return g * x
        >>> report = jaxfn.torch.compare(Port, Square, jnp.array([1.0, 2.0]))
        >>> report.ok, report.wrong_rules
        (False, ('backward',))
        >>> report.failures[0].message.partition("; ")[2]
        'the whole gradient is 0.5 times the expected one (1/2)'

    Source: https://docs.pytorch.org/docs/stable/notes/extending.html
    """
    expect_options("compare", NAMES, skip, precision, order, rtol, atol)
    options = CompareOptions(seed, rtol, atol)
    if isinstance(original, torch.nn.Module):
        if skip or precision != "float64":
            raise TypeError(
                "compare takes skip and precision for a Function alone. Of a module, "
                "order=1 skips second derivatives, and module.double() before "
                "from_torch makes it precise."
            )
        how = kwargs or {}
        report = compare_module(port, original, args, how, options, order=order)
    elif kwargs:
        raise TypeError(
            "compare takes kwargs for a torch.nn.Module alone. Pass the arguments of a "
            "Function by position."
        )
    else:
        expect_pair(port, original)
        told = {"second derivative": "order=1"} if order == 1 else {}
        told |= dict.fromkeys(skip, "skipped as told")
        best, given = _pairs(port, original, args, options, precision)
        run = ComparisonRun(best, given, told, _uncomparable(best, given))
        names = name_of(port), name_of(original)
        report = CompareReport(names[0], run.run(progress), names[1], run.refused)
    if raise_on_failure:
        report.raise_on_failure()
    return report


def expect_pair(port: Any, original: Any) -> None:
    """Refuse an original or a port of the wrong type.

    Raises:
        TypeError: The message says which of them.
    """
    base = torch.autograd.Function
    if isinstance(port, torch.nn.Module):
        raise TypeError(
            f"compare expected a model or a port first, got the module "
            f"{type(port).__name__}: compare(from_torch(module), module, ...)."
        )
    if not (isinstance(original, type) and issubclass(original, base)):
        raise TypeError(
            "compare expected a class derived from torch.autograd.Function as the "
            f"original, got {original!r}. Pass the class itself, not its apply."
        )
    if isinstance(port, type) and issubclass(port, base):
        raise TypeError(
            f"compare expected a port that JAX can call, got the torch class "
            f"{port.__name__}. Pass jaxfn.torch.from_torch({port.__name__}), or the "
            "class that was written for jaxfn."
        )
    if not callable(port):
        raise TypeError(f"compare expected a port that can be called, got {port!r}.")


def _pairs(
    port: Any,
    original: type,
    args: Sequence[Any],
    options: CompareOptions,
    precision: str,
) -> tuple[Pair, Pair]:
    """Return the pair in the best precision, and the pair in the precision given."""
    arguments = CommonArguments.of(args, names_of(original, len(args)))
    given = Pair(port, original, arguments, options, double=False)
    # Run this first: torch.jit keeps the default dtype of its first call for ever.
    error = _first_error(given)
    if precision == "float64":
        wide = Pair(port, original, arguments.wide(), options, double=True)
        if _first_error(wide) is None:
            if error is not None or arguments.is_wide:
                return wide, wide
            given.exact = wide
            return wide, given
    if error is not None:
        raise OriginalError(
            f"PyTorch's own `{original.__name__}.apply` raised on these arguments, so "
            f"there is nothing to compare with: {error}. Pass arguments that it takes."
        ) from error
    return given, given


def _first_error(pair: Pair) -> OriginalError | None:
    """Return what the original raises on the arguments; None if it runs."""
    try:
        with pair.context():
            _ = pair.expected
            if pair.original.has_backward:
                with contextlib.suppress(OriginalError):  # a row reports it
                    _ = pair.chosen
    except OriginalError as error:
        return error
    return None


def _uncomparable(best: Pair, given: Pair) -> dict[str, str]:
    """Return why values and gradients of the original can't be compared, if so."""
    with best.context():
        forward = best.original.unrepeatable(
            lambda: best.original.value(best.arrays).leaves
        )
    # A backward may run in one of the precisions alone.
    backward = _no_gradients(best) and _no_gradients(given)
    found = {"forward": forward, "backward": backward}
    return {rule: why for rule, why in found.items() if why}


def _no_gradients(pair: Pair) -> str:
    """Return why gradients can't be compared; empty if backward says there are none."""
    with pair.context():
        if not (pair.original.has_backward and pair.arguments.at):
            return ""
        if not pair.expected.inexact:
            return ""
        try:
            if pair.chosen:
                return pair.original.unrepeatable(
                    lambda: pair.original.pull(pair.arrays, pair.chosen, pair.cts)
                )
            why = next(iter(pair.why_not.values()))
        except OriginalError as error:
            why = str(error)
    is_meant = why.startswith(NotImplementedError.__name__)
    return "" if is_meant else f"PyTorch itself raises: {why}"
