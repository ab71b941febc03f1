"""Around the call of a user's rule: what its errors say beside what was raised.

Whoever reads a message about a rule wants to know which rule of which class, where it
stands, and what it should have been. JAX and Python say none of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
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
"""What each rule is called with; forward in the separate style."""


class running:  # noqa: N801  (used as a function is; a generator is slower)
    """A `with` block in which a rule is called, and what it returned is checked.

    It lets errors pass, and says more in these:

    - An error of ours tells the file and the line of the rule.
    - Where the rule's parameters don't fit, Python counts arguments that the user never
      wrote: the message says what they are.
    - Without setup_context, ctx is forward's first argument: a forward that has no
      parameter for it gets told of the two styles.
    - Where NumPy meets a tracer, JAX tells to find where the array came from, which
      says nothing to the author of a rule that has always worked eagerly: a note names
      the way out.

    Args:
        name: of the Function.
        rule: its name.
        function: the rule.
        given: what it is called with.
        hint: gives what else to say where the parameters don't fit.
    """

    __slots__ = ("_function", "_given", "_hint", "_name", "_rule")

    def __init__(
        self,
        name: str,
        rule: str,
        function: Callable[..., Any] | None = None,
        given: Sequence[Any] = (),
        hint: Callable[[], str] = str,
    ) -> None:
        self._name = name
        self._rule = rule
        self._function = function
        self._given = given
        self._hint = hint

    def __enter__(self) -> None:
        """Do nothing: all that this block does is done where an error leaves it."""

    def __exit__(
        self, _: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say more in an error of a kind that is known; raise another where needed."""
        if error is None:
            return
        if isinstance(error, errors.RuleError):
            self._locate(error)
        elif isinstance(error, jax.errors.TracerArrayConversionError):
            self._show_way_out(error)
        elif isinstance(error, TypeError) and _is_ours(trace):
            self._explain(error)
        elif isinstance(error, (TypeError, AttributeError)):
            self._show_ctx(error)
        elif isinstance(error, (ValueError, IndexError)):
            self._show_sizes(error)

    def _locate(self, error: errors.RuleError) -> None:
        """Add the file and the line of the rule to an error of ours."""
        # The innermost rule is the one that the message is about.
        if self._function is None or "_located" in error.__dict__:
            return
        error.__dict__["_located"] = True
        place = compat.place_of(self._function)
        if place:
            text = f"{error} (`{self._name}.{self._rule}` is at {place}.)"
            error.args = (text, *error.args[1:])

    def _show_way_out(self, error: BaseException) -> None:
        """Say what to write where NumPy was given a traced array."""
        # The error passes every rule around it; the innermost has named itself.
        if _HOST in "".join(getattr(error, "__notes__", ())):
            return
        error.add_note(
            f"`{self._name}.{self._rule}` gave a traced array to NumPy (or SciPy): "
            "expected jax.numpy operations, since under jit, vmap, scan and on "
            "devices there are no values while it is traced. Write it in "
            f"jax.numpy, or wrap the NumPy part: {_HOST}fn) makes of a function of "
            "NumPy arrays one that JAX calls when the program runs."
        )

    def _show_ctx(self, error: TypeError | AttributeError) -> None:
        """Say to a forward that took ctx for an array that it was ctx."""
        ctx = next(iter(self._given), None)
        if self._rule != "forward" or not isinstance(ctx, BackwardCFunction):
            return
        assert self._function is not None
        first = next(iter(inspect.signature(self._function).parameters), "ctx")
        if first != "ctx" and type(ctx).__name__ in str(error):
            error.add_note(
                f"`{self._name}.forward` got ctx for its first parameter, `{first}`."
                + _two_styles(self._function)
            )

    def _lacks_ctx(self, signature: inspect.Signature) -> bool:
        """Say if it is a forward that would fit the arguments without ctx."""
        if not isinstance(next(iter(self._given), None), BackwardCFunction):
            return False
        named = next(iter(signature.parameters), None) == "ctx"
        fits, fits_without = (_takes(signature, self._given[i:]) for i in (0, 1))
        return fits_without and not fits and not named

    def _takes_ctx_too(self, signature: inspect.Signature) -> bool:
        """Is it a forward with ctx, beside a setup_context?"""
        first = next(iter(signature.parameters), None)
        return first == "ctx" and self._hint is without_ctx

    def _show_sizes(self, error: ValueError | IndexError) -> None:
        """Say how much is in the tuples of a ctx, to a rule that wanted more."""
        ctx = next(iter(self._given), None)
        if not isinstance(ctx, BackwardCFunction):
            return
        words = str(error)
        # Python's words where a tuple is taken apart; an error of the user's own is not
        # about a tuple of ours.
        index = words == "tuple index out of range"
        unpacked = words.startswith("not enough values to unpack")
        if self._rule == "jvp" and ctx.saved_tensors == () and (index or unpacked):
            error.add_note(
                f"`{self._name}.jvp` found nothing in ctx.saved_tensors: in jvp it "
                "holds what ctx.save_for_forward was given, and in backward what "
                "ctx.save_for_backward was. Call save_for_forward too."
            )
        if ctx._jaxfn_needs_read and index:
            n = len(ctx.needs_input_grad)
            error.add_note(
                f"`{self._name}.{self._rule}` read ctx.needs_input_grad, of length "
                f"{n}: it has an entry for each argument that apply was called with, "
                "and ctx is none of them."
            )

    def _explain(self, error: TypeError) -> None:
        """Raise in place of a TypeError of the call what the parameters should be."""
        # Without arguments it is a block after the call, which looks at the context.
        if self._function is None or not self._given:
            return
        signature = inspect.signature(self._function)
        if self._rule == "forward" and self._lacks_ctx(signature):
            misfit = errors.RuleTypeError(
                f"{error}. `{self._name}.forward` is called with ctx and the arguments "
                f"of apply, {len(self._given)} in all; got forward{signature}."
                + _two_styles(self._function)
            )
            self._locate(misfit)
            raise misfit from error
        if self._rule == "forward" and not self._takes_ctx_too(signature):
            return  # apply was called with too few or too many: Python's words do
        # Parameters that take what was given are not what the error is about.
        try:
            signature.bind(*self._given)
        except TypeError:
            pass
        else:
            return
        n = len(self._given)
        expected = _PARAMETERS[self._rule].format(n=n, s="" if n == 1 else "s")
        hint = self._hint()
        misfit = errors.RuleTypeError(
            f"{error}. `{self._name}.{self._rule}` is called with {expected}; expected "
            f"parameters for these, got {self._rule}{signature}.{hint}"
        )
        self._locate(misfit)
        raise misfit from error


