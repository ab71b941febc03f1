"""What one entry of the catalogue is, and its inputs."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity import frameworks

Maker = Callable[[np.random.Generator], np.ndarray]
Make = Callable[[Any], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A Function in JAX and in torch: one text (see `Family.add`), or two.

    Attributes:
        name: of the case, and the seed of its inputs.
        jax: the function of arrays.
        torch: given the torch module, the same function of tensors.
        inputs: makes each array.
        second: is torch's double backward right? It is not where an intermediate value
            was saved, or where backward leaves autograd.
        exact: the same mathematics without a Function, where JAX can differentiate it
            and the rule is its derivative.
        forward: has it a jvp staticmethod?
        concrete: does it look at values, so that it works on concrete arrays only?
    """

    name: str
    jax: Callable[..., Any]
    torch: Callable[[Any], Callable[..., Any]]
    inputs: tuple[Maker, ...]
    second: bool = True
    exact: Callable[..., Any] | None = None
    forward: bool = False
    concrete: bool = False

    def arrays(self, dtype: str, example: int = 0) -> list[np.ndarray]:
        """The inputs of one example, with the width of `dtype`."""
        rng = self.rng("inputs", example)
        return [cast(make(rng), dtype) for make in self.inputs]

    def like(self, arrays: list[Any], what: str) -> list[np.ndarray]:
        """Random cotangents, tangents or weights for these arrays."""
        rng = self.rng(what, 0)
        return [_random(rng, np.shape(x), np.dtype(x.dtype)) for x in arrays]

    def rng(self, what: str, example: int) -> np.random.Generator:
        seed = [zlib.crc32(self.name.encode()), zlib.crc32(what.encode()), example]
        return np.random.default_rng(seed)


class Family(list[Case]):
    """The cases of a module."""

    def add(self, name: str, *inputs: Maker, **options: Any) -> Callable[[Make], Make]:
        """Decorate what makes a Function, given the framework: one text for both."""

        def append(make: Make) -> Make:
            theirs = lambda torch: make(frameworks.torch())  # noqa: E731
            exact = getattr(make, "exact", None)
            ours = make(frameworks.Jaxfn())
            self.append(Case(name, ours, theirs, inputs, exact=exact, **options))
            return make

        return append


def exact(plain: Callable[..., Any]) -> Callable[[Make], Make]:
    """Say, beneath `Family.add`, what the Function computes: see `Case`."""

    def note(make: Make) -> Make:
        make.exact = plain
        return make

    return note


def halves(x: Any) -> Any:
    """The two halves of the last axis."""
    n = x.shape[-1] // 2
    return x[..., :n], x[..., n:]


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """An array with the width of `dtype`; integers stay as they are."""
    if x.dtype.kind == "c":
        return x.astype({"float32": "complex64", "float64": "complex128"}[dtype])
    return x.astype(dtype) if x.dtype.kind == "f" else x


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    x = rng.normal(size=shape)
    if dtype.kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return np.asarray(x, dtype)


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Maker:
    return lambda rng: np.asarray(shift + scale * rng.normal(size=shape))


def complex_normal(*shape: int) -> Maker:
    return lambda rng: rng.normal(size=shape) + 1j * rng.normal(size=shape)


def uniform(low: float, high: float, *shape: int) -> Maker:
    return lambda rng: np.asarray(rng.uniform(low, high, size=shape))


def integers(high: int, *shape: int) -> Maker:
    return lambda rng: rng.integers(0, high, size=shape).astype(np.int32)


def positive_definite(n: int) -> Maker:
    """A symmetric matrix with eigenvalues from 1 to 3: solves stay well conditioned."""

    def make(rng: np.random.Generator) -> np.ndarray:
        q, _ = np.linalg.qr(rng.normal(size=(n, n)))
        return (q * np.linspace(1, 3, n)) @ q.T

    return make
