"""What one run of forward gave, without its arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import OutSpec, as_jax, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.rules import Arrays, Perturbed

Again = Callable[[Arrays, Perturbed], tuple[Arrays, list[Any], "Run"]]


@dataclasses.dataclass(slots=True)
class Run:
    """What one run gave, without the arrays.

    Attributes:
        out: structure of the outputs.
        perturbed: for each array argument, whether it is differentiated.
        pattern_used: may what was saved depend on `perturbed`?
        saved: what was saved; of the face's own kind.
        sources: for each leaf that was saved where its value comes from: ("input", i),
            ("output", i) or ("other", i), counting within each kind. Filled in last.
        constants: where NumPy values of float type were kept.
        opaque: where objects were kept that hide arrays.
        beside: what was saved beside arrays, described, if `pattern_used`.
        program: the same, and how the outputs and the arrays that were saved were
            made, where that is known.
    """

    out: OutSpec
    perturbed: Perturbed
    pattern_used: bool
    saved: Any
    sources: tuple[tuple[str, int], ...] = ()
    constants: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    beside: Hashable = None
    program: Hashable = None

    def fits(self, perturbed: Perturbed) -> bool:
        """Is this also what would be saved with these inputs perturbed?"""
        return not self.pattern_used or perturbed == self.perturbed

    def others(self, leaves: Arrays) -> list[Any]:
        """Return the leaves that are neither inputs nor outputs."""
        pairs = zip(leaves, self.sources, strict=True)
        return [leaf for leaf, (kind, _) in pairs if kind == "other"]


def are_other_values(x: Any, y: Any) -> bool:
    """Are these arrays, of two runs, known and not the same but for rounding?"""
    x, y = map(compat.known_value, (x, y))
    if compat.is_tracer(x) or compat.is_tracer(y) or x.shape != y.shape:
        return False
    if not all(getattr(z, "is_fully_addressable", True) for z in (x, y)):
        return False
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):  # PRNG keys
        x, y = map(jax.random.key_data, (x, y))
    a, b = (np.asarray(z).astype(np.complex128) for z in (x, y))
    # far above rounding, and below any other draw of random numbers
    return not np.allclose(a, b, rtol=1e-2, atol=1e-6, equal_nan=True)


def check_same_values(rule: str, outs: Arrays, others: Arrays) -> None:
    """Refuse outputs of another run of forward that are known to be others.

    Args:
        rule: what messages call forward.
        outs: of the run of the call.
        others: of the run for other perturbed inputs.
    """
    for x, y in zip(outs, others, strict=True):
        if is_inexact(x) and are_other_values(x, y):
            raise errors.RuleValueError(
                f"`{rule}` computed other outputs when it ran again for a derivative: "
                f"expected {x}, got {y}. Make it a function of its inputs: pass random "
                "numbers, or a PRNG key, to apply."
            )


def check_same_program(rule: str, first: Hashable, second: Hashable) -> None:
    """Refuse a rule that does something else when it runs again as in the call.

    Args:
        rule: its name for messages.
        first: its program in the call (see `Run`).
        second: the same, where it ran again for the same perturbed inputs.
    """
    if first == second:
        return
    raise errors.RuleValueError(
        f"`{rule}` ran again for a derivative in other arguments, as it does where it "
        "can see which are differentiated (by ctx.needs_input_grad, or by symbolic "
        "zeros), and what it computes or keeps is something else now: expected what it "
        "did in the call, got other operations or constants. Make it a function of its "
        "arguments, whatever is set around the call: pass what it needs, as random "
        "numbers, as an argument. Or save what all derivatives need, without a look at "
        "which these are."
    )


def refusing(
    run: Run, leaves: Arrays, arrays: Arrays, rule: str, why: str
) -> list[Any]:
    """Return what a run saved; what it computed refuses to be differentiated.

    Args:
        run: it needed values, so there is no jaxpr of it.
        leaves: what it saved.
        arrays: its arguments.
        rule: what messages call forward.
        why: the error that tracing it raised.
    """

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            f"`{rule}` saved a value that it computed, can't be traced ({why}), and "
            "was differentiated again: expected jax.numpy operations that don't need "
            "the values of arrays, as under jit, since the derivative of that value is "
            "the one of what ran. Save inputs or outputs and compute the rest in the "
            "rules, or split it into forward and setup_context."
        )

    kept = []
    for leaf, (kind, _) in zip(leaves, run.sources, strict=True):
        if kind == "other" and is_inexact(leaf):
            (leaf,) = attach(refuse, arrays, [as_jax(leaf)], name=rule)
        kept.append(leaf)
    return kept


def check_untraceable(rule: str, run: Run, still: Arrays, again: Again) -> None:
    """Refuse a run with values where the derivative of what it saved would be lost.

    Args:
        rule: what messages call forward, which can't be traced.
        run: the run; its inputs had no derivative.
        still: its inputs.
        again: runs forward: `again(inputs, perturbed) -> outputs, leaves saved, run`.
    """
    for what, places in (
        ("NumPy values", run.constants),
        ("objects that hide arrays", run.opaque),
    ):
        if places:
            raise NotImplementedError(
                f"`{rule}` was differentiated again, kept {what} in "
                f"{' and '.join(places)}, and can't be traced: expected JAX "
                "arrays, got values whose derivative would be lost. Save inputs, "
                "or outputs that are JAX arrays, and compute the rest in the "
                "rules; keep what is constant outside of ctx."
            )
    # Here lax.stop_gradient(x) is x, so if it was saved it counts as the input.
    # Under jax.jvp it is another object: a run there finds other sources.
    try:
        saved = _under_jvp(still, run.perturbed, again).sources
    except Exception:  # noqa: BLE001  (a body in NumPy has no lax.stop_gradient)
        return
    if saved != run.sources:
        raise NotImplementedError(
            f"`{rule}` was differentiated again, saved lax.stop_gradient of "
            "a value, and can't be traced: expected operations that don't need "
            "values, as under jit. Write it without them, or split it into "
            "forward and setup_context."
        )


def _under_jvp(inputs: Arrays, perturbed: Perturbed, again: Again) -> Run:
    """Run forward again under jax.jvp, to see what it saves.

    There arrays are tracers, so that each result is an object of its own, and have
    values all the same.
    """
    moving = [i for i, x in enumerate(inputs) if is_inexact(x)]
    runs: list[Run] = []

    def look(*values: Any) -> tuple[()]:
        at = list(inputs)
        for i, value in zip(moving, values, strict=True):
            at[i] = value
        runs.append(again(at, perturbed)[2])
        return ()

    primals = tuple(inputs[i] for i in moving)
    jax.jvp(look, primals, primals)
    return runs[-1]
