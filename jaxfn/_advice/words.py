"""Notes on errors in the words of JAX, PyTorch or Python, by kind of error."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp

APPLY = (
    "If it is a flag or a size, pass a Python value that jit does not trace: "
    "`jax.jit(lambda x: {name}.apply(x, True))`, or jit with static_argnums."
)
"""How to pass a static value to a class."""
NONDIFF = (
    "If it is a flag or a size, name the argument in nondiff_argnums (or "
    "nondiff_argnames), and pass a Python value that jit does not trace."
)
"""How to pass a static value to a rule in JAX's terms."""
_NUMPY = (
    "`{rule}` gave a traced array to NumPy (or SciPy): expected jax.numpy operations,"
    " because a traced array has no values (under jit, vmap, scan and on devices). "
    "Write the rule in jax.numpy. Or wrap the NumPy function fn by "
    "jaxfn.host_function(fn): JAX then calls it when the program runs."
)
_TRUTH = (
    "`{rule}` asked whether a traced array is true (if, while, and, or, not). A "
    "traced array has no value (under jit, vmap and scan). Write jnp.where(cond, a, "
    "b), or jax.lax.cond; for a loop that a value ends, jax.lax.while_loop. {static}"
)
_READS = (
    "`{rule}` read the value of a traced array, as int(x), float(x), x.item(), "
    "range(n) and jnp.zeros(n) do. A traced array has none (under jit, vmap and "
    "scan). Keep the array and compute with jax.numpy. {static}"
)
_MASK = (
    "`{rule}` took elements by a boolean mask, so a shape depends on values. Write "
    "jnp.where(mask, v, x) for x[mask] = v (mask[:, None] if it is a mask of rows), "
    "and jnp.where(mask, x, 0).sum() for x[mask].sum()."
)
_WRITE = (
    "`{rule}` wrote into an array, and JAX arrays are immutable. Write x = "
    "x.at[i].set(v) for x[i] = v, x = x.at[i].add(v) for x[i] += v, and x = "
    "jnp.where(mask, v, x) for x[mask] = v (mask[:, None] if it is a mask of rows)."
)
_TORCH = (
    "`{rule}` mixed a JAX array with PyTorch. A jaxfn rule gets JAX arrays: write "
    "{op} in place of torch's. To run the PyTorch class as it is, use "
    "jaxfn.torch.from_torch."
)
TENSOR = (
    "`{rule}` gave a torch.Tensor to JAX, or got one. Pass JAX arrays to apply: "
    "jnp.asarray(tensor.numpy()). To run the PyTorch class as it is, use "
    "jaxfn.torch.from_torch."
)
_METHOD = (
    "`{rule}` used x.{method}, which tensors of PyTorch have and JAX arrays do not."
    "{in_jax}"
)
_FUNCTION = "`{rule}` used jnp.{method}, which jax.numpy does not have.{in_jax}"
_CTX = (
    "`{rule}` called {method} of an array. ctx is the first parameter of a rule: "
    "forward(ctx, *args), setup_context(ctx, inputs, output), backward(ctx, *grads)."
)
_KEYWORD = (
    "`{rule}` passed {method}=, PyTorch's word. In jax.numpy dim is axis, keepdim is "
    "keepdims, and unbiased is ddof=1 (0 is what jnp.std and jnp.var take by default)."
)
_CALLED = (
    "`{rule}` called a number. If it is x.size(): x.shape; if it is x.size(i): "
    "x.shape[i]. In JAX x.size and x.ndim are numbers."
)
_FLATTEN = (
    "`{rule}` passed an order that JAX does not have. If it is x.flatten(1): write "
    "x.reshape(x.shape[0], -1)."
)
_VIEW = "`{rule}` used x.view for a shape. In JAX that is x.reshape(shape)."
_DTYPE = (
    "`{rule}` passed {dtype} where JAX takes a dtype. Write x.reshape(shape) for "
    "x.view(shape), jnp.zeros((2, 3)) for zeros(2, 3), and keepdims=True for the "
    "second argument of x.sum(1, True)."
)
_WHILE = (
    "`{rule}` took the reverse derivative of a while loop (jax.lax.while_loop, or "
    "jax.lax.fori_loop with a traced number of steps), which JAX does not have. Write "
    "fori_loop with Python numbers for its bounds, or jax.lax.scan; or define the "
    "derivative of the loop in a Function of its own."
)
_HALF = (
    "`{rule}` called a function that JAX does not have in half precision. Compute in "
    "float32, and cast back: jnp.linalg.inv(x.astype(jnp.float32)).astype(x.dtype)."
)
_DELETED = (
    "`{rule}` got an array that no longer exists: an earlier call of a Function that "
    "marks it dirty, or a jit with donate_argnums, took its memory. Use the result of"
    " that call."
)

