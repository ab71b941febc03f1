"""Better errors for a user's rule: its name and class, its place, and what to do.

- jaxfn's own errors get the file and line of the rule.
- If the parameters don't fit, Python counts arguments that the user never wrote; the
  message names them.
- If forward has no parameter for ctx, the message explains the two styles.
- If NumPy gets a tracer, a note names the way out.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import OutSpec, compat, errors
from jaxfn._methods.node import BackwardCFunction

_HOST = "jaxfn.host_function("

_PARAMETERS = {
    "setup_context": "three arguments: ctx, inputs and output",
    "backward": "{n} argument{s}: ctx, and a gradient for each output of forward",
    "jvp": "{n} argument{s}: ctx, and a tangent for each argument of forward",
    "vmap": "{n} argument{s}: info, in_dims, and the arguments of forward",
    "forward": "{n} argument{s}, those of apply, without ctx",
}
"""Arguments of each rule, in words; forward's are for the separate style."""


def explain(
    error: Exception,
    name: str,
    rule: str,
    function: Any,
    given: Sequence[Any],
    out: OutSpec | None = None,
) -> None:
    """Extend an error of a rule, or of a check of its result, or raise a better one.

    Call it in an `except` clause, and raise the error after it.

    Args:
        error: The error.
        name: Name of the Function.
        rule: Name of the rule.
        function: The rule.
        given: Arguments of the rule.
        out: Structure of the outputs, if the rule is backward.
    """
    ctx = given[0] if given and isinstance(given[0], BackwardCFunction) else None
    if isinstance(error, errors.RuleError):
        _locate(error, name, rule, function)
    elif isinstance(error, jax.errors.TracerArrayConversionError):
        _show_way_out(error, name, rule)
    elif isinstance(error, TypeError) and _is_ours(error):
        message = given and _misfit(name, rule, function, given, out)
        if message:
            misfit = errors.RuleTypeError(f"{error}. {message}")
            _locate(misfit, name, rule, function)
            raise misfit from error
    elif ctx is None:
        return
    elif isinstance(error, (ValueError, IndexError)):
        _show_sizes(error, name, rule, ctx)
    elif isinstance(error, (TypeError, AttributeError)) and rule == "forward":
        first = next(iter(inspect.signature(function).parameters), "ctx")
        if first != "ctx" and type(ctx).__name__ in str(error):
            error.add_note(
                f"`{name}.forward` got ctx for its first parameter, `{first}`."
                + _two_styles(function)
            )


def _locate(error: errors.RuleError, name: str, rule: str, function: Any) -> None:
    """Add file and line of the rule; the innermost rule comes first."""
    if "_located" in error.__dict__:
        return
    error.__dict__["_located"] = True
    place = compat.place_of(function)
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
    if ctx._jaxfn_needs_read and index:
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
    out: OutSpec | None,
) -> str:
    """Name the arguments that don't fit the parameters; "" if the error is another."""
    signature = inspect.signature(function)
    hint = "" if out is None else _several_outputs(out)
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


def _several_outputs(out: OutSpec) -> str:
    """Explain that a namedtuple output has a gradient for each field."""
    kind = out.kind
    if kind is tuple or len(out.parts) < 2:
        return ""
    return (
        f" Forward returned a {kind.__name__}, which is a tuple: each of its "
        f"{len(out.parts)} elements is an output, with a gradient of its own. Return "
        "it in a dict, a list or a dataclass that is a pytree to get one gradient of "
        "that structure."
    )


def _is_ours(error: BaseException) -> bool:
    """Return whether the call itself raised, and not the rule."""
    # If the arguments don't fit, Python makes no frame for the rule. The last frame is
    # the call, in jaxfn.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "").startswith("jaxfn.")
