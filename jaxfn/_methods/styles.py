"""The rules of a class, and the two styles of forward, each run once by `OnePass`.

Combined: `forward(ctx, *args)`. Separate: `forward(*args)`, then
`setup_context(ctx, inputs, output)`.

jaxfn looks up all rules at every call. So a rule assigned later takes effect at the
next call, and earlier traces keep their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfn._base import Arguments, Outputs, OutSpec, as_jax, compat, errors, search
from jaxfn._engine import (
    Arrays,
    Batch,
    Fun,
    OnePass,
    Perturbed,
    Residuals,
    Rules,
    Run,
    with_batch_rule,
)
from jaxfn._methods import settings
from jaxfn._methods.capture import Record, capture
from jaxfn._methods.node import BackwardCFunction, where
from jaxfn._methods.packed import pack
from jaxfn._methods.returned_outputs import batch_outputs
from jaxfn._methods.rule_errors import explain


class Definition:
    """The rules and flags that a class defines; a rule is None if it is missing.

    Args:
        cls: The class.
        base: `Function`; a rule inherited from it counts as missing.

    Raises:
        RuntimeError: The rules contradict each other.

    Attributes:
        cls: The class.
        name: Name of the class.
        forward: The static method.
        setup_context: The static method; None in the combined style.
        vmap: The static method; None if JAX batches forward.
        vmap_twice: Whether `generate_vmap_rule` is set, which contradicts a vmap. Like
            torch, jaxfn raises when the Function is batched, not at other calls.
        jvp: The static method.
        backward: The static method backward or vjp; None unless exactly one exists.
        boxed: Whether backward gets the gradients in a list.
        has_backward: Whether backward or vjp (or both) is defined.
        once: Whether backward is marked `once_differentiable`.
        derive_jvp: Whether the jvp is derived from backward.
    """

    def __init__(self, cls: Any, base: Any) -> None:
        own = {}
        for rule in ("setup_context", "vmap", "jvp", "vjp", "backward"):
            found = getattr(cls, rule)
            if found is not getattr(base, rule):
                own[rule] = found
        backwards = [own[rule] for rule in ("vjp", "backward") if rule in own]
        self.cls, self.name, self.forward = cls, cls.__name__, cls.forward
        self.setup_context, self.jvp = own.get("setup_context"), own.get("jvp")
        self.vmap, self.vmap_twice = own.get("vmap"), cls.generate_vmap_rule
        self.backward = backwards[0] if len(backwards) == 1 else None
        self.boxed, self.derive_jvp = cls.boxed_grads_call, cls.generate_jvp_rule
        self.has_backward = bool(backwards)
        self.once = bool(backwards) and getattr(backwards[0], "_jaxfn_once", False)
        if "vmap" in own and "setup_context" not in own:
            raise errors.RuleError(errors.VMAP_COMBINED.format(name=self.name))
        if self.derive_jvp and ("jvp" in own or not backwards):
            got = "an overridden jvp staticmethod" if "jvp" in own else "no backward"
            raise errors.RuleError(
                f"`{self.name}` has generate_jvp_rule=True and {got}: expected a "
                "backward to derive the jvp from, and no other jvp. Set "
                "generate_jvp_rule=False or change the rules."
            )


class VmapInfo(NamedTuple):
    """The first argument of a vmap staticmethod.

    Attributes:
        batch_size: Size of the mapped axis.
        randomness: Always "error": JAX's random numbers have explicit keys.
    """

    batch_size: int
    randomness: str


class Style:
    """Runs forward of a class in its style.

    Args:
        definition: The rules of the class.
        arguments: Arguments of the call.
        rules: Function that returns the `Rules` of the call.
    """

    def __init__(
        self, definition: Definition, arguments: Arguments, rules: Callable[[], Rules]
    ) -> None:
        self._def = definition
        self._arguments = arguments
        self._rules = rules
        # JAX may trace forward later, after the caller's `with` block.
        self._hooks = settings.hooks.get().stack
        self._policy = settings.policy.get()

    def one_pass(self) -> OnePass:
        """Make the one pass of forward. The next three are its `First` and `Second`."""
        name, separate = self._def.name, self._def.setup_context is not None
        return OnePass(
            self._separate if separate else self._combined,
            self._residuals,
            self._rules,
            rule=f"{name}.forward",
            second=self._setup_context if separate else None,
            second_rule=f"{name}.setup_context" if separate else "",
        )

    def _combined(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        d, arguments = self._def, self._arguments
        self._check_closure()
        ctx = d.cls._backward_cls()
        ctx.__dict__["_jaxfn_needs"] = arguments.any(perturbed)
        args = (ctx, *arguments.join(inputs))
        try:
            result = settings.under(self._policy, d.forward, *args, **arguments.kwargs)
            found, out = arguments.split_output(result, name=d.name)
            note_outputs(ctx, inputs, out, found)
            leaves, run = capture(ctx, self._rules(), out, perturbed)
        except Exception as error:
            explain(error, d.name, "forward", d.forward, args)
            raise
        return found, leaves, run

    def _separate(
        self, inputs: Arrays, perturbed: Perturbed
    ) -> tuple[Arrays, list[Any], Run]:
        self._check_closure()
        forward = with_batch_rule(*self.batchable(), name=self._def.name)
        outs = settings.under(self._policy, forward, *inputs)
        return outs.arrays, [], Run(outs.static, perturbed, False, None)

    def _setup_context(
        self, out: OutSpec, arrays: Arrays, outs: Arrays, perturbed: Perturbed
    ) -> tuple[list[Any], Run]:
        d, arguments = self._def, self._arguments
        ctx = d.cls._backward_cls()
        ctx.__dict__["_jaxfn_needs"] = arguments.any(perturbed)
        given = ctx, arguments.join(arrays), out.whole.join(outs)
        try:
            settings.under(self._policy, setup, d.forward, d.setup_context, *given)
            note_outputs(ctx, arrays, out, outs)
            return capture(ctx, self._rules(), out, perturbed)
        except Exception as error:
            explain(error, d.name, "setup_context", d.setup_context, given)
            raise

    def batchable(self) -> tuple[Fun, Batch | None]:
        """Return forward of the separate style on flat arrays, and its batch rule."""
        d, arguments = self._def, self._arguments
        # JAX traces forward before it calls the rule, whose result must match. Keep
        # only types and structure, because the list outlives the trace.
        seen: list[Any] = []

        def forward(*inputs: Any) -> Outputs:
            args = arguments.join(inputs)
            try:
                result = d.forward(*args, **arguments.kwargs)
                found, out = arguments.split_output(result, name=d.name)
            except Exception as error:
                explain(error, d.name, "forward", d.forward, args)
                raise
            arrays = [as_jax(x) for x in found]
            seen[:] = out, [jax.typeof(x) for x in arrays]
            return Outputs(arrays, out)

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            info = VmapInfo(batch_size=size, randomness="error")
            in_dims = arguments.join_only([0 if b else None for b in batched])
            args = (info, in_dims, *arguments.join(arrays))
            vmap: Any = d.vmap
            try:
                if d.vmap_twice:
                    raise errors.RuleError(errors.VMAP_TWICE.format(name=d.name))
                result = vmap(*args, **arguments.kwargs)
                return batch_outputs(result, size, *seen, name=d.name)
            except Exception as error:
                explain(error, d.name, "vmap", vmap, args)
                raise

        return forward, None if d.vmap is None else batch

    def _check_closure(self) -> None:
        """Refuse a forward that closes over a tracer whose derivative would be lost."""
        static = [s.leaves for s in self._arguments.specs if not s.is_array]
        if closes_over_lost(self._def.forward, static):
            raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=self._def.name))

    def _residuals(
        self, run: Run, leaves: Arrays, arrays: Arrays, outs: Arrays
    ) -> Residuals:
        """Make the residuals of one run; saved-tensor hooks pack them."""
        out_avals = tuple([jax.typeof(x) for x in outs])
        in_avals = tuple([jax.typeof(x) for x in arrays])
        layout, packed = run.saved, None
        # torch packs only if something is differentiated.
        if self._hooks and True in run.perturbed:
            kept, reads, hooks = layout.shared, layout.reads, self._hooks[-1]
            leaves, packed = pack(leaves, kept, reads, hooks, name=self._def.name)
        record = Record(layout, packed, run.perturbed, in_avals, out_avals, run.out)
        differentiable = run.out.differentiable(out_avals)
        return Residuals(leaves, record, differentiable, run.pattern_used)


def closes_over_lost(forward: Any, values: Sequence[Any]) -> bool:
    """Return whether forward or a value holds a tracer whose derivative is lost."""
    held = [*values, *(getattr(forward, "__closure__", None) or ())]
    return bool(held) and search.find(held, compat.is_lost) is not None


def setup(forward: Any, setup_context: Any, ctx: Any, inputs: Any, output: Any) -> None:
    """Call setup_context, with inputs that autocast casts as for forward."""
    # `custom_fwd` can't write to ctx: in this style forward has none.
    casting = getattr(forward, "_jaxfn_casting", None)
    if casting is not None:
        casting.note(ctx)
        inputs = casting.cast(inputs)
    setup_context(ctx, inputs, output)


def note_outputs(
    ctx: BackwardCFunction, inputs: Sequence[Any], out: OutSpec, outs: Sequence[Any]
) -> None:
    """Note in `out` which outputs ctx marked, and the dtypes of their gradients.

    Raises:
        ValueError: A dirty value is no input, or a non-differentiable one no output.
        RuntimeError: The dtypes don't fit the outputs.
    """
    if ctx.dirty_tensors:
        known = {id(x) for x in inputs}
        if any(id(x) not in known for x in ctx.dirty_tensors):
            raise errors.RuleValueError(
                "ctx.mark_dirty() received a tensor that was not an input. Only input "
                "Tensors that have been mutated should be passed to ctx.mark_dirty(). "
                f"{where(ctx)}: expected arguments of forward, by identity; return the "
                "new value instead of marking it."
            )
    if ctx.non_differentiable:
        marked = {id(x) for x in ctx.non_differentiable}
        out.marked = frozenset([i for i, x in enumerate(outs) if id(x) in marked])
        if len({id(outs[i]) for i in out.marked}) != len(marked):
            raise errors.RuleValueError(
                f"{where(ctx)} called ctx.mark_non_differentiable with a value that is "
                "not an output: expected the same objects that forward returns, got "
                "another (JAX operations make new arrays). Mark the returned arrays."
            )
    if ctx.output_grad_dtypes is not None:
        out.grad_dtypes = _grad_dtypes(ctx, ctx.output_grad_dtypes, out, outs)


def _grad_dtypes(
    ctx: BackwardCFunction, dtypes: Sequence[Any], out: OutSpec, outs: Sequence[Any]
) -> tuple[Any, ...]:
    """Return for each array output the dtype that ctx chose for its gradient."""
    found: tuple[Any, ...] = ()
    if len(dtypes) != len(out.parts):
        raise errors.RuleValueError(
            "set_output_grad_dtype expected the number of declarations to match the "
            f"number of outputs: the Function returned {len(out.parts)} values but "
            f"{len(dtypes)} declarations were provided. {where(ctx)}: pass a dtype or "
            "None for each."
        )
    for i, (part, dtype) in enumerate(zip(out.parts, dtypes, strict=True)):
        at = len(found)
        found += (dtype,) * part.n_arrays
        if dtype is not None:
            is_float = part.is_array and isinstance(outs[at].dtype, jnp.dtype)
            is_float = is_float and out.differentiable(outs)[at]
            _check_dtype(ctx, i, dtype, outs[at] if is_float else None)
    return found


def _check_dtype(ctx: BackwardCFunction, i: int, dtype: Any, x: Any) -> None:
    """Check the gradient's dtype for output `i`: `x`, or None without derivative."""
    if x is None:
        raise errors.RuleValueError(
            f"set_output_grad_dtype: got a concrete dtype for output {i}, but that "
            "output is not a differentiable tensor (it is a non-tensor, was marked "
            "non-differentiable, or has a non-differentiable dtype). Pass None for "
            f"output {i} instead, in {where(ctx)}."
        )
    is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
    kind = jnp.complexfloating if is_complex else jnp.floating
    message = (
        f"{where(ctx)} called ctx.set_output_grad_dtype: expected a {kind.__name__} "
        f"dtype or None for output {i}, {errors.short(x)}, got {errors.shown(dtype)}."
    )
    try:
        fits = jnp.issubdtype(jnp.dtype(dtype), kind)
    except TypeError as error:
        raise errors.RuleTypeError(
            "set_output_grad_dtype expects each declaration to be a torch.dtype or "
            f"None, but got {errors.type_name(dtype)}. {message}"
        ) from error
    if not fits:
        raise errors.RuleTypeError(message)


def rewrapped(rule: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """Wrap the function of a rule, also above `@staticmethod` or `@classmethod`."""
    if isinstance(rule, classmethod):
        return classmethod(wrap(rule.__func__))
    return wrap(rule.__func__ if isinstance(rule, staticmethod) else rule)
