"""ctx: the context that forward fills, and that `backward` and `jvp` read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from jaxfn._core import internals, is_array, is_tensor, messages, split, type_name


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
        raise messages.NoGraphError(
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


STATE = frozenset(
    ("to_save", "saved_for_forward", "dirty_tensors", "non_differentiable")
    + ("materialize_grads", "_materialize_non_diff_grads", "output_grad_dtypes")
    + ("_jaxfn_needs", "_jaxfn_asked", "_jaxfn_rule", "_jaxfn_saved", "_jaxfn_reads")
)
"""Names in a context's `__dict__` that are not the user's attributes."""


class BackwardCFunction(FunctionCtx, NoGraph):
    """The context that `apply` passes to the rules.

    Each Function has its own subclass, named `<Name>Backward`. To test a rule without a
    transformation, make a context (`F._backward_cls()`), save, set attributes, and call
    `apply` or `apply_jvp`.

    You may set any other attribute. jaxfn saves arrays in it like those given to
    `save_for_backward`, also inside dicts, lists, registered pytrees, dataclasses and
    SimpleNamespaces. `backward` and `jvp` get a fresh context with the same
    attributes; writing to it is local.

    Attributes:
        needs_input_grad: A bool for each argument of forward: whether it is
            differentiated.

    Example:
        >>> import jax.numpy as jnp, jaxfn
        >>> class Scale(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x, k):
        ...         ctx.k = k
        ...         return k * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return ctx.k * g, None
        >>> ctx = Scale._backward_cls()
        >>> ctx.k = 3.0
        >>> float(ctx.apply(jnp.float32(2))[0])
        6.0

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.BackwardCFunction.html
    """

    _forward_cls: ClassVar[Any]
    _autograd_function_id: ClassVar[int]
    _materialize_non_diff_grads: bool = True

    to_save: tuple[Any, ...] = ()
    saved_for_forward: tuple[Any, ...] = ()
    dirty_tensors: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize_grads: bool = True
    output_grad_dtypes: tuple[Any, ...] | None = None

    _jaxfn_asked: bool = False
    _jaxfn_needs: Any = ()
    _jaxfn_rule: str | None = None
    _jaxfn_saved: tuple[Any, ...] | Callable[[], tuple[Any, ...]] | None = None
    _jaxfn_reads: int = 0

    # -- what forward calls

    def save_for_backward(self, *tensors: Any) -> None:
        # The comparisons here are redundant, but take less time than the calls.
        saved = self.to_save is not BackwardCFunction.to_save
        if saved or self._jaxfn_rule is not None:
            _expect_forward(self, "save_for_backward", "to_save")
        for i, x in enumerate(tensors):
            if type(x) is not internals.ConcreteArray and not _can_be_saved(x):
                raise messages.RuleTypeError(
                    f"save_for_backward can only save variables, but argument {i} is "
                    f"of type {type_name(x)}. Expected arrays, pytrees of arrays or "
                    f"None, got {messages.shown(x)}, in {where(self)}. {_advice(x)}"
                )
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        _expect_forward(self, "save_for_forward", "saved_for_forward")
        for i, x in enumerate(tensors):
            if not _can_be_saved(x):
                raise AssertionError(
                    "save_for_forward expects all arguments to be tensors; you should "
                    "save non-tensors as attributes on ctx. Expected arrays, pytrees "
                    f"of arrays or None, got {messages.shown(x)} as argument {i}, in "
                    f"{where(self)}. {_advice(x)}"
                )
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: Any) -> None:
        _expect_forward(self, "mark_dirty", "dirty_tensors")
        for i, x in enumerate(args):
            if not is_array(x):
                raise messages.RuleTypeError(
                    f"mark_dirty can only accept variables, but argument {i} is of "
                    f"type {type_name(x)}. Expected an argument of {where(self)} "
                    "that is an array."
                )
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args: Any) -> None:
        _expect_forward(self, "mark_non_differentiable", "non_differentiable")
        for i, x in enumerate(args):
            if not is_array(x):
                raise messages.RuleTypeError(
                    "mark_non_differentiable only accepts variable arguments, but got "
                    f"{type_name(x)} as argument {i}. Expected an output of "
                    f"{where(self)} that is an array."
                )
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        _expect_forward(self, "set_materialize_grads")
        if not isinstance(value, bool):
            raise messages.RuleTypeError(
                f"set_materialize_grads in {where(self)} expected a bool, got "
                f"{messages.shown(value)} of type {type_name(value)}."
            )
        self.materialize_grads = value

    def set_output_grad_dtype(self, *dtypes: Any) -> None:
        _expect_forward(self, "set_output_grad_dtype")
        if self.output_grad_dtypes is not None:
            raise messages.RuleError(
                f"set_output_grad_dtype can only be called once. {where(self)} called "
                "it again. Give it the dtypes of all outputs in one call."
            )
        self.output_grad_dtypes = dtypes

    # -- what the rules read

    @property
    def needs_input_grad(self) -> Any:
        """For each argument of forward, whether it is differentiated."""
        self._jaxfn_asked = True
        return self.__dict__.get("_jaxfn_own_needs", self._jaxfn_needs)

    @needs_input_grad.setter
    def needs_input_grad(self, value: Any) -> None:
        # As in torch, backward reads the value that forward assigned. The name is not
        # in STATE, so it travels like a user's attribute.
        self._jaxfn_own_needs = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The arguments of `save_for_backward`; in `jvp`, those of `save_for_forward`.

        Raises:
            RuntimeError: A backward reads it twice, and the class sets
                `clear_saved_tensors_on_access`.
        """
        if self._jaxfn_rule == "backward":
            clears = self._forward_cls.clear_saved_tensors_on_access
            if not isinstance(clears, bool):
                raise _not_bool(self, "clear_saved_tensors_on_access", clears)
            if clears and self._jaxfn_reads:
                raise messages.RuleError(
                    "saved_tensors can only be accessed once when "
                    "clear_saved_tensors_on_access=True is set on the "
                    "autograd.Function. Either access saved_tensors only once, or set "
                    "clear_saved_tensors_on_access=False. "
                    f"(`{self._forward_cls.__name__}.backward`)"
                )
            self._jaxfn_reads += clears
        # As in torch, unpack_hook runs at every read.
        if callable(self._jaxfn_saved):
            return self._jaxfn_saved()
        if self._jaxfn_saved is not None:
            return self._jaxfn_saved
        return self.to_save or self.saved_for_forward

    @property
    def input_grad_buffers(self) -> tuple[None, ...]:
        """None for each argument of forward: JAX has no buffers. In `backward` only."""
        if self._jaxfn_rule == "backward":
            return (None,) * len(self._jaxfn_needs)
        raise messages.RuleError(
            "input_grad_buffers can only be accessed while autograd is executing "
            f"backward(). Read it in `{self._forward_cls.__name__}.backward`, and "
            "under jax.grad or jax.vjp: a ctx made by hand has none."
        )

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The old name of `saved_tensors`, in `backward` only. Deprecated."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'",
            DeprecationWarning,
            stacklevel=2,
        )
        # As in torch, it ignores save_for_forward.
        return () if self._jaxfn_rule == "jvp" else self.saved_tensors

    def maybe_clear_saved_tensors(self) -> None:
        """Do nothing: JAX frees residuals."""

    def name(self) -> str:
        """Return `<Name>Backward`."""
        return type(self).__name__

    if TYPE_CHECKING:  # type checkers must let a user set any attribute

        def __setattr__(self, attribute: str, value: Any) -> None: ...

    # -- calling the rules by hand

    def apply(self, *args: Any) -> Any:
        """Call the Function's `backward` (or `vjp`) with this context.

        Args:
            *args: A gradient for each output of forward.

        Returns:
            The unchecked result.

        Raises:
            RuntimeError: Both `backward` and `vjp` are defined.
            NotImplementedError: Neither is defined.
        """
        return self.apply_boxed(list(args))

    def apply_boxed(self, args: list[Any]) -> Any:
        """Call `backward` with a list of gradients, as `boxed_grads_call` asks."""
        cls = self._forward_cls
        return call_backward(cls._backward_rule(), cls.boxed_grads_call, self, args)

    def apply_jvp(self, *args: Any) -> Any:
        """Call the Function's `jvp` with this context.

        Args:
            *args: A tangent for each argument of forward.

        Returns:
            The unchecked result.

        Raises:
            NotImplementedError: `jvp` is not defined.
        """
        rule = self._forward_cls._jvp_rule()
        # In a context made by hand, saved_tensors prefers those saved for backward.
        saved = self._jaxfn_saved
        self._jaxfn_saved = self.saved_for_forward if saved is None else saved
        try:
            return rule(self, *args)
        finally:
            self._jaxfn_saved = saved


