"""A forward that saves while it computes, safe to differentiate to any order.

Its Python runs once. The outputs then get the derivative of the rules (`attachment`),
and what was saved is replaced: an input by the real one, an output by the attached one.
What forward computed on its way and saved has the derivative of what ran. For that it
runs behind a gate (`attachment.Gate`), which opens if such a value was saved.

Where a derivative is taken while forward runs, JAX asks the gate before forward has
ended. There forward is traced first, and then the jaxpr is evaluated, which runs no
Python. A body that can't be traced, since it needs values, runs with them; then the
derivative of what it saved on its way is refused.

Whether a value is an input or an output is known by identity. Outside of a trace that
can be wrong: there `lax.stop_gradient(x)` is `x` itself. Where this matters, forward is
traced to see.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxfn._base import Outputs, as_jax, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.engines import push_forward
from jaxfn._engine.gate import Gate, stop_gradient, through_references, used_by
from jaxfn._engine.rules import Arrays, Perturbed, Residuals, Rules
from jaxfn._engine.runs import Run, check_untraceable
from jaxfn._engine.tie import tied


class OnePass:
    """The `fwd` of `Rules` for a forward that saves while it computes.

    A face says how to run forward, and what the residuals are.

    Args:
        run: `run(inputs, perturbed) -> outputs, leaves saved, Run`.
        residuals: `residuals(run, leaves, inputs, outputs, perturbed)`.
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
        """Return the outputs, with their derivative, and the residuals."""
        outs, leaves, run, closed_over = self._ran(arrays, perturbed)
        # The rules need what forward computed on its way, and as inputs of `attach` it
        # reaches them wherever they are called: batched under vmap, say.
        others = run.others(leaves)
        values = attach(
            partial(self._tangents, run, len(arrays)),
            [*arrays, *others],
            outs,
            name=self._rules().name,
            closed_over=closed_over,
        )
        residuals = self._substitute(run, arrays, others, perturbed, values)
        return Outputs(values, run.out), residuals

    def primal(self, arrays: Arrays, perturbed: Perturbed) -> Outputs:
        """Return the outputs alone, where nothing is differentiated."""
        recording = compat.Recording()
        outs, _, run = self._run(arrays, perturbed)
        return Outputs(self._tied(run, arrays, outs, recording), run.out)

    def _ran(self, arrays: Arrays, perturbed: Perturbed) -> _Found:
        """Run forward once, so that what it saved has the derivative of what ran."""
        if any(map(compat.is_differentiated, arrays)):
            return self._ran_live(arrays, perturbed)
        # The gate is asked when forward has ended: its Python can run as it is.
        return self._behind(Gate(), arrays, perturbed)

    def _marks(self, arrays: Arrays, perturbed: Perturbed) -> frozenset[int]:
        """Say which outputs forward marks; it is traced, and nothing else comes of it.

        Where there are values, an output and what lax.stop_gradient makes of it are one
        object: then both count as marked. In a trace they are two.
        """
        runs: list[Run] = []

        def trace(*values: Any) -> list[Any]:
            outs, _, run = self._run(list(values), perturbed)
            runs.append(run)
            return outs

        try:
            jax.make_jaxpr(trace)(*arrays)
        except errors.RuleError:
            raise  # a value was marked that is not an output
        except Exception as error:  # a body that needs values may raise anything
            raise errors.RuleValueError(
                f"`{self._rule}` marked an output that is the same object as another "
                "(outside of a trace lax.stop_gradient(x) is x), and it can't be "
                "traced: expected to see which output is marked. Return a copy of it, "
                "jnp.copy(x)."
            ) from error
        return runs[-1].out.marked

    def _ran_live(self, arrays: Arrays, perturbed: Perturbed) -> _Found:
        """Run forward where a derivative of what it gives is being taken."""
        try:
            traced = self._trace(arrays, perturbed)
        except errors.RuleError:
            raise
        except Exception as error:  # noqa: BLE001  (a body that needs values: anything)
            why = type(error).__name__
        else:
            return traced(arrays)
        # With values, and with no derivative: it would be that of the body, and there
        # is no gate that could open in time.
        still = stop_gradient(arrays)
        outs, leaves, run = self._run(still, perturbed)
        again = lambda xs: self._run(xs, perturbed)[2]  # noqa: E731
        check_untraceable(self._rule, run, still, again, may_be_numpy=True)
        return outs, run.refusing(leaves, arrays, self._rule, why), run, None

    def _trace(
        self, arrays: Arrays, perturbed: Perturbed
    ) -> Callable[[Arrays], _Found]:
        """Run forward in a trace of its own; return what evaluates that trace.

        Its equations run when forward has ended, behind a gate which is then asked with
        the answer known.
        """
        runs: list[Run] = []
        gate = Gate()

        def trace(*values: Any) -> tuple[list[Any], list[Any]]:
            outs, leaves, run = self._through(gate, values, perturbed)
            runs.append(run)
            return outs, leaves

        jaxpr, shape = jax.make_jaxpr(trace, return_shape=True)(*arrays)
        tree = jax.tree.structure(shape)

        def found(arrays: Arrays) -> _Found:
            inside, recording = gate.enter(arrays), compat.Recording()
            outs, leaves = tree.unflatten(compat.evaluate(jaxpr, inside))
            # Here, and not in the trace: the vmaps at work show on these values.
            outs = self._tied(runs[-1], inside, outs, recording)
            # What else the values were computed from, for `attach`.
            own = gate.open or compat.makes_references(jaxpr)
            return outs, leaves, runs[-1], used_by(jaxpr) if own else None

        return found

    def _behind(self, gate: Gate, arrays: Arrays, perturbed: Perturbed) -> _Found:
        """Run forward behind the gate, and open it if an intermediate was saved."""
        inside, recording = gate.enter(arrays), compat.Recording()
        outs, leaves, run = self._through(gate, inside, perturbed)
        if len({id(outs[i]) for i in run.out.marked}) != len(run.out.marked):
            run.out.marked = self._marks(arrays, perturbed)
        again = lambda *xs: self._run(list(xs), perturbed)[0]  # noqa: E731
        closed_over = through_references(again, recording, inside, outs)
        if closed_over is None and gate.open:
            closed_over = recording.closed_over(outs, inside)
        outs = self._tied(run, inside, outs, recording)
        return outs, leaves, run, closed_over

    def _through(
        self, gate: Gate, inside: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], list[Any], Run]:
        """Run forward on what is inside the gate, and open it where that is needed."""
        outs, leaves, run = self._run(inside, perturbed)
        # A saved intermediate has the derivative of the body: it must come through. The
        # outputs get it too, and `attach` drops it from them.
        gate.open = any(map(is_inexact, run.others(leaves)))
        return outs, leaves, run

    def _tied(
        self, run: Run, arrays: Arrays, outs: Arrays, recording: compat.Recording
    ) -> list[Any]:
        """Return the outputs of a run; those with a derivative depend on all inputs."""
        differentiable = run.out.differentiable(outs)
        return tied(outs, arrays, recording, differentiable, name=self._rules().name)

    def _run(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], list[Any], Run]:
        """Run forward, and note where each leaf that it saved comes from."""
        outs, leaves, run = self._forward(inputs, perturbed)
        run.note_sources(leaves, inputs, outs)
        return [as_jax(x) for x in outs], leaves, run

    def _substitute(
        self,
        run: Run,
        arrays: Arrays,
        others: Arrays,
        perturbed: Perturbed,
        outs: Arrays,
    ) -> Residuals:
        """Return what was saved, with real inputs and attached outputs in place."""
        leaves = run.leaves(arrays, outs, others)
        return self._residuals(run, leaves, arrays, outs, perturbed)

    def _tangents(
        self, run: Run, n: int, inputs: Arrays, outs: Arrays, dots: Arrays
    ) -> Arrays:
        """Return the tangents of the outputs, by the rules: the rule of `attach`."""
        # The tangents of what forward computed on its way are left out: by the inputs
        # alone the rules give the whole derivative.
        arrays, others, dots = inputs[:n], inputs[n:], dots[:n]
        perturbed = run.pattern([d is not None for d in dots], self._rule)
        residuals = self._substitute(run, arrays, others, perturbed, outs)
        return push_forward(self._rules(), residuals, outs, dots)


_Found = tuple[list[Any], list[Any], Run, list[Any] | None]
"""The outputs, the leaves that were saved, and the rest of a run. Last comes what else
the outputs were computed from, if they have the derivative of what ran; or None."""
