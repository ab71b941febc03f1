"""The checks of `gradcheck`, one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._core import internals, messages, values
from jaxfn._gradcheck import jacobians
from jaxfn._gradcheck.call import Call, Options, random
from jaxfn._gradcheck.errors import GradcheckError
from jaxfn._gradcheck.jacobians import Fun, Reverse


class Gradcheck:
    """One run of gradcheck, for a function, its inputs and options."""

    def __init__(self, func: Callable[..., Any], inputs: Any, options: Options) -> None:
        self.call = Call(func, inputs, options.eps)
        self.xs, self.options = self.call.xs, options
        self.generator = np.random.default_rng(0)

    def run(self) -> None:
        """Run all checks; raise GradcheckError for the first that fails."""
        options = self.options
        self.call.warn()
        outputs = self.call(*self.xs)
        if not any(map(values.is_number, outputs)):
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
                    push = lambda ts: jax.jvp(floats, self.xs, ts)[1]  # noqa: E731
                    self.check_batched(push, self.xs, "jvp")
        if options.check_batched_grad:
            outs, pull = jax.vjp(floats, *self.xs)
            self.check_batched(pull, outs, "backward")
        if options.check_backward_ad:
            self.check_zero_cotangents()
            if options.check_undefined_grad:
                self.check_unused_outputs()

    @contextlib.contextmanager
    def torch_words(self) -> Iterator[None]:
        """Raise torch's error if JAX refuses forward mode with a TypeError."""
        try:
            yield
        except TypeError as error:
            if internals.FORWARD_MODE_REFUSAL not in str(error):
                raise
            text = f"{messages.NO_JVP} `{self.call.name}` has no forward rule."
            raise NotImplementedError(text) from error

    def real_outputs(self, f: Fun) -> list[tuple[Fun, str | None]]:
        """Return `f` with real outputs: as it is, or in torch's two parts."""
        if not any(map(jacobians.is_complex, f(*self.xs))):
            return [(f, None)]
        # In torch's order: the message names the first part that fails.
        return [
            (jacobians.part_of_outputs(f, jnp.imag), "imaginary"),
            (jacobians.part_of_outputs(f, jnp.real), "real"),
        ]

    def real_inputs(self, f: Fun) -> list[tuple[Fun, list[Any], str | None]]:
        """Return `f` with real inputs: as it is, or in torch's two parts."""
        if not any(map(jacobians.is_complex, self.xs)):
            return [(f, self.xs, None)]
        return [
            (*jacobians.part_of_inputs(f, self.xs, imaginary=True), "imaginary"),
            (*jacobians.part_of_inputs(f, self.xs, imaginary=False), "real"),
        ]

    # ---- the checks, in torch's order

    def expect_constant(self) -> None:
        """Check that outputs without derivative don't change."""
        for per_output in jacobians.numerical(self.call, self.xs, self.options.eps):
            if any(np.any(jacobian != 0) for jacobian in per_output):
                raise GradcheckError(
                    "Numerical gradient for function expected to be zero. "
                    f"`{self.call.name}` has integer outputs only, and they change."
                )

    def check_reverse(self, f: Fun, part: str | None) -> None:
        """Compare the Jacobian of each output by backward, which runs twice."""
        reverse = Reverse(f, self.xs)
        numerical = jacobians.numerical(f, self.xs, self.options.eps)
        # `f` has real outputs only. The message names a part only for a complex output.
        complex_out = [jacobians.is_complex(o) for o in self.floats(*self.xs)]
        for j in range(len(reverse.outputs)):
            analytical = self.twice(lambda j=j: reverse.jacobians(j))
            for i, a in enumerate(analytical):
                self.compare(a, numerical[i][j], j, i, part if complex_out[j] else None)

    def check_forward(self, f: Fun, xs: list[Any], part: str | None) -> None:
        """Compare the Jacobian of each output by jvp."""
        complex_in = [jacobians.is_complex(x) for x in self.xs]
        numerical = jacobians.numerical(f, xs, self.options.eps)
        for i, per_output in enumerate(jacobians.forward(f, xs)):
            for j, a in enumerate(per_output):
                at = part if complex_in[i] else None
                self.compare(a, numerical[i][j], j, i, at, forward=True)

    def check_constant_inputs(self, f: Fun, xs: list[Any]) -> None:
        """Check that a constant input acts like one with zero tangent."""
        ts = [random(x, self.generator) for x in xs]
        for i, x in enumerate(xs):
            given = jacobians.replaced(ts, i, jnp.zeros_like(x))
            # A jvp rule gets zeros for a zero tangent, and no tangent for a constant.
            with_zero = jax.jvp(f, xs, given)[1]
            others = [k for k in range(len(xs)) if k != i]
            if not others:  # nothing to differentiate
                continue

            def of_others(*values: Any, others: list[int] = others) -> Any:
                whole = dict(zip(others, values, strict=True))
                return f(*[whole.get(k, xs[k]) for k in range(len(xs))])

            rest = [xs[k] for k in others], [given[k] for k in others]
            constant = jax.jvp(of_others, *rest)[1]
            for j, (a, b) in enumerate(zip(constant, with_zero, strict=True)):
                if not self.is_close(a, b):
                    raise GradcheckError(
                        f"Mismatch in tangent values for output with index: {j}, when "
                        f"input {i} of `{self.call.name}` has an undefined tangent "
                        f"value. Got: {a}, but expected: {b}"
                    )

    def check_batched(self, derivative: Any, like: list[Any], rule: str) -> None:
        """Compare `jax.vmap` of a derivative with a loop over two directions."""
        rows = [[random(x, self.generator, -1.0) for x in like] for _ in range(2)]
        said = f"The {rule} of `{self.call.name}` under jax.vmap"
        failed = "gradcheck or gradgradcheck failed while testing batched gradient "
        try:
            got = jax.vmap(derivative)([jnp.stack(x) for x in zip(*rows, strict=True)])
        except Exception as error:
            text = f"{failed}computation. {said} raises: {error}"
            raise GradcheckError(text) from error
        for k, row in enumerate(rows):
            pairs = zip(got, derivative(row), strict=True)
            if not all(self.is_close(a[k], b) for a, b in pairs):
                raise GradcheckError(
                    f"{failed}computation. {said} differs from a loop."
                )

    def check_zero_cotangents(self) -> None:
        """Check that zero cotangents give zero, because backward is linear in them."""
        reverse = Reverse(self.floats, self.xs)
        if any(np.any(g != 0) for g in reverse.pull_all(reverse.zeros())):
            raise GradcheckError(
                "backward not multiplied by grad_output: the backward of "
                f"`{self.call.name}` returns nonzero gradients although all cotangents "
                "are zero."
            )

    def check_unused_outputs(self) -> None:
        """Check backward with one output unused at a time.

        If no output is used, JAX does not run backward at all.
        """
        n = len(self.floats(*self.xs))
        for unused in range(n if n > 1 else 0):
            rest = [j for j in range(n) if j != unused]

            def used(*xs: Any, rest: list[int] = rest) -> list[Any]:
                outputs = self.floats(*xs)
                return [outputs[j] for j in rest]

            try:
                part = Reverse(used, self.xs)
                grads = part.pull_all(part.zeros())
            except RuntimeError as error:
                raise GradcheckError(
                    "Expected backward function to handle undefined output grads. "
                    f"When output {unused} of `{self.call.name}` is not used, its "
                    f"backward raises: {error}"
                ) from error
            if any(np.any(g != 0) for g in grads):
                raise GradcheckError(
                    "Expected all input grads to be undefined or zero when all output "
                    "grads are undefined or zero. The backward of "
                    f"`{self.call.name}` gives others if output {unused} is unused."
                )

    def twice(self, run: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        """Return the Jacobians by backward; check that two runs agree, and dtypes."""
        first, second = run(), run()
        tolerance = self.options.nondet_tol
        for a, b, x in zip(first, second, self.xs, strict=True):
            # `jacobians` makes a matrix without elements itself, with a dtype of its
            # own.
            if self.options.check_grad_dtypes and a.size and a.dtype != x.dtype:
                raise GradcheckError(
                    f"Gradient has dtype mismatch: expected {x.dtype}, got {a.dtype} "
                    f"from the backward rule of `{self.call.name}`."
                )
            if a.size and np.max(np.abs(a - b)) > tolerance:
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input "
                    "and grad_output multiple times gives different values, although "
                    "analytical gradient matches numerical gradient.The tolerance for "
                    f"nondeterminism was {tolerance}. Two runs of the backward of "
                    f"`{self.call.name}` differ by {np.max(np.abs(a - b)):.3g}: if "
                    "they must, pass nondet_tol."
                )
        return first

    def is_close(self, a: Any, b: Any) -> bool:
        return np.allclose(a, b, rtol=self.options.rtol, atol=self.options.atol)

    def compare(
        self,
        a: np.ndarray,
        n: np.ndarray,
        j: int,
        i: int,
        part: str | None,
        *,
        forward: bool = False,
    ) -> None:
        """Refuse a Jacobian that differs from the numerical one.

        Args:
            a: The Jacobian by the rules.
            n: The Jacobian by differences.
            j: Index of the output.
            i: Index of the input.
            part: The compared part of complex numbers, for the message.
            forward: Whether the Jacobian is by forward mode.
        """
        if self.is_close(a, n):
            return
        kind = "inputs" if forward else "outputs"
        prefix = f"While considering the {part} part of complex {kind} only, "
        mode = "computed with forward mode " if forward else ""
        raise GradcheckError(
            f"{prefix if part else ''}Jacobian {mode}mismatch for output {j} with "
            f"respect to input {i},\nnumerical:{n}\nanalytical:{a}\n"
            f"The Jacobian has a row for each element of the input. The analytical "
            f"one is by the {'jvp' if forward else 'backward'} of `{self.call.name}`; "
            f"the largest difference is {np.max(np.abs(a - n)):.3g}."
        )
