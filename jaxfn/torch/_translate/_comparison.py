"""Is the translation the same as the original: value and gradients?"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._dtypes import from_numpy, to_numpy
from jaxfn.torch._lib import torch
from jaxfn.torch._translate._learn import differentiated, leaves

_TOLERANCE = {"float64": 2e-6, "float32": 2e-4, "float16": 2e-2, "bfloat16": 5e-2}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What was compared, and what differs."""

    name: str
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Is all the same?"""
        return not self.failures

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name}: value and gradients are those of the original"
        return "\n".join([f"{self.name} differs from the original:", *self.failures])


def as_torch(args: Sequence[Any]) -> list[Any]:
    """Arguments with tensors in place of arrays."""
    return [
        from_numpy(np.asarray(x)) if isinstance(x, (jax.Array, np.ndarray)) else x
        for x in args
    ]


def compare(source: str, cls: Any, args: Sequence[Any]) -> Comparison:
    """Compare with the original: eagerly and under jit, in both dtypes."""
    failures: list[str] = []
    for double in (False, True):
        given = [_double(x) for x in args] if double else list(args)
        where = "in float64" if double else "in the dtype given"
        try:
            wanted = _in_torch(cls, given)
        except Exception as error:  # noqa: BLE001  (whatever the original raises)
            if not double:
                failures.append(f"torch fails {where}: {error}")
            continue
        for jit in (False, True):
            how = f"{where}{', under jit' if jit else ''}"
            try:
                with _x64(given, wanted):
                    found = _in_jax(source, cls, given, wanted, jit=jit)
            except Exception as error:  # noqa: BLE001  (whatever the port raises)
                text = str(error).splitlines()[0] if str(error) else ""
                failures.append(f"{how}: {type(error).__name__}: {text}")
                break
            failures.extend(f"{how}: {line}" for line in _differences(found, wanted))
    return Comparison(cls.__name__, tuple(dict.fromkeys(failures)))


def _double(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.layout is torch.strided:
        wide = x.detach()
        if x.is_floating_point():
            wide = wide.double()
        elif x.is_complex():
            wide = wide.to(torch.complex128)
        return wide.requires_grad_(x.requires_grad)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*map(_double, x))
    return x


@contextlib.contextmanager
def _x64(args: Sequence[Any], wanted: Any) -> Iterator[None]:
    wide = any(_is_wide(x) for x in (*args, *wanted[0]))
    with jax.enable_x64(wide):
        yield


def _is_wide(x: Any) -> bool:
    return getattr(x, "dtype", None) in (torch.float64, torch.complex128)


# ---- torch


def _in_torch(cls: Any, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Outputs, weights, gradients."""
    given = leaves(args)
    which = differentiated(args)
    torch.manual_seed(0)
    out = cls.apply(*[x * 1 if d else x for x, d in zip(given, which, strict=True)])
    outs = list(out) if isinstance(out, tuple) else [out]
    outs = [x for x in outs if isinstance(x, torch.Tensor)]
    smooth = [x for x in outs if x.requires_grad]
    weights = [
        torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.dtype) for x in smooth
    ]
    wanted = [x for x, d in zip(given, which, strict=True) if d]
    grads: list[Any] = []
    if smooth and wanted:
        found = torch.autograd.grad(
            smooth, wanted, [w.clone() for w in weights], allow_unused=True
        )
        grads = [
            torch.zeros_like(x) if g is None else g
            for x, g in zip(wanted, found, strict=True)
        ]
    kept = [x.requires_grad for x in outs]
    return (
        [x.detach() for x in outs],
        list(zip(kept, outs, strict=True)),
        [weights, grads],
    )


# ---- JAX


def load(source: str, name: str = "translated") -> Any:
    """The translation as a module."""
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, f"<{name}>", "exec"), vars(module))
    return module


