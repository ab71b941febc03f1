"""What `gradcheck` does, check by check."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat, errors, pytree
from jaxfn._gradcheck import jacobians
from jaxfn._gradcheck.jacobians import Fun, Reverse


class OutputError(TypeError, AttributeError):
    """The function to check returned something else than arrays."""


@dataclasses.dataclass(frozen=True)
class Options:
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_undefined_grad: bool
    check_grad_dtypes: bool
    check_batched_grad: bool
    check_batched_forward_grad: bool
    check_forward_ad: bool
    check_backward_ad: bool
    fast_mode: bool


def as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def random(x: Any, generator: np.random.Generator, low: float = 0.0) -> Any:
    """Uniform numbers between `low` and 1 (and so many times i) in the space of `x`."""
    numbers: Any = generator.uniform(low, 1.0, x.shape)
    if jacobians.is_complex(x):
        numbers = numbers + 1j * generator.uniform(low, 1.0, x.shape)
    return jnp.asarray(numbers, x.dtype)


class Call:
    """A function of its float and complex inputs alone, with a flat list of outputs.

    The first call is at the inputs, the others are there or `eps` beside them.
    """

    def __init__(self, func: Callable[..., Any], inputs: Any, eps: float) -> None:
        self.func, self._eps = func, eps
        self._kinds: list[tuple[Any, Any]] | None = None
        self.name = getattr(func, "__qualname__", None) or f"{func}"
        arrays, self._spec = pytree.split(as_tuple(inputs))
        self._arrays = [
            a if isinstance(a, jax.Array) else jnp.asarray(a) for a in arrays
        ]
        self._at = [i for i, a in enumerate(self._arrays) if pytree.is_inexact(a)]
        self.xs = [self._arrays[i] for i in self._at]

    def __call__(self, *xs: Any) -> list[Any]:
        arrays = list(self._arrays)
        for i, x in zip(self._at, xs, strict=True):
            arrays[i] = x
        out = self.func(*self._spec.join(arrays))
        outputs = jax.tree.leaves(out, is_leaf=lambda o: o is None)
        for j, o in enumerate(outputs):
            if not pytree.is_array(o):
                raise OutputError(
                    f"'{type(o).__name__}' object has no attribute 'requires_grad'. "
                    f"Output {j} of `{self.name}` is no array: expected arrays only, "
                    f"got {o!r}. Check a function that returns only the arrays."
                )
        self._expect_same_kinds(outputs)
        return outputs

    def _expect_same_kinds(self, outputs: list[Any]) -> None:
        """Refuse outputs whose number, shapes or dtypes depend on values of the inputs.

        NumPy would broadcast and cast them to a difference that means nothing.
        """
        kinds = [(o.shape, o.dtype) for o in outputs]
        if self._kinds is None:
            self._kinds = kinds
        counts = len(self._kinds), len(kinds)
        if counts[0] != counts[1]:
            of = f"the outputs of `{self.name}`"
            raise errors.OutputChangedError("number", self._eps, *counts, of)
        for j, (first, now) in enumerate(zip(self._kinds, kinds, strict=True)):
            for what, a, b in zip(("shape", "dtype"), first, now, strict=True):
                if a != b:
                    of = f"output {j} of `{self.name}`"
                    raise errors.OutputChangedError(what, self._eps, a, b, of)

    def warn(self) -> None:
        """Warn of single precision; refuse where nothing can be differentiated."""
        for i, x in zip(self._at, self.xs, strict=True):
            if x.dtype not in (np.float64, np.complex128):
                warnings.warn(
                    f"Input #{i} requires gradient and is not a double precision "
                    "floating point or complex. This check will likely fail if all "
                    "the inputs are not of double precision floating point or "
                    f"complex. It is {x.dtype}: enable jax_enable_x64 and pass "
                    "float64.",
                    stacklevel=4,
                )
        if not self.xs:
            raise ValueError(
                "gradcheck expects at least one input tensor to require gradient, but "
                "none of them have requires_grad=True. Expected a float or complex "
                f"array among the inputs of `{self.name}`, got none."
            )


class Gradcheck:
    """One run of gradcheck."""

    def __init__(self, func: Callable[..., Any], inputs: Any, options: Options) -> None:
        self.call = Call(func, inputs, options.eps)
        self.xs, self.options = self.call.xs, options
        self.generator = np.random.default_rng(0)

    def run(self) -> None:
        options = self.options
        self.call.warn()
        outputs = self.call(*self.xs)
        if not any(map(pytree.is_inexact, outputs)):
            self.expect_constant()
            return
        self.floats = floats = jacobians.of_floats(self.call)
        if options.check_backward_ad:
            for f, part in self.real_outputs(floats):
                self.check_reverse(f, part)
        if options.check_forward_ad:
            with self.torch_words():
                for f, xs, part in self.real_inputs(floats):
                    self.check_forward(f, xs, part)
                    if options.check_undefined_grad:
                        self.check_constant_inputs(f, xs)
                if options.check_batched_forward_grad:
                    self.check_batched_forward()
        if options.check_backward_ad:
            self.check_cotangents()

    @contextlib.contextmanager
    def torch_words(self) -> Iterator[None]:
        """JAX refuses forward mode with a TypeError; torch says what to do."""
        try:
            yield
        except TypeError as error:
            if compat.FORWARD_MODE_REFUSAL not in str(error):
                raise
            text = f"{errors.NO_JVP} `{self.call.name}` has no forward rule."
            raise NotImplementedError(text) from error

    def real_outputs(self, f: Fun) -> list[tuple[Fun, str | None]]:
        """`f` with real outputs: as it is, or in two parts, as torch takes it."""
        if not any(map(jacobians.is_complex, f(*self.xs))):
            return [(f, None)]
        return [
            (jacobians.part_of_outputs(f, jnp.imag), "imaginary"),
            (jacobians.part_of_outputs(f, jnp.real), "real"),
        ]

    def real_inputs(self, f: Fun) -> list[tuple[Fun, list[Any], str | None]]:
        """`f` with real inputs: as it is, or in two parts, as torch takes it."""
        if not any(map(jacobians.is_complex, self.xs)):
            return [(f, self.xs, None)]
        return [
            (*jacobians.part_of_inputs(f, self.xs, imaginary=True), "imaginary"),
            (*jacobians.part_of_inputs(f, self.xs, imaginary=False), "real"),
        ]

    def is_fast(self, *arrays: Any) -> bool:
        return self.options.fast_mode and not any(map(jacobians.is_complex, arrays))

    # ---- the checks, in torch's order

    def expect_constant(self) -> None:
        for per_output in jacobians.numerical(self.call, self.xs, self.options.eps):
            if any(np.any(jacobian != 0) for jacobian in per_output):
                raise errors.GradcheckError(
                    "Numerical gradient for function expected to be zero. "
                    f"`{self.call.name}` has integer outputs only, and they change."
                )

    def check_reverse(self, f: Fun, part: str | None) -> None:
        """The Jacobian of each output by backward, run twice."""
        reverse = Reverse(f, self.xs)
        if self.is_fast(*self.xs, *reverse.outputs):
            self.check_reverse_fast(f, reverse)
            return
        numerical = jacobians.numerical(f, self.xs, self.options.eps)
        complex_out = [jacobians.is_complex(o) for o in self.floats(*self.xs)]
        for j in range(len(reverse.outputs)):
            analytical = self.twice(lambda j=j: reverse.jacobians(j))
            for i, a in enumerate(analytical):
                self.compare(a, numerical[i][j], j, i, part if complex_out[j] else None)

    def check_reverse_fast(self, f: Fun, reverse: Reverse) -> None:
        """A random projection of each Jacobian, v J u: `fast_mode`."""
        eps = self.options.eps
        for j, o in enumerate(reverse.outputs):
            v = random(o, self.generator)
            pulled = self.twice(lambda j=j, v=v: [*map(np.asarray, reverse.pull(j, v))])
            for i, x in enumerate(self.xs):
                u = random(x, self.generator)
                along = jacobians.difference(f, self.xs, i, eps * u, eps)[j]
                n = np.asarray(along @ np.asarray(v).ravel())
                a = np.asarray(np.sum(pulled[i] * np.asarray(u)))
                # Each element of J may be off by atol: so its projection by sum(u v).
                scale = float(u.sum()) * float(v.sum())
                self.compare(a, n, j, i, None, scale=scale)

    def check_forward(self, f: Fun, xs: list[Any], part: str | None) -> None:
        """The Jacobian of each output by jvp."""
        complex_in = [jacobians.is_complex(x) for x in self.xs]
        if self.is_fast(*xs, *f(*xs)):
            self.check_forward_fast(f, xs)
            return
        numerical = jacobians.numerical(f, xs, self.options.eps)
        for i, per_output in enumerate(jacobians.forward(f, xs)):
            for j, a in enumerate(per_output):
                at = part if complex_in[i] else None
                self.compare(a, numerical[i][j], j, i, at, forward=True)

    def check_forward_fast(self, f: Fun, xs: list[Any]) -> None:
        eps = self.options.eps
        for i, x in enumerate(xs):
            u = random(x, self.generator)
            numerical = jacobians.difference(f, xs, i, eps * u, eps)
            pushed = jacobians.push(f, xs, i, u)
            for j, (t, n) in enumerate(zip(pushed, numerical, strict=True)):
                a, scale = np.asarray(t).ravel(), float(u.sum())
                self.compare(a, n, j, i, None, scale=scale, forward=True)

    def twice(self, run: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        """What backward gives, if it gives the same again and has the right dtypes."""
        first, second = run(), run()
        tolerance = self.options.nondet_tol
        for a, b, x in zip(first, second, self.xs, strict=True):
            if self.options.check_grad_dtypes and a.size and a.dtype != x.dtype:
                raise errors.GradcheckError(
                    f"Gradient has dtype mismatch: expected {x.dtype}, got {a.dtype} "
                    f"from the backward rule of `{self.call.name}`."
                )
            if a.size and np.max(np.abs(a - b)) > tolerance:
                raise errors.GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input "
                    "and grad_output multiple times gives different values, although "
                    "analytical gradient matches numerical gradient.The tolerance for "
                    f"nondeterminism was {tolerance}. Two runs of the backward of "
                    f"`{self.call.name}` differ by {np.max(np.abs(a - b)):.3g}: if "
                    "they must, pass nondet_tol."
                )
        return first

    def compare(
        self,
        a: np.ndarray,
        n: np.ndarray,
        j: int,
        i: int,
        part: str | None,
        *,
        scale: float = 1.0,
        forward: bool = False,
    ) -> None:
        options = self.options
        if np.allclose(a, n, rtol=options.rtol, atol=options.atol * scale):
            return
        kind = "inputs" if forward else "outputs"
        prefix = f"While considering the {part} part of complex {kind} only, "
        mode = "computed with forward mode " if forward else ""
        what = "A random projection of the" if options.fast_mode else "The"
        raise errors.GradcheckError(
            f"{prefix if part else ''}Jacobian {mode}mismatch for output {j} with "
            f"respect to input {i},\nnumerical:{n}\nanalytical:{a}\n"
            f"{what} Jacobian has a row for each element of the input. The analytical "
            f"one is by the {'jvp' if forward else 'backward'} of `{self.call.name}`; "
            f"the largest difference is {np.max(np.abs(a - n)):.3g}."
        )

    def check_batched_forward(self) -> None:
        for i, x in enumerate(self.xs):
            ts = [random(x, self.generator) for _ in range(2)]
            self.check_batch(
                lambda t, i=i: jacobians.push(self.floats, self.xs, i, t), ts, i
            )

    def check_batch(self, f: Callable[[Any], Any], rows: list[Any], at: int) -> None:
        """Does f give the same under vmap?"""
        expected = [np.stack(row) for row in zip(*map(f, rows), strict=True)]
        try:
            got = jax.vmap(f)(jnp.stack(rows))
        except Exception as error:
            raise errors.GradcheckError(
                f"While computing batched gradients, got: {error}\n\nThe rules of "
                f"`{self.call.name}` don't work under jax.vmap, where arrays have no "
                "values yet."
            ) from error
        for k, (a, b) in enumerate(zip(got, expected, strict=True)):
            if not np.allclose(a, b, rtol=self.options.rtol, atol=self.options.atol):
                raise errors.GradcheckError(
                    f"Batched gradients of `{self.call.name}` differ from those one at "
                    f"a time (argument {at}, result {k}):\n\nGot:\n{a}\n\n"
                    f"Expected:\n{b}"
                )

    def check_constant_inputs(self, f: Fun, xs: list[Any]) -> None:
        """Is a constant input like one with zero tangent?"""
        ts = [random(x, self.generator) for x in xs]
        for i, x in enumerate(xs):
            given = jacobians.replaced(ts, i, jnp.zeros_like(x))
            with_zero = jax.jvp(f, xs, given)[1]
            others = [k for k in range(len(xs)) if k != i]
            if not others:
                continue

            def of_others(*moving: Any, others: list[int] = others) -> Any:
                whole = dict(zip(others, moving, strict=True))
                return f(*[whole.get(k, xs[k]) for k in range(len(xs))])

            rest = [xs[k] for k in others], [given[k] for k in others]
            constant = jax.jvp(of_others, *rest)[1]
            for j, (a, b) in enumerate(zip(constant, with_zero, strict=True)):
                if not np.allclose(
                    a, b, rtol=self.options.rtol, atol=self.options.atol
                ):
                    raise errors.GradcheckError(
                        f"Mismatch in tangent values for output with index: {j}, when "
                        f"input {i} of `{self.call.name}` has an undefined tangent "
                        f"value. Got: {a}, but expected: {b}"
                    )

    def check_cotangents(self) -> None:
        """Backward under vmap, for zero cotangents, and with unused outputs."""
        reverse = Reverse(self.floats, self.xs)
        if self.options.check_batched_grad:
            for j, o in enumerate(reverse.outputs):
                rows = [random(o, self.generator, low=-1.0) for _ in range(2)]
                self.check_batch(lambda ct, j=j: reverse.pull(j, ct), rows, j)
        if any(np.any(g != 0) for g in reverse.pull_all(reverse.zeros())):
            raise errors.GradcheckError(
                "backward not multiplied by grad_output: the backward of "
                f"`{self.call.name}` returns gradients that are not zero where all "
                "cotangents are."
            )
        n = len(reverse.outputs)
        if not self.options.check_undefined_grad or n == 1:
            return
        for unused in range(n):
            rest = [j for j in range(n) if j != unused]

            def used(*xs: Any, rest: list[int] = rest) -> list[Any]:
                outputs = self.floats(*xs)
                return [outputs[j] for j in rest]

            try:
                part = Reverse(used, self.xs)
                grads = part.pull_all(part.zeros())
            except RuntimeError as error:
                raise errors.GradcheckError(
                    "Expected backward function to handle undefined output grads. "
                    f"Where output {unused} of `{self.call.name}` is not used, its "
                    f"backward raised: {error}"
                ) from error
            if any(np.any(g != 0) for g in grads):
                raise errors.GradcheckError(
                    "Expected all input grads to be undefined or zero when all output "
                    "grads are undefined or zero. The backward of "
                    f"`{self.call.name}` gives others where output {unused} is unused."
                )
