"""Checks of derivatives in batches, for zeros, and for inputs or outputs unused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import errors
from jaxfn._gradcheck import jacobians
from jaxfn._gradcheck.call import Call, Options, random
from jaxfn._gradcheck.jacobians import Fun, Reverse


class Batches:
    """The checks of one run that compare derivatives with each other.

    Args:
        call: the function.
        floats: the same with its float and complex outputs alone.
        options: of the run.
        generator: of random tangents and cotangents.
    """

    def __init__(
        self, call: Call, floats: Fun, options: Options, generator: np.random.Generator
    ) -> None:
        self._name, self._xs = call.name, call.xs
        self._floats, self._options, self._generator = floats, options, generator

    def forward(self) -> None:
        """Check that forward mode gives the same under vmap, input by input."""
        for i, x in enumerate(self._xs):
            ts = [random(x, self._generator) for _ in range(2)]
            self._same(
                lambda t, i=i: jacobians.push(self._floats, self._xs, i, t), ts, i
            )

    def _same(self, f: Callable[[Any], Any], rows: list[Any], at: int) -> None:
        """Check that `f` gives the same for a batch of rows as for one at a time."""
        expected = [np.stack(row) for row in zip(*map(f, rows), strict=True)]
        try:
            got = jax.vmap(f)(jnp.stack(rows))
        except Exception as error:
            raise errors.GradcheckError(
                f"While computing batched gradients, got: {error}\n\nThe rules of "
                f"`{self._name}` don't work under jax.vmap, where arrays have no "
                "values yet."
            ) from error
        for k, (a, b) in enumerate(zip(got, expected, strict=True)):
            if not np.allclose(a, b, rtol=self._options.rtol, atol=self._options.atol):
                raise errors.GradcheckError(
                    f"Batched gradients of `{self._name}` differ from those one at "
                    f"a time (argument {at}, result {k}):\n\nGot:\n{a}\n\n"
                    f"Expected:\n{b}"
                )

    def constant_inputs(self, f: Fun, xs: list[Any]) -> None:
        """Check that a constant input is like one with zero tangent."""
        ts = [random(x, self._generator) for x in xs]
        for i, x in enumerate(xs):
            given = jacobians.replaced(ts, i, jnp.zeros_like(x))
            # A jvp rule gets zeros for a tangent of zeros, and for a constant none.
            with_zero = jax.jvp(f, xs, given)[1]
            others = [k for k in range(len(xs)) if k != i]
            if not others:  # nothing moves
                continue

            def of_others(*moving: Any, others: list[int] = others) -> Any:
                whole = dict(zip(others, moving, strict=True))
                return f(*[whole.get(k, xs[k]) for k in range(len(xs))])

            rest = [xs[k] for k in others], [given[k] for k in others]
            constant = jax.jvp(of_others, *rest)[1]
            for j, (a, b) in enumerate(zip(constant, with_zero, strict=True)):
                if not np.allclose(
                    a, b, rtol=self._options.rtol, atol=self._options.atol
                ):
                    raise errors.GradcheckError(
                        f"Mismatch in tangent values for output with index: {j}, when "
                        f"input {i} of `{self._name}` has an undefined tangent "
                        f"value. Got: {a}, but expected: {b}"
                    )

    def cotangents(self) -> None:
        """Check backward under vmap, for zero cotangents, and with unused outputs."""
        reverse = Reverse(self._floats, self._xs)
        if self._options.check_batched_grad:
            for j, o in enumerate(reverse.outputs):
                rows = [random(o, self._generator, low=-1.0) for _ in range(2)]
                self._same(lambda ct, j=j: reverse.pull(j, ct), rows, j)
        # Backward is linear in the cotangents: zero gives zero.
        if any(np.any(g != 0) for g in reverse.pull_all(reverse.zeros())):
            raise errors.GradcheckError(
                "backward not multiplied by grad_output: the backward of "
                f"`{self._name}` returns gradients that are not zero where all "
                "cotangents are."
            )
        n = len(reverse.outputs)
        if not self._options.check_undefined_grad or n == 1:
            return
        # One at a time: where no output is used, JAX does not run backward at all.
        for unused in range(n):
            rest = [j for j in range(n) if j != unused]

            def used(*xs: Any, rest: list[int] = rest) -> list[Any]:
                outputs = self._floats(*xs)
                return [outputs[j] for j in rest]

            try:
                part = Reverse(used, self._xs)
                grads = part.pull_all(part.zeros())
            except RuntimeError as error:
                raise errors.GradcheckError(
                    "Expected backward function to handle undefined output grads. "
                    f"Where output {unused} of `{self._name}` is not used, its "
                    f"backward raised: {error}"
                ) from error
            if any(np.any(g != 0) for g in grads):
                raise errors.GradcheckError(
                    "Expected all input grads to be undefined or zero when all output "
                    "grads are undefined or zero. The backward of "
                    f"`{self._name}` gives others where output {unused} is unused."
                )
