"""`triton_call`: a Triton kernel on JAX arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._triton import experimental, generated, variants
from jaxfn._triton.arguments import Pointer, Variant
from jaxfn._triton.call import launch
from jaxfn._triton.experimental import name_of
from jaxfn._triton.launch import Launch

_ROOM = str(Path(__file__).parent)


def triton_call(
    kernel: Any, grid: Any, /, *, out: dict[str, Any], **arguments: Any
) -> Any:
    """Run a Triton kernel on JAX arrays, under `jax.jit`, `jax.vmap` and loops.

    On a GPU jax-triton compiles the kernel into XLA's program. On a CPU an interpreter
    runs it, which is slow but checks every address, for tests. A kernel has no
    gradient: call it in a `jaxfn.Function` that defines one.

    Args:
        kernel: A function decorated by `triton.jit`, and optionally by
            `triton.autotune` and `triton.heuristics`.
        grid: Number of programs along each axis: an integer, a tuple of up to three, or
            a function of the kernel's arguments (a dict), which gets
            `jax.ShapeDtypeStruct` for arrays.
        out: For each pointer that the kernel writes to, by the name of the parameter, a
            `jax.ShapeDtypeStruct`. The kernel gets zeros of this shape. If it updates
            an array, or may do so, pass the array too, among the arguments. The result
            is the array after the launch; the array itself stays as it is. None for a
            pointer that is None in this call, and so is its result. A parameter that is
            itself named `out` can't be given an array: the kernel must rename it if it
            updates what it gets there.
        **arguments: The other arguments by the names of the kernel's parameters, and
            options of Triton's launches: `num_warps`, `num_stages` and others.

            - A JAX or NumPy array of any shape becomes a pointer to its elements.
            - A number, a `bool` or None is passed as in Triton. A `tl.constexpr`
              parameter gets the value as it is.

    Returns:
        The outputs in the order of `out`: an array, or a tuple if there are several.

    Raises:
        TypeError: An argument is missing or has a wrong type; or the result was
            differentiated.
        KeyError: A keyword is neither a parameter of the kernel nor an option.
        ValueError: `out` leaves out a parameter that the kernel writes to, or names one
            that is no argument and that it does not write to. Or the grid depends on
            values of arrays.
        NotImplementedError: The kernel or its autotuner has hooks.
        RuntimeError: Triton can't compile the kernel for these arguments. Or, on a CPU,
            the kernel uses an address outside its arrays; in compiled functions this is
            a `jax.errors.JaxRuntimeError`.
        ImportError: Triton is missing; or there is a GPU, and jax-triton is missing.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn, triton, triton.language as tl
        >>> @triton.jit
        ... def add(x, y, z, n, BLOCK: tl.constexpr):
        ...     i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ...     total = tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n)
        ...     tl.store(z + i, total, mask=i < n)
        >>> def plus(x, y):
        ...     return jaxfn.triton_call(
        ...         add, (triton.cdiv(x.size, 128),), x=x, y=y, n=x.size, BLOCK=128,
        ...         out={"z": jax.ShapeDtypeStruct(x.shape, x.dtype)},
        ...     )
        >>> jax.jit(plus)(jnp.ones(3), jnp.arange(3.0)).tolist()
        [1.0, 2.0, 3.0]

    Source: https://triton-lang.org/main/python-api/triton.html,
    https://github.com/jax-ml/jax-triton
    """
    experimental.check()
    arrays, given = _arrays(kernel, out, arguments)
    found = _bindings(kernel, given, grid)
    name = name_of(found[0].kernel)
    if found[0].hook is not None:
        raise NotImplementedError(
            f"The configurations of `{name}` have a pre_hook, which triton_call can't "
            "run. Leave it out, and do its work before the call."
        )
    made = _launch(found, arrays, _place())
    wanted = [key for key, x in out.items() if x is not None]
    _check_outputs(made, list(arrays), wanted, arguments)
    buffers = [jnp.ravel(x) for x in arrays.values()]
    names = list(arrays)
    results = {key: arrays[key] for key in wanted}  # a launch may leave some
    for i, x in zip(made.writes, launch(made, buffers), strict=True):
        results[names[i]] = x.reshape(arrays[names[i]].shape)
    outputs = tuple(results.get(key) for key in out)
    return outputs[0] if len(outputs) == 1 else outputs


def _bindings(kernel: Any, given: dict[str, Any], grid: Any) -> Any:
    """Return the configurations of the launch; errors name triton_call's options."""

    def on_shapes(arguments: dict[str, Any]) -> Any:
        try:
            return grid(arguments)
        except TypeError as error:  # the grid got shapes in place of arrays
            raise ValueError(
                f"The grid of `{name_of(kernel)}` raised {type(error).__name__}: "
                f"{error}. It can't depend on values of arrays: of these it gets "
                "jax.ShapeDtypeStruct."
            ) from error

    try:
        return variants.bindings(
            kernel, (), given, on_shapes if callable(grid) else grid
        )
    except TypeError as error:
        if "missing" not in str(error):
            raise
        raise TypeError(
            f"{error}. Pass it; or name it in `out`, if the kernel only writes to it."
        ) from None


