"""Exceptions, and messages that several modules share; others stand where they arise.

A mistake in a rule is reported as `` `Name.rule` did what: expected <what>, got
<what>. What to do. `` Where torch has a first sentence that is known and true, it
comes first. torch raises RuntimeError for most of these; the classes below are
RuntimeErrors too, so that code written for torch catches them, and carry the
builtin that says what kind of mistake it was.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import core, tree_util


class RuleError(RuntimeError):
    """A rule of a Function (forward, backward, jvp, vmap) broke its contract."""


class RuleValueError(RuleError, ValueError):
    """A rule returned or received a wrong count, shape or value."""


class RuleTypeError(RuleError, TypeError):
    """A rule returned or received a wrong kind of object or dtype."""


class ClosedOverError(RuleError, TypeError):
    """A rule used a traced value that was not passed to `apply`."""


class SecondDerivativeError(RuleError):
    """The backward of a `once_differentiable` Function was differentiated."""


class HostDerivativeError(NotImplementedError):
    """What ran in NumPy, on the host, was differentiated."""


class GradcheckError(RuntimeError):
    """A derivative is not what finite differences say. torch's name."""


class OutputChangedError(GradcheckError, AssertionError):
    """A function to check returned another kind of output where inputs were perturbed.

    torch raises an AssertionError for it, which raise_exception=False does not hide.

    Args:
        what: what is no longer the same: "shape", "dtype" or "number".
        eps: the step of the differences.
        before: the shape, dtype or number at the inputs.
        after: the same beside them.
        of: words for the output, and the function.

    Attributes:
        index: the one element of the input that was perturbed, or None.
    """

    def __init__(self, what: str, eps: float, before: Any, after: Any, of: str) -> None:
        super().__init__()
        self._what, self._eps, self._of = what, eps, of
        self._before, self._after = before, after
        self.index: tuple[int, ...] | None = None

    def __str__(self) -> str:
        where = "" if self.index is None else f"on index {self.index} "
        return (
            f"Expected `func` to return outputs with the same {self._what} when inputs "
            f"are perturbed {where}by {self._eps}, but got: {self._what}s "
            f"{self._before} and {self._after}. The first is the {self._what} of "
            f"{self._of} at these inputs, the second beside them, so no difference can "
            "be taken. Check it at inputs where neither depends on their values."
        )


class NoGraphError(NotImplementedError, AttributeError):
    """An attribute of ctx that only makes sense in torch's graph was read."""


CLOSED_OVER = (
    "`{name}` used a traced value that was not passed to apply, and that value is "
    "being differentiated: expected every traced value that forward uses to be an "
    "argument, got one that is closed over (or leaked from a finished "
    "transformation). The rules say nothing about it, so its gradient would be lost. "
    "Pass it to apply, and return its gradient from backward (its tangent from jvp). "
    "(If forward makes a reference, by jax.new_ref, that is what JAX differentiates "
    "here: put the code that uses it under jax.jit.)"
)

NOT_REPEATABLE = (
    "`{name}` computes its result with that of an io_callback, or with a reference "
    "(jax.new_ref) that it writes to, and its derivative was taken: expected rules "
    "that give the same when they are evaluated again, got what would be called or "
    "written once more, and may give something else. Do it outside of `{name}`, and "
    "pass what it gives as an argument."
)

REFERENCE = (
    "`{name}` uses a reference from outside (jax.new_ref) in a rule that JAX compiles "
    "as a part of an operation: expected arrays. Read it before, and pass the value as "
    "an argument; write to it what `{name}` returns."
)

BATCHED_IN_KERNEL = (
    "`{name}` has a batch rule (vmap or def_vmap) and was called inside a Pallas "
    "kernel, which compiles no jax.custom_batching.custom_vmap. Call it outside the "
    "kernel, or call a function without the batch rule there."
)

