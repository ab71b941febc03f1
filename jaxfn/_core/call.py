"""A call: it turns `Rules` into a jax.custom_vjp or a jax.custom_jvp.

| rules       | definition | reverse mode       | forward mode           |
|-------------|------------|--------------------|------------------------|
| bwd         | custom_vjp | bwd                | refused when evaluated |
| jvp         | custom_jvp | jvp transposed     | jvp                    |
| bwd, jvp    | custom_jvp | bwd (see `linear`) | jvp                    |
| bwd, derive | custom_jvp | bwd (see `linear`) | bwd transposed         |

Below a jvp, rules with a bwd alone are a custom_jvp too.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages
from jaxfn._core.batch import in_front, spread_out, tied
from jaxfn._core.closures import run_closed
from jaxfn._core.primitives import attach, gate, linear, refusing
from jaxfn._core.results import loses_imaginary
from jaxfn._core.transpose import KERNEL, WHILE, transposed
from jaxfn._core.values import (
    Arrays,
    Layout,
    Mask,
    Outputs,
    as_jax,
    is_inexact,
    spread,
)


class Rules:
    """The rules of one call, in terms of flat lists of arrays. None is zero throughout.

    A subclass says how a user writes them: in torch's terms or in JAX's. It outlives
    the call, so it holds no array and no tracer. (In JAX's terms it holds the static
    arguments, `nondiff_argnums`, which may be tracers as in JAX.)

    Attributes:
        name: Name for messages and jaxprs.
        has_backward: Whether there is a `backward`.
        has_jvp: Whether there is a `jvp`.
        derives_jvp: Whether forward mode transposes `backward`.
        once: Whether `backward` refuses to be differentiated.
        own_value: Whether `value` is another function than `forward`.
        joint: Whether the jvp computes the outputs too, and there is no backward.
        native: Whether the outputs of forward keep the derivative of its operations, as
            those of a jax.custom_vjp do.
        has_setup: Whether a second part of forward, `setup`, saves.
        forward_name: Name of forward, for messages.
        setup_name: Name of the second part.
        arguments: Name of each array, for JAX's messages.
        called_in: Weak reference to the trace of the call, if it makes a jaxpr.
    """

    name: str
    has_backward: bool
    has_jvp: bool
    derives_jvp: bool = False
    once: bool = False
    own_value: bool = False
    joint: bool = False
    native: bool = False
    has_setup: bool = False
    forward_name: str
    setup_name: str = ""
    arguments: Sequence[str] = ()
    called_in: Any = None

    def named(self, rule_name: str) -> tuple[str, str]:
        """Return the name of a rule in jaxprs; and its file and line, or ""."""
        return f"{self.name}.{rule_name}", ""

    def forward(
        self, arrays: Arrays, perturbed: Mask
    ) -> tuple[list[Any], list[Any], Layout]:
        """Run forward; return its outputs, the arrays that it saved, and the rest.

        The subclass (in `setup`, if it has one) sets `marked`, `grad_dtypes`,
        `perturbed`, `asked` and `saved` of the layout. The core fills in the sources,
        setup and the types.
        """
        raise NotImplementedError

    def value(self, arrays: Arrays) -> tuple[list[Any], Layout]:
        """Run forward for its outputs alone."""
        outs, _, layout = self.forward(arrays, (False,) * len(arrays))
        return outs, layout

    def setup(
        self, layout: Layout, arrays: Arrays, outs: Arrays, perturbed: Mask
    ) -> tuple[list[Any], Layout]:
        """Run the second part of forward; return what it saved, and the layout."""
        raise NotImplementedError

    def pack(self, layout: Layout, saved: list[Any]) -> tuple[Layout, list[Any]]:
        """Change the saved arrays before JAX keeps them, as saved-tensor hooks do."""
        return layout, saved

    def backward(self, layout: Layout, saved: Arrays, cts: Arrays) -> list[Any]:
        """Return a cotangent of each argument, from one of each output."""
        raise NotImplementedError

    def jvp(self, layout: Layout, saved: Arrays, tangents: Arrays) -> list[Any]:
        """Return a tangent of each output, from one of each argument."""
        raise NotImplementedError

    def value_and_jvp(self, arrays: Arrays, tangents: Arrays) -> tuple[Any, Any, Any]:
        """Return the outputs, the layout, and the tangents, if `joint`."""
        raise NotImplementedError

    def no_jvp(self) -> TypeError:
        """Make JAX's error for forward mode, with a note that tells the way out."""
        error = TypeError(internals.FORWARD_MODE_REFUSAL)
        error.add_note(self.no_jvp_note())
        return error

    def no_jvp_note(self) -> str:
        return (
            f"{messages.NO_JVP} `{self.name}` has no jvp: define a jvp staticmethod, "
            "or set generate_jvp_rule = True on the class to derive the jvp from "
            "backward (from_torch takes it as an argument), unless it runs a kernel."
        )

    @property
    def define_jvp(self) -> str:
        """How a user writes a jvp, for messages."""
        return f"jvp: `jvp(ctx, *tangents)` of `{self.name}`"

    @property
    def has_forward_mode(self) -> bool:
        return self.has_jvp or self.derives_jvp


