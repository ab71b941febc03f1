"""Functions with JAX-style rules of both kinds, as `Rules`."""

from __future__ import annotations

from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import Outputs, as_jax, compat, is_inexact, pytree, short
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.on_arrays import rule_name
from jaxfn._decorator.places import CustomVJPPrimal, Places, along, is_pair, split
from jaxfn._engine import (
    Arrays,
    OnePass,
    Perturbed,
    Residuals,
    Rules,
    Run,
    attach,
    push_forward,
    stop_gradient,
    tied,
)


class Both:
    """One call of a function that has both kinds of derivative, as `Rules`."""

    def __init__(self, d: JaxRules, places: Places, tree: Any, arrays: Arrays) -> None:
        assert d.vjp is not None
        self._d = d
        self._fwd, self._bwd, options = d.vjp
        self._symbolic = options.get("symbolic_zeros", False)
        # The rules outlive the call, so they must not hold its arrays.
        self._places, self._args = places, tree.unflatten
        self._avals: list[Any] = [compat.tangent_aval(x) for x in arrays]
        self._rule = getattr(self._fwd, "__name__", "fwd")
        self._returned: Any = None
        once = OnePass(self._run, self._residuals, lambda: self.rules, rule=self._rule)
        self.rules = Rules(
            name=d.name,
            primal=self._primal,
            fwd=once.fwd,
            bwd=self._pull,
            jvp=self._push,
        )

    def _primal(self, *arrays: Any) -> Outputs:
        """Call the function itself, which saves nothing."""
        # If a scan drops the jvp of a custom_jvp, it goes on with this function and
        # differentiates it. So this function has the derivative of the rules.
        drops, name = compat.SCAN_DROPS_JVP, self._d.name
        still = stop_gradient(arrays) if drops else arrays
        recording = compat.Recording()
        outs = pytree.outputs(self._d.primal(*self._args(still)))
        self._returned = _structure(outs)
        smooth = list(map(is_inexact, outs.arrays))
        values = tied(outs.arrays, still, recording, smooth, name=name)
        if not drops:
            return Outputs(values, outs.static)

        def tangents(inputs: Arrays, values: Arrays, dots: Arrays) -> Arrays:
            perturbed = tuple([d is not None for d in dots])
            _, residuals = self.rules.fwd(inputs, perturbed)
            return push_forward(self.rules, residuals, values, dots)

        return Outputs(attach(tangents, arrays, values, name=name), outs.static)

    def _run(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        """Run fwd; return the outputs, the arrays of the residuals, and the rest."""
        given: Arrays = inputs
        if self._symbolic:
            given = [
                CustomVJPPrimal(x, p) for x, p in zip(inputs, perturbed, strict=True)
            ]
        result = self._fwd(*self._args(given))
        if not is_pair(result):
            raise TypeError(
                f"Custom VJP fwd rule {self._rule} for function {self._d.name} must "
                "produce a pair (list or tuple of length two): expected the outputs "
                f"and the residuals, got {result!r}."
            )
        outs = pytree.outputs(result[0])
        # Known in a trace alone. JAX asks there too, in words about a jvp of ours.
        if self._returned not in (None, _structure(outs)):
            raise TypeError(
                f"Custom VJP fwd rule {self._rule} for function {self._d.name} must "
                "produce a pair whose first element has the structure and types of "
                f"what the function returns: expected {_written(self._returned)}, got "
                f"{_written(_structure(outs))}."
            )
        leaves, spec = split(result[1])
        leaves = list(map(as_jax, leaves))
        return outs.arrays, leaves, Run(outs.static, perturbed, self._symbolic, spec)

    def _residuals(
        self, run: Run, leaves: Arrays, arrays: Arrays, outs: Arrays
    ) -> Residuals:
        avals = [compat.tangent_aval(x) for x in outs]
        smooth = tuple([is_inexact(x) for x in outs])
        # The arguments come first, for `_push`: a jvp rule in JAX's terms gets the
        # arguments, and no residuals.
        return Residuals([*arrays, *leaves], (run.out, run.saved, avals), smooth)

    def _push(self, residuals: Residuals, tangents: Arrays) -> Arrays:
        """Push tangents forward by JAX's custom_jvp, which checks what comes out."""
        primals = residuals.arrays[: len(tangents)]
        return along(
            self._d.forward, self._args, primals, tangents, residuals.differentiable
        )

    def _pull(self, residuals: Residuals, cts: Arrays) -> Arrays:
        """Call bwd with these cotangents, in the form that JAX gives them."""
        out, spec, avals = residuals.static
        given = [
            self._zero(a) if ct is None else ct
            for a, ct in zip(avals, cts, strict=True)
        ]
        res = spec.join(residuals.arrays[len(self._avals) :])
        found = self._bwd(res, out.whole.join(given))
        parts = self._places.cotangents(found, rule_name(self._bwd, self._d.name))
        return list(map(self._cotangent, chain.from_iterable(parts), self._avals))

    def _zero(self, aval: Any) -> Any:
        """Make the zero cotangent that bwd gets from jax.custom_vjp for this type."""
        if self._symbolic:
            return compat.SymbolicZero(aval)
        if aval.dtype == jax.dtypes.float0:
            # Only NumPy has arrays of float0.
            return np.zeros(aval.shape, jax.dtypes.float0)
        return compat.zeros(aval)

    def _cotangent(self, ct: Any, aval: Any) -> Any:
        """Check one cotangent, as strictly as JAX does: nothing is summed or cast.

        As in JAX, it must have the shape of the argument, but may have another dtype.
        """
        if ct is None or compat.is_zero(ct) or aval.dtype == jax.dtypes.float0:
            return None
        # A Python number gets the dtype of the argument. If the derivative was taken
        # under x64, and x64 is off now, JAX has only 32 bits.
        if not hasattr(ct, "dtype"):
            ct = jnp.asarray(ct, jax.dtypes.canonicalize_dtype(aval.dtype))
        ct = pytree.as_jax(ct)
        if ct.shape != aval.shape:
            raise ValueError(
                f"Custom VJP bwd rule {rule_name(self._bwd, self._d.name)} must "
                "produce cotangents of the shapes of the arguments: expected "
                f"{short(aval)}, got {short(ct)}."
            )
        return ct


def _structure(outs: Outputs) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return the pytree structure of outputs, and the shapes and dtypes of arrays."""
    return outs.static.whole.treedef, [(x.shape, x.dtype) for x in outs.arrays]


def _written(structure: tuple[Any, list[tuple[Any, Any]]]) -> str:
    tree, types = structure
    return f"{tree} of {', '.join(f'{dtype}{list(shape)}' for shape, dtype in types)}"
