"""Classes that torch keeps for old code: `InplaceFunction`, `NestedIOFunction`."""

from __future__ import annotations

from typing import Any

import jax

from jaxfn._context import BackwardCFunction, FunctionCtx
from jaxfn._core import ARRAY, Spec, grouped, messages, split, type_name
from jaxfn._function import Function


class InplaceFunction(Function):
    """A Function for operations that torch can do in place.

    A subclass takes `inplace` as an argument of forward, and calls `ctx.mark_dirty` if
    it is true. The result is a new array; jaxfn deletes a concrete marked input.

    Args:
        inplace: The attribute `inplace` of an instance. Making one warns.

    Example:
        >>> import jax.numpy as jnp, jaxfn
        >>> class Relu(jaxfn.InplaceFunction):
        ...     @staticmethod
        ...     def forward(ctx, x, inplace=False):
        ...         if inplace:
        ...             ctx.mark_dirty(x)
        ...         return jnp.maximum(x, 0)
        >>> x = jnp.array([-1.0, 2.0])
        >>> Relu.apply(x, True).tolist()
        [0.0, 2.0]
        >>> x.is_deleted()
        True

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.InplaceFunction.html
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class _Nesting(FunctionCtx):
    """A mixin that passes the arrays in nested containers to the methods of ctx.

    The next base class is the context's. For an instance it is the Function, which only
    records the arguments.
    """

    _saved_spec: Any = None

    def save_for_backward(self, *args: Any) -> None:
        """Save nested containers; `saved_tensors` returns them."""
        arrays, spec = _split(args, self.__class__.__name__)
        super().save_for_backward(*arrays)
        self._saved_spec = spec

    def mark_dirty(self, *args: Any, **kwargs: Any) -> None:
        """Mark all arrays in these containers; see `FunctionCtx.mark_dirty`."""
        super().mark_dirty(*_split((args, kwargs), self.__class__.__name__)[0])

    def mark_non_differentiable(self, *args: Any, **kwargs: Any) -> None:
        """Mark all arrays in them; see `FunctionCtx.mark_non_differentiable`."""
        arrays, _ = _split((args, kwargs), self.__class__.__name__)
        super().mark_non_differentiable(*arrays)


class NestedCtx(_Nesting, BackwardCFunction):
    """The context of a `NestedIOFunction`: `self` in its rules.

    Therefore it has the attributes and methods of the Function and of its instance.
    """

    @property
    def saved_tensors(self) -> Any:
        """The saved values, in their structure."""
        saved = BackwardCFunction.saved_tensors.__get__(self)
        spec = self._saved_spec
        return saved if spec is None or self._jaxfn_rule == "jvp" else spec.join(saved)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # super() in a method of the class accepts `self` because of this attribute.
        return type(self)._forward_cls

    def __getattr__(self, attribute: str) -> Any:
        cls = type(self)._forward_cls
        # If an instance was called, its attributes come first.
        instance = vars(cls).get("_instance")
        if instance is not None and attribute in vars(instance):
            return vars(instance)[attribute]
        for base in cls.__mro__:
            if attribute in base.__dict__ and base is not Function:
                # Bind it to the context, by the descriptor protocol.
                member = base.__dict__[attribute]
                bind = getattr(type(member), "__get__", None)
                return member if bind is None else bind(member, self, cls)
        return super().__getattr__(attribute)


class NestedIOFunction(_Nesting, Function):
    """A Function of nested containers, with rules that are methods.

    A subclass defines `forward_extended(self, *inputs)` and
    `backward_extended(self, *grads)`. Inputs and outputs are nested lists, tuples and
    dicts of arrays and None. `self` is the context of the call, whose methods take such
    containers; it also has the attributes and methods of the class. Call
    `apply(*inputs)` or an instance, whose attributes `self` has too. Outside a call,
    the methods of an instance record their arguments.

    Args:
        *args: Arguments of a subclass's `__init__`. Making an instance warns.

    Differs from torch: it works (in torch it broke when rules became static).

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> class Scale(jaxfn.NestedIOFunction):
        ...     def forward_extended(self, pair, k):
        ...         self.save_for_backward(k)
        ...         return [k * pair["a"], (k * pair["b"], None)]
        ...     def backward_extended(self, grad_a, grad_b):
        ...         (k,) = self.saved_tensors
        ...         return {"a": k * grad_a, "b": k * grad_b[0]}, None
        >>> x, k = jnp.float32(2), jnp.float32(3)
        >>> f = lambda x: sum(jax.tree.leaves(Scale.apply({"a": x, "b": x}, k)))
        >>> float(f(x)), float(jax.grad(f)(x))
        (12.0, 6.0)

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.NestedIOFunction.html
    """

    _ctx_base = NestedCtx

    @property
    def saved_tensors(self) -> Any:
        """The arguments of `save_for_backward` on this instance.

        Raises:
            AttributeError: Nothing was saved.
        """
        if isinstance(self, NestedCtx):  # by super() in a rule: self is a context
            return NestedCtx.saved_tensors.__get__(self)
        if self._saved_spec is None:
            raise AttributeError(
                f"`{type(self).__name__}.saved_tensors` was read before anything was "
                "saved: expected an earlier call of save_for_backward, got none. Call "
                "it on this instance."
            )
        return self._saved_spec.join(self.to_save)

    def __call__(self, *args: Any) -> Any:
        """Call forward_extended with this instance's attributes."""
        cls: Any = type(self)
        # A context knows only its class, so a subclass carries the instance.
        members = {"_instance": self, "__module__": cls.__module__}
        members["__qualname__"] = cls.__qualname__
        return type(cls.__name__, (cls,), members).apply(*args)

    @staticmethod
    def forward(*args: Any, **_: Any) -> Any:
        """Call `forward_extended`; not to be overridden."""
        ctx, *inputs = args
        cls = ctx._forward_cls
        ctx._nested_inputs = [_split(x, cls.__name__)[1] for x in inputs]
        out = cls.forward_extended(ctx, *inputs)
        _split(out, cls.__name__)  # checks it
        # A list is one output of a Function, but several of a NestedIOFunction.
        ctx._spread = isinstance(out, list)
        return out

    @staticmethod
    def backward(ctx: Any, *args: Any, **_: Any) -> Any:
        """Call `backward_extended`; not to be overridden."""
        grads = args[0] if ctx._spread else args
        cls, specs = ctx._forward_cls, ctx._nested_inputs
        result = cls.backward_extended(ctx, *grads)
        flat = jax.tree.leaves(result, is_leaf=lambda x: x is None)
        n = sum(spec.n_arrays for spec in specs)
        name = cls.__name__
        if len(flat) < n or any(x is not None for x in flat[n:]):
            raise messages.RuleValueError(
                f"function {name}Backward returned an incorrect number of "
                f"gradients (expected {n}, got {len(flat)}). "
                f"`{name}.backward_extended` must return a gradient (or None) "
                "for each array in the inputs, in their order."
            )
        # torch's old rules return gradients in any nesting.
        parts = zip(specs, grouped(specs, flat), strict=True)
        return tuple([spec.join_only(part) for spec, part in parts])

    def forward_extended(self, *input: Any, **_: Any) -> Any:
        """Compute the outputs. Override it.

        Args:
            *input: Nested lists, tuples and dicts of arrays and None.

        Returns:
            Nested containers of arrays; a tuple (or list) is several outputs.
        """
        raise NotImplementedError

    def backward_extended(self, *grad_output: Any, **_: Any) -> Any:
        """Compute the gradients of the inputs. Override it.

        Args:
            *grad_output: A gradient for each output, in its structure.

        Returns:
            A gradient (or None) for each input array, in their order (dicts by sorted
            keys), in any nesting.
        """
        raise NotImplementedError


def _split(values: Any, name: str) -> tuple[list[Any], Spec]:
    """Split nested containers into arrays and their spec.

    Raises:
        ValueError: A leaf is neither an array nor None.
    """
    arrays, spec = split(values)
    for x in spec.leaves:
        if x is not ARRAY:
            raise ValueError(
                "Auto nesting doesn't know how to process an input object of type "
                f"{type_name(x)}. Accepted types: Tensors, or lists/tuples of them. "
                f"`{name}.forward_extended` got, saved, marked or returned "
                f"{messages.shown(x)}: "
                "expected nested lists, tuples and dicts of arrays and None. Keep "
                "anything else as an attribute of self."
            )
    return arrays, spec
