"""Rules that run in torch, by a host callback of the compiled program."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import jaxfn
from jaxfn.torch._base import (
    TorchRefusal,
    draws_by_torch,
    experimental,
    forward_ad,
    from_numpy,
    has_x64,
    is_inexact,
    of_unused,
    to_jax_dtype,
    to_numpy,
    torch,
    unflatten,
)
from jaxfn.torch._trace import Noted, RandomDraws, note_key, results_of
from jaxfn.torch._triton import KernelRuns


class Hosted(Protocol):
    """The members of `GraphFunction`, which imports this file, that are used here."""

    run: Callable[..., Any]
    name: str
    rule: str
    seed: int | None
    types: Callable[[Sequence[Any]], list[Any]] | None
    host_types: dict[Any, list[Any]]
    host_notes: dict[Any, Any]

    def requires_grad(self, n: int) -> Sequence[bool]:
        """Return the `requires_grad` of each of its inputs."""
        ...


def call(graph: Hosted, arrays: Sequence[Any], key: Any) -> list[Any]:
    """Return the results of a function in torch: at once, or when the program runs."""
    types, at = known_types(graph, arrays), key_of(arrays)
    is_traced = any(isinstance(x, Tracer) for x in arrays)
    if types is None and is_traced:
        types = _found_out(graph, arrays)
        graph.host_types[at] = types
    data = [] if key is None else [_key_data(key)]
    if types is None:
        results = _run(graph, [np.asarray(x) for x in arrays], *map(np.asarray, data))
        types = [None if x is None else _type(x) for x in results]
        graph.host_types[at] = types
    expected = note_key(graph.host_notes.get(at))
    wanted = [t for t in types if t is not None]

    def run(arrays: Sequence[Any], *data: Any) -> list[Any]:
        results = _fitting(_run(graph, arrays, *data), types)
        # The program has the values of the trace.
        if is_traced and note_key(graph.host_notes.get(at)) != expected:
            raise RuntimeError(
                f"`{graph.name}` returned other Python values than when it was traced."
                " A host callback can only return tensors: return those."
            )
        return results

    run.__name__ = f"{graph.name}.{graph.rule}"
    found = iter(jaxfn.host_function(run, wanted)(list(arrays), *data))
    return [None if t is None else next(found) for t in types]


def known_types(graph: Hosted, arrays: Sequence[Any]) -> list[Any] | None:
    """Return the types of the results, if they are known before a run."""
    if graph.types is not None:
        return [
            None if t is None else jax.ShapeDtypeStruct(*t) for t in graph.types(arrays)
        ]
    return graph.host_types.get(key_of(arrays))


def key_of(arrays: Sequence[Any]) -> Any:
    """Return the shapes and dtypes of arrays."""
    return tuple((tuple(x.shape), str(x.dtype)) for x in arrays)


def _key_data(key: Any) -> Any:
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if is_typed else key


def _type(x: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _fitting(results: list[Any], types: Sequence[Any]) -> list[Any]:
    """Return the results that are arrays; zeros for a missing gradient."""
    if len(results) != len(types):
        raise RuntimeError(f"expected {len(types)} results, got {len(results)}")
    return [
        np.zeros(t.shape, t.dtype) if x is None else x
        for x, t in zip(results, types, strict=True)
        if t is not None
    ]


def _run(graph: Hosted, arrays: Sequence[Any], *data: Any) -> list[Any]:
    """Return the results as NumPy arrays, computed with real tensors."""
    seed = zlib.crc32(np.asarray(data[0]).tobytes()) if data else None
    with experimental.LOCK, torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            found = _on(graph, arrays, seed, wide=False)
        except TorchRefusal:
            raise
        except Exception as error:
            unused = of_unused(error)
            if unused is not None:
                raise unused from error
            if has_x64() or all(x.dtype != np.int32 for x in arrays):
                raise
            found = _on(graph, arrays, seed, wide=True)
    return [None if x is None else _result(x) for x in found]


def _on(
    graph: Hosted, arrays: Sequence[Any], seed: int | None, *, wide: bool
) -> list[Any]:
    if seed is not None:
        seed = (seed + (graph.seed or 0)) & 0x7FFFFFFF

    def run() -> list[Any]:
        tensors = [
            from_numpy(x, torch.int64 if wide and x.dtype == np.int32 else None)
            for x in arrays
        ]
        for x, need in zip(tensors, graph.requires_grad(len(arrays)), strict=True):
            x.requires_grad_(need and is_inexact(x.dtype))
        draws = RandomDraws(seed)
        draws.is_real = True
        with draws, draws_by_torch():
            found = graph.run(tensors)
            if isinstance(found, Noted):
                graph.host_notes[key_of(arrays)] = found.note
            return results_of(found)

    return KernelRuns(derivatives=False)(run)


def _result(x: Any) -> np.ndarray:
    to_jax_dtype(x.dtype)  # refuses dtypes that JAX would narrow
    return np.array(to_numpy(x))


# ---- the shapes of results, before the first run


def _found_out(graph: Hosted, arrays: Sequence[Any]) -> list[Any]:
    """Return the types of the results for arrays of these types, from trial runs."""
    last: Exception | None = None
    data = [np.zeros(2, np.uint32)] if graph.seed is not None else []
    at, found = key_of(arrays), []
    for make in _TRIES:
        values = [make(tuple(x.shape), np.dtype(x.dtype)) for x in arrays]
        graph.host_notes.pop(at, None)
        try:
            results = _run(graph, values, *data)
        except Exception as error:  # noqa: BLE001  (rules raise what they like)
            last = error
            continue
        types = [None if x is None else _type(x) for x in results]
        found.append((types, note_key(graph.host_notes.get(at))))
        if len(found) == 2:
            break
    if found:
        types = found[0][0]
        # An empty result may be one that has elements for other values: JAX would not
        # even call the host for it.
        is_empty = any(0 in t.shape for t in types if t is not None)
        if found[0] == found[-1] and (
            not is_empty or any(0 in x.shape for x in arrays)
        ):
            return types
        raise TorchRefusal(
            operation="the host call",
            reason="the shapes of its results, or what it returns beside tensors, seem "
            "to depend on the values of its arguments (jaxfn tried some).",
            way_out="Pass a number that decides them as a Python value, which JAX does "
            "not trace. If they depend on none, call it once outside of jax.jit and "
            "other transformations.",
        ).of(graph.name, graph.rule)
    raise TorchRefusal(
        operation="the host call",
        reason="jaxfn tried some values to find the shapes of its results, and PyTorch "
        f"raised on all of them: {type(last).__name__}: {last}.",
        way_out="Call it once on real values, outside of jax.jit and other "
        "transformations, with arguments of these shapes.",
    ).of(graph.name, graph.rule) from last


def _random(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    values = rng.uniform(0.1, 0.9, shape)
    if len(shape) > 1 and shape[-1] == shape[-2]:  # symmetric and positive definite
        values = (
            values + np.swapaxes(values, -1, -2) + 2 * shape[-1] * np.eye(shape[-1])
        )
    return values.astype(dtype)


def _rising(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    count = int(np.prod(shape, initial=1))
    return (np.arange(1, count + 1).reshape(shape) / max(count, 1)).astype(dtype)


_TRIES: tuple[Callable[..., Any], ...] = (_random, np.ones, _rising, np.zeros)


# ---- torch's own apply


def applied(cls: Any, args: Any, note: Callable[[Any], None]) -> Any:
    """Return torch's own apply as a function of flat tensors."""

    def run(tensors: Sequence[Any]) -> list[Any]:
        with torch.enable_grad():
            result = cls.apply(*unflatten(args, tensors))
        tops = result if isinstance(result, tuple) else (result,)
        note(result)
        return [x for x in tops if isinstance(x, torch.Tensor)]

    return run


def pushed(cls: Any, args: Any, has_tangent: Sequence[bool]) -> Any:
    """Return torch's forward mode as a function of flat tensors and tangents."""

    def run(tensors: Sequence[Any]) -> list[Any]:
        n = len(has_tangent)
        tangents: Iterator[Any] = iter(tensors[n:])
        with forward_ad.dual_level(), torch.enable_grad():
            duals = [
                forward_ad.make_dual(x, next(tangents)) if g else x
                for x, g in zip(tensors[:n], has_tangent, strict=True)
            ]
            result = cls.apply(*unflatten(args, duals))
            tops = result if isinstance(result, tuple) else (result,)
            found: list[Any] = []
            for x in tops:
                if not isinstance(x, torch.Tensor):
                    continue
                t = forward_ad.unpack_dual(x).tangent
                if t is None and is_inexact(x.dtype):
                    t = torch.zeros_like(x)
                found.append(t)
        return found

    return run
