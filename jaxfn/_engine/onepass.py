"""A forward that saves, safe to differentiate to any order.

Its Python runs once. The outputs then get the derivative of the rules (`attachment`),
and what was saved is replaced: an input by the real one, an output by the attached one.
What forward computed on its way and saved has the derivative of what ran. For that it
runs behind a gate (`gate.Gate`), which opens if such a value was saved.

If a derivative is taken while forward runs, JAX asks the gate before forward has ended.
Then forward is traced first, and the jaxpr is evaluated, which runs no Python. A body
that can't be traced, because it needs values, runs with them (`untraceable`).

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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jaxfn._base import Outputs, OutSpec, as_jax, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.engines import push_forward
from jaxfn._engine.gate import Gate, distinct, without_derivative
from jaxfn._engine.rules import Arrays, Perturbed, Residuals, Rules
from jaxfn._engine.tie import tied
from jaxfn._engine.untraceable import attempt, refusing_a_derivative


@dataclasses.dataclass(slots=True)
class Run:
    """The static record of one run of forward, without arrays: it outlives the trace.

    Attributes:
        out: Structure of the outputs.
        perturbed: A mask of the array arguments that are differentiated.
        pattern_used: True if forward asked for `perturbed`.
        saved: Template of the saved values, of the face's own kind.
        constants: Names of saved NumPy values of float type.
        opaque: Names of saved objects that hide arrays.
        sources: The origin of each saved leaf: ("input", i), ("output", i) or
            ("other", i) for the i-th of the others. Filled in last.
        staged: The traced function that computes the other leaves, from what it closes
            over, inputs and outputs; None if they have been computed.
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
    constants: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    sources: tuple[tuple[str, int], ...] = ()
    staged: compat.Staged | None = None

    def note_sources(self, leaves: Arrays, inputs: Arrays, outs: Arrays) -> None:
        """Note, by identity, where each leaf comes from."""
        places = {id(x): ("output", i) for i, x in enumerate(outs)}
        # Inputs last, and the first of them at the very end: a dict keeps the last of
        # equal keys, and an input that is returned as it is counts as the input.
        places |= {id(x): ("input", i) for i, x in reversed(list(enumerate(inputs)))}
        sources, n_other = [], 0
        for leaf in leaves:
            source = places.get(id(leaf))
            if source is None:
                source = ("other", n_other)
                n_other += 1
            sources.append(source)
        self.sources = tuple(sources)

    def leaves(self, inputs: Arrays, outs: Arrays, others: Arrays) -> list[Any]:
        """Return the leaves, with these arrays in the places of their sources."""
        if self.staged is not None:
            others = self.staged(*others, *inputs, *outs)
        of_kind = {"input": inputs, "output": outs, "other": others}
        return [of_kind[kind][i] for kind, i in self.sources]

    def others(self, leaves: Arrays) -> list[Any]:
        """Return the leaves that are neither inputs nor outputs."""
        pairs = zip(leaves, self.sources, strict=True)
        return [leaf for leaf, (kind, _) in pairs if kind == "other"]

    def for_derivative(self, perturbed: Sequence[bool], rule: str) -> Run:
        """Return what the rules are given for a derivative by these arguments.

        A run that has asked saved what the arguments of its call need, and its rules
        are told of these. (The face leaves out what it gives for others.)

        Raises:
            RuntimeError: The run may have saved too little.
            NotImplementedError: What it saved needs an effect.
        """
        staged = None if self.staged is None else self.staged.repeated()
        if staged is None and self.staged is not None:
            raise NotImplementedError(errors.NOT_REPEATABLE.format(name=rule))
        told = tuple(perturbed)
        if self.pattern_used:
            pairs = zip(perturbed, self.perturbed, strict=True)
            if any(needed and not known for needed, known in pairs):
                raise errors.RuleError(errors.OTHER_ARGUMENTS.format(rule=rule))
            told = self.perturbed
        return dataclasses.replace(self, perturbed=told, staged=staged)


First = Callable[[Arrays, Perturbed], tuple[Arrays, list[Any], Run]]
"""Runs forward: `(inputs, perturbed) -> outputs, leaves saved, Run`."""

