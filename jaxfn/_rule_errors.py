"""Better errors for a user's rule: its name and class, its place, and what to do.

- jaxfn's own errors get the file and line of the rule.
- If the parameters don't fit, Python counts arguments that the user never wrote; the
  message names them.
- If forward has no parameter for ctx, the message explains the two styles.
- If NumPy gets a tracer, a note names the way out.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxfn._context import BackwardCFunction
from jaxfn._core import Layout, internals, messages

_HOST = "jaxfn.host_function("
_LATE = ("backward", "jvp")

_PARAMETERS = {
    "setup_context": "three arguments: ctx, inputs and output",
    "backward": "{n} argument{s}: ctx, and a gradient for each output of forward",
    "jvp": "{n} argument{s}: ctx, and a tangent for each argument of forward",
    "vmap": "{n} argument{s}: info, in_dims, and the arguments of forward",
    "forward": "{n} argument{s}, those of apply, without ctx",
}
"""Arguments of each rule, in words; forward's are for the separate style."""


@contextlib.contextmanager
def explained(
    name: str,
    rule_name: str,
    rule: Any,
    args: Sequence[Any],
    layout: Layout | None = None,
) -> Iterator[None]:
    """Extend an error of a rule, or of a check of its result, or raise a better one.

    Args:
        name: Name of the Function.
        rule_name: Name of the rule.
        rule: The rule.
        args: Arguments of the rule.
        layout: What forward left, if the rule is backward.
    """
    constants = internals.staged_constants()
    n = len(constants)
    try:
        yield
    except Exception as error:
        explain(error, name, rule_name, rule, args, layout)
        raise
    # JAX would take it for a constant, and fail without a name when it compiles.
    if any(map(internals.is_over, list(constants.values())[n:])):
        raise messages.leaked(name, rule_name)


def explain(
    error: Exception,
    name: str,
    rule_name: str,
    rule: Any,
    args: Sequence[Any],
    layout: Layout | None = None,
) -> None:
    """Extend an error in an `except` clause, or raise a better one; see `explained`."""
    ctx = args[0] if args and isinstance(args[0], BackwardCFunction) else None
    if isinstance(error, messages.RuleError):
        _locate(error, name, rule_name, rule)
    elif isinstance(error, jax.errors.UnexpectedTracerError) and rule_name in _LATE:
        raise messages.leaked(name, rule_name) from error
    elif isinstance(error, jax.errors.TracerArrayConversionError):
        _show_way_out(error, name, rule_name)
    elif isinstance(error, TypeError) and _is_ours(error):
        message = args and _misfit(name, rule_name, rule, args, layout)
        if message:
            misfit = messages.RuleTypeError(f"{error}. {message}")
            _locate(misfit, name, rule_name, rule)
            raise misfit from error
    elif ctx is None:
        return
    elif isinstance(error, (ValueError, IndexError)):
        _show_sizes(error, name, rule_name, ctx)
    elif isinstance(error, (TypeError, AttributeError)) and rule_name == "forward":
        first = next(iter(inspect.signature(rule).parameters), "ctx")
        if first != "ctx" and type(ctx).__name__ in str(error):
            error.add_note(
                f"`{name}.forward` got ctx for its first parameter, `{first}`."
                + _two_styles(rule)
            )


def _locate(error: messages.RuleError, name: str, rule: str, function: Any) -> None:
    """Add file and line of the rule; the innermost rule comes first."""
    if "_located" in error.__dict__:
        return
    error.__dict__["_located"] = True
    place = place_of(function)
    if place:
        text = f"{error} (`{name}.{rule}` is at {place}.)"
        error.args = (text, *error.args[1:])


def _show_way_out(error: Exception, name: str, rule: str) -> None:
    """Advise on NumPy with a traced array, once, for the innermost rule."""
    if _HOST in "".join(getattr(error, "__notes__", ())):
        return
    error.add_note(
        f"`{name}.{rule}` gave a traced array to NumPy (or SciPy): expected jax.numpy "
        "operations, because a traced array has no values (under jit, vmap, scan and "
        "on devices). Write the rule in jax.numpy. Or wrap the NumPy function fn by "
        f"{_HOST}fn): JAX then calls it when the program runs."
    )