_NO_METHOD = r"(?:Tracer|ArrayImpl' object) has no attribute '?"
_OF_CTX = "save_for_backward|save_for_forward|saved_tensors|mark_\\w+|set_mater\\w+"
_WORDS = "dim|dims|keepdim|unbiased"

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
    (TypeError, r"^Error interpreting argument .*torch\.Tensor", TENSOR),
    (TypeError, rf"unexpected keyword argument '(?P<method>{_WORDS})'", _KEYWORD),
    (TypeError, "^'int' object is not callable", _CALLED),
    (TypeError, "^Cannot interpret '(?P<dtype>[-\\w]+)' as a data type", _DTYPE),
    (NotImplementedError, r"argument of array\.view\(\) is not supported", _VIEW),
    (ValueError, "^Unexpected value for 'order' argument", _FLATTEN),
    (AttributeError, rf"{_NO_METHOD}(?P<method>{_OF_CTX})'?$", _CTX),
    (AttributeError, rf"{_NO_METHOD}(?P<method>\w+)", _METHOD),
    (AttributeError, r"'jax\.numpy' has no attribute '(?P<method>\w+)'", _FUNCTION),
    (RuntimeError, "^Array has been deleted", _DELETED),
    (ValueError, "^Reverse-mode differentiation does not work for lax.while", _WHILE),
    (NotImplementedError, r"Unsupported dtype b?float16", _HALF),
    (TypeError, r"does not accept dtype b?float16", _HALF),
)
"""For each kind of error: its class, a pattern in its text, and the note."""

