"""What forward says to its context."""

from __future__ import annotations

import warnings
from typing import Any


class FunctionCtx:
    """The part of a context that forward (or `setup_context`) talks to.

    On its own it just records what it is told, which makes it a stand-in for a real
    context in a unit test of `forward`. The context that `apply` passes is a
    `BackwardCFunction`, which also checks.

    Attributes:
        to_save: what `save_for_backward` was given.
        saved_for_forward: what `save_for_forward` was given.
        dirty_tensors: what `mark_dirty` was given.
        non_differentiable: what `mark_non_differentiable` was given.
        materialize_grads: what `set_materialize_grads` was given; True by default.

    Example:
        >>> import jaxfn
        >>> ctx = jaxfn.FunctionCtx()
        >>> ctx.save_for_backward(1.0, None)
        >>> ctx.to_save
        (1.0, None)

    Source: https://docs.pytorch.org/docs/stable/autograd.html#context-method-mixins
    """

    to_save: tuple[Any, ...]
    saved_for_forward: tuple[Any, ...]
    dirty_tensors: tuple[Any, ...]
    non_differentiable: tuple[Any, ...]
    materialize_grads: bool

    def save_for_backward(self, *tensors: Any) -> None:
        """Save arrays for `backward`, which finds them in `ctx.saved_tensors`.

        Call it at most once, in forward or setup_context. Inputs, outputs and
        intermediate values may be saved; all of them keep their derivative at second
        order. Anything that holds no array goes into an attribute of ctx.

        Args:
            *tensors: arrays of any shape and dtype; pytrees of them (dicts, modules,
                dataclasses that are registered), which come back in their structure
                and whose leaves saved-tensor hooks see; or None, which keeps its place.

        Raises:
            TypeError: an argument holds no array and is not None.
            RuntimeError: called while a derivative is computed.

        Differs from torch: pytrees may be saved; what holds none is refused at once;
        saved intermediates keep their derivative (torch loses it in silence); NumPy
        arrays are copied.

        Example:
            >>> import jax, jaxfn
            >>> class Square(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.save_for_backward(x)
            ...         return x * x
            ...     @staticmethod
            ...     def backward(ctx, g):
            ...         (x,) = ctx.saved_tensors
            ...         return 2 * x * g
            >>> float(jax.grad(Square.apply)(3.0 * jax.numpy.ones(())))
            6.0

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.FunctionCtx.save_for_backward.html
        """
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Save arrays for `jvp`, which finds them in `ctx.saved_tensors`.

        Call it at most once, in forward or setup_context.

        Args:
            *tensors: arrays of any shape and dtype, pytrees of them, or None, as for
                `save_for_backward`.

        Raises:
            AssertionError: an argument holds no array and is not None (torch's choice).
            RuntimeError: called while a derivative is computed.

        Example:
            >>> import jax, jaxfn
            >>> class Square(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.save_for_forward(x)
            ...         return x * x
            ...     @staticmethod
            ...     def jvp(ctx, t):
            ...         (x,) = ctx.saved_tensors
            ...         return 2 * x * t
            >>> x = 3.0 * jax.numpy.ones(())
            >>> float(jax.jvp(Square.apply, (x,), (x,))[1])
            18.0

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.BackwardCFunction.html
        """
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: Any) -> None:
        """Say which inputs the call uses up.

        JAX arrays can't be changed in place: forward returns the new value. A concrete
        input that is marked is consumed (its buffer is deleted after the call, so that
        a later use of the old value fails), unless it is also returned or saved, or an
        argument of the call is being traced.

        Args:
            *args: arguments of forward, by identity.

        Raises:
            TypeError: an argument is no array.
            ValueError: an argument is no input of this call.
            RuntimeError: called while a derivative is computed.

        Differs from torch: nothing is changed in place, and what is returned is not
        checked; a non-input is refused (torch warns).

        Example:
            >>> import jax.numpy as jnp, jaxfn
            >>> class AddOne(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.mark_dirty(x)
            ...         return x + 1
            >>> x = jnp.ones(2)
            >>> y = AddOne.apply(x)
            >>> x.is_deleted()
            True

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.FunctionCtx.mark_dirty.html
        """
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args: Any) -> None:
        """Say which outputs have no derivative.

        Their cotangent does not reach `backward`, which gets zeros in their place;
        `jvp` returns None for them. Integer and bool outputs need no mark.

        Args:
            *args: outputs of forward, by identity.

        Raises:
            TypeError: an argument is no array.
            ValueError: an argument is no output of this call (torch ignores it).
            RuntimeError: called while a derivative is computed.

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Split(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         whole = jnp.floor(x)
            ...         ctx.mark_non_differentiable(whole)
            ...         return x - whole, whole
            ...     @staticmethod
            ...     def backward(ctx, g_rest, g_whole):  # g_whole is zero
            ...         return g_rest + g_whole
            >>> float(jax.grad(lambda x: sum(Split.apply(x)))(jnp.float32(1.5)))
            1.0

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.FunctionCtx.mark_non_differentiable.html
        """
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        """Choose what the rules get for a gradient or tangent that is zero.

        True (the default): zeros of the output's shape and dtype. False: None for an
        output that was not used or has no derivative, and for an input of `jvp` that
        is not being differentiated.

        Args:
            value: the choice.

        Raises:
            TypeError: `value` is not a bool.
            RuntimeError: called while a derivative is computed.

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Twice(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.set_materialize_grads(False)
            ...         return 1 * x, 1 * x
            ...     @staticmethod
            ...     def backward(ctx, g1, g2):
            ...         return g1 if g2 is None else g1 + g2
            >>> float(jax.grad(lambda x: Twice.apply(x)[0])(jnp.float32(2)))
            1.0

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.FunctionCtx.set_materialize_grads.html
        """
        self.materialize_grads = value

    def mark_shared_storage(self, *_: Any) -> None:
        """Do nothing but warn: torch deprecated it, and JAX arrays share nothing."""
        warnings.warn(
            "`mark_shared_storage` is deprecated. Tensors with shared storages are "
            "automatically tracked. Note that calls to `set_()` are not tracked",
            FutureWarning,
            stacklevel=2,
        )
