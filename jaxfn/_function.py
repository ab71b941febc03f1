"""`Function`: a class with static methods forward, backward, jvp and vmap."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from jaxfn._class_rules import (
    ClassRules,
    Kwargs,
    Parameters,
    call_setup_context,
    note_outputs,
)
from jaxfn._context import STATE, BackwardCFunction, FunctionCtx
from jaxfn._core import Layout, call, internals, messages, split
from jaxfn._rule_errors import explain, refuse_tensor

_ids = itertools.count()
_F = TypeVar("_F", bound=Callable[..., Any])


class FunctionMeta(type):
    """The metaclass of `Function`: makes `<Name>Backward`, its context class.

    Example:
        >>> import jaxfn
        >>> class Exp(jaxfn.Function): ...
        >>> Exp._backward_cls.__name__
        'ExpBackward'
    """

    _backward_cls: type[BackwardCFunction]
    _ctx_base: type[BackwardCFunction] = BackwardCFunction

    def __init__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
    ) -> None:
        super().__init__(name, bases, namespace)
        members = {
            "__doc__": f"The context of `{name}`.",
            "__module__": cls.__module__,
            "__qualname__": f"{cls.__qualname__}Backward",
            "_forward_cls": cls,
            "_autograd_function_id": next(_ids),
        }
        cls._backward_cls = type(f"{name}Backward", (cls._ctx_base,), members)


class _Apply:
    """Gives each class its own `apply`: one object, named after the class.

    `jax.jit` caches by the identity of the function, and a bound classmethod is a new
    object at every access.
    """

    def __get__(self, instance: Any, owner: Any) -> Callable[..., Any]:
        # The pair tells a class that was made from the `__dict__` of another. And no
        # tool that collects functions of the class finds this one in a tuple.
        made = owner.__dict__.get("_jaxfn_apply")
        if made is None or made[0] is not owner:
            made = owner._jaxfn_apply = owner, _make_apply(owner)
        return made[1]


def _make_apply(owner: Any) -> Callable[..., Any]:
    # Python calls a partial faster than a function around `apply`.
    made = internals.with_hidden_frames(functools.partial(apply, owner))
    made.__name__ = owner.__name__
    made.__qualname__ = f"{owner.__qualname__}.apply"
    made.__module__ = owner.__module__
    made.__doc__ = apply.__doc__
    made.__signature__ = _signature(owner)
    made.__dict__["__wrapped__"] = apply  # a partial has no source text
    made.__dict__["_jaxfn_class"] = owner
    return made


def _signature(cls: Any) -> inspect.Signature:
    """Return the signature of forward without ctx, for the names in JAX's errors."""
    found = inspect.signature(cls.forward)
    places = list(found.parameters.values())
    if is_separate(cls) or not places or places[0].kind is places[0].VAR_POSITIONAL:
        return found
    return found.replace(parameters=places[1:])


def is_separate(cls: Any) -> bool:
    """Return whether forward gets no ctx, and setup_context saves."""
    return cls.setup_context is not Function.setup_context


