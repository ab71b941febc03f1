"""Engines: `Rules` into a JAX function.

| rules        | definition | reverse mode       | forward mode            |
|--------------|------------|--------------------|-------------------------|
| bwd          | custom_vjp | bwd                | refused by JAX          |
| jvp          | custom_jvp | jvp transposed     | jvp                     |
| bwd, jvp     | custom_jvp | bwd (see _linear)  | jvp                     |
| bwd, derive  | custom_jvp | bwd (see _linear)  | bwd transposed          |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn import _compat, _linearity
from jaxfn._attach import attach, stop_gradient
from jaxfn._errors import (
    NO_JVP_NOTE,
    ONCE,
    RuleValueError,
    SecondDerivativeError,
    short,
)
from jaxfn._linear import linear
from jaxfn._rules import Arrays, Residuals, Rules
from jaxfn._tree import Outputs, is_inexact


def engine(rules: Rules) -> Callable[..., Outputs]:
    """The JAX function of flat arrays that has these rules."""
    return _forward(rules) if has_forward_mode(rules) else _reverse(rules)


def has_forward_mode(rules: Rules) -> bool:
    """Is there a jvp, or is one to be derived?"""
    return rules.jvp is not None or rules.derive_jvp


def _primal(rules: Rules) -> Callable[..., Outputs]:
    """The primal, under the name that jaxprs and profiles show."""

    def primal(*args: Any) -> Outputs:
        return rules.primal(*map(_compat.as_array, args))

    primal.__name__ = rules.name
    return primal


# ---- custom_vjp


def _reverse(rules: Rules) -> Callable[..., Outputs]:
    statics = _Statics()
    width = _Width(rules)

    def fwd(*primals: Any) -> Any:
        args = [_compat.as_array(p.value) for p in primals]
        perturbed = tuple([p.perturbed for p in primals])
        outs, residuals = rules.fwd(args, perturbed)
        return outs, (
            width.pad(residuals, args, perturbed),
            statics.put(residuals),
        )

    def bwd(saved: Any, cts: Outputs) -> Any:
        arrays, key = saved
        residuals = statics.get(key, arrays, rules.name)
        given = [
            None if _compat.is_zero(ct) else _compat.as_array(ct) for ct in cts.arrays
        ]
        return tuple(pull_back(rules, residuals, given))

    f = jax.custom_vjp(_primal(rules))
    fwd.__name__, bwd.__name__ = f"{rules.name}_fwd", f"{rules.name}_backward"
    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


def only_transposable(arrays: Arrays, *, name: str) -> list[Any]:
    """The arrays, with tangents that can be transposed but not computed.

    JAX says the same of what a custom_vjp makes of them, but without a name where it
    compiles. It must not be said before: tangents that are traced may be transposed
    yet, as in `jax.grad` of a function whose own rule calls `jax.jvp`.
    """

    def refuse(*_: Any) -> Arrays:
        error = TypeError(_compat.FORWARD_MODE_REFUSAL)
        error.add_note(NO_JVP_NOTE.format(name=name))
        raise error

    def rule(_: Arrays, __: Arrays, dots: Arrays) -> Arrays:
        given = [d for d in dots if d is not None]
        avals = [jax.typeof(d) for d in given]
        outs = linear(refuse, lambda _, cts: cts, [], given, avals, name=name)
        return _spread(outs, [d is not None for d in dots])

    return attach(rule, arrays, stop_gradient(arrays), name=name)


class _Statics:
    """Takes the static part of residuals from fwd to the bwd of the same trace.

    JAX keeps one residual structure per custom_vjp call, that of the last trace of fwd.
    But one call in a jitted function is traced again for each set of perturbed
    arguments, and the traces of all are in use at once: as pytree aux data the static
    part would reach the bwd of another trace (checked on 0.10.2 and 0.12.0: a gradient
    lost in silence). What does travel with a trace is the shapes of its residuals. So
    the static part stays here under a key, and the key is the length of an array with
    no elements.
    """

    def __init__(self) -> None:
        self._items: dict[int, Residuals] = {}
        self._next = itertools.count()

    def put(self, residuals: Residuals) -> Any:
        key = next(self._next)
        self._items[key] = Residuals(
            [_shape(x) for x in residuals.arrays],
            residuals.static,
            residuals.smooth,
        )
        return np.zeros((0, key), np.bool_)

    def get(self, key: Any, arrays: Arrays, name: str) -> Residuals:
        item = self._items[key.shape[1]]
        arrays = list(arrays[: len(item.arrays)])
        if [_shape(x) for x in arrays] != list(item.arrays):
            raise NotImplementedError(
                f"`{name}` saved other arrays for other sets of perturbed inputs, and "
                "JAX batched them as those of another set: expected the residuals "
                f"{item.arrays}, got {[_shape(x) for x in arrays]}. Save the same "
                "arrays whatever ctx.needs_input_grad says."
            )
        return Residuals(arrays, item.static, item.smooth)


def _shape(x: Any) -> tuple[tuple[int, ...], Any]:
    return x.shape, x.dtype


class _Width:
    """Keeps the number of residuals of one call the same for all its traces.

    For the reason told in `_Statics`, JAX fails if it differs. It can only differ where
    the rule looks at which inputs are perturbed; then the trace for all of them, which
    usually saves the most, says how many places to keep.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._width: int | None = None

    def pad(self, residuals: Residuals, args: Arrays, perturbed: Sequence[bool]) -> Any:
        n = len(residuals.arrays)
        if self._width is None:
            self._width = n
            if residuals.pattern_used and any(_compat.is_tracer(x) for x in args):
                self._width = max(n, self._for_all(args, perturbed))
        if n > self._width:
            raise NotImplementedError(
                f"`{self._rules.name}` saved {n} arrays with needs_input_grad "
                f"{tuple(perturbed)}, and {self._width} before, in the same call of a "
                f"jitted function: expected at most {self._width}. Save the same "
                "arrays whatever ctx.needs_input_grad says."
            )
        return [*residuals.arrays, *[np.zeros(0, np.bool_)] * (self._width - n)]

    def _for_all(self, args: Arrays, perturbed: Sequence[bool]) -> int:
        everything = [is_inexact(x) for x in args]
        if list(perturbed) == everything:
            return 0
        count = 0

        def trace(*args: Any) -> None:
            nonlocal count
            _, residuals = self._rules.fwd(list(args), everything)
            count = len(residuals.arrays)

        jax.eval_shape(trace, *args)
        return count