def call(rules: Rules, arrays: Arrays) -> Any:
    """Call the Function that has these rules on flat arrays, through JAX."""
    # JAX refuses forward mode through a custom_vjp without naming the function; in a
    # vmap or a grad even if the tangents are only transposed. `linear` names it, and
    # has a transpose. A jit around the call hides the jvp: then JAX's own rules hold.
    forward_mode = rules.has_forward_mode or any(map(internals.has_tangent, arrays))
    trace = internals.staging()
    rules.called_in = trace and weakref.ref(trace)
    try:
        make = _custom_jvp if forward_mode else _custom_vjp
        outs = make(rules, symbolic=_takes_symbolic_zeros(arrays))(*arrays)
    except (jax.errors.UnexpectedTracerError, KeyError) as error:
        if any(type(x).__name__ == "JetTracer" for x in arrays):
            raise messages.taylor_mode(rules.name) from None
        # jet raises a KeyError for a primitive that it doesn't know; any other is the
        # user's. Rules in JAX's terms of one kind keep JAX's own error.
        if isinstance(error, KeyError) or rules.native or rules.joint:
            raise
        raise messages.closed_over(rules.name) from error
    except TypeError as error:
        is_refusal = str(error) == internals.FORWARD_MODE_REFUSAL
        if is_refusal and not hasattr(error, "__notes__"):  # the innermost Function's
            error.add_note(rules.no_jvp_note())
        raise
    layout: Layout = outs.layout
    found = list(outs.arrays)
    # A marked output may be unbatched. For an unbatched output of a custom_vjp, JAX
    # refuses a cotangent, so stop it here. (A custom_jvp gives no tangent.)
    if not forward_mode:
        for i in layout.marked:
            found[i] = jax.lax.stop_gradient(found[i])
    return layout.out.join(found)


# ---- the functions that JAX gets


def _takes_symbolic_zeros(arrays: Arrays) -> bool:
    """Return whether JAX takes symbolic zeros for a call with these arrays.

    An eager shard_map and the compilers of Pallas kernels refuse the option, although
    they use only the function and not its rules. What is differentiated uses the rules.
    """
    return not internals.in_shard_map_or_kernel() or any(
        map(internals.is_differentiated, arrays)
    )


def _custom_vjp(rules: Rules, *, symbolic: bool) -> Callable[..., Outputs]:
    """Make the custom_vjp of rules with a backward alone."""
    residuals = _Residuals(rules.name)

    def fwd(*primals: Any) -> Any:
        arrays = [internals.as_array(getattr(p, "value", p)) for p in primals]
        perturbed = [getattr(p, "perturbed", True) for p in primals]
        outs, layout, saved = _fwd(rules, arrays, _needed(arrays, perturbed))
        return Outputs(outs, layout), residuals.pack(layout, saved, arrays)

    def bwd(packed: Any, cts: Outputs) -> Any:
        layout, saved = residuals.unpack(packed)
        return tuple(
            _pull(rules, layout, saved, list(map(internals.as_tangent, cts.arrays)))
        )

    f = jax.custom_vjp(_described(_primal(rules), rules, "", _ANY))
    f.defvjp(
        _described(fwd, rules, "forward", _ANY),
        _described(bwd, rules, "backward", _BWD),
        symbolic_zeros=symbolic,
    )
    return f