class Function(FunctionCtx, metaclass=FunctionMeta):
    """A function with its own derivatives: subclass it and define static methods.

    - `forward(ctx, *args)` computes the value and saves residuals in ctx (the combined
      style). In the separate style, `forward(*args)` computes the value and
      `setup_context(ctx, inputs, output)` saves.
    - `backward(ctx, *grads)` (or `vjp`) is the reverse-mode derivative.
    - `jvp(ctx, *tangents)` is the forward-mode derivative.
    - `vmap(info, in_dims, *args)` is the batched forward (separate style only).

    Call it by `apply(*args)`, under any JAX transformations in any order: `jax.jit`,
    `jax.grad`, `jax.jvp`, `jax.vmap`, `jax.lax.scan`, `jax.checkpoint` and so on.

    If a call or a derivative needs a missing method, it raises NotImplementedError.

    Arguments and results may be any Python values. JAX transforms arrays (JAX, NumPy,
    PRNG keys), also inside pytrees. Other values (Python numbers, strings, None,
    callables) are static. If forward returns a tuple, each element is an output.

    Attributes:
        generate_vmap_rule: Has no effect, because JAX batches forward if `vmap` is
            missing. It exists for torch code.
        generate_jvp_rule: Whether forward mode transposes `backward`.
        clear_saved_tensors_on_access: Whether `backward` may read `ctx.saved_tensors`
            only once.
        boxed_grads_call: Whether `backward(ctx, grads)` gets the gradients in a list.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> class Exp(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         out = jnp.exp(x)
        ...         ctx.save_for_backward(out)
        ...         return out
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (out,) = ctx.saved_tensors
        ...         return grad * out
        >>> x = jnp.zeros(3)
        >>> jax.vmap(jax.grad(Exp.apply))(x).tolist()
        [1.0, 1.0, 1.0]

    Source: https://docs.pytorch.org/docs/stable/autograd.html#function
    """

    generate_vmap_rule: ClassVar[bool] = False
    generate_jvp_rule: ClassVar[bool] = False
    clear_saved_tensors_on_access: ClassVar[bool] = False
    boxed_grads_call: ClassVar[bool] = False

    apply: ClassVar[_Apply] = _Apply()

    def __init__(self, *_: Any, **__: Any) -> None:
        cls = type(self)
        warnings.warn(
            f"{cls} should not be instantiated. Methods on autograd functions are all "
            "static, so you should invoke them on the class itself. Instantiating an "
            "autograd function will raise an error in a future version of PyTorch. "
            f"Call `{cls.__name__}.apply(...)`.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. "
            "Please use new-style autograd function with static forward method. (So "
            "PyTorch says whenever an instance is called, static or not.) Call "
            f"`{type(self).__name__}.apply(...)` on the class."
        )

    @staticmethod
    def forward(*args: Any, **_: Any) -> Any:
        """Compute the value. Override it, in one of the two styles of the class.

        Args:
            *args: Arguments of `apply`: arrays of any shape and dtype, or any objects.

        Returns:
            The output, or a tuple of outputs: arrays, pytrees of arrays, or other
            values, which have no gradient.

        Example:
            >>> import jax.numpy as jnp, jaxfn
            >>> class AddOne(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         return x + 1
            >>> AddOne.apply(jnp.zeros(2)).tolist()
            [1.0, 1.0]

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.Function.forward.html
        """
        raise NotImplementedError(messages.NO_FORWARD)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        """Save residuals in ctx, after `forward(*args)`; jaxfn ignores the result.

        A class that overrides it, or inherits an override, has the separate style.

        Args:
            ctx: The context.
            inputs: Positional arguments of forward, with defaults filled in.
            output: Result of forward.

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Square(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(x):
            ...         return x * x
            ...     @staticmethod
            ...     def setup_context(ctx, inputs, output):
            ...         ctx.save_for_backward(*inputs)
            ...     @staticmethod
            ...     def backward(ctx, grad):
            ...         (x,) = ctx.saved_tensors
            ...         return 2 * x * grad
            >>> float(jax.grad(Square.apply)(jnp.float32(3)))
            6.0

        Source: https://docs.pytorch.org/docs/stable/notes/extending.html
        """
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *args: Any, **_: Any) -> Any:
        """Compute the gradients of the inputs: the reverse-mode derivative.

        Args:
            ctx: A context with the saved values; writing to it is local.
            *args: A gradient for each output, of its shape, dtype and structure; None
                for an output that is no array. Zeros for an output that is unused or
                has no derivative (None with `set_materialize_grads(False)`).

        Returns:
            A tuple with a gradient for each argument of the call; for one argument,
            the gradient alone suffices. None means zero; return it for an argument that
            is no float or complex array. As in torch, jaxfn sums a broadcast shape,
            casts dtypes and ignores extra None; a complex gradient is the conjugate of
            JAX's cotangent.

        Differs from torch: None means zeros, not "undefined".

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Scale(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x, k):
            ...         ctx.k = k
            ...         return k * x
            ...     @staticmethod
            ...     def backward(ctx, grad):
            ...         return ctx.k * grad, None
            >>> float(jax.grad(Scale.apply)(jnp.float32(1), 3))
            3.0

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.Function.backward.html
        """
        raise NotImplementedError(messages.NO_BACKWARD)

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *args: Any, **_: Any) -> Any:
        """Compute the tangents of the outputs: the forward-mode derivative.

        Args:
            ctx: A context with the values from `save_for_forward`.
            *args: A tangent for each argument, of its shape, dtype and structure; None
                for an argument that is no float or complex array. Zeros for an argument
                that is not differentiated (None with `set_materialize_grads(False)`).

        Returns:
            A tuple with a tangent for each output; for one output, the tangent alone
            suffices. None in the tuple means zero; return it for an output that is
            integer or marked non-differentiable. None alone raises.

        Differs from torch: without `backward`, JAX transposes `jvp` for reverse mode;
        None in the tuple means zeros.

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Double(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         return 2 * x
            ...     @staticmethod
            ...     def jvp(ctx, t):
            ...         return 2 * t
            >>> x = jnp.float32(1)
            >>> float(jax.jvp(Double.apply, (x,), (x,))[1])
            2.0
            >>> float(jax.grad(Double.apply)(x))
            2.0

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.Function.jvp.html
        """
        raise NotImplementedError(messages.NO_JVP)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any, **_: Any) -> Any:
        """Compute forward for a batch, under `jax.vmap`. Needs the separate style.

        Args:
            info: An object with `batch_size`, and with `randomness`, always "error".
            in_dims: 0 for each batched argument, None for others, in the structure of
                the arguments.
            *args: Arguments of forward; the batch axis comes first.

        Returns:
            A pair of the output and its out_dims: for each output array the position of
            its batch axis, or None if all examples share it.

        Differs from torch: batch axes come first; a wrong batch size raises ValueError;
        `grad(vmap(F))` batches the Function's own backward.

        Example:
            >>> import jax, jax.numpy as jnp, jaxfn
            >>> class Total(jaxfn.Function):
            ...     @staticmethod
            ...     def forward(x):
            ...         return x.sum()
            ...     @staticmethod
            ...     def setup_context(ctx, inputs, output): ...
            ...     @staticmethod
            ...     def vmap(info, in_dims, x):
            ...         return x.sum(1), 0
            >>> jax.vmap(Total.apply)(jnp.ones((2, 3))).tolist()
            [3.0, 3.0]

        Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.Function.vmap.html
        """
        raise NotImplementedError(
            "To use autograd.Function with vmap, you must either override the vmap "
            "staticmethod or set generate_vmap_rule=True."
        )

    @classmethod
    def _backward_rule(cls) -> Callable[..., Any]:
        """Return the user's backward or vjp."""
        own_backward = cls.backward is not Function.backward
        own_vjp = cls.vjp is not Function.vjp
        if own_backward and own_vjp:
            raise messages.RuleError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not "
                "allowed. You should only implement one of them. "
                f"`{cls.__name__}.backward` and `{cls.__name__}.vjp` are both defined, "
                "by the class or its bases: delete one."
            )
        if not own_backward and not own_vjp:
            raise NotImplementedError(
                f"{messages.NO_BACKWARD} `{cls.__name__}.backward` is missing: define "
                "it as a staticmethod that returns a gradient for each argument of "
                f"forward.{_near_member(cls, 'backward')}"
            )
        return cls.vjp if own_vjp else cls.backward

    @classmethod
    def _jvp_rule(cls) -> Callable[..., Any]:
        if cls.jvp is Function.jvp:
            raise NotImplementedError(
                f"{messages.NO_JVP} `{cls.__name__}.jvp` is missing: define it as a "
                "staticmethod that returns a tangent for each output of forward."
                f"{_near_member(cls, 'generate_jvp_rule')}"
            )
        return cls.jvp