_METHODS = {
    "add": "x + y, with alpha x + alpha * y",
    "bmm": "x @ y",
    "cat": "jnp.concatenate(arrays, axis)",
    "chunk": "jnp.split(x, n, axis)",
    "clamp": "jnp.clip(x, lower, upper)",
    "contiguous": "x: JAX arrays have no strides",
    "copy_": "jnp.broadcast_to(y, x.shape).astype(x.dtype), and assign the result",
    "cpu": "x: JAX moves arrays (jax.device_put)",
    "cuda": "x: JAX moves arrays (jax.device_put)",
    "data": "x",
    "detach": "jax.lax.stop_gradient(x); in a rule x alone will often do",
    "dim": "x.ndim",
    "div": "x / y",
    "double": "x.astype(jnp.float64), with x64 enabled",
    "digamma": "jax.scipy.special.digamma(x)",
    "eq": "x == y",
    "equal": "jnp.array_equal(x, y)",
    "erf": "jax.scipy.special.erf(x)",
    "erfc": "jax.scipy.special.erfc(x)",
    "erfinv": "jax.scipy.special.erfinv(x)",
    "expand": "jnp.broadcast_to(x, shape)",
    "expand_as": "jnp.broadcast_to(x, y.shape)",
    "fill_": "jnp.full_like(x, value), and assign the result",
    "float": "x.astype(jnp.float32)",
    "gather": "jnp.take_along_axis(x, index, axis)",
    "ge": "x >= y",
    "gelu": "jax.nn.gelu(x, approximate=False)",
    "gt": "x > y",
    "half": "x.astype(jnp.float16)",
    "index_add": "x.at[index].add(y), for axis 0",
    "index_select": "jnp.take(x, index, axis)",
    "int": "x.astype(jnp.int32)",
    "le": "x <= y",
    "lgamma": "jax.scipy.special.gammaln(x)",
    "long": "x.astype(int)",
    "lt": "x < y",
    "masked_fill": "jnp.where(mask, value, x)",
    "mm": "x @ y",
    "mul": "x * y",
    "ne": "x != y",
    "neg": "-x",
    "new_ones": "jnp.ones(shape, x.dtype)",
    "new_zeros": "jnp.zeros(shape, x.dtype)",
    "norm": "jnp.linalg.norm(x, ord, axis)",
    "numel": "x.size",
    "numpy": "x itself; outside of jit np.asarray(x)",
    "permute": "jnp.transpose(x, axes)",
    "pow": "x**y",
    "requires_grad": "ctx.needs_input_grad[i]",
    "requires_grad_": "nothing: jax.grad says by which arguments it differentiates",
    "rsqrt": "jax.lax.rsqrt(x)",
    "scatter": "jnp.put_along_axis(x, index, y, axis, inplace=False)",
    "scatter_add": "x.at[jnp.arange(len(x))[:, None], index].add(y), for axis 1",
    "split": "jnp.split(x, [n, 2 * n], axis): at these indices, not of size n",
    "sub": "x - y, with alpha x - alpha * y",
    "select": "jnp.take(x, i, axis)",
    "t": "x.T",
    "tensor": "jnp.asarray(x)",
    "to": "x.astype(dtype)",
    "topk": "jax.lax.top_k(x, k)",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "unbind": "jnp.unstack(x, axis=axis)",
    "unsqueeze": "jnp.expand_dims(x, axis)",
    "values": "the result itself, without .values",
    "view_as": "x.reshape(y.shape)",
    "where": "jnp.where(mask, x, y)",
    "zero_": "jnp.zeros_like(x), and assign the result",
}
"""Methods of tensors and functions of torch, and what to write in JAX."""

_DRAWS = "bernoulli|multinomial|normal_|uniform_|rand\\w*|manual_seed|dropout"


def note_on(error: Exception, static: str, rule: str) -> str:
    """Return the note on an error of a rule; "" if its kind is not known.

    Args:
        error: The error.
        static: How to pass a static value.
        rule: Name of the Function and the rule.
    """
    for kind, pattern, text in _ROWS:
        found = isinstance(error, kind) and re.search(pattern, str(error))
        if found:
            words = found.groupdict()
            method = words.get("method") or ""
            return text.format(
                static=static,
                rule=rule,
                op=_in_jax(words.get("op") or "") or "a function of jax.numpy",
                method=method,
                dtype=words.get("dtype"),
                in_jax=_advised(method),
            )
    return ""


def _advised(name: str) -> str:
    """Return the advice for a name of PyTorch; "" if there is none."""
    found = _in_jax(name)
    return f" Write {found}." if found else ""


def _in_jax(name: str) -> str:
    """Return what to write in JAX for a name of PyTorch; "" if it is not known."""
    if name in _METHODS:
        return _METHODS[name]
    if re.fullmatch(_DRAWS, name):
        return "a function of jax.random, with a key as an argument of the Function"
    if name.endswith("_") and not name.startswith("_"):
        plain = _in_jax(name.rstrip("_"))
        return plain and f"{plain}, and assign the result: JAX arrays are immutable"
    for place, module in (("jnp", jnp), ("jax.nn", jax.nn)):
        found = getattr(module, name, None)
        if callable(found) and not isinstance(found, type):
            return f"{place}.{name}({_parameters_of(found)})"
    return ""


def _parameters_of(function: Any) -> str:
    """Return the parameters that a call has, the first as x."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty or p.name == "axis"]
    return ", ".join(["x", *names[1:]])