# ---- custom_jvp


def _forward(rules: Rules) -> Callable[..., Outputs]:
    f = jax.custom_jvp(_primal(rules))

    def rule(primals: Arrays, tangents: Arrays) -> tuple[Outputs, Outputs]:
        args = [_compat.as_array(x) for x in primals]
        given = [None if _compat.is_zero(t) else _compat.as_array(t) for t in tangents]
        outs, residuals = rules.fwd(args, [t is not None for t in given])
        dots = push_forward(rules, residuals, outs.arrays, given)
        return outs, Outputs(
            [
                _compat.SymbolicZero(_compat.tangent_aval(o)) if t is None else t
                for o, t in zip(outs.arrays, dots, strict=True)
            ],
            outs.static,
        )

    rule.__name__ = f"{rules.name}_jvp"
    f.defjvp(rule, symbolic_zeros=True)
    return f


def push_forward(
    rules: Rules, residuals: Residuals, outs: Arrays, tangents: Arrays
) -> Arrays:
    """The tangents of the outputs, transposable by the Function's own backward.

    This is the derivative of the Function wherever JAX needs one beside the first: in
    the engines above, and for outputs that a derivative rule has computed (`_attach`).
    """
    if rules.bwd is None:
        assert rules.jvp is not None
        return rules.jvp(residuals, tangents)
    # What the functions below close over outlives this trace: no arrays among it.
    static, smooth, n_args = residuals.static, residuals.smooth, len(tangents)
    moving = [i for i, t in enumerate(tangents) if t is not None]
    avals = [_compat.tangent_aval(o) for o, s in zip(outs, smooth, strict=True) if s]
    if not moving or not avals:
        return [None] * len(outs)

    def rebuild(arrays: Arrays) -> Residuals:
        return Residuals(arrays, static, smooth)

    def pull(arrays: Arrays, cts: Arrays) -> list[Any]:
        in_cts = pull_back(rules, rebuild(arrays), _spread(cts, smooth))
        return [in_cts[i] for i in moving]

    def push(arrays: Arrays, ts: Arrays) -> Arrays:
        if rules.jvp is None:

            def derived(arrays: Arrays) -> Arrays:
                return _transposed(rules, rebuild(arrays), moving, ts, avals)

            return _once(rules, derived, arrays) if rules.once else derived(arrays)
        full: list[Any] = [None] * n_args
        for i, t in zip(moving, ts, strict=True):
            full[i] = t
        dots = rules.jvp(rebuild(arrays), full)
        kept = [t for t, s in zip(dots, smooth, strict=True) if s]
        return [
            _compat.zeros(a) if t is None else t
            for t, a in zip(kept, avals, strict=True)
        ]

    ts = [tangents[i] for i in moving]
    outs_t = linear(push, pull, residuals.arrays, ts, avals, name=rules.name)
    return _spread(outs_t, smooth)


