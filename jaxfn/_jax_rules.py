"""Rules in JAX's own terms: `fwd` and `bwd`, `jvp`, a batch rule.

With a derivative of one kind they are given to JAX's own decorators as they are, so
everything is as JAX has it. Where there are both kinds, which JAX does not combine,
they become `Rules` for the engine that has both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn import _compat
from jaxfn._apply import call
from jaxfn._attach import attach, stop_gradient
from jaxfn._batching import differentiable
from jaxfn._engines import push_forward
from jaxfn._errors import short
from jaxfn._onepass import OnePass, Perturbed, Run
from jaxfn._rules import Arrays, Residuals, Rules
from jaxfn._static import align, is_static, unwrap, wrap
from jaxfn._tree import ARRAY, Outputs, OutSpec, Spec, is_inexact, pair

Rule = Callable[..., Any]
CustomVJPPrimal = jax.custom_derivatives.CustomVJPPrimal


@dataclasses.dataclass(frozen=True)
class JaxRules:
    """What was defined for a function.

    Attributes:
        fun: the function.
        nondiff: positions of the arguments named by nondiff_argnums and -argnames.
        vjp: fwd, bwd and the options of defvjp.
        jvp: name ("defjvp" or "defjvps"), arguments and options of the call.
        batch: the rule of def_vmap.
    """

    fun: Rule
    nondiff: tuple[int, ...] = ()
    vjp: tuple[Rule, Rule, dict[str, Any]] | None = None
    jvp: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
    batch: Rule | None = None

    @property
    def name(self) -> str:
        return getattr(self.fun, "__name__", type(self.fun).__name__)

    @property
    def kinds(self) -> list[str]:
        """The rules that were defined."""
        rules = {"defvjp": self.vjp, "defjvp": self.jvp, "def_vmap": self.batch}
        return [name for name, rule in rules.items() if rule is not None]

    @property
    def decorator(self) -> str:
        """JAX's decorator for the first of them, as JAX's messages name it."""
        return self.kinds[0].replace("def", "custom_", 1).replace("__", "_")

    @functools.cached_property
    def primal(self) -> Rule:
        """The function with its batch rule."""
        if self.batch is None:
            return self.fun
        if not self.nondiff:
            return vmapped(self.fun, self.batch)
        return functools.wraps(self.fun)(functools.partial(_folded, self))

    @functools.cached_property
    def forward(self) -> Rule:
        """The function with its jvp, as JAX makes it."""
        assert self.jvp is not None
        method, args, options = self.jvp
        primal = _keeping(self) if _compat.SCAN_DROPS_JVP else self.primal
        f = jax.custom_jvp(primal, nondiff_argnums=self.nondiff)
        getattr(f, method)(*args, **options)
        return f

    @functools.cached_property
    def reverse(self) -> Rule:
        """The function with its vjp, as JAX makes it."""
        assert self.vjp is not None
        fwd, bwd, options = self.vjp
        f = jax.custom_vjp(self.primal, nondiff_argnums=self.nondiff)
        f.defvjp(fwd, bwd, **options)
        return f

    def call(self, args: tuple[Any, ...]) -> Any:
        """Call the function with its rules on positional arguments."""
        if any(
            is_static(x)
            for i, arg in enumerate(args)
            if i not in self.nondiff
            for x in tree_util.tree_leaves(arg)
        ):
            args = tuple(
                [x if i in self.nondiff else wrap(x) for i, x in enumerate(args)]
            )
            return self._unwrapping(args).call(args)
        if self.vjp is not None and self.jvp is not None:
            places, rest = _Places.of(self, args)
            arrays, tree = tree_util.tree_flatten(rest)
            return call(_Both(self, places, tree, arrays).rules, arrays)
        if self.vjp is not None:
            return self.reverse(*args)
        return self.primal(*args) if self.jvp is None else self.forward(*args)

    def _unwrapping(self, args: tuple[Any, ...]) -> JaxRules:
        """The rules for a call with wrapped arguments."""
        return dataclasses.replace(
            self,
            fun=functools.wraps(self.fun)(lambda *xs: self.fun(*unwrap(xs))),
            vjp=None if self.vjp is None else self._unwrapping_vjp(*self.vjp, args),
            jvp=None if self.jvp is None else _unwrapping_jvp(*self.jvp),
            batch=None if self.batch is None else _unwrapping_batch(self.batch),
        )

    def _unwrapping_vjp(
        self, fwd: Rule, bwd: Rule, options: dict[str, Any], args: tuple[Any, ...]
    ) -> tuple[Rule, Rule, dict[str, Any]]:
        blank = tree_util.tree_map(lambda _: 0, args)  # no arrays: bwd outlives them
        rest = [x for i, x in enumerate(blank) if i not in self.nondiff]

        @functools.wraps(fwd)
        def fwd_(*xs: Any) -> Any:
            result = fwd(*unwrap(xs))
            # A rule that sees which arguments are perturbed could save other static
            # values for other sets of them, and JAX would mix them up.
            if options.get("symbolic_zeros") or not _is_pair(result):
                return result
            return result[0], wrap(result[1])

        @functools.wraps(bwd)
        def bwd_(*xs: Any) -> Any:
            cts = bwd(*xs[:-2], unwrap(xs[-2]), xs[-1])
            if not isinstance(cts, (tuple, list)) or len(cts) != len(rest):
                return cts
            return tuple(align(ct, x) for ct, x in zip(cts, rest, strict=True))

        return fwd_, bwd_, options


def _unwrapping_jvp(
    method: str, rules: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    def unwrapping(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def rule_(*xs: Any) -> Any:
            if method == "defjvp":
                return rule(*xs[:-2], unwrap(xs[-2]), unwrap(xs[-1], None))
            return rule(xs[0], xs[1], *unwrap(xs[2:]))

        return rule_

    kept = [None if rule is None else unwrapping(rule) for rule in rules]
    return method, tuple(kept), options


def _unwrapping_batch(batch: Rule) -> Rule:
    @functools.wraps(batch)
    def batch_(size: int, in_batched: Any, *args: Any) -> Any:
        return batch(size, unwrap(in_batched, False), *unwrap(args))

    return batch_


def _is_pair(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and len(x) == 2


# ---- a batch rule


def _folded(d: JaxRules, *args: Any) -> Any:
    """The call of a function with a batch rule, and arguments that take no part."""
    assert d.batch is not None
    batch, (places, rest) = d.batch, _Places.of(d, args)

    def rule(size: int, in_batched: Sequence[Any], *rest: Any) -> Any:
        return batch(size, places.whole(in_batched, False), *places.whole(rest))

    def fun(*rest: Any) -> Any:
        return d.fun(*places.whole(rest))

    fun.__name__ = d.name  # not functools.wraps: it takes other arguments
    return vmapped(fun, rule)(*rest)


def vmapped(fun: Rule, rule: Rule) -> Rule:
    """`jax.custom_batching.custom_vmap` with a derivative in every mode."""
    native = jax.custom_batching.custom_vmap(fun)
    native.def_vmap(rule)

    @functools.wraps(fun)
    def call(*args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        if not any(_compat.is_tracer(x) for x in leaves):
            return fun(*args)
        if _compat.is_eager_forward():
            return native(*args)  # JAX can, and its rule sees what JAX says is batched

        def run(*arrays: Any) -> Outputs:
            return _outputs(native(*tree.unflatten(arrays)))

        def alone(*arrays: Any) -> Outputs:
            return _outputs(fun(*tree.unflatten(arrays)))

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            args, flags = tree.unflatten(arrays), tree.unflatten(batched)
            out, out_batched = rule(size, list(flags), *args)
            found = _outputs(out)
            return found, Outputs(tree_util.tree_leaves(out_batched), found.static)

        name = getattr(fun, "__name__", type(fun).__name__)
        outs = differentiable(run, alone, batch, name=name)(*leaves)
        return outs.static.whole.join(outs.arrays)

    return call


def _outputs(out: Any) -> Outputs:
    """The leaves of what a function in JAX's terms returned, all of them arrays."""
    leaves, spec = OutSpec.split(tree_util.tree_map(jnp.asarray, out))
    return Outputs(leaves, spec)


