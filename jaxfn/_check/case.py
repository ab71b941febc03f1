"""The function that `check` is about, as a function of its float arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._base import pytree, short
from jaxfn._check import numbers
from jaxfn._check.numbers import Arrays
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
        surrogate: do the rules differ from the derivative of forward on purpose?
        eps: rounding error of the precision.
        sources: the rule that another one is derived from: {"backward": "jvp"}.
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
    ) -> None:
        self.fun: Callable[..., Any] = fun.apply if isinstance(fun, type) else fun
        self.name = name_of(fun)
        self.given = tuple(args)
        arrays, self.spec = pytree.split(self.given)
        self.arrays = [_cast(x, precision) for x in arrays]
        self.labels = _labels(self.given)
        self.at = [i for i, x in enumerate(self.arrays) if pytree.is_inexact(x)]
        self.reference, self.surrogate = reference, surrogate
        self.eps = numbers.eps_of(self.arrays)
        self.seed = seed
        self.sources = _sources(fun)

    def rng(self) -> np.random.Generator:
        """Random numbers; the same for each check, whichever of them run."""
        return np.random.default_rng(self.seed)

    @property
    def xs(self) -> Arrays:
        return [self.arrays[i] for i in self.at]

    @property
    def x_labels(self) -> list[str]:
        return [self.labels[i] for i in self.at]

    @property
    def slope_tolerance(self) -> float:
        return self.eps**0.4

    @property
    def same_tolerance(self) -> float:
        return self.eps**0.5

    # ---- the function

    def run(self, *arrays: Any) -> Arrays:
        """The arrays that the function returns for these arrays."""
        return self._run(self.fun, arrays)

    def _run(self, fun: Callable[..., Any], arrays: Sequence[Any]) -> Arrays:
        return pytree.split(fun(*self.spec.join(numbers.copies(arrays))))[0]

    def f(self, *xs: Any) -> Arrays:
        """The float outputs, as a function of the float arrays alone."""
        return self.floats_of(self.fun, xs)

    def reference_f(self, *xs: Any) -> Arrays:
        assert self.reference is not None
        return self.floats_of(self.reference, xs)

    def floats_of(self, fun: Callable[..., Any], xs: Sequence[Any]) -> Arrays:
        arrays = list(self.arrays)
        for i, x in zip(self.at, xs, strict=True):
            arrays[i] = x
        return [o for o in self._run(fun, arrays) if pytree.is_inexact(o)]

    def only(self, chosen: Sequence[int]) -> Callable[..., Arrays]:
        """`f` of these of its arguments; the others are constants."""

        def of_chosen(*some: Any) -> Arrays:
            xs = self.xs
            for i, x in zip(chosen, some, strict=True):
                xs[i] = x
            return self.f(*xs)

        return of_chosen

    # ---- its derivatives

    def cts(self, generator: np.random.Generator) -> Arrays:
        return [numbers.like(o, generator) for o in self.f(*self.xs)]

    def ts(self, generator: np.random.Generator) -> Arrays:
        return [numbers.direction(x, generator) for x in self.xs]

    def pull(self, cts: Arrays, *xs: Any) -> Arrays:
        """Cotangents of the float arrays: the reverse mode."""
        return list(jax.vjp(self.f, *xs)[1](cts))

    def push(self, ts: Arrays, *xs: Any) -> Arrays:
        """Tangents of the float outputs: the forward mode."""
        return jax.jvp(self.f, xs, tuple(ts))[1]

    def subsets(self) -> list[tuple[int, ...]]:
        """Of the float arrays: all of them, for five or more only the extreme ones."""
        n = len(self.at)
        everything = tuple(range(n))
        if n < 5:
            found = [
                tuple(i for i in everything if bits >> i & 1) for bits in range(1, 2**n)
            ]
        else:
            found = [(i,) for i in everything]
            found += [tuple(j for j in everything if j != i) for i in everything]
        return [chosen for chosen in found if chosen != everything]

    def batch(self, n: int) -> list[Arrays]:
        """`n` examples: the arguments, and others near them."""
        generator = self.rng()
        rows = [list(self.arrays)]
        for _ in range(n - 1):
            row = list(self.arrays)
            for i in self.at:
                row[i] = row[i] + 0.05 * numbers.direction(row[i], generator)
            rows.append(row)
        return rows


def _sources(fun: Any) -> dict[str, str]:
    """Which derivative is the transpose of the other, where the function says so."""
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


def name_of(fun: Any) -> str:
    found = getattr(fun, "__qualname__", None) or f"{type(fun).__name__}"
    return found.rsplit("<locals>.", maxsplit=1)[-1]


def _cast(x: Any, precision: str) -> Any:
    if not pytree.is_inexact(x) or precision == "given":
        return x if numbers.is_key(x) else jnp.asarray(x)
    if precision == "float64":
        return jnp.asarray(x, jnp.complex128 if numbers.is_complex(x) else jnp.float64)
    # There is no complex number of half the precision of complex64.
    return jnp.asarray(x, jnp.complex64 if numbers.is_complex(x) else precision)


def _labels(args: tuple[Any, ...]) -> list[str]:
    labels = []
    for path, leaf in tree_util.tree_flatten_with_path(args)[0]:
        if pytree.is_array(leaf):
            position, *rest = path
            inside = tree_util.keystr(tuple(rest))
            labels.append(f"argument {position.idx}{inside} ({short(leaf)})")
    return labels
