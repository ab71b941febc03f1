"""The separate style: `forward(*args)` and `setup_context(ctx, inputs, output)`.

Forward runs on inputs without derivative, and its outputs get that of the rules. Then
`setup_context` runs on the real inputs and these outputs: whatever it saves has its
true derivative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from jaxfn._base import Outputs, OutSpec, compat, errors
from jaxfn._engine import (
    Arrays,
    Perturbed,
    Residuals,
    attach,
    check_same_program,
    distinct,
    push_forward,
    stop_gradient,
    through_references,
    tied,
)
from jaxfn._methods import policies
from jaxfn._methods.again import Again
from jaxfn._methods.capture import described
from jaxfn._methods.running import running
from jaxfn._methods.styles import Saved, Style, check_dirty, marks, setup


@dataclasses.dataclass(slots=True)
class _TracedSetup:
    """One run of setup_context, traced.

    Attributes:
        closed_over: the values that it used beside inputs and outputs.
        staged: the function from these values, inputs and outputs to the leaves that
            setup_context computed; None if they have been computed.
        saved: the rest of what the context held.
        places: for each leaf, which of inputs and outputs it is; None if it was
            computed.
        perturbed: for each array argument, whether it is differentiated.
        program: what it did, to be compared, if `saved.needs_read`.
    """

    closed_over: Arrays
    staged: compat.Staged | None
    saved: Saved
    places: Sequence[int | None]
    perturbed: Perturbed
    program: Hashable

    def begin(self, arrays: Arrays, outs: Arrays) -> tuple[Arrays, _TracedSetup]:
        """Return what `leaves` is to be given, and this object without any value.

        Leaves that do not depend on the outputs are computed here, once and for all:
        the rule that calls `leaves` runs again for each derivative of the outputs.
        """
        assert self.staged is not None
        # `kept` is part of a rule that outlives this trace, and may hold no tracer.
        given, kept = self.closed_over, dataclasses.replace(self, closed_over=())
        if None not in self.places:  # as mostly: it saved inputs and outputs alone
            kept.staged = None
            return [], kept
        of_outs = compat.used_inputs(self.staged.jaxpr)[len(given) + len(arrays) :]
        if not any(of_outs):
            given = self.staged(*given, *arrays, *outs)
            kept.staged = None
        return given, kept

    def fits(self, perturbed: Perturbed) -> bool:
        """Is this also what would be saved with these inputs perturbed?"""
        return not self.saved.needs_read or perturbed == self.perturbed

    def leaves(self, given: Arrays, arrays: Arrays, outs: Arrays) -> list[Any]:
        """Return all leaves, for these inputs and outputs."""
        values = [*arrays, *outs]
        computed = iter(given if self.staged is None else self.staged(*given, *values))
        return [next(computed) if i is None else values[i] for i in self.places]


class Separate(Style):
    """The style of `forward(*args)` and `setup_context(ctx, inputs, output)`.

    Args:
        *args: those of `Style`.
        forward: Runs forward on arrays, with the vmap rule if there is one.
    """

    def __init__(self, *args: Any, forward: Callable[[Arrays], Outputs]) -> None:
        super().__init__(*args)
        self._forward = forward

    def fwd(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
        # Forward sees no derivative, so what it computes has none: the rules' own is
        # attached to the outputs, for derivatives of any order.
        still, recording = stop_gradient(arrays), compat.Recording()
        ran, name = self._run(still), self._def.name
        values, out = ran.arrays, ran.static
        closed_over = through_references(self._values, recording, still, values)
        attached = partial(attach, name=name, closed_over=closed_over)
        # Where no derivative can come, it runs as it is.
        final = compat.is_final(arrays)
        traced = None if final else self._trace_setup(out, arrays, values, perturbed)
        if traced is None:
            again = Again(f"{name}.setup_context")
            rule = partial(self._tangents, out, again, len(arrays))
            outs = attached(rule, arrays, self._tied(ran, still, recording))
            residuals = self._setup(out, arrays, perturbed, outs, again=again)
            # Only now is it known which outputs are marked: these are not tied.
            for i, x in enumerate(stop_gradient(values)):
                if not residuals.smooth[i]:
                    outs[i] = x
            return Outputs(outs, out), residuals
        # The rule outlives this trace, so the values that it needs of it are inputs.
        given, kept = traced.begin(arrays, values)
        rule = partial(self._tangents, out, kept, len(arrays))
        outs = attached(rule, [*arrays, *given], self._tied(ran, still, recording))
        leaves, saved = kept.leaves(given, arrays, outs), kept.saved
        residuals = self._residuals(leaves, saved, out, arrays, outs, perturbed)
        return Outputs(outs, out), residuals

    # What setup_context computes and saves has the derivative of its operations on the
    # inputs and the outputs, whenever a derivative of the outputs is taken. Its Python
    # runs once, in the context of the call, so it is traced: run again later it would
    # see other settings, and draw other random numbers.
    def _trace_setup(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> _TracedSetup | None:
        """Trace setup_context; None where it needs values.

        Then it runs as it is, and once more for each derivative of the outputs.
        """
        n = len(arrays)
        found: list[tuple[Saved, list[int | None], Hashable]] = []

        def trace(*values: Any) -> list[Any]:
            leaves, saved = self._saved(out, values[:n], values[n:], perturbed)
            # An input that is returned as it is counts as the input: the dict keeps the
            # last of equal keys, so inputs, which come first, are put in last.
            places = {id(x): i for i, x in reversed(list(enumerate(values)))}
            program = None
            if saved.needs_read:
                made = compat.program(leaves, values)
                program = made, described(saved.layout, leaves)
            found[:] = [(saved, [places.get(id(x)) for x in leaves], program)]
            return [x for x in leaves if id(x) not in places]

        try:
            closed_over, staged = compat.Staged.trace(trace, (), *arrays, *outs)
        except errors.RuleError:  # ours: it says what is wrong with the rule
            raise
        except Exception:  # noqa: BLE001  (what needs values may raise anything)
            return None
        saved, places, program = found[0]
        return _TracedSetup(closed_over, staged, saved, places, perturbed, program)

    def primal(self, arrays: Arrays, perturbed: Perturbed) -> Outputs:
        recording = compat.Recording()
        outs = self._run(arrays)
        # Called although nothing is kept, as in torch: setup_context may have effects,
        # and its mistakes are to be reported here too.
        self._saved(outs.static, arrays, outs.arrays, perturbed)
        return Outputs(self._tied(outs, arrays, recording), outs.static)

    def _values(self, *inputs: Any) -> Arrays:
        return self._run(list(inputs)).arrays

    def _run(self, inputs: Arrays) -> Outputs:
        """Run forward."""
        self._check_closure()
        with policies.using(self._policy):
            return self._forward(inputs)

    def _tied(
        self, outs: Outputs, inputs: Arrays, recording: compat.Recording
    ) -> list[Any]:
        """Return outputs of forward; those with a derivative depend on all inputs."""
        arrays, differentiable = outs.arrays, outs.static.differentiable(outs.arrays)
        return tied(arrays, inputs, recording, differentiable, name=self._def.name)

    def _tangents(
        self,
        out: OutSpec,
        ran: _TracedSetup | Again,
        n: int,
        inputs: Arrays,
        outs: Arrays,
        dots: Arrays,
    ) -> Arrays:
        """Return the tangents of the outputs: the rule that is attached to them."""
        arrays, given, dots = inputs[:n], inputs[n:], dots[:n]
        moving = tuple([d is not None for d in dots])
        # If it looked at needs_input_grad, and other arguments move here, another run
        # might have saved something else: it runs again.
        if isinstance(ran, Again):
            residuals = self._setup(out, arrays, moving, outs, again=ran)
        elif ran.fits(moving):
            leaves, saved = ran.leaves(given, arrays, outs), ran.saved
            residuals = self._residuals(leaves, saved, out, arrays, outs, moving)
        else:
            second = self._trace_setup(out, arrays, outs, ran.perturbed)
            program = None if second is None else second.program
            check_same_program(f"{self._def.name}.setup_context", ran.program, program)
            residuals = self._setup(out, arrays, moving, outs)
        return push_forward(self._rules(), residuals, outs, dots)

    def _setup(
        self,
        out: OutSpec,
        arrays: Arrays,
        perturbed: Perturbed,
        outs: Arrays,
        *,
        again: Again | None = None,
    ) -> Residuals:
        leaves, saved = self._saved(out, arrays, outs, perturbed)
        if again is not None:
            again.check(saved, leaves, perturbed)
        return self._residuals(leaves, saved, out, arrays, outs, perturbed)

    def _saved(
        self,
        out: OutSpec,
        arrays: Arrays,
        outs: Arrays,
        perturbed: Perturbed,
    ) -> tuple[Arrays, Saved]:
        """Run setup_context; return the leaves that it saved, and the rest."""
        assert self._def.setup_context is not None
        # Marks are known by identity. Outside of a trace `x` and `stop_gradient(x)` are
        # one object, and a mark on one of two such outputs would be on both.
        ctx, outs = self._ctx(perturbed), distinct(outs)
        inputs, output = self._arguments.join(arrays), out.whole.join(outs)
        name, rule = self._def.name, self._def.setup_context
        with policies.using(self._policy):
            setup(name, self._def.forward, rule, ctx, inputs, output)
        with running(name, "setup_context", rule):
            check_dirty(ctx, arrays)
            leaves, layout = self._capture(ctx)
            out.marked = marks(ctx, outs)
            return leaves, Saved(layout, ctx._jaxfn_needs_read)
