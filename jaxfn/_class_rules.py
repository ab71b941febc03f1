"""The static methods of a class as `Rules`, for one call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxfn import _settings as settings
from jaxfn._context import BackwardCFunction, call_backward, where
from jaxfn._core import (
    ARRAY,
    Arrays,
    Layout,
    Mask,
    Outputs,
    Rules,
    Spec,
    as_jax,
    batchable,
    conj,
    grouped,
    hides_array,
    internals,
    is_extended,
    is_inexact,
    messages,
    results,
    split,
)
from jaxfn._rule_errors import explained, place_of, refuse_tensor
from jaxfn._saved import Saved

Kwargs = dict[str, Any]


class VmapInfo(NamedTuple):
    """The first argument of a vmap staticmethod.

    Attributes:
        batch_size: Size of the mapped axis.
        randomness: Always "error": JAX's random numbers have explicit keys.
    """

    batch_size: int
    randomness: str


class ClassRules(Rules):
    """The rules of a class for one call; see `Rules`.

    Args:
        cls: The class. jaxfn looks up its rules at every call, so a rule assigned later
            takes effect at the next call, and earlier traces keep theirs.
        base: `Function`; a rule inherited from it counts as missing.
        parameters: The parameters of its forward.
        spec: Spec of the tuple of positional arguments.
        kwargs: Keyword-only arguments, all static.

    Raises:
        RuntimeError: The rules contradict each other.

    Attributes:
        specs: Spec of each argument.
    """

    def __init__(
        self, cls: Any, base: Any, parameters: Parameters, spec: Spec, kwargs: Kwargs
    ) -> None:
        self.cls, self.name, self.kwargs = cls, cls.__name__, kwargs
        self.parameters, self.spec, self.specs = parameters, spec, spec.children
        self._check_references()
        self._find_rules(cls, base)
        # JAX may trace forward later, after the caller's `with` block.
        self._hooks, self._policy = settings.hooks.get().stack, settings.policy.get()

    def _find_rules(self, cls: Any, base: Any) -> None:
        own = {}
        for name in ("setup_context", "vmap", "jvp", "vjp", "backward"):
            rule = getattr(cls, name)
            if rule is not getattr(base, name):
                own[name] = rule
        backwards = [own[name] for name in ("vjp", "backward") if name in own]
        self._forward, self._setup_context = cls.forward, own.get("setup_context")
        self._vmap, self._jvp = own.get("vmap"), own.get("jvp")
        # If there is not exactly one, it raises when it runs.
        self._backward = backwards[0] if len(backwards) == 1 else None
        self.defines_backward = bool(backwards)
        # A Function without rules has a backward that raises: when the derivative is
        # taken, not when forward is traced.
        self.has_jvp = self._jvp is not None
        self.has_backward = self.defines_backward or not self.has_jvp
        self.derives_jvp = cls.generate_jvp_rule
        self.once = bool(backwards) and getattr(backwards[0], "_jaxfn_once", False)
        self.has_setup = self._setup_context is not None
        self.forward_name = f"{self.name}.forward"
        self.setup_name = f"{self.name}.setup_context" if self.has_setup else ""
        if "vmap" in own and not self.has_setup:
            raise messages.RuleError(messages.VMAP_COMBINED.format(name=self.name))
        if self.derives_jvp and (self.has_jvp or not backwards):
            got = "an overridden jvp staticmethod" if self.has_jvp else "no backward"
            raise messages.RuleError(
                f"`{self.name}` has generate_jvp_rule=True and {got}: expected a "
                "backward to derive the jvp from, and no other jvp. Set "
                "generate_jvp_rule=False or change the rules."
            )

    def _check_references(self) -> None:
        # A traced jax.Ref is a tracer but no jax.Array, so it counts as static.
        if any(map(internals.is_tracer, self.spec.leaves)):
            raise messages.RuleTypeError(
                "apply got a mutable array (jax.Ref) that is traced, for "
                f"{self.parameters.function}: expected arrays, which have derivatives, "
                "got a reference. Pass its value, ref[...], and write the result back "
                "outside. If a rule is to write to it, take jaxfn.custom_function with "
                "fwd and bwd, whose arguments and residuals may be references."
            )

    @property
    def arguments(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        names = self.parameters.names
        found: list[str] = []
        for i, spec in enumerate(self.specs):
            name = names[i] if i < len(names) else f"args[{i}]"
            found += (
                [name]
                if spec.is_array
                else [f"{name}[{j}]" for j in range(spec.n_arrays)]
            )
        return found

    def named(self, rule_name: str) -> tuple[str, str]:
        rules = {"forward": self._forward, "backward": self._backward, "jvp": self._jvp}
        return f"{self.name}.{rule_name}", place_of(rules[rule_name])

    @property
    def has_vmap(self) -> bool:
        return self._vmap is not None

    # ---- forward, in one of torch's two styles

    def forward(
        self, arrays: Arrays, perturbed: Mask
    ) -> tuple[list[Any], list[Any], Layout]:
        if self.has_setup:
            fun, batch = self.batchable()
            run = batchable(fun, batch, name=self.name)
            outs = settings.under(self._policy, run, *arrays)
            return list(outs.arrays), [], outs.layout
        ctx = self._context(perturbed)
        args = (ctx, *self.spec.join(arrays))
        with explained(self.name, "forward", self._forward, args):
            result = settings.under(self._policy, self._forward, *args, **self.kwargs)
            outs, layout = self._split_output(result)
            note_outputs(ctx, [*arrays, *self.spec.leaves], layout, outs)
            return outs, *self._saved(ctx, layout, perturbed)

    def setup(
        self, layout: Layout, arrays: Arrays, outs: Arrays, perturbed: Mask
    ) -> tuple[list[Any], Layout]:
        ctx = self._context(perturbed)
        args = (ctx, self.spec.join(arrays), layout.out.join(outs))
        layout = Layout(layout.out, layout.outputs, layout.kind)
        with explained(self.name, "setup_context", self._setup_context, args):
            run = functools.partial(call_setup_context, self._forward)
            settings.under(self._policy, run, self._setup_context, *args)
            note_outputs(ctx, [*arrays, *self.spec.leaves], layout, outs)
            return self._saved(ctx, layout, perturbed)

    def _context(self, perturbed: Mask) -> BackwardCFunction:
        ctx = self.cls._backward_cls()
        ctx.__dict__["_jaxfn_needs"] = self._needs_input_grad(perturbed)
        return ctx

    def _needs_input_grad(self, perturbed: Mask) -> Mask:
        return tuple([True in group for group in grouped(self.specs, perturbed)])

    def _saved(
        self, ctx: BackwardCFunction, layout: Layout, perturbed: Mask
    ) -> tuple[list[Any], Layout]:
        rules = {"backward": self.has_backward, "jvp": self.has_jvp}
        arrays, saved = Saved.of(ctx, self.name, **rules)
        layout.saved, layout.perturbed, layout.asked = (
            saved,
            perturbed,
            ctx._jaxfn_asked,
        )
        return arrays, layout

    def _split_output(self, result: Any) -> tuple[list[Any], Layout]:
        """Return the arrays of the result of forward, and its structure."""
        arrays, spec = split(result)
        static = [x for x in spec.leaves if x is not ARRAY]
        # Forward may return a static argument, whatever it holds.
        passed = static and set(map(id, self.spec.leaves))
        for leaf in static:
            refuse_tensor(leaf, self.name)
            if id(leaf) not in passed and hides_array(leaf):
                raise messages.RuleTypeError(
                    f"`{self.name}.forward` returned an array inside an object of type "
                    f"{type(leaf).__name__}, where JAX can't see it: expected arrays, "
                    "or pytrees of arrays. Return the array itself, or register the "
                    "type with jax.tree_util.register_pytree_node."
                )
        return arrays, Layout.of_result(result, spec)

    def batchable(self) -> tuple[Callable[..., Outputs], Callable[..., Any] | None]:
        """Return forward of the separate style on flat arrays, and its batch rule."""
        # JAX traces forward before it calls the rule, whose result must match. Keep
        # only types and structure, because the list outlives the trace.
        seen: list[Any] = []

        def forward(*arrays: Any) -> Outputs:
            args = self.spec.join(arrays)
            with explained(self.name, "forward", self._forward, args):
                outs, layout = self._split_output(self._forward(*args, **self.kwargs))
            outs = list(map(as_jax, outs))
            seen[:] = layout, list(map(internals.type_of, outs))
            return Outputs(outs, layout)

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            info = VmapInfo(batch_size=size, randomness="error")
            in_dims = self.spec.join_only([0 if b else None for b in batched])
            args = (info, in_dims, *self.spec.join(arrays))
            vmap: Any = self._vmap
            with explained(self.name, "vmap", vmap, args):
                if self.cls.generate_vmap_rule:
                    raise messages.RuleError(messages.VMAP_TWICE.format(name=self.name))
                result = settings.under(self._policy, vmap, *args, **self.kwargs)
                layout, types = seen
                return results.batch_outputs(
                    result, size, layout, types, name=self.name
                )

        return forward, None if self._vmap is None else batch

    def pack(self, layout: Layout, saved: list[Any]) -> tuple[Layout, list[Any]]:
        # torch packs only if something is differentiated.
        if not (self._hooks and True in layout.perturbed):
            return layout, saved
        saved, packed = layout.saved.with_hooks(saved, self._hooks[-1])
        return dataclasses.replace(layout, saved=packed), saved

    # ---- derivatives

    def backward(self, layout: Layout, saved: Arrays, cts: Arrays) -> list[Any]:
        """Call the user's backward (or vjp); return a cotangent of each argument."""
        differentiable = layout.differentiable
        # JAX calls it even if no differentiable output has a cotangent. A backward is
        # linear in its cotangents, so the result is zero.
        pairs = zip(cts, differentiable, strict=True)
        arrived = [ct for ct, d in pairs if d and ct is not None]
        if not arrived:
            return [None] * len(layout.in_types)
        state: Saved = layout.saved
        grads: list[Any] = []
        dtypes = layout.grad_dtypes or (None,) * len(cts)
        outs = zip(cts, differentiable, layout.out_types, dtypes, strict=True)
        for ct, d, aval, dtype in outs:
            if d and ct is not None:  # to torch's convention, and the chosen dtype
                grads.append(conj(ct if dtype is None else ct.astype(dtype)))
            else:
                fill = state.materialize and (d or state.materialize_non_diff)
                grads.append(_zeros(aval) if fill else None)
        ctx = self._rule_context("backward", layout, saved)
        groups = zip(layout.outputs, grouped(layout.outputs, grads), strict=True)
        parts = [spec.join_only(group) for spec, group in groups]
        # The class's own look-up raises unless exactly one of the two is defined.
        rule, boxed = (
            self._backward or self.cls._backward_rule(),
            self.cls.boxed_grads_call,
        )
        args = (ctx, parts) if boxed is True else (ctx, *parts)
        with explained(self.name, "backward", rule, args, layout):
            result = call_backward(rule, boxed, ctx, parts)
            found = results.gradients(
                result,
                self.specs,
                layout,
                arrived,
                name=self.name,
                labels=list(map(self.parameters.label, range(len(self.specs)))),
            )
        # torch allows it, and it is what a rule without `return` returns.
        if result is None and True in layout.perturbed:
            warnings.warn(
                f"`{self.name}.backward` returned None, so the gradient is zero. If a "
                "return is missing, add it. If zero is meant, return "
                f"jnp.zeros_like(x). (It is at {place_of(rule)}.)",
                stacklevel=2,
            )
        return list(map(conj, found))

    def jvp(self, layout: Layout, saved: Arrays, tangents: Arrays) -> list[Any]:
        """Call the user's jvp; return a tangent of each differentiable output."""
        # An integer has no tangent: users see None, not JAX's float0. Torch and JAX
        # agree on complex tangents, so nothing is conjugated.
        fill = layout.saved.materialize
        filled = [
            _zeros(aval) if t is None and fill and is_inexact(aval) else t
            for t, aval in zip(tangents, layout.in_types, strict=True)
        ]
        rule: Any = self._jvp
        args = self._rule_context("jvp", layout, saved), *self.spec.join_only(filled)
        with explained(self.name, "jvp", rule, args):
            return results.tangents(rule(*args), layout, name=self.name)

    def _rule_context(
        self, rule_name: str, layout: Layout, saved: Arrays
    ) -> BackwardCFunction:
        perturbed = self._needs_input_grad(layout.perturbed)
        return layout.saved.context(self.cls._backward_cls, rule_name, saved, perturbed)


