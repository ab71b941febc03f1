"""A forward that saves, safe to differentiate to any order.

Its Python runs once. The outputs then get the derivative of the rules (`attachment`),
and what was saved is replaced: an input by the real one, an output by the attached one.
What forward computed on its way and saved has the derivative of what ran. For that it
runs behind a gate (`gate.Gate`), which opens if such a value was saved.

If a derivative is taken while forward runs, JAX asks the gate before forward has ended.
Then forward is traced first, and the jaxpr is evaluated, which runs no Python. A body
that can't be traced, because it needs values, runs with them; then the derivative of
what it saved on its way is refused.

A forward may have a second part, which saves from inputs and outputs (torch's
setup_context). Whatever it computes has its true derivative, also with respect to the
outputs, which is the rules'. Therefore it is traced, and evaluated for the inputs and
the attached outputs that are at hand.

Whether a value is an input or an output is known by identity. Outside of a trace that
can be wrong: there `lax.stop_gradient(x)` is `x` itself. If this matters, forward is
traced to see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxfn._base import Outputs, OutSpec, as_jax, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.engines import push_forward
from jaxfn._engine.gate import Gate, stop_gradient
from jaxfn._engine.rules import Arrays, Perturbed, Residuals, Rules
from jaxfn._engine.runs import Run, check_untraceable
from jaxfn._engine.tie import tied

First = Callable[[Arrays, Perturbed], tuple[Arrays, list[Any], Run]]
"""Runs forward: `(inputs, perturbed) -> outputs, leaves saved, Run`."""

Second = Callable[[OutSpec, Arrays, Arrays, Perturbed], tuple[list[Any], Run]]
"""Saves: `(structure of outputs, inputs, outputs, perturbed) -> leaves saved, Run`."""


@dataclasses.dataclass(slots=True)
class _Ran:
    """One run of forward, with its arrays.

    Attributes:
        run: The rest of it.
        outs: Outputs.
        leaves: Leaves that it saved.
        inputs: Inputs that it was given, behind the gate.
        recording: A recording that began just before it computed.
        closed_over: Values that the outputs were computed from beside the inputs, if
            the outputs have the derivative of what ran; else None.
    """

    run: Run
    outs: Arrays
    leaves: Arrays
    inputs: Arrays
    recording: compat.Recording
    closed_over: list[Any] | None


class OnePass:
    """The `fwd` and the primal of `Rules`, for a forward that saves.

    A face says how to run forward, and what the residuals are.

    Args:
        first: Runs forward.
        residuals: `residuals(run, leaves, inputs, outputs, perturbed)`.
        rules: Returns the rules of the call; a function, because `fwd` is one of them.
        rule: Name of forward, for messages.
        second: The second part of forward, if it has one.
        second_rule: Name of the second part, for messages.
    """

    def __init__(
        self,
        first: First,
        residuals: Callable[..., Residuals],
        rules: Callable[[], Rules],
        *,
        rule: str,
        second: Second | None = None,
        second_rule: str = "",
    ) -> None:
        self._first, self._second = first, second
        self._residuals = residuals
        self._rules = rules
        self._rule, self._second_rule = rule, second_rule

    def fwd(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
        """Return the outputs, with their derivative, and the residuals."""
        ran = self._ran(arrays, perturbed)
        if self._second is None:
            run, others = ran.run, ran.run.others(ran.leaves)
        else:
            run, others = self._saved(ran.run.out, arrays, ran.outs, perturbed)
        # The rules need what was computed and saved, and as inputs of `attach` it
        # reaches them wherever they are called: batched under vmap, for example.
        outs = attach(
            partial(self._tangents, run, len(arrays)),
            [*arrays, *others],
            self._tied(run.out, ran.outs, ran.inputs, ran.recording),
            name=self._rules().name,
            closed_over=ran.closed_over,
        )
        residuals = self._substituted(run, arrays, others, perturbed, outs)
        return Outputs(outs, run.out), residuals

    def primal(self, arrays: Arrays, perturbed: Perturbed) -> Outputs:
        """Return the outputs alone, for a call that nobody differentiates."""
        recording = compat.Recording()
        outs, _, run = self._run(arrays, perturbed)
        # Called although nothing is kept, as in torch: it may have effects, and its
        # mistakes are to be reported here too.
        if self._second is not None:
            self._second(run.out, arrays, outs, perturbed)
        return Outputs(self._tied(run.out, outs, arrays, recording), run.out)

    def _tangents(
        self, run: Run, n: int, inputs: Arrays, outs: Arrays, dots: Arrays
    ) -> Arrays:
        """Return the tangents of the outputs, by the rules: the rule of `attach`."""
        # The tangents of what was computed and saved are left out: by the inputs alone
        # the rules give the whole derivative.
        arrays, others, dots = inputs[:n], inputs[n:], dots[:n]
        rule = self._second_rule or self._rule
        perturbed = run.pattern([d is not None for d in dots], rule)
        residuals = self._substituted(run, arrays, others, perturbed, outs)
        return push_forward(self._rules(), residuals, outs, dots)

    def _substituted(
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

    def _tied(
        self, out: OutSpec, outs: Arrays, inputs: Arrays, recording: compat.Recording
    ) -> list[Any]:
        """Return the outputs; those with a derivative depend on all inputs."""
        name, differentiable = self._rules().name, out.differentiable(outs)
        return tied(outs, inputs, recording, differentiable, name=name)

    # ---- forward

    def _run(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], list[Any], Run]:
        """Run forward, and note where each leaf that it saved comes from."""
        outs, leaves, run = self._first(inputs, perturbed)
        run.note_sources(leaves, inputs, outs)
        return [as_jax(x) for x in outs], leaves, run

    def _ran(self, arrays: Arrays, perturbed: Perturbed) -> _Ran:
        """Run forward once, so that what it saved has the derivative of what ran."""
        live = any(map(compat.is_differentiated, arrays))
        if self._second is not None or not live:
            # The gate is asked when forward has ended, or stays closed.
            return self._behind(Gate(), arrays, perturbed)
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
        still, recording = stop_gradient(arrays), compat.Recording()
        outs, leaves, run = self._run(still, perturbed)
        again = lambda xs: self._run(xs, perturbed)[2]  # noqa: E731
        check_untraceable(self._rule, run, still, again, may_be_numpy=True)
        leaves = run.refusing(leaves, arrays, self._rule, why)
        return _Ran(run, outs, leaves, arrays, recording, None)

    def _behind(self, gate: Gate, arrays: Arrays, perturbed: Perturbed) -> _Ran:
        """Run forward behind the gate, and open it if an intermediate was saved."""
        inside, recording = gate.enter(arrays), compat.Recording()
        outs, leaves, run = self._run(inside, perturbed)
        # A saved intermediate has the derivative of the body: it must come through. The
        # outputs get it too, and `attach` drops it from them.
        gate.open = any(map(is_inexact, run.others(leaves)))
        if len({id(outs[i]) for i in run.out.marked}) != len(run.out.marked):
            run.out.marked = self._marks(arrays, perturbed)
        closed_over = None
        # JAX differentiates every reference (jax.new_ref), whatever is written to it.
        # So outputs that came through one have a derivative behind a closed gate too.
        if any(map(compat.is_differentiated, outs)):
            again = lambda *xs: self._run(list(xs), perturbed)[0]  # noqa: E731
            closed_over = _used_by_traced(again, inside)
        elif gate.open or recording.makes_references:
            closed_over = recording.closed_over(outs, inside)
        return _Ran(run, outs, leaves, inside, recording, closed_over)

    def _trace(self, arrays: Arrays, perturbed: Perturbed) -> Callable[[Arrays], _Ran]:
        """Run forward in a trace of its own; return what evaluates that trace.

        Its equations run when forward has ended, behind a gate which is then asked with
        the answer known.
        """
        runs: list[Run] = []

        def trace(*values: Any) -> list[Any]:
            outs, leaves, run = self._run(values, perturbed)
            runs.append(run)
            return [*outs, *leaves]

        jaxpr = compat.make_jaxpr(trace, arrays)

        def evaluated(arrays: Arrays) -> _Ran:
            run, gate, avals = runs[-1], Gate(), compat.Staged(jaxpr).out_avals
            n = len(avals) - len(run.sources)
            gate.open = any(map(is_inexact, run.others(avals[n:])))
            inside, recording = gate.enter(arrays), compat.Recording()
            found = compat.evaluate(jaxpr, inside)
            outs, leaves = found[:n], found[n:]
            # What else the values were computed from, for `attach`.
            own = gate.open or compat.makes_references(jaxpr)
            closed_over = _used_by(jaxpr) if own else None
            return _Ran(run, outs, leaves, inside, recording, closed_over)

        return evaluated

    def _marks(self, arrays: Arrays, perturbed: Perturbed) -> frozenset[int]:
        """Say which outputs forward marks; it is traced, and nothing else comes of it.

        Outside of a trace an output and what lax.stop_gradient makes of it are one
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

    # ---- its second part

    def _saved(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[Run, Arrays]:
        """Run the second part.

        Returns:
            What it gave, and the values that its leaves are made of beside inputs and
            outputs.
        """
        assert self._second is not None
        n, why, second = len(arrays), "", self._second

        def save(values: Arrays) -> tuple[list[Any], Run]:
            return second(out, values[:n], values[n:], perturbed)

        # If no derivative can come, it runs as it is.
        if not compat.is_final(arrays):
            runs: list[Run] = []

            def trace(*values: Any) -> list[Any]:
                leaves, run = save(values)
                runs.append(run)
                return run.others(leaves)

            try:
                closed_over, staged = compat.Staged.trace(trace, (), *arrays, *outs)
            except errors.RuleError:  # ours: it says what is wrong with the rule
                raise
            except Exception as error:  # noqa: BLE001  (what needs values: anything)
                why = type(error).__name__
            else:
                return runs[-1], runs[-1].begin(staged, closed_over, arrays, outs)
        still = stop_gradient([*arrays, *outs])
        leaves, run = save(still)
        if any(map(compat.is_differentiated, arrays)):
            rule, again = self._second_rule, lambda xs: save(xs)[1]
            check_untraceable(rule, run, still, again, may_be_numpy=False)
            leaves = run.refusing(leaves, arrays, rule, why)
        return run, run.others(leaves)


def _used_by_traced(run: Callable[..., Any], inputs: Arrays) -> list[Any] | None:
    """Trace a forward that makes references, to see what it closes over."""
    try:
        jaxpr = compat.make_jaxpr(run, inputs)
    except Exception:  # noqa: BLE001  (what needs values may raise anything)
        return None
    return _used_by(jaxpr) if compat.makes_references(jaxpr) else None


def _used_by(jaxpr: Any) -> list[Any] | None:
    """Return the traced values that a forward closes over, but no references.

    Returns:
        None if one of the references is differentiated, which would be lost.
    """
    used = list(filter(compat.is_tracer, compat.constants(jaxpr)))
    references = list(filter(compat.is_reference, used))
    if any(map(compat.is_differentiated, references)):
        return None
    return [x for x in used if not compat.is_reference(x)]
