"""The function that `gradcheck` checks, and the options."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._core import values
from jaxfn._gradcheck import jacobians
from jaxfn._gradcheck.errors import OutputChangedError


class OutputError(TypeError, AttributeError):
    """The function to check returned an object that is no array.

    torch raises an AttributeError, because it reads `requires_grad`. By jaxfn's rules
    it is a TypeError, a value of the wrong kind. So it is both.
    """


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `gradcheck`: its checks and tolerances."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_undefined_grad: bool
    check_grad_dtypes: bool
    check_forward_ad: bool
    check_backward_ad: bool
    check_batched_grad: bool
    check_batched_forward_grad: bool


def as_tuple(x: Any) -> tuple[Any, ...]:
    """Return the arguments in torch's one argument `inputs`, as a tuple."""
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def random(x: Any, generator: np.random.Generator, low: float = 0.0) -> Any:
    """Draw numbers between `low` and 1, with the shape and dtype of `x`.

    The imaginary parts of complex numbers are between these bounds too.
    """
    numbers: Any = generator.uniform(low, 1.0, x.shape)
    if jacobians.is_complex(x):
        numbers = numbers + 1j * generator.uniform(low, 1.0, x.shape)
    return jnp.asarray(numbers, x.dtype)


class Call:
    """A function of the float and complex inputs alone, which returns a flat list.

    The first call is at the inputs themselves. Later calls are there, or `eps` away.
    """

    def __init__(self, func: Callable[..., Any], inputs: Any, eps: float) -> None:
        self.func, self._eps = func, eps
        self._kinds: list[tuple[Any, Any]] | None = None
        self.name = getattr(func, "__qualname__", None) or f"{func}"
        arrays, self._spec = values.split(as_tuple(inputs))
        self._arrays = [
            a if isinstance(a, jax.Array) else jnp.asarray(a) for a in arrays
        ]
        self._at = [i for i, a in enumerate(self._arrays) if values.is_number(a)]
        self.xs = [self._arrays[i] for i in self._at]

    def __call__(self, *xs: Any) -> list[Any]:
        """Call the function with `xs` in place of its float and complex inputs."""
        arrays = list(self._arrays)
        for i, x in zip(self._at, xs, strict=True):
            arrays[i] = x
        out = self.func(*self._spec.join(arrays))
        # For JAX None is an empty tree; here it is an output that is no array.
        outputs = jax.tree.leaves(out, is_leaf=lambda o: o is None)
        for j, o in enumerate(outputs):
            if not values.is_array(o):
                raise OutputError(
                    f"'{type(o).__name__}' object has no attribute 'requires_grad'. "
                    f"Output {j} of `{self.name}` is no array: expected arrays only, "
                    f"got {o!r}. Check a function that returns only the arrays."
                )
        self._expect_same_kinds(outputs)
        return outputs

    def _expect_same_kinds(self, outputs: list[Any]) -> None:
        """Refuse outputs whose number, shapes or dtypes depend on the inputs' values.

        NumPy would broadcast and cast them, to a meaningless difference.
        """
        kinds = [(o.shape, o.dtype) for o in outputs]
        if self._kinds is None:
            self._kinds = kinds
        counts = len(self._kinds), len(kinds)
        if counts[0] != counts[1]:
            of = f"the outputs of `{self.name}`"
            raise OutputChangedError("number", self._eps, *counts, of)
        for j, (first, now) in enumerate(zip(self._kinds, kinds, strict=True)):
            for what, a, b in zip(("shape", "dtype"), first, now, strict=True):
                if a != b:
                    of = f"output {j} of `{self.name}`"
                    raise OutputChangedError(what, self._eps, a, b, of)

    def warn(self) -> None:
        """Warn of single precision; refuse inputs without a float or complex array."""
        for i, x in zip(self._at, self.xs, strict=True):
            if x.dtype not in (np.float64, np.complex128):
                warnings.warn(
                    f"Input #{i} requires gradient and is not a double precision "
                    "floating point or complex. This check will likely fail if all "
                    "the inputs are not of double precision floating point or "
                    f"complex. It is {x.dtype}: enable jax_enable_x64 and pass "
                    "float64.",
                    stacklevel=4,  # the line that calls gradcheck
                )
        if not self.xs:
            raise ValueError(
                "gradcheck expects at least one input tensor to require gradient, but "
                "none of them have requires_grad=True. Expected a float or complex "
                f"array among the inputs of `{self.name}`, got none."
            )
