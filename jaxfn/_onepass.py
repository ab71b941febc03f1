"""A forward that saves while it computes, safe to differentiate to any order.

It runs once, on inputs without derivative; then the Function's own derivative is
attached to the outputs (`_attach`). What it saved is replaced: an input by the real
one, an output by the attached one. A saved intermediate is attached too, with the
derivative of forward's body, which is traced once more only if somebody differentiates
it.

What is an input or an output is known by identity. Outside of a trace that can lie:
there `lax.stop_gradient(x)` is `x` itself. Where it matters, forward is traced to see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxfn import _compat
from jaxfn._attach import attach, stop_gradient
from jaxfn._engines import push_forward
from jaxfn._errors import RuleValueError
from jaxfn._rules import Arrays, Perturbed, Residuals, Rules
from jaxfn._tree import Outputs, OutSpec, as_jax, is_inexact


@dataclasses.dataclass(slots=True)
class Run:
    """What one run gave, without the arrays.

    Attributes:
        out: structure of the outputs.
        perturbed: for each array argument, whether it is differentiated.
        pattern_used: may what was saved depend on `perturbed`?
        saved: what was saved; of the face's own kind.
        sources: for each leaf that was saved where its value comes from: ("input", i),
            ("output", i) or ("other", i), counting within each kind. Filled in last.
        marks: indices of the outputs that were marked as without derivative.
        constants: where NumPy values of float type were kept.
        traced: did it run in a trace of its own?
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
    sources: tuple[tuple[str, int], ...] = ()
    marks: frozenset[int] = frozenset()
    constants: tuple[str, ...] = ()
    traced: bool = False

    def fits(self, perturbed: Perturbed) -> bool:
        """Is this also what would be saved with these inputs perturbed?"""
        return not self.pattern_used or perturbed == self.perturbed

    def others(self, leaves: Arrays) -> list[Any]:
        """The leaves that are neither inputs nor outputs."""
        pairs = zip(leaves, self.sources, strict=True)
        return [leaf for leaf, (kind, _) in pairs if kind == "other"]


