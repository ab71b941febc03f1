"""A jvp derived from backward: backward is ct -> J^T ct; transposed, t -> J t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn import _compat, _linearity
from jaxfn._barrier import refused_once
from jaxfn._errors import NOT_TRANSPOSED, RuleValueError, short
from jaxfn._rules import Arrays, Residuals, Rules, spread


def transposed(
    rules: Rules,
    residuals: Residuals,
    moving: Sequence[int],
    tangents: Arrays,
    avals: Sequence[Any],
) -> list[Any]:
    """Backward is ct -> J^T ct; transposed, t -> J t."""
    assert rules.bwd is not None
    bwd, name = rules.bwd, rules.name

    def of_cts(cts: list[Any]) -> list[Any]:
        in_cts = bwd(residuals, spread(cts, residuals.smooth))
        return [
            _compat.zeros(_compat.tangent_aval(t)) if in_cts[i] is None else in_cts[i]
            for i, t in zip(moving, tangents, strict=True)
        ]

    # The example carries the output's real type: made from a shape and a dtype alone,
    # it is not varying in a shard_map, and the result is too big by the axis size.
    example = [_compat.zeros(aval) for aval in avals]
    for i, depends in _linearity.nonzero_outputs(jax.make_jaxpr(of_cts)(example)):
        _refuse(name, i, tangents[i], depends=depends)
    try:
        transpose = jax.linear_transpose(of_cts, example)
        (result,) = transpose(list(tangents))
    except (RuntimeError, AssertionError, ValueError) as error:
        if rules.once:
            raise refused_once(name) from error
        found = _by_derivative(of_cts, example, list(tangents))
        if found is not None:
            return found
        raise RuleValueError(
            f"`{name}.backward` {NOT_TRANSPOSED}: "
            "expected operations that are linear in the cotangents and that JAX can "
            f"transpose, got: {error or 'a product of two cotangents'}. Define jvp, or "
            "make backward linear in its cotangents."
        ) from error
    return result


def _by_derivative(
    of_cts: Callable[[list[Any]], list[Any]], example: list[Any], tangents: list[Any]
) -> list[Any] | None:
    """The transpose where JAX has none of some operation; None if there is no proof.

    A scatter that sets has none, but a derivative in reverse mode. Where that of
    `of_cts` does not depend on the cotangents, it is the transpose.
    """

    def pull(cts: list[Any], ts: list[Any]) -> list[Any]:
        return jax.vjp(of_cts, cts)[1](ts)[0]

    if not _linearity.is_smooth(jax.make_jaxpr(of_cts)(example)):
        return None
    try:
        jaxpr = jax.make_jaxpr(pull)(example, tangents)
    except Exception:  # noqa: BLE001  (no derivative either, whatever it raised)
        return None
    if any(_linearity.used_inputs(jaxpr)[: len(example)]):
        return None
    return pull(example, tangents)


def _refuse(name: str, index: int, tangent: Any, *, depends: bool) -> None:
    got = (
        "a term that stays when they are zero"
        if depends
        else "a gradient that does not depend on them"
    )
    raise RuleValueError(
        f"`{name}.backward` {NOT_TRANSPOSED}: "
        f"expected a gradient that is linear in the cotangents, got {got}, for "
        f"perturbed array {index} ({short(tangent)}). Define jvp, or make backward "
        "linear in its cotangents."
    )
