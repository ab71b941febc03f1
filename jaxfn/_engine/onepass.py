"""A forward that saves, safe to differentiate to any order.

Each trace runs its Python once. The outputs then get the derivative of the rules
(`attachment`). Saved inputs are replaced by the real ones, saved outputs by the
attached ones. A saved intermediate has the derivative of the operations that ran. For
that, forward runs behind a gate (`gate.Gate`), which opens if one was saved.

If JAX differentiates while forward runs, it asks the gate before forward has ended. In
that case jaxfn first traces forward, and then evaluates the jaxpr, which runs no
Python. A body that needs the values of float arrays can't be traced, and raises there.

A forward may have a second part, which saves from inputs and outputs (torch's
setup_context). All that it computes has its true derivative, also with respect to the
outputs, whose derivative comes from the rules. Therefore jaxfn traces it, and evaluates
it for the current inputs and attached outputs.

jaxfn recognizes inputs and outputs by identity. Outside a trace that can be wrong,
because there `lax.stop_gradient(x)` is `x` itself. If this matters, jaxfn traces
forward.
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
        pattern_used: Whether forward asked for `perturbed`.
        saved: Template of the saved values, in the face's own form.
        sources: The origin of each saved leaf: ("input", i), ("output", i) or ("other",
            i), the i-th of the others. Set last.
        staged: The traced function that computes the other leaves, from closed-over
            values, inputs and outputs; None if they have been computed.
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
    sources: tuple[tuple[str, int], ...] = ()
    staged: compat.Staged | None = None

    def note_sources(self, leaves: Arrays, inputs: Arrays, outs: Arrays) -> None:
        """Note the source of each leaf, by identity."""
        places = {id(x): ("output", i) for i, x in enumerate(outs)}
        # Inputs come last, in reverse order: a dict keeps the last of equal keys, and
        # an input that is returned as it is must count as the input.
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
        """Return the record that the rules get for a derivative by these arguments.

        If the run asked for `perturbed`, it saved what these arguments need, and its
        rules get the same mask. (The face drops their results for other arguments.)

        Raises:
            RuntimeError: The run may have saved too little.
            NotImplementedError: A saved value needs an effect.
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
        inputs: Its inputs, behind the gate.
        recording: A recording that began just before the run.
        closed_over: Other values that the outputs were computed from, if the outputs
            have the derivative of the operations that ran; else None.
    """

    run: Run
    outs: Arrays
    leaves: Arrays
    inputs: Arrays
    recording: compat.Recording
    closed_over: list[Any] | None


class OnePass:
    """The `fwd` and the primal of `Rules`, for a forward that saves.

    A face defines how to run forward, and makes the residuals.

    Args:
        first: Runs forward.
        residuals: `residuals(run, leaves, inputs, outputs)` makes the `Residuals` of
            the saved leaves, anew for each derivative. The others are for their types.
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
        # The rules need the saved intermediates. As inputs of `attach` these arrive in
        # their current form, for example batched under vmap. (A derivative of a run
        # that saved a reference is refused, so the others keep their numbers.)
        outs = attach(
            partial(self._tangents, run, len(arrays)),
            [*arrays, *[x for x in others if not compat.is_reference(x)]],
            self._tie_outputs(run.out, ran.outs, ran.inputs, ran.recording),
            name=self._rules().name,
            closed_over=ran.closed_over,
        )
        return Outputs(outs, run.out), self._substituted(run, arrays, others, outs)

    def primal(self, arrays: Arrays, perturbed: Perturbed) -> Outputs:
        """Return the outputs alone; under jit, JAX runs this first."""
        recording = compat.Recording()
        outs, _, run = self._run(arrays, perturbed)
        # As in torch, call it although nothing is saved: it may have effects, and its
        # mistakes must show here too.
        if self._second is not None:
            self._second(run.out, arrays, distinct(outs), perturbed)
        return Outputs(self._tie_outputs(run.out, outs, arrays, recording), run.out)

    def _tangents(
        self, run: Run, n: int, inputs: Arrays, outs: Arrays, tangents: Arrays
    ) -> Arrays:
        """Return the tangents of the outputs, by the rules: the rule of `attach`."""
        # Leave out the tangents of saved intermediates: by the inputs alone the rules
        # give the whole derivative.
        arrays, others, tangents = inputs[:n], inputs[n:], tangents[:n]
        rule = self._second_rule or self._rule
        run = run.for_derivative([t is not None for t in tangents], rule)
        residuals = self._substituted(run, arrays, others, outs)
        return push_forward(self._rules(), residuals, outs, tangents)

    def _substituted(
        self, run: Run, arrays: Arrays, others: Arrays, outs: Arrays
    ) -> Residuals:
        """Return the residuals, made of real inputs and attached outputs."""
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
        """Run forward, and note the source of each leaf that it saved."""
        outs, leaves, run = self._first(inputs, perturbed)
        run.note_sources(leaves, inputs, outs)
        return [as_jax(x) for x in outs], leaves, run

    def _forward(self, arrays: Arrays, perturbed: Perturbed) -> _Forward:
        """Run forward once; saved intermediates have the derivative of what ran."""
        if self._second is not None or not any(map(compat.is_differentiated, arrays)):
            # JAX asks the gate after forward has ended: an argument of fwd that is
            # still differentiated belongs to an outer derivative, and here is none. In
            # two parts forward saves nothing, and the gate stays closed.
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
        # A saved intermediate has the derivative of the body, which must pass the gate.
        # The outputs get this derivative too; `attach` drops it.
        gate.open = any(map(is_inexact, run.others(leaves)))
        if len({id(outs[i]) for i in run.out.marked}) != len(run.out.marked):
            run.out.marked = self._marks(arrays, perturbed)
        closed_over = None
        # JAX differentiates every reference (jax.new_ref), whatever is written to it.
        # So outputs read from one have a derivative behind a closed gate too.
        if any(map(compat.is_differentiated, outs)):
            # Outside a trace no recording shows what ran, so trace it. A body that
            # needs values may raise anything; then a derivative of a value is refused.
            with contextlib.suppress(Exception):
                jaxpr, _ = self._trace(inside, perturbed)
                if compat.makes_references(jaxpr):
                    closed_over = _used_by(jaxpr, inside)
        elif gate.open or recording.makes_references:
            closed_over = recording.closed_over(outs, inside)
        return _Forward(run, outs, leaves, inside, recording, closed_over)

    def _trace(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Any, Run]:
        """Trace forward; return a jaxpr from float arrays to outputs and leaves."""
        runs: list[Run] = []

        def trace(*values: Any) -> list[Any]:
            outs, leaves, run = self._run(_filled(arrays, values), perturbed)
            runs.append(run)
            return [*outs, *leaves]

        jaxpr = compat.make_jaxpr(trace, list(filter(is_inexact, arrays)))
        return jaxpr, runs[-1]

    def _evaluate_gated(self, jaxpr: Any, run: Run, arrays: Arrays) -> _Forward:
        """Evaluate a traced forward behind a gate, which is set in advance."""
        gate, avals = Gate(), compat.Staged(jaxpr).out_avals
        n = len(avals) - len(run.sources)
        gate.open = any(map(is_inexact, run.others(avals[n:])))
        inside, recording = gate.enter(arrays), compat.Recording()
        found = compat.evaluate(jaxpr, list(filter(is_inexact, inside)))
        # Find the other values that the outputs were computed from, for `attach`.
        own = gate.open or compat.makes_references(jaxpr)
        closed_over = _used_by(jaxpr, arrays) if own else None
        return _Forward(run, found[:n], found[n:], inside, recording, closed_over)

    def _marks(self, arrays: Arrays, perturbed: Perturbed) -> frozenset[int]:
        """Return which outputs forward marks, by a trace used for nothing else.

        Outside a trace, an output and lax.stop_gradient of it are one object, so both
        count as marked. In a trace they are two.
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
            Its run, and the values other than inputs and outputs that its leaves need.
        """
        n, values = len(arrays), [*arrays, *outs]

        def save(values: Arrays) -> tuple[list[Any], Run]:
            assert self._second is not None
            inputs, outs = values[:n], distinct(values[n:])
            leaves, run = self._second(out, inputs, outs, perturbed)
            run.note_sources(leaves, inputs, outs)
            return leaves, run

        # If no second derivative can follow, it runs as it is.
        if compat.is_final(arrays):
            leaves, run = save(without_derivative(values))
            return run, run.others(leaves)
        with _traceable(self._second_rule, "or compute it in the rules"):
            return _trace_second(save, values)