class OnePass:
    """The `fwd` of `Rules`; a face says how to run forward, and what residuals are.

    Args:
        run: `run(inputs, perturbed) -> outputs, leaves saved, Run`.
        residuals: `residuals(run, leaves, inputs, outputs, perturbed) -> Residuals`.
        rules: the rules of the call; a function, because `fwd` is one of them.
        rule: what messages call forward.
    """

    def __init__(
        self,
        run: Callable[[Arrays, Perturbed], tuple[Arrays, list[Any], Run]],
        residuals: Callable[..., Residuals],
        rules: Callable[[], Rules],
        *,
        rule: str,
    ) -> None:
        self._forward = run
        self._residuals = residuals
        self._rules = rules
        self._rule = rule

    def fwd(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
        """The outputs, with their derivative, and the residuals."""
        outs, leaves, run = self._told_apart(arrays, perturbed)
        values = attach(
            partial(self._tangents, run),
            arrays,
            [*outs, *run.others(leaves)],
            name=self._rules().name,
        )
        residuals = self._substitute(run, arrays, values, perturbed)
        return Outputs(values[: len(outs)], run.out), residuals

    def _told_apart(
        self, arrays: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], list[Any], Run]:
        """One run, in a trace if something may have been taken for something else.

        That is so for outputs that are one object (and one may be marked), and for what
        was saved if it is differentiated again.
        """
        still = stop_gradient(arrays)
        found = outs, leaves, run = self._run(still, perturbed)
        again = any(
            _compat.is_tracer(_compat.known_value(x)) and not _compat.is_tracer(y)
            for x, y in zip(arrays, still, strict=True)
        )
        doubled = len({id(x) for x in outs}) < len(outs)
        if not doubled and not (again and (leaves or run.constants)):
            return found
        try:
            evaluate, traced = self._traced(still, perturbed)
        except RuleValueError:
            raise  # a value was marked that is not an output
        except Exception:  # noqa: BLE001  (a body that needs values may raise anything)
            self._check_untraceable(still, found, again=again)
            return found
        if not doubled and traced.sources == run.sources:
            return found
        return *evaluate(still), traced

    def _check_untraceable(
        self, still: Arrays, found: tuple[Arrays, list[Any], Run], *, again: bool
    ) -> None:
        """Refuse a run that can't be traced where something may be lost."""
        outs, _, run = found
        if len({id(outs[i]) for i in run.marks}) < len(run.marks):
            raise RuleValueError(
                f"`{self._rule}` marked an output that is the same object as another "
                "(outside of a trace lax.stop_gradient(x) is x), and it can't be "
                "traced: expected to see which output is marked. Return a copy of it, "
                "jnp.copy(x)."
            )
        if not again:
            return
        if run.constants:
            raise NotImplementedError(
                f"`{self._rule}` was differentiated again, kept NumPy values in "
                f"{' and '.join(run.constants)}, and can't be traced: expected JAX "
                "arrays, got values whose derivative would be lost. Save inputs, or "
                "outputs that are JAX arrays, and compute the rest in the rules; "
                "keep what is constant outside of ctx."
            )
        try:
            saved = self._with_values(still, run.perturbed).sources
        except Exception:  # noqa: BLE001  (a body in NumPy has no lax.stop_gradient)
            return
        if saved != run.sources:
            raise NotImplementedError(
                f"`{self._rule}` was differentiated again, saved lax.stop_gradient of "
                "a value, and can't be traced: expected operations that don't need "
                "values, as under jit. Write it without them, or split it into "
                "forward and setup_context."
            )

    def _with_values(self, inputs: Arrays, perturbed: Perturbed) -> Run:
        """The rest of a run in which arrays are objects of their own, with values."""
        moving = [i for i, x in enumerate(inputs) if is_inexact(x)]
        runs: list[Run] = []

        def look(*values: Any) -> tuple[()]:
            at = list(inputs)
            for i, value in zip(moving, values, strict=True):
                at[i] = value
            runs.append(self._run(at, perturbed)[2])
            return ()

        primals = tuple(inputs[i] for i in moving)
        jax.jvp(look, primals, primals)
        return runs[-1]

    def _traced(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Callable[[Arrays], tuple[list[Any], list[Any]]], Run]:
        """What computes outputs and leaves from such inputs; the rest of the run."""
        runs: list[Run] = []

        def trace(*values: Any) -> tuple[list[Any], list[Any]]:
            outs, leaves, run = self._run(values, perturbed)
            runs.append(run)
            return outs, leaves

        jaxpr, shape = jax.make_jaxpr(trace, return_shape=True)(*inputs)
        tree = jax.tree.structure(shape)
        runs[-1].traced = True
        return (
            lambda values: tree.unflatten(_compat.evaluate(jaxpr, values)),
            runs[-1],
        )

    def _run(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], list[Any], Run]:
        outs, leaves, run = self._forward(inputs, perturbed)
        places = {id(x): ("output", i) for i, x in enumerate(outs)}
        # Last: an input that is returned as it is and saved counts as the input.
        places |= {id(x): ("input", i) for i, x in enumerate(inputs)}
        sources, n_other = [], 0
        for leaf in leaves:
            source = places.get(id(leaf))
            if source is None:
                source = ("other", n_other)
                n_other += 1
            sources.append(source)
        run.sources = tuple(sources)
        return [as_jax(x) for x in outs], leaves, run

    def _substitute(
        self, run: Run, arrays: Arrays, values: Arrays, perturbed: Perturbed
    ) -> Residuals:
        """What was saved, with the real inputs and the attached values in place."""
        n = run.out.whole.n_arrays
        of_kind = {"input": arrays, "output": values[:n], "other": values[n:]}
        leaves = [of_kind[kind][i] for kind, i in run.sources]
        return self._residuals(run, leaves, arrays, values[:n], perturbed)

    def _tangents(
        self, run: Run, inputs: Arrays, values: Arrays, dots: Arrays
    ) -> Arrays:
        moving = tuple([d is not None for d in dots])
        n = run.out.whole.n_arrays
        if run.fits(moving):
            residuals = self._substitute(run, inputs, values, moving)
        else:
            again, residuals = self.fwd(inputs, moving)
            self._check_same("outputs", values[:n], again.arrays)
        return [
            *push_forward(self._rules(), residuals, values[:n], dots),
            *self._other_tangents(run, inputs, values[n:], dots),
        ]

    def _other_tangents(
        self, run: Run, inputs: Arrays, others: Arrays, dots: Arrays
    ) -> list[Any]:
        """The true tangents of saved intermediates: those of forward's body."""
        smooth = [is_inexact(x) for x in others]
        moving = [i for i, d in enumerate(dots) if d is not None]
        if not any(smooth):
            return [None] * len(others)

        def body(*values: Any) -> list[Any]:
            at = list(inputs)
            for i, value in zip(moving, values, strict=True):
                at[i] = value
            if run.traced:
                evaluate, again = self._traced(at, run.perturbed)
                _, leaves = evaluate(at)
            else:
                _, leaves, again = self._run(at, run.perturbed)
            found = again.others(leaves)
            if [x.shape for x in found] != [x.shape for x in others]:
                raise RuleValueError(
                    f"`{self._rule}` saved other intermediate values when it ran "
                    "again for their second derivative: expected shapes "
                    f"{[x.shape for x in others]}, got {[x.shape for x in found]}. "
                    "Make it save the same values for the same inputs."
                )
            return [x for x, s in zip(found, smooth, strict=True) if s]

        primals = tuple(inputs[i] for i in moving)
        again, found = jax.jvp(body, primals, tuple(dots[i] for i in moving))
        expected = [x for x, s in zip(others, smooth, strict=True) if s]
        self._check_same("intermediate values", expected, again)
        rest = iter(found)
        return [next(rest) if s else None for s in smooth]

    def _check_same(self, what: str, first: Arrays, second: Arrays) -> None:
        """Refuse a forward that is not a function, where its values are known."""
        for x, y in zip(first, second, strict=True):
            known = not _compat.is_tracer(x) and not _compat.is_tracer(y)
            if not known or not is_inexact(x) or not x.is_fully_addressable:
                continue
            a, b = (np.asarray(z).astype(np.complex128) for z in (x, y))
            # far above rounding, and below any other draw of random numbers
            if not np.allclose(a, b, rtol=1e-2, atol=1e-6, equal_nan=True):
                raise RuleValueError(
                    f"`{self._rule}` computed other {what} when it ran again for a "
                    f"derivative: expected {x}, got {y}. Make it a function of its "
                    "inputs: pass random numbers, or a PRNG key, to apply."
                )
