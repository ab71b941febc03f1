"""`python -m jaxfn demo`: the examples under the transformations, checked in a table.

Derivatives are compared with central differences of the example's formula, batches with
a loop. Right rules can't show that one was dropped, so `broken` makes one of them
wrong: then the cells that use it must fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._examples import EXAMPLES, Example
from jaxfn._function import Function

# A central difference, (f(x + h) - f(x - h)) / 2h, is off by h^2 f'''(x) / 6, and by
# rounding, 1e-16 / h. A second derivative is a difference of differences, which
# rounding moves by 1e-16 / h^2: with this h both errors are about 1e-8.
STEP = 1e-4
"""The step of central differences, in float64."""

TOLERANCE = 1e-5
"""The largest error that passes; a wrong rule is off by 0.1 and more."""

BROKEN = ("backward", "jvp", "vmap")
"""The rules that can be made wrong: backward twice, jvp three times, vmap 0.5 more."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One check of one Function.

    Attributes:
        function: the name of the class.
        check: what was done.
        error: the largest difference; None where the outcome is no number.
        ok: whether it is as it should be.
        note: what happened, where the outcome is no number.
    """

    function: str
    check: str
    error: float | None
    ok: bool
    note: str = ""


def cells(broken: str | None = None) -> Iterator[Cell]:
    """Run all checks of all examples, in float64 on the default device.

    Args:
        broken: the rule to make wrong, one of `BROKEN`; None for right rules.
    """
    # In float32 rounding would leave nothing of a difference of differences.
    with jax.enable_x64(True):
        for example in EXAMPLES:
            if broken is not None:
                example = break_rule(example, broken)
            for check, run in CHECKS.items():
                yield from _cell(example, check, run)


def break_rule(example: Example, rule: str) -> Example:
    """Make one rule of the example wrong; leave it as it is if it has no such rule."""
    function = example.function
    if rule == "backward" and function.vjp is not Function.vjp:
        rule = "vjp"
    right = getattr(function, rule)
    if right is getattr(Function, rule):
        return example
    # Other factors for the two: which of them runs can be seen in the error.
    scale = 3 if rule == "jvp" else 2

    def wrong(*args: Any) -> Any:
        result = right(*args)
        if rule == "vmap":
            out, dims = result
            return jax.tree.map(lambda x: x + 0.5, out), dims
        return jax.tree.map(lambda x: scale * x, result)

    # The mark of once_differentiable stays right: it is an attribute of the function.
    wrong.__dict__.update(right.__dict__)
    members = {rule: staticmethod(wrong)}
    return dataclasses.replace(
        example, function=type(function.__name__, (function,), members)
    )


def _cell(
    example: Example, check: str, run: Callable[[Example], float | None]
) -> Iterator[Cell]:
    """Run one check of one example; there is no cell where it has nothing to check."""
    name = example.function.__name__
    try:
        error = run(example)
    except Exception as e:  # noqa: BLE001  (whatever it is, it is this cell's outcome)
        refused = check == "second derivative" and example.once
        text = str(e).partition(".")[0].partition("\n")[0]
        ok = refused and "@once_differentiable" in text
        note = "refused: once_differentiable" if ok else f"{type(e).__name__}: {text}"
        yield Cell(name, check, None, ok, note)
        return
    if error is None:
        return
    if check == "second derivative" and example.once:
        yield Cell(name, check, error, False, "must refuse: once_differentiable")
        return
    yield Cell(name, check, error, bool(error <= TOLERANCE))


# ---- what an example computes


def _value(example: Example, f: Callable[..., Any]) -> Callable[..., Any]:
    """Make of `f` a function of arrays alone, which stacks the outputs in use."""

    def value(*arrays: Any) -> Any:
        out = f(*arrays, *example.static)
        outs = out if isinstance(out, tuple) else (out,)
        return jnp.stack(outs[: example.used])

    return value


def _function(example: Example) -> Callable[..., Any]:
    return _value(example, example.function.apply)


def _loss(f: Callable[..., Any]) -> Callable[..., Any]:
    """Make of `f` a loss that depends on every output, each with another weight.

    With equal weights, outputs that a wrong rule swaps would have the same gradients.
    """

    def loss(*arrays: Any) -> Any:
        out = f(*arrays)
        weights = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
        return jnp.sum(weights * out)

    return loss


def _gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(*arrays: Any) -> Any:
        return jax.grad(_loss(f), argnums=tuple(range(len(arrays))))(*arrays)

    return gradient


def _differences(f: Callable[..., Any], arrays: tuple[Any, ...], along: Any) -> Any:
    """Take the derivative of f along a direction, by central differences."""
    high = f(*[x + STEP * d for x, d in zip(arrays, along, strict=True)])
    low = f(*[x - STEP * d for x, d in zip(arrays, along, strict=True)])
    return jax.tree.map(lambda a, b: (a - b) / (2 * STEP), high, low)


def _numeric_gradient(
    f: Callable[..., Any], arrays: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Take the gradient of the loss of f, one coordinate after the other."""
    loss, grads = _loss(f), []
    for i, x in enumerate(arrays):
        basis = jnp.eye(x.size).reshape(x.size, *x.shape)
        along = [
            [e if i == j else jnp.zeros_like(a) for j, a in enumerate(arrays)]
            for e in basis
        ]
        column = jnp.stack([_differences(loss, arrays, d) for d in along])
        grads.append(column.reshape(x.shape))
    return tuple(grads)