def _zeros(aval: Any) -> Any:
    """Make a zero tangent of a type; None for a PRNG key."""
    if is_extended(aval):
        if not is_inexact(aval):
            return None
        aval = internals.tangent_type(aval)
    return internals.zeros(aval)


def call_setup_context(
    forward: Any, setup_context: Any, ctx: Any, inputs: Any, output: Any
) -> None:
    """Call setup_context, with inputs that autocast casts as for forward."""
    # `custom_fwd` can't write to ctx: in this style forward has none.
    casting = getattr(forward, "_jaxfn_casting", None)
    if casting is not None:
        casting.note(ctx)
        inputs = casting.cast(inputs)
    setup_context(ctx, inputs, output)


# ---- what ctx says of inputs and outputs


def note_outputs(
    ctx: BackwardCFunction, inputs: Sequence[Any], layout: Layout, outs: Arrays
) -> None:
    """Note in the layout which outputs ctx marked, and the dtypes of their gradients.

    Raises:
        ValueError: A dirty value is no input, or a non-differentiable one no output.
        RuntimeError: The dtypes don't fit the outputs.
    """
    if ctx.dirty_tensors:
        known = set(map(id, inputs))
        if any(id(x) not in known for x in ctx.dirty_tensors):
            raise messages.RuleValueError(
                "ctx.mark_dirty() received a tensor that was not an input. Only input "
                "Tensors that have been mutated should be passed to ctx.mark_dirty(). "
                f"{where(ctx)}: expected arguments of forward, by identity; return the "
                "new value instead of marking it."
            )
    if ctx.non_differentiable:
        marked = set(map(id, ctx.non_differentiable))
        layout.marked = frozenset([i for i, x in enumerate(outs) if id(x) in marked])
        if len({id(outs[i]) for i in layout.marked}) != len(marked):
            raise messages.RuleValueError(
                f"{where(ctx)} called ctx.mark_non_differentiable with a value that is "
                "not an output: expected the same objects that forward returns, got "
                "another (JAX operations make new arrays). Mark the returned arrays."
            )
    if ctx.output_grad_dtypes is not None:
        layout.grad_dtypes = _grad_dtypes(ctx, ctx.output_grad_dtypes, layout, outs)


