"""Functions of flat tensors as JAX functions, with torch's own derivatives.

JAX evaluates the graph of a `GraphFunction`, but does not differentiate it: the graph
has lost the rules of nested Functions, and JAX differs from torch at kinks. Its
derivative is another `GraphFunction`, a torch function that calls torch's autograd. So
derivatives of every order are torch's own.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from jaxfn.torch._base import (
    READ,
    TorchRefusal,
    has_x64,
    is_inexact,
    to_jax_dtype,
    to_torch_dtype,
    torch,
)
from jaxfn.torch._function import derivatives
from jaxfn.torch._function import host as on_host
from jaxfn.torch._function.call import Mask
from jaxfn.torch._trace import (
    BranchTree,
    LaunchSeen,
    TensorFunction,
    TensorSpec,
    trace,
)

Host = Literal["always", "fallback", "never"]
_MOST = 64


class GraphFunction:
    """A torch function of flat tensors.

    Args:
        run: From tensors to tensors (or None).
        name: The name of the class.
        rule: The name of its rule, or of a derivative of the rule.
        seed: The first state of the generator; None refuses draws.
        requires_grad: For each input, its `requires_grad` in torch.
        parameters: Real tensors whose `grad` must not change.
        host: When it runs in a host callback: "always", "never", or as a "fallback".
        known: Whether it is known which inputs are differentiated.
        types: Returns the shapes and (JAX's) dtypes of the results; None if unknown.
        batch: Returns the results of a batch, from its size, the batch axes of key and
            arrays, and these; None if JAX batches the graph.
        is_derivative: Whether it calls torch's autograd.
        state: Returns a key of the values that `run` reads beside its inputs.
        as_gpu: Whether it is traced as on a GPU, for the kernels that it launches.
        launches_raise: Whether a launch raises LaunchSeen, if it is traced otherwise.
        is_whole: Whether it is a whole model, and no rule of a Function.
    """

    def __init__(
        self,
        run: TensorFunction,
        *,
        name: str,
        rule: str,
        seed: int | None = None,
        requires_grad: Sequence[bool] | None = None,
        parameters: Sequence[Any] = (),
        host: Host = "never",
        known: bool = True,
        types: Callable[[Sequence[Any]], list[Any]] | None = None,
        batch: Callable[..., list[Any]] | None = None,
        is_derivative: bool = False,
        state: Callable[[], Any] = lambda: None,
        as_gpu: bool = False,
        launches_raise: bool = False,
        is_whole: bool = False,
    ) -> None:
        self._state, self._as_gpu = state, as_gpu
        self._launches_raise, self._is_whole = launches_raise, is_whole
        self.batch, self.is_derivative = batch, is_derivative
        self.run, self.name, self.rule = run, name, rule
        self.seed, self.parameters, self.types = seed, parameters, types
        self.host: Host = host
        self._requires_grad, self._known = requires_grad, known
        self.host_types: dict[Any, list[Any]] = {}
        self.host_notes: dict[Any, Any] = {}
        self._programs: OrderedDict[Any, BranchTree | TorchRefusal] = OrderedDict()
        self._derived: dict[Any, GraphFunction] = {}

    def examples(self, types: Sequence[Any]) -> list[TensorSpec]:
        """Return inputs of these types to trace with."""
        dtypes = [to_torch_dtype(t.dtype) for t in types]
        pairs = zip(dtypes, self.requires_grad(len(types)), strict=True)
        requires_grad = [is_inexact(dtype) and need for dtype, need in pairs]
        return [
            TensorSpec(tuple(t.shape), dtype, need)
            for t, dtype, need in zip(types, dtypes, requires_grad, strict=True)
        ]

    def requires_grad(self, n: int) -> Sequence[bool]:
        """Return the `requires_grad` of each of the n inputs."""
        return self._requires_grad or (False,) * n

    def key(self, types: Sequence[Any]) -> Any:
        """Return a key of everything that changes a trace."""
        return types_key(types), self._state()

    def beside(
        self, run: TensorFunction, rule: str, *, as_gpu: bool | None = None
    ) -> GraphFunction:
        """Return another function, which differs in what it runs."""
        return GraphFunction(
            run,
            name=self.name,
            rule=rule,
            seed=self.seed,
            parameters=self.parameters,
            host=self.host,
            state=self._state,
            as_gpu=self._as_gpu if as_gpu is None else as_gpu,
            launches_raise=self._launches_raise,
            is_whole=self._is_whole,
        )

    def note(self, types: Sequence[Any]) -> Any:
        """Return the note on the results for inputs of these types."""
        try:
            return self.program(types).note
        except TorchRefusal:
            if self.host == "never":
                raise
            # It has run there, perhaps to find the types.
            return self.host_notes.get(on_host.key_of(types))

    def program(self, types: Sequence[Any]) -> BranchTree:
        """Return the program for inputs of these types, made once.

        Raises:
            TorchRefusal: It can't be traced.
        """
        key = self.key(types)
        found = self._programs.get(key)
        if found is None:
            try:
                found = self._traced(self.examples(types))
                self._look_at_constants(found)
            except LaunchSeen:
                if self._launches_raise:
                    raise
                raise TorchRefusal(
                    operation="a kernel launch",
                    reason="jaxfn did not find this kernel in the code of the class.",
                    way_out="Name it in a rule, or in a function that a rule calls.",
                ).of(self.name, self.rule) from None
            except TorchRefusal as refusal:
                refusal.of(self.name, self.rule)
                if refusal.lasts:
                    remember(self._programs, key, refusal.bare())
                raise
            remember(self._programs, key, found)
        if isinstance(found, TorchRefusal):
            raise found.bare()
        return found

    def _look_at_constants(self, tree: BranchTree) -> None:
        """Warn of tensors that get no gradient, because they are no arguments.

        As in torch, a rule of a Function has no other gradients. Of a whole model, they
        would be lost: refuse them.
        """
        constants = {id(t): t for path in tree.paths for t in path.constants}
        for t in constants.values():
            if t.requires_grad and self._is_whole:
                raise TorchRefusal(
                    operation=f"a tensor of shape {tuple(t.shape)}",
                    reason="it requires a gradient and is no argument (and no "
                    "parameter), so its gradient would be lost.",
                    way_out="Pass it as an argument; a module by "
                    "torch.func.functional_call(module, params, args).",
                )
            if t.requires_grad:
                warnings.warn(
                    f"`{self.name}.{self.rule}` uses a {type(t).__name__} of shape "
                    f"{tuple(t.shape)} that requires grad and is no argument: as in "
                    "torch, it gets no gradient here. Pass it to apply (and call its "
                    "module by torch.func.functional_call, if it has one).",
                    UserWarning,
                    stacklevel=2,
                )

    def _traced(self, examples: Sequence[TensorSpec]) -> BranchTree:
        wide = widened(examples)
        runs = [self.run]
        if self.is_derivative:
            runs.append(derivatives.with_copies(self.run))
        first: Exception | None = None
        for run in runs:
            for types in [examples] if wide is None else [examples, wide]:
                try:
                    return self._tried(self._trace(run, types), types)
                except Exception as error:  # noqa: BLE001  (the first one is reported)
                    first = first or error
            if not derivatives.is_written_over(first):
                break
        assert first is not None
        raise first

    def _trace(self, run: TensorFunction, examples: Sequence[TensorSpec]) -> BranchTree:
        return trace(
            run,
            examples,
            seed=self.seed,
            parameters=self.parameters,
            known=self._known,
            as_gpu=self._as_gpu,
        )

    def _tried(self, tree: BranchTree, examples: Sequence[TensorSpec]) -> BranchTree:
        """Return the tree, evaluated once without values if JAX might refuse it."""
        if self.host == "fallback" or any(path.is_dynamic for path in tree.paths):
            types = [
                jax.ShapeDtypeStruct(x.shape, to_jax_dtype(x.dtype)) for x in examples
            ]
            key = jax.eval_shape(lambda: jax.random.key(0))
            jax.eval_shape(lambda key, xs: tree(xs, key), key, types)
        return tree

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]:
        """Return the results for these arrays (and this key, if it draws)."""
        if self.host == "always":
            return self._on_host(arrays, key)
        try:
            return self.program(arrays)(arrays, key)
        except TorchRefusal as refusal:
            refusal.of(self.name, self.rule)
            if self.host == "never":
                raise
        return self._on_host(arrays, key)

    def _on_host(self, arrays: Sequence[Any], key: Any) -> list[Any]:
        try:
            return on_host.call(self, arrays, key)
        except TorchRefusal as refusal:
            raise refusal.of(self.name, self.rule) from None

    # ---- derivatives

    def vjp(self, needs_input_grad: Mask, has_cotangent: Mask) -> GraphFunction:
        """Return the function from inputs and cotangents to wanted gradients.

        Args:
            needs_input_grad: For each input, whether its gradient is wanted.
            has_cotangent: For each result, whether it has a cotangent.
        """
        masks = needs_input_grad, has_cotangent
        return self._derive(
            ("vjp", *masks),
            functools.partial(derivatives.pull, self._tracked, *masks),
            types=lambda arrays: [
                (tuple(x.shape), x.dtype)
                for x, need in zip(arrays, needs_input_grad, strict=False)
                if need
            ],
        )

    def jvp(self, has_tangent: Mask) -> GraphFunction:
        """Return the function from inputs and tangents to the tangents of results.

        Args:
            has_tangent: For each input, whether it has a tangent.
        """
        push = functools.partial(derivatives.push, self._tracked, has_tangent)
        return self._derive(("jvp", has_tangent), push)

    @property
    def _tracked(self) -> TensorFunction:
        is_forward = self.rule in ("forward", "setup_context")
        return derivatives.of_forward(self.run) if is_forward else self.run

    def _derive(
        self, where: Any, run: Callable[..., Any], **options: Any
    ) -> GraphFunction:
        """Return the function of a derivative, made once."""
        if where not in self._derived:
            self._derived[where] = GraphFunction(
                run,
                name=self.name,
                rule=f"{self.rule}, differentiated",
                seed=self.seed,
                parameters=self.parameters,
                host=self.host,
                is_derivative=True,
                state=self._state,
                as_gpu=self._as_gpu,
                **options,
            )
        return self._derived[where]

    def apply(self, key: Any, *arrays: Any) -> list[Any]:
        """Return the results under JAX's transformations, with these derivatives."""
        return derivatives.apply(self, key, arrays)


def types_key(types: Sequence[Any]) -> Any:
    """Return a key of everything that changes a trace, except static arguments."""
    return (
        tuple((tuple(t.shape), str(t.dtype)) for t in types),
        has_x64(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        READ.changes(),
    )


def remember(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Add a value to a cache of limited size."""
    cache[key] = value
    while len(cache) > _MOST:
        try:
            cache.popitem(last=False)
        except KeyError:  # another thread was faster
            break


def widened(examples: Sequence[TensorSpec]) -> list[TensorSpec] | None:
    """Return examples with int64 for int32 if x64 is off; None if nothing changes."""
    if has_x64() or all(x.dtype != torch.int32 for x in examples):
        return None
    return [
        TensorSpec(x.shape, torch.int64 if x.dtype == torch.int32 else x.dtype)
        if x.dtype == torch.int32
        else x
        for x in examples
    ]
