"""The two styles of forward, and what a context holds after them.

In the combined style `forward(ctx, *args)` fills ctx while it computes. In the separate
style `forward(*args)` only computes, and `setup_context(ctx, inputs, output)` is its
second part. `_engine.onepass` runs either of them once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import Arguments, Outputs, OutSpec, compat, errors, search
from jaxfn._engine import (
    Arrays,
    OnePass,
    Perturbed,
    Residuals,
    Rules,
    Run,
    distinct,
)
from jaxfn._methods import hooks, policies
from jaxfn._methods.capture import Layout, capture
from jaxfn._methods.definition import Definition
from jaxfn._methods.node import BackwardCFunction, where
from jaxfn._methods.packed import pack
from jaxfn._methods.running import explain, running


@dataclasses.dataclass(slots=True)
class Record:
    """The static part of the residuals of one run.

    Attributes:
        layout: the layout of the context.
        perturbed: for each array argument, whether it is differentiated.
        in_avals: the types of the array arguments.
        out_avals: the types of the array outputs.
        out: the structure of the outputs.
    """

    layout: Layout
    perturbed: Perturbed
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out: OutSpec


class Style:
    """Runs forward of a class, in the style that it has.

    Args:
        definition: the rules of the class.
        arguments: the arguments of the call.
        rules: returns the `Rules` of the call, which are made from the style.
        forward: Runs forward of the separate style on arrays.
    """

    def __init__(
        self,
        definition: Definition,
        arguments: Arguments,
        rules: Callable[[], Rules],
        forward: Callable[[Arrays], Outputs],
    ) -> None:
        self._def = definition
        self._arguments = arguments
        self._rules = rules
        self._forward = forward
        # Those that hold at the call: forward may be traced later, by a transformation,
        # when the caller's `with` block is over.
        self._hooks = hooks.current()
        self._policy = policies.current()

    @property
    def once(self) -> OnePass:
        """The one pass of forward, which has the `fwd` and the primal of `Rules`."""
        name, parts = self._def.name, (self._residuals, self._rules)
        if self._def.setup_context is None:
            return OnePass(self._combined, *parts, rule=f"{name}.forward")
        return OnePass(
            self._separate,
            *parts,
            rule=f"{name}.forward",
            second=self._setup_context,
            second_rule=f"{name}.setup_context",
        )

    def _combined(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        """Run forward(ctx, *args)."""
        self._check_closure()
        ctx = self._ctx(perturbed)
        args = self._arguments.join(inputs)
        forward, given = self._def.forward, (ctx, *args)
        with running(self._def.name, "forward", forward, given):
            with policies.using(self._policy):
                result = forward(ctx, *args, **self._arguments.kwargs)
            found, out = self._arguments.split_output(result, name=self._def.name)
            check_dirty(ctx, inputs)
            leaves, layout = self._capture(ctx)
            out.marked = marks(ctx, found)
        return found, leaves, self._ran(ctx, layout, out, perturbed)

    def _separate(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        """Run forward(*args), which saves nothing."""
        self._check_closure()
        with policies.using(self._policy):
            outs = self._forward(inputs)
        return outs.arrays, [], Run(outs.static, perturbed, False, None)

    def _setup_context(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], Run]:
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
        run.note_sources(leaves, arrays, outs)
        return leaves, run

    def _ctx(self, perturbed: Perturbed) -> BackwardCFunction:
        """Make the context of one run."""
        ctx = self._def.cls._backward_cls()
        ctx.__dict__["_jaxfn_needs"] = self._arguments.any(perturbed)
        return ctx

    def _check_closure(self) -> None:
        """Refuse a forward that closes over a tracer whose derivative would be lost."""
        specs = [spec for spec in self._arguments.specs if not spec.is_array]
        held = [x for spec in specs for x in spec.leaves]
        held += getattr(self._def.forward, "__closure__", None) or ()
        if held and search.find(held, compat.is_lost) is not None:
            raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=self._def.name))

    def _capture(self, ctx: BackwardCFunction) -> tuple[list[Any], Layout]:
        rules = self._rules()
        return capture(
            ctx, backward=rules.bwd is not None, forward=rules.jvp is not None
        )

    def _ran(
        self, ctx: BackwardCFunction, layout: Layout, out: OutSpec, perturbed: Perturbed
    ) -> Run:
        """Describe the run that filled this context."""
        opaque = tuple([f"ctx.{name}" for name in layout.opaque])
        numpy, asked = layout.numpy, ctx._jaxfn_needs_read
        return Run(out, perturbed, asked, layout, constants=numpy, opaque=opaque)

    def _residuals(
        self,
        run: Run,
        leaves: Arrays,
        arrays: Arrays,
        outs: Arrays,
        perturbed: Perturbed,
    ) -> Residuals:
        """Make the residuals of one run, with what saved-tensor hooks make of them."""
        out_avals = tuple([jax.typeof(x) for x in outs])
        in_avals = tuple([jax.typeof(x) for x in arrays])
        layout: Layout = run.saved
        # Where nothing is differentiated nothing is kept, and torch packs nothing.
        if self._hooks is not None and any(perturbed):
            leaves, packed = pack(
                layout.for_backward,
                leaves,
                layout.shared,
                self._hooks,
                name=self._def.name,
            )
            layout = dataclasses.replace(layout, packed=packed)
        record = Record(layout, perturbed, in_avals, out_avals, run.out)
        differentiable = run.out.differentiable(out_avals)
        return Residuals(leaves, record, differentiable, run.pattern_used)


def setup(
    name: str,
    forward: Any,
    setup_context: Any,
    ctx: BackwardCFunction,
    inputs: Any,
    output: Any,
) -> None:
    """Call setup_context, under autocast with the inputs as forward saw them."""
    # forward(*args) of this style has no ctx for `custom_fwd` to write on.
    casting = policies.casting(forward)
    if casting is not None:
        policies.note(ctx, casting)
        inputs = casting.cast(inputs)
    try:
        setup_context(ctx, inputs, output)
    except Exception as error:
        given = ctx, inputs, output
        explain(error, name, "setup_context", setup_context, given)
        raise


def marks(ctx: BackwardCFunction, outs: Sequence[Any]) -> frozenset[int]:
    """Return the indices of the outputs that were marked non-differentiable."""
    if not ctx.non_differentiable:
        return frozenset()
    marked = {id(x) for x in ctx.non_differentiable}
    indices = frozenset(i for i, x in enumerate(outs) if id(x) in marked)
    if len({id(outs[i]) for i in indices}) != len(marked):
        raise errors.RuleValueError(
            f"{where(ctx)} called ctx.mark_non_differentiable with a value that is "
            "not an output: expected the very arrays that forward returns, got another "
            "(JAX operations give new arrays). Mark what you return."
        )
    return indices


def check_dirty(ctx: BackwardCFunction, inputs: Sequence[Any]) -> None:
    """Refuse a mark of something else than an input as dirty."""
    if not ctx.dirty_tensors:
        return
    known = {id(x) for x in inputs}
    if any(id(x) not in known for x in ctx.dirty_tensors):
        raise errors.RuleValueError(
            "ctx.mark_dirty() received a tensor that was not an input. Only input "
            "Tensors that have been mutated should be passed to ctx.mark_dirty(). "
            f"{where(ctx)}: expected arguments of forward, by identity; return the "
            "new value instead of marking it."
        )