def _arrays(
    kernel: Any, out: dict[str, Any], arguments: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays by name, and all arguments with types in place of arrays."""
    if not isinstance(out, dict):
        raise TypeError(
            f"triton_call got {out!r} as `out`: expected a dict with a "
            "jax.ShapeDtypeStruct for each parameter that the kernel writes to. Rename "
            "a parameter of the kernel that is named `out`."
        )
    arrays: dict[str, Any] = {}
    given = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, (jax.Array, np.ndarray)):
            arrays[key] = jnp.asarray(value)
        elif any(
            isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(value)
        ):
            raise TypeError(
                f"`{name_of(kernel)}` got {type(value).__name__} of arrays for "
                f"`{key}`: expected an array or a number. Pass each array as an "
                "argument."
            )
    for key, value in out.items():
        if value is not None:
            arrays[key] = _initial(key, value, arrays, arguments)
        elif given.setdefault(key, None) is not None:
            raise TypeError(
                f"triton_call got None as `out[{key!r}]` and an array as `{key}`: "
                "expected None for both, or a jax.ShapeDtypeStruct."
            )
    for key, value in arrays.items():
        if generated.element_type(value.dtype) is None:
            raise TypeError(
                f"`{name_of(kernel)}` got {value.dtype} for `{key}`: expected a type "
                "that Triton has. Cast the array before the call."
            )
        given[key] = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return arrays, given


def _initial(
    key: str, value: Any, arrays: dict[str, Any], arguments: dict[str, Any]
) -> Any:
    """Return the initial contents of an output."""
    if isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(
            f"triton_call got an array as `out[{key!r}]`: expected a "
            "jax.ShapeDtypeStruct. If the kernel updates an array, pass it among the "
            "arguments too."
        )
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise TypeError(
            f"triton_call got {value!r} as `out[{key!r}]`: expected a "
            "jax.ShapeDtypeStruct."
        )
    shape, dtype = tuple(value.shape), jax.dtypes.canonicalize_dtype(value.dtype)
    if key not in arrays:
        if key in arguments:
            raise TypeError(
                f"triton_call got {arguments[key]!r} for the output `{key}`: expected "
                "an array, or no argument of this name."
            )
        return jnp.zeros(shape, dtype)
    if (arrays[key].shape, arrays[key].dtype) != (shape, dtype):
        raise TypeError(
            f"triton_call got an array of {arrays[key].dtype}{arrays[key].shape} for "
            f"`{key}`, which the kernel updates: expected {dtype}{shape}, as "
            f"`out[{key!r}]` says."
        )
    return arrays[key]


def _launch(
    found: list[variants.Binding], arrays: dict[str, Any], place: str
) -> Launch:
    numbers = {key: number for number, key in enumerate(arrays)}
    shared, own = variants.split(found)
    for key, number in numbers.items():
        shared[key] = Pointer(number, 0, np.dtype(arrays[key].dtype))
    return Launch(
        kernel=found[0].kernel,
        arguments=shared,
        variants=tuple(
            Variant(constants, b.options, b.grid)
            for constants, b in zip(own, found, strict=True)
        ),
        buffers=tuple(
            jax.ShapeDtypeStruct((x.size,), x.dtype) for x in arrays.values()
        ),
        place=place,
    )


def _check_outputs(
    made: Launch, names: list[str], out: list[str], arguments: dict[str, Any]
) -> None:
    """Check that `out` names what the kernel writes to, and else only arguments."""
    if not made.effects.are_known and set(out) != set(names):
        raise ValueError(
            f"The code of the kernel `{made.name}` does not tell to which arrays it "
            f"writes. Name all of them in `out`: {', '.join(names)}."
        )
    written = [names[i] for i in made.writes]
    for key in written:
        if key not in out:
            raise ValueError(
                f"The kernel `{made.name}` writes to `{key}`, which `out` leaves out: "
                "the write would be lost. Add it to `out`, with the shape and dtype of "
                "the array."
            )
    for key in out:
        if key not in written and key not in arguments:
            raise ValueError(
                f"The kernel `{made.name}` does not write to `{key}`, which `out` "
                f"names. It writes to: {', '.join(written) or 'nothing'}."
            )


def _place() -> str:
    """Return file and line of the call, in the user's code."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_ROOM):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