def _grad_dtypes(
    ctx: BackwardCFunction, dtypes: Sequence[Any], layout: Layout, outs: Arrays
) -> tuple[Any, ...]:
    """Return for each array output the dtype that ctx chose for its gradient."""
    found: tuple[Any, ...] = ()
    if len(dtypes) != len(layout.outputs):
        raise messages.RuleValueError(
            "set_output_grad_dtype expected the number of declarations to match the "
            f"number of outputs: the Function returned {len(layout.outputs)} values "
            f"but {len(dtypes)} declarations were provided. {where(ctx)}: pass a dtype "
            "or None for each."
        )
    for i, (spec, dtype) in enumerate(zip(layout.outputs, dtypes, strict=True)):
        at = len(found)
        found += (dtype,) * spec.n_arrays
        if dtype is not None:
            is_float = spec.is_array and isinstance(outs[at].dtype, jnp.dtype)
            is_float = is_float and is_inexact(outs[at]) and at not in layout.marked
            _check_dtype(ctx, i, dtype, outs[at] if is_float else None)
    return found


def _check_dtype(ctx: BackwardCFunction, i: int, dtype: Any, x: Any) -> None:
    """Check the gradient's dtype for output `i`: `x`, or None without derivative."""
    if x is None:
        raise messages.RuleValueError(
            f"set_output_grad_dtype: got a concrete dtype for output {i}, but that "
            "output is not a differentiable tensor (it is a non-tensor, was marked "
            "non-differentiable, or has a non-differentiable dtype). Pass None for "
            f"output {i} instead, in {where(ctx)}."
        )
    is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
    kind = jnp.complexfloating if is_complex else jnp.floating
    message = (
        f"{where(ctx)} called ctx.set_output_grad_dtype: expected a {kind.__name__} "
        f"dtype or None for output {i}, {messages.short(x)}, got "
        f"{messages.shown(dtype)}."
    )
    try:
        fits = jnp.issubdtype(jnp.dtype(dtype), kind)
    except TypeError:
        raise messages.RuleTypeError(
            "set_output_grad_dtype expects each declaration to be a torch.dtype or "
            f"None, but got {messages.type_name(dtype)}. {message}"
        ) from None
    if not fits:
        raise messages.RuleTypeError(message)