def once_differentiable(fn: _F) -> _F:
    """Mark a `backward` that JAX must not differentiate.

    Args:
        fn: The static method `backward` (or `vjp`). The decorator may stand above or
            below `@staticmethod` (or `@classmethod`).

    Returns:
        The marked function. Its derivative raises RuntimeError.

    Differs from torch: it always raises (torch often gives a wrong second derivative).

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> class Square(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     @jaxfn.once_differentiable
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * x * grad
        >>> float(jax.grad(Square.apply)(jnp.float32(3)))
        6.0

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.once_differentiable.html
    """
    return rewrapped(fn, _marked_once)


def _near_member(cls: Any, name: str) -> str:
    from jaxfn import _advice  # errors alone need it

    return _advice.near_member(cls, name)


def rewrapped(rule: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """Wrap the function of a rule, also above `@staticmethod` or `@classmethod`."""
    if isinstance(rule, classmethod):
        return classmethod(wrap(rule.__func__))
    return wrap(rule.__func__ if isinstance(rule, staticmethod) else rule)


def _marked_once(function: Callable[..., Any]) -> Callable[..., Any]:
    # Mark a wrapper, not the caller's `function`.
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    marked: Any = wrapper
    marked._jaxfn_once = True
    return marked


# ---- a call


def apply(cls: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: D417
    """Call the Function.

    Args:
        *args: Arguments of forward, without ctx: arrays of any shape and dtype, pytrees
            of them, or static objects.
        **kwargs: Arguments by name. Keyword-only arguments must be static.

    Returns:
        The result of forward, with JAX arrays in place of NumPy arrays.

    Raises:
        TypeError: The arguments don't fit forward's signature.
        NotImplementedError: `forward` is missing, or a keyword-only argument holds an
            array.
        RuntimeError: A rule broke its contract.

    Differs from torch: pytrees carry gradients; default values count as arguments only
    in the separate style.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> class Power(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x, n=2):
        ...         ctx.n = n
        ...         ctx.save_for_backward(x)
        ...         return x**n
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return grad * ctx.n * x ** (ctx.n - 1), None
        >>> f = jax.jit(jax.grad(lambda x: Power.apply(x, n=3)))
        >>> float(f(jnp.float32(2)))
        12.0

    Source: https://docs.pytorch.org/docs/stable/autograd.html#function
    """
    separate = is_separate(cls)
    if cls.forward is Function.forward:
        raise NotImplementedError(
            f"{messages.NO_FORWARD} `{cls.__name__}.forward` is missing: define it as "
            f"a staticmethod that computes the value.{_near_member(cls, 'forward')}"
        )
    if kwargs or separate:
        known = _parameters(cls, separate)
        if kwargs or known.defaults:
            args, kwargs = known.bind(
                args, kwargs, fill_defaults=separate, name=cls.__name__
            )
    # The fast path: all arguments are concrete arrays.
    constant = True
    for x in args:
        if type(x) is not internals.ConcreteArray:
            args = tuple(map(_unwrap, args))
            constant = not (
                any(map(internals.is_tracer, args))
                or any(map(internals.is_tracer, split(args)[0]))
            )
            break
    if constant and not internals.is_transforming():
        return _plain(cls, args, kwargs, separate)
    # If no argument is traced, JAX gets none. It raises if forward uses a traced value
    # that nobody passed, or if that is differentiated.
    arrays, spec = split(args, _never) if constant else split(args)
    known = _parameters(cls, separate)
    out = call(ClassRules(cls, Function, known, spec, kwargs), arrays)
    if constant and any(map(internals.is_differentiated, split(out)[0])):
        raise messages.closed_over(cls.__name__)
    return out


def _parameters(cls: Any, separate: bool) -> Parameters:
    """Return the parameters of `cls.forward`; inspect it once, not at each call."""
    forward, known = cls.forward, cls.__dict__.get("_jaxfn_parameters")
    fun = getattr(forward, "__func__", forward)  # a bound method is new at each access
    kind = fun is forward, separate
    if known is None or known[0] is not fun or known[1] != kind:
        found = Parameters.of(forward, has_ctx=not separate)
        known = cls._jaxfn_parameters = fun, kind, found
    return known[2]


def _never(_: Any) -> bool:
    return False


def rules_of(
    cls: Any, args: tuple[Any, ...], kwargs: Kwargs
) -> tuple[ClassRules, list[Any]]:
    """Return the rules of a call, and the arrays of its arguments."""
    separate = is_separate(cls)
    known = _parameters(cls, separate)
    args, kwargs = known.bind(args, kwargs, fill_defaults=separate, name=cls.__name__)
    arrays, spec = split(tuple(map(_unwrap, args)))
    return ClassRules(cls, Function, known, spec, kwargs), arrays


def _unwrap(x: Any) -> Any:
    """Return the array of an object with `__jax_array__`, as JAX's functions do."""
    if isinstance(x, jax.Array) or internals.is_tracer(x):
        return x
    return x.__jax_array__() if hasattr(type(x), "__jax_array__") else x


# ---- without any transformation


def _plain(cls: Any, args: tuple[Any, ...], kwargs: Kwargs, separate: bool) -> Any:
    """Run forward, and setup_context in the separate style; delete dirty inputs."""
    ctx = cls._backward_cls()
    ctx._jaxfn_needs = (False,) * len(args)
    rule_name, rule, given = "forward", cls.forward, args if separate else (ctx, *args)
    try:
        out = cls.forward(*given, **kwargs)
        if type(out) is not internals.ConcreteArray:
            out = _concrete(out, cls.__name__) if separate else out
        if separate:
            rule_name, rule, given = (
                "setup_context",
                cls.setup_context,
                (ctx, args, out),
            )
            call_setup_context(cls.forward, rule, *given)
    except Exception as error:
        explain(error, cls.__name__, rule_name, rule, given)
        raise
    if (
        ctx.non_differentiable
        or ctx.dirty_tensors
        or ctx.output_grad_dtypes is not None
    ):
        outs, spec = split(out)
        note_outputs(ctx, split(args)[0], Layout.of_result(out, spec), outs)
    if type(out) is not internals.ConcreteArray:
        out = _concrete(out, cls.__name__)
    if ctx.dirty_tensors:
        _consume(ctx, out)
    return out


_SIMPLE = frozenset((internals.ConcreteArray, int, float, bool, str, type(None)))


def _concrete(out: Any, name: str) -> Any:
    """Convert NumPy arrays to JAX arrays; refuse a tracer, which nobody passed."""
    # JAX's flattening is slow, so check the usual types first.
    if type(out) in _SIMPLE or (
        type(out) in (tuple, list) and all(type(x) in _SIMPLE for x in out)
    ):
        return out
    arrays, spec = split(out)
    if any(map(internals.is_tracer, arrays)):
        raise messages.closed_over(name)
    for leaf in spec.leaves:
        refuse_tensor(leaf, name)
    if all(isinstance(x, jax.Array) for x in arrays):
        return out
    return spec.join(list(map(jnp.asarray, arrays)))


def _consume(ctx: BackwardCFunction, out: Any) -> None:
    """Delete the dirty inputs that the call neither returned nor saved."""
    user = [x for name, x in ctx.__dict__.items() if name not in STATE]
    kept = split([out, ctx.to_save, ctx.saved_for_forward, user])[0]
    buffers = {b for x in kept for b in _buffers(x)}
    for x in ctx.dirty_tensors:
        mine = _buffers(x)
        if mine and not mine & buffers:
            x.delete()


def _buffers(x: Any) -> set[Any]:
    """Return identifiers of the buffers of `x`; none if JAX can't delete it."""
    # Of the extended dtypes, JAX can delete only PRNG keys.
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not isinstance(x, jax.Array) or not (isinstance(x.dtype, jnp.dtype) or is_key):
        return set()
    if x.is_deleted():
        return set()
    # Compare buffers, because arrays may share one (as after device_put).
    shards = [(s.device, s.data.unsafe_buffer_pointer()) for s in x.addressable_shards]
    return {id(x), *shards}