# ---- places of arguments


@dataclasses.dataclass(frozen=True, slots=True)
class _Places:
    """Where the arguments of a call are that take no part in transformations.

    Attributes:
        nondiff: these arguments, by position.
        n: how many arguments there are.
    """

    nondiff: dict[int, Any]
    n: int

    @classmethod
    def of(cls, d: JaxRules, args: tuple[Any, ...]) -> tuple[_Places, tuple[Any, ...]]:
        """The places, and the other arguments."""
        nondiff = {i: args[i] for i in d.nondiff if i < len(args)}
        rest = tuple([x for i, x in enumerate(args) if i not in nondiff])
        return cls(nondiff, len(args)), rest

    def whole(self, rest: Sequence[Any], *fill: Any) -> list[Any]:
        """These values in the places of the rest, `fill` (or the arguments) beside."""
        values = iter(rest)
        return [
            (fill[0] if fill else self.nondiff[i])
            if i in self.nondiff
            else next(values)
            for i in range(self.n)
        ]


def _along(
    f: Rule, args: Rule, primals: Arrays, tangents: Arrays, smooth: Sequence[bool]
) -> list[Any]:
    """The tangents of `f(*args(primals))` by JAX, along those that are not None."""
    moving = [i for i, t in enumerate(tangents) if t is not None]

    def along(*values: Any) -> list[Any]:
        at = list(primals)
        for i, x in zip(moving, values, strict=True):
            at[i] = x
        outs = _outputs(f(*args(at))).arrays
        return [x for x, s in zip(outs, smooth, strict=True) if s]

    at = tuple(primals[i] for i in moving)
    _, dots = jax.jvp(along, at, tuple(tangents[i] for i in moving))
    rest = iter(dots)
    return [next(rest) if s else None for s in smooth]


