"""Notes on errors in the words of JAX, PyTorch or Python, by kind of error."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

_STATIC = (
    "If it is a flag or a size, pass a Python value that jit does not trace: "
    "`jax.jit(lambda x: {name}.apply(x, True))`, or jit with static_argnums."
)
_NUMPY = (
    "`{rule}` gave a traced array to NumPy (or SciPy): expected jax.numpy operations,"
    " because a traced array has no values (under jit, vmap, scan and on devices). "
    "Write the rule in jax.numpy. Or wrap the NumPy function fn by "
    "jaxfn.host_function(fn): JAX then calls it when the program runs."
)
_TRUTH = (
    "`{rule}` asked whether a traced array is true (if, while, and, or, not). A "
    "traced array has no value (under jit, vmap and scan). Write jnp.where(cond, a, "
    "b), or jax.lax.cond. "
) + _STATIC
_READS = (
    "`{rule}` read the value of a traced array, as int(x), float(x), x.item(), "
    "range(n) and jnp.zeros(n) do. A traced array has none (under jit, vmap and "
    "scan). Keep the array and compute with jax.numpy. "
) + _STATIC
_MASK = (
    "`{rule}` took elements by a boolean mask, so a shape depends on values. Write "
    "jnp.where(mask, v, x) for x[mask] = v, and jnp.where(mask, x, 0).sum() for "
    "x[mask].sum()."
)
_WRITE = (
    "`{rule}` wrote into an array, and JAX arrays are immutable. Write x = "
    "x.at[i].set(v) for x[i] = v, x = x.at[i].add(v) for x[i] += v, and x = "
    "jnp.where(mask, v, x) for x[mask] = v."
)
_TORCH = (
    "`{rule}` mixed a JAX array with PyTorch. A jaxfn rule gets JAX arrays: write "
    "{op} in place of torch's. To run the PyTorch class as it is, use "
    "jaxfn.torch.from_torch."
)
_METHOD = (
    "`{rule}` used x.{method}, which tensors of PyTorch have and JAX arrays do not. "
    "Write {method_in_jax}."
)
_DELETED = (
    "`{rule}` got an array that no longer exists: an earlier call of a Function that "
    "marks it dirty, or a jit with donate_argnums, took its memory. Use the result of"
    " that call."
)

_NO_METHOD = r"(Tracer|ArrayImpl' object) has no attribute '?(?P<method>\w+)"

_ROWS: tuple[tuple[Any, str, str], ...] = (
    (jax.errors.TracerArrayConversionError, "", _NUMPY),
    (jax.errors.TracerBoolConversionError, "", _TRUTH),
    (jax.errors.NonConcreteBooleanIndexError, "", _MASK),
    (jax.errors.ConcretizationTypeError, "", _READS),
    (jax.errors.TracerIntegerConversionError, "", _READS),
    (TypeError, "Shapes must be 1D sequences of concrete values", _READS),
    (TypeError, "do not support in-place item assignment", _WRITE),
    (TypeError, r"^(?P<op>\w+)\(\).* must be .*Tensor", _TORCH),
    (TypeError, "^unsupported operand.*'Tensor'", _TORCH),
    (AttributeError, _NO_METHOD, _METHOD),
    (RuntimeError, "^Array has been deleted", _DELETED),
)
"""For each kind of error: its class, a pattern in its text, and the note."""

_METHODS = {
    "add": "x + y",
    "clamp": "jnp.clip(x, lower, upper)",
    "contiguous": "x: JAX arrays have no strides",
    "cpu": "x: JAX moves arrays (jax.device_put)",
    "cuda": "x: JAX moves arrays (jax.device_put)",
    "detach": "jax.lax.stop_gradient(x); in a rule x alone will often do",
    "dim": "x.ndim",
    "double": "x.astype(jnp.float64), with x64 enabled",
    "expand": "jnp.broadcast_to(x, shape)",
    "float": "x.astype(jnp.float32)",
    "gather": "jnp.take_along_axis(x, index, axis)",
    "half": "x.astype(jnp.float16)",
    "index_select": "jnp.take(x, index, axis)",
    "long": "x.astype(int)",
    "masked_fill": "jnp.where(mask, value, x)",
    "mm": "x @ y",
    "mul": "x * y",
    "new_zeros": "jnp.zeros(shape, x.dtype)",
    "norm": "jnp.linalg.norm(x)",
    "numel": "x.size",
    "numpy": "x itself; outside of jit np.asarray(x)",
    "permute": "jnp.transpose(x, axes)",
    "scatter_add": "x.at[index].add(y)",
    "sigmoid": "jax.nn.sigmoid(x)",
    "softmax": "jax.nn.softmax(x, axis)",
    "sub": "x - y",
    "t": "x.T",
    "to": "x.astype(dtype)",
    "type": "x.astype(dtype)",
    "unsqueeze": "jnp.expand_dims(x, axis)",
}
"""Methods of tensors, and what to write in JAX; others have a name of jax.numpy."""


def note_on(error: Exception, name: str, rule: str) -> str:
    """Return the note on an error of a rule; "" if its kind is not known.

    Args:
        error: The error.
        name: Name of the Function.
        rule: Name of the Function and the rule.
    """
    for kind, pattern, text in _ROWS:
        found = isinstance(error, kind) and re.search(pattern, str(error))
        if found:
            words = found.groupdict()
            method = words.get("method") or ""
            return text.format(
                name=name,
                rule=rule,
                op=_in_jax(words.get("op") or ""),
                method=method,
                method_in_jax=_method_in_jax(method),
            )
    return ""


def _method_in_jax(method: str) -> str:
    if method.endswith("_") and not method.startswith("_"):
        plain = _method_in_jax(method.rstrip("_"))
        return f"{plain}, and assign the result: JAX arrays are immutable"
    if method in _METHODS:
        return _METHODS[method]
    return _in_jax(method)


def _in_jax(name: str) -> str:
    return f"jnp.{name}(x)" if hasattr(jnp, name) else "a function of jax.numpy"
