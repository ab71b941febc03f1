"""A call with JAX-style rules. Static arguments need no declaration.

JAX's own decorator handles a function with a derivative rule of one kind. If there are
both kinds, `Both` makes `Rules` for the engine, and checks them as strictly as JAX.
"""

from __future__ import annotations

import functools
import inspect
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._base import Outputs, as_jax, compat, errors, is_inexact, pytree, short
from jaxfn._decorator import jax_own
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import (
    CustomVJPPrimal,
    Places,
    is_pair,
    is_static,
    rule_name,
    split,
)
from jaxfn._engine import (
    Arrays,
    OnePass,
    Perturbed,
    Residuals,
    Rules,
    Run,
    add_hint,
    attach,
    jvp_along,
    push_forward,
    tied,
    without_derivative,
)
from jaxfn._engine import call as call_engine


def positional(
    d: JaxRules, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Bind all arguments to positions, defaults included, as JAX's rules get them."""
    if isinstance(d.fun, functools.partial) and not kwargs:
        return args  # As in JAX, the values in the partial are no arguments.
    try:
        bound = inspect.signature(d.fun).bind(*args, **kwargs)
        if bound.kwargs:
            raise TypeError(
                "The following keyword arguments could not be resolved to positions: "
                f"{', '.join(bound.kwargs)}. JAX-style rules get arguments by "
                "position: make these parameters positional, or use torch-style rules."
            )
    except ValueError:  # a builtin, which may have no signature
        if not kwargs:
            return args
        raise
    except TypeError as error:
        decorator = jax_own.decorator_of(d.kinds[0]).__name__
        raise TypeError(
            f"The input arguments to the {decorator}-decorated function {d.name} could "
            f"not be resolved to positions:\n{error}"
        ) from error
    bound.apply_defaults()
    return bound.args


def call(d: JaxRules, args: tuple[Any, ...]) -> Any:
    """Call the function that has these rules, on positional arguments."""
    places, lists = Places.of(d.nondiff, args)
    if places.has_static and d.foreign:
        raise _undeclared(d, args)
    is_split = d.is_split(places)
    if is_split:
        d, args = d.on_arrays(places), tuple(lists)
    if d.has_both:
        arrays, tree = tree_util.tree_flatten(args)
        both = Both(d, places, tree, arrays, is_split=is_split)
        return call_engine(both.rules, arrays)
    if d.has_reverse:
        try:
            return d.reverse(*args)
        except TypeError as error:
            add_hint(error, errors.NO_DEFJVP_NOTE.format(name=d.name))
            raise
    return d.forward(*args) if d.has_forward else d.primal(*args)


def _undeclared(d: JaxRules, args: tuple[Any, ...]) -> errors.RuleTypeError:
    # Here JAX's decorator calls the user's rules itself, so jaxfn can't pass them
    # static values.
    position, value = next(
        (i, x)
        for i, arg in enumerate(args)
        if i not in d.nondiff
        for x in tree_util.tree_leaves(arg)
        if is_static(x)
    )
    return errors.RuleTypeError(
        f"`{d.name}` got {value!r} for argument {position}: expected arrays and "
        f"numbers, since {d.foreign[0].method} is a method of JAX alone, whose rules "
        f"get nothing else undeclared. Declare it by nondiff_argnums=({position},)."
    )


class Both:
    """One call of a function that has both kinds of derivative, as `Rules`.

    Args:
        d: The rules, whose fwd and bwd get whole arguments.
        places: The arguments. (The rules outlive the call, and must not hold arrays.)
        tree: Structure of the arguments of `d.primal` and `d.forward`.
        arrays: Their arrays.
        is_split: Whether these arguments are lists of arrays.
    """

    def __init__(
        self, d: JaxRules, places: Places, tree: Any, arrays: Arrays, *, is_split: bool
    ) -> None:
        assert d.vjp is not None
        self._d, self._places = d, places
        self._args, self._is_split = tree.unflatten, is_split
        self._fwd, self._bwd = d.vjp.args
        self._symbolic = d.vjp.options["symbolic_zeros"]
        self._avals: list[Any] = [compat.tangent_aval(x) for x in arrays]
        self._fwd_name = getattr(self._fwd, "__name__", "fwd")
        self._bwd_name = rule_name(self._bwd, d.name)
        self._returned: Any = None
        rules, name = lambda: self.rules, self._fwd_name
        fwd = OnePass(self._run, self._residuals, rules, rule=name).fwd
        self.rules = Rules(
            name=d.name,
            primal=self._primal,
            fwd=fwd,
            bwd=self._pull,
            jvp=None if d.jvp is None else self._push,
            derive_jvp=d.derive_jvp,
        )

    def _primal(self, arrays: Arrays) -> Outputs:
        """Call the function itself, which saves nothing."""
        # If a scan drops the jvp of a custom_jvp, it differentiates this function
        # instead. So this function has the derivative of the rules.
        drops, name = compat.SCAN_DROPS_JVP, self._d.name
        inputs = without_derivative(arrays) if drops else arrays
        recording = compat.Recording()
        outs = pytree.outputs(self._d.primal(*self._args(inputs)))
        self._returned = _structure(outs)
        inexact = list(map(is_inexact, outs.arrays))
        values = tied(outs.arrays, inputs, recording, inexact, name=name)
        if not drops:
            return Outputs(values, outs.static)

        def rule(inputs: Arrays, values: Arrays, tangents: Arrays) -> Arrays:
            perturbed = tuple([t is not None for t in tangents])
            _, residuals = self.rules.fwd(inputs, perturbed)
            return push_forward(self.rules, residuals, values, tangents)

        return Outputs(attach(rule, arrays, values, name=name), outs.static)

    def _run(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        """Run fwd; return the outputs, the arrays of the residuals, and the rest."""
        if self._symbolic:
            inputs = list(map(CustomVJPPrimal, inputs, perturbed))
        args = self._args(inputs)
        result = self._fwd(*(self._places.whole(args) if self._is_split else args))
        said = f"Custom VJP fwd rule {self._fwd_name} for function {self._d.name} must "
        if not is_pair(result):
            raise TypeError(
                f"{said}produce a pair (list or tuple of length two): expected the "
                f"outputs and the residuals, got {result!r}."
            )
        outs = pytree.outputs(result[0])
        # The function has run only if it was traced. JAX compares the two only then
        # too, but its message would name a jvp that the user never wrote.
        if self._returned not in (None, _structure(outs)):
            raise TypeError(
                f"{said}produce a pair whose first element has the structure and types "
                f"of the function's result: expected {_written(self._returned)}, got "
                f"{_written(_structure(outs))}."
            )
        leaves, spec = split(result[1])
        leaves = list(map(as_jax, leaves))
        return outs.arrays, leaves, Run(outs.static, perturbed, self._symbolic, spec)

    def _residuals(
        self, run: Run, leaves: Arrays, arrays: Arrays, outs: Arrays
    ) -> Residuals:
        avals = [compat.tangent_aval(x) for x in outs]
        inexact = tuple([is_inexact(x) for x in outs])
        # The arguments come first, for `_push`: a jvp rule in JAX's terms gets the
        # arguments, and no residuals.
        return Residuals([*arrays, *leaves], (run.out, run.saved, avals), inexact)

    def _push(self, residuals: Residuals, tangents: Arrays) -> Arrays:
        """Push tangents forward by JAX's custom_jvp, which checks the result."""

        def forward(*arrays: Any) -> Arrays:
            return pytree.outputs(self._d.forward(*self._args(arrays))).arrays

        primals = residuals.arrays[: len(tangents)]
        return jvp_along(forward, primals, tangents, residuals.differentiable)

    def _pull(self, residuals: Residuals, cts: Arrays) -> Arrays:
        """Call bwd with these cotangents, in the form that JAX gives them."""
        out, spec, avals = residuals.static
        pairs = zip(avals, cts, strict=True)
        whole = out.whole.join([self._zero(a) if ct is None else ct for a, ct in pairs])
        res = spec.join(residuals.arrays[len(self._avals) :])
        found = self._bwd(*self._places.nondiff.values(), res, whole)
        parts = self._places.cotangents(found, self._bwd_name)
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
        # A Python number gets the dtype of the argument. If x64 was on for the
        # derivative and is off now, JAX has only 32 bits.
        if not hasattr(ct, "dtype"):
            ct = jnp.asarray(ct, jax.dtypes.canonicalize_dtype(aval.dtype))
        ct = as_jax(ct)
        if ct.shape != aval.shape:
            raise ValueError(
                f"Custom VJP bwd rule {self._bwd_name} must produce cotangents of the "
                f"shapes of the arguments: expected {short(aval)}, got {short(ct)}."
            )
        return ct


def _structure(outs: Outputs) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return the pytree structure of outputs, and the arrays' shapes and dtypes."""
    return outs.static.whole.treedef, [(x.shape, x.dtype) for x in outs.arrays]


def _written(structure: tuple[Any, list[tuple[Any, Any]]]) -> str:
    tree, types = structure
    return f"{tree} of {', '.join(f'{dtype}{list(shape)}' for shape, dtype in types)}"
