"""Jacobians of a function, by its rules and by finite differences.

A Jacobian is a NumPy matrix with a row for each element of the input and a column for
each element of the output, as torch's gradcheck prints it. The gradient of a real
output s by a complex input z = x + iy is ds/dx + i ds/dy. That is torch's convention;
JAX's gradient is the conjugate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._core import values
from jaxfn._gradcheck.errors import OutputChangedError

Outputs: TypeAlias = list[Any]
Fun: TypeAlias = Callable[..., Outputs]
Jacobians: TypeAlias = list[list[np.ndarray]]
"""For each input, for each output."""


def is_complex(x: Any) -> bool:
    """Return whether `x` is an array of complex numbers."""
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def basis(x: Any, unit: complex = 1.0) -> Iterator[Any]:
    """Yield the unit vectors of the space of `x`, times `unit`."""
    zeros = np.zeros(x.size, jnp.promote_types(x.dtype, type(unit)))
    for k in range(x.size):
        e = zeros.copy()
        e[k] = unit
        yield jnp.asarray(e.reshape(x.shape), x.dtype)


def replaced(xs: Sequence[Any], i: int, x: Any) -> list[Any]:
    """Return the arrays with `x` in place of number `i`."""
    return [x if j == i else y for j, y in enumerate(xs)]


def _wide(x: Any) -> np.ndarray:
    """Return a double precision vector, in which integers are subtracted exactly."""
    return np.asarray(x).astype(np.complex128 if is_complex(x) else np.float64).ravel()


def numerical(f: Fun, xs: Sequence[Any], eps: float) -> Jacobians:
    """Compute all Jacobians by central differences, in the dtype of the inputs.

    For a complex input z = x + iy the rows are df/dx + i df/dy, as in torch.
    """
    found: Jacobians = []
    sizes = [o.size for o in f(*xs)]
    for i, x in enumerate(xs):
        rows = _differences(f, xs, i, 1.0, eps)
        if is_complex(x):
            other = _differences(f, xs, i, 1j, eps)
            rows = [
                [a + 1j * b for a, b in zip(re, im, strict=True)]
                for re, im in zip(rows, other, strict=True)
            ]
        found.append([_stack(rows, j, n) for j, n in enumerate(sizes)])
    return found


def _differences(
    f: Fun, xs: Sequence[Any], i: int, unit: complex, eps: float
) -> list[Outputs]:
    """Compute the differences along each element of input i, times `unit`.

    These are central differences, (f(x + step) - f(x - step)) / (2 eps), with an error
    of order eps^2. With f(x) in place of one of the two it would be of order eps.
    """
    found = []
    for index, e in zip(np.ndindex(xs[i].shape), basis(xs[i], unit), strict=True):
        try:
            high = f(*replaced(xs, i, xs[i] + eps * e))
            low = f(*replaced(xs, i, xs[i] - eps * e))
        except OutputChangedError as error:
            error.index = index
            raise
        pairs = zip(high, low, strict=True)
        found.append([(_wide(a) - _wide(b)) / (2 * eps) for a, b in pairs])
    return found


def _stack(rows: Sequence[Sequence[Any]], j: int, size: int) -> np.ndarray:
    """Stack part j of each row, of this size, to a matrix."""
    # An array without elements gives no rows, and np.stack needs at least one.
    parts = [np.asarray(row[j]).ravel() for row in rows]
    return np.stack(parts) if parts else np.zeros((0, size))


class Reverse:
    """The reverse-mode derivative of `f` at `xs`."""

    def __init__(self, f: Fun, xs: Sequence[Any]) -> None:
        self.outputs, self._pull = jax.vjp(f, *xs)
        self._pull_one: dict[int, Any] = {}
        self.f, self.xs = f, xs

    def zeros(self) -> Outputs:
        """Make a zero cotangent for each output."""
        return [jnp.zeros_like(o) for o in self.outputs]

    def pull(self, j: int, ct: Any) -> tuple[Any, ...]:
        """Compute the gradients for this cotangent of output j, in torch's convention.

        As in torch, the other outputs are unused: they have no cotangents, not even
        zeros.
        """
        # Forward runs once for an output; backward runs whenever this is called.
        if j not in self._pull_one:
            self._pull_one[j] = jax.vjp(lambda *xs: self.f(*xs)[j], *self.xs)[1]
        return tuple(g.conj() for g in self._pull_one[j](ct))

    def pull_all(self, cts: Outputs) -> tuple[Any, ...]:
        """Compute the gradients for a cotangent of each output."""
        return self._pull(cts)

    def jacobians(self, j: int) -> list[np.ndarray]:
        """Compute the Jacobians of output j, one for each input."""
        # Each unit cotangent gives a column, the gradient of one element of the output.
        rows = [self.pull(j, e) for e in basis(self.outputs[j])]
        return [_stack(rows, i, x.size).T for i, x in enumerate(self.xs)]


def forward(f: Fun, xs: Sequence[Any]) -> Jacobians:
    """Compute all Jacobians by forward mode, for real inputs.

    Each unit tangent gives a row.
    """
    found: Jacobians = []
    sizes = [o.size for o in f(*xs)]
    for i in range(len(xs)):
        rows = [push(f, xs, i, e) for e in basis(xs[i])]
        found.append([_stack(rows, j, n) for j, n in enumerate(sizes)])
    return found


def push(f: Fun, xs: Sequence[Any], i: int, t: Any) -> Outputs:
    """Compute the tangents of the outputs, for this tangent of input i alone."""
    zeros = [jnp.zeros_like(x) for x in xs]
    return jax.jvp(f, list(xs), replaced(zeros, i, t))[1]


def of_floats(f: Fun) -> Fun:
    """Return `f` with its float and complex outputs alone."""
    return lambda *xs: [o for o in f(*xs) if values.is_number(o)]


def part_of_outputs(f: Fun, part: Callable[[Any], Any]) -> Fun:
    """Return `f` with the real or imaginary part of its complex outputs."""
    return lambda *xs: [part(o) if is_complex(o) else o for o in f(*xs)]


def part_of_inputs(f: Fun, xs: Sequence[Any], imaginary: bool) -> tuple[Fun, list[Any]]:
    """Return `f` as a function of one part of its complex inputs, and the parts.

    The part is real or imaginary; the other part is constant.
    """

    def of_part(*given: Any) -> Outputs:
        whole = []
        for part, x in zip(given, xs, strict=True):
            if is_complex(x):
                re, im = (x.real, part) if imaginary else (part, x.imag)
                part = jax.lax.complex(re, im)
            whole.append(part)
        return f(*whole)

    parts = [(x.imag if imaginary else x.real) if is_complex(x) else x for x in xs]
    return of_part, parts
