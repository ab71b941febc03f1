"""The function that `check` checks, as a function of its float arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._check import jaxprs, numbers, shared
from jaxfn._check.compile import Call, Once, Program, Together
from jaxfn._check.jaxprs import may_not_end
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import name_of
from jaxfn._core import internals, is_tensor, messages, short, type_name, values
from jaxfn._custom_function import custom_function
from jaxfn._function import Function, is_separate, rules_of


class Case:
    """A function with example arguments.

    Attributes:
        name: Name in messages.
        arrays: All arrays among the arguments, in the precision of the check.
        labels: Name of each array, for messages.
        has_sparse: Whether an argument is a sparse matrix.
        at: Indices of the float and complex arrays, which are differentiated.
        reference: A function with the right derivative, or None.
        surrogate: Whether the rules differ from forward's derivative on purpose.
        eps: Rounding error of the precision.
        sources: For a derived rule, the rule it is derived from: {"backward": "jvp"}.
        slope_tolerance: Tolerance of comparisons with finite differences.
        same_tolerance: Tolerance for two computations of the same value.
        atol: Absolute difference that always passes.
        low: The same function in a low precision, or None.
        passed: Names of the checks that have passed so far.
        together: Results computed in one program for several checks.
        accuracy: Measured accuracy of value, gradients and tangents.
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
        _refuse(fun, args)
        self.fun: Callable[..., Any] = fun.apply if isinstance(fun, type) else fun
        self.name = name_of(fun)
        self.given = _with_numbers_as_arrays(fun, args)
        arrays, self.spec = values.split(self.given)
        self.arrays = [_cast(x, precision) for x in arrays]
        self.labels = _labels_of(self.given)
        self.has_sparse = any(
            map(
                internals.is_sparse,
                tree_util.tree_leaves(self.given, internals.is_sparse),
            )
        )
        self.at = [i for i, x in enumerate(self.arrays) if values.is_number(x)]
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
        """Make a generator of random numbers, the same for each check."""
        return np.random.default_rng(self.seed)

    @property
    def xs(self) -> Arrays:
        return [self.arrays[i] for i in self.at]

    @property
    def x_labels(self) -> list[str]:
        return [self.labels[i] for i in self.at]

    # ---- the function

    def run(self, *arrays: Any) -> Arrays:
        """Return the arrays in the function's result for these arrays."""
        return self.run_of(self.fun, arrays)

    def run_of(self, fun: Callable[..., Any], arrays: Sequence[Any]) -> Arrays:
        return values.split(fun(*self.spec.join(numbers.copies(arrays))))[0]

    def f(self, *xs: Any) -> Arrays:
        """Return the float outputs, as a function of the float arrays alone."""
        return floats(self.run(*self.whole(xs)))

    def reference_f(self, *xs: Any) -> Arrays:
        assert self.reference is not None
        return floats(self.run_of(self.reference, self.whole(xs)))

    def whole(self, xs: Sequence[Any], arrays: Sequence[Any] | None = None) -> Arrays:
        """Return all arrays, with `xs` in place of the float arrays."""
        arrays = list(self.arrays if arrays is None else arrays)
        for i, x in zip(self.at, xs, strict=True):
            arrays[i] = x
        return arrays

    def only(self, chosen: Sequence[int], xs: Sequence[Any]) -> Callable[..., Arrays]:
        """Return `f` of the chosen arguments; the others, of `xs`, are constants."""

        def of_chosen(*some: Any) -> Arrays:
            every = list(xs)
            for i, x in zip(chosen, some, strict=True):
                every[i] = x
            return self.f(*every)

        return of_chosen

    def compare(
        self, got: Arrays, expected: Arrays, labels: list[str], least_size: float = 0.0
    ) -> shared.Outcome:
        """Compare two computations of the same values."""
        tolerance, atol = self.same_tolerance, self.atol
        return shared.compare(
            got, expected, labels, tolerance, least_size=least_size, atol=atol
        )

    # ---- its derivatives

    def cts(self, generator: np.random.Generator) -> Arrays:
        return [numbers.like(o, generator) for o in self.out_types]

    def ts(self, generator: np.random.Generator) -> Arrays:
        return [numbers.direction(x, generator) for x in self.xs]

    @functools.cached_property
    def out_types(self) -> list[jax.ShapeDtypeStruct]:
        """Types of the float outputs."""
        outs = floats(self.first_value)
        return [
            jax.ShapeDtypeStruct(o.shape, o.dtype, sharding=o.sharding) for o in outs
        ]

    @functools.cached_property
    def has_float_outputs(self) -> bool:
        """Whether an output has a derivative; True if the function raises."""
        try:
            return bool(self.out_types)
        except Exception:  # noqa: BLE001  (the checks say what it raises)
            return True

    def pull(self, cts: Arrays, *xs: Any) -> Arrays:
        """Return the cotangents of the float arrays, by reverse mode."""
        return self.gradients(cts, *self.whole(xs))

    def push(self, ts: Arrays, *xs: Any) -> Arrays:
        """Return the tangents of the float outputs, by forward mode."""
        return self.tangents(ts, *self.whole(xs))

    def gradients(self, cts: Arrays, *arrays: Any) -> Arrays:
        """Like `pull`, as a function of all arrays."""
        f, xs = self._of_floats(arrays)
        return list(jax.vjp(f, *xs)[1](numbers.copies(cts)))

    def tangents(self, ts: Arrays, *arrays: Any) -> Arrays:
        """Like `push`, as a function of all arrays."""
        f, xs = self._of_floats(arrays)
        return jax.jvp(f, xs, numbers.copies(ts))[1]

    def _tangents_of_reference(self, ts: Arrays, *xs: Any) -> Arrays:
        return jax.jvp(self.reference_f, xs, tuple(ts))[1]

    def _of_floats(self, arrays: Sequence[Any]) -> tuple[Callable[..., Arrays], Arrays]:
        def f(*xs: Any) -> Arrays:
            return floats(self.run(*self.whole(xs, arrays)))

        return f, numbers.copies([arrays[i] for i in self.at])

    @functools.cached_property
    def first_cts(self) -> Arrays:
        return self.cts(self.rng())

    @functools.cached_property
    def first_value(self) -> Arrays:
        """Result of the first run, in which only the function itself traces."""
        return self.run(*self.arrays)

    @functools.cached_property
    def first_gradients(self) -> Arrays:
        return self.pull(self.first_cts, *self.xs)

    @functools.cached_property
    def has_derivative(self) -> list[bool]:
        """Whether each float output has one, because forward did not mark it."""
        marked = _marked(self.fun, self.spec.join(numbers.copies(self.arrays)))
        outs = enumerate(self.first_value)
        return [i not in marked for i, x in outs if values.is_number(x)]

    # ---- the same, compiled once the checks show that this makes no difference

    @property
    def is_traced(self) -> bool:
        return "value under jit" in self.passed

    @functools.cached_property
    def is_batched_by_jax(self) -> bool:
        """Whether JAX's rules alone batch it.

        If so, a batch along one axis is enough, because JAX's rules are right.
        """
        return self.is_traced and all(map(jaxprs.is_batched_by_jax, self._jaxprs()))

    @property
    def may_not_end(self) -> bool:
        """Whether it iterates until a float is small, without a step limit."""
        return self.is_traced and any(map(may_not_end, self._jaxprs()))

    def _jaxprs(self) -> Iterator[Any]:
        """Yield the jaxprs of the function, and of derivatives that trace."""
        yield self.run_program.jaxpr(*self.arrays)
        if "backward under jit" in self.passed:
            yield self.pull_program.jaxpr(self.first_cts, *self.arrays)
        if "jvp under jit" in self.passed:
            yield self.push_program.jaxpr(self.ts(self.rng()), *self.arrays)

    def computed(
        self, plan: Plan, *, after: str = "backward under jit"
    ) -> tuple[tuple[Any, ...], Any]:
        """Return the arguments and the result of a planned call.

        The call is compiled if the check `after` passed.
        """
        if self.together is not None and plan in self.together:
            return self.together[plan]
        f, args = plan(self)
        return args, (Once(f) if after in self.passed else f)(*args)

    def program(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `f`, compiled if the function and its backward can be."""
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
        """List the proper subsets of the float arrays."""
        return shared.subsets(len(self.at))

    def batch(self, n: int) -> list[Arrays]:
        """Make `n` examples: the arguments, and others near them."""
        generator = self.rng()
        rows = [list(self.arrays)]
        for _ in range(n - 1):
            row = list(self.arrays)
            for i in self.at:
                along = numbers.direction(row[i], generator)
                row[i] = numbers.array(numbers.moved(row[i], 0.05, along))
            rows.append(row)
        return rows


Plan: TypeAlias = Callable[[Case], Call]
"""The call that a check makes; it may be compiled together with others."""


def floats(outs: Arrays) -> Arrays:
    return [o for o in outs if values.is_number(o)]


def _cast(x: Any, precision: str) -> Any:
    shared.refuse_extended(x)
    if not values.is_number(x) or precision == "given":
        return x if shared.is_key(x) else numbers.array(x)
    if precision == "float64":
        return numbers.array(x, np.complex128 if shared.is_complex(x) else np.float64)
    # No complex dtype has half the precision of complex64.
    complex_ = shared.is_complex(x)
    return numbers.array(x, np.complex64 if complex_ else jnp.dtype(precision))


# ---- names


def _sources(fun: Any) -> dict[str, str]:
    """Return which derivative is the transpose of the other, if either is."""
    if isinstance(fun, custom_function):
        own = {k.removeprefix("def") for k in fun._definition.kinds}
        own |= set(fun._torch_rules)
        own |= {"generate_jvp_rule"} if fun._definition.derives_jvp else set()
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


def _marked(fun: Any, args: tuple[Any, ...]) -> frozenset[int]:
    """Return which output arrays a Function marks non-differentiable."""
    if isinstance(fun, custom_function) and fun._torch_rules:
        fun = fun._function.apply
    cls = getattr(fun, "_jaxfn_class", None)
    if cls is None:
        return frozenset()
    rules, arrays = rules_of(cls, args, {})
    needed = tuple(map(values.is_inexact, arrays))
    outs, _, layout = rules.forward(arrays, needed)
    if rules.has_setup:
        _, layout = rules.setup(layout, arrays, outs, needed)
    return layout.marked


def rule_that_saves(fun: Any) -> str:
    """Return the name of the rule that computes the value for a gradient."""
    if isinstance(fun, custom_function):
        rules = fun._definition
        return (
            "fwd"
            if rules.last("defvjp")
            else "jvp"
            if rules.last("defjvp")
            else "forward"
        )
    if hasattr(fun, "defvjp"):  # JAX's decorator
        return "fwd"
    return "jvp" if hasattr(fun, "defjvp") else "forward"


def _refuse(fun: Any, args: Sequence[Any]) -> None:
    """Refuse what is no function of JAX arrays."""
    of = getattr(fun, "__self__", fun)  # the class of an `apply`
    if isinstance(of, type) and type_name(of).startswith("torch."):
        raise messages.RuleTypeError(
            f"check got a class of PyTorch, `{of.__name__}`: expected a "
            "jaxfn.Function, because JAX does not use the rules of this one. To run it "
            "in JAX as it is, use jaxfn.torch.from_torch."
        )
    if isinstance(fun, Function) or not callable(fun):
        raise messages.RuleTypeError(
            f"check got {type_name(fun)}: expected a function or a class. Pass the "
            "function or class itself, without parentheses, and then the arguments."
        )
    if any(map(is_tensor, tree_util.tree_leaves(args))):
        raise messages.RuleTypeError(
            "check got a torch.Tensor as an argument: expected JAX or NumPy arrays. "
            "Pass tensor.numpy()."
        )
    _refuse_misfit(fun, args)


def _refuse_misfit(fun: Any, args: Sequence[Any]) -> None:
    """Refuse too few or too many arguments: then no rule is wrong."""
    function = fun.fun if isinstance(fun, custom_function) else fun
    ctx: list[Any] = []
    cls = getattr(fun, "_jaxfn_class", fun)
    is_class = isinstance(cls, type) and issubclass(cls, Function)
    # A wrapper, such as jax.grad(F.apply), has a copy of the attribute.
    if is_class and (fun is cls or fun is cls.apply):
        function, ctx = cls.forward, [] if is_separate(cls) else [None]
    try:
        # A wrapper may take other arguments than the function that it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # Some builtins have none.
        return
    try:
        signature.bind(*ctx, *args)
    except TypeError as error:
        name = name_of(fun)
        own = list(signature.parameters.values())[len(ctx) :]
        signature = signature.replace(parameters=own)
        raise messages.RuleTypeError(
            f"check got {len(args)} arguments for `{name}`, which don't fit: {error}. "
            f"Expected an example of each argument of {name}{signature}."
        ) from None


def _with_numbers_as_arrays(fun: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments, with Python floats as arrays where derivatives need them.

    A decorated function takes numbers as arrays. Elsewhere a number is static. But if
    no argument is an array, there would be nothing to check.
    """
    found, spec = values.split(tuple(args), lambda x: isinstance(x, (float, complex)))
    arrays, _ = values.split(tuple(args))
    if isinstance(fun, custom_function) or not arrays:
        return spec.join([np.asarray(x) for x in found])
    return tuple(args)


def _labels_of(args: tuple[Any, ...]) -> list[str]:
    """Name each array among the arguments, also inside pytrees."""
    labels = []
    for path, leaf in tree_util.tree_flatten_with_path(args)[0]:
        if values.is_array(leaf):
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