def _as_jax(x: Any, module: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.layout is torch.strided:
        return jnp.array(to_numpy(x))
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        made = getattr(module, type(x).__name__, type(x))
        return made(*[_as_jax(y, module) for y in x])
    if isinstance(x, (tuple, list)):
        return type(x)([_as_jax(y, module) for y in x])
    if hasattr(x, "__code__"):
        return getattr(module, x.__name__, x)
    if isinstance(x, torch.dtype):
        return jnp.dtype(str(x).removeprefix("torch."))
    return dict(x) if isinstance(x, dict) else x


def _in_jax(
    source: str,
    cls: Any,
    args: Sequence[Any],
    wanted: Any,
    *,
    jit: bool,
) -> tuple[list[Any], list[Any]]:
    module = load(source)
    port = getattr(module, cls.__name__)
    given = [_as_jax(x, module) for x in args]
    places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]
    places = [i for i in places if args[i].layout is torch.strided]
    which = differentiated(args)
    diff = [k for k, i in enumerate(places) if which[i]]
    weights = [jnp.array(to_numpy(w)) for w in wanted[2][0]]
    kept = [k for k, _ in wanted[1]]

    def call(*xs: Any) -> list[Any]:
        full = list(given)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        out = port.apply(*full)
        outs = out if isinstance(out, tuple) else (out,)
        return [x for x in outs if isinstance(x, jax.Array)]

    def loss(*xs: Any) -> Any:
        outs = [x for x, k in zip(call(*xs), kept, strict=False) if k]
        terms = [(x * w).sum() for x, w in zip(outs, weights, strict=False)]
        return jnp.real(sum(terms))

    xs = [given[i] for i in places]
    gradient = jax.grad(loss, tuple(diff)) if diff and weights else None
    if jit:
        call, gradient = jax.jit(call), jax.jit(gradient) if gradient else None
    values = list(call(*xs))
    grads = list(gradient(*xs)) if gradient is not None else []
    return values, grads


# ---- differences


def _differences(found: tuple[list[Any], list[Any]], wanted: Any) -> Iterator[str]:
    values, grads = found
    theirs = wanted[0]
    if len(values) != len(theirs):
        yield f"expected {len(theirs)} outputs, got {len(values)}"
        return
    for i, (x, y) in enumerate(zip(values, theirs, strict=True)):
        yield from _difference(f"output {i}", x, y, check_dtype=True)
    conjugated = [
        g.conj().resolve_conj() if g.is_complex() else g for g in wanted[2][1]
    ]
    for i, (x, y) in enumerate(zip(grads, conjugated, strict=True)):
        yield from _difference(f"gradient {i}", x, y, check_dtype=False)


def _difference(what: str, x: Any, y: Any, *, check_dtype: bool) -> Iterator[str]:
    ours, theirs = np.asarray(x), to_numpy(y)
    if ours.shape != theirs.shape:
        yield f"{what}: expected shape {theirs.shape}, got {ours.shape}"
        return
    if check_dtype and not _same_dtype(ours.dtype, theirs.dtype):
        yield f"{what}: expected dtype {theirs.dtype}, got {ours.dtype}"
    if theirs.size == 0:
        return
    a, b = ours.astype(np.complex128), theirs.astype(np.complex128)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.abs(np.where(same, 0, a) - np.where(same, 0, b))
    finite = np.abs(b[np.isfinite(b)])
    scale = max(float(finite.max(initial=0)), 1e-6)
    limit = max(_tolerance(theirs.dtype), _tolerance(ours.dtype))
    worst = float("inf") if not np.isfinite(gap).all() else float(gap.max() / scale)
    if worst > limit:
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape))
        yield f"{what}{list(at)}: expected {theirs[at]}, got {ours[at]}"


def _same_dtype(ours: Any, theirs: Any) -> bool:
    wide = {"int64": "i", "int32": "i"}
    return wide.get(str(ours), str(ours)) == wide.get(str(theirs), str(theirs))


def _tolerance(dtype: Any) -> float:
    name = str(dtype).replace("complex64", "float32").replace("complex128", "float64")
    return _TOLERANCE.get(name, 0.0)
