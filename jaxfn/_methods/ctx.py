"""The methods of a context that forward calls."""

from __future__ import annotations

import warnings
from typing import Any

from jaxfn._base import errors


class FunctionCtx:
    """The methods of a context that forward (or `setup_context`) calls.

    It only records their arguments, so it can replace a context in a unit test of
    `forward`. `apply` passes a `BackwardCFunction`, which also checks them.

    Attributes:
        to_save: Arguments of `save_for_backward`.
        saved_for_forward: Arguments of `save_for_forward`.
        dirty_tensors: Arguments of `mark_dirty`.
        non_differentiable: Arguments of `mark_non_differentiable`.
        materialize_grads: Argument of `set_materialize_grads`.
        output_grad_dtypes: Arguments of `set_output_grad_dtype`.

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
    output_grad_dtypes: tuple[Any, ...] | None

    def save_for_backward(self, *tensors: Any) -> None:
        """Save arrays for `backward`, which reads them from `ctx.saved_tensors`.

        Call it at most once, in forward or setup_context. You may save inputs, outputs
        and intermediates. For other values, use attributes of ctx.

        Args:
            *tensors: Arrays of any shape and dtype, pytrees of them, or None.
                Saved-tensor hooks see the leaves of a pytree.

        Raises:
            TypeError: An argument holds no array and is not None.
            RuntimeError: A derivative rule called it.

        Differs from torch: you may save pytrees; other values raise at once;
        intermediates keep their derivative at second order (torch silently loses it);
        NumPy arrays are copied.

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
        """Save arrays for `jvp`, which reads them from `ctx.saved_tensors`.

        Call it at most once, in forward or setup_context.

        Args:
            *tensors: Arrays of any shape and dtype, pytrees of them, or None.

        Raises:
            AssertionError: An argument holds no array and is not None (torch's choice).
            RuntimeError: A derivative rule called it.

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
        """Mark inputs that torch code would change in place.

        JAX arrays are immutable: return the new value from forward. jaxfn deletes the
        buffer of a marked input after the call, and a later use fails. It keeps the
        buffer if you also return or save the input, or if any argument is traced.

        Args:
            *args: Arguments of forward, by identity.

        Raises:
            TypeError: An argument is no array.
            ValueError: An argument is no input of this call.
            RuntimeError: A derivative rule called it.

        Differs from torch: nothing changes in place, and jaxfn can't check that you
        return the new value; a value that is no input raises (torch warns).

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
        """Mark outputs that have no derivative.

        `backward` gets zeros for them; `jvp` returns None for them. Integer and bool
        outputs need no mark.

        Args:
            *args: Outputs of forward, by identity.

        Raises:
            TypeError: An argument is no array.
            ValueError: An argument is no output of this call (torch ignores it).
            RuntimeError: A derivative rule called it.

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
        """Choose whether the rules get zeros or None for a zero gradient or tangent.

        Args:
            value: True (the default) for zeros of the right shape and dtype. False for
                None, if an output is unused or has no derivative, or if an input of
                `jvp` is not differentiated.

        Raises:
            TypeError: `value` is not a bool.
            RuntimeError: A derivative rule called it.

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

    def set_output_grad_dtype(self, *dtypes: Any) -> None:
        """Choose the dtype in which `backward` gets each gradient. Call it once.

        Args:
            *dtypes: For each output, a float or complex dtype, or None for its own. An
                output that is no array, or has no derivative, takes None. Zeros for an
                unused output keep its own dtype.

        Raises:
            RuntimeError: It was called before, or by a derivative rule; or after
                forward, if the dtypes don't fit the outputs.

        Differs from torch: no precision is gained, because JAX computes a gradient in
        the dtype of the output, and jaxfn casts it.

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Half(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.set_output_grad_dtype(jnp.float32)
            ...         return x.astype(jnp.float16)
            ...     @staticmethod
            ...     def backward(ctx, g):
            ...         return g + 1e-4  # float16 would round it to 1
            >>> round(float(jax.grad(Half.apply)(jnp.float32(2))), 6)
            1.0001

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.FunctionCtx.set_output_grad_dtype.html
        """
        self.output_grad_dtypes = dtypes

    def mark_shared_storage(self, *_: Any) -> None:
        """Warn, and do nothing: torch deprecated it, and JAX arrays are immutable."""
        warnings.warn(
            "`mark_shared_storage` is deprecated. Tensors with shared storages are "
            "automatically tracked. Note that calls to `set_()` are not tracked",
            FutureWarning,
            stacklevel=2,
        )


_READ_ONLY = ("next_functions", "metadata", "requires_grad") + (
    ("_raw_saved_tensors", "_sequence_nr", "_input_metadata")
)
_GRAPH = frozenset((*_READ_ONLY, "register_hook", "register_prehook"))


class NoGraph:
    """A base of contexts that refuses the names of torch's graph, and says why."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute not in _GRAPH:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {attribute!r}",
                name=attribute,
                obj=self,
            )
        raise errors.NoGraphError(
            f"ctx.{attribute} of {type(self).__name__} belongs to torch's autograd "
            "graph. JAX has no graph of nodes, so you can neither read nor assign it. "
            "Choose another name for an attribute of your own."
        )


for _name in _READ_ONLY:
    # Reading a property without getter raises AttributeError; then Python calls
    # __getattr__, which refuses it.
    _refuse = lambda ctx, _, name=_name: NoGraph.__getattr__(ctx, name)  # noqa: E731
    _doc = "A name of torch's graph, which JAX lacks. Reading or assigning it raises."
    setattr(NoGraph, _name, property(None, _refuse, None, _doc))
