"""A jvp derived from backward: backward is ct -> J^T ct; transposed, t -> J t."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxfn._base import compat, errors, short
from jaxfn._engine import linearity
from jaxfn._engine.barrier import refused_once
from jaxfn._engine.rules import Arrays, Residuals, Rules, spread
from jaxfn._engine.solves import separated


def transposed(
    rules: Rules,
    residuals: Residuals,
    moving: Sequence[int],
    tangents: Arrays,
    avals: Sequence[Any],
) -> list[Any]:
    """Backward is ct -> J^T ct; transposed, t -> J t."""
    assert rules.bwd is not None
    bwd = rules.bwd

    def of_cts(cts: list[Any]) -> list[Any]:
        in_cts = bwd(residuals, spread(cts, residuals.smooth))
        return [
            compat.zeros(compat.tangent_aval(t)) if in_cts[i] is None else in_cts[i]
            for i, t in zip(moving, tangents, strict=True)
        ]

    # The example carries the output's real type: made from a shape and a dtype alone,
    # it is not varying in a shard_map, and the result is too big by the axis size.
    example = [compat.zeros(aval) for aval in avals]
    jaxpr = jax.make_jaxpr(of_cts)(example)
    for i, got in linearity.nonzero_outputs(jaxpr):
        got = f"{got}, for perturbed array {i} ({short(tangents[i])})"
        raise _refusal(rules, "a gradient that is linear in the cotangents", got)
    try:
        return _transpose(jaxpr, example, list(tangents))
    except Exception as error:  # JAX raises errors of many kinds
        if rules.once and not rules.derive_jvp:
            raise refused_once(rules.name) from error
        expected = (
            "operations that are linear in the cotangents and that JAX can transpose"
        )
        said, cause = _words(error)
        raise _refusal(rules, expected, said) from cause


def _transpose(jaxpr: Any, example: list[Any], tangents: list[Any]) -> list[Any]:
    """The transpose of a jaxpr in any way there is; else JAX's error in the first."""

    def run(cts: list[Any]) -> list[Any]:
        return compat.evaluate(jaxpr, cts)

    try:
        return jax.linear_transpose(run, example)(tangents)[0]
    except Exception:
        for way in (_by_separation, _by_derivative):
            found = way(jaxpr, example, tangents)
            if found is not None:
                return found
        raise


def _by_separation(
    jaxpr: Any, example: list[Any], tangents: list[Any]
) -> list[Any] | None:
    """The transpose where solvers were given what depends on the right-hand side."""
    try:
        return jax.linear_transpose(separated(jaxpr), example)(tangents)[0]
    except Exception:  # noqa: BLE001  (there is none, whatever it raised)
        return None


def _by_derivative(
    jaxpr: Any, example: list[Any], tangents: list[Any]
) -> list[Any] | None:
    """The transpose where JAX has none of some operation; None if there is no proof.

    A scatter that sets has none, but a derivative in reverse mode. Where that does not
    depend on the cotangents, it is the transpose.
    """

    def pull(cts: list[Any], ts: list[Any]) -> list[Any]:
        return jax.vjp(lambda cts: compat.evaluate(jaxpr, cts), cts)[1](ts)[0]

    if not linearity.is_smooth(jaxpr):
        return None
    try:
        pulled = jax.make_jaxpr(pull)(example, tangents)
    except Exception:  # noqa: BLE001  (no derivative either, whatever it raised)
        return None
    if linearity.depends_on_first(pulled, len(example)):
        return None
    return compat.evaluate(pulled, [*example, *tangents])


def _words(error: Exception) -> tuple[str, Exception | None]:
    """What JAX could not transpose, and its error if it tells the user something."""
    said = str(error)
    if "open an issue" in said:
        return (
            "a linear solve (lax.custom_linear_solve, or one of jax.scipy.sparse."
            "linalg) whose matrix, guess or tolerance is computed from them"
        ), None
    return said or "an operation that is not linear in them, as a product of two", error


def _refusal(rules: Rules, expected: str, got: str) -> errors.RuleValueError:
    """The error; who never asked for a derived jvp is told who needs it."""
    name = rules.name
    use = (
        "to get a jvp (generate_jvp_rule)"
        if rules.derive_jvp
        else "to get the tangents of what forward returned, as forward mode over "
        "reverse mode needs (jax.hessian, jax.jvp of jax.grad) where there is no jvp"
    )
    return errors.RuleValueError(
        f"`{name}.backward` {errors.NOT_TRANSPOSED} {use}: expected "
        f"{expected}, got {got}. Define jvp: `jvp(ctx, *tangents)` of `{name}` gets "
        "a tangent for each argument and returns one for each output. Or write "
        "backward with operations that are linear in its cotangents and that JAX can "
        "transpose."
    )
