"""What one trace of forward found out: where outputs and saved tensors are."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._base import (
    BACKWARD,
    FORWARD,
    JVP,
    VMAP,
    Ctx,
    Same,
    TorchRefusal,
    backward_of,
    fingerprint,
    has_vmap,
    is_separate,
    names_kernel,
    settings_of,
    torch,
    unflatten,
)
from jaxfn.torch._function.batching import Batch, Dims
from jaxfn.torch._function.call import Settings, TorchCall
from jaxfn.torch._function.derivatives import ArgumentSpec, gradients
from jaxfn.torch._function.forward_result import ForwardResult, record
from jaxfn.torch._function.graph_function import GraphFunction
from jaxfn.torch._trace import BranchTree, LaunchSeen, NeedsRead, TensorFunction
from jaxfn.torch._triton import is_loaded, storages_now

Needs = tuple[bool, ...]


class TracedForward:
    """Forward of a class for one kind of call, traced, and its derivatives.

    Args:
        cls: the torch class.
        call: whose types and statics these are.
        needs: for each argument, whether it is differentiated; None if not known.
        settings: of `from_torch`.
        as_gpu: Whether its rules are traced as on a GPU, for the kernels they launch.
    """

    def __init__(
        self,
        cls: Any,
        call: TorchCall,
        needs: Needs | None,
        settings: Settings,
        *,
        as_gpu: bool = False,
    ) -> None:
        self.cls, self.needs, self._settings = cls, needs, settings
        self.as_gpu = as_gpu
        self._args, self.tops = call.args, call.tops
        self._types = [(tuple(x.shape), x.dtype) for x in call.arrays]
        self._wanted = [
            ArgumentSpec(
                isinstance(x, torch.Tensor), None if i is None else self._types[i]
            )
            for x, i in zip(call.args, call.tops, strict=True)
        ]
        self._keep = call.keep()
        self.name = cls.__name__
        self._last: ForwardResult | None = None
        self._asked = False
        shown = [False] * len(call.arrays)
        for i, top in enumerate(call.tops):
            if top is not None and needs is not None:
                shown[top] = needs[i]
        self.graph = GraphFunction(
            self._forward,
            name=self.name,
            rule="forward",
            seed=settings.seed(FORWARD),
            shown=shown,
            keep=self._keep,
            known=needs is not None,
            note=lambda: self._last,
            batch=self._batched if has_vmap(cls) else None,
            state=self._state,
            as_gpu=as_gpu,
        )
        self.program = self.graph.program(call.arrays)
        self.record: ForwardResult = self.program.note
        self._derived: dict[Any, GraphFunction] = {}
        self._draws_back: bool | None = None
        # In a class, where jaxfn looks for no arrays.
        self.kept = type("TracedForward", (), {"kind": self})

    # ---- forward

    def forward(self, ctx: Any, arrays: Sequence[Any], key: Any) -> Any:
        """What forward returns; what it saves goes into jaxfn's ctx."""
        if self.has_intermediates() or self.graph.batch is not None:
            results = self.graph.apply(key, *arrays)
        else:
            results = self.graph(arrays, key)
        if key is not None and not self.draws():
            raise ValueError(
                f"`{self.name}` was made with random=True and draws no random "
                "numbers: expected a class that does. Leave random=True out, and the "
                "key with it."
            )
        results = _as_they_were(self, arrays, results)
        self.record.save(ctx, results)
        return unflatten(self.record.output, results[: self.record.n_outputs])

    def _state(self) -> Any:
        """A key of what rules read beside arrays: they may be traced much later."""
        return fingerprint(self._args), settings_of(self.cls)

    def _known_needs(self) -> Needs:
        if self.needs is None:
            self._asked = True
            raise NeedsRead
        return self.needs

    def _forward(self, tensors: Sequence[Any]) -> list[Any]:
        args = unflatten(self._args, tensors)
        ctx = Ctx(self.cls, self._known_needs, "forward")
        if is_separate(self.cls):
            result = self.cls.forward(*args)
            self.cls.setup_context(ctx, tuple(args), result)
        else:
            result = self.cls.forward(ctx, *args)
        if self._asked:  # and caught the answer
            raise NeedsRead
        storages = storages_now() if self.as_gpu else None
        found, self._last = record(ctx, result, storages)
        return found

    def _setup(self, tensors: Sequence[Any]) -> list[Any]:
        """What setup_context alone saves, for inputs and outputs."""
        n = len(self._types)
        args = unflatten(self._args, tensors[:n])
        output = unflatten(self.record.output, tensors[n:])
        ctx = Ctx(self.cls, self._known_needs, "forward")
        self.cls.setup_context(ctx, tuple(args), output)
        storages = storages_now() if self.as_gpu else None
        return record(ctx, output, storages)[0][self.record.n_outputs :]

    def _batched(
        self, size: int, key_dim: Any, dims: Dims, key: Any, arrays: Sequence[Any]
    ) -> list[Any]:
        """The flat results for a batch: outputs by the vmap rule of the class."""
        if self.record.views:
            raise TorchRefusal(
                operation="a vmap rule beside kernels",
                reason="setup_context saves a tensor that is a part of its memory, or "
                "two in one memory, and the vmap rule gives outputs in other memory.",
                way_out="Save x.contiguous(), or leave the vmap rule out.",
            ).of(self.name, "vmap")
        types = [(t.shape, t.dtype) for t in self.program.types]
        batch = Batch(self.cls, self._args, self.record.output, types)
        batch.check(key_dim)
        shapes = [((size, *shape), dtype) for shape, dtype in types]
        outs = self._derive(
            ("vmap", size, dims, Same(self.cls.vmap)),
            batch.run(size, dims),
            seed=self._settings.seed(VMAP),
            types=lambda _: shapes[: self.record.n_outputs],
        ).apply(key, *arrays)
        if len(types) == len(outs):
            return outs
        setup = self._derive(("setup_context",), self._setup).apply
        axes = (*dims, *[0] * len(outs))
        saved = jax.vmap(lambda *xs: setup(None, *xs), axes, axis_size=size)
        return [*outs, *saved(*arrays, *outs)]

    def _derive(
        self, key: tuple[Any, ...], run: TensorFunction, **options: Any
    ) -> GraphFunction:
        """Return the function of a rule, made once; the key begins with its name."""
        if key not in self._derived:
            self._derived[key] = GraphFunction(
                run,
                name=self.name,
                rule=key[0],
                keep=self._keep,
                host=self._settings.host,
                state=self._state,
                as_gpu=self.as_gpu,
                **options,
            )
        return self._derived[key]

    def is_intermediate(self, i: int) -> bool:
        """Is this flat result saved, and neither an input nor an output?"""
        ref = self.program.outputs[i]
        outs = self.program.outputs[: self.record.n_outputs]
        return ref is not None and ref >= self.program.n_inputs and ref not in outs

    def has_intermediates(self) -> bool:
        """Is something saved whose derivative is neither an input's nor an output's?"""
        n = self.record.n_outputs
        return any(
            self.record.inexact[i] and self.is_intermediate(i)
            for i in range(n, len(self.program.outputs))
        )

    def draws(self) -> bool:
        """Does a rule draw random numbers?"""
        if any(path.draws for path in self.program.paths):
            return True
        if self._draws_back is None:
            self._draws_back = self._draws_in_backward()
        return self._draws_back

    def _draws_in_backward(self) -> bool:
        try:
            tree = self.whole_backward(tuple(top is not None for top in self.tops))
        except TorchRefusal:
            return True  # it says what is wrong when it runs
        return any(path.draws for path in tree.paths)

    def whole_backward(self, needs: Needs) -> BranchTree:
        """The graph of backward, with a gradient for each output."""
        given = tuple(i is not None for i in self.record.is_output)
        types = self.program.types
        outs = [i for i in self.record.is_output if i is not None]
        wanted = [types[i] for i in (*self.record.backward_leaves, *outs)]
        return self.backward(needs, given).program(wanted)

    # ---- backward and jvp

    def gradients(
        self, ctx: Any, key: Any, needs: Needs, cts: Sequence[Any]
    ) -> list[Any]:
        """A gradient, or None, for each argument."""
        result = self.record
        cts = [
            ct if i is not None else None
            for ct, i in zip(cts, result.is_output, strict=True)
        ]
        given = tuple(ct is not None for ct in cts)
        leaves = result.restored(ctx, result.saved, result.backward_leaves)
        found = self.backward(needs, given).apply
        return found(key, *leaves, *[ct for ct in cts if ct is not None])

    def tangents(self, ctx: Any, key: Any, dots: Sequence[Any]) -> list[Any]:
        """A tangent, or None, for each output."""
        result = self.record
        leaves = result.restored(ctx, result.for_forward, result.jvp_leaves)
        found = self.jvp(tuple(t is not None for t in dots)).apply
        return found(key, *leaves, *[t for t in dots if t is not None])

    def backward(self, needs: Needs, given: tuple[bool, ...]) -> GraphFunction:
        """From what was saved and the given gradients to those of the arguments."""
        key = (needs, given, Same(backward_of(self.cls)))
        leaves = self.record.backward_leaves

        def run(tensors: Sequence[Any]) -> list[Any]:
            return self._backward(leaves, needs, given, tensors)

        return self._derive(
            ("backward", *key),
            run,
            seed=self._settings.seed(BACKWARD),
            shown=[self._is_shown(i, needs) for i in leaves] + [False] * sum(given),
            types=lambda _: [
                None if top is None or not need else self._types[top]
                for top, need in zip(self.tops, needs, strict=True)
            ],
        )

    def _is_shown(self, i: int, needs: Needs) -> bool:
        """Would torch show that this saved tensor requires grad?"""
        if not self.record.inexact[i]:
            return False
        ref = self.program.outputs[i]
        if ref is not None and ref < self.program.n_inputs:
            tops = zip(self.tops, needs, strict=True)
            return any(top == ref and need for top, need in tops)
        is_output = not self.is_intermediate(i)
        return is_output and any(needs) and i not in self.record.marked

    def _ctx(
        self,
        rule: str,
        saved: list[Any],
        leaves: list[int],
        needs: Needs,
        tensors: Sequence[Any],
    ) -> Ctx:
        at = dict(zip(leaves, tensors, strict=False))
        for i in at.keys() & set(self.record.numbers):
            at[i] = at[i].item()
        storages: dict[int, Any] = {}
        for i in sorted(at.keys() & self.record.views.keys()):
            view = self.record.views[i]
            at[i] = view.view(storages.setdefault(view.group, at[i]))
        values = [at.get(i) for i in range(len(self.program.outputs))]
        ctx = Ctx(self.cls, lambda: needs, rule, unflatten(saved, values))
        ctx.__dict__.update(unflatten(self.record.attributes, values))
        ctx.materialize_grads = self.record.materialize
        return ctx

    def _backward(
        self,
        leaves: list[int],
        needs: Needs,
        given: tuple[bool, ...],
        tensors: Sequence[Any],
    ) -> list[Any]:
        ctx = self._ctx("backward", self.record.saved, leaves, needs, tensors)
        cts = iter(tensors[len(leaves) :])
        grads = [next(cts) if g else None for g in given]
        rule = backward_of(self.cls)
        if getattr(self.cls, "boxed_grads_call", False):
            result = rule(ctx, grads)
        else:
            result = rule(ctx, *grads)
        found = result if isinstance(result, tuple) else (result,)
        return gradients(self.name, found, needs, self._wanted)

    def jvp(self, given: tuple[bool, ...]) -> GraphFunction:
        """From what was saved and the given tangents to those of the outputs."""
        key = ("jvp", given, Same(self.cls.jvp))
        leaves = self.record.jvp_leaves

        def run(tensors: Sequence[Any]) -> list[Any]:
            ctx = self._ctx("jvp", self.record.for_forward, leaves, given, tensors)
            dots = iter(tensors[len(leaves) :])
            args = [next(dots) if g else None for g in given]
            result = self.cls.jvp(ctx, *args)
            return list(result) if isinstance(result, tuple) else [result]

        return self._derive(key, run, seed=self._settings.seed(JVP))