# ---- the arguments of a call


class Parameters(NamedTuple):
    """The parameters of a forward, without ctx.

    Attributes:
        names: Names of the positional parameters.
        defaults: Default values of the last positional parameters.
        keyword_only: Names of the keyword-only parameters.
        function: Name of forward, for messages.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    keyword_only: tuple[str, ...]
    function: str

    @classmethod
    def of(cls, forward: Callable[..., Any], *, has_ctx: bool) -> Parameters:
        own = _own_names if has_ctx else inspect.signature
        found = list(own(forward).parameters.values())
        places = [p for p in found if p.kind in _POSITIONAL][int(has_ctx) :]
        return cls(
            tuple([p.name for p in places]),
            tuple([p.default for p in places if p.default is not p.empty]),
            tuple([p.name for p in found if p.kind is p.KEYWORD_ONLY]),
            getattr(forward, "__name__", "forward"),
        )

    def label(self, position: int) -> str:
        if position < len(self.names):
            return f"index {position} (`{self.names[position]}`)"
        return f"index {position}"

    def bind(
        self, args: tuple[Any, ...], kwargs: Kwargs, *, fill_defaults: bool, name: str
    ) -> tuple[tuple[Any, ...], Kwargs]:
        """Bind arguments to positions; return keyword-only arguments separately.

        With `fill_defaults` (the separate style), default values count as arguments.

        Raises:
            TypeError: The arguments don't fit. The message is Python's.
            NotImplementedError: A keyword-only argument holds an array.
        """
        if not kwargs and not (fill_defaults and self.defaults):
            return args, kwargs
        names, n = self.names, len(args)
        for key in kwargs:
            if key in names[:n]:
                raise TypeError(
                    f"{self.function}() got multiple values for argument {key!r}"
                )
            if key not in names and key not in self.keyword_only:
                raise TypeError(
                    f"{self.function}() got an unexpected keyword argument {key!r}. "
                    f"`{name}.apply` takes {', '.join(names + self.keyword_only)}."
                )
        # Defaults belong to the last parameters.
        by_default = dict(zip(names[::-1], self.defaults[::-1], strict=False))
        last = max((i for i, key in enumerate(names) if key in kwargs), default=-1)
        bound = list(args)
        for i in range(n, len(names) if fill_defaults else last + 1):
            if names[i] in kwargs:
                bound.append(kwargs[names[i]])
            elif names[i] in by_default:
                bound.append(by_default[names[i]])
            elif i < last:
                raise TypeError(
                    f"{self.function}() missing required argument: {names[i]!r} "
                    f"(position {i})"
                )
            else:
                break  # forward raises
        only = {key: x for key, x in kwargs.items() if key in self.keyword_only}
        _check_keyword_only(only, name)
        return tuple(bound), only


_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def _check_keyword_only(only: Kwargs, name: str) -> None:
    # inputs, needs_input_grad and gradients are positional, so a keyword-only array
    # would have no derivative.
    for key, x in only.items():
        if split(x)[0]:
            raise NotImplementedError(
                "Run vmap on autograd.Function with kwarg-only Tensor args. Please do "
                "not pass kwarg-only Tensors to autograd.Function. Got: "
                f"{key!r}, which holds an array: expected the keyword-only arguments "
                f"of `{name}.forward` to be static. Make it a positional parameter."
            )


def _own_names(forward: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a forward with ctx, which may be decorated.

    In this style torch binds keywords to the names of the function itself, and ignores
    a `__signature__` and the wrapped function. If the function has no names beside ctx,
    torch refuses all keywords; jaxfn then takes the names of the wrapped function.
    """

    def own_signature(f: Callable[..., Any]) -> inspect.Signature:
        if isinstance(f, types.FunctionType) and f.__code__.co_argcount > 1:
            # A copy has no `__signature__`.
            f = types.FunctionType(f.__code__, {}, None, f.__defaults__, f.__closure__)
        # Below `@classmethod`, a decorator wraps a function that gets the class.
        if isinstance(forward, types.MethodType):
            f = types.MethodType(f, forward.__self__)
        return inspect.signature(f, follow_wrapped=False)

    def has_names(f: Callable[..., Any]) -> bool:
        kinds = [p.kind for p in own_signature(f).parameters.values()]
        return sum(kind in _POSITIONAL for kind in kinds) > 1

    function = getattr(forward, "__func__", forward)
    return own_signature(inspect.unwrap(function, stop=has_names))