def _custom_jvp(rules: Rules, *, symbolic: bool) -> Callable[..., Outputs]:
    """Make the custom_jvp of rules with a jvp, or whose tangents are transposed."""

    def push(primals: Arrays, tangents: Arrays) -> tuple[Outputs, Outputs]:
        arrays = list(map(internals.as_array, primals))
        ts = list(map(internals.as_tangent, tangents))
        if all(t is None for t in ts):  # JAX differentiates by a closed-over value
            raise messages.closed_over(rules.name)
        if rules.joint:
            outs, layout, out_ts = run_closed(
                lambda: rules.value_and_jvp(arrays, ts), arrays, name=rules.name
            )
            layout = _typed(layout, arrays, outs)
            spreads = layout.differentiable
            outs = spread_out(outs, arrays, spreads, name=rules.name)
        else:
            perturbed = _needed(arrays, [t is not None for t in ts])
            outs, layout, saved = _fwd(rules, arrays, perturbed)
            out_ts = _push(rules, layout, saved, ts, derive=rules.derives_jvp)
        out_ts = internals.with_zeros(out_ts, outs)
        return Outputs(outs, layout), Outputs(out_ts, layout)

    f = jax.custom_jvp(_described(_primal(rules), rules, "", _ANY))
    f.defjvp(
        _described(push, rules, "jvp", _JVP),
        symbolic_zeros=symbolic,
    )
    return f


def _primal(rules: Rules) -> Callable[..., Outputs]:
    """Make the function that jit traces and vmap batches.

    In a JAX with `SCAN_DROPS_JVP` it has the derivative of the rules, if they have a
    forward mode: the reverse derivative of a scan keeps only the primal there.
    """

    def primal(*args: Any) -> Outputs:
        # JAX passes on constants as numbers and NumPy arrays; rules get JAX arrays.
        arrays = list(map(internals.as_array, args))
        nothing = (False,) * len(arrays)
        has_rules = internals.SCAN_DROPS_JVP and rules.has_forward_mode
        if has_rules and not rules.own_value:
            outs, layout, _ = _fwd(rules, arrays, nothing)
            return Outputs(outs, layout)
        inside = list(map(gate, arrays)) if has_rules else arrays
        outs, layout = run_closed(lambda: rules.value(inside), inside, name=rules.name)
        outs = list(map(as_jax, outs))
        # As in torch, call it although nothing is saved: it may have effects, and its
        # mistakes must show here too.
        if rules.has_setup:
            _, layout = rules.setup(layout, arrays, distinct(outs), nothing)
        layout = _typed(layout, arrays, outs)
        outs = tied(outs, inside, layout.differentiable, name=rules.name)
        if has_rules:
            rule = functools.partial(_by_forward, rules)
            spreads = layout.differentiable
            outs = attach(rule, arrays, outs, name=rules.name, spreads=spreads)
        return Outputs(outs, layout)

    return primal


def _by_forward(rules: Rules, inputs: Arrays, _: Arrays, tangents: Arrays) -> list[Any]:
    """Return the tangents of the outputs, by a run of forward that saves."""
    perturbed = tuple([t is not None for t in tangents])
    _, layout, saved = _fwd(rules, inputs, perturbed)
    return _push(rules, layout, saved, tangents, derive=rules.derives_jvp)


_ANY = inspect.signature(lambda *args: args)
_BWD = inspect.signature(lambda packed, cts: (packed, cts))
_JVP = inspect.signature(lambda primals, tangents: (primals, tangents))


