"""A Function class into `Rules`: static methods and ctx, for one call.

Forward runs once, on inputs without derivative; then the Function's own derivative is
attached to its outputs (`_attach`). So a derivative of any order meets the rules and
never the body of forward, which may have no derivative at all (a host callback).

In the separate style `setup_context` then runs on the real inputs and the attached
outputs: whatever it saves has its true derivative. In the combined style forward has
filled ctx already, and what it saved is replaced: an input by the real one, an output
by the attached one. A saved intermediate is attached too, with the derivative of
forward's body, which is traced once more only if somebody differentiates it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfn import _compat, _returns, _tree
from jaxfn._apply import Arguments
from jaxfn._attach import attach, stop_gradient
from jaxfn._batching import with_batch_rule
from jaxfn._capture import Layout, capture, rebuild
from jaxfn._engines import push_forward
from jaxfn._errors import CLOSED_OVER, ClosedOverError, RuleValueError
from jaxfn._node import BackwardCFunction, call_backward
from jaxfn._rules import Arrays, Residuals, Rules
from jaxfn._tree import Outputs, OutSpec


class VmapInfo(NamedTuple):
    """What a vmap staticmethod is told.

    Attributes:
        batch_size: the size of the axis that is mapped over.
        randomness: always "error": JAX's random numbers have explicit keys.
    """

    batch_size: int
    randomness: str


@dataclasses.dataclass(frozen=True, slots=True)
class Definition:
    """The rules of a class as they are at one call."""

    cls: Any
    name: str
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    has_jvp: bool
    has_backward: bool
    once: bool
    derive_jvp: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The static part of the residuals of one run.

    Attributes:
        layout: of the context.
        perturbed: for each array argument, whether it is differentiated.
        in_avals, out_avals: types of the array arguments and outputs.
        out: structure of the outputs.
    """

    layout: Layout
    perturbed: tuple[bool, ...]
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out: OutSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """What forward of the combined style left in its context.

    Attributes:
        layout: of the context.
        sources: for each leaf where its value comes from: ("input", i), ("output", i)
            or ("other", i), counting within each kind.
        marked: indices of the outputs marked non-differentiable.
        perturbed: what ctx.needs_input_grad was made from.
        needs_read: did forward look at it?
    """

    layout: Layout
    sources: tuple[tuple[str, int], ...]
    marked: frozenset[int]
    perturbed: tuple[bool, ...]
    needs_read: bool

    def fits(self, perturbed: Sequence[bool]) -> bool:
        """Is this also what forward would save with these inputs perturbed?"""
        return not self.needs_read or tuple(perturbed) == self.perturbed


