"""Rules of our primitives for JAX's other interpreters.

checkify, sparsify and the compilers of Pallas kernels have tables of rules, and refuse
primitives without one. A traced function (`linear`) gets the rule of custom_jvp_call. A
primitive that returns some of its arguments (`attach`) gets a rule that does so.

This module imports none of the interpreters. Their users import them before a primitive
is bound (`meet`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jax._src.custom_derivatives import custom_jvp_call_p
from jax._src.interpreters.partial_eval import lower_jaxpr2
from jax.interpreters import mlir

from jaxfn._base.compat.staged import Staged

Rule = Callable[..., Any]

_calls: set[Any] = set()
_selections: dict[Any, Callable[..., Sequence[Any]]] = {}
_met: set[str] = set()


def is_call(prim: Any) -> None:
    """Register `prim`, which evaluates its parameter `jaxpr`."""
    _calls.add(prim)
    # If JAX's next implementation finds a jaxpr of its higher form among the
    # parameters, it asks the primitive to lower it. `_low` lowers it, at compile time.
    prim.is_high = lambda *_, **__: False
    # A jaxpr equals only itself. A cache would have no hits, and would wrap each call
    # in a function.
    rule = _as_call(mlir._lowerings[custom_jvp_call_p].rule)
    mlir.register_lowering(prim, rule, cacheable=False)


def is_selection(prim: Any, select: Callable[..., Sequence[Any]]) -> None:
    """Register `prim`, which returns `select(*args, **params)`: some arguments."""
    _selections[prim] = select
    # A cached lowering would add a function to the program.
    mlir.register_lowering(prim, _selecting(select), cacheable=False)


def meet() -> None:
    """Add our rules to the interpreters imported since the last call."""
    for name, register in _INTERPRETERS.items():
        if name not in _met and name in sys.modules:
            _met.add(name)
            register()


def _as_call(rule: Rule) -> Rule:
    """Convert a rule of custom_jvp_call to a rule of our primitives."""

    def ours(ctx: Any, *args: Any, jaxpr: Any, **_: Any) -> Any:
        # Interpreters that compile never call the jvp.
        return rule(
            ctx,
            *args,
            call_jaxpr=_low(Staged.of(jaxpr).jaxpr),
            jvp_jaxpr_fun=None,
            num_consts=0,
            symbolic_zeros=False,
        )

    return ours


def _low(jaxpr: Any) -> Any:
    """Lower the jaxpr from the form of JAX's next implementation."""
    is_high = getattr(getattr(jaxpr, "jaxpr", jaxpr), "is_high", False)
    return lower_jaxpr2(jaxpr) if is_high else jaxpr


def _selecting(select: Callable[..., Sequence[Any]]) -> Rule:
    return lambda _, *args, **params: list(select(*args, **params))


def _fill(table: dict[Any, Rule]) -> None:
    """Add our primitives to a table of an interpreter that compiles calls."""
    # A compiler without custom_jvp_call refuses our primitives too.
    known = table.get(custom_jvp_call_p)
    if known is not None:
        table.update({p: _as_call(known) for p in _calls})
    table.update({p: _selecting(select) for p, select in _selections.items()})


# ---- Pallas: JAX imports its compilers when it compiles a kernel


def _meet_pallas() -> None:
    _fill_tables("jax._src.pallas.mosaic.lowering", "lowering_rules")
    _fill_tables("jax._src.pallas.mosaic_gpu.lowering", "mosaic_lowering_rules")
    _fill_tables("jax._src.pallas.triton.lowering", "triton_lowering_rules")


def _fill_tables(module: str, name: str) -> None:
    """Add our primitives to the tables in this attribute of a module."""
    try:
        tables = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # this JAX has no such compiler
        return
    # Mosaic has a table for each kind of core; Triton has one table.
    nested = [x for x in tables.values() if isinstance(x, dict)]
    for table in nested or [tables]:
        _fill(table)


# ---- checkify: it checks the operations inside the jaxpr


def _meet_checkify() -> None:
    checkify: Any = sys.modules["jax._src.checkify"]

    def rule(*args: Any, jaxpr: Any, **_: Any) -> Any:
        # JAX 0.12 passes a context first, JAX 0.10 does not.
        at = next(i for i, x in enumerate(args) if isinstance(x, checkify.Error))
        context, (error, enabled, *values) = args[:at], args[at:]
        inside = Staged.of(jaxpr).jaxpr
        return checkify.checkify_jaxpr(*context, inside, enabled, error, *values)

    for prim in _calls:
        checkify.error_checks[prim] = rule


# ---- sparsify


def _meet_sparsify() -> None:
    sparse: Any = sys.modules["jax.experimental.sparse.transform"]

    def call_rule(prim: Any) -> Rule:
        def rule(env: Any, *values: Any, **params: Any) -> Any:
            # With dense values, keep the primitive and so its derivative and transpose.
            if not any(x.is_sparse() for x in values):
                arrays = sparse.spvalues_to_arrays(env, values)
                return sparse.arrays_to_spvalues(env, prim.bind(*arrays, **params))
            jaxpr = Staged.of(params["jaxpr"]).jaxpr
            return sparse.eval_sparse(getattr(jaxpr, "jaxpr", jaxpr), (), values, env)

        return rule

    for table in (sparse.sparse_rules_bcoo, sparse.sparse_rules_bcsr):
        table.update({p: call_rule(p) for p in _calls})
        table.update({p: _selecting(select) for p, select in _selections.items()})


_INTERPRETERS: dict[str, Callable[[], None]] = {
    "jax._src.pallas.pallas_call": _meet_pallas,
    "jax._src.checkify": _meet_checkify,
    "jax.experimental.sparse.transform": _meet_sparsify,
}
