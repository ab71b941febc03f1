"""Advice on an error in a user's rule: a note, or a better error in its place.

- If the parameters don't fit, Python counts arguments that the user never wrote; the
  message names them.
- If forward has no parameter for ctx, the message explains the two styles.
- If a rule reads what ctx does not have, a note says what it has.
- Errors in the words of Python, JAX or PyTorch get a note; see `words`.
"""

from __future__ import annotations

import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._advice.words import APPLY, NONDIFF, TENSOR, note_on
from jaxfn._context import STATE, BackwardCFunction
from jaxfn._core import Layout, messages

_LATE = ("backward", "jvp")

_PARAMETERS = {
    "setup_context": "three arguments: ctx, inputs and output",
    "backward": "{n} argument{s}: ctx, and a gradient for each output of forward",
    "jvp": "{n} argument{s}: ctx, and a tangent for each argument of forward",
    "vmap": "{n} argument{s}: info, in_dims, and the arguments of forward",
    "forward": "{n} argument{s}, those of apply, without ctx",
}
"""Arguments of each rule, in words; forward's are for the separate style."""


def better(
    error: Exception,
    name: str,
    rule_name: str,
    rule: Any,
    args: Sequence[Any] | None,
    layout: Layout | None,
) -> Exception | None:
    """Return an error to raise in place of `error`; or None, and add a note.

    Args:
        error: The error of the rule, or of a check of its result.
        name: Name of the Function.
        rule_name: Name of the rule.
        rule: The rule.
        args: Arguments of the rule; None if it is in JAX's terms.
        layout: What forward left, if the rule is backward.
    """
    if isinstance(error, messages.RuleError):
        return None
    if args is None:
        _add(note_on(error, NONDIFF, messages.label(name, rule_name)), error)
        return None
    if isinstance(error, jax.errors.UnexpectedTracerError) and rule_name in _LATE:
        return messages.leaked(name, rule_name)
    if isinstance(error, TypeError) and _is_ours(error):
        message = args and _misfit(name, rule_name, rule, args, layout)
        return messages.RuleTypeError(f"{error}. {message}") if message else None
    ctx = args[0] if args and isinstance(args[0], BackwardCFunction) else None
    note = ctx is not None and _note_on_ctx(error, name, rule_name, rule, ctx)
    if any(map(messages.is_tensor, args)):
        note = TENSOR.format(rule=f"{name}.{rule_name}")
    _add(note or note_on(error, APPLY.format(name=name), f"{name}.{rule_name}"), error)
    return None


def _add(note: str, error: Exception) -> None:
    """Add a note to an error, unless an inner rule did, which knows best."""
    if note and "_jaxfn_advised" not in error.__dict__:
        error.__dict__["_jaxfn_advised"] = True
        error.add_note(note)


def near_member(cls: Any, name: str) -> str:
    """Return the hint that a class has a member of nearly this name, if it has one."""
    own = [x for x in vars(cls) if not x.startswith("__")]
    near = difflib.get_close_matches(name, own, 1, cutoff=0.8)
    return f" (The class has `{near[0]}`: is it a misspelling?)" if near else ""


def _note_on_ctx(
    error: Exception, name: str, rule_name: str, rule: Any, ctx: BackwardCFunction
) -> str:
    """Explain an error that a wrong use of ctx caused; "" for another."""
    if isinstance(error, (ValueError, IndexError)):
        return _sizes(error, name, rule_name, ctx)
    if not isinstance(error, (TypeError, AttributeError)):
        return ""
    if rule_name == "forward":
        first = next(iter(inspect.signature(rule).parameters), "ctx")
        if isinstance(error, AttributeError) and _near_on_ctx(ctx, str(error.name)):
            first = "ctx"  # by another name: its user knows what it is
        if first != "ctx" and type(ctx).__name__ in str(error):
            return (
                f"`{name}.forward` got ctx for its first parameter, `{first}`."
                + _two_styles(rule)
            )
    if isinstance(error, AttributeError) and error.obj is ctx:
        return _missing_attribute(f"{name}.{rule_name}", ctx, str(error.name))
    if rule_name in _LATE and re.search(_ON_A_TUPLE, str(error)) and ctx.saved_tensors:
        n = len(ctx.saved_tensors)
        names = "(x,)" if n == 1 else ", ".join("xyzuvw"[:n])
        return (
            f"`{name}.{rule_name}` used a tuple as an array. ctx.saved_tensors is a "
            f"tuple, also if it holds one array: `{names} = ctx.saved_tensors`."
        )
    return ""


_ON_A_TUPLE = "'tuple'|can't multiply sequence"
"""Words of Python's and JAX's errors on an operation of a tuple."""


def _missing_attribute(rule: str, ctx: BackwardCFunction, attribute: str) -> str:
    """Say which attributes a context has, and which name is near."""
    own = [x for x in vars(ctx) if x not in STATE and not x.startswith("_jaxfn")]
    near = difflib.get_close_matches(attribute, own, 1) or _near_on_ctx(ctx, attribute)
    has = ", ".join(sorted(own)) or "none"
    return (
        f"`{rule}` read ctx.{attribute}, which was not set before. Attributes that "
        f"were set: {has}." + (f" Did you mean ctx.{near[0]}?" if near else "")
    )


def _near_on_ctx(ctx: BackwardCFunction, attribute: str) -> list[str]:
    public = [x for x in dir(type(ctx)) if not x.startswith("_")]
    return difflib.get_close_matches(attribute, public, 1, cutoff=0.8)


def _sizes(error: Exception, name: str, rule: str, ctx: BackwardCFunction) -> str:
    """Explain a rule that expects more elements in a tuple of ctx."""
    words = str(error)
    # Python's own messages: any other error is the user's.
    index = words == "tuple index out of range"
    pattern = r"not enough values to unpack .expected \d+, got (\d+)"
    unpacked = re.search(pattern, words)
    if rule == "jvp" and ctx.saved_tensors == () and (index or unpacked):
        return (
            f"`{name}.jvp` found nothing in ctx.saved_tensors. In jvp it has the "
            "arguments of ctx.save_for_forward, in backward those of "
            "ctx.save_for_backward. Call save_for_forward too."
        )
    if ctx._jaxfn_asked and index:
        n = len(ctx.needs_input_grad)
        return (
            f"`{name}.{rule}` read ctx.needs_input_grad, of length {n}: it has an "
            "entry for each argument that apply was called with, and ctx is none of "
            "them."
        )
    n = len(ctx.saved_tensors) if rule == "backward" else None
    if n is not None and (index or (unpacked and int(unpacked[1]) == n)):
        return (
            f"In `{name}.backward` ctx.saved_tensors is a tuple of {n}: as many as "
            "ctx.save_for_backward got."
        )
    return ""


def _misfit(
    name: str,
    rule: str,
    function: Any,
    given: Sequence[Any],
    layout: Layout | None,
) -> str:
    """Name the arguments that don't fit the parameters; "" if the error is another."""
    signature = inspect.signature(function)
    if next(iter(signature.parameters), "") == "self" and not _fits(
        signature.bind, given
    ):
        return (
            f"`{name}.{rule}` has a parameter self, and the rules of a Function are "
            "static. Remove self, and put @staticmethod above the rule."
        )
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