def _directions(arrays: tuple[Any, ...]) -> list[Any]:
    """Make a direction for each array, with another number for each element."""
    return [jnp.sin(1.0 + i + jnp.arange(x.size)) for i, x in enumerate(arrays)]


def _batch(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make a batch of three examples, none like another."""
    return tuple(jnp.stack([x, 2 * x + 0.1, x[::-1] - 0.3]) for x in arrays)


def _error(got: Any, expected: Any) -> float:
    """Return the largest difference between two pytrees of arrays."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


# ---- the checks


def _forward(e: Example) -> float:
    return _error(_function(e)(*e.arrays()), _value(e, e.formula)(*e.arrays()))


def _jit(e: Example) -> float:
    got = jax.jit(_function(e))(*e.arrays())
    return _error(got, _value(e, e.formula)(*e.arrays()))


def _reverse(e: Example) -> float:
    expected = _numeric_gradient(_value(e, e.formula), e.arrays())
    return _error(_gradient(_function(e))(*e.arrays()), expected)


def _forward_mode(e: Example) -> float | None:
    # A Function with neither refuses forward mode: there is no cell.
    if e.function.jvp is Function.jvp and not e.function.generate_jvp_rule:
        return None
    along = _directions(e.arrays())
    got = jax.jvp(_function(e), e.arrays(), tuple(along))[1]
    return _error(got, _differences(_value(e, e.formula), e.arrays(), along))


def _vmap(e: Example) -> float:
    batch = _batch(e.arrays())
    loop = [_value(e, e.formula)(*row) for row in zip(*batch, strict=True)]
    return _error(jax.vmap(_function(e))(*batch), jnp.stack(loop))


def _rows_of_gradients(e: Example, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    f = _value(e, e.formula)
    rows = [_numeric_gradient(f, row) for row in zip(*batch, strict=True)]
    return tuple(jnp.stack(column) for column in zip(*rows, strict=True))


def _vmap_of_grad(e: Example) -> float:
    batch = _batch(e.arrays())
    got = jax.vmap(_gradient(_function(e)))(*batch)
    return _error(got, _rows_of_gradients(e, batch))


def _grad_of_vmap(e: Example) -> float:
    batch = _batch(e.arrays())

    def total(*arrays: Any) -> Any:
        return jnp.sum(jax.vmap(_loss(_function(e)))(*arrays))

    got = jax.grad(total, argnums=tuple(range(len(batch))))(*batch)
    return _error(got, _rows_of_gradients(e, batch))


def _second(e: Example) -> float:
    """Check the gradient of the slope of F(x)^2 along a direction.

    F is squared, so that its cotangent depends on x: so backward is differentiated even
    where it saves nothing.
    """
    along = _directions(e.arrays())
    squared, formula = _squared(_function(e)), _squared(_value(e, e.formula))

    def slope(*arrays: Any) -> Any:
        pairs = zip(_gradient(squared)(*arrays), along, strict=True)
        return sum(jnp.vdot(g, d) for g, d in pairs)

    def numeric(*arrays: Any) -> Any:
        return _differences(_loss(formula), arrays, along)

    arrays = e.arrays()
    got = jax.grad(slope, argnums=tuple(range(len(arrays))))(*arrays)
    return _error(got, _numeric_gradient(numeric, arrays))


def _squared(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: f(*arrays) ** 2


CHECKS: dict[str, Callable[[Example], float | None]] = {
    "forward": _forward,
    "jit": _jit,
    "reverse mode": _reverse,
    "forward mode": _forward_mode,
    "vmap": _vmap,
    "vmap of grad": _vmap_of_grad,
    "grad of vmap": _grad_of_vmap,
    "second derivative": _second,
}


# ---- the table


def table(rows: list[Cell], broken: str | None = None) -> str:
    """Write the cells as an aligned table, with a line that sums them up."""
    device = jax.devices()[0]
    name = f"{device.platform} ({device.device_kind})"
    lines = [("device", "Function", "check", "error", "ok")]
    for cell in rows:
        error = "-" if cell.error is None else f"{cell.error:.1e}"
        verdict = "ok" if cell.ok else "FAIL"
        if broken is not None and not cell.ok:
            verdict += f"  <- {broken} is wrong on purpose"
        elif cell.note:
            verdict += f"  {cell.note}"
        lines.append((name, cell.function, cell.check, error, verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    text = [
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[4]])
        for line in lines
    ]
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join([*text, "", _summary(rows, broken)])


def _summary(rows: list[Cell], broken: str | None) -> str:
    failed = sum(not cell.ok for cell in rows)
    if broken is None:
        return f"{len(rows) - failed} of {len(rows)} cells are right."
    return (
        f"With a wrong {broken}, {failed} of {len(rows)} cells fail: those that use "
        "this rule."
    )
