"""A jvp derived from backward: backward is ct -> J^T ct; transposed, t -> J t."""

from __future__ import annotations

import functools
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
    """Return the tangents of the outputs, by the transpose of backward.

    Args:
        rules: Rules of the Function, with a `bwd`.
        residuals: Residuals for bwd.
        nonzero: Indices of the arguments with a tangent.
        tangents: The tangents of these arguments.
        avals: Types of the tangents of the differentiable outputs.

    Raises:
        RuleValueError: `bwd` is not linear in its cotangents, or has no transpose.
    """
    assert rules.bwd is not None
    bwd = rules.bwd

    def of_cts(*cts: Any) -> list[Any]:
        in_cts = bwd(residuals, spread(cts, residuals.differentiable))
        # bwd returns None for zero. The transpose needs an array for each tangent.
        return [
            compat.zeros(compat.tangent_aval(t)) if in_cts[i] is None else in_cts[i]
            for i, t in zip(nonzero, tangents, strict=True)
        ]

    # The example has the output's real type. In a shard_map, one made from shape and
    # dtype alone would not vary, and the result would be too big by the axis size.
    example = [compat.zeros(aval) for aval in avals]
    jaxpr = _traced(rules, of_cts, example)
    if any(map(compat.is_reference, compat.open_jaxpr(jaxpr)[1])):
        name = f"{rules.name}.backward"
        raise NotImplementedError(errors.REFERENCE.format(name=name))
    # If backward is affine, J^T ct + c, JAX transposes J^T and silently drops c. If
    # backward ignores ct, JAX gives zero. Neither result is a derivative.
    for i, got in linearity.nonzero_outputs(jaxpr):
        got = f"{got}, for perturbed array {i} ({short(tangents[i])})"
        raise _refusal(rules, "a gradient that is linear in the cotangents", got)
    try:
        return _transpose(jaxpr, example, list(tangents))
    except jax.errors.UnexpectedTracerError as error:
        said = errors.CLOSED_OVER.format(name=f"{rules.name}.backward")
        raise errors.ClosedOverError(said) from error
    except Exception as error:  # JAX raises errors of many kinds
        # Without generate_jvp_rule, it is for a second derivative, which is refused.
        if rules.once and not rules.derive_jvp:
            raise refused_once(rules.name) from error
        expected = "operations, linear in the cotangents, that JAX can transpose"
        said, cause = _words(error)
        raise _refusal(rules, expected, said) from cause


def _traced(rules: Rules, of_cts: Callable[..., list[Any]], example: list[Any]) -> Any:
    """Trace backward, which may need the values of residuals but not of cotangents.

    If it needs values, JAX computes at once all that depends on residuals alone.
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
    """Apply the transpose of a jaxpr; there are two ways to find it.

    If both fail, this raises JAX's error of the first.
    """
    # Both start from the jaxpr, so the Python of backward runs once.
    by_jax = functools.partial(compat.transpose, jaxpr, example)
    try:
        if not compat.open_jaxpr(jaxpr)[0].effects:
            return by_jax(tangents)
        # Trace first: if that fails, no effect has happened yet.
        return compat.evaluate(jax.make_jaxpr(by_jax)(tangents), tangents)
    except Exception:
        found = _by_derivative(jaxpr, example, tangents)
        if found is not None:
            return found
        raise


def _by_derivative(
    jaxpr: Any, example: list[Any], tangents: list[Any]
) -> list[Any] | None:
    """Apply a transpose made from the reverse derivative; None without a proof.

    A sort, or a scatter that sets, has a reverse derivative in JAX but no transpose.
    """

    # If B is linear, the derivative of B at any ct is B itself, and the vjp of B at ct
    # is B^T. Conversely, if the vjp is the same at every ct, B is affine. B(0) = 0 has
    # been proved before, so B is linear.
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


# Operations whose authors chose their derivatives, or which select by an operand.
_CHOSEN = (
    *("select_and_scatter_add", "select_and_gather_add"),
    *("gate", "attach", "linear"),
    *("custom_jvp_call", "custom_vjp_call", "custom_lin", "remat_opt"),
    *("call_hi_primitive", "call_hi_primitive_linearized"),
)


def _proves_affine(jaxpr: Any, counts: Sequence[bool] | None = None) -> bool:
    """Return whether a constant derivative would prove that the function is affine.

    It would not if an operation is piecewise constant (sign has derivative 0), or has a
    derivative that its author chose (custom_jvp, and ours). JAX must be able to
    transpose every operation that the inputs reach. Scatters that set, and sorts, are
    exceptions: JAX differentiates them.

    Args:
        jaxpr: The jaxpr of the function.
        counts: A mask of the inputs to follow. None means all.
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
        if not all(_proves_affine(body, mask) for body, mask in _bodies(eqn, reaches)):
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
    # In a later step of a loop, the inputs may reach any carried value.
    return [(body, None if eqn.primitive.name == "scan" else reaches)]


def _words(error: Exception) -> tuple[str, Exception | None]:
    """Name the operation without transpose; return JAX's error if it helps a user."""
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

    If the user never asked for a derived jvp, the message names the transformation that
    needs it, and one that gives the same second derivative without it.
    """
    name = rules.name
    if rules.derive_jvp:
        use, instead = "to get a jvp (generate_jvp_rule)", ""
    else:
        use = (
            "to get the tangents of the outputs, which forward mode over reverse mode "
            "needs (jax.hessian, jax.jvp of jax.grad)"
        )
        instead = (
            " Or replace jax.hessian(f) by jax.jacrev(jax.grad(f)), which needs no "
            "transpose."
        )
    return errors.RuleValueError(
        f"`{name}.backward` {errors.NOT_TRANSPOSED} {use}: expected {expected}, got "
        f"{got}. Define jvp: `jvp(ctx, *tangents)` of `{name}`, or defjvp, gets a "
        "tangent for each argument and returns one for each output. Or write backward "
        "with operations that are linear in its cotangents and that JAX can transpose."
        f"{instead}"
    )