# The following are functions because a user's attribute may have any name.
def _expect_forward(ctx: BackwardCFunction, method: str, attribute: str = "") -> None:
    """Refuse a call in a derivative rule; warn if forward has set the attribute."""
    if ctx._jaxfn_rule is not None:
        raise messages.RuleError(
            f"`{ctx._forward_cls.__name__}.{ctx._jaxfn_rule}` called ctx.{method}, "
            "which has an effect only in forward or setup_context. Move the call "
            "there, or set an attribute of ctx."
        )
    if attribute in ctx.__dict__:
        warnings.warn(
            f"{where(ctx)} called ctx.{method} more than once: only the last "
            "call counts. Give it everything in one call.",
            UserWarning,
            stacklevel=3,
        )


def _can_be_saved(x: Any) -> bool:
    """Return whether `x` is an array, None, or a pytree that holds arrays."""
    if x is None or is_array(x):
        return True
    arrays, spec = split(x)
    return bool(arrays) or not spec.leaves


def _advice(x: Any) -> str:
    """Advise on a value that can't be saved."""
    if isinstance(x, (int, float, complex)):
        return (
            "A Python number is static: it has no gradient. If it needs one, pass "
            "jnp.asarray(x) to apply. Otherwise save it as an attribute: "
            "ctx.<name> = ..."
        )
    if is_tensor(x):
        return (
            "It is a PyTorch tensor. Pass a JAX array to apply: jnp.asarray(x). To run "
            "a PyTorch Function as it is, use jaxfn.torch.from_torch."
        )
    if isinstance(x, (list, tuple)):
        return (
            "A list of numbers is no array. Pass jnp.asarray(x) to apply. If it is "
            "static, save it as an attribute: ctx.<name> = ..."
        )
    return "Save it as an attribute: ctx.<name> = ..."


def _not_bool(ctx: BackwardCFunction, flag: str, value: Any) -> messages.RuleTypeError:
    return messages.RuleTypeError(
        f"{flag} must be a bool, got {type_name(value)}. Set "
        f"`{ctx._forward_cls.__name__}.{flag}` to True or False."
    )


def where(ctx: BackwardCFunction) -> str:
    """Name the rules that may call the methods of ctx, for messages."""
    return f"`{ctx._forward_cls.__name__}.forward` (or setup_context)"


def call_backward(rule: Callable[..., Any], boxed: Any, ctx: Any, grads: Any) -> Any:
    """Call the backward (or vjp) of a Function class, with a list if `boxed`."""
    if not isinstance(boxed, bool):
        raise _not_bool(ctx, "boxed_grads_call", boxed)
    return rule(ctx, grads) if boxed else rule(ctx, *grads)
