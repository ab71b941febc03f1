"""Better errors for a user's rule: which rule of which class, its place, what to do."""

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
"""Arguments of each rule; of forward in the separate style."""


class running:  # noqa: N801  (used as a function is; a generator is slower)
    """A `with` block that calls a rule and checks its result; it extends errors.

    - jaxfn's own errors get the file and line of the rule.
    - If the parameters don't fit, Python counts arguments that the user never wrote;
      the message names them.
    - If forward has no parameter for ctx, the message explains the two styles.
    - If NumPy gets a tracer, a note names the way out.

    Args:
        name: Name of the Function.
        rule: Name of the rule.
        function: The rule.
        given: Arguments of the rule.
        hint: Function that returns more advice, if the parameters don't fit.
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
        """Do nothing; `__exit__` does the work."""

    def __exit__(
        self, _: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Add file and line of the rule; the innermost rule comes first."""
        if self._function is None or "_located" in error.__dict__:
            return
        error.__dict__["_located"] = True
        place = compat.place_of(self._function)
        if place:
            text = f"{error} (`{self._name}.{self._rule}` is at {place}.)"
            error.args = (text, *error.args[1:])

    def _show_way_out(self, error: BaseException) -> None:
        """Advise on NumPy with a traced array; only the innermost rule does."""
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
        """Explain a forward that takes ctx for an array."""
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
        """Is it a forward that would fit the arguments without ctx?"""
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
        """Explain a rule that expects more elements in a tuple of ctx."""
        ctx = next(iter(self._given), None)
        if not isinstance(ctx, BackwardCFunction):
            return
        words = str(error)
        # Python's own messages: any other error is the user's.
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
        """Replace a TypeError of the call by one that names the arguments."""
        # The block after setup_context checks the context; it has no arguments.
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
    """Extend an error as `running` does, without the cost of a `with` block."""
    running(*about).__exit__(None, error, error.__traceback__)


def without_ctx() -> str:
    """Advise on a forward with ctx beside a setup_context."""
    return (
        " There is a setup_context(ctx, inputs, output), which saves: remove ctx from "
        "the parameters of forward, or save in forward and remove setup_context."
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


def _takes(signature: inspect.Signature, given: Sequence[Any]) -> bool:
    """Are there enough parameters? `given` has no keywords."""
    try:
        signature.bind_partial(*given)
    except TypeError:
        return False
    return True


def several_outputs(out: OutSpec) -> str:
    """Explain that an output that is a namedtuple has a gradient for each field."""
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
    """Did the call itself raise, and not the rule?"""
    # If the arguments don't fit, Python makes no frame for the rule. The last frame is
    # the call, in jaxfn.
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    return trace.tb_frame.f_globals.get("__name__", "").startswith("jaxfn.")
