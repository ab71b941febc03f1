"""`host_function`: NumPy and SciPy bodies under every transformation."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._core import (
    Spec,
    gate,
    internals,
    is_numeric,
    messages,
    refusing,
    short,
    split,
    type_name,
)

_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")
VmapMethod = Literal[
    "sequential", "sequential_unrolled", "expand_dims", "broadcast_all"
]
_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def host_function(
    fn: Callable[..., Any],
    result: Any = None,
    *,
    vmap_method: VmapMethod = "sequential",
) -> Callable[..., Any]:
    """Wrap a NumPy or SciPy function, to call it under any JAX transformation.

    Use it for code that needs the values of arrays, in forward and backward, under
    `jax.jit`, `jax.vmap`, `jax.lax.scan` and on devices. It has no derivative. Call it
    in a Function, which defines one.

    When `fn` is called:

    - If no argument is traced, at once (also while JAX compiles the code around it).
    - If an argument is traced, whenever the compiled program runs, by
      `jax.pure_callback`. XLA chooses how often and in which order, so `fn` must have
      no effects, and must not call JAX itself.
    - If you also omit `result`, jaxfn calls `fn` during tracing, with zeros in place of
      the traced arguments, to learn the shapes of the result. Pass `result` if `fn` is
      slow or fails on zeros.

    Args:
        fn: The function. It gets read-only NumPy arrays in place of arrays, and other
            arguments as they are. It returns a NumPy array, a number, or a pytree of
            them. The shapes of the result must depend only on the shapes of the
            arguments.
        result: The type of the result: a pytree of `jax.ShapeDtypeStruct`, or of other
            objects with a shape and a dtype. Or a function that returns this pytree. It
            gets the arguments of `fn`, with `jax.ShapeDtypeStruct` in place of arrays.
            It need not take arguments for which `fn` has a default.
        vmap_method: The calls under `jax.vmap`. "sequential" (the default) and
            "sequential_unrolled" (without a loop) call `fn` once for each example.
            "expand_dims" and "broadcast_all" call it once, with batch axes in front,
            which the result must have too. For an unbatched argument they have size 1
            ("expand_dims") or full size.

    Returns:
        The function, on JAX arrays. Its results have the dtypes of `result`. Without
        `result` they have JAX's dtypes for the arrays from `fn` (float32 for float64,
        unless x64 is enabled).

    Raises:
        TypeError: `fn` is not callable. An argument is a PRNG key. An object in
            `result` has no shape. Or `fn` returned another structure, complex numbers
            instead of real ones, or floats instead of integers.
        ValueError: `fn` returned another shape, or an empty array when called on zeros;
            or vmap_method is unknown.
        RuntimeError: `result` is omitted, and `fn` raised when called on zeros.
        NotImplementedError: The result was differentiated.

    If `fn` raises while a compiled program runs, the error is a
    `jax.errors.JaxRuntimeError` with its message.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxfn
        >>> cumulate = jaxfn.host_function(np.cumsum)
        >>> class Cumsum(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return cumulate(x)
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return cumulate(g[::-1])[::-1]
        >>> x = jnp.ones(3)
        >>> jax.jit(Cumsum.apply)(x).tolist()
        [1.0, 2.0, 3.0]
        >>> jax.jit(jax.grad(lambda x: Cumsum.apply(x).sum()))(x).tolist()
        [3.0, 2.0, 1.0]

        With the shapes of the result:

        >>> solve = jaxfn.host_function(np.linalg.solve, lambda a, b: b)
        >>> a = jnp.array([[2.0, 0.0], [0.0, 4.0]])
        >>> jax.vmap(solve, (None, 0))(a, jnp.ones((2, 2))).tolist()
        [[0.5, 0.25], [0.5, 0.25]]

    Source: https://docs.jax.dev/en/latest/external-callbacks.html
    """
    if not callable(fn):
        raise messages.RuleTypeError(
            f"host_function expected a function, got {type_name(fn)}. Pass the NumPy "
            "function itself. Pass its arguments to the function that you get back."
        )
    if vmap_method not in _METHODS:
        raise messages.RuleValueError(
            f"host_function expected a vmap_method among {', '.join(_METHODS)}, got "
            f"{vmap_method!r}."
        )
    host = _Host(fn, result, vmap_method)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return host(args, kwargs)

    if isinstance(fn, np.ufunc):
        # NumPy's `out` and `where` are options, although `out` has a position. As
        # arguments of forward they would need a gradient each.
        names = [f"x{i + 1}" for i in range(fn.nin)]
        places = [
            inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names
        ]
        call.__dict__["__signature__"] = inspect.Signature(places)
    return call


class _Host:
    """A NumPy body, with the type of its result and its vmap_method."""

    def __init__(self, fn: Callable[..., Any], result: Any, method: VmapMethod) -> None:
        self._fn, self._result, self._method = fn, result, method
        self._name = getattr(fn, "__name__", type(fn).__name__)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arrays, spec = split((args, kwargs))
        for x in arrays:
            if jnp.issubdtype(x.dtype, jax.dtypes.extended):
                raise messages.RuleTypeError(
                    f"`{self._name}` got a PRNG key (or another array of an extended "
                    f"dtype): expected arrays that NumPy can hold, got {short(x)}. "
                    "Pass jax.random.key_data(key)."
                )
        if any(internals.is_tracer(x) for x in arrays):
            return self._traced(arrays, spec)
        # jnp.array copies: the body may keep its result, and write to it later.
        found = self._run(spec, arrays)
        if self._result is None:
            return jax.tree.map(jnp.array, found)
        expected = self._expected(arrays, spec)
        return jax.tree.map(jnp.array, self._checked(found, expected, ()))

    def _run(self, spec: Spec, arrays: Sequence[Any]) -> Any:
        """Call the body, and make the leaves of its result NumPy arrays."""
        args, kwargs = spec.join([_read_only(x) for x in arrays])
        return jax.tree.map(self._as_numpy, self._fn(*args, **kwargs))

    def _as_numpy(self, x: Any) -> np.ndarray:
        """Convert a leaf of the result to a NumPy array that JAX can hold."""
        found = np.asarray(x)
        if not is_numeric(found.dtype):
            raise messages.RuleTypeError(
                f"`{self._name}` returned {type_name(x)} to host_function: expected "
                "arrays and numbers, or pytrees of them, which JAX can hold."
            )
        return found

    # ---- if an argument is traced

    def _traced(self, arrays: list[Any], spec: Spec) -> Any:
        """Call the body when the program runs; JAX needs the types of its result."""
        expected = self._expected(arrays, spec)
        ranks = [x.ndim for x in arrays]

        def callback(*values: Any) -> Any:
            # JAX passes its own arrays; the body expects NumPy's.
            values = tuple(map(np.asarray, values))
            # Batch axes are in front. For an unbatched array they may have size 1.
            lead = np.broadcast_shapes(
                *[x.shape[: x.ndim - n] for x, n in zip(values, ranks, strict=True)]
            )
            return self._checked(self._run(spec, values), expected, lead)

        # Under grad or jvp, pure_callback raises even if nobody uses the derivative. So
        # it gets inputs without derivative, and its results raise if theirs is used.
        out = jax.pure_callback(
            callback, expected, *map(gate, arrays), vmap_method=self._method
        )
        leaves, tree = jax.tree.flatten(out)
        return tree.unflatten(refusing(self._refusal, arrays, leaves, name=self._name))

    def _refusal(self) -> Exception:
        return messages.HostDerivativeError(
            f"`{self._name}` runs on the host (host_function) and was differentiated: "
            "expected a derivative from a rule, got none. Call it in forward of a "
            "jaxfn.Function that has a backward (or in a decorated function); for a "
            "second derivative, let backward call that Function again."
        )

    def _expected(self, arrays: Sequence[Any], spec: Spec) -> Any:
        """Return the types of the result, as a pytree."""
        if self._result is None:
            return jax.tree.map(_struct, self._on_zeros(arrays, spec))
        result = self._result
        if callable(result):
            args, kwargs = spec.join([_struct(x) for x in arrays])
            args = _without_defaults(self._fn, result, args, kwargs)
            result = result(*args, **kwargs)
        for leaf in jax.tree.leaves(result):
            if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
                raise messages.RuleTypeError(
                    f"host_function expected the result of `{self._name}` as a pytree "
                    f"of jax.ShapeDtypeStruct, got {leaf!r} in it."
                )
        return jax.tree.map(_struct, result)

    def _on_zeros(self, arrays: Sequence[Any], spec: Spec) -> Any:
        """Call the body on zeros, to find the shapes of its result.

        Only traced arguments are replaced by zeros.
        """
        zeros = [
            np.zeros(x.shape, x.dtype) if internals.is_tracer(x) else _read_only(x)
            for x in arrays
        ]
        try:
            with np.errstate(all="ignore"):  # 1 / x warns, but has the right shape
                found = self._run(spec, zeros)
        except Exception as error:
            types = ", ".join(short(x) for x in arrays)
            raise messages.RuleError(
                f"`{self._name}` raised {type_name(error)} when host_function called "
                f"it on zeros ({types}) to find the shapes of its result: expected it "
                "to work on them. Give `result`: host_function(fn, result=...) takes a "
                "jax.ShapeDtypeStruct, or a function of the arguments' shapes that "
                "returns one."
            ) from error
        # XLA drops a call without results, and with it the check of the shape.
        empty = any(x.size == 0 for x in jax.tree.leaves(found))
        if empty and all(x.size for x in zeros):
            raise messages.RuleValueError(
                f"`{self._name}` returned an empty array when host_function called it "
                "on zeros to find the shapes of its result: expected shapes that "
                "depend on those of the arguments alone, got one that may depend on "
                "values. Give `result` if it is always empty."
            )
        return found

    def _checked(self, found: Any, expected: Any, lead: tuple[int, ...]) -> Any:
        """Check the result of the body, and cast it to the expected types."""
        have, want = jax.tree.structure(found), jax.tree.structure(expected)
        if have != want:
            raise messages.RuleTypeError(
                f"`{self._name}` returned another structure to host_function: expected "
                f"{want}, got {have}. Make `result` fit."
            )
        return jax.tree.map(lambda x, s: self._cast(x, s, lead), found, expected)

    def _cast(self, x: Any, want: Any, lead: tuple[int, ...]) -> Any:
        """Cast one array; refuse another shape, and a dtype that can't hold it."""
        shape = (*lead, *want.shape)
        if x.shape != shape:
            raise messages.RuleValueError(
                f"`{self._name}` returned another shape to host_function: expected "
                f"{shape}, got {x.shape}. The shape may depend on the shapes of the "
                "arguments alone, not on their values; make `result` fit."
            )
        if _kind(x.dtype) > _kind(want.dtype):
            raise messages.RuleTypeError(
                f"`{self._name}` returned {x.dtype} to host_function: expected "
                f"{want.dtype}, which can't hold it. Make `result` fit, or cast."
            )
        return x.astype(want.dtype, copy=False)


def _without_defaults(
    fn: Callable[..., Any],
    result: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ...]:
    """Return the arguments for `result`, without the filled-in defaults of `fn`.

    A decorator (custom_function with rules, jax.custom_vjp) fills these in. It converts
    numbers to arrays, which look like arguments. Such a default is left out only if
    `result` does not take it.
    """
    try:
        own = list(inspect.signature(fn).parameters.values())
        takes = inspect.signature(result)
    except (TypeError, ValueError):  # a builtin may have no signature
        return args

    def fits(n: int) -> bool:
        try:
            takes.bind(*args[:n], **kwargs)
        except TypeError:
            return False
        return True

    # Backwards from the last argument: those that are defaults, and that may be.
    pairs = list(zip(args, [p.default for p in own], strict=False))[::-1]
    filled = itertools.takewhile(lambda pair: pair[0] is pair[1], pairs)
    optional = itertools.takewhile(lambda pair: pair[1] is not _EMPTY, pairs)
    n, least = len(args) - len(list(filled)), len(args) - len(list(optional))
    return args[: next(filter(fits, (n, *range(len(args), least - 1, -1))), len(args))]


_EMPTY = inspect.Parameter.empty


def _read_only(x: Any) -> np.ndarray:
    """Make a NumPy view that the body can't write to.

    In an eager call the memory is the caller's: a NumPy array's or, on a CPU, a JAX
    array's, which must never change.
    """
    view = np.asarray(x).view()
    view.flags.writeable = False
    return view


def _struct(x: Any) -> jax.ShapeDtypeStruct:
    """Return the type of `x` in JAX: float32 for float64, unless x64 is on."""
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _kind(dtype: Any) -> int:
    """Return the position of a dtype in bool < integer < float < complex."""
    return next(i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))