def explain(error: Exception, *about: Any) -> None:
    """Raise what says more than an error of a rule, or change it; see `running`.

    For a caller that has no time to enter a `with` block.
    """
    running(*about).__exit__(None, error, error.__traceback__)


def without_ctx() -> str:
    """Say what to do about a forward with ctx beside a setup_context."""
    return (
        " There is a setup_context(ctx, inputs, output), which saves: remove ctx from "
        "the parameters of forward, or save in forward and remove setup_context."
    )


def _two_styles(forward: Callable[..., Any]) -> str:
    """Say what to do about a forward without ctx and without a setup_context."""
    signature = inspect.signature(forward)
    own = str(signature.replace(return_annotation=signature.empty))[1:-1]
    combined = f"ctx, {own}" if own else "ctx"
    return (
        " There is no setup_context, so forward gets ctx first. Either write "
        f"forward({combined}) and save in it what the derivatives need, or keep "
        f"forward({own}) and define setup_context(ctx, inputs, output), which saves."
    )


def _takes(signature: inspect.Signature, given: Sequence[Any]) -> bool:
    """Say if there are parameters enough; keywords are not among the given."""
    try:
        signature.bind_partial(*given)
    except TypeError:
        return False
    return True


def several_outputs(out: OutSpec) -> str:
    """Say why a namedtuple that forward returned has a gradient for each field."""
    kind = out.kind
    if kind is tuple or len(out.parts) < 2:
        return ""
    return (
        f" Forward returned a {kind.__name__}, which is a tuple: each of its "
        f"{len(out.parts)} elements is an output, with a gradient of its own. Return "
        "it in a dict, a list or a dataclass that is a pytree to get one gradient of "
        "that structure."
    )


def _is_ours(trace: TracebackType | None) -> bool:
    """Was the error raised at the call itself, and not inside of the rule?"""
    # Where the arguments don't fit, Python makes no frame for the rule: the last frame
    # is that of the call, in jaxfn.
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    return trace.tb_frame.f_globals.get("__name__", "").startswith("jaxfn.")