def _described(
    fun: Callable[..., Any], rules: Rules, rule_name: str, signature: Any
) -> Callable[..., Any]:
    """Tell JAX the signature, name, file and line of a function, and return it.

    JAX would inspect the function for them, which takes longer than everything else
    here. Jaxprs and errors show the name of the Function, or `Name.rule` (`Name_rule`
    in names of Python functions), with the user's file and line.
    """
    fun.__name__ = f"{rules.name}_{rule_name}" if rule_name else rules.name
    fun.__dict__["__signature__"] = signature
    source = _source(rules, rule_name)
    internals.set_debug_info(fun, rules.name, source, rules.arguments)
    return fun


def _source(rules: Rules, rule_name: str) -> str:
    """Name a rule, with its file and line."""
    name, place = rules.named(rule_name or "forward")
    name = name if rule_name else rules.name
    return f"{name} at {place}" if place else name


def _needed(arrays: Arrays, perturbed: Sequence[bool]) -> Mask:
    """Return which arguments any transformation around the call differentiates.

    As in torch, an argument needs a gradient whichever transformation takes it. A
    gradient penalty differentiates by one argument inside and by another outside;
    forward saves for both.
    """
    # JAX's next implementation calls integers perturbed, too.
    found = zip(
        arrays, perturbed, map(internals.is_differentiated, arrays), strict=True
    )
    return tuple([is_inexact(x) and (inner or outer) for x, inner, outer in found])


