"""The rules of a class for one signature, traced."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn
from jaxfn.torch._base import (
    BACKWARD,
    FORWARD,
    JVP,
    OR_HOST,
    VMAP,
    Ctx,
    Same,
    TorchRefusal,
    backward_of,
    experimental,
    fingerprint,
    has_vmap,
    is_separate,
    names_kernel,
    nests,
    settings_of,
    torch,
    type_test,
    unflatten,
    without_once,
)
from jaxfn.torch._function.call import Batch, Dims, Mask, Settings, TorchCall
from jaxfn.torch._function.derivatives import gradients
from jaxfn.torch._function.forward_result import ForwardResult, forward_result
from jaxfn.torch._function.graph_function import GraphFunction
from jaxfn.torch._trace import (
    BranchTree,
    LaunchSeen,
    NeedsRead,
    Noted,
    TensorFunction,
)
from jaxfn.torch._triton import is_loaded, storages_now


class TracedForward:
    """Forward of a class for one signature, traced, and its derivatives.

    Args:
        cls: The torch class.
        call: A call of this signature.
        needs_input_grad: For each argument, whether it is differentiated, if known.
        settings: The settings of `from_torch`.
        as_gpu: Whether its rules are traced as on a GPU, for the kernels they launch.
    """

    def __init__(
        self,
        cls: Any,
        call: TorchCall,
        needs_input_grad: Mask | None,
        settings: Settings,
        *,
        as_gpu: bool = False,
    ) -> None:
        self.cls, self._settings, self.as_gpu = cls, settings, as_gpu
        self.needs_input_grad = needs_input_grad
        self._args, self.tops = call.args, call.tops
        self._types = [(tuple(x.shape), x.dtype) for x in call.arrays]
        self._parameters = call.parameters()
        self.name = cls.__name__
        self._asked = False
        # If it is not known which ones are differentiated: all.
        requires_grad = [needs_input_grad is None] * len(call.arrays)
        for i, top in enumerate(call.tops):
            if top is not None and needs_input_grad is not None:
                requires_grad[top] = needs_input_grad[i]
        self.graph = GraphFunction(
            self._forward,
            name=self.name,
            rule="forward",
            seed=settings.seed(FORWARD),
            requires_grad=requires_grad,
            parameters=self._parameters,
            known=needs_input_grad is not None,
            batch=self._batched if has_vmap(cls) else None,
            state=self._state,
            as_gpu=as_gpu,
            launches_raise=True,
        )
        self.program = self.graph.program(call.arrays)
        self.result: ForwardResult = self.program.note
        self._derived: dict[Any, GraphFunction] = {}
        self._draws_back: bool | None = None
        # jaxfn does not search classes for arrays.
        self.hidden = type("TracedForward", (), {"rules": self})

    # ---- forward

    def forward(self, ctx: Any, arrays: Sequence[Any], key: Any) -> Any:
        """Return the result of forward, and save its tensors in jaxfn's ctx."""
        if self.has_intermediates() or self.graph.batch is not None:
            results = self.graph.apply(key, *arrays)
        else:
            results = self.graph(arrays, key)
        if key is not None and not self.draws():
            raise ValueError(
                f"`{self.name}` was made with random=True, but draws no random "
                "numbers. Remove random=True, and the key from the call."
            )
        results = _as_they_were(self, arrays, results)
        self.result.save(ctx, results)
        return unflatten(self.result.output, results[: self.result.n_outputs])

    def _state(self) -> Any:
        """Return a current key of the values that rules read beside arrays."""
        return fingerprint(self._args), settings_of(self.cls)

    def _known_needs(self) -> Mask:
        if self.needs_input_grad is None:
            self._asked = True
            raise NeedsRead
        return self.needs_input_grad

    def _forward(self, tensors: Sequence[Any]) -> Noted:
        args = unflatten(self._args, tensors)
        ctx = Ctx(self.cls, self._known_needs, "forward")
        if is_separate(self.cls):
            result = self.cls.forward(*args)
            self.cls.setup_context(ctx, tuple(args), result)
        else:
            result = self.cls.forward(ctx, *args)
        if self._asked:  # even if the rule caught NeedsRead
            raise NeedsRead
        storages = storages_now() if self.as_gpu else None
        results, note = forward_result(ctx, result, tensors, storages)
        is_plain = not torch.is_grad_enabled()  # and no derivative of forward
        if note.tracked and self.needs_input_grad is None and is_plain:
            raise NeedsRead  # backward may ask whether they require a gradient
        return Noted(results, note)

    def _setup(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors that setup_context alone saves."""
        n = len(self._types)
        args = unflatten(self._args, tensors[:n])
        output = unflatten(self.result.output, tensors[n:])
        ctx = Ctx(self.cls, self._known_needs, "forward")
        self.cls.setup_context(ctx, tuple(args), output)
        storages = storages_now() if self.as_gpu else None
        return forward_result(ctx, output, tensors[:n], storages)[0][
            self.result.n_outputs :
        ]

    def _batched(
        self, size: int, key_dim: Any, dims: Dims, key: Any, arrays: Sequence[Any]
    ) -> list[Any]:
        """Return the flat results of a batch: outputs by the vmap rule of the class."""
        if self.result.views:
            raise TorchRefusal(
                operation="a vmap rule beside kernels",
                reason="setup_context saves a tensor that is a part of its memory, or "
                "two in one memory. The vmap rule returns outputs in other memory.",
                way_out="Save x.contiguous(), or leave the vmap rule out.",
            ).of(self.name, "vmap")
        types = [(t.shape, t.dtype) for t in self.program.types]
        batch = Batch(self.cls, self._args, self.result.output, types)
        batch.check(key_dim)
        shapes = [((size, *shape), dtype) for shape, dtype in types]
        outs = self._derive(
            ("vmap", size, dims, Same(self.cls.vmap)),
            batch.run(size, dims),
            seed=self._settings.seed(VMAP),
            types=lambda _: shapes[: self.result.n_outputs],
        ).apply(key, *arrays)
        if len(types) == len(outs):
            return outs
        requires_grad = list(self.graph.requires_grad(len(arrays)))
        requires_grad += [False] * self.result.n_outputs
        setup = self._derive(
            ("setup_context",), self._setup, requires_grad=requires_grad
        ).apply
        axes = (*dims, *[0] * len(outs))
        saved = jax.vmap(lambda *xs: setup(None, *xs), axes, axis_size=size)
        return [*outs, *saved(*arrays, *outs)]

    def _derive(
        self, key: tuple[Any, ...], run: TensorFunction, **options: Any
    ) -> GraphFunction:
        """Return the function of a rule, made once. The key begins with its name."""
        if key not in self._derived:
            self._derived[key] = GraphFunction(
                run,
                name=self.name,
                rule=key[0],
                parameters=self._parameters,
                host=self._settings.host,
                state=self._state,
                as_gpu=self.as_gpu,
                **options,
            )
        return self._derived[key]

    def is_intermediate(self, i: int) -> bool:
        """Return whether this flat result is saved, but no input and no output."""
        ref = self.program.outputs[i]
        outs = self.program.outputs[: self.result.n_outputs]
        return ref is not None and ref >= self.program.n_inputs and ref not in outs

    def has_intermediates(self) -> bool:
        """Return whether forward saves a differentiable intermediate result."""
        n = self.result.n_outputs
        return any(
            self.result.inexact[i] and self.is_intermediate(i)
            for i in range(n, len(self.program.outputs))
        )

    def draws(self) -> bool:
        """Return whether a rule draws random numbers."""
        if any(path.draws for path in self.program.paths):
            return True
        if self._draws_back is None:
            self._draws_back = self._draws_in_backward()
        return self._draws_back

    def _draws_in_backward(self) -> bool:
        try:
            tree = self.whole_backward()
        except TorchRefusal:
            return True  # the refusal is raised when backward runs
        return any(path.draws for path in tree.paths)

    def whole_backward(self, needs_input_grad: Mask | None = None) -> BranchTree:
        """Return the graph of backward, with a gradient for each output."""
        if needs_input_grad is None:
            needs_input_grad = tuple(top is not None for top in self.tops)
        has_cotangent = tuple(i is not None for i in self.result.is_output)
        types = self.program.types
        outs = [i for i in self.result.is_output if i is not None]
        wanted = [types[i] for i in (*self.result.backward_leaves, *outs)]
        return self.backward(needs_input_grad, has_cotangent).program(wanted)

    # ---- backward and jvp

    def gradients(
        self, ctx: Any, key: Any, needs_input_grad: Mask, cts: Sequence[Any]
    ) -> list[Any]:
        """Return a gradient, or None, for each argument."""
        result = self.result
        cts = [
            ct if i is not None else None
            for ct, i in zip(cts, result.is_output, strict=True)
        ]
        has_cotangent = tuple(ct is not None for ct in cts)
        leaves = result.restored(ctx, result.saved, result.backward_leaves)
        found = self.backward(needs_input_grad, has_cotangent).apply
        return found(key, *leaves, *[ct for ct in cts if ct is not None])

    def tangents(self, ctx: Any, key: Any, tangents: Sequence[Any]) -> list[Any]:
        """Return a tangent, or None, for each output."""
        result = self.result
        leaves = result.restored(ctx, result.for_forward, result.jvp_leaves)
        found = self.jvp(tuple(t is not None for t in tangents)).apply
        return found(key, *leaves, *[t for t in tangents if t is not None])

    def backward(self, needs_input_grad: Mask, has_cotangent: Mask) -> GraphFunction:
        """Return the function from saved tensors and cotangents to gradients."""
        key = (needs_input_grad, has_cotangent, Same(backward_of(self.cls)))
        leaves = self.result.backward_leaves

        def run(tensors: Sequence[Any]) -> list[Any]:
            return self._backward(leaves, needs_input_grad, has_cotangent, tensors)

        return self._derive(
            ("backward", *key),
            run,
            seed=self._settings.seed(BACKWARD),
            requires_grad=[self._requires_grad(i, needs_input_grad) for i in leaves]
            + [False] * sum(has_cotangent),
            types=lambda _: [
                None if top is None or not need else self._types[top]
                for top, need in zip(self.tops, needs_input_grad, strict=True)
            ],
        )

    def _requires_grad(self, i: int, needs_input_grad: Mask) -> bool:
        """Return whether this saved tensor requires grad in torch."""
        if not self.result.inexact[i]:
            return False
        ref = self.result.shared.get(i, self.program.outputs[i])
        if ref is not None and ref < self.program.n_inputs:
            tops = zip(self.tops, needs_input_grad, strict=True)
            return any(top == ref and need for top, need in tops)
        if i in self.result.tracked:
            return True
        is_output = i in self.result.parts or not self.is_intermediate(i)
        whole = self.result.parts.get(i, i)
        return is_output and any(needs_input_grad) and whole not in self.result.marked

    def _ctx(
        self,
        rule: str,
        saved: list[Any],
        leaves: list[int],
        needs_input_grad: Mask,
        tensors: Sequence[Any],
    ) -> Ctx:
        at = dict(zip(leaves, tensors, strict=False))
        for i in at.keys() & set(self.result.numbers):
            at[i] = at[i].item()
        storages: dict[int, Any] = {}
        for i in sorted(at.keys() & self.result.views.keys()):
            view = self.result.views[i]
            at[i] = view.view(storages.setdefault(view.group, at[i]))
        values = [at.get(i) for i in range(len(self.program.outputs))]
        found = map(_with_value, unflatten(saved, values))
        ctx = Ctx(self.cls, lambda: needs_input_grad, rule, list(found))
        attributes = unflatten(self.result.attributes, values)
        ctx.__dict__.update({k: _with_value(x) for k, x in attributes.items()})
        ctx.materialize_grads = self.result.materialize
        if rule == "jvp":
            ctx.saved_for_forward = ctx.saved_tensors
        return ctx

    def _backward(
        self,
        leaves: list[int],
        needs_input_grad: Mask,
        has_cotangent: Mask,
        tensors: Sequence[Any],
    ) -> list[Any]:
        saved = self.result.saved
        ctx = self._ctx("backward", saved, leaves, needs_input_grad, tensors)
        cts = iter(tensors[len(leaves) :])
        grads = [next(cts) if g else None for g in has_cotangent]
        rule = without_once(backward_of(self.cls))
        if getattr(self.cls, "boxed_grads_call", False):
            result = rule(ctx, grads)
        else:
            result = rule(ctx, *grads)
        found = result if isinstance(result, tuple) else (result,)
        types = [None if top is None else self._types[top] for top in self.tops]
        return gradients(self.name, found, needs_input_grad, types)

    def jvp(self, has_tangent: Mask) -> GraphFunction:
        """Return the function from saved tensors and tangents to output tangents."""
        key = ("jvp", has_tangent, Same(self.cls.jvp))
        leaves = self.result.jvp_leaves

        def run(tensors: Sequence[Any]) -> list[Any]:
            saved = self.result.for_forward
            ctx = self._ctx("jvp", saved, leaves, has_tangent, tensors)
            tangents = iter(tensors[len(leaves) :])
            args = [next(tangents) if g else None for g in has_tangent]
            result = self.cls.jvp(ctx, *args)
            return self._tangents(result if isinstance(result, tuple) else (result,))

        return self._derive(key, run, seed=self._settings.seed(JVP))

    def _tangents(self, found: Sequence[Any]) -> list[Any]:
        """Return the tangents that jvp returned; as in torch, none may be missing."""
        result = self.result
        for i, (t, out) in enumerate(zip(found, result.is_output, strict=False)):
            is_float = out is not None and result.inexact[out]
            if t is None and is_float and out not in result.marked:
                raise jaxfn.RuleError(
                    f"`{self.name}.jvp` returned None as the tangent of output {i}. If "
                    "a `return` is missing, add it. If the tangent is zero, return "
                    "zeros: torch.zeros_like(output)."
                )
        return list(found)


def traced_forward(
    cls: Any, call: TorchCall, needs_input_grad: Mask | None, settings: Settings
) -> TracedForward:
    """Trace forward of a class; as on a GPU, if a rule names a kernel of Triton.

    Raises:
        TorchRefusal: It can't be traced.
    """
    if needs_input_grad is None and nests(cls):
        raise NeedsRead
    if place := type_test(cls):
        raise TorchRefusal(
            operation="type(x) is torch.Tensor",
            reason="while a rule is traced, its tensors are of a derived class.",
            way_out=f"Write isinstance(x, torch.Tensor). Or: {OR_HOST}",
            where=place,
        ).of(cls.__name__, "forward")
    if names_kernel(cls):
        return TracedForward(cls, call, needs_input_grad, settings, as_gpu=True)
    try:
        return TracedForward(cls, call, needs_input_grad, settings)
    except LaunchSeen:
        return TracedForward(cls, call, needs_input_grad, settings, as_gpu=True)
    except Exception:
        if not is_loaded():  # if it is, the rule may need a GPU for its kernels
            raise
        with contextlib.suppress(Exception):
            found = TracedForward(cls, call, needs_input_grad, settings, as_gpu=True)
            # Without a launch, `if x.is_cuda` must not take the branch for a GPU.
            if found.program.launches or found.whole_backward().launches:
                return found
        raise


def _with_value(x: Any) -> Any:
    """Return a number that was saved as a tensor so that conditions on it are known."""
    if not isinstance(x, torch.Tensor) or not experimental.is_made(x):
        return x
    return torch.tensor(x.tolist(), dtype=x.dtype)


# jaxfn knows arrays by identity. So a returned or saved input must be the same array,
# and one result in two places too.
def _as_they_were(
    traced: TracedForward, arrays: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    n, seen = traced.program.n_inputs, {}
    found: list[Any] = []
    marked = set(traced.result.marked)
    # A vmap rule may return another array for an output that is an input.
    free = 0 if traced.graph.batch is None else traced.result.n_outputs
    outputs = zip(traced.program.outputs, results, strict=True)
    for i, (ref, x) in enumerate(outputs):
        assert ref is not None  # all flat results are tensors
        is_input = ref < n and i >= free
        found.append(arrays[ref] if is_input else seen.setdefault(ref, x))
    unmarked = {id(x) for i, x in enumerate(found) if i not in marked}
    for i in marked:
        if id(found[i]) in unmarked:  # mark a copy: the other result has no mark
            found[i] = jnp.array(found[i], copy=True)
    return found
