"""A module in JAX beside its original: outputs, and gradients by all parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._check import (
    CheckResult,
    Once,
    Outcome,
    Program,
    compare_arrays,
    eps_of,
    largest,
    least_precise,
    like,
    result_of,
    wide,
)
from jaxfn._core import values
from jaxfn.torch._base import Leaf, TorchRefusal, from_numpy, torch
from jaxfn.torch._compare.arguments import (
    Arrays,
    CommonArguments,
    Outs,
    array,
    inexact_in,
)
from jaxfn.torch._compare.original import Original, OriginalError
from jaxfn.torch._compare.pair import CompareOptions, expect_numbers
from jaxfn.torch._compare.port import Port
from jaxfn.torch._compare.report import CompareReport, not_compared


def compare_module(
    model: Any,
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CompareOptions,
    *,
    order: int,
) -> CompareReport:
    """Compare a model of `from_torch` with its module, on the module's parameters."""
    name = type(module).__name__
    _expect_fit(model, module, name, args)
    inputs = _Inputs(model, args, kwargs)
    port = Port(functools.partial(inputs.call, model.apply), inputs.arguments, 0)
    got = port.leaves_compiled(inputs.arguments.arrays)
    # JAX has learned meanwhile to take the result apart, and in which order.
    original = _Module(module, inputs, model.mutable, options.seed)
    expected = original.value(inputs.arguments.arrays)
    port.inexact = expected.inexact
    floats = [i for i, x in enumerate(got) if _is_float(x)]
    if len(got) != len(expected.leaves) or floats != expected.inexact:
        counts = len(expected.inexact), len(expected.leaves), len(floats), len(got)
        message = (
            f"expected {counts[0]} float outputs and {counts[1] - counts[0]} others, "
            f"got {counts[2]} and {counts[3] - counts[2]}"
        )
        failed = CheckResult("structure", "forward", "FAIL", message=message)
        return CompareReport(repr(model), (failed,), name)
    changed = _changed(model, module)
    rows = _Rows(port, original, inputs.arguments, expected, options, bool(changed))
    results = [*rows.values(got), *rows.gradients(order)]
    results = _with_changes(results, changed)
    return CompareReport(repr(model), tuple(results), name, not_compared(results))


def _is_float(x: Any) -> bool:
    return values.is_array(x) and values.is_inexact(x)


def _changed(model: Any, module: Any) -> list[str]:
    """Return the names of values that the module and the model don't share."""
    theirs = dict(module.named_parameters()) | dict(module.named_buffers())
    ours = model.buffers | model.frozen | model.params
    both = [k for k in ours if k in theirs]
    return [k for k in both if not np.array_equal(array(theirs[k]), ours[k])]


def _with_changes(results: list[CheckResult], other: list[str]) -> list[CheckResult]:
    """Say in the first failure which values the module and the model don't share."""
    place = next((i for i, x in enumerate(results) if x.status == "FAIL"), None)
    if place is None or not other:
        return results
    message = (
        f"{results[place].message}. `{other[0]}` has another value in the module than "
        "in the model: if the module has changed, call from_torch(module) again."
    )
    new = dataclasses.replace(results[place], message=message)
    return [*results[:place], new, *results[place + 1 :]]


def _expect_fit(model: Any, module: Any, name: str, args: Sequence[Any]) -> None:
    """Refuse what is no model of this module, or draws random numbers."""
    if not (hasattr(model, "apply") and hasattr(model, "params")):
        raise TypeError(
            "compare expected a model of jaxfn.torch.from_torch(module) beside a "
            f"torch.nn.Module, got {model!r}."
        )
    first = args[0] if args else None
    if isinstance(first, Mapping) and first.keys() >= model.params.keys():
        raise TypeError(
            f"compare got the parameters of `{name}` among the arguments of its "
            "forward: expected the others alone, compare(model, module, x). It takes "
            "those of the model."
        )
    if model._settings.random:
        raise TypeError(
            "compare got a model that draws random numbers (random=True): expected one "
            "whose numbers PyTorch can compute too. Compare it after module.eval()."
        )
    trained = {k for k, x in module.named_parameters() if x.requires_grad}
    if trained != set(model.params):
        expected, got = trained - set(model.params), set(model.params) - trained
        raise ValueError(
            f"compare got a model whose params are not those of `{name}` that require "
            f"a gradient: beside what both have, expected {sorted(expected)[:5]}, got "
            f"{sorted(got)[:5]}. Call from_torch(module) again, and pass that module."
        )