def _spread(values: Arrays, places: Sequence[bool]) -> list[Any]:
    """One entry for each place: the next value where it is True, else None."""
    rest = iter(values)
    return [next(rest) if place else None for place in places]


def pull_back(rules: Rules, residuals: Residuals, cts: Arrays) -> Arrays:
    """The cotangents of the arguments, by the Function's own backward.

    That of a `once_differentiable` Function runs without derivative, and a rule that
    raises is attached to what it returns.
    """
    assert rules.bwd is not None
    if not rules.once:
        return rules.bwd(residuals, cts)
    given = [ct is not None for ct in cts]
    inputs = [*residuals.arrays, *[ct for ct in cts if ct is not None]]
    n_res = len(residuals.arrays)

    def run(inputs: list[Any]) -> Arrays:
        held = Residuals(inputs[:n_res], residuals.static, residuals.smooth)
        assert rules.bwd is not None
        return rules.bwd(held, _spread(inputs[n_res:], given))

    return _once(rules, run, inputs)


def _once(rules: Rules, run: Callable[[list[Any]], Arrays], inputs: Arrays) -> Arrays:
    """`run(inputs)`, refusing to be differentiated with respect to the inputs."""

    def refuse(*_: Any) -> Arrays:
        raise _refused_once(rules.name)

    results = run(stop_gradient(inputs))
    kept = [r for r in results if r is not None]
    kept = attach(refuse, inputs, kept, name=f"{rules.name}.backward")
    return _spread(kept, [r is not None for r in results])


def _refused_once(name: str) -> SecondDerivativeError:
    return SecondDerivativeError(
        f"{ONCE}. `{name}.backward` was differentiated: expected first derivatives "
        "only, got a derivative of the gradient. Remove the decorator if its "
        "operations can be differentiated."
    )


# ---- a jvp derived from backward


def _transposed(
    rules: Rules,
    residuals: Residuals,
    moving: Sequence[int],
    tangents: Arrays,
    avals: Sequence[Any],
) -> list[Any]:
    """Backward is ct -> J^T ct; transposed, t -> J t."""
    assert rules.bwd is not None
    bwd, name = rules.bwd, rules.name

    def of_cts(cts: list[Any]) -> list[Any]:
        in_cts = bwd(residuals, _spread(cts, residuals.smooth))
        return [
            _compat.zeros(_compat.tangent_aval(t)) if in_cts[i] is None else in_cts[i]
            for i, t in zip(moving, tangents, strict=True)
        ]

    # The example carries the output's real type: made from a shape and a dtype alone,
    # it is not varying in a shard_map, and the result is too big by the axis size.
    example = [_compat.zeros(aval) for aval in avals]
    for i, depends in _linearity.nonzero_outputs(jax.make_jaxpr(of_cts)(example)):
        _refuse(name, i, tangents[i], depends=depends)
    try:
        transpose = jax.linear_transpose(of_cts, example)
        (result,) = transpose(list(tangents))
    except (NotImplementedError, AssertionError, ValueError) as error:
        if rules.once:
            raise _refused_once(name) from error
        raise RuleValueError(
            f"`{name}.backward` can't be transposed to get a jvp (generate_jvp_rule): "
            "expected operations that are linear in the cotangents and that JAX can "
            f"transpose, got: {error or 'a product of two cotangents'}. Define jvp, or "
            "make backward linear in its cotangents."
        ) from error
    return result


def _refuse(name: str, index: int, tangent: Any, *, depends: bool) -> None:
    got = (
        "a term that stays when they are zero"
        if depends
        else "a gradient that does not depend on them"
    )
    raise RuleValueError(
        f"`{name}.backward` can't be transposed to get a jvp (generate_jvp_rule): "
        f"expected a gradient that is linear in the cotangents, got {got}, for "
        f"perturbed array {index} ({short(tangent)}). Define jvp, or make backward "
        "linear in its cotangents."
    )
