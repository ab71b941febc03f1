"""The function that `check` is about, as a function of its float arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._base import compat, pytree, short
from jaxfn._check import numbers, shared
from jaxfn._check.compile import Call, Once, Program, Together
from jaxfn._check.jaxprs import may_not_end
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import name_of
from jaxfn._decorator import custom_function
from jaxfn._function import Function


class Case:
    """A function with example arguments.

    Attributes:
        name: in messages.
        arrays: all arrays among the arguments, in the precision of the check.
        labels: what to call each of them.
        at: which of them are float or complex: those that are differentiated.
        reference: a function with the right derivative, if there is one.
        surrogate: whether the rules differ from the derivative of forward on purpose.
        eps: rounding error of the precision.
        sources: the rule that another one is derived from: {"backward": "jvp"}.
        slope_tolerance: of comparisons with finite differences.
        same_tolerance: of comparisons of two ways to compute the same.
        atol: a difference that passes whatever the size.
        low: the same function in a low precision, if it is to be tried.
        passed: the names of the checks that passed so far.
        together: what was computed at once for several checks.
        accuracy: of the value, the gradients and the tangents, once it was measured.
    """

    def __init__(
        self,
        fun: Any,
        args: Sequence[Any],
        *,
        reference: Callable[..., Any] | None,
        surrogate: bool,
        precision: str,
        seed: int,
        rtol: float | None = None,
        atol: float = 0.0,
    ) -> None:
        self.fun: Callable[..., Any] = fun.apply if isinstance(fun, type) else fun
        self.name = name_of(fun)
        self.given = tuple(args)
        arrays, self.spec = pytree.split(self.given)
        self.arrays = [_cast(x, precision) for x in arrays]
        self.labels = _labels_of(self.given)
        self.at = [i for i, x in enumerate(self.arrays) if pytree.is_number(x)]
        self.reference, self.surrogate = reference, surrogate
        self.eps = shared.eps_of(self.arrays)
        self.seed = seed
        self.sources = _sources(fun)
        self.slope_tolerance = self.eps**0.4 if rtol is None else rtol
        self.same_tolerance = self.eps**0.5 if rtol is None else rtol
        self.atol = atol
        self.low: Case | None = None
        self.passed: set[str] = set()
        self.together: Together | None = None
        self.accuracy: dict[str, list[float]] = {}
        self.run_program = Program(self.run)
        self.pull_program = Program(self.gradients)
        self.push_program = Program(self.tangents)
        self.reference_program = Program(self._tangents_of_reference)

    def rng(self) -> np.random.Generator:
        """Random numbers; the same for each check, whichever of them run."""
        return np.random.default_rng(self.seed)

    @property
    def xs(self) -> Arrays:
        return [self.arrays[i] for i in self.at]

    @property
    def x_labels(self) -> list[str]:
        return [self.labels[i] for i in self.at]

    # ---- the function

    def run(self, *arrays: Any) -> Arrays:
        """The arrays that the function returns for these arrays."""
        return self.run_of(self.fun, arrays)

    def run_of(self, fun: Callable[..., Any], arrays: Sequence[Any]) -> Arrays:
        return pytree.split(fun(*self.spec.join(numbers.copies(arrays))))[0]

    def f(self, *xs: Any) -> Arrays:
        """The float outputs, as a function of the float arrays alone."""
        return floats(self.run(*self.whole(xs)))

    def reference_f(self, *xs: Any) -> Arrays:
        assert self.reference is not None
        return floats(self.run_of(self.reference, self.whole(xs)))

    def whole(self, xs: Sequence[Any], arrays: Sequence[Any] | None = None) -> Arrays:
        """All arrays, with these in the places of the float ones."""
        arrays = list(self.arrays if arrays is None else arrays)
        for i, x in zip(self.at, xs, strict=True):
            arrays[i] = x
        return arrays

    def only(self, chosen: Sequence[int], xs: Sequence[Any]) -> Callable[..., Arrays]:
        """`f` of these of its arguments; the others, of `xs`, are constants."""

        def of_chosen(*some: Any) -> Arrays:
            every = list(xs)
            for i, x in zip(chosen, some, strict=True):
                every[i] = x
            return self.f(*every)

        return of_chosen

    def compare(
        self, got: Arrays, expected: Arrays, labels: list[str], floor: float = 0.0
    ) -> shared.Outcome:
        """Two ways to compute the same."""
        tolerance, atol = self.same_tolerance, self.atol
        return shared.compare(got, expected, labels, tolerance, floor=floor, atol=atol)

    # ---- its derivatives

    def cts(self, generator: np.random.Generator) -> Arrays:
        return [numbers.like(o, generator) for o in self.out_types]

    def ts(self, generator: np.random.Generator) -> Arrays:
        return [numbers.direction(x, generator) for x in self.xs]

    @functools.cached_property
    def out_types(self) -> list[jax.ShapeDtypeStruct]:
        """Of the float outputs."""
        outs = floats(self.first_value)
        return [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outs]

    def pull(self, cts: Arrays, *xs: Any) -> Arrays:
        """Cotangents of the float arrays: the reverse mode."""
        return self.gradients(cts, *self.whole(xs))

    def push(self, ts: Arrays, *xs: Any) -> Arrays:
        """Tangents of the float outputs: the forward mode."""
        return self.tangents(ts, *self.whole(xs))

    def gradients(self, cts: Arrays, *arrays: Any) -> Arrays:
        """`pull`, as a function of all arrays."""
        f, xs = self._of_floats(arrays)
        return list(jax.vjp(f, *xs)[1](cts))

    def tangents(self, ts: Arrays, *arrays: Any) -> Arrays:
        """`push`, as a function of all arrays."""
        f, xs = self._of_floats(arrays)
        return jax.jvp(f, xs, list(ts))[1]

    def _tangents_of_reference(self, ts: Arrays, *xs: Any) -> Arrays:
        return jax.jvp(self.reference_f, xs, tuple(ts))[1]

    def _of_floats(self, arrays: Sequence[Any]) -> tuple[Callable[..., Arrays], Arrays]:
        def f(*xs: Any) -> Arrays:
            return floats(self.run(*self.whole(xs, arrays)))

        return f, [arrays[i] for i in self.at]

    @functools.cached_property
    def first_cts(self) -> Arrays:
        return self.cts(self.rng())

    @functools.cached_property
    def first_value(self) -> Arrays:
        """Of the first run, which nothing traces but the function itself."""
        return self.run(*self.arrays)

    @functools.cached_property
    def first_gradients(self) -> Arrays:
        return self.pull(self.first_cts, *self.xs)

    # ---- the same, compiled as soon as it is known that this makes no difference

    @property
    def is_traced(self) -> bool:
        return "value under jit" in self.passed

    @functools.cached_property
    def is_batched_by_jax(self) -> bool:
        """Whether JAX's rules alone batch it.

        Then batches along one axis are as good as along each: JAX's rules are right.
        """
        return self.is_traced and all(map(compat.is_batched_by_jax, self._jaxprs()))

    @property
    def may_not_end(self) -> bool:
        """Whether it iterates until a float is small, without a limit of steps."""
        return self.is_traced and any(map(may_not_end, self._jaxprs()))

    def _jaxprs(self) -> Iterator[Any]:
        """Of the function and the derivatives of which it is known that they trace."""
        yield self.run_program.jaxpr(*self.arrays)
        if "backward under jit" in self.passed:
            yield self.pull_program.jaxpr(self.first_cts, *self.arrays)
        if "jvp under jit" in self.passed:
            yield self.push_program.jaxpr(self.ts(self.rng()), *self.arrays)

    def computed(
        self, plan: Plan, *, after: str = "backward under jit"
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments and the result of a call that a check plans.

        It is compiled if the check `after` passed.
        """
        if self.together is not None and plan in self.together:
            return self.together[plan]
        f, args = plan(self)
        return args, (Once(f) if after in self.passed else f)(*args)

    def program(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """`f`, compiled if the function and its backward can be."""
        return Once(f) if "backward under jit" in self.passed else f

    def quick_run(self, *arrays: Any) -> Arrays:
        return self.run_program(*arrays) if self.is_traced else self.run(*arrays)

    def quick_f(self, *xs: Any) -> Arrays:
        return floats(self.quick_run(*self.whole(xs)))

    def quick_gradients(self, cts: Arrays, *arrays: Any) -> Arrays:
        known = "backward under jit" in self.passed
        return (self.pull_program if known else self.gradients)(cts, *arrays)

    def quick_pull(self, cts: Arrays, *xs: Any) -> Arrays:
        return self.quick_gradients(cts, *self.whole(xs))

    def quick_tangents(self, ts: Arrays, *arrays: Any) -> Arrays:
        # "jvp under jit" compares it with one that is not compiled.
        return (self.push_program if self.is_traced else self.tangents)(ts, *arrays)

    def quick_push(self, ts: Arrays, *xs: Any) -> Arrays:
        return self.quick_tangents(ts, *self.whole(xs))

    def subsets(self) -> list[tuple[int, ...]]:
        """Of the float arrays, but for all of them together."""
        return shared.subsets(len(self.at))

    def batch(self, n: int) -> list[Arrays]:
        """`n` examples: the arguments, and others near them."""
        generator = self.rng()
        rows = [list(self.arrays)]
        for _ in range(n - 1):
            row = list(self.arrays)
            for i in self.at:
                along = numbers.direction(row[i], generator)
                row[i] = numbers.moved(row[i], 0.05, along)
            rows.append(row)
        return rows


Plan: TypeAlias = Callable[[Case], Call]
"""What a check computes: it may be compiled together with what others do."""


def floats(outs: Arrays) -> Arrays:
    return [o for o in outs if pytree.is_number(o)]


def _cast(x: Any, precision: str) -> Any:
    shared.refuse_extended(x)
    if not pytree.is_number(x) or precision == "given":
        return x if shared.is_key(x) else numbers.array(x)
    if precision == "float64":
        return numbers.array(x, np.complex128 if shared.is_complex(x) else np.float64)
    # There is no complex number of half the precision of complex64.
    complex_ = shared.is_complex(x)
    return numbers.array(x, np.complex64 if complex_ else jnp.dtype(precision))


# ---- names


def _sources(fun: Any) -> dict[str, str]:
    """Which derivative is the transpose of the other, if the function says so."""
    if isinstance(fun, custom_function):
        own = {k.removeprefix("def") for k in fun._jax_rules.kinds}
        own |= set(fun._torch_rules)
    elif isinstance(fun, type) and issubclass(fun, Function):
        names = ("backward", "vjp", "jvp", "generate_jvp_rule")
        own = {k for k in names if getattr(fun, k) not in (getattr(Function, k), False)}
    else:
        own = {"jvp"} if hasattr(fun, "defjvp") else set()  # JAX's decorator
    backward, jvp = own & {"backward", "vjp"}, "jvp" in own
    if jvp and not backward:
        return {"backward": "jvp", "backward or jvp": "jvp"}
    if backward and not jvp and "generate_jvp_rule" in own:
        return {"jvp": "backward", "backward or jvp": "backward"}
    return {}


def rule_that_saves(fun: Any) -> str:
    """Name the rule that computes the value if a gradient is taken."""
    if isinstance(fun, custom_function):
        rules = fun._jax_rules
        return "fwd" if rules.vjp else "jvp" if rules.jvp else "forward"
    if hasattr(fun, "defvjp"):  # JAX's decorator
        return "fwd"
    return "jvp" if hasattr(fun, "defjvp") else "forward"


def _labels_of(args: tuple[Any, ...]) -> list[str]:
    """What to call each array among the arguments, inside of pytrees too."""
    labels = []
    for path, leaf in tree_util.tree_flatten_with_path(args)[0]:
        if pytree.is_array(leaf):
            position, *rest = path
            inside = tree_util.keystr(tuple(rest))
            labels.append(f"argument {position.idx}{inside} ({short(leaf)})")
    return labels


def name_outputs(arrays: Sequence[Any]) -> list[str]:
    return [f"output {j}" for j in range(len(arrays))]


def name_gradients(arrays: Sequence[Any]) -> list[str]:
    return [f"gradient {i}" for i in range(len(arrays))]


def name_tangents(arrays: Sequence[Any]) -> list[str]:
    return [f"tangent of {name}" for name in name_outputs(arrays)]
