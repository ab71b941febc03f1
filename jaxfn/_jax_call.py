"""A call with JAX-style rules; static arguments need no declaration."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax import tree_util

from jaxfn import _apply
from jaxfn._both import Both
from jaxfn._jax_rules import JaxRules, Places, Rule, is_pair
from jaxfn._static import align, is_static, unwrap, wrap


def call(d: JaxRules, args: tuple[Any, ...]) -> Any:
    """Call the function that has these rules, on positional arguments."""
    if any(
        is_static(x)
        for i, arg in enumerate(args)
        if i not in d.nondiff
        for x in tree_util.tree_leaves(arg)
    ):
        args = tuple([x if i in d.nondiff else wrap(x) for i, x in enumerate(args)])
        d = _unwrapping(d, args)
    if d.vjp is not None and d.jvp is not None:
        places, rest = Places.of(d, args)
        arrays, tree = tree_util.tree_flatten(rest)
        return _apply.call(Both(d, places, tree, arrays).rules, arrays)
    if d.vjp is not None:
        return d.reverse(*args)
    return d.primal(*args) if d.jvp is None else d.forward(*args)


def _unwrapping(d: JaxRules, args: tuple[Any, ...]) -> JaxRules:
    """The rules for a call with wrapped arguments."""
    return dataclasses.replace(
        d,
        fun=functools.wraps(d.fun)(lambda *xs: d.fun(*unwrap(xs))),
        vjp=None if d.vjp is None else _unwrapping_vjp(d, args),
        jvp=None if d.jvp is None else _unwrapping_jvp(*d.jvp),
        batch=None if d.batch is None else _unwrapping_batch(d.batch),
    )


def _unwrapping_vjp(
    d: JaxRules, args: tuple[Any, ...]
) -> tuple[Rule, Rule, dict[str, Any]]:
    assert d.vjp is not None
    fwd, bwd, options = d.vjp
    blank = tree_util.tree_map(lambda _: 0, args)  # no arrays: bwd outlives them
    rest = [x for i, x in enumerate(blank) if i not in d.nondiff]

    @functools.wraps(fwd)
    def fwd_(*xs: Any) -> Any:
        result = fwd(*unwrap(xs))
        # A rule that sees which arguments are perturbed could save other static
        # values for other sets of them, and JAX would mix them up.
        if options.get("symbolic_zeros") or not is_pair(result):
            return result
        return result[0], wrap(result[1])

    @functools.wraps(bwd)
    def bwd_(*xs: Any) -> Any:
        cts = bwd(*xs[:-2], unwrap(xs[-2]), xs[-1])
        if not isinstance(cts, (tuple, list)) or len(cts) != len(rest):
            return cts
        return tuple(align(ct, x) for ct, x in zip(cts, rest, strict=True))

    return fwd_, bwd_, options


def _unwrapping_jvp(
    method: str, rules: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    def unwrapping(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def rule_(*xs: Any) -> Any:
            if method == "defjvp":
                return rule(*xs[:-2], unwrap(xs[-2]), unwrap(xs[-1], None))
            return rule(xs[0], xs[1], *unwrap(xs[2:]))

        return rule_

    kept = [None if rule is None else unwrapping(rule) for rule in rules]
    return method, tuple(kept), options


def _unwrapping_batch(batch: Rule) -> Rule:
    @functools.wraps(batch)
    def batch_(size: int, in_batched: Any, *args: Any) -> Any:
        return batch(size, unwrap(in_batched, False), *unwrap(args))

    return batch_