class _Residuals:
    """Takes residuals from the fwd of one call to the bwd of the same trace.

    JAX keeps one structure of residuals for each custom_vjp call: from the last trace
    of fwd. But it traces a call in a jitted function again for each set of perturbed
    arguments, and uses all these traces at once. As aux data of a pytree, the layout
    would reach the bwd of another trace (a gradient of 11 became 3). So the layouts
    stay here, one for each set; and the set travels as the shape of an array without
    elements. If no argument is a tracer, fwd runs once, and needs no such array.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._layouts: dict[Mask | None, tuple[Layout, list[Any]]] = {}

    def pack(
        self, layout: Layout, saved: Arrays, arrays: Arrays
    ) -> tuple[list[Any], Any]:
        """Keep the layout; return the arrays for JAX."""
        perturbed = layout.perturbed if any(map(internals.is_tracer, arrays)) else None
        # A trace for other arguments may save other arrays in these places. JAX gives
        # all traces the same batch axes, so they are put in front.
        if layout.asked:
            saved = in_front(saved, name=self._name)
        types = [(x.shape, x.dtype) for x in saved]
        for other in self._layouts.values():
            self._check(other[1], types, len(other[1]) != len(types))
        self._layouts[perturbed] = layout, types
        return list(saved), None if perturbed is None else _code(perturbed)

    def unpack(self, packed: tuple[list[Any], Any]) -> tuple[Layout, list[Any]]:
        """Return the layout and the arrays of the same trace."""
        arrays, code = packed
        saved = list(map(internals.as_array, arrays))
        layout, types = self._layouts[None if code is None else _decode(code)]
        # JAX may mix them up when it batches them.
        got = [(x.shape, x.dtype) for x in saved]
        self._check(types, got, got != types)
        return layout, saved

    def _check(self, expected: Any, got: Any, differs: bool) -> None:
        if differs:
            raise messages.other_residuals(self._name, expected, got)


def _code(perturbed: Mask) -> Any:
    """Make an array without elements, whose shape says which arguments are needed."""
    bits = [
        sum(need << i for i, need in enumerate(perturbed[at : at + 30]))
        for at in range(0, len(perturbed), 30)
    ]
    # Made in the trace that carries it: in a Pallas kernel a loop can't carry others.
    return jax.lax.broadcasted_iota(np.int8, (0, len(perturbed), *bits), 0)


def _decode(code: Any) -> Mask:
    _, n, *bits = code.shape
    return tuple([bool(bits[i // 30] >> i % 30 & 1) for i in range(n)])


# ---- forward


def _fwd(
    rules: Rules, arrays: Arrays, perturbed: Mask
) -> tuple[list[Any], Layout, list[Any]]:
    """Run forward for a derivative.

    Returns:
        The outputs, with the derivative of the rules at any order; the layout; and what
        forward saved: the real inputs, the attached outputs, and other values.
    """
    if rules.native:
        outs, saved, layout = run_closed(
            lambda: rules.forward(arrays, perturbed), arrays, name=rules.name
        )
        layout = _typed(layout, arrays, outs)
        outs = spread_out(outs, arrays, layout.differentiable, name=rules.name)
        return outs, *rules.pack(layout, saved)
    outs, others, closed, layout = run_closed(
        lambda: _gated_forward(rules, arrays, perturbed), arrays, name=rules.name
    )
    if rules.has_setup:
        others, layout = _setup(rules, layout, arrays, outs, perturbed)
    layout = _typed(layout, arrays, outs)
    inputs = [*arrays, *others]
    # A reference has no tangent that a rule could be given.
    values = [x for x in inputs if not internals.is_reference(x)]
    has_reference = len(values) < len(inputs)
    outs = attach(
        functools.partial(_tangents, rules, layout, len(arrays), has_reference),
        values,
        outs,
        name=rules.name,
        closed=closed,
        spreads=layout.differentiable,
    )
    return outs, *rules.pack(layout, layout.leaves(arrays, outs, others))


def _tangents(
    rules: Rules,
    layout: Layout,
    n: int,
    has_reference: bool,
    inputs: Arrays,
    outs: Arrays,
    tangents: Arrays,
) -> list[Any]:
    """Return the tangents of the outputs: the rule that `_fwd` attaches."""
    if has_reference:
        raise messages.reference(rules.setup_name or rules.forward_name)
    # Leave out the tangents of saved intermediates: by the inputs alone the rules give
    # the whole derivative.
    arrays, others, tangents = inputs[:n], inputs[n:], tangents[:n]
    perturbed = tuple([t is not None for t in tangents])
    if layout.asked:
        # Forward saved what these arguments need. The rules get the same mask.
        if any(
            need and not known
            for need, known in zip(perturbed, layout.perturbed, strict=True)
        ):
            raise messages.other_arguments(rules.setup_name or rules.forward_name)
        perturbed = layout.perturbed
    setup = layout.setup
    if setup is not None and (setup := internals.without_effects(setup)) is None:
        raise messages.not_repeatable(rules.setup_name)
    layout = dataclasses.replace(
        _typed(layout, arrays, outs), perturbed=perturbed, setup=setup
    )
    layout, saved = rules.pack(layout, layout.leaves(arrays, outs, others))
    return _push(rules, layout, saved, tangents, derive=True)


def _typed(layout: Layout, arrays: Arrays, outs: Arrays) -> Layout:
    types = tuple(map(internals.type_of, arrays)), tuple(map(internals.type_of, outs))
    return dataclasses.replace(layout, in_types=types[0], out_types=types[1])


def _gated_forward(
    rules: Rules, arrays: Arrays, perturbed: Mask
) -> tuple[list[Any], list[Any], list[Any] | None, Layout]:
    """Run forward.

    `_fwd` attaches the derivative of the rules to the outputs. The operations of
    forward may have none, as a host callback: so the arguments are gated. But an
    intermediate that forward saved needs the derivative of the operations. So if a
    float argument is a tracer, forward is traced first, to see whether it saved one.

    Returns:
        The outputs; other saved values; the traced values that forward closed over, if
        the outputs have the derivative of its operations; and the layout.
    """
    traced = [
        i for i, x in enumerate(arrays) if internals.is_tracer(x) and is_inexact(x)
    ]
    if not traced:
        return _run(rules, arrays, perturbed)
    try:
        jaxpr, consts, n, layout = _trace(rules, arrays, perturbed, traced)
    except internals.NEEDS_VALUES as error:
        if rules.has_setup:  # then forward saves nothing, and may need known values
            return _run(rules, list(map(gate, arrays)), perturbed)
        if not any(map(internals.is_differentiated, arrays)):
            raise
        way_out = "save in setup_context: then forward may need known values"
        raise messages.needs_trace(rules.forward_name, error, way_out) from error
    # References are differentiated, whatever is written to them.
    saves_more = any(map(is_inexact, internals.out_types(jaxpr)[n:]))
    inside = [arrays[i] if saves_more else gate(arrays[i]) for i in traced]
    results = internals.evaluate(jaxpr, [*consts, *inside])
    known = set(map(id, arrays))
    closed = [x for x in consts if internals.is_tracer(x) and id(x) not in known]
    return results[:n], results[n:], closed if saves_more else None, layout


def _run(rules: Rules, arrays: Arrays, perturbed: Mask) -> Any:
    """Run forward without a trace; see `_gated_forward`."""
    outs, saved, layout = rules.forward(arrays, perturbed)
    others = layout.note_sources(saved, arrays, outs)
    if len({id(outs[i]) for i in layout.marked}) != len(layout.marked):
        layout.marked = _marks(rules, arrays, perturbed)
    return list(map(as_jax, outs)), others, None, layout


def _trace(
    rules: Rules, arrays: Arrays, perturbed: Mask, places: Sequence[int] | None = None
) -> tuple[Any, list[Any], int, Layout]:
    """Trace forward as a function of some arrays; the others keep their values.

    Returns:
        A jaxpr that computes the outputs and the other saved values; the values that it
        closes over; the number of outputs; and the layout.
    """
    if places is None:
        places = [i for i, x in enumerate(arrays) if is_inexact(x)]
    layouts: list[tuple[int, Layout]] = []

    def run(*values: Any) -> list[Any]:
        inside = list(arrays)
        for i, x in zip(places, values, strict=True):
            inside[i] = x
        outs, saved, layout = rules.forward(inside, perturbed)
        others = layout.note_sources(saved, inside, outs)
        layouts[:] = [(len(outs), layout)]
        return [*map(as_jax, outs), *others]

    source = _source(rules, "")
    jaxpr, consts = internals.trace(run, [arrays[i] for i in places], source)
    return jaxpr, consts, *layouts[0]


def _marks(rules: Rules, arrays: Arrays, perturbed: Mask) -> frozenset[int]:
    """Return which outputs forward marks, by a trace used for nothing else.

    Outside a trace, an output and lax.stop_gradient of it are one object, so both count
    as marked. In a trace they are two.
    """
    try:
        return _trace(rules, arrays, perturbed)[-1].marked
    except internals.NEEDS_VALUES as error:
        raise messages.RuleValueError(
            f"`{rules.forward_name}` marked an output that is the same object as "
            "another (outside of a trace lax.stop_gradient(x) is x), and it can't be "
            "traced to see which of them is marked. Return a copy of it, jnp.copy(x)."
        ) from error


def _setup(
    rules: Rules, layout: Layout, arrays: Arrays, outs: Arrays, perturbed: Mask
) -> tuple[list[Any], Layout]:
    """Run the second part of forward, which saves from inputs and outputs.

    All that it computes has its true derivative, also by the outputs, whose derivative
    comes from the rules. So it is traced, and evaluated for the current inputs and the
    attached outputs (`Layout.leaves`).

    Returns:
        The values that the saved arrays need beside inputs and outputs; and the layout.
    """
    n, values = len(arrays), [*arrays, *outs]
    places = [i for i, x in enumerate(values) if is_inexact(x)]
    found: list[Layout] = []

    def save(*floats: Any) -> list[Any]:
        inside = list(values)
        for i, x in zip(places, floats, strict=True):
            inside[i] = x
        inputs, outputs = inside[:n], distinct(inside[n:])
        saved, layout_ = rules.setup(layout, inputs, outputs, perturbed)
        found[:] = [layout_]
        return layout_.note_sources(saved, inputs, outputs)

    floats = [values[i] for i in places]
    if not any(map(internals.is_tracer, values)):
        return save(*floats), found[0]
    try:
        jaxpr, consts = internals.trace(save, floats)
    except internals.NEEDS_VALUES as error:
        way_out = "compute it in the rules"
        raise messages.needs_trace(rules.setup_name, error, way_out) from error
    # If every saved array is an input or an output, as usual, there is nothing to run.
    if not internals.out_types(jaxpr) and not internals.effects(jaxpr):
        return [], found[0]
    found[0].setup = jaxpr
    return consts, found[0]


def distinct(arrays: Arrays) -> list[Any]:
    """Return the arrays as distinct objects, which they always are in a trace.

    jaxfn recognizes marked and saved arrays by identity. Outside a trace, `x` and
    `lax.stop_gradient(x)` are one object, so a mark on one would mark both.
    """
    found: list[Any] = []
    for x in arrays:
        if any(x is known for known in found) and not internals.is_tracer(x):
            x = jax.device_put(x, x.sharding)
        found.append(x)
    return found


# ---- derivatives


def _is_elsewhere(rules: Rules) -> bool:
    """Return whether the call was traced, and JAX runs its rules in another trace.

    In the trace of the call, JAX differentiates the operations of the rules. A jit, a
    loop or a branch around the call is differentiated in a trace of its own, where all
    that a rule closes over is a constant. (So is a checkpoint, which loses nothing; but
    from inside it does not show whether a jit is around it.)
    """
    trace = rules.called_in
    return trace is not None and trace() is not internals.staging()


def _run_rule(
    rules: Rules,
    rule: Callable[..., list[Any]],
    layout: Layout,
    *arrays: Arrays,
    elsewhere: bool,
) -> list[Any]:
    """Run a rule; if `elsewhere`, refuse a derivative by what it closes over."""
    run = functools.partial(rule, layout, *arrays)
    if not elsewhere:
        return run()
    return run_closed(run, [x for xs in arrays for x in xs], name=rules.name)


def _push(
    rules: Rules, layout: Layout, saved: Arrays, tangents: Arrays, *, derive: bool
) -> list[Any]:
    """Return the tangents of the outputs.

    They are J t, for the Jacobian J of the Function. If there is a backward, ct -> J^T
    ct, `linear` binds the two together as one map and its transpose.
    """
    # Ask before `linear` traces the rule, in a trace of its own that loses nothing.
    run = functools.partial(_run_rule, rules, elsewhere=_is_elsewhere(rules))
    if not rules.has_backward:
        return run(rules.jvp, layout, saved, tangents)  # JAX transposes its operations
    differentiable = layout.differentiable
    pairs = zip(layout.out_types, differentiable, strict=True)
    types = [internals.tangent_type(t) for t, d in pairs if d]
    has_tangent = [t is not None for t in tangents]
    places = [i for i, has in enumerate(has_tangent) if has]
    if not types and not (rules.has_jvp or derive):
        raise rules.no_jvp()  # without outputs, no `linear` would say so
    if not places or not types:
        return [None] * len(differentiable)

    # This outlives the trace, so it closes over no arrays.
    def transpose(saved: Arrays, cts: Arrays) -> list[Any]:
        in_cts = _pull(rules, layout, saved, spread(cts, differentiable))
        return [in_cts[i] for i in places]

    def evaluate(ts: Arrays) -> list[Any]:
        if not rules.has_jvp:
            if not derive:
                raise rules.no_jvp()
            return _derived(rules, layout, saved, places, ts, types, run)
        out_ts = run(rules.jvp, layout, saved, spread(ts, has_tangent))
        out_ts = [t for t, d in zip(out_ts, differentiable, strict=True) if d]
        return [
            internals.zeros(a) if t is None else t
            for t, a in zip(out_ts, types, strict=True)
        ]

    ts = [tangents[i] for i in places]
    out_ts = linear(evaluate, transpose, saved, ts, types, name=rules.name)
    return spread(out_ts, differentiable)


def _derived(
    rules: Rules,
    layout: Layout,
    saved: Arrays,
    places: Sequence[int],
    tangents: Arrays,
    types: Sequence[Any],
    run_rule: Callable[..., list[Any]],
) -> list[Any]:
    """Return the tangents of the outputs, by the transpose of backward."""

    def run(saved: Arrays) -> list[Any]:
        def backward(*cts: Any) -> list[Any]:
            whole = spread(cts, layout.differentiable)
            in_cts = run_rule(rules.backward, layout, saved, whole)
            pairs = zip(places, tangents, strict=True)
            return [_like(t, in_cts[i]) for i, t in pairs]

        example = list(map(internals.zeros, types))
        return transposed(
            backward, example, tangents, refusal=functools.partial(_untransposed, rules)
        )

    # J t may be transposed. A derivative of it by a residual is one of backward.
    return _once(rules, run, saved) if rules.once else run(saved)


def _like(tangent: Any, ct: Any) -> Any:
    """Return a cotangent of an argument with the dtype of its tangent.

    A bwd in JAX's terms may return None for zero, and another dtype. The transpose
    needs arrays of the types of the tangents.
    """
    if ct is None:
        return internals.zeros(internals.tangent_type(tangent))
    # A complex one of a real argument stays, and is refused when it is transposed: a
    # cast would drop the imaginary part.
    differs = ct.dtype != tangent.dtype and not loses_imaginary(ct, tangent)
    return internals.cast_like(ct, tangent) if differs else ct


def _untransposed(rules: Rules, expected: str, got: str) -> Exception:
    """Make the error for a backward that has no transpose.

    If the user never asked for a derived jvp, the message names the transformation that
    needs it, and one that gives the same second derivative without it.
    """
    if rules.once and not rules.derives_jvp:
        return messages.second_derivative(rules.name)
    use = "to get a jvp (generate_jvp_rule)"
    instead = leave = " (With a jvp of its own, leave generate_jvp_rule out.)"
    if not rules.derives_jvp:
        leave = ""
        use = (
            "to get the tangents of the outputs, which forward mode over reverse mode "
            "needs (jax.hessian, jax.jvp of jax.grad)"
        )
        instead = (
            " Or replace jax.hessian(f) by jax.jacrev(jax.grad(f)), which needs a "
            "derivative of backward, and no transpose."
        )
    if got == WHILE:
        instead = (
            " In place of the loop: jax.lax.scan of a fixed length, or "
            f"jax.lax.custom_linear_solve.{leave}"
        )
    if got == KERNEL:
        instead = " Or call it in forward of a Function of its own with a backward."
    return messages.RuleValueError(
        f"`{rules.name}.backward` {messages.NOT_TRANSPOSED} {use}: expected {expected}"
        f", got {got}. Define {rules.define_jvp}, which gets a tangent for each "
        "argument and returns one for each output. Or write backward with operations "
        f"that are linear in its cotangents and that JAX can transpose.{instead}"
    )


def _pull(rules: Rules, layout: Layout, saved: Arrays, cts: Arrays) -> list[Any]:
    """Return the cotangents of the arguments, by the Function's own backward.

    The gradients of a `once_differentiable` backward raise if they are differentiated.
    """
    run_rule = functools.partial(_run_rule, rules, elsewhere=_is_elsewhere(rules))
    if not rules.once:
        return run_rule(rules.backward, layout, saved, cts)
    has_cotangent = [ct is not None for ct in cts]
    n = len(saved)

    def run(inputs: Arrays) -> list[Any]:
        cts = spread(inputs[n:], has_cotangent)
        return run_rule(rules.backward, layout, inputs[:n], cts)

    return _once(rules, run, [*saved, *[ct for ct in cts if ct is not None]])


def _once(
    rules: Rules, run: Callable[[list[Any]], list[Any]], inputs: Arrays
) -> list[Any]:
    """Return `run(inputs)`; a derivative by the inputs raises when it is used."""
    results = run(list(map(gate, inputs)))
    present = [x for x in results if x is not None]
    refuse = functools.partial(messages.second_derivative, rules.name)
    name = f"{rules.name}.backward"
    return spread(
        refusing(refuse, inputs, present, name=name), [x is not None for x in results]
    )
