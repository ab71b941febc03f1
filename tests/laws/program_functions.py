"""Random Functions as Python text: with rules for jaxfn, and as plain mathematics.

A Function is a few operations, each on earlier values. Its rules are the derivatives of
these operations, written out one by one. What the rules need of the values is saved (as
a tensor, in an attribute of ctx, among JAX's residuals), or computed again from what is
saved. An operation may be a call of another Function; the rules then take that one's
derivative.
"""

from __future__ import annotations

import dataclasses
import textwrap

from tests.laws.draws import Choices

Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((), (3,), (2, 3))

READS = ("none", "forward", "rules")


@dataclasses.dataclass(frozen=True)
class Node:
    """A value in a Function.

    Attributes:
        name: of the variable.
        shape: of the value; that of a setting is ().
        kind: "input", "setting" or the name of an operation.
        operands: places of nodes.
        text: what it is computed by.
        detail: text of the constant that it is multiplied with, or of a call.
    """

    name: str
    shape: Shape
    kind: str
    operands: tuple[int, ...] = ()
    text: str = ""
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Want:
    """What a place can take.

    Attributes:
        shapes: of the arguments.
        reverse: is the first derivative there, if any, a reverse one?
        forward: is any derivative there a forward one?
        settings: may the rules read settings ("rules"), or only forward ("forward"),
            or nothing ("none")?
        linear: must it be linear, its own transpose, and such that JAX transposes it?
        transposed: does JAX transpose its reverse rule?
        branch: is it in a branch?
        scope: number of the `with` around it.
        level: how many Functions are around this one.
    """

    shapes: tuple[Shape, ...]
    reverse: bool
    forward: bool
    settings: str
    linear: bool = False
    transposed: bool = False
    branch: bool = False
    scope: int = 0
    level: int = 0


@dataclasses.dataclass(frozen=True)
class Made:
    """A Function.

    Attributes:
        name: of it.
        shapes: of its array arguments.
        outs: shapes of its outputs.
        static: texts that its last argument may be; none if it has no such argument.
        modes: "any"; "reverse first", and then any; "reverse", and no other.
        settings: "none"; read by "forward" alone; read by the "rules".
        linear: is it linear, and so on?
        transposes: can JAX transpose its reverse rule?
        has_arrays: does forward have constants that are arrays?
        branches: can it be in a branch? JAX's custom_vmap with a constant array can't,
            under vmap.
        scope: number of the only `with` in which it can be called; None: in all. JAX
            keeps the trace of a custom_vmap, with the settings that it was made in.
        level: how many are nested in it.
        text: with jaxfn.
        plain: without.
    """

    name: str
    shapes: tuple[Shape, ...]
    outs: tuple[Shape, ...]
    static: tuple[str, ...]
    modes: str
    settings: str
    linear: bool
    transposes: bool
    has_arrays: bool
    branches: bool
    scope: int | None
    level: int
    text: str
    plain: str

    def fits(self, want: Want) -> bool:
        """Can it be called there?"""
        modes = {
            "any": True,
            "reverse first": want.reverse,
            "reverse": want.reverse and not want.forward,
        }
        return (
            self.shapes == want.shapes
            and modes[self.modes]
            and self.settings in READS[: READS.index(want.settings) + 1]
            and (self.linear or not want.linear)
            and (self.transposes or not want.transposed)
            and (self.branches or not want.branch)
            and self.scope in (None, want.scope)
            and self.level + want.level <= 2
        )


def call(made: Made, arguments: list[str], choices: Choices) -> str:
    """Text of a call; static arguments are drawn."""
    static = [choices.one(made.static)] if made.static else []
    return f"{made.name}({', '.join(arguments + static)})"


def constant(choices: Choices, shape: Shape) -> str:
    """Text of a constant that is an array of this shape, each kind that users write."""
    if not shape:
        return choices.one(["jnp.asarray(2.0)", "np.float64(0.5)", "np.array(1.5)"])
    row = [0.5, -1.5, 2.0]
    values = row if shape == (3,) else [row, row[::-1]]
    return f"{choices.one(['jnp', 'np'])}.array({values})"


def broadcast(a: Shape, b: Shape) -> Shape:
    """Of the three shapes the longer is what both broadcast to."""
    return max(a, b, key=len)


def call_of_variables(text: str, n: int) -> str:
    """The call with variables a and b in place of its first n arguments."""
    name, _, rest = text.partition("(")
    arguments = rest.removesuffix(")").split(", ")
    return f"{name}({', '.join([*'ab'[:n], *arguments[n:]])})"


def indent(lines: list[str], by: int = 1) -> list[str]:
    """The lines, moved to the right."""
    return textwrap.indent("\n".join(lines), "    " * by).split("\n")