def _filled(values: Arrays, floats: Arrays) -> list[Any]:
    """Return the values, with `floats` in place of the float arrays.

    If only float arrays are traced, integers keep their values, if these are known.
    """
    rest = iter(floats)
    return [next(rest) if is_inexact(x) else x for x in values]


@contextlib.contextmanager
def _traceable(rule: str, otherwise: str) -> Iterator[None]:
    """Explain an error of a rule that needs values, and is differentiated again."""
    try:
        yield
    except compat.NEEDS_VALUES as error:
        raise NotImplementedError(
            f"`{rule}` was differentiated again, and can't be traced: it needs the "
            f"values of float arrays ({type(error).__name__}). Without a trace, the "
            "derivative of its saved values would be lost. Write it as for jax.jit, "
            f"{otherwise}."
        ) from error


def _trace_second(
    save: Callable[[Arrays], tuple[list[Any], Run]], known: Arrays
) -> tuple[Run, Arrays]:
    """Trace the second part; return its run, and the values that it closes over."""
    runs: list[Run] = []

    def trace(*values: Any) -> list[Any]:
        leaves, run = save(_filled(known, values))
        runs.append(run)
        return run.others(leaves)

    floats = filter(is_inexact, known)
    closed_over, staged = compat.Staged.trace(trace, (), *floats)
    # If every leaf is an input or an output, as usual, there is nothing to evaluate.
    if not staged.out_avals and not staged.effects:
        return runs[-1], []
    runs[-1].staged = staged
    return runs[-1], closed_over


def _used_by(jaxpr: Any, inputs: Arrays) -> list[Any] | None:
    """Return the traced values that a forward closes over, except references.

    (In the jaxpr, its integer inputs are constants too.)

    Returns:
        None if one of the references is differentiated; this derivative would be lost.
    """
    used = list(filter(compat.is_tracer, compat.open_jaxpr(jaxpr)[1]))
    references = list(filter(compat.is_reference, used))
    if any(map(compat.is_differentiated, references)):
        return None
    known = set(map(id, inputs))
    return [x for x in used if not compat.is_reference(x) and id(x) not in known]
