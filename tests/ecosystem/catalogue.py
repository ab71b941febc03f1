"""Rows of the table, cells, and what came out of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import definitions
from .definitions import DEFINITIONS, FORWARD, REVERSE, Rules

X = jnp.array([0.3, 0.7])
KEY = jax.random.key(0)

Place = Callable[[Callable[..., Any]], Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """A place inside of a library.

    Attributes:
        library: its name.
        place: what of the library is used, in words.
        run: takes the function; returns numbers that tell which rule ran.
        rules: the rule that each definition has for the mode in which it is used.
        bodies: of the rules, if they aren't the ordinary ones.
        batch: do the definitions have a batch rule? Then the place is a batched one.
    """

    library: str
    place: str
    run: Place
    rules: dict[str, Any]
    bodies: Rules | None = None
    batch: bool = False

    def __str__(self) -> str:
        return f"{self.library}, {self.place}"


MIXED = "backward and jvp"
"""What runs where a place uses both rules of a definition."""

ROWS: list[Row] = []


def row(
    library: str,
    place: str,
    *,
    forward: bool = False,
    mixed: bool = False,
    batched: bool = False,
    bodies: Rules | None = None,
) -> Callable[[Place], Place]:
    """Add a row, and if the place is a batched one, another with batch rules."""

    def add(run: Place) -> Place:
        rules = FORWARD if forward or mixed else REVERSE
        if mixed:
            rules = rules | dict.fromkeys(("both", "decorator"), MIXED)
        new = Row(library, place, run, rules, bodies)
        ROWS.append(new)
        if batched:
            place_too = f"{place}, with a batch rule"
            ROWS.append(dataclasses.replace(new, place=place_too, batch=True))
        return run

    return add


def slopes(network: Any, x: Any = X) -> Any:
    """The value of a network, and the gradients for its parameters and its input."""

    def loss(params, x):
        return network.apply(params, x).sum()

    params = network.init(KEY, x)
    return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, x)


@dataclasses.dataclass(frozen=True)
class Cell:
    """What came out of a row with a definition.

    Attributes:
        ran: the rule that ran, if its numbers came out.
        error: the first words of what was raised, or the numbers that nobody expects.
    """

    ran: str | None = None
    error: str = ""


def numbers(run: Place, f: Callable[..., Any]) -> np.ndarray:
    """What a place gives with a function, in one line."""
    leaves = jax.tree.leaves(run(f))
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in leaves])


def expected(row: Row, rule: str) -> np.ndarray:
    """What must come out if `rule` runs, by a function without rules."""
    return numbers(row.run, definitions.expected(rule, batch=row.batch))


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"


def _like(found: np.ndarray, right: np.ndarray) -> bool:
    return found.shape == right.shape and np.allclose(found, right, 2e-4, 1e-5)


def _attempt(row: Row, definition: str, rules: Rules | None) -> np.ndarray | Cell:
    f = definitions.define(definition, rules, batch=row.batch)
    try:
        return numbers(row.run, f)
    except Exception as error:  # noqa: BLE001  (libraries raise what they like)
        return Cell(error=_message(error))


def run(row: Row) -> dict[str, Cell]:
    """Run a row with each definition.

    The numbers of a rule are those that its hand-written definition gives, or where
    that is refused, those of a function without rules that has the same derivative.
    """
    found = {name: _attempt(row, name, row.bodies) for name in DEFINITIONS}
    right = {}
    for rule, by_hand in (("backward", "custom_vjp"), ("jvp", "custom_jvp")):
        there = found[by_hand]
        right[rule] = expected(row, rule) if isinstance(there, Cell) else there
    assert not _like(right["backward"], right["jvp"]), "the numbers don't tell"
    return {name: _judge(row, name, x, right) for name, x in found.items()}


def _judge(row: Row, name: str, found: Any, right: dict[str, np.ndarray]) -> Cell:
    if isinstance(found, Cell):
        return found
    for rule, numbers_of_rule in right.items():
        if _like(found, numbers_of_rule):
            return Cell(ran=rule)
    if row.rules[name] == MIXED:
        # The place uses both rules. With two that say the same, it must be right.
        again = _attempt(row, name, Rules(pull=Rules.push))
        if not isinstance(again, Cell) and _like(again, right["jvp"]):
            return Cell(ran=MIXED)
    return Cell(error=f"other numbers: {found.tolist()}")
