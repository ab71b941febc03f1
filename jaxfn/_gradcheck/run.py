"""What `gradcheck` does, check by check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat, errors, pytree
from jaxfn._gradcheck import jacobians
from jaxfn._gradcheck.batches import Batches
from jaxfn._gradcheck.call import Call, Options, random
from jaxfn._gradcheck.jacobians import Fun, Reverse


class Gradcheck:
    """One run of gradcheck: of one function, at one point, with its options."""

    def __init__(self, func: Callable[..., Any], inputs: Any, options: Options) -> None:
        self.call = Call(func, inputs, options.eps)
        self.xs, self.options = self.call.xs, options
        self.generator = np.random.default_rng(0)

    def run(self) -> None:
        """Check by check, raise GradcheckError for the first that fails."""
        options = self.options
        self.call.warn()
        outputs = self.call(*self.xs)
        if not any(map(pytree.is_inexact, outputs)):
            self.expect_constant()
            return
        self.floats = floats = jacobians.of_floats(self.call)
        batches = Batches(self.call, floats, options, self.generator)
        if options.check_backward_ad:
            for f, part in self.real_outputs(floats):
                self.check_reverse(f, part)
        if options.check_forward_ad:
            with self.torch_words():
                for f, xs, part in self.real_inputs(floats):
                    self.check_forward(f, xs, part)
                    if options.check_undefined_grad:
                        batches.constant_inputs(f, xs)
                if options.check_batched_forward_grad:
                    batches.forward()
        if options.check_backward_ad:
            batches.cotangents()

    @contextlib.contextmanager
    def torch_words(self) -> Iterator[None]:
        """Raise torch's error where JAX refuses forward mode with a TypeError."""
        try:
            yield
        except TypeError as error:
            if compat.FORWARD_MODE_REFUSAL not in str(error):
                raise
            text = f"{errors.NO_JVP} `{self.call.name}` has no forward rule."
            raise NotImplementedError(text) from error

    def real_outputs(self, f: Fun) -> list[tuple[Fun, str | None]]:
        """Return `f` with real outputs: as it is, or in two parts, as torch does."""
        if not any(map(jacobians.is_complex, f(*self.xs))):
            return [(f, None)]
        # In torch's order: the message names the first part that fails.
        return [
            (jacobians.part_of_outputs(f, jnp.imag), "imaginary"),
            (jacobians.part_of_outputs(f, jnp.real), "real"),
        ]

    def real_inputs(self, f: Fun) -> list[tuple[Fun, list[Any], str | None]]:
        """Return `f` with real inputs: as it is, or in two parts, as torch does."""
        if not any(map(jacobians.is_complex, self.xs)):
            return [(f, self.xs, None)]
        return [
            (*jacobians.part_of_inputs(f, self.xs, imaginary=True), "imaginary"),
            (*jacobians.part_of_inputs(f, self.xs, imaginary=False), "real"),
        ]

    def is_fast(self, *arrays: Any) -> bool:
        """Is `fast_mode` on, and can it be used? It is for real arrays only."""
        return self.options.fast_mode and not any(map(jacobians.is_complex, arrays))

    # ---- the checks, in torch's order

    def expect_constant(self) -> None:
        """Check that outputs which have no derivative don't change."""
        for per_output in jacobians.numerical(self.call, self.xs, self.options.eps):
            if any(np.any(jacobian != 0) for jacobian in per_output):
                raise errors.GradcheckError(
                    "Numerical gradient for function expected to be zero. "
                    f"`{self.call.name}` has integer outputs only, and they change."
                )

    def check_reverse(self, f: Fun, part: str | None) -> None:
        """Compare the Jacobian of each output by backward, which runs twice."""
        reverse = Reverse(f, self.xs)
        if self.is_fast(*self.xs, *reverse.outputs):
            self.check_reverse_fast(f, reverse)
            return
        numerical = jacobians.numerical(f, self.xs, self.options.eps)
        # `f` has real outputs only; a real one of the function is no part of anything.
        complex_out = [jacobians.is_complex(o) for o in self.floats(*self.xs)]
        for j in range(len(reverse.outputs)):
            analytical = self.twice(lambda j=j: reverse.jacobians(j))
            for i, a in enumerate(analytical):
                self.compare(a, numerical[i][j], j, i, part if complex_out[j] else None)

    def check_reverse_fast(self, f: Fun, reverse: Reverse) -> None:
        """Compare a random projection of each Jacobian, as `fast_mode` asks.

        For random u and v it is v^T J u: a difference along u, times v, on one side,
        and on the other the gradient J^T v, times u.
        """
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
        """Compare the Jacobian of each output by jvp."""
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
        """Compare J u for a random u, as `fast_mode` asks."""
        eps = self.options.eps
        for i, x in enumerate(xs):
            u = random(x, self.generator)
            numerical = jacobians.difference(f, xs, i, eps * u, eps)
            pushed = jacobians.push(f, xs, i, u)
            for j, (t, n) in enumerate(zip(pushed, numerical, strict=True)):
                # Each element of J may be off by atol: so J u by sum(u), as u > 0.
                a, scale = np.asarray(t).ravel(), float(u.sum())
                self.compare(a, n, j, i, None, scale=scale, forward=True)

    def twice(self, run: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        """Return what backward gives, if it does so twice and in the right dtypes."""
        first, second = run(), run()
        tolerance = self.options.nondet_tol
        for a, b, x in zip(first, second, self.xs, strict=True):
            # Without elements it is a matrix that `jacobians` made, of no one's dtype.
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
        """Refuse a Jacobian that differs from the numerical one.

        Args:
            a: by the rules.
            n: by differences.
            j: the output.
            i: the input.
            part: which part of complex numbers is looked at.
            scale: what the absolute tolerance is multiplied by.
            forward: whether it is of forward mode.
        """
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
