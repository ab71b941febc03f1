"""The two styles of forward, each of which `_engine.onepass` runs once.

Combined: `forward(ctx, *args)`. Separate: `forward(*args)`, then
`setup_context(ctx, inputs, output)`.
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
        layout: Layout of the context.
        perturbed: For each array argument, whether it is differentiated.
        in_avals: Types of the array arguments.
        out_avals: Types of the array outputs.
        out: Structure of the outputs.
    """

    layout: Layout
    perturbed: Perturbed
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out: OutSpec


class Style:
    """Runs forward of a class in its style.

    Args:
        definition: The rules of the class.
        arguments: Arguments of the call.
        rules: Function that returns the `Rules` of the call.
        forward: Forward of the separate style, on arrays.
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
        # JAX may trace forward later, after the caller's `with` block.
        self._hooks = hooks.current()
        self._policy = policies.current()

    @property
    def once(self) -> OnePass:
        """The one pass of forward, with the `fwd` and the primal of `Rules`."""
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
        self._check_closure()
        with policies.using(self._policy):
            outs = self._forward(inputs)
        return outs.arrays, [], Run(outs.static, perturbed, False, None)

    def _setup_context(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], Run]:
        assert self._def.setup_context is not None
        ctx = self._ctx(perturbed)
        inputs, output = self._arguments.join(arrays), out.whole.join(outs)
        name, rule = self._def.name, self._def.setup_context
        with policies.using(self._policy):
            setup(name, self._def.forward, rule, ctx, inputs, output)
        with running(name, "setup_context", rule):
            check_dirty(ctx, arrays)
            leaves, layout = self._capture(ctx)
            out.marked = marks(ctx, outs)
        return leaves, self._ran(ctx, layout, out, perturbed)

    def _ctx(self, perturbed: Perturbed) -> BackwardCFunction:
        ctx = self._def.cls._backward_cls()
        ctx.__dict__["_jaxfn_needs"] = self._arguments.any(perturbed)
        return ctx

    def _check_closure(self) -> None:
        """Refuse a forward that closes over a tracer whose derivative would be lost."""
        specs = [spec for spec in self._arguments.specs if not spec.is_array]
        closures = [x for spec in specs for x in spec.leaves]
        closures += getattr(self._def.forward, "__closure__", None) or ()
        if closures and search.find(closures, compat.is_lost) is not None:
            raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=self._def.name))

    def _capture(self, ctx: BackwardCFunction) -> tuple[list[Any], Layout]:
        rules = self._rules()
        return capture(
            ctx, backward=rules.bwd is not None, forward=rules.jvp is not None
        )

    def _ran(
        self, ctx: BackwardCFunction, layout: Layout, out: OutSpec, perturbed: Perturbed
    ) -> Run:
        opaque = tuple([f"ctx.{name}" for name in layout.opaque])
        numpy, asked = layout.numpy, ctx._jaxfn_needs_read
        return Run(out, perturbed, asked, layout, constants=numpy, opaque=opaque)

    def _residuals(
        self,
        run: Run,
        leaves: Arrays,
        arrays: Arrays,
        outs: Arrays,
    ) -> Residuals:
        """Make the residuals of one run; saved-tensor hooks pack them."""
        out_avals = tuple([jax.typeof(x) for x in outs])
        in_avals = tuple([jax.typeof(x) for x in arrays])
        layout: Layout = run.saved
        # torch packs only if something is differentiated.
        if self._hooks is not None and any(run.perturbed):
            leaves, packed = pack(
                layout.for_backward,
                leaves,
                layout.shared,
                self._hooks,
                name=self._def.name,
            )
            layout = dataclasses.replace(layout, packed=packed)
        record = Record(layout, run.perturbed, in_avals, out_avals, run.out)
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
    """Call setup_context; autocast casts its inputs as it does for forward."""
    # `custom_fwd` can't write to ctx: forward of this style has none.
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
    """Return the indices of the outputs marked non-differentiable."""
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
    """Refuse a dirty mark on a value that is no input."""
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
