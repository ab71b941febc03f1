"""Exceptions, and messages that several modules share.

A message says what happened in `` `Name.rule` ``, what was expected, and what to do. If
torch raises in the same case, torch's first sentence comes first. Each class is a
RuntimeError, which code for torch catches, and the builtin for the mistake.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import core, tree_util


class RuleError(RuntimeError):
    """A rule of a Function (forward, backward, jvp, vmap) broke its contract.

    Its subclasses tell the mistake, and most are the builtin for it too:
    `RuleValueError`, `RuleTypeError`, `ClosedOverError`, `SecondDerivativeError`.

    Example:
        >>> import jax, jaxfn
        >>> class Two(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return grad, grad
        >>> try:
        ...     jax.grad(Two.apply)(1.0)
        ... except jaxfn.RuleError as error:
        ...     print(type(error).__name__, isinstance(error, ValueError))
        RuleValueError True
    """


class RuleValueError(RuleError, ValueError):
    """A rule returned or received a wrong count, shape or value."""


class RuleTypeError(RuleError, TypeError):
    """A rule returned or received a wrong kind of object or dtype."""


class ClosedOverError(RuleError, TypeError):
    """A rule used a traced value that was not passed to `apply`."""


class SecondDerivativeError(RuleError):
    """The backward of a `once_differentiable` Function was differentiated."""


class HostDerivativeError(NotImplementedError):
    """A host callback was differentiated."""


class NoRulesError(RuleError, AttributeError):
    """A decorated function was called before it had a rule."""


class NoGraphError(NotImplementedError, AttributeError):
    """A rule used an attribute of ctx that belongs to torch's graph."""


# ---- what several modules raise


def closed_over(name: str) -> ClosedOverError:
    return ClosedOverError(
        f"`{name}` used a traced value that was not passed to apply, and that value is "
        "being differentiated. A rule closed over it (or it leaked from a finished "
        "transformation). The rules say nothing about it, so its gradient would be "
        "lost. Pass it to apply (a decorated function: as an argument that is none of "
        "nondiff_argnums), and return its gradient from backward (its tangent from "
        "jvp). (For JAX all that is read from a reference, jax.new_ref, is "
        "differentiated. Pass the value of a reference from outside; call a Function "
        "that makes one under jax.jit.)"
    )


def leaked(name: str, rule_name: str) -> ClosedOverError:
    return ClosedOverError(
        f"`{name}.{rule_name}` closes over a traced value of a transformation (a jit, "
        "a scan, a vmap) that was over when the rule ran. Pass it to apply, and save "
        "it on ctx (a decorated function: as an argument, and among the residuals)."
    )


def batched_closure(name: str) -> ClosedOverError:
    return ClosedOverError(
        f"`{name}` closes over a traced value that JAX batches (by jax.vmap, or "
        "because examples take both branches of a cond). Its batch rule "
        "(vmap or def_vmap) gets only arguments. Pass the value as an argument, or "
        "to apply. If it is one of nondiff_argnums, leave it out of these."
    )


def not_repeatable(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"`{name}` uses the result of an io_callback (or of another operation with an "
        "effect: a reference from outside, or a function with custom rules that "
        "prints), and its derivative was taken. The derivative would evaluate the rule "
        f"again, with other values. Do it outside `{name}`, and pass the result as an "
        "argument."
    )


def reference(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"`{name}` uses a reference from outside (jax.new_ref) in a rule that JAX "
        "differentiates, batches or compiles as a part of an operation. Read the "
        "reference before the call, and pass its value as an argument. After the call, "
        "write the result to it."
    )


def own_derivative(name: str) -> RuleError:
    return RuleError(
        f"`{name}` has an output that all examples of a vmap share, with a derivative "
        "that differs among them, for example because a rule calls jax.lax.axis_index. "
        "Pass an argument that the vmap maps over: then it batches the output."
    )


def transposed_by_residuals(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"`{name}` was transposed with respect to its residuals, but its rules define "
        "only the transpose with respect to tangents. Use jax.vjp."
    )


def other_arguments(rule_name: str) -> RuleError:
    return RuleError(
        f"`{rule_name}` asked which arguments are differentiated "
        "(ctx.needs_input_grad, or symbolic_zeros), and now its result is "
        "differentiated with respect to others, for which it may have saved too "
        "little. (A jit, loop, branch or "
        "checkpoint between the two derivatives hides the outer one.) Save the same "
        "whatever is differentiated, and ask in backward."
    )


def other_residuals(name: str, expected: Any, got: Any) -> NotImplementedError:
    return NotImplementedError(
        f"`{name}` saved other arrays for other sets of differentiated arguments, "
        f"inside one jitted call: expected the residuals {expected}, got {got}. Save "
        "the same arrays whatever ctx.needs_input_grad or symbolic_zeros say; ask in "
        "backward."
    )


def second_derivative(name: str) -> SecondDerivativeError:
    return SecondDerivativeError(
        f"{ONCE}. `{name}.backward` was differentiated: expected first derivatives "
        "only, got a derivative of the gradient. Remove the decorator if its "
        "operations can be differentiated."
    )


def needs_trace(rule_name: str, error: Exception, way_out: str) -> NotImplementedError:
    return NotImplementedError(
        f"`{rule_name}` was differentiated again, and can't be traced: it needs the "
        f"values of float arrays ({type(error).__name__}). Without a trace, the "
        "derivative of its saved values would be lost. Write it as for jax.jit, or "
        f"{way_out}."
    )


def taylor_mode(name: str) -> RuleError:
    return RuleError(
        f"`{name}` was called inside of jet, JAX's Taylor mode, which accepts no "
        "custom rules (JAX's own custom_jvp and custom_vjp fail in it too). For "
        "derivatives of higher order nest jax.jvp."
    )


def batched_in_kernel(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"`{name}` has a batch rule (vmap or def_vmap) and was called inside a Pallas "
        "kernel, which compiles no jax.custom_batching.custom_vmap. Call it outside "
        "the kernel, or call a function without the batch rule there."
    )


NOT_TRANSPOSED = "can't be transposed"

NO_FORWARD = "You must implement the forward function for custom autograd.Function."

NO_BACKWARD = (
    "You must implement either the backward or vjp method for your custom "
    "autograd.Function to use it with backward mode AD."
)

NO_JVP = (
    "You must implement the jvp function for custom autograd.Function to use it with "
    "forward mode AD."
)

ONCE = (
    "trying to differentiate twice a function that was marked with @once_differentiable"
)

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


# ---- values in messages


def label(name: str, rule_name: str) -> str:
    """Name a rule of a function; or the function itself, if `rule_name` is empty."""
    return f"{name}.{rule_name}" if rule_name else name


def short(x: Any) -> str:
    """Return the type of `x` for a message: `f32[3,4]` for an array, else its class."""
    if isinstance(x, core.AbstractValue):
        return x.str_short(short_dtypes=True)
    try:
        return jax.typeof(x).str_short(short_dtypes=True)
    except TypeError:
        return f"{type(x).__name__}"


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a tensor of PyTorch, which may not be installed."""
    return type_name(x) in ("torch.Tensor", "torch.nn.parameter.Parameter")


def type_name(x: Any) -> str:
    """Return the class of `x` in torch's form: builtins without their module."""
    cls = type(x)
    return (
        cls.__name__
        if cls.__module__ == "builtins"
        else f"{cls.__module__}.{cls.__name__}"
    )


def shown(x: Any) -> str:
    """Return `x` for a message: types of arrays, at most 200 characters."""
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return short(x)
    try:
        text = repr(tree_util.tree_map(_Type, x, is_leaf=_is_iterator))
    except Exception:  # noqa: BLE001  (a user's node or __repr__ may raise anything)
        return f"an object of type {type_name(x)}"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


_MOST = 200


def _is_iterator(x: Any) -> bool:
    # JAX warns about an iterator as a leaf.
    return isinstance(x, Iterator)


class _Type:
    """A leaf whose repr is short."""

    def __init__(self, leaf: Any) -> None:
        is_array = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
        self._text = short(leaf) if is_array else reprlib.repr(leaf)

    def __repr__(self) -> str:
        return self._text
