"""A Function class as `Rules`, for one call: static methods and ctx, as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfn._base import (
    Arguments,
    Outputs,
    OutSpec,
    as_jax,
    compat,
    errors,
    pytree,
    search,
)
from jaxfn._engine import (
    Arrays,
    Batch,
    Fun,
    Origin,
    Perturbed,
    Residuals,
    Rules,
    differentiable,
    has_forward_mode,
    with_batch_rule,
)
from jaxfn._methods.capture import rebuild
from jaxfn._methods.definition import Definition
from jaxfn._methods.node import BackwardCFunction, call_backward
from jaxfn._methods.returned_batch import batch_outputs
from jaxfn._methods.returned_gradients import gradients
from jaxfn._methods.returned_tangents import tangents as out_tangents
from jaxfn._methods.running import running, several_outputs, without_ctx
from jaxfn._methods.styles import Record, Style


class VmapInfo(NamedTuple):
    """The first argument of a vmap staticmethod.

    Attributes:
        batch_size: Size of the mapped axis.
        randomness: Always "error": JAX's random numbers have explicit keys.
    """

    batch_size: int
    randomness: str


class ClassRules:
    """The rules of a class for one call; the attribute `rules` is their `Rules`."""

    def __init__(self, definition: Definition, arguments: Arguments) -> None:
        self._def = d = definition
        self._arguments = arguments
        # `rules` needs the style, and the style needs `rules`, but only when it runs.
        self._style = Style(definition, arguments, lambda: self.rules, self._forward)
        self.rules = Rules(
            name=d.name,
            primal=self._primal,
            fwd=self._fwd,
            # A Function without rules has a backward that raises. So the error comes
            # when the derivative is taken, not when forward is traced.
            bwd=self._bwd if d.has_backward or d.jvp is None else None,
            jvp=self._jvp if d.jvp is not None else None,
            derive_jvp=d.derive_jvp,
            once=d.once,
            refuses=not d.has_backward and d.jvp is None,
            origin=Origin(arguments.names(), places(d, arguments.known.place)),
        )

    # ---- forward

    def _primal(self, *arrays: Any) -> Outputs:
        """Compute the value."""
        nothing = (False,) * len(arrays)
        # In such a JAX, the reverse derivative of a scan keeps only the primal of a
        # custom_jvp. `fwd` gives that primal our derivative, not the body's.
        if compat.SCAN_DROPS_JVP and has_forward_mode(self.rules):
            return self._fwd(arrays, nothing)[0]
        return self._style.once.primal(arrays, nothing)

    def _fwd(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
        return self._style.once.fwd(arrays, perturbed)

    def _forward(self, inputs: Arrays) -> Outputs:
        """Run forward of the separate style, with the vmap rule."""
        forward, batch = self._batchable()
        return with_batch_rule(forward, batch, name=self._def.name)(*inputs)

    def batched(self, *inputs: Any) -> Outputs:
        """Run forward with the vmap rule, and let JAX differentiate it."""
        forward, batch = self._batchable()
        assert batch is not None
        return differentiable(forward, batch, name=self._def.name)(*inputs)

    def _batchable(self) -> tuple[Fun, Batch | None]:
        """Return forward of the separate style on flat arrays, and its batch rule."""
        # JAX traces forward before it calls the rule, whose result must match. Types
        # and structure only: the list outlives the trace.
        seen: list[Any] = []

        def forward(*inputs: Any) -> Outputs:
            args = self._arguments.join(inputs)
            rule, name = self._def.forward, self._def.name
            with running(name, "forward", rule, args, without_ctx):
                result = rule(*args, **self._arguments.kwargs)
                found, out = self._arguments.split_output(result, name=name)
            arrays = [as_jax(x) for x in found]
            seen[:] = out, [jax.typeof(x) for x in arrays]
            return Outputs(arrays, out)

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            return self._batch(size, batched, arrays, *seen)

        return forward, None if self._def.vmap is None else batch

    def _batch(
        self,
        size: int,
        batched: Sequence[bool],
        arrays: list[Any],
        out: OutSpec,
        avals: Sequence[Any],
    ) -> tuple[Outputs, Outputs]:
        """Call the vmap staticmethod, and check its result."""
        d, arguments = self._def, self._arguments
        assert d.vmap is not None
        info = VmapInfo(batch_size=size, randomness="error")
        in_dims = arguments.join_only([0 if b else None for b in batched])
        args = arguments.join(arrays)
        with running(d.name, "vmap", d.vmap, (info, in_dims, *args)):
            result = d.vmap(info, in_dims, *args, **arguments.kwargs)
            return batch_outputs(result, size, out, avals, name=d.name)

    # ---- backward and jvp

    def _bwd(self, residuals: Residuals, cts: Arrays) -> Arrays:
        """Call the user's backward (or vjp) with the cotangents of the outputs."""
        record: Record = residuals.static
        differentiable = residuals.differentiable
        arrived = [
            s and ct is not None for ct, s in zip(cts, differentiable, strict=True)
        ]
        # JAX calls bwd even if no differentiable output has a cotangent. A backward is
        # linear in its cotangents, so the result is zero.
        if True not in arrived:
            return [None] * len(record.perturbed)
        layout = record.layout
        given: list[Any] = []
        for i, ct in enumerate(cts):
            if arrived[i]:
                given.append(conj(ct))  # to torch's convention
            elif layout.materialize and (
                differentiable[i] or layout.materialize_non_diff
            ):
                given.append(_zeros(record.out_avals[i]))
            else:
                given.append(None)
        ctx = self._rebuild("backward", residuals)
        grads, start = [], 0
        for part in record.out.parts:
            stop = start + part.n_arrays
            grads.append(part.join_only(given[start:stop]))
            start = stop
        # `_backward_rule` raises unless exactly one of backward and vjp is defined.
        rule = self._def.backward or self._def.cls._backward_rule()
        self._check_closure(rule, "backward")
        passed = (ctx, grads) if self._def.boxed else (ctx, *grads)
        hint = partial(several_outputs, record.out)
        with running(self._def.name, "backward", rule, passed, hint):
            result = call_backward(rule, self._def.boxed, ctx, grads)
            found = gradients(
                result,
                self._arguments,
                record.in_avals,
                record.perturbed,
                [ct for ct, is_there in zip(cts, arrived, strict=True) if is_there],
                name=self._def.name,
            )
        return [None if ct is None else conj(ct) for ct in found]

    def _jvp(self, residuals: Residuals, tangents: Arrays) -> Arrays:
        """Call the user's jvp with the tangents of the arguments."""
        record: Record = residuals.static
        ctx = self._rebuild("jvp", residuals)
        # An integer has no tangent: users see None, not JAX's float0. Torch and JAX
        # agree on complex tangents, so nothing is conjugated.
        given = [
            _zeros(aval)
            if t is None and record.layout.materialize and pytree.is_inexact(aval)
            else t
            for t, aval in zip(tangents, record.in_avals, strict=True)
        ]
        rule = self._def.jvp
        assert rule is not None
        self._check_closure(rule, "jvp")
        args = self._arguments.join_only(given)
        with running(self._def.name, "jvp", rule, (ctx, *args)):
            result = rule(ctx, *args)
            return out_tangents(
                result,
                record.out,
                record.out_avals,
                residuals.differentiable,
                name=self._def.name,
            )

    def _check_closure(self, rule: Any, which: str) -> None:
        """Refuse a rule that closes over a tracer of a finished transformation."""
        cells = getattr(rule, "__closure__", None) or ()
        if any(compat.is_leaked(search.in_cell(cell)) for cell in cells):
            raise errors.ClosedOverError(
                errors.LEAKED.format(name=self._def.name, rule=which)
            )

    def _rebuild(self, rule: str, residuals: Residuals) -> BackwardCFunction:
        record: Record = residuals.static
        return rebuild(
            self._def.cls._backward_cls,
            record.layout,
            residuals.arrays,
            rule=rule,
            needs=self._arguments.any(record.perturbed),
        )


def places(d: Definition, forward: str) -> dict[str, str]:
    """Return file and line of each rule."""
    found = {"forward": forward}
    for name, rule in (("backward", d.backward), ("jvp", d.jvp)):
        if rule is not None:
            found[name] = compat.place_of(rule)
    return found


def conj(x: Any) -> Any:
    """Return the complex conjugate; a real array as it is.

    For a real loss L of z = x + iy, JAX's cotangent is dL/dx - i dL/dy and torch's
    gradient is dL/dx + i dL/dy, its conjugate. Therefore jaxfn conjugates both the
    gradients that backward gets and those that it returns.
    """
    return jnp.conj(x) if getattr(x.dtype, "kind", None) == "c" else x


def _zeros(aval: Any) -> Any:
    """Make a zero tangent of a type; None for a PRNG key."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        if not pytree.is_inexact(aval):
            return None
        aval = compat.tangent_aval(aval)
    return compat.zeros(aval)