OTHER_ARGUMENTS = (
    "`{rule}` asked which arguments are differentiated (ctx.needs_input_grad, or "
    "symbolic_zeros), and now its result is differentiated with respect to others, for "
    "which it may have saved too little. (A jit, loop, branch or checkpoint between "
    "the two derivatives hides the outer one.) Save the same whatever is "
    "differentiated, and ask in backward."
)

OWN_DERIVATIVE = (
    "`{name}` gave an output that all examples of a vmap share a derivative that "
    "differs among them (by jax.lax.axis_index, say): expected the same for all. Pass "
    "it something that the vmap batches."
)

JET = (
    "`{name}` was called inside of jet, JAX's Taylor mode, which can't go through "
    "custom rules (JAX's own custom_jvp and custom_vjp fail in it too): expected one "
    "of JAX's other transformations. For derivatives of higher order nest jax.jvp."
)

BATCHED_CLOSURE = (
    "`{name}` closes over a traced value that JAX batches (by jax.vmap, or since "
    "examples take both branches of a cond), and has a batch rule (vmap, or of "
    "def_vmap), which is told of arguments alone: expected every batched value as an "
    "argument, got one that is closed over. Pass it as an argument, or to apply."
)

LEAKED = (
    "`{name}.{rule}` closes over a traced value of a transformation (a scan, a vmap) "
    "that is over when it runs: expected values that were saved on ctx, or passed to "
    "apply. Pass it to apply, and save it."
)

NOT_TRANSPOSED = "can't be transposed"

NO_FORWARD = "You must implement the forward function for custom autograd.Function."

VMAP_COMBINED = (
    "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, "
    "jacrev, ...), it must override the setup_context staticmethod. `{name}` has a "
    "vmap staticmethod, which does not get a ctx: expected forward(*args) and "
    "setup_context, got forward(ctx, *args). Split forward, or remove vmap and let JAX "
    "batch it."
)

VMAP_TWICE = (
    "You tried to vmap over {name}, but it has both generate_vmap_rule=True and an "
    "overridden vmap staticmethod. Please set generate_vmap_rule=False or delete the "
    "overridden vmap staticmethod to avoid ambiguity. (`{name}.vmap`)"
)

NO_BACKWARD = (
    "You must implement either the backward or vjp method for your custom "
    "autograd.Function to use it with backward mode AD."
)

NO_JVP = (
    "You must implement the jvp function for custom autograd.Function to use it with "
    "forward mode AD."
)

NO_JVP_NOTE = (
    f"{NO_JVP} `{{name}}` has no jvp: define a jvp staticmethod, or set "
    "generate_jvp_rule = True on the class to derive the jvp from backward."
)

ONCE = (
    "trying to differentiate twice a function that was marked with @once_differentiable"
)


def short(x: Any) -> str:
    """Write the type of `x` for a message: `f32[3,4]` for an array, else its class."""
    if isinstance(x, core.AbstractValue):
        return x.str_short(short_dtypes=True)
    try:
        return jax.typeof(x).str_short(short_dtypes=True)
    except TypeError:
        return f"{type(x).__name__}"


def type_name(x: Any) -> str:
    """Write the class of `x` as torch does: without the module for builtins."""
    cls = type(x)
    return (
        cls.__name__
        if cls.__module__ == "builtins"
        else f"{cls.__module__}.{cls.__name__}"
    )


def shown(x: Any) -> str:
    """`x` in a message: never the contents of arrays, never more than a line or two.

    A module with a thousand layers would fill pages else.
    """
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return short(x)
    try:
        text = repr(tree_util.tree_map(_Type, x, is_leaf=_is_iterator))
    except Exception:  # noqa: BLE001  (a user's node or __repr__ may raise anything)
        return f"an object of type {type_name(x)}"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


_MOST = 200


def _is_iterator(x: Any) -> bool:
    # JAX takes one for a leaf, and warns that it will refuse it.
    return isinstance(x, Iterator)


class _Type:
    """Stands for a leaf of a value that is shown."""

    def __init__(self, leaf: Any) -> None:
        is_array = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
        self._text = short(leaf) if is_array else reprlib.repr(leaf)

    def __repr__(self) -> str:
        return self._text
