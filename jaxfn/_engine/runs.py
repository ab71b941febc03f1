"""What one run of forward gave, without its arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import OutSpec, as_jax, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.rules import Arrays, Perturbed


@dataclasses.dataclass(slots=True)
class Run:
    """What one run gave, without the arrays.

    Attributes:
        out: structure of the outputs.
        perturbed: for each array argument, whether it is differentiated.
        pattern_used: Whether what was saved may depend on `perturbed`.
        saved: what was saved; of the face's own kind.
        sources: for each leaf that was saved where its value comes from: ("input", i),
            ("output", i) or ("other", i), counting within each kind. Filled in last.
        constants: Names of what holds NumPy values of float type.
        opaque: Names of what holds objects that hide arrays.
        staged: the traced function that computes the other leaves, from what it closes
            over, inputs and outputs; None if they have been computed.
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
    sources: tuple[tuple[str, int], ...] = ()
    constants: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
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

    def begin(
        self, staged: compat.Staged, closed_over: Arrays, inputs: Arrays, outs: Arrays
    ) -> Arrays:
        """Take the traced function; return the others that `leaves` is to be given.

        What does not depend on the outputs is computed here, once and for all: the rule
        that calls `leaves` runs again for each derivative of the outputs.
        """
        if not any(kind == "other" for kind, _ in self.sources):  # as mostly
            return []
        if any(compat.used_inputs(staged.jaxpr)[len(closed_over) + len(inputs) :]):
            self.staged = staged
            return closed_over
        return staged(*closed_over, *inputs, *outs)

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

    def refusing(
        self, leaves: Arrays, arrays: Arrays, rule: str, why: str
    ) -> list[Any]:
        """Return the leaves; those that were computed refuse to be differentiated.

        Args:
            leaves: what was saved, by a run that needed values: it has no jaxpr.
            arrays: the arguments.
            rule: Name of the method that ran, for messages.
            why: the error that tracing it raised.
        """

        def refuse(*_: Any) -> Any:
            raise NotImplementedError(
                f"`{rule}` saved a value that it computed, can't be traced ({why}), "
                "and was differentiated again: expected jax.numpy operations that "
                "don't need the values of arrays, as under jit, since the derivative "
                "of that value is the one of what ran. Save inputs or outputs, and "
                "compute the rest in the rules."
            )

        kept = []
        for leaf, (kind, _) in zip(leaves, self.sources, strict=True):
            if kind == "other" and is_inexact(leaf):
                (leaf,) = attach(refuse, arrays, [as_jax(leaf)], name=rule)
            kept.append(leaf)
        return kept

    def pattern(self, perturbed: Sequence[bool], rule: str) -> Perturbed:
        """Return which arguments the rules are told of, if these are differentiated.

        A run that has asked saved what the arguments of its call need, and its rules
        are told of these. (What it gives for others is left out.)

        Raises:
            RuntimeError: it may have saved too little.
        """
        if not self.pattern_used:
            return tuple(perturbed)
        pairs = zip(perturbed, self.perturbed, strict=True)
        if any(needed and not known for needed, known in pairs):
            raise errors.RuleError(errors.OTHER_ARGUMENTS.format(rule=rule))
        return self.perturbed


def check_untraceable(
    rule: str,
    run: Run,
    inputs: Arrays,
    again: Callable[[list[Any]], Run],
    *,
    may_be_numpy: bool,
) -> None:
    """Refuse a run with values if the derivative of what it saved would be lost.

    Args:
        rule: Name of the method that ran, for messages, which can't be traced.
        run: the run; its inputs had no derivative.
        inputs: its inputs.
        again: runs it once more, on other inputs.
        may_be_numpy: Whether it may fail under jax.jvp, because it is written in NumPy.
    """
    for what, places in (
        ("NumPy values", run.constants),
        ("objects that hide arrays", run.opaque),
    ):
        if places:
            raise NotImplementedError(
                f"`{rule}` was differentiated again, kept {what} in "
                f"{' and '.join(places)}, and can't be traced: expected JAX "
                "arrays, got values whose derivative would be lost. Save inputs, "
                "or outputs that are JAX arrays, and compute the rest in the "
                "rules; keep what is constant outside of ctx."
            )
    # Here lax.stop_gradient(x) is x, so if it was saved it counts as the input.
    # Under jax.jvp it is another object: a run there finds other sources.
    try:
        sources = _sources_under_jvp(inputs, again)
    except Exception:
        if may_be_numpy:  # then it has no lax.stop_gradient
            return
        raise
    if sources != run.sources:
        raise NotImplementedError(
            f"`{rule}` was differentiated again, saved lax.stop_gradient of "
            "a value, and can't be traced: expected operations that don't need "
            "values, as under jit. Write it without them."
        )


def _sources_under_jvp(inputs: Arrays, again: Callable[[list[Any]], Run]) -> Any:
    """Run once more under jax.jvp, to see what is saved.

    There arrays are tracers, so that each result is an object of its own, and have
    values all the same.
    """
    nonzero = [i for i, x in enumerate(inputs) if is_inexact(x)]
    runs: list[Run] = []

    def trace(*values: Any) -> tuple[()]:
        at = list(inputs)
        for i, value in zip(nonzero, values, strict=True):
            at[i] = value
        runs.append(again(at))
        return ()

    primals = tuple(inputs[i] for i in nonzero)
    jax.jvp(trace, primals, primals)
    return runs[-1].sources
