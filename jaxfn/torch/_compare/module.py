"""A module in JAX beside its original: outputs, and gradients by all parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check import CheckResult
from jaxfn.torch._base import TorchRefusal, from_numpy, to_numpy, torch
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.report import CompareReport
from jaxfn.torch._triton import KernelRuns

_Row = tuple[str, str, Any, Any]
"""Name, rule, what JAX computes, what PyTorch computes."""


def compare_module(
    port: Any,
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    order: int,
    rtol: float | None,
    atol: float,
) -> CompareReport:
    """Compare a model of `from_torch` with its module, on the module's parameters."""
    if not (hasattr(port, "apply") and hasattr(port, "params")):
        raise TypeError(
            "compare expected a model of jaxfn.torch.from_torch(module) beside a "
            f"torch.nn.Module, got {port!r}."
        )
    if port._settings.random:
        raise TypeError(
            "compare got a model that draws random numbers (random=True): expected one "
            "whose numbers PyTorch can compute too. Compare it after module.eval()."
        )
    name = type(module).__name__
    trained = {k for k, x in module.named_parameters() if x.requires_grad}
    if trained != set(port.params):
        expected, got = trained - set(port.params), set(port.params) - trained
        raise ValueError(
            f"compare got a model whose params are not those of `{name}` that require "
            f"a gradient: beside what both have, expected {sorted(expected)[:5]}, got "
            f"{sorted(got)[:5]}. Call from_torch(module) again, and pass that module."
        )
    # A parameter whose gradient is zero gets nothing but rounding: the largest gradient
    # says how much that is.
    ours = _in_jax(port, args, kwargs, order)
    theirs = _originals(module, args, kwargs, port.mutable)
    if ours.counts != theirs.counts:
        message = "expected {} float outputs and {} others, got {} and {}"
        message = message.format(*theirs.counts, *ours.counts)
        failed = CheckResult("structure", "forward", "FAIL", message=message)
        return CompareReport(repr(port), (failed,), name)
    results = list(_others(ours, theirs))
    rows = list(_rows(ours, theirs, order))
    sizes: dict[str, float] = {}
    for _, rule, _, expected in rows:
        sizes[rule] = max(sizes.get(rule, 0.0), _size(expected))
    for row, rule, got, expected in rows:
        least_size = 1e-3 * sizes[rule]
        results.append(_result(row, rule, got, expected, least_size, rtol, atol))
    return CompareReport(repr(port), tuple(results), name)


class _Computed:
    """What one side computes.

    Attributes:
        outputs: The outputs that are floats.
        others: The other outputs: arrays of integers, numbers, texts.
        gradients: The gradient of a weighted sum of the outputs, by parameter and by
            float argument.
        second: The gradient of a weighted sum of these; or an error.
    """

    def __init__(
        self, outputs: list[Any], others: list[Any], gradients: dict[str, Any]
    ) -> None:
        self.outputs, self.others, self.gradients = outputs, others, gradients
        self.second: Any = None

    @property
    def counts(self) -> tuple[int, int]:
        """The number of outputs, and of others."""
        return len(self.outputs), len(self.others)


class _Inputs:
    """The arguments of a call, of which the float ones have names.

    Args:
        args: The arguments.
        kwargs: The keyword arguments.
        is_float: Whether a leaf is differentiated.
    """

    def __init__(self, args: Any, kwargs: Any, is_float: Any) -> None:
        found, self._tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
        self._names = [_name_of(path) if is_float(x) else None for path, x in found]
        self._leaves = [x for _, x in found]
        pairs = zip(self._names, self._leaves, strict=True)
        self.floats = {name: x for name, x in pairs if name is not None}

    def call(self, function: Any, floats: Mapping[str, Any]) -> Any:
        """Call a function with these values of the float arguments."""
        pairs = zip(self._names, self._leaves, strict=True)
        leaves = [x if name is None else floats[name] for name, x in pairs]
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, leaves)
        return function(*args, **kwargs)


def _name_of(path: Any) -> str:
    """Return the name of an argument: by its position, or by its keyword."""
    (kind, place, *inside) = path
    if kind.idx == 0:
        return f"argument {place.idx}{jax.tree_util.keystr(tuple(inside))}"
    return f"argument {place.key}{jax.tree_util.keystr(tuple(inside))}"


