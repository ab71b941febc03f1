"""Rules in JAX's terms (`fwd` and `bwd`, `jvp`, a batch rule) as `Rules` of a call.

Everything is as strict as in JAX: nothing is coerced, Python numbers are arrays. Static
arguments need no declaration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._class_rules import Parameters
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
    call,
    closed,
    grouped,
    internals,
    jvp_along,
    messages,
    pair,
    results,
    short,
    split,
    with_batch_rule,
)
from jaxfn._rule_errors import noted, place_of

CustomVJPPrimal = jax.custom_derivatives.CustomVJPPrimal

DECORATORS: tuple[Any, ...] = (
    jax.custom_vjp,
    jax.custom_jvp,
    jax.custom_batching.custom_vmap,
)

# The methods that custom_function combines, and the options that it knows.
_KINDS = {"defvjp": "defvjp", "defjvp": "defjvp", "defjvps": "defjvp"}
_KINDS["def_vmap"] = "def_vmap"
_OPTIONS = ("symbolic_zeros",)


def decorator_of(method: str) -> Any:
    """Return JAX's decorator that has this `def*` method, or None."""
    if not method.startswith("def"):
        return None
    return next((d for d in DECORATORS if callable(getattr(d, method, None))), None)


@functools.cache
def public_names(decorator: Any) -> frozenset[str]:
    """Return the names of public attributes of a function with this decorator."""
    # The decorators set some attributes (symbolic_zeros) in __init__, so the class does
    # not have them.
    found = dir(decorator(lambda: None))
    return frozenset([name for name in found if not name.startswith("_")])


class Call(NamedTuple):
    """A call of a `def*` method, which can be repeated on JAX's decorator."""

    method: str
    rules: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def decorator(self) -> Any:
        return decorator_of(self.method)

    @property
    def foreign_options(self) -> list[str]:
        used = [key for key, value in self.options.items() if value]
        return [key for key in used if key not in _OPTIONS]

    @property
    def is_foreign(self) -> bool:
        """Whether only JAX knows the method, or one of its options."""
        return self.method not in _KINDS or bool(self.foreign_options)

    def __str__(self) -> str:
        own = self.foreign_options if self.method in _KINDS else []
        options = ", ".join([f"{key}={self.options[key]}" for key in own])
        return f"{self.method}({options})" if options else self.method