def traced_forward(
    cls: Any, call: TorchCall, needs: Needs | None, settings: Settings
) -> TracedForward:
    """Forward of a class, traced; as on a GPU, if a rule names a kernel of Triton.

    Raises:
        TorchRefusal: It can't be traced.
    """
    if names_kernel(cls):
        return TracedForward(cls, call, needs, settings, as_gpu=True)
    try:
        return TracedForward(cls, call, needs, settings)
    except LaunchSeen:
        return TracedForward(cls, call, needs, settings, as_gpu=True)
    except Exception:
        if not is_loaded():  # or it may want to be on a GPU, to launch a kernel there
            raise
        with contextlib.suppress(Exception):
            return TracedForward(cls, call, needs, settings, as_gpu=True)
        raise


# An input that is returned or saved as it is must be the very array, and one result in
# two places the same one: by that jaxfn knows them.
def _as_they_were(
    traced: TracedForward, arrays: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    n, seen = traced.program.n_inputs, {}
    found: list[Any] = []
    marked = set(traced.record.marked)
    # A vmap rule may give something else for an input than the input.
    free = 0 if traced.graph.batch is None else traced.record.n_outputs
    outputs = zip(traced.program.outputs, results, strict=True)
    for i, (ref, x) in enumerate(outputs):
        assert ref is not None  # what is returned or saved is a tensor
        is_input = ref < n and i >= free
        found.append(arrays[ref] if is_input else seen.setdefault(ref, x))
    unmarked = {id(x) for i, x in enumerate(found) if i not in marked}
    for i in marked:
        if id(found[i]) in unmarked:  # a mark must not reach what it was copied from
            found[i] = jnp.array(found[i], copy=True)
    return found