def _in_jax(model: Any, args: Any, kwargs: Any, order: int) -> _Computed:
    args, kwargs = jax.tree.map(_to_jax, (tuple(args), dict(kwargs)))
    inputs = _Inputs(args, kwargs, _is_float)
    static: list[Any] = []

    def loss(values: Any) -> tuple[Any, Any]:
        params = {k: values[k] for k in model.params}
        run = functools.partial(model.apply, params)
        leaves = jax.tree.leaves(inputs.call(run, values))
        outs = [x for x in leaves if _is_float(x)]
        others = [x for x in leaves if not _is_float(x)]
        static[:] = [None if isinstance(x, jax.Array) else x for x in others]
        total = sum(((_weights(x.shape) * x).sum() for x in outs), jnp.zeros(()))
        return total, (outs, [x for x in others if isinstance(x, jax.Array)])

    grad = jax.grad(loss, has_aux=True)
    values = {**model.params, **inputs.floats}
    gradients, (outputs, integers) = jax.jit(grad)(values)
    found = iter(integers)
    others = [next(found) if x is None else x for x in static]
    computed = _Computed(outputs, others, gradients)
    if order == 2:
        weighted = lambda p: sum(  # noqa: E731
            ((_weights(g.shape) * g).sum() for g in grad(p)[0].values()), jnp.zeros(())
        )
        try:
            computed.second = jax.jit(jax.grad(weighted))(values)
        except TorchRefusal as refusal:  # a kernel of Triton has no second derivative
            computed.second = refusal
    return computed


def _is_float(x: Any) -> bool:
    is_array = isinstance(x, (jax.Array, np.ndarray))
    return is_array and jnp.issubdtype(x.dtype, jnp.floating)


def _originals(module: Any, args: Any, kwargs: Any, mutable: bool) -> _Computed:
    """Compute it in PyTorch, with kernels of Triton also without a GPU."""
    first: Exception | None = None
    for is_wide in (False, True):  # PyTorch takes int64 where JAX often has int32
        convert = functools.partial(_to_torch, is_wide=is_wide)
        given = jax.tree.map(convert, (tuple(args), dict(kwargs)))
        try:
            return KernelRuns()(functools.partial(_in_torch, module, *given, mutable))
        except Exception as error:  # noqa: BLE001  (modules raise what they like)
            first = first or error
    raise OriginalError(
        f"`{type(module).__name__}` raised in PyTorch: {type(first).__name__}: "
        f"{str(first).partition(chr(10))[0]} The model in JAX did not."
    ) from first


class _Beside(torch.nn.Module):
    """A module beside what is computed with it, as one module to call."""

    def __init__(self, module: Any, compute: Callable[[], _Computed]) -> None:
        super().__init__()
        self.module, self.compute = module, compute

    def forward(self) -> _Computed:
        return self.compute()


def _in_torch(module: Any, args: Any, kwargs: Any, mutable: bool) -> _Computed:
    compute = functools.partial(_computed, module, args, kwargs, mutable)
    # A batch norm in training writes to its buffers: leave them as they are. They are
    # replaced until all gradients are known, because a checkpoint runs parts again.
    buffers = {f"module.{k}": x.clone() for k, x in module.named_buffers()}
    # PyTorch's other kernels of attention have no second derivative.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.func.functional_call(_Beside(module, compute), buffers, ())


def _computed(module: Any, args: Any, kwargs: Any, mutable: bool) -> _Computed:
    inputs = _Inputs(args, kwargs, _is_float_tensor)
    floats = {k: x.detach().clone().requires_grad_() for k, x in inputs.floats.items()}
    values = {k: x for k, x in module.named_parameters() if x.requires_grad} | floats
    # They are no leaves: the module may write to them.
    result = inputs.call(module, {k: x.clone() for k, x in floats.items()})
    if mutable:
        result = result, {k: x.clone() for k, x in module.named_buffers()}
    # JAX has learned meanwhile to take the result apart, and in which order.
    leaves = jax.tree.leaves(result)
    outs = [x for x in leaves if _is_float_tensor(x)]
    others = [x for x in leaves if not _is_float_tensor(x)]
    total = sum(((_like(x) * x).sum() for x in outs), torch.zeros(()))
    try:
        grads = _gradients(total, values)
    except RuntimeError as error:
        if "use_reentrant=True" not in str(error):
            raise
        found = _Computed(outs, others, _accumulated(total, values))
        found.second = error
        return found
    found = _Computed(outs, others, grads)
    try:
        total = sum(((_like(g) * g).sum() for g in grads.values()), torch.zeros(()))
        found.second = _gradients(total, values)
    except (RuntimeError, NotImplementedError) as error:
        found.second = error
    return found


