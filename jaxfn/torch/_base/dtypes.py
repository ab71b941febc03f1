"""Conversion of dtypes and values between torch and JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxfn.torch._base.experimental import is_zero_tensor
from jaxfn.torch._base.refusal import TorchRefusal
from jaxfn.torch._base.torch_module import torch

_NAMES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip
_TO_NUMPY: dict[Any, np.dtype] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, None) or name)
    for name in _NAMES
}
_TO_TORCH: dict[np.dtype, Any] = {v: k for k, v in _TO_NUMPY.items()}
_NARROWED = {torch.float64, torch.complex128}
# Dtypes that torch can't convert to NumPy, each with one of the same size.
_BITS = {torch.bfloat16: torch.int16}
_INT32 = np.iinfo(np.int32)
X64 = (
    "Enable it: jax.config.update('jax_enable_x64', True), or "
    "`with jax.enable_x64(True):` around the call."
)


def has_x64() -> bool:
    """Return whether x64 is on, so arrays may be float64."""
    return jax.dtypes.canonicalize_dtype("float64") == np.float64


def to_torch_dtype(dtype: Any) -> Any:
    """Return torch's dtype for one of JAX's."""
    try:
        return _TO_TORCH[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise TorchRefusal(
            operation=f"an array of dtype {dtype}",
            reason="torch has no such dtype.",
            way_out="Pass an array of another dtype. If it is a PRNG key, pass "
            "random=True to from_torch.",
        ) from None


def to_jax_dtype(dtype: Any, *, where: str = "") -> np.dtype:
    """Return JAX's dtype for one of torch's: int32 for int64 if x64 is off.

    Raises:
        TorchRefusal: The dtype is float64 or complex128 and x64 is off.
    """
    if dtype not in _TO_NUMPY:
        raise TorchRefusal(
            operation=f"a tensor of {dtype}", reason="JAX can't hold it.", where=where
        )
    if dtype in _NARROWED and not has_x64():
        raise TorchRefusal(
            operation=f"a tensor of {dtype}",
            reason="JAX would narrow it, since x64 is off.",
            way_out=X64,
            where=where,
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(_TO_NUMPY[dtype]))


def to_jax(tensor: Any, *, where: str = "") -> Any:
    """Return the JAX array of a real tensor."""
    if is_zero_tensor(tensor):
        return jnp.zeros(tuple(tensor.shape), to_jax_dtype(tensor.dtype, where=where))
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TorchRefusal(
            operation=f"a tensor of layout {tensor.layout}",
            reason="JAX arrays are dense.",
            where=where,
        )
    dtype = to_jax_dtype(tensor.dtype, where=where)
    array = to_numpy(tensor)
    if dtype != array.dtype and array.size:
        low, high = array.min(), array.max()
        if low < _INT32.min or high > _INT32.max:
            raise TorchRefusal(
                operation="a constant of int64 that does not fit into int32",
                reason="JAX would narrow it, since x64 is off.",
                way_out=X64,
                where=where,
            )
    return jnp.array(array, dtype=dtype)


def to_numpy(tensor: Any) -> np.ndarray:
    """Return the NumPy array of a real, dense tensor."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    bits = _BITS.get(tensor.dtype)
    if bits is None and "float8" in str(tensor.dtype):
        bits = torch.uint8
    if bits is None:
        return tensor.numpy()
    return tensor.contiguous().view(bits).numpy().view(_TO_NUMPY[tensor.dtype])


def from_numpy(array: Any, dtype: Any = None) -> Any:
    """Return a tensor with a copy of the values of an array."""
    array = np.array(array, order="C")
    own = to_torch_dtype(array.dtype)
    if own in _BITS:
        tensor = torch.from_numpy(array.view(np.int16)).view(own)
    elif "float8" in str(own):
        tensor = torch.from_numpy(array.view(np.uint8)).view(own)
    else:
        tensor = torch.from_numpy(array)
    # Rules may write to the tensor and resize it, so torch must own its memory.
    return tensor.clone() if dtype in (None, own) else tensor.to(dtype)


def is_inexact(dtype: Any) -> bool:
    """Return whether a tensor of this (torch) dtype can have a gradient."""
    return dtype.is_floating_point or dtype.is_complex
