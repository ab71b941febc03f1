"""A forward that saves, safe to differentiate to any order.

Its Python runs once. The outputs then get the derivative of the rules (`attachment`),
and what was saved is replaced: an input by the real one, an output by the attached one.
What forward computed on its way and saved has the derivative of what ran. For that it
runs behind a gate (`gate.Gate`), which opens if such a value was saved.

If a derivative is taken while forward runs, JAX asks the gate before forward has ended.
Then forward is traced first, and the jaxpr is evaluated, which runs no Python. A body
that needs the values of float arrays can't be traced, and is refused there.

A forward may have a second part, which saves from inputs and outputs (torch's
setup_context). Whatever it computes has its true derivative, also with respect to the
outputs, which is the rules'. Therefore it is traced, and evaluated for the inputs and
the attached outputs that are at hand.

Whether a value is an input or an output is known by identity. Outside of a trace that
can be wrong: there `lax.stop_gradient(x)` is `x` itself. If this matters, forward is
traced to see.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from jaxfn._base import Outputs, OutSpec, as_jax, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.engines import push_forward
from jaxfn._engine.gate import Gate, distinct, without_derivative
from jaxfn._engine.rules import Arrays, Perturbed, Residuals, Rules
from jaxfn._engine.tie import tied


@dataclasses.dataclass(slots=True)
class Run:
    """The static record of one run of forward, without arrays: it outlives the trace.

    Attributes:
        out: Structure of the outputs.
        perturbed: A mask of the array arguments that are differentiated.
        pattern_used: True if forward asked for `perturbed`.
        saved: Template of the saved values, of the face's own kind.
        sources: The origin of each saved leaf: ("input", i), ("output", i) or
            ("other", i) for the i-th of the others. Filled in last.
        staged: The traced function that computes the other leaves, from what it closes
            over, inputs and outputs; None if they have been computed.
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
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
            others = self.staged(*others, *filter(is_inexact, (*inputs, *outs)))
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
            [*arrays, *[x for x in others if not compat.is_reference(x)]],
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
        with _traceable(
            self._rule, "or save in setup_context: then forward may need values"
        ):
            jaxpr, run = self._trace(arrays, perturbed)
        return self._evaluate_gated(jaxpr, run, arrays)

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
            with contextlib.suppress(Exception):  # a body that needs values: anything
                jaxpr, _ = self._trace(inside, perturbed)
                if compat.makes_references(jaxpr):
                    closed_over = _used_by(jaxpr, inside)
        elif gate.open or recording.makes_references:
            closed_over = recording.closed_over(outs, inside)
        return _Forward(run, outs, leaves, inside, recording, closed_over)

    def _trace(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Any, Run]:
        """Trace forward; return a jaxpr by float arrays, of outputs and leaves."""
        runs: list[Run] = []

        def trace(*values: Any) -> list[Any]:
            outs, leaves, run = self._run(_filled(arrays, values), perturbed)
            runs.append(run)
            return [*outs, *leaves]

        jaxpr = compat.make_jaxpr(trace, list(filter(is_inexact, arrays)))
        return jaxpr, runs[-1]

    def _evaluate_gated(self, jaxpr: Any, run: Run, arrays: Arrays) -> _Forward:
        """Evaluate a traced forward behind a gate that opens or not in advance."""
        gate, avals = Gate(), compat.Staged(jaxpr).out_avals
        n = len(avals) - len(run.sources)
        gate.open = any(map(is_inexact, run.others(avals[n:])))
        inside, recording = gate.enter(arrays), compat.Recording()
        found = compat.evaluate(jaxpr, list(filter(is_inexact, inside)))
        # What else the values were computed from, for `attach`.
        own = gate.open or compat.makes_references(jaxpr)
        closed_over = _used_by(jaxpr, arrays) if own else None
        return _Forward(run, found[:n], found[n:], inside, recording, closed_over)

    def _marks(self, arrays: Arrays, perturbed: Perturbed) -> frozenset[int]:
        """Say which outputs forward marks; it is traced, and nothing else comes of it.

        Outside of a trace an output and what lax.stop_gradient makes of it are one
        object: then both count as marked. In a trace they are two.
        """
        try:
            return self._trace(arrays, perturbed)[1].out.marked
        except compat.NEEDS_VALUES as error:
            raise errors.RuleValueError(
                f"`{self._rule}` marked an output that is the same object as another "
                "(outside of a trace lax.stop_gradient(x) is x), and it can't be "
                "traced to see which of them is marked. Return a copy of it, "
                "jnp.copy(x)."
            ) from error

    # ---- its second part

    def _saved(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[Run, Arrays]:
        """Run the second part.

        Returns:
            What it gave, and the values that its leaves are made of beside inputs and
            outputs.
        """
        n, values = len(arrays), [*arrays, *outs]

        def save(values: Arrays) -> tuple[list[Any], Run]:
            assert self._second is not None
            inputs, outs = values[:n], distinct(values[n:])
            leaves, run = self._second(out, inputs, outs, perturbed)
            run.note_sources(leaves, inputs, outs)
            return leaves, run

        # If no second derivative can come, it runs as it is.
        if compat.is_final(arrays):
            leaves, run = save(without_derivative(values))
            return run, run.others(leaves)
        with _traceable(self._second_rule, "or compute it in the rules"):
            return _trace_second(save, values)


def _filled(values: Arrays, floats: Arrays) -> list[Any]:
    """Return the values, with these in the places of the float arrays.

    A trace by float arrays alone leaves integers their values, if these are known.
    """
    rest = iter(floats)
    return [next(rest) if is_inexact(x) else x for x in values]


@contextlib.contextmanager
def _traceable(rule: str, otherwise: str) -> Iterator[None]:
    """Explain that a rule which is differentiated again needs values."""
    try:
        yield
    except compat.NEEDS_VALUES as error:
        raise NotImplementedError(
            f"`{rule}` was differentiated again, and can't be traced: it needs the "
            f"values of float arrays ({type(error).__name__}), and the derivative of "
            f"what it saves would be lost. Write it as for jax.jit, {otherwise}."
        ) from error


def _trace_second(
    save: Callable[[Arrays], tuple[list[Any], Run]], known: Arrays
) -> tuple[Run, Arrays]:
    """Trace the second part; return what it gave, and what it closes over."""
    runs: list[Run] = []

    def trace(*values: Any) -> list[Any]:
        leaves, run = save(_filled(known, values))
        runs.append(run)
        return run.others(leaves)

    floats = filter(is_inexact, known)
    closed_over, staged = compat.Staged.trace(trace, (), *floats)
    # Mostly every leaf is an input or an output, so that there is nothing to evaluate.
    if not staged.out_avals and not staged.effects:
        return runs[-1], []
    runs[-1].staged = staged
    return runs[-1], closed_over


def _used_by(jaxpr: Any, inputs: Arrays) -> list[Any] | None:
    """Return the traced values that a forward closes over, but no references.

    (Its inputs that are no floats are constants of the jaxpr.)

    Returns:
        None if one of the references is differentiated, which would be lost.
    """
    used = list(filter(compat.is_tracer, compat.constants(jaxpr)))
    references = list(filter(compat.is_reference, used))
    if any(map(compat.is_differentiated, references)):
        return None
    known = set(map(id, inputs))
    return [x for x in used if not compat.is_reference(x) and id(x) not in known]
