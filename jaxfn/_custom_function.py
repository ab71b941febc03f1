"""`custom_function`: one decorator for all three kinds of rule."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from jaxfn._core import call, internals, messages, unbatched
from jaxfn._function import Function, rules_of
from jaxfn._jax_rules import (
    DECORATORS,
    BatchRules,
    Definition,
    JaxRules,
    by_jax,
    decorator_of,
    public_names,
    wholly_by_jax,
)
from jaxfn._rule_errors import noted

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


class custom_function(Generic[P, R]):  # noqa: N801  (a decorator, like JAX's)
    """A function with its own derivatives and its own batching: a decorator.

    It replaces `jax.custom_vjp`, `jax.custom_jvp` and
    `jax.custom_batching.custom_vmap`, one at a time or together. Define rules in JAX's
    terms (`defvjp`, `defjvp`, `defjvps`, `def_vmap`, as in JAX) or in torch's
    (`setup_context`, `backward`, `jvp`, `vmap`, as in `jaxfn.Function`), but not in
    both. Without rules, a call raises.

    Reverse mode uses the reverse rule, forward mode the forward rule, `jax.vmap` the
    batch rule. If there is only a forward rule, JAX transposes it for reverse mode. If
    there is only a batch rule, JAX differentiates the function.

    With JAX-style rules everything is as in JAX: Python numbers are arrays, nothing is
    coerced, complex cotangents follow JAX's convention. With torch-style rules it is as
    in `jaxfn.Function`, complex gradients included. Arguments that JAX can't hold
    (strings, callables, objects) are static in both styles, without a declaration.
    JAX-style rules get them in their places, and return None for them.

    Other `def*` methods, options and attributes of the installed JAX's three decorators
    work here too. JAX's own decorator then runs the function, so there can be no other
    rule, and nondiff_argnums must name static arguments.

    Args:
        fun: The function. Without it, the other arguments make a decorator.
        nondiff_argnums: Positions of arguments that take no part in differentiation. In
            JAX-style rules they come first, as in JAX. Static values need no entry.
        nondiff_argnames: Names of such arguments.
        setup_context: Rule `setup_context(ctx, inputs, output)`, which saves.
        backward: Rule `backward(ctx, *grads)`.
        jvp: Rule `jvp(ctx, *tangents)`.
        vmap: Rule `vmap(info, in_dims, *args)`.
        generate_jvp_rule: Whether forward mode transposes the reverse rule. That must
            be linear in its cotangents: one that drops small ones, by `jnp.where`,
            gives zero. `jaxfn.check` finds it.

    Attributes:
        fun: The function without rules.

    Raises:
        RuntimeError: A definition is in the other style than an earlier one, or JAX's
            own methods do not allow the combination.
        AttributeError: It is called and has no rule, as in JAX.
        TypeError: A rule breaks its contract, or a call passes keyword-only arguments
            to a function with JAX-style rules.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> @jaxfn.custom_function
        ... def log1pexp(x):
        ...     return jnp.log1p(jnp.exp(x))
        >>> def fwd(x):
        ...     return log1pexp(x), x
        >>> def bwd(x, g):
        ...     return (g * jax.nn.sigmoid(x),)
        >>> log1pexp.defvjp(fwd, bwd)
        >>> @log1pexp.defjvp
        ... def rule(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return log1pexp(x), t * jax.nn.sigmoid(x)
        >>> float(jax.grad(log1pexp)(100.0)), float(jax.jacfwd(log1pexp)(100.0))
        (1.0, 1.0)

        In torch's terms:

        >>> @jaxfn.custom_function
        ... def cube(x):
        ...     return x**3
        >>> @cube.setup_context
        ... def _(ctx, inputs, output):
        ...     ctx.save_for_backward(*inputs)
        >>> @cube.backward
        ... def _(ctx, grad):
        ...     (x,) = ctx.saved_tensors
        ...     return 3 * x**2 * grad
        >>> float(jax.grad(cube)(2.0))
        12.0

        Forward mode by the transpose of a reverse rule:

        >>> @jaxfn.custom_function(generate_jvp_rule=True)
        ... def twice(x):
        ...     return 2 * x
        >>> twice.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
        >>> float(jax.jacfwd(twice)(1.0))
        2.0

    Source: https://docs.jax.dev/en/latest/notebooks/Custom_derivative_rules_for_Python_code.html
    """

    def __init__(
        self,
        fun: Callable[P, R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
        *,
        setup_context: Callable[..., Any] | None = None,
        backward: Callable[..., Any] | None = None,
        jvp: Callable[..., Any] | None = None,
        vmap: Callable[..., Any] | None = None,
        generate_jvp_rule: bool = False,
    ) -> None:
        # Not its `__dict__`: a function that has rules keeps them there.
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun
        nondiff = _positions(fun, nondiff_argnums, nondiff_argnames)
        self._definition = Definition(fun, nondiff, (), generate_jvp_rule)
        rules = {"setup_context": setup_context, "backward": backward}
        rules |= {"jvp": jvp, "vmap": vmap}
        self._torch_rules: dict[str, Callable[..., Any]] = {}
        for name, rule in rules.items():
            if rule is not None:
                self._define(name, rule)

    @overload
    def __new__(
        cls, fun: Callable[P, R], *args: Any, **options: Any
    ) -> custom_function[P, R]: ...

    @overload
    def __new__(
        cls, **options: Any
    ) -> Callable[[Callable[Q, S]], custom_function[Q, S]]: ...

    @functools.wraps(__init__, assigned=())  # the signature
    def __new__(cls, fun: Any = None, *_: Any, **options: Any) -> Any:
        if fun is None:  # Options alone make a decorator, as they do in jax.jit.
            return functools.partial(cls, **options)
        return super().__new__(cls)

    # ---- rules in JAX's terms

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
        **options: Any,
    ) -> None:
        """Define the reverse-mode rule, as `jax.custom_vjp.defvjp` does.

        Args:
            fwd: Rule `fwd(*args) -> out, residuals`; `out` is the function's result.
                As in JAX, only a trace of both compares structure and types of the two
                results; `jaxfn.check` always does.
            bwd: Rule `bwd(residuals, ct) -> cts`, which returns a tuple with one for
                each argument. The arguments of nondiff_argnums come first, and have no
                ct. As in JAX a cotangent may have another dtype than its argument, but
                not in a loop, in a branch or in a sum: cast it, `ct.astype(x.dtype)`.
            symbolic_zeros: Whether fwd gets `CustomVJPPrimal` objects and bwd
                `SymbolicZero` objects, as in JAX.
            optimize_remat: As in JAX, if there is no forward rule.
            **options: Further options of the installed JAX.
        """
        options |= {"symbolic_zeros": symbolic_zeros, "optimize_remat": optimize_remat}
        self._define_jax("defvjp", (fwd, bwd), options)

    def defjvp(self, jvp: _Rule, symbolic_zeros: bool = False) -> _Rule:
        """Define the forward-mode rule, as `jax.custom_jvp.defjvp` does.

        Args:
            jvp: Rule `jvp(primals, tangents) -> out, out_tangent`; the arguments of
                nondiff_argnums come first.
            symbolic_zeros: Whether it gets `SymbolicZero` objects.

        Returns:
            The rule.
        """
        self._define_jax("defjvp", (jvp,), {"symbolic_zeros": symbolic_zeros})
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Define a forward-mode rule for each argument, as `jax.custom_jvp.defjvps`.

        Args:
            *jvps: Rules `jvp(t, out, *args) -> out_tangent`, or None for zero.

        Raises:
            TypeError: There are nondiff_argnums, which JAX does not allow beside it.
        """
        if self._definition.nondiff:
            raise TypeError("Can't use ``defjvps`` with ``nondiff_argnums``.")
        self._define_jax("defjvps", jvps, {})

    def def_vmap(self, vmap_rule: _Rule) -> _Rule:
        """Define the batch rule, as `jax.custom_batching.custom_vmap.def_vmap` does.

        Args:
            vmap_rule: Rule `vmap_rule(axis_size, in_batched, *args)`, which returns
                `out, out_batched`.

        Returns:
            The rule.
        """
        self._define_jax("def_vmap", (vmap_rule,), {})
        return vmap_rule

    def _define_jax(
        self, method: str, rules: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        if self._torch_rules:
            known = sorted(self._torch_rules)
            raise self._mixed(f"{method} in JAX's", known, "torch's")
        self._definition = self._definition.with_call(method, rules, options)

    # ---- methods and attributes that only the installed JAX has

    def __getattr__(self, name: str) -> Any:
        definition = self.__dict__.get("_definition")  # None while __init__ runs
        if definition is not None and not name.startswith("_"):
            if decorator_of(name) is not None:
                return functools.partial(self._define_by_jax, name)
            having = [d for d in DECORATORS if name in public_names(d)]
            if having:
                used = definition.decorators
                first = next((d for d in having if d in used), having[0])
                return getattr(by_jax(definition, first), name)
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=self)

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *[n for d in DECORATORS for n in public_names(d)]}

    def _define_by_jax(self, method: str, *rules: Any, **options: Any) -> Any:
        """Call a `def*` method of the installed JAX's decorators, which checks it."""
        own = by_jax(self._definition, decorator_of(method))
        returned = getattr(own, method)(*rules, **options)
        self._define_jax(method, rules, options)
        return returned

    # ---- rules in torch's terms

    def setup_context(self, rule: _Rule) -> _Rule:
        """Define what to save: see `jaxfn.Function.setup_context`. A decorator."""
        return self._define("setup_context", rule)

    def backward(self, rule: _Rule) -> _Rule:
        """Define the reverse-mode rule: see `jaxfn.Function.backward`. A decorator."""
        return self._define("backward", rule)

    def jvp(self, rule: _Rule) -> _Rule:
        """Define the forward-mode rule: see `jaxfn.Function.jvp`. A decorator."""
        return self._define("jvp", rule)

    def vmap(self, rule: _Rule) -> _Rule:
        """Define the batch rule: see `jaxfn.Function.vmap`. A decorator."""
        return self._define("vmap", rule)

    def _define(self, name: str, rule: _Rule) -> _Rule:
        if self._definition.kinds:
            raise self._mixed(f"{name} in torch's", self._definition.kinds, "JAX's")
        if self._definition.nondiff:
            raise messages.RuleError(
                f"`{self._definition.name}` has nondiff_argnums or nondiff_argnames, "
                f"and got {name} in torch's terms, where static arguments need no "
                "declaration: expected rules in JAX's terms beside them. Leave them "
                "out, and return None as the gradient of these arguments."
            )
        self._torch_rules = {**self._torch_rules, name: rule}
        self.__dict__.pop("_function", None)  # the next call makes it anew
        return rule

    @functools.cached_property
    def _function(self) -> type[Function]:
        """The `Function`, in the separate style, made from the torch-style rules."""
        rules = {"setup_context": _save_nothing, **self._torch_rules}
        rules["forward"] = self.fun
        members: dict[str, Any] = {k: staticmethod(rule) for k, rule in rules.items()}
        members["generate_jvp_rule"] = self._definition.derives_jvp
        members["__module__"] = getattr(self.fun, "__module__", __name__)
        return type(self._definition.name, (Function,), members)

    def _mixed(self, got: str, have: Iterable[str], terms: str) -> messages.RuleError:
        return messages.RuleError(
            f"`{self._definition.name}` got {got} terms and has {', '.join(have)} in "
            f"{terms}: expected all rules of one function in the same terms. Define "
            "them all in one of the two."
        )

    # ---- a call

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, under its rules."""
        if self._torch_rules.keys() & {"backward", "jvp"}:
            return self._function.apply(*args, **kwargs)
        if "vmap" in self._torch_rules:
            rules, arrays = rules_of(self._function, args, kwargs)
            return _batched(*rules.batchable(), arrays, rules.name)
        if self._definition.kinds:
            return self._call_jax(self._definition.positional(args, kwargs))
        raise messages.NoRulesError(
            f"No rule defined for custom_function `{self._definition.name}`, and it "
            "was called. Without a rule it would be differentiated as plain JAX. "
            f"Before the first call, {self._way_to_rules()}"
        )

    def _way_to_rules(self) -> str:
        name = self._definition.name
        if isinstance(self.fun, DECORATORS):
            kind = type(self.fun).__name__
            return (
                f"pass the plain function to jaxfn.custom_function, and not a {kind}, "
                "and define the same rules on the result."
            )
        if self._definition.derives_jvp:
            return (
                f"define {name}.defvjp, or backward in torch's terms, from which "
                "generate_jvp_rule derives the jvp."
            )
        return (
            f"define {name}.defvjp, {name}.defjvp or {name}.def_vmap, or backward, jvp "
            "or vmap in torch's terms."
        )

    def _call_jax(self, args: tuple[Any, ...]) -> Any:
        d = self._definition
        if d.derives_jvp and d.last("defvjp") is None:
            raise messages.RuleError(
                f"`{d.name}` has generate_jvp_rule=True and only {', '.join(d.kinds)}: "
                "expected a reverse rule to derive the jvp from. Define "
                f"{d.name}.defvjp, or leave generate_jvp_rule out."
            )
        if d.is_foreign:
            return wholly_by_jax(d)(*args)
        rules, arrays = JaxRules.of(d, args)
        if any(map(internals.is_reference, arrays)):  # a rule may write to it
            if rules.has_backward and (rules.has_forward_mode or rules.once):
                raise messages.reference(d.name)
            return wholly_by_jax(d)(*args)
        if (
            not any(map(internals.is_tracer, arrays))
            and not internals.is_transforming()
        ):
            # A batch rule gets arrays; so the function beside it does too.
            args = args if d.last("def_vmap") is None else tuple(rules.whole(arrays))
            with noted(d.name, "", d.fun):
                return d.fun(*args)
        if not rules.has_backward and not rules.has_jvp:
            return _batched(rules.value_with_batch, rules.batch, arrays, d.name)
        return call(rules, arrays)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> custom_function[P, R]: ...

    @overload
    def __get__(self, instance: object, owner: Any = None) -> Callable[..., R]: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        # By reference, like a function. But another process has no `__main__` of this
        # one: cloudpickle sends functions of `__main__` by value.
        by_value = self.__module__ == "__main__" and "cloudpickle" in sys.modules
        if not by_value:
            return vars(self).get("__qualname__", self._definition.name)
        state = {k: x for k, x in vars(self).items() if k != "_function"}
        return _restored, (self.fun, state)

    def __repr__(self) -> str:
        return f"<custom_function {self._definition.name}>"


def _restored(fun: Callable[..., Any], state: dict[str, Any]) -> Any:
    made = custom_function(fun)
    made.__dict__.update(state)
    return made


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    del ctx, inputs, output


def _batched(fun: Any, batch: Any, arrays: Sequence[Any], name: str) -> Any:
    """Call a function that has a batch rule alone; JAX differentiates it."""
    if not any(map(internals.is_tracer, arrays)):
        outs = unbatched(fun, arrays, name=name)
        return outs.layout.out.join(outs.arrays)
    return call(*BatchRules.of(fun, batch, arrays, name))


def _positions(
    fun: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str]
) -> tuple[int, ...]:
    """Return the positions of nondiff_argnums and nondiff_argnames."""
    numbers = {argnums} if isinstance(argnums, int) else set(argnums)
    names = (argnames,) if isinstance(argnames, str) else argnames
    try:
        parameters = inspect.signature(fun).parameters
    except ValueError:  # a builtin, which may have no signature
        if not names and all(i >= 0 for i in numbers):
            return tuple(sorted(numbers))
        raise
    known = list(parameters)
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    wrong = [i for i in numbers if not -len(known) <= i < len(known)]
    if wrong and not takes_more:
        raise ValueError(
            f"custom_function got nondiff_argnums {wrong}, and `{fun}` takes "
            f"{len(known)} arguments: expected their positions, counted from 0."
        )
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"custom_function got nondiff_argnames {unknown}, which `{fun}` does not "
            f"take: expected names among {known}."
        )
    numbers = {i if i >= 0 else len(known) + i for i in numbers}
    return tuple(sorted(numbers | {known.index(name) for name in names}))