Second = Callable[[OutSpec, Arrays, Arrays, Perturbed], tuple[list[Any], Run]]
"""Saves: `(structure of outputs, inputs, outputs, perturbed) -> leaves saved, Run`."""


@dataclasses.dataclass(slots=True)
class _Forward:
    """One run of forward, with its arrays.

    Attributes:
        run: The static record.
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
        residuals: `residuals(run, leaves, inputs, outputs)`.
        rules: Returns the rules of the call; a function, because `fwd` is one of them.
        rule: Name of forward, for messages.
        second: The second part of forward, if it has one.
        second_rule: Name of the second part, for messages.
    """

    def __init__(
        self,
        first: First,
        residuals: Callable[[Run, Arrays, Arrays, Arrays], Residuals],
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
        ran = self._forward(arrays, perturbed)
        if self._second is None:
            run, others = ran.run, ran.run.others(ran.leaves)
        else:
            run, others = self._saved(ran.run.out, arrays, ran.outs, perturbed)
        # The rules need what was computed and saved. As inputs of `attach` it reaches
        # them as it is there: batched under vmap, for example.
        outs = attach(
            partial(self._tangents, run, len(arrays)),
            [*arrays, *others],
            self._tie_outputs(run.out, ran.outs, ran.inputs, ran.recording),
            name=self._rules().name,
            closed_over=ran.closed_over,
        )
        return Outputs(outs, run.out), self._substituted(run, arrays, others, outs)

    def primal(self, arrays: Arrays, perturbed: Perturbed) -> Outputs:
        """Return the outputs alone. Under jit JAX asks before it differentiates."""
        recording = compat.Recording()
        outs, _, run = self._run(arrays, perturbed)
        # Called although nothing is saved, as in torch: it may have effects, and its
        # mistakes are to be reported here too.
        if self._second is not None:
            self._second(run.out, arrays, distinct(outs), perturbed)
        return Outputs(self._tie_outputs(run.out, outs, arrays, recording), run.out)

    def _tangents(
        self, run: Run, n: int, inputs: Arrays, outs: Arrays, dots: Arrays
    ) -> Arrays:
        """Return the tangents of the outputs, by the rules: the rule of `attach`."""
        # The tangents of what was computed and saved are left out: by the inputs alone
        # the rules give the whole derivative.
        arrays, others, dots = inputs[:n], inputs[n:], dots[:n]
        rule = self._second_rule or self._rule
        run = run.for_derivative([d is not None for d in dots], rule)
        residuals = self._substituted(run, arrays, others, outs)
        return push_forward(self._rules(), residuals, outs, dots)

    def _substituted(
        self, run: Run, arrays: Arrays, others: Arrays, outs: Arrays
    ) -> Residuals:
        """Return what was saved, with real inputs and attached outputs in place."""
        return self._residuals(run, run.leaves(arrays, outs, others), arrays, outs)

    def _tie_outputs(
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

    def _forward(self, arrays: Arrays, perturbed: Perturbed) -> _Forward:
        """Run forward once, so that what it saved has the derivative of what ran."""
        if self._second is not None or not any(map(compat.is_differentiated, arrays)):
            # The gate is asked when forward has ended. (Inside fwd, values show only
            # further derivatives.) Or it stays closed: in two parts, forward saves
            # nothing.
            return self._run_gated(arrays, perturbed)
        traced, why = attempt(lambda: self._trace(arrays, perturbed))
        if traced is not None:
            return self._evaluate_gated(*traced, arrays)
        # With values, and with no derivative: it would be that of the body, and there
        # is no gate that could open in time.
        inputs, recording = without_derivative(arrays), compat.Recording()
        outs, leaves, run = self._run(inputs, perturbed)
        again = lambda xs: self._run(xs, perturbed)[2]  # noqa: E731
        about = self._rule, why, run, leaves, inputs, arrays, again
        leaves = refusing_a_derivative(*about, may_be_numpy=True)
        return _Forward(run, outs, leaves, arrays, recording, None)

    def _run_gated(self, arrays: Arrays, perturbed: Perturbed) -> _Forward:
        """Run forward behind a gate, and open it if an intermediate was saved."""
        gate = Gate()
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
        if any(map(compat.is_differentiated, outs)):  # no recording shows what ran
            traced, _ = attempt(lambda: self._trace(inside, perturbed))
            if traced is not None and compat.makes_references(traced[0]):
                closed_over = _used_by(traced[0])
        elif gate.open or recording.makes_references:
            closed_over = recording.closed_over(outs, inside)
        return _Forward(run, outs, leaves, inside, recording, closed_over)

    def _trace(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Any, Run]:
        """Trace forward; return a jaxpr of outputs and leaves, and the run."""
        runs: list[Run] = []

        def trace(*values: Any) -> list[Any]:
            outs, leaves, run = self._run(list(values), perturbed)
            runs.append(run)
            return [*outs, *leaves]

        return compat.make_jaxpr(trace, arrays), runs[-1]

    def _evaluate_gated(self, jaxpr: Any, run: Run, arrays: Arrays) -> _Forward:
        """Evaluate a forward that was traced.

        Forward has ended, so the gate is asked with the answer known.
        """
        gate, avals = Gate(), compat.Staged(jaxpr).out_avals
        n = len(avals) - len(run.sources)
        gate.open = any(map(is_inexact, run.others(avals[n:])))
        inside, recording = gate.enter(arrays), compat.Recording()
        found = compat.evaluate(jaxpr, inside)
        # What else the values were computed from, for `attach`.
        own = gate.open or compat.makes_references(jaxpr)
        closed_over = _used_by(jaxpr) if own else None
        return _Forward(run, found[:n], found[n:], inside, recording, closed_over)

    def _marks(self, arrays: Arrays, perturbed: Perturbed) -> frozenset[int]:
        """Say which outputs forward marks; it is traced, and nothing else comes of it.

        Outside of a trace an output and what lax.stop_gradient makes of it are one
        object: then both count as marked. In a trace they are two.
        """
        traced, why = attempt(lambda: self._trace(arrays, perturbed))
        if traced is None:
            raise errors.RuleValueError(
                f"`{self._rule}` marked an output that is the same object as another "
                f"(outside of a trace lax.stop_gradient(x) is x), and tracing it "
                f"raised {why}, so jaxfn can't tell which of the two is marked. Return "
                "a copy of it, jnp.copy(x)."
            )
        return traced[1].out.marked

    # ---- its second part

    def _saved(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[Run, Arrays]:
        """Run the second part.

        Returns:
            What it gave, and the values that its leaves are made of beside inputs and
            outputs.
        """
        n, why = len(arrays), ""

        def save(values: Arrays) -> tuple[list[Any], Run]:
            assert self._second is not None
            inputs, outs = values[:n], distinct(values[n:])
            leaves, run = self._second(out, inputs, outs, perturbed)
            run.note_sources(leaves, inputs, outs)
            return leaves, run

        # If no second derivative can come, it runs as it is.
        if not compat.is_final(arrays):
            traced, why = attempt(lambda: _trace_second(save, [*arrays, *outs]))
            if traced is not None:
                return traced
        values = without_derivative([*arrays, *outs])
        leaves, run = save(values)
        if any(map(compat.is_differentiated, arrays)):
            again = lambda xs: save(xs)[1]  # noqa: E731
            about = self._second_rule, why, run, leaves, values, arrays, again
            leaves = refusing_a_derivative(*about, may_be_numpy=False)
        return run, run.others(leaves)


def _trace_second(
    save: Callable[[Arrays], tuple[list[Any], Run]], values: Arrays
) -> tuple[Run, Arrays]:
    """Trace the second part; return what it gave, and what it closes over."""
    runs: list[Run] = []

    def trace(*values: Any) -> list[Any]:
        leaves, run = save(list(values))
        runs.append(run)
        return run.others(leaves)

    closed_over, staged = compat.Staged.trace(trace, (), *values)
    # Mostly every leaf is an input or an output, so that there is nothing to evaluate.
    if not staged.out_avals and not staged.effects:
        return runs[-1], []
    runs[-1].staged = staged
    return runs[-1], closed_over


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
