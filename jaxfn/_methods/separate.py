"""The separate style: `forward(*args)` and `setup_context(ctx, inputs, output)`.

Forward runs on inputs without derivative, and its outputs get that of the rules. Then
`setup_context` runs on the real inputs and these outputs: whatever it saves has its
true derivative.

Its Python runs once, in the context of the call. Run again for a later derivative it
would see other settings, and draw other random numbers. So it is traced, and what it
computed is evaluated again, for the inputs and outputs that are at hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxfn._base import Outputs, OutSpec, compat, errors
from jaxfn._engine import (
    Arrays,
    Perturbed,
    Residuals,
    Run,
    attach,
    check_untraceable,
    distinct,
    push_forward,
    stop_gradient,
    through_references,
    tied,
)
from jaxfn._methods import policies
from jaxfn._methods.running import running
from jaxfn._methods.styles import Style, check_dirty, marks, setup


@dataclasses.dataclass(slots=True)
class _Setup:
    """One run of setup_context, without its arrays.

    Attributes:
        run: what it gave. Its sources count outputs as inputs, after the others.
        staged: the traced function from what it closes over, inputs and outputs to the
            leaves that it computed; None if these have been computed.
    """

    run: Run
    staged: compat.Staged | None = None

    def begin(self, closed_over: Arrays, arrays: Arrays, outs: Arrays) -> Arrays:
        """Return what `leaves` is to be given.

        Leaves that do not depend on the outputs are computed here, once and for all:
        the rule that calls `leaves` runs again for each derivative of the outputs.
        """
        if all(kind == "input" for kind, _ in self.run.sources):  # as mostly
            self.staged = None
            return []
        assert self.staged is not None
        n = len(closed_over) + len(arrays)
        if any(compat.used_inputs(self.staged.jaxpr)[n:]):
            return closed_over
        given, self.staged = self.staged(*closed_over, *arrays, *outs), None
        return given

    def leaves(self, given: Arrays, arrays: Arrays, outs: Arrays) -> list[Any]:
        """Return all leaves, for these inputs and outputs."""
        values = [*arrays, *outs]
        others = given if self.staged is None else self.staged(*given, *values)
        return self.run.leaves(values, (), others)


class Separate(Style):
    """The style of `forward(*args)` and `setup_context(ctx, inputs, output)`.

    Args:
        *args: those of `Style`.
        forward: Runs forward on arrays, with the vmap rule if there is one.
    """

    def __init__(self, *args: Any, forward: Callable[[Arrays], Outputs]) -> None:
        super().__init__(*args)
        self._forward = forward
        self._rule = f"{self._def.name}.setup_context"

    def fwd(self, arrays: Arrays, perturbed: Perturbed) -> tuple[Outputs, Residuals]:
        # Forward sees no derivative, so what it computes has none: the rules' own is
        # attached to the outputs, for derivatives of any order.
        still, recording = stop_gradient(arrays), compat.Recording()
        ran, name = self._run(still), self._def.name
        values = ran.arrays
        closed_over = through_references(self._values, recording, still, values)
        given, made = self._set_up(ran, arrays, perturbed)
        # The rule outlives this trace, so the values that it needs of it are inputs.
        outs = attach(
            partial(self._tangents, made, len(arrays)),
            [*arrays, *given],
            self._tied(ran, still, recording),
            name=name,
            closed_over=closed_over,
        )
        residuals = self._kept(made, given, arrays, outs, perturbed)
        return Outputs(outs, ran.static), residuals

    def primal(self, arrays: Arrays, perturbed: Perturbed) -> Outputs:
        recording = compat.Recording()
        ran = self._run(arrays)
        # Called although nothing is kept, as in torch: setup_context may have effects,
        # and its mistakes are to be reported here too.
        self._save(ran.static, arrays, ran.arrays, perturbed)
        return Outputs(self._tied(ran, arrays, recording), ran.static)

    # ---- forward

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

    # ---- setup_context

    def _set_up(
        self, ran: Outputs, arrays: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, _Setup]:
        """Run setup_context; return the values that its leaves are made of, and it."""
        n, out, outs = len(arrays), ran.static, ran.arrays
        why = ""
        # If no derivative can come, it runs as it is.
        if not compat.is_final(arrays):
            runs: list[Run] = []

            def trace(*values: Any) -> list[Any]:
                leaves, run = self._save(out, values[:n], values[n:], perturbed)
                runs.append(run)
                return run.others(leaves)

            try:
                closed_over, staged = compat.Staged.trace(trace, (), *arrays, *outs)
            except errors.RuleError:  # ours: it says what is wrong with the rule
                raise
            except Exception as error:  # noqa: BLE001  (what needs values: anything)
                why = type(error).__name__
            else:
                made = _Setup(runs[-1], staged)
                return made.begin(closed_over, arrays, outs), made
        still = stop_gradient([*arrays, *outs])
        leaves, run = self._save(out, still[:n], still[n:], perturbed)
        if any(map(compat.is_differentiated, arrays)):

            def again(xs: list[Any]) -> Run:
                return self._save(out, xs[:n], xs[n:], perturbed)[1]

            check_untraceable(self._rule, run, still, again, may_be_numpy=False)
            leaves = run.refusing(leaves, arrays, self._rule, why)
        return run.others(leaves), _Setup(run)

    def _save(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, Run]:
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
        run = self._ran(ctx, layout, out, perturbed)
        run.note_sources(leaves, [*arrays, *outs], ())
        return leaves, run

    def _kept(
        self,
        made: _Setup,
        given: Arrays,
        arrays: Arrays,
        outs: Arrays,
        perturbed: Perturbed,
    ) -> Residuals:
        """Return the residuals, for these inputs and outputs."""
        leaves = made.leaves(given, arrays, outs)
        return self._residuals(made.run, leaves, arrays, outs, perturbed)

    def _tangents(
        self, made: _Setup, n: int, inputs: Arrays, outs: Arrays, dots: Arrays
    ) -> Arrays:
        """Return the tangents of the outputs: the rule that is attached to them."""
        arrays, given, dots = inputs[:n], inputs[n:], dots[:n]
        perturbed = made.run.pattern([d is not None for d in dots], self._rule)
        residuals = self._kept(made, given, arrays, outs, perturbed)
        return push_forward(self._rules(), residuals, outs, dots)