class Definition(NamedTuple):
    """The rules that were defined for a function.

    Attributes:
        fun: The function.
        nondiff: Positions of the arguments named by nondiff_argnums and -argnames.
        calls: All calls that defined something, in their order.
        derives_jvp: Whether forward mode transposes bwd (generate_jvp_rule).
    """

    fun: Callable[..., Any]
    nondiff: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    derives_jvp: bool = False

    @property
    def name(self) -> str:
        # A partial or another callable object has no name of its own.
        return getattr(self.fun, "__name__", type(self.fun).__name__)

    @property
    def kinds(self) -> list[str]:
        """The methods that defined rules; defjvps counts as defjvp."""
        return [*dict.fromkeys(_KINDS.get(c.method, c.method) for c in self.calls)]

    @property
    def decorators(self) -> set[Any]:
        """JAX's decorators whose methods were called."""
        return {c.decorator for c in self.calls}

    def last(self, kind: str) -> Call | None:
        """Return the last call of this kind, which replaced earlier ones."""
        found = [c for c in self.calls if _KINDS.get(c.method) == kind]
        return found[-1] if found else None

    @property
    def is_foreign(self) -> bool:
        """Whether only the installed JAX understands a call."""
        last = {_KINDS.get(c.method, c.method): c for c in self.calls}
        return any(c.is_foreign for c in last.values())

    def with_call(self, method: str, rules: Any, options: dict[str, Any]) -> Definition:
        """Add a call; a refused one has no effect."""
        new = Call(method, rules, options)
        found = self._replace(calls=(*self.calls, new))
        if self.derives_jvp and new.decorator is jax.custom_jvp:
            raise messages.RuleError(
                f"`{self.name}` has generate_jvp_rule=True and got {new}: expected a "
                "reverse rule to derive the jvp from, and no other jvp. Set "
                "generate_jvp_rule=False, or leave the forward rule out."
            )
        both = {jax.custom_vjp, jax.custom_jvp} <= found.decorators
        if found.is_foreign and (both or self.derives_jvp):
            known = [*dict.fromkeys(map(str, self.calls))] or ["generate_jvp_rule"]
            raise messages.RuleError(
                f"`{self.name}` got {new} and has {', '.join(known)}: expected, beside "
                "a rule of the other kind, one by defvjp, defjvp or defjvps, and no "
                "option that JAX alone knows. Its decorators have one kind each, so "
                "they can't do both. Define the rule by one of these, or leave one out."
            )
        return found

    def positional(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Bind all arguments to positions, with defaults, as JAX's rules get them."""
        if isinstance(self.fun, functools.partial) and not kwargs:
            return args  # As in JAX, the values in the partial are no arguments.
        try:
            bound = inspect.signature(self.fun).bind(*args, **kwargs)
            if bound.kwargs:
                raise TypeError(
                    "The following keyword arguments could not be resolved to "
                    f"positions: {', '.join(bound.kwargs)}. JAX-style rules get "
                    "arguments by position: make these parameters positional, or use "
                    "torch-style rules."
                )
        except ValueError:  # a builtin, which may have no signature
            if not kwargs:
                return args
            raise
        except TypeError as error:
            raise TypeError(
                f"The input arguments to the {self.calls[0].decorator.__name__}"
                f"-decorated function {self.name} could not be resolved to positions:"
                f"\n{error}"
            ) from None
        bound.apply_defaults()
        return bound.args


def by_jax(definition: Definition, decorator: Any, fun: Any = None) -> Any:
    """Put JAX's decorator around `fun`, and repeat the calls of its methods."""
    has_nondiff = decorator is not jax.custom_batching.custom_vmap
    options = {"nondiff_argnums": definition.nondiff} if has_nondiff else {}
    f = decorator(fun or definition.fun, **options)
    for c in definition.calls:
        if c.decorator is decorator:
            getattr(f, c.method)(*c.rules, **c.options)
    return f


def wholly_by_jax(definition: Definition) -> Any:
    """Return the function under JAX's decorators, the batch rule inside."""
    f = definition.fun
    for decorator in DECORATORS[::-1]:
        if decorator in definition.decorators:
            f = by_jax(definition, decorator, f)
    return f


def is_pair(x: Any) -> bool:
    """Return whether a rule returned two values."""
    return isinstance(x, (tuple, list)) and len(x) == 2


def holds(x: Any) -> bool:
    """Return whether JAX can hold `x`: an array, a number, or a type of JAX's."""
    # jax.typeof accepts most of these too, but takes longer. A CustomVJPPrimal holds an
    # array: if a rule saves one, it forgot `.value`, and JAX raises.
    if isinstance(x, (jax.Array, int, float, complex, CustomVJPPrimal)):
        return True
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biufc":
        return True
    try:
        jax.typeof(x)
    except TypeError:
        return False
    return True


class JaxRules(Rules):
    """The rules of a decorated function for one call; see `Rules`.

    Args:
        definition: The rules that were defined.
        nondiff: The arguments that take no part in differentiation, by position.
        spec: Spec of the tuple of the others.
        types: Types of their arrays.
    """

    def __init__(
        self,
        definition: Definition,
        nondiff: dict[int, Any],
        spec: Spec,
        types: Sequence[Any],
    ) -> None:
        self._definition, self.name = definition, definition.name
        self._vjp, self._jvp = definition.last("defvjp"), definition.last("defjvp")
        self._batch = definition.last("def_vmap")
        self.has_backward, self.has_jvp = self._vjp is not None, self._jvp is not None
        self.derives_jvp = definition.derives_jvp and self.has_backward
        self.joint = self.has_jvp and not self.has_backward
        self.native = self.has_backward and not self.has_forward_mode
        self.own_value = self.has_backward
        bwd = self._vjp and self._vjp.rules[1]
        self.once = getattr(bwd, "_jaxfn_once", False)
        self._nondiff, self._spec, self.specs = nondiff, spec, spec.children
        self._types = list(map(internals.tangent_type, types))
        self._check_nondiff()
        # The types of the function's outputs, if it has been traced.
        self._returned: Any = None

    @classmethod
    def of(
        cls, definition: Definition, args: tuple[Any, ...]
    ) -> tuple[JaxRules, list[Any]]:
        """Return the rules of a call, and the arrays of its arguments."""
        nondiff = {i: args[i] for i in definition.nondiff if i < len(args)}
        others = [x for i, x in enumerate(args) if i not in nondiff]
        arrays, spec = split(tuple(others), holds)
        arrays = list(map(internals.as_array, arrays))
        return cls(definition, nondiff, spec, arrays), arrays

    def _check_nondiff(self) -> None:
        leaves = tree_util.tree_leaves(self._nondiff)
        if not any(map(internals.is_tracer, leaves)):
            return
        if self.native:
            raise jax.errors.UnexpectedTracerError(
                f"`{self.name}`, a custom_vjp, got a traced value for an argument of "
                "nondiff_argnums, which has no derivative: expected a value that is "
                "not traced. Leave it out of nondiff_argnums: save it in fwd, take it "
                "from the residuals in bwd, and return its gradient there (None if it "
                "has none)."
            )
        if self.joint:  # as in jax.custom_jvp, it counts as constant
            stop = jax.lax.stop_gradient
            self._nondiff = {i: stop(x) for i, x in self._nondiff.items()}

    @property
    def forward_name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (
            getattr(self._vjp.rules[0], "__name__", "fwd") if self._vjp else self.name
        )

    def named(self, rule_name: str) -> tuple[str, str]:
        found = {"forward": self._definition.fun}
        if self._vjp is not None:
            found |= {"forward": self._vjp.rules[0], "backward": self._vjp.rules[1]}
        if self._jvp is not None and self._jvp.method == "defjvp":
            found["jvp"] = self._jvp.rules[0]
        if rule_name not in found:
            return super().named(rule_name)
        return _name(found[rule_name]), place_of(found[rule_name])

    def no_jvp_note(self) -> str:
        return (
            f"`{self.name}` has no forward rule: define it by {self.name}.defjvp, or "
            "pass generate_jvp_rule=True to jaxfn.custom_function to derive it from "
            "defvjp."
        )

    @property
    def define_jvp(self) -> str:
        return f"`{self.name}.defjvp`"

    def whole(self, arrays: Sequence[Any]) -> list[Any]:
        """Put all arguments together."""
        return self._with_nondiff(self._spec.join(arrays), self._nondiff)

    def _with_nondiff(self, others: Sequence[Any], fixed: dict[int, Any]) -> list[Any]:
        rest, n = iter(others), len(fixed) + len(self.specs)
        return [fixed[i] if i in fixed else next(rest) for i in range(n)]

    # ---- the function

    def value_with_batch(self, *arrays: Any) -> Outputs:
        fun = self._definition.fun
        with noted(self.name, "", fun):
            outs = _outputs(fun(*self.whole(arrays)))
        self._returned = _structure(outs)
        return outs

    def value(self, arrays: Arrays) -> tuple[list[Any], Layout]:
        batch = None if self._batch is None else self.batch
        outs = batchable(self.value_with_batch, batch, name=self.name)(*arrays)
        return list(outs.arrays), outs.layout

    def batch(
        self, size: int, batched: Sequence[bool], arrays: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Call the batch rule of def_vmap, and check its result as JAX does."""
        assert self._batch is not None
        (rule,) = self._batch.rules
        flags = self._with_nondiff(
            self._spec_filled(False).join(batched), dict.fromkeys(self._nondiff, False)
        )
        with noted(self.name, "def_vmap", rule):
            result = rule(size, flags, *self.whole(arrays))
            said = f"custom vmap rule ({_name(rule)}) for function {self.name}"
            return self._batched(result, size, said)

    def _batched(self, result: Any, size: int, said: str) -> tuple[Outputs, Outputs]:
        """Check the result of a batch rule; `said` names the rule."""
        if not is_pair(result):
            raise messages.RuleTypeError(
                f"{said} must return a pair, the output and whether it is batched: "
                f"expected two values, got {messages.shown(result)}."
            )
        out, out_batched = result
        got, of_flags = map(tree_util.tree_structure, (out, out_batched))
        expected, types = self._returned
        if got != expected:
            raise messages.RuleValueError(
                f"structure of output returned by {said} does not match that of "
                "original custom-vmapped function: expected an output of the structure "
                f"{expected}, got {messages.shown(out)}."
            )
        if got != of_flags:
            raise messages.RuleValueError(
                "structure of output value and output batching specification returned "
                f"by {said} do not match: expected True or False for each output, in "
                f"the structure {got}, got {messages.shown(out_batched)}."
            )
        flags = tree_util.tree_leaves(out_batched)
        if not all(isinstance(x, (bool, np.bool_)) for x in flags):
            raise messages.RuleTypeError(
                f"{said} must return for each output whether it is batched along axis "
                f"0: expected True or False, got {messages.shown(out_batched)}. (An "
                "axis is what the vmap of a jaxfn.Function returns.)"
            )
        outs = _outputs(out)
        pairs = zip(outs.arrays, flags, types, strict=True)
        for i, (x, flag, (shape, dtype)) in enumerate(pairs):
            # JAX checks no shape, and would take another axis for the batch.
            shape = (size, *shape) if flag else shape
            if x.shape != shape:
                raise messages.RuleValueError(
                    f"{said} must return the outputs of the function for all examples: "
                    f"for output {i} expected "
                    f"{short(jax.ShapeDtypeStruct(shape, dtype))} ("
                    + ("batch axis in front" if flag else "not batched: it has False")
                    + f"), got {short(x)}."
                    + ("" if flag else " Return True for one with a batch axis.")
                )
        return outs, Outputs(flags, outs.layout)

    def _spec_filled(self, x: Any) -> Any:
        """Return the spec with `x` for each static leaf."""
        leaves = tuple([y if y is ARRAY else x for y in self._spec.leaves])
        return dataclasses.replace(self._spec, leaves=leaves)

    # ---- the reverse rule

    def forward(
        self, arrays: Arrays, perturbed: Mask
    ) -> tuple[list[Any], list[Any], Layout]:
        """Run fwd; without one, the function, whose jvp needs the arguments."""
        if self._vjp is None:
            outs, layout = self.value(arrays)
            return outs, list(arrays), layout
        fwd, symbolic = self._vjp.rules[0], self._vjp.options["symbolic_zeros"]
        inputs = list(map(CustomVJPPrimal, arrays, perturbed)) if symbolic else arrays
        with noted(self.name, "fwd", fwd):
            result = fwd(*self.whole(inputs))
            outs = self._checked_outputs(result, fwd)
        saved, spec = split(result[1], holds)
        saved = list(map(as_jax, saved))
        layout: Layout = outs.layout
        layout.saved, layout.perturbed, layout.asked = spec, perturbed, symbolic
        # A jvp rule in JAX's terms gets the arguments, and no residuals.
        return list(outs.arrays), [*arrays, *saved] if self.has_jvp else saved, layout

    def _checked_outputs(self, result: Any, fwd: Any) -> Outputs:
        """Return the outputs in the result of fwd."""
        said = f"Custom VJP fwd rule {_name(fwd)} for function {self.name} must produce"
        if not is_pair(result):
            raise messages.RuleTypeError(
                f"{said} a pair (list or tuple of length two): expected the outputs "
                f"and the residuals, got {messages.shown(result)}."
            )
        outs = _outputs(result[0])
        # As in JAX, compare the two only if the function was traced too.
        if self._returned not in (None, _structure(outs)):
            raise messages.RuleTypeError(
                f"{said} a pair whose first element has the structure and types of the "
                f"function's result: expected {_written(self._returned)}, got "
                f"{_written(_structure(outs))}."
            )
        return outs

    def backward(self, layout: Layout, saved: Arrays, cts: Arrays) -> list[Any]:
        """Call bwd with these cotangents, in the form that JAX gives them."""
        assert self._vjp is not None
        bwd = self._vjp.rules[1]
        types = map(internals.tangent_type, layout.out_types)
        pairs = zip(types, cts, strict=True)
        whole = layout.out.join(
            [self._zero(a) if ct is None else ct for a, ct in pairs]
        )
        n = len(self._types) if self.has_jvp else 0
        said = f"Custom VJP bwd rule {_name(bwd)} for function {self.name} must produce"
        with noted(self.name, "bwd", bwd):
            found = bwd(*self._nondiff.values(), layout.saved.join(saved[n:]), whole)
            parts = self._cotangents(found, said)
            if self.native:
                return parts  # JAX checks them
            return [self._cotangent(ct, i, said) for i, ct in enumerate(parts)]

    def _zero(self, aval: Any) -> Any:
        """Make the zero cotangent that bwd gets from jax.custom_vjp for this type."""
        assert self._vjp is not None
        if self._vjp.options["symbolic_zeros"]:
            return internals.SymbolicZero(aval)
        if aval.dtype == jax.dtypes.float0:
            return np.zeros(aval.shape, jax.dtypes.float0)  # only NumPy has it
        return internals.zeros(aval)

    def _cotangents(self, found: Any, said: str) -> list[Any]:
        """Return the cotangents (or None) of the arrays, from bwd's result."""
        n = len(self.specs)
        if not isinstance(found, (tuple, list)) or len(found) != n:
            raise messages.RuleTypeError(
                f"{said} a tuple of length equal to the number of arguments to the "
                f"primal function: expected {n} cotangent{'' if n == 1 else 's'} (None "
                "for zero)"
                + (" in a tuple, `return (ct,)`" if n == 1 else "")
                + f", got {messages.shown(found)}."
                + (" Those of nondiff_argnums have none." if self._nondiff else "")
            )
        try:
            pairs = [
                p
                for x, spec in zip(found, self.specs, strict=True)
                for p in pair(x, spec, copies=True)
            ]
        except ValueError:
            expected = tree_util.treedef_tuple([spec.treedef for spec in self.specs])
            raise messages.RuleTypeError(
                f"{said} an output with the same container (pytree) structure as the "
                f"args tuple of the primal function: expected {expected}, got "
                f"{tree_util.tree_structure(found)}."
            ) from None
        return [ct for ct, leaf in pairs if leaf is ARRAY]

    def _cotangent(self, ct: Any, i: int, said: str) -> Any:
        """Check the i-th cotangent, as strictly as JAX does: nothing is summed or cast.

        As in JAX, it must have the shape of the argument, but may have another dtype.
        """
        aval = self._types[i]
        is_zero = ct is None or isinstance(ct, internals.SymbolicZero)
        if is_zero or aval.dtype == jax.dtypes.float0:
            return None
        if not (holds(ct) or hasattr(ct, "__jax_array__")):
            raise messages.RuleTypeError(
                f"{said} arrays, or None for zero: for {self._argument(i)} expected "
                f"{short(aval)}, got {messages.shown(ct)}."
            )
        # A Python number gets the dtype of the argument. If x64 was on for the
        # derivative and is off now, JAX has only 32 bits.
        if not hasattr(ct, "dtype"):
            ct = jnp.asarray(ct, jax.dtypes.canonicalize_dtype(aval.dtype))
        ct = as_jax(ct)
        if ct.shape != aval.shape:
            raise messages.RuleValueError(
                f"{said} cotangents of the shapes of the arguments: for "
                f"{self._argument(i)} expected {short(aval)}, got {short(ct)}."
                + (
                    ""
                    if results.sum_to_shape(ct, aval.shape) is None
                    else " Sum it over the axes along which the function broadcasts "
                    "the argument."
                )
            )
        return ct

    def _argument(self, i: int) -> str:
        """Name the argument that holds the i-th array, for a message."""
        n = len(self._nondiff) + len(self.specs)
        places = [j for j in range(n) if j not in self._nondiff]
        pairs = zip(places, self.specs, strict=True)
        place = [j for j, spec in pairs for _ in range(spec.n_arrays)][i]
        try:
            found = Parameters.of(self._definition.fun, has_ctx=False)
        except ValueError:  # a builtin, which may have no signature
            return f"index {place}"
        return found.label(place)

    # ---- the forward rule

    def value_and_jvp(self, arrays: Arrays, tangents: Arrays) -> tuple[Any, Any, Any]:
        """Return the outputs and their tangents, by JAX's custom_jvp.

        JAX calls the user's rule as it does without jaxfn, and checks the result.
        """
        assert self._jvp is not None
        layouts: list[Layout] = []

        # Not the bare function: a rule of defjvps gets its value, which a scan keeps.
        def value(*groups: Any) -> Any:
            return call(self, [x for group in groups for x in group])

        def flat(*arrays: Any) -> Arrays:
            outs = _outputs(f(*grouped(self.specs, arrays)))
            layouts[:] = [outs.layout]
            return outs.arrays

        value.__name__ = self.name  # for JAX's errors
        f = jax.custom_jvp(value)
        rules = [
            None if rule is None else self._on_lists(i, rule)
            for i, rule in enumerate(self._jvp.rules)
        ]
        getattr(f, self._jvp.method)(*rules, **self._jvp.options)
        outs, out_tangents = jvp_along(flat, arrays, tangents)
        return outs, layouts[0], out_tangents

    def _on_lists(self, i: int, rule: Any) -> Any:
        """Return a rule of defjvp, or the i-th of defjvps, on lists of arrays."""
        assert self._jvp is not None
        blank = self._spec_filled(
            None
        ).children  # the tangent of a static value is None

        def of_defjvp(primals: Any, tangents: Any) -> Any:
            pairs = zip(blank, tangents, strict=True)
            args = self._others(primals), tuple([s.join(t) for s, t in pairs])
            with noted(self.name, "jvp", rule):
                return rule(*self._nondiff.values(), *args)

        def of_defjvps(tangent: Any, out: Any, *primals: Any) -> Any:
            with noted(self.name, "jvp", rule):
                return rule(blank[i].join(tangent), out, *self._others(primals))

        own: Any = of_defjvp if self._jvp.method == "defjvp" else of_defjvps
        return functools.wraps(rule, updated=())(own)

    def _others(self, groups: Any) -> tuple[Any, ...]:
        pairs = zip(self.specs, groups, strict=True)
        return tuple([spec.join(group) for spec, group in pairs])

    def jvp(self, layout: Layout, saved: Arrays, tangents: Arrays) -> list[Any]:
        return self.value_and_jvp(saved[: len(tangents)], tangents)[2]


def _outputs(out: Any) -> Outputs:
    """Make `Outputs` of the result of a JAX function: all its leaves are arrays."""
    arrays, spec = split(tree_util.tree_map(jnp.asarray, out))
    return Outputs(arrays, Layout(spec, [spec], type(out)))


def _structure(outs: Outputs) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return the pytree structure of outputs, and the arrays' shapes and dtypes."""
    return outs.layout.out.treedef, [(x.shape, x.dtype) for x in outs.arrays]


def _written(structure: tuple[Any, list[tuple[Any, Any]]]) -> str:
    tree, types = structure
    return f"{tree} of {', '.join(f'{dtype}{list(shape)}' for shape, dtype in types)}"


def _name(rule: Any) -> str:
    return getattr(rule, "__name__", "rule")


class BatchRules(Rules):
    """The rules of a function that has a batch rule alone: JAX differentiates it.

    JAX has no reverse mode for a custom_vmap. So this is a jvp, which differentiates
    what ran.

    Args:
        jaxpr: The function, of the values that it closes over and its arguments.
        n_consts: Number of these values.
        run: The function with its batch rule.
        name: Name for messages.
    """

    has_backward, has_jvp = False, True

    def __init__(self, jaxpr: Any, n_consts: int, run: Any, name: str) -> None:
        self.name = self.forward_name = name
        self._jaxpr, self._n_consts, self._run = jaxpr, n_consts, run

    @classmethod
    def of(
        cls, fun: Any, batch: Any, arrays: Arrays, name: str
    ) -> tuple[BatchRules, list[Any]]:
        """Return the rules of a call; what the function closes over, and the arrays."""
        jaxpr, consts, layout = closed(fun, arrays, name=name)
        fixed = list(map(internals.is_constant, consts))
        run = with_batch_rule(jaxpr, layout, batch, fixed, name=name)
        return cls(jaxpr, len(consts), run, name), [*consts, *arrays]

    def forward(
        self, arrays: Arrays, perturbed: Mask
    ) -> tuple[list[Any], list[Any], Layout]:
        outs = self._run(*arrays)
        return list(outs.arrays), list(arrays), dataclasses.replace(outs.layout)

    def jvp(self, layout: Layout, saved: Arrays, tangents: Arrays) -> list[Any]:
        if any(t is not None for t in tangents[: self._n_consts]):
            raise messages.closed_over(self.name)
        if any(map(internals.is_reference, saved)):
            raise messages.reference(self.name)
        again = internals.without_effects(self._jaxpr)
        if again is None:
            raise messages.not_repeatable(self.name)
        run = functools.partial(internals.evaluate, again)
        return jvp_along(lambda *xs: run(xs), saved, tangents)[1]