class _Inputs:
    """The parameters and the arrays among the arguments of a call, by their names.

    Args:
        model: The model in JAX, with its parameters.
        args: The arguments of the call.
        kwargs: Its keyword arguments.
    """

    def __init__(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        convert = lambda x: array(x) if isinstance(x, torch.Tensor) else x  # noqa: E731
        self._inputs = jax.tree.map(convert, (tuple(args), dict(kwargs)))
        found = jax.tree_util.tree_flatten_with_path(self._inputs)[0]
        given = {_name_of(path): x for path, x in found if values.is_array(x)}
        self.params = list(model.params)
        arrays = {k: np.asarray(x) for k, x in (model.params | given).items()}
        slots = list(map(Leaf, range(len(arrays))))
        self.arguments = CommonArguments(slots, list(arrays.values()), list(arrays))

    def call(self, function: Any, *arrays: Any) -> tuple[Any, ...]:
        """Call a function of parameters and arguments; return the leaves."""
        found = dict(zip(self.arguments.names, arrays, strict=True))
        args, kwargs = jax.tree_util.tree_map_with_path(
            lambda path, x: found.get(_name_of(path), x), self._inputs
        )
        params = {name: found[name] for name in self.params}
        return tuple(jax.tree.leaves(function(params, *args, **kwargs)))


def _name_of(path: Any) -> str:
    """Return the name of an argument: by its position, or by its keyword."""
    (kind, place, *inside) = path
    first = place.idx if kind.idx == 0 else place.key
    return f"argument {first}{jax.tree_util.keystr(tuple(inside))}"


# ---- in PyTorch


class _Beside(torch.nn.Module):
    """A module beside what is computed with it, as one module to call."""

    def __init__(self, module: Any, compute: Callable[[], Any]) -> None:
        super().__init__()
        self.module, self.compute = module, compute

    def forward(self) -> Any:
        return self.compute()


class _Module(Original):
    """A module, whose own parameters take the places of those among the arrays.

    Args:
        module: The module.
        inputs: What it is called on.
        mutable: Whether its new buffers are outputs, too.
        seed: Seed of its random draws.
    """

    def __init__(self, module: Any, inputs: _Inputs, mutable: bool, seed: int) -> None:
        super().__init__(module, inputs.arguments, seed)
        self._inputs, self._mutable = inputs, mutable

    def _call(self, tensors: Sequence[Any]) -> Any:
        def run(_: Any, *args: Any, **kwargs: Any) -> Any:
            result = self.cls(*args, **kwargs)
            buffers = {k: x.clone() for k, x in self.cls.named_buffers()}
            return (result, buffers) if self._mutable else result

        return self._inputs.call(run, *tensors)

    def _apply(self, arrays: Arrays, chosen: Sequence[int]) -> tuple[Any, list[Any]]:
        own, tensors = dict(self.cls.named_parameters()), self._tensors(arrays)
        for i, name in enumerate(self._inputs.params):
            tensors[i] = own[name]
        leaves = [tensors[i].requires_grad_() for i in chosen]
        # The module may write to its arguments, but not to a leaf: pass clones.
        n = len(self._inputs.params)
        result = self._call([*tensors[:n], *(x.clone() for x in tensors[n:])])
        return result, leaves

    def _tried(self, run: Callable[[], Any]) -> Any:
        def beside() -> Any:
            # A batch norm in training writes to its buffers: leave them as they are.
            # They are replaced until all gradients are known, because a checkpoint
            # runs parts again.
            own = {f"module.{k}": x.clone() for k, x in self.cls.named_buffers()}
            # PyTorch's other kernels of attention have no second derivative.
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return torch.func.functional_call(_Beside(self.cls, run), own, ())

        try:
            return super()._tried(beside)
        except OriginalError as error:
            name = type(self.cls).__name__
            text = f"`{name}` raised in PyTorch: {error} The model in JAX did not."
            raise OriginalError(text) from error

    def pull(self, arrays: Arrays, chosen: Sequence[int], cts: Sequence[Any]) -> Arrays:
        try:
            return super().pull(arrays, chosen, cts)
        except OriginalError as error:
            if "use_reentrant=True" not in str(error):
                raise
            return self._tried(lambda: self._accumulated(arrays, chosen, cts))

    def _accumulated(
        self, arrays: Arrays, chosen: Sequence[int], cts: Sequence[Any]
    ) -> Arrays:
        """Return the gradients that `backward` adds up; a checkpoint may take it."""
        result, leaves = self._apply(arrays, chosen)
        both = zip(inexact_in(result), map(from_numpy, cts), strict=True)
        outs, given = zip(*[(x, ct) for x, ct in both if x.requires_grad], strict=True)
        before = [x.grad for x in leaves]
        for x in leaves:
            x.grad = None
        try:
            torch.autograd.backward(outs, given)
            found = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
            return list(map(array, found))
        finally:
            for x, grad in zip(leaves, before, strict=True):
                x.grad = grad


# ---- rows


class _Rows:
    """The rows of a module."""

    def __init__(
        self,
        port: Port,
        original: Original,
        arguments: CommonArguments,
        expected: Outs,
        options: CompareOptions,
        has_changed: bool,
    ) -> None:
        self._port, self._original, self._expected = port, original, expected
        self._options, self._has_changed = options, has_changed
        self._arrays, self._at = arguments.arrays, arguments.at
        self._names = [arguments.names[i] for i in self._at]
        generator = np.random.default_rng(options.seed)
        random = lambda xs: [np.asarray(like(x, generator)) for x in xs]  # noqa: E731
        self._outs = [expected.leaves[i] for i in expected.inexact]
        self._cts = random(self._outs)
        self._along = random([self._arrays[i] for i in self._at])
        self._pull = Once(lambda xs, cts: port.pull(xs, self._at, cts))

    def values(self, got: list[Any]) -> Iterator[CheckResult]:
        """Compare the outputs."""
        expected, at = self._expected, self._expected.inexact
        names = [f"output {k}" for k in range(len(at))]
        run = Program(self._port.leaves)
        dtypes = lambda: [least_precise(run.jaxpr(self._arrays))[i] for i in at]  # noqa: E731
        found = [got[i] for i in at]
        yield from self._compared(names, "forward", found, self._outs, dtypes)
        others = [i for i in range(len(got)) if i not in at]
        for k, i in enumerate(others):
            x, y = got[i], expected.leaves[i]
            same = np.array_equal(np.asarray(x), np.asarray(y))
            message = "" if same else f"expected {y}, got {x}"
            status = "ok" if same else "FAIL"
            yield CheckResult(f"other output {k}", "forward", status, message=message)

    def gradients(self, order: int) -> Iterator[CheckResult]:
        """Compare the gradients for random cotangents, and the gradients of these."""
        arrays, at, port = self._arrays, self._at, self._port
        names = [f"gradient of {name}" for name in self._names]
        ours = self._pull(arrays, self._cts)
        theirs = self._original.pull(arrays, at, self._cts)
        dtypes = lambda: least_precise(self._pull.jaxpr(arrays, self._cts))  # noqa: E731
        yield from self._compared(names, "backward", ours, theirs, dtypes)
        if order == 1:
            return
        names = [f"second derivative of {name}" for name in self._names]
        again = Once(lambda xs, cts, along: port.pull_twice(xs, at, cts, along))
        args = self._cts, self._along
        try:
            ours = again(arrays, *args)
            theirs = self._original.pull_twice(arrays, at, *args)
        except (OriginalError, TorchRefusal) as error:
            name, why = "second derivative", str(error)
            yield CheckResult(name, "backward", "skipped", message=why)
            return
        n = len(at)
        dtypes = lambda: least_precise(again.jaxpr(arrays, *args))  # noqa: E731
        yield from self._compared(names, "backward", ours[:n], theirs[:n], dtypes)

    def _compared(
        self,
        names: Sequence[str],
        rule: str,
        got: Sequence[Any],
        expected: Arrays,
        dtypes: Callable[[], Sequence[Any]],
    ) -> Iterator[CheckResult]:
        """Compare results; `dtypes` are the least precise ones of each."""
        # A parameter whose gradient is zero gets nothing but rounding: the largest
        # gradient says how much that is.
        size = 1e-3 * max((largest(wide(x)) for x in expected), default=0.0)
        dtypes = functools.cache(dtypes)
        for i, (name, x, y) in enumerate(zip(names, got, expected, strict=True)):
            run = functools.partial(self._one, name, x, y, size, i, dtypes)
            yield result_of(name, rule, run)

    def _one(
        self,
        name: str,
        got: Any,
        expected: np.ndarray,
        size: float,
        i: int,
        dtypes: Callable[[], Sequence[Any]],
    ) -> Outcome:
        expect_numbers([got], [expected])
        rtol, atol = self._options.rtol, self._options.atol
        tolerance = eps_of([got]) ** 0.5 if rtol is None else rtol
        both = wide(got), wide(expected)
        outcome = compare_arrays(*both, name, tolerance, size, atol)
        if outcome.ok or rtol is not None or not np.isfinite(outcome.error):
            return outcome
        # A softmax in float32 is no more precise in a module of double precision.
        if self._has_changed or (least := dtypes()[i]) is None:
            return outcome
        tolerance = eps_of([np.zeros((), least)]) ** 0.5
        again = compare_arrays(*both, name, tolerance, size, atol)
        note = f"it computes in {least}, too"
        return dataclasses.replace(again, note=note) if again.ok else outcome