def _is_float_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _gradients(total: Any, values: dict[str, Any]) -> dict[str, Any]:
    if not total.requires_grad:
        return {k: torch.zeros_like(x) for k, x in values.items()}
    how = {"allow_unused": True, "materialize_grads": True}
    grads = torch.autograd.grad(total, list(values.values()), create_graph=True, **how)
    return dict(zip(values, grads, strict=True))


def _accumulated(total: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients that `backward` adds up; a checkpoint may take it alone."""
    before = {k: x.grad for k, x in values.items()}
    for x in values.values():
        x.grad = None
    try:
        total.backward()
        found = {k: x.grad for k, x in values.items()}
    finally:
        for k, x in values.items():
            x.grad = before[k]
    return {
        k: torch.zeros_like(values[k]) if g is None else g for k, g in found.items()
    }


def _rows(ours: _Computed, theirs: _Computed, order: int) -> Iterator[_Row]:
    for i, pair in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        yield f"output {i}", "forward", *pair
    for name, expected in theirs.gradients.items():
        yield f"gradient of {name}", "backward", ours.gradients[name], expected
    if order == 1:
        return
    for second in (theirs.second, ours.second):
        if isinstance(second, Exception):
            yield "second derivative", "second", None, second
            return
    for name, expected in theirs.second.items():
        yield f"second derivative of {name}", "second", ours.second[name], expected


def _others(ours: _Computed, theirs: _Computed) -> Iterator[CheckResult]:
    """Compare the outputs that are no floats."""
    for i, pair in enumerate(zip(ours.others, theirs.others, strict=True)):
        got, want = (to_numpy(x) if isinstance(x, torch.Tensor) else x for x in pair)
        same = np.array_equal(np.asarray(got), np.asarray(want))
        message = "" if same else f"expected {want}, got {got}"
        status = "ok" if same else "FAIL"
        yield CheckResult(f"other output {i}", "forward", status, message=message)


def _result(
    name: str,
    rule: str,
    got: Any,
    expected: Any,
    least_size: float,
    rtol: float | None,
    atol: float,
) -> CheckResult:
    rule = "backward" if rule == "second" else rule
    if isinstance(expected, Exception):
        side = "jaxfn" if isinstance(expected, TorchRefusal) else "PyTorch"
        return CheckResult(name, rule, "skipped", message=f"{side} raised: {expected}")
    eps = float(jnp.finfo(got.dtype).eps)
    got = np.asarray(got.astype(jnp.float64 if eps < 1e-10 else jnp.float32))
    want = to_numpy(expected.detach().to(torch.float64))
    if got.shape != want.shape:
        message = f"expected shape {want.shape}, got {got.shape}"
        return CheckResult(name, rule, "FAIL", message=message)
    size = max(_size(expected), least_size)
    worst = float(np.abs(got - want).max()) if got.size else 0.0
    error = worst / size if size else worst
    tolerance = eps**0.5 if rtol is None else rtol
    ok = bool(error <= tolerance or worst <= atol)  # False for a nan
    at = np.unravel_index(np.abs(got - want).argmax(), got.shape) if got.size else ()
    message = (
        "" if ok else f"at {tuple(map(int, at))}: expected {want[at]}, got {got[at]}"
    )
    return CheckResult(name, rule, "ok" if ok else "FAIL", error, tolerance, message)


def _size(x: Any) -> float:
    if isinstance(x, Exception) or not x.numel():
        return 0.0
    return float(x.detach().abs().max())


def _weights(shape: Any) -> Any:
    """Return different weights for all elements."""
    return np.cos(np.arange(int(np.prod(shape)))).reshape(shape)


def _like(x: Any) -> Any:
    return torch.as_tensor(_weights(tuple(x.shape)), dtype=x.dtype)


def _to_jax(x: Any) -> Any:
    return jnp.asarray(to_numpy(x)) if isinstance(x, torch.Tensor) else x


def _to_torch(x: Any, *, is_wide: bool) -> Any:
    if not isinstance(x, (jax.Array, np.ndarray)):
        return x
    return from_numpy(x, torch.int64 if is_wide and x.dtype == np.int32 else None)