def _keeping(d: JaxRules) -> Rule:
    """The primal with the jvp attached, where a scan would drop that of JAX."""

    @functools.wraps(d.primal)
    def primal(*args: Any) -> Any:
        places, rest = _Places.of(d, args)
        leaves, tree = tree_util.tree_flatten(rest)
        if not any(_compat.is_tracer(x) for x in leaves):
            return d.primal(*args)

        def whole(arrays: Arrays) -> list[Any]:
            return places.whole(tree.unflatten(arrays))

        def tangents(inputs: Arrays, values: Arrays, dots: Arrays) -> list[Any]:
            smooth = [is_inexact(x) for x in values]
            return _along(d.forward, whole, inputs, dots, smooth)

        outs = _outputs(d.primal(*whole(stop_gradient(leaves))))
        values = attach(tangents, leaves, outs.arrays, name=d.name)
        return outs.static.whole.join(values)

    return primal


# ---- both kinds of derivative


class _Both:
    """One call of a function that has both kinds of derivative."""

    def __init__(self, d: JaxRules, places: _Places, tree: Any, arrays: Arrays) -> None:
        assert d.vjp is not None
        self._d = d
        self._fwd, self._bwd, options = d.vjp
        self._symbolic = options.get("symbolic_zeros", False)
        # The rules outlive the call, so the arrays are not kept.
        self._places, self._tree = places, tree
        self._avals: list[Any] = [_compat.tangent_aval(x) for x in arrays]
        self._rule = getattr(self._fwd, "__name__", "fwd")
        once = OnePass(self._run, self._kept, lambda: self.rules, rule=self._rule)
        self.rules = Rules(
            name=d.name,
            primal=self._primal,
            fwd=once.fwd,
            bwd=self._pull,
            jvp=self._push,
        )

    def _args(self, arrays: Arrays) -> list[Any]:
        return self._places.whole(self._tree.unflatten(arrays))

    # The function alone; where it is differentiated, fwd saves what the rules need.
    def _primal(self, *arrays: Any) -> Outputs:
        outs = _outputs(self._d.primal(*self._args(stop_gradient(arrays))))

        def tangents(inputs: Arrays, values: Arrays, dots: Arrays) -> Arrays:
            moving = tuple([d is not None for d in dots])
            _, residuals = self.rules.fwd(inputs, moving)
            return push_forward(self.rules, residuals, values, dots)

        values = attach(tangents, arrays, outs.arrays, name=self._d.name)
        return Outputs(values, outs.static)

    def _run(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        given: Arrays = inputs
        if self._symbolic:
            given = [
                CustomVJPPrimal(x, p) for x, p in zip(inputs, perturbed, strict=True)
            ]
        result = self._fwd(*self._args(given))
        if not _is_pair(result):
            raise TypeError(
                f"Custom VJP fwd rule {self._rule} for function {self._d.name} must "
                "produce a pair (list or tuple of length two): expected the outputs "
                f"and the residuals, got {result!r}."
            )
        outs = _outputs(result[0])
        leaves, tree = tree_util.tree_flatten(result[1])
        leaves = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in leaves]
        return outs.arrays, leaves, Run(outs.static, perturbed, self._symbolic, tree)

    def _kept(
        self, run: Run, leaves: Arrays, arrays: Arrays, outs: Arrays, _: Perturbed
    ) -> Residuals:
        avals = [_compat.tangent_aval(x) for x in outs]
        smooth = tuple([is_inexact(x) for x in outs])
        return Residuals([*arrays, *leaves], (run.out, run.saved, avals), smooth)

    def _push(self, residuals: Residuals, tangents: Arrays) -> Arrays:
        """By JAX's own custom_jvp, along the arguments that have a tangent."""
        primals = residuals.arrays[: len(tangents)]
        return _along(self._d.forward, self._args, primals, tangents, residuals.smooth)

    def _pull(self, residuals: Residuals, cts: Arrays) -> Arrays:
        out, tree, avals = residuals.static
        given = [
            self._zero(a) if ct is None else ct
            for a, ct in zip(avals, cts, strict=True)
        ]
        res = tree.unflatten(residuals.arrays[len(self._avals) :])
        found = self._bwd(*self._places.nondiff.values(), res, out.whole.join(given))
        return self._checked(found)

    def _zero(self, aval: Any) -> Any:
        if self._symbolic:
            return _compat.SymbolicZero(aval)
        if aval.dtype == jax.dtypes.float0:
            return np.zeros(aval.shape, jax.dtypes.float0)
        return _compat.zeros(aval)

    def _checked(self, found: Any) -> list[Any]:
        """A cotangent (or None) for each array, from what bwd returned."""
        name = f"{getattr(self._bwd, '__name__', 'bwd')} for function {self._d.name}"
        n = self._places.n - len(self._places.nondiff)
        if not isinstance(found, (tuple, list)) or len(found) != n:
            raise TypeError(
                f"Custom VJP bwd rule {name} must produce a tuple of length equal to "
                f"the number of arguments to the primal function: expected {n} "
                f"cotangents (None for zero), got {tree_util.tree_structure(found)}."
            )
        spec = Spec(self._tree, (ARRAY,) * len(self._avals))
        try:
            pairs = pair(tuple(found), spec)
        except ValueError as error:
            raise TypeError(
                f"Custom VJP bwd rule {name} must produce an output with the same "
                "container (pytree) structure as the args tuple of the primal "
                f"function: expected {self._tree}, got "
                f"{tree_util.tree_structure(tuple(found))}."
            ) from error
        return [
            self._cotangent(ct, aval, name)
            for (ct, _), aval in zip(pairs, self._avals, strict=True)
        ]

    def _cotangent(self, ct: Any, aval: Any, name: str) -> Any:
        if ct is None or _compat.is_zero(ct) or aval.dtype == jax.dtypes.float0:
            return None
        ct = jnp.asarray(ct, None if hasattr(ct, "dtype") else aval.dtype)
        if ct.shape != aval.shape or ct.dtype != aval.dtype:
            raise ValueError(
                f"Custom VJP bwd rule {name} must produce cotangents of the shapes and "
                f"dtypes of the arguments: expected {short(aval)}, got {short(ct)}."
            )
        return ct