class ClassRules:
    """The rules of `definition` for a call with these arguments."""

    def __init__(self, definition: Definition, arguments: Arguments) -> None:
        self._def = definition
        self._arguments = arguments
        d = definition
        self.rules = Rules(
            name=d.name,
            primal=self._primal,
            fwd=self._fwd,
            bwd=self._bwd if d.has_backward or not d.has_jvp else None,
            jvp=self._jvp if d.has_jvp else None,
            derive_jvp=d.derive_jvp and d.has_backward and not d.has_jvp,
            once=d.once,
        )

    # ---- forward

    def _primal(self, *arrays: Any) -> Outputs:
        return self._fwd(arrays, (False,) * len(arrays))[0]

    def _fwd(
        self, arrays: Arrays, perturbed: Sequence[bool]
    ) -> tuple[Outputs, Residuals]:
        if self._def.setup_context is None:
            return self._combined(arrays, tuple(perturbed))
        return self._separate(arrays, tuple(perturbed))

    def _separate(
        self, arrays: Arrays, perturbed: tuple[bool, ...]
    ) -> tuple[Outputs, Residuals]:
        self._check_closure()
        raw = self._forward_batched(*stop_gradient(arrays))
        out: OutSpec = raw.static

        outs = attach(
            partial(self._separate_tangents, out),
            arrays,
            raw.arrays,
            name=self._def.name,
        )
        return Outputs(outs, out), self._setup(arrays, outs, out, perturbed)

    def _separate_tangents(
        self, out: OutSpec, inputs: Arrays, outs: Arrays, dots: Arrays
    ) -> Arrays:
        moving = tuple(d is not None for d in dots)
        residuals = self._setup(inputs, outs, out, moving)
        return push_forward(self.rules, residuals, outs, dots)

    def _setup(
        self, arrays: Arrays, outs: Arrays, out: OutSpec, perturbed: tuple[bool, ...]
    ) -> Residuals:
        assert self._def.setup_context is not None
        ctx = self.new_ctx(perturbed)
        inputs, output = self._arguments.join(arrays), out.whole.join(outs)
        self._def.setup_context(ctx, inputs, output)
        check_dirty(ctx, arrays)
        leaves, layout = self._capture(ctx)
        marked = marks(ctx, outs)
        return self._residuals(
            leaves, layout, arrays, outs, out, perturbed, marked, ctx.needs_read
        )

    def _combined(
        self, arrays: Arrays, perturbed: tuple[bool, ...]
    ) -> tuple[Outputs, Residuals]:
        raw, out, leaves, saved = self._run(stop_gradient(arrays), perturbed)
        if saved.layout.opaque and any(_compat.is_tracer(x) for x in arrays):
            # Run where its arrays are tracers: capture refuses those it can't reach,
            # and what is hidden then is constant.
            self._run(arrays, perturbed)
        n = len(raw)
        values = attach(
            partial(self._combined_tangents, saved, out),
            arrays,
            [*raw, *_others(leaves, saved)],
            name=self._def.name,
        )
        residuals = self._substitute(saved, out, arrays, values, perturbed)
        return Outputs(values[:n], out), residuals

    def _combined_tangents(
        self, saved: Saved, out: OutSpec, inputs: Arrays, values: Arrays, dots: Arrays
    ) -> Arrays:
        moving = tuple(d is not None for d in dots)
        n = out.whole.n_arrays
        if saved.fits(moving):
            residuals = self._substitute(saved, out, inputs, values, moving)
        else:
            _, residuals = self._combined(inputs, moving)
        return [
            *push_forward(self.rules, residuals, values[:n], dots),
            *self._other_tangents(saved, inputs, values[n:], dots),
        ]

    def _run(
        self, inputs: Arrays, perturbed: tuple[bool, ...]
    ) -> tuple[list[Any], OutSpec, list[Any], Saved]:
        """Forward of the combined style: raw outputs and what it saved."""
        self._check_closure()
        ctx = self.new_ctx(perturbed)
        args = self._arguments.join(inputs)
        result = self._def.forward(ctx, *args, **self._arguments.kwargs)
        found, out = OutSpec.split(result)
        check_dirty(ctx, inputs)
        leaves, layout = self._capture(ctx)
        marked = marks(ctx, found)
        raw = [jnp.asarray(x) for x in found]
        places = {id(x): ("output", i) for i, x in enumerate(found)}
        # Last, so that an input that is returned as it is and saved counts as the
        # input.
        places |= {id(x): ("input", i) for i, x in enumerate(inputs)}
        sources, n_other = [], 0
        for leaf in leaves:
            source = places.get(id(leaf))
            if source is None:
                source = ("other", n_other)
                n_other += 1
            sources.append(source)
        saved = Saved(layout, tuple(sources), marked, perturbed, ctx.needs_read)
        return raw, out, leaves, saved

    def _substitute(
        self,
        saved: Saved,
        out: OutSpec,
        arrays: Arrays,
        values: Arrays,
        perturbed: tuple[bool, ...],
    ) -> Residuals:
        """What was saved, with the real inputs and the attached values in place."""
        n = out.whole.n_arrays
        of_kind = {"input": arrays, "output": values[:n], "other": values[n:]}
        leaves = [of_kind[kind][i] for kind, i in saved.sources]
        return self._residuals(
            leaves,
            saved.layout,
            arrays,
            values[:n],
            out,
            perturbed,
            saved.marked,
            saved.needs_read,
        )

    def _other_tangents(
        self, saved: Saved, inputs: Arrays, others: Arrays, dots: Arrays
    ) -> list[Any]:
        """The true tangents of saved intermediates: those of forward's body."""
        smooth = [_tree.is_inexact(x) for x in others]
        moving = [i for i, d in enumerate(dots) if d is not None]
        if not any(smooth):
            return [None] * len(others)

        def body(*values: Any) -> list[Any]:
            at = list(inputs)
            for i, value in zip(moving, values, strict=True):
                at[i] = value
            _, _, leaves, again = self._run(at, saved.perturbed)
            found = _others(leaves, again)
            if [x.shape for x in found] != [x.shape for x in others]:
                raise RuleValueError(
                    f"`{self._def.name}.forward` saved other intermediate values when "
                    "it ran again for their second derivative: expected shapes "
                    f"{[x.shape for x in others]}, got {[x.shape for x in found]}. "
                    "Make forward save the same values for the same inputs."
                )
            return [x for x, s in zip(found, smooth, strict=True) if s]

        primals = tuple(inputs[i] for i in moving)
        _, found = jax.jvp(body, primals, tuple(dots[i] for i in moving))
        rest = iter(found)
        return [next(rest) if s else None for s in smooth]

    def _check_closure(self) -> None:
        """Refuse a forward that closes over a tracer whose derivative would be lost."""
        static = [x for spec in self._arguments.specs for x in spec.leaves]
        held = [getattr(self._def.forward, "__closure__", None), *static]
        if _tree.find(held, _compat.is_lost) is not None:
            raise ClosedOverError(CLOSED_OVER.format(name=self._def.name))

    def new_ctx(self, perturbed: Sequence[bool]) -> BackwardCFunction:
        ctx = self._def.cls._backward_cls()
        ctx.__dict__["_needs"] = self._needs(perturbed)
        return ctx

    def _needs(self, perturbed: Sequence[bool]) -> tuple[bool, ...]:
        return tuple(any(group) for group in self._arguments.groups(perturbed))

    def _capture(self, ctx: BackwardCFunction) -> tuple[list[Any], Layout]:
        rules = self.rules
        return capture(
            ctx, backward=rules.bwd is not None, forward=rules.jvp is not None
        )

    def _residuals(
        self,
        leaves: Arrays,
        layout: Layout,
        arrays: Arrays,
        outs: Arrays,
        out: OutSpec,
        perturbed: tuple[bool, ...],
        marked: frozenset[int],
        needs_read: bool,
    ) -> Residuals:
        out_avals = tuple(jax.typeof(x) for x in outs)
        record = Record(
            layout, perturbed, tuple(jax.typeof(x) for x in arrays), out_avals, out
        )
        smooth = tuple(
            _tree.is_inexact(aval) and i not in marked
            for i, aval in enumerate(out_avals)
        )
        return Residuals(leaves, record, smooth, needs_read)

    # ---- backward and jvp

    def _bwd(self, residuals: Residuals, cts: Arrays) -> Arrays:
        record: Record = residuals.static
        smooth = residuals.smooth
        if all(ct is None or not s for ct, s in zip(cts, smooth, strict=True)):
            return [None] * len(record.perturbed)  # nothing arrives: nothing leaves
        ctx = self._rebuild("backward", residuals)
        layout = record.layout
        given: list[Any] = []
        for ct, aval, s in zip(cts, record.out_avals, smooth, strict=True):
            if s and ct is not None:
                given.append(conj(ct))
            elif layout.materialize and (s or layout.materialize_non_diff):
                given.append(_zeros(aval))
            else:
                given.append(None)
        grads, start = [], 0
        for part in record.out.parts:
            stop = start + part.n_arrays
            grads.append(part.join_only(given[start:stop]))
            start = stop
        result = call_backward(self._def.cls, ctx, grads)
        found = _returns.gradients(
            result,
            self._arguments,
            record.in_avals,
            record.perturbed,
            name=self._def.name,
        )
        return [None if ct is None else conj(ct) for ct in found]

    def _jvp(self, residuals: Residuals, tangents: Arrays) -> Arrays:
        record: Record = residuals.static
        ctx = self._rebuild("jvp", residuals)
        given = [
            _zeros(aval)
            if t is None and record.layout.materialize and _tree.is_inexact(aval)
            else t
            for t, aval in zip(tangents, record.in_avals, strict=True)
        ]
        result = self._def.cls.jvp(ctx, *self._arguments.join_only(given))
        return _returns.tangents(
            result,
            record.out,
            record.out_avals,
            residuals.smooth,
            name=self._def.name,
        )

    def _rebuild(self, rule: str, residuals: Residuals) -> BackwardCFunction:
        record: Record = residuals.static
        return rebuild(
            self._def.cls._backward_cls,
            record.layout,
            residuals.arrays,
            rule=rule,
            needs=self._needs(record.perturbed),
        )

    # ---- vmap

    def _forward_batched(self, *inputs: Any) -> Outputs:
        """Forward of the separate style, batched by the vmap staticmethod."""
        out: list[OutSpec] = []

        def forward(*inputs: Any) -> Outputs:
            args = self._arguments.join(inputs)
            result = self._def.forward(*args, **self._arguments.kwargs)
            found, spec = OutSpec.split(result)
            out[:] = [spec]
            return Outputs([jnp.asarray(x) for x in found], spec)

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            return self._batch(size, batched, arrays, out[0])

        rule = None if self._def.vmap is None else batch
        return with_batch_rule(forward, rule)(*inputs)

    def _batch(
        self, size: int, batched: Sequence[bool], arrays: list[Any], out: OutSpec
    ) -> tuple[Outputs, Outputs]:
        d, arguments = self._def, self._arguments
        assert d.vmap is not None
        info = VmapInfo(batch_size=size, randomness="error")
        in_dims = arguments.join_only([0 if b else None for b in batched])
        result = d.vmap(info, in_dims, *arguments.join(arrays), **arguments.kwargs)
        return _returns.batched(result, size, out, name=d.name)


