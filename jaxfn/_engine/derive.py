"""A jvp derived from backward: backward is ct -> J^T ct; transposed, t -> J t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import compat, errors, short
from jaxfn._engine import linearity
from jaxfn._engine.gate import refused_once
from jaxfn._engine.linearity import body_of
from jaxfn._engine.rules import Arrays, Residuals, Rules, spread


def transposed(
    rules: Rules,
    residuals: Residuals,
    nonzero: Sequence[int],
    tangents: Arrays,
    avals: Sequence[Any],
) -> list[Any]:
    """Return the tangents of the outputs: backward, transposed, at the tangents.

    Args:
        rules: Rules of the Function, with a `bwd`.
        residuals: Residuals for bwd.
        nonzero: Indices of the arguments with a tangent.
        tangents: The tangents, in this order.
        avals: Types of the tangents of the differentiable outputs.

    Raises:
        RuleValueError: bwd is not linear in its cotangents, or JAX can't transpose it.
    """
    assert rules.bwd is not None
    bwd = rules.bwd

    def of_cts(*cts: Any) -> list[Any]:
        in_cts = bwd(residuals, spread(cts, residuals.differentiable))
        # bwd returns None for zero. Here it must be an array, because each tangent
        # meets the gradient of its argument.
        return [
            compat.zeros(compat.tangent_aval(t)) if in_cts[i] is None else in_cts[i]
            for i, t in zip(nonzero, tangents, strict=True)
        ]

    # The example carries the output's real type: made from a shape and a dtype alone,
    # it is not varying in a shard_map, and the result is too big by the axis size.
    example = [compat.zeros(aval) for aval in avals]
    jaxpr = _traced(rules, of_cts, example)
    if any(map(compat.is_reference, compat.constants(jaxpr))):
        name = f"{rules.name}.backward"
        raise NotImplementedError(errors.REFERENCE.format(name=name))
    # Of an affine B(ct) = J^T ct + c JAX makes the transpose of J^T, and silently drops
    # c. Of one that ignores ct it makes zero. Neither is a derivative of anything.
    for i, got in linearity.nonzero_outputs(jaxpr):
        got = f"{got}, for perturbed array {i} ({short(tangents[i])})"
        raise _refusal(rules, "a gradient that is linear in the cotangents", got)
    try:
        return _transpose(jaxpr, example, list(tangents))
    except Exception as error:  # JAX raises errors of many kinds
        # Without generate_jvp_rule only forward mode over reverse mode asks for the
        # transpose. That is a second derivative, which this Function refuses anyway.
        if rules.once and not rules.derive_jvp:
            raise refused_once(rules.name) from error
        expected = "operations, linear in the cotangents, that JAX can transpose"
        said, cause = _words(error)
        raise _refusal(rules, expected, said) from cause


def _traced(rules: Rules, of_cts: Callable[..., list[Any]], example: list[Any]) -> Any:
    """Trace backward, which may need the values of residuals, but of no cotangents.

    In that case JAX computes at once what depends on residuals alone.
    """
    try:
        return compat.make_jaxpr(of_cts, example)
    except compat.NEEDS_VALUES:
        pass
    try:
        with jax.ensure_compile_time_eval():
            return compat.make_jaxpr(of_cts, example)
    except compat.NEEDS_VALUES as error:
        expected = "operations that don't need the values of cotangents, as under jit"
        said = str(error).partition("\n")[0].rstrip(".")
        raise _refusal(rules, expected, said) from error


def _transpose(jaxpr: Any, example: list[Any], tangents: list[Any]) -> list[Any]:
    """Apply the transpose of a jaxpr, found in one of two ways.

    If both fail, it raises JAX's error of the first.
    """
    # Both start from the jaxpr, so that the Python of backward runs once.

    def run(cts: list[Any]) -> list[Any]:
        return compat.evaluate(jaxpr, cts)

    def by_jax(tangents: list[Any]) -> list[Any]:
        return jax.linear_transpose(run, example)(tangents)[0]

    try:
        if not compat.open_jaxpr(jaxpr)[0].effects:
            return by_jax(tangents)
        # Traced first, so that no effect has happened if it fails.
        return compat.evaluate(jax.make_jaxpr(by_jax)(tangents), tangents)
    except Exception:
        found = _by_derivative(jaxpr, example, tangents)
        if found is not None:
            return found
        raise


def _by_derivative(
    jaxpr: Any, example: list[Any], tangents: list[Any]
) -> list[Any] | None:
    """Apply a transpose made of the reverse derivative; None without a proof.

    A scatter that sets, or a sort, has a reverse derivative in JAX, but no transpose.
    """

    # For B linear, the derivative of B at any ct is B itself, and its transpose, the
    # vjp of B at ct, is B^T. Conversely, a vjp that is the same at every ct shows that
    # B is affine, and that B(0) = 0 has been proved before.
    def pull(cts: list[Any], ts: list[Any]) -> list[Any]:
        return jax.vjp(lambda cts: compat.evaluate(jaxpr, cts), cts)[1](ts)[0]

    if not _proves_affine(jaxpr):
        return None
    try:
        pulled = jax.make_jaxpr(pull)(example, tangents)
    except Exception:  # noqa: BLE001  (no derivative either, whatever it raised)
        return None
    if linearity.depends_on_first(pulled, len(example)):
        return None
    return compat.evaluate(pulled, [*example, *tangents])


# Their authors chose their derivatives.
_CHOSEN = (
    *("gate", "attach", "linear"),
    *("custom_jvp_call", "custom_vjp_call", "custom_lin", "remat_opt"),
    *("call_hi_primitive", "call_hi_primitive_linearized"),
)


def _proves_affine(jaxpr: Any, counts: Sequence[bool] | None = None) -> bool:
    """Would a constant derivative prove that the function is affine?

    Not if an operation is constant in pieces (sign has the derivative 0), or has a
    derivative that its author chose (custom_jvp, and ours). JAX must be able to
    transpose every operation that the inputs reach, but for scatters that set and
    sorts, which it only differentiates.

    Args:
        jaxpr: The jaxpr of the function.
        counts: A mask of the inputs to follow; all without it.
    """
    jaxpr, _ = compat.open_jaxpr(jaxpr)
    if counts is None:
        counts = [True] * len(jaxpr.invars)
    pairs = zip(jaxpr.invars, counts, strict=True)
    reached = {id(var) for var, reaches in pairs if reaches}
    for eqn in jaxpr.eqns:
        reaches = [id(x) in reached for x in eqn.invars]
        if not any(reaches):
            continue
        reached |= {id(var) for var in eqn.outvars}
        name = eqn.primitive.name
        known = name in ("scatter", "sort") or compat.has_transpose(eqn.primitive)
        if name in _CHOSEN or not known:
            return False
        if not all(
            _proves_affine(body, given) for body, given in _bodies(eqn, reaches)
        ):
            return False
    return True


def _bodies(eqn: Any, reaches: list[bool]) -> list[tuple[Any, list[bool] | None]]:
    """List the jaxprs that an equation runs, and which of their inputs count."""
    params = eqn.params
    if "branches" in params:
        return [(branch, reaches[1:]) for branch in params["branches"]]
    body = body_of(eqn)
    if body is None:
        return []
    # What a loop carries may be reached in a later step.
    return [(body, None if eqn.primitive.name == "scan" else reaches)]


def _words(error: Exception) -> tuple[str, Exception | None]:
    """Name what JAX could not transpose; return its error if it helps a user."""
    said = str(error)
    if compat.is_refused_solve(error):
        return (
            "a linear solve (lax.custom_linear_solve, or one of jax.scipy.sparse."
            "linalg) whose matrix, preconditioner, tolerance or guess is computed from "
            "them"
        ), None
    if (operation := compat.lacks_transpose(error)) is not None:
        return f"{operation}, of which JAX has no transpose", None
    return said or "an operation that is not linear in them, as a product of two", error


def _refusal(rules: Rules, expected: str, got: str) -> errors.RuleValueError:
    """Make the error for a backward that has no transpose.

    Users who never asked for a derived jvp are told which transformation needs it, and
    which one gives the same second derivative without it.
    """
    name = rules.name
    if rules.derive_jvp:
        use, instead = "to get a jvp (generate_jvp_rule)", ""
    else:
        use = (
            "to get the tangents of what forward returned, which forward mode over "
            "reverse mode needs (jax.hessian, jax.jvp of jax.grad)"
        )
        instead = (
            " Or replace jax.hessian(f) by jax.jacrev(jax.grad(f)), which needs no "
            "transpose."
        )
    return errors.RuleValueError(
        f"`{name}.backward` {errors.NOT_TRANSPOSED} {use}: expected {expected}, got "
        f"{got}. Define jvp: `jvp(ctx, *tangents)` of `{name}` gets a tangent for each "
        "argument and returns one for each output. Or write backward with operations "
        f"that are linear in its cotangents and that JAX can transpose.{instead}"
    )
