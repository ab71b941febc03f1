"""A Function class as `Rules`, for one call: static methods and ctx, as in torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Arguments, Outputs, compat, errors, pytree, search
from jaxfn._engine import (
    Arrays,
    Origin,
    Perturbed,
    Residuals,
    Rules,
    call,
    differentiable,
)
from jaxfn._methods.capture import Record, rebuild
from jaxfn._methods.node import call_backward
from jaxfn._methods.returned_gradients import gradients
from jaxfn._methods.returned_outputs import tangents as out_tangents
from jaxfn._methods.rule_errors import explain
from jaxfn._methods.styles import Definition, Style


def run_traced(cls: Any, base: type, arguments: Arguments, arrays: Arrays) -> Any:
    """Run a Function under JAX's transformations; see `Definition` for `base`."""
    return call(ClassRules(Definition(cls, base), arguments).rules, arrays)


def run_batched(cls: Any, base: type, arguments: Arguments, arrays: Arrays) -> Any:
    """Run forward of the separate style with its vmap rule; JAX differentiates it."""
    definition = Definition(cls, base)
    forward, batch = ClassRules(definition, arguments).style.batchable()
    assert batch is not None
    outs = differentiable(forward, batch, name=definition.name)(*arrays)
    return outs.static.whole.join(outs.arrays)


class ClassRules:
    """The rules of a class for one call; the attribute `rules` is their `Rules`."""

    def __init__(self, definition: Definition, arguments: Arguments) -> None:
        self._def = d = definition
        self._arguments = arguments
        # `rules` needs the style, and the style needs `rules`, but only when it runs.
        self.style = Style(definition, arguments, lambda: self.rules)
        places = {"forward": arguments.known.place}
        for name, rule in (("backward", d.backward), ("jvp", d.jvp)):
            if rule is not None:
                places[name] = compat.place_of(rule)
        self.rules = Rules(
            name=d.name,
            primal=self._primal,
            fwd=self._fwd,
            # A Function without rules has a backward that raises: when the derivative
            # is taken, not when forward is traced.
            bwd=self._bwd if d.has_backward or d.jvp is None else None,
            jvp=self._jvp if d.jvp is not None else None,
            derive_jvp=d.derive_jvp,
            once=d.once,
            origin=Origin(arguments.names(), places),
        )

    def _primal(self, arrays: Arrays) -> Outputs:
        """Compute the value."""
        nothing = (False,) * len(arrays)
        # Where the reverse derivative of a scan keeps only the primal of a custom_jvp,
        # `fwd` gives the primal the rules' derivative, not the body's.
        if compat.SCAN_DROPS_JVP and (self._def.jvp or self._def.derive_jvp):
            return self._fwd(arrays, nothing)[0]
        return self.style.one_pass().primal(arrays, nothing)

    def _fwd(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
        return self.style.one_pass().fwd(arrays, perturbed)

    def _bwd(self, residuals: Residuals, cts: Arrays) -> Arrays:
        """Call the user's backward (or vjp); return a cotangent of each argument.

        There is one in `cts` for each output. None is zero, in both. See `conj`.
        """
        record: Record = residuals.static
        layout, differentiable = record.layout, residuals.differentiable
        pairs = zip(cts, differentiable, strict=True)
        arrived = [ct for ct, s in pairs if s and ct is not None]
        # JAX calls bwd even if no differentiable output has a cotangent. A backward is
        # linear in its cotangents, so the result is zero.
        if not arrived:
            return [None] * len(record.perturbed)
        filled: list[Any] = []
        dtypes = record.out.grad_dtypes or (None,) * len(cts)
        outs = zip(cts, differentiable, record.out_avals, dtypes, strict=True)
        for ct, s, aval, dtype in outs:
            if s and ct is not None:  # to torch's convention, and the chosen dtype
                filled.append(conj(ct if dtype is None else ct.astype(dtype)))
            elif layout.materialize and (s or layout.materialize_non_diff):
                filled.append(_zeros(aval))
            else:
                filled.append(None)
        cls, arguments = self._def.cls, self._arguments
        ctx = rebuild(cls._backward_cls, "backward", residuals, arguments)
        rest = iter(filled)
        grads = [
            part.join_only([next(rest) for _ in range(part.n_arrays)])
            for part in record.out.parts
        ]
        # `_backward_rule` raises unless exactly one of backward and vjp is defined.
        rule = self._def.backward or cls._backward_rule()
        self._check_closure(rule, "backward")
        try:
            result = call_backward(rule, self._def.boxed, ctx, grads)
            found = gradients(
                result,
                arguments,
                record.in_avals,
                record.perturbed,
                arrived,
                name=self._def.name,
            )
        except Exception as error:
            passed = (ctx, grads) if self._def.boxed else (ctx, *grads)
            explain(error, self._def.name, "backward", rule, passed, record.out)
            raise
        return [None if ct is None else conj(ct) for ct in found]

    def _jvp(self, residuals: Residuals, tangents: Arrays) -> Arrays:
        """Call the user's jvp; return a tangent of each differentiable output."""
        record: Record = residuals.static
        ctx = rebuild(self._def.cls._backward_cls, "jvp", residuals, self._arguments)
        # An integer has no tangent: users see None, not JAX's float0. Torch and JAX
        # agree on complex tangents, so nothing is conjugated.
        filled = [
            _zeros(aval)
            if t is None and record.layout.materialize and pytree.is_inexact(aval)
            else t
            for t, aval in zip(tangents, record.in_avals, strict=True)
        ]
        rule: Any = self._def.jvp
        self._check_closure(rule, "jvp")
        args = (ctx, *self._arguments.join_only(filled))
        try:
            return out_tangents(
                rule(*args),
                record.out,
                record.out_avals,
                residuals.differentiable,
                name=self._def.name,
            )
        except Exception as error:
            explain(error, self._def.name, "jvp", rule, args)
            raise

    def _check_closure(self, rule: Any, which: str) -> None:
        """Refuse a rule that closes over a tracer of a finished transformation."""
        held = getattr(rule, "__closure__", None) or getattr(rule, "__defaults__", None)
        if held and search.find(rule, compat.is_leaked) is not None:
            message = errors.LEAKED.format(name=self._def.name, rule=which)
            raise errors.ClosedOverError(message)


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