def _others(leaves: Arrays, saved: Saved) -> list[Any]:
    """The leaves that are neither inputs nor outputs."""
    return [
        leaf
        for leaf, (kind, _) in zip(leaves, saved.sources, strict=True)
        if kind == "other"
    ]


def marks(ctx: BackwardCFunction, outs: Arrays) -> frozenset[int]:
    """The indices of the outputs that were marked non-differentiable."""
    marked = {id(x) for x in ctx.non_differentiable}
    indices = frozenset(i for i, x in enumerate(outs) if id(x) in marked)
    if len({id(outs[i]) for i in indices}) != len(marked):
        raise RuleValueError(
            f"`{ctx._name()}` called ctx.mark_non_differentiable with a value that is "
            "not an output: expected the very arrays that forward returns, got another "
            "(JAX operations give new arrays). Mark what you return."
        )
    return indices


def check_dirty(ctx: BackwardCFunction, inputs: Arrays) -> None:
    """Only inputs may be marked dirty."""
    known = {id(x) for x in inputs}
    if any(id(x) not in known for x in ctx.dirty_tensors):
        raise RuleValueError(
            "ctx.mark_dirty() received a tensor that was not an input. Only input "
            "Tensors that have been mutated should be passed to ctx.mark_dirty(). "
            f"`{ctx._name()}`: expected arguments of forward, by identity; return the "
            "new value instead of marking it."
        )


def conj(x: Any) -> Any:
    """The complex conjugate; a real array as it is.

    torch's gradients of complex numbers are the conjugates of JAX's cotangents, so
    those of a backward rule are conjugated on the way in and out.
    """
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


def _zeros(aval: Any) -> Any:
    """Zeros of a type; None for a PRNG key, which has none."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return None
    return _compat.zeros(aval)