def _show_sizes(error: Exception, name: str, rule: str, ctx: BackwardCFunction) -> None:
    """Explain a rule that expects more elements in a tuple of ctx."""
    words = str(error)
    # Python's own messages: any other error is the user's.
    index = words == "tuple index out of range"
    unpacked = words.startswith("not enough values to unpack")
    if rule == "jvp" and ctx.saved_tensors == () and (index or unpacked):
        error.add_note(
            f"`{name}.jvp` found nothing in ctx.saved_tensors. In jvp it has the "
            "arguments of ctx.save_for_forward, in backward those of "
            "ctx.save_for_backward. Call save_for_forward too."
        )
    if ctx._jaxfn_asked and index:
        n = len(ctx.needs_input_grad)
        error.add_note(
            f"`{name}.{rule}` read ctx.needs_input_grad, of length {n}: it has an "
            "entry for each argument that apply was called with, and ctx is none of "
            "them."
        )


def _misfit(
    name: str,
    rule: str,
    function: Any,
    given: Sequence[Any],
    layout: Layout | None,
) -> str:
    """Name the arguments that don't fit the parameters; "" if the error is another."""
    signature = inspect.signature(function)
    hint = "" if layout is None else _several_outputs(layout)
    if rule == "forward":
        has_ctx = isinstance(given[0], BackwardCFunction)
        takes_ctx = next(iter(signature.parameters), None) == "ctx"
        takes = signature.bind_partial
        without = _fits(takes, given[1:]) and not _fits(takes, given)
        if has_ctx and not takes_ctx and without:
            return (
                f"`{name}.forward` is called with ctx and the arguments of apply, "
                f"{len(given)} in all; got forward{signature}." + _two_styles(function)
            )
        if has_ctx or not takes_ctx:
            return ""  # apply got too few or too many: Python's words suffice
        hint = (
            " There is a setup_context(ctx, inputs, output), which saves: remove ctx "
            "from the parameters of forward, or save in forward and remove "
            "setup_context."
        )
    # If the parameters take these arguments, the error has another cause.
    if _fits(signature.bind, given):
        return ""
    n = len(given)
    expected = _PARAMETERS[rule].format(n=n, s="" if n == 1 else "s")
    return (
        f"`{name}.{rule}` is called with {expected}; expected parameters for these, "
        f"got {rule}{signature}.{hint}"
    )


def _two_styles(forward: Callable[..., Any]) -> str:
    """Advise on a forward without ctx and without a setup_context."""
    signature = inspect.signature(forward)
    own = str(signature.replace(return_annotation=signature.empty))[1:-1]
    combined = f"ctx, {own}" if own else "ctx"
    return (
        " There is no setup_context, so forward gets ctx first. Either write "
        f"forward({combined}) and save in it what the derivatives need, or keep "
        f"forward({own}) and define setup_context(ctx, inputs, output), which saves."
    )


def _fits(bind: Callable[..., Any], given: Sequence[Any]) -> bool:
    """Return whether this method of a signature accepts the arguments."""
    try:
        bind(*given)
    except TypeError:
        return False
    return True


def _several_outputs(layout: Layout) -> str:
    """Explain that a namedtuple output has a gradient for each field."""
    kind = layout.kind
    if kind is tuple or len(layout.outputs) < 2:
        return ""
    return (
        f" Forward returned a {kind.__name__}, which is a tuple: each of its "
        f"{len(layout.outputs)} elements is an output, with a gradient of its own. "
        "Return it in a dict, a list or a dataclass that is a pytree to get one "
        "gradient of that structure."
    )


def _is_ours(error: BaseException) -> bool:
    """Return whether the call itself raised, and not the rule."""
    # If the arguments don't fit, Python makes no frame for the rule. The last frame is
    # the call, in jaxfn.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "").startswith("jaxfn.")


def place_of(function: Any) -> str:
    """Return file and line of a function, as JAX writes it; empty without code."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
