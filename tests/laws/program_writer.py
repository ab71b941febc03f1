"""Blocks of statements under stacks of transformations, at random, as Python text."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.laws.draws import Choices
from tests.laws.program_functions import (
    SHAPES,
    Shape,
    Want,
    broadcast,
    constant,
    indent,
)
from tests.laws.program_functions import call as call_of
from tests.laws.program_maker import Pool
from tests.laws.stacks import TRANSFORMATIONS

# Those that take a derivative, in the order in which it meets what is inside. A root
# takes it of what is solved, and a Function in its own rules: no reverse mode there is
# certain to be the first.
ORDERS = {"hessian": ("reverse", "forward"), "root": ("forward",)} | {
    "linear solve": ("forward",),
    "in a Function": (),
}
RULES_INSIDE = frozenset(
    ["root", "linear solve", "in a Function", "in a custom_vjp", "in a custom_jvp"]
)
BATCHED = frozenset(n for n in TRANSFORMATIONS if "vmap" in n) | {
    "map",
    "associative scan",
}
NAMES = [n for n, t in TRANSFORMATIONS.items() if not t.linear]
DEPTH, ORDER = 4, 2
STATEMENTS, BLOCKS = 5, 4


def kinds(name: str) -> tuple[str, ...]:
    """The derivatives that a transformation takes, the first one first."""
    return ORDERS.get(name, tuple(sorted(TRANSFORMATIONS[name].kinds)))


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a block stands.

    Attributes:
        kinds: of the derivatives around it, the innermost first.
        settings: see `Want.settings`.
        rules_around: does a transformation with rules of its own stand around?
        batched: is anything around batched?
        branch: is a branch around?
        scope: number of the `with` around, of which there may be none.
        depth: how many blocks are around.
    """

    kinds: tuple[str, ...] = ()
    settings: str = "rules"
    rules_around: bool = False
    batched: bool = False
    branch: bool = False
    scope: int = 0
    depth: int = 0

    def under(self, name: str) -> Site:
        """Directly inside of this transformation."""
        return dataclasses.replace(
            self,
            kinds=kinds(name) + self.kinds,
            rules_around=self.rules_around or name in RULES_INSIDE,
            batched=self.batched or name in BATCHED,
            branch=self.branch or name in ("cond", "switch"),
        )

    def allows(self, name: str) -> bool:
        """Does JAX take this transformation here, and do the settings stay right?"""
        if TRANSFORMATIONS[name].refuses & {*self.kinds}:
            return False
        if self.settings == "forward" and name in RULES_INSIDE:
            return False
        return len(kinds(name) + self.kinds) <= ORDER

    def want(self, shapes: tuple[Shape, ...]) -> Want:
        """What a Function must be to be called here."""
        first = self.kinds[:1] in ((), ("reverse",)) and not self.rules_around
        return Want(
            shapes,
            reverse=first,
            forward="forward" in self.kinds,
            settings=self.settings,
            branch=self.branch,
            scope=self.scope,
        )


# ---- making one


@dataclasses.dataclass
class Variable:
    """A variable of a block; what no other statement used is returned."""

    name: str
    shape: Shape
    used: bool = False


class Writer:
    """Writes one program."""

    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.pool = Pool(choices)
        self.count = self.statements = self.blocks = 0

    def program(self) -> tuple[str, list[np.ndarray]]:
        """Its text, and its arguments."""
        c = self.c
        shapes = [c.one(SHAPES) for _ in range(1 + c.below(2))]
        compiled = c.chance(50)
        names = [f"a{i}" for i in range(len(shapes))]
        lines = self.transformed(Site(), "f", names, shapes, DEPTH, None)
        args = [
            np.array([(c.below(41) - 20) / 20 + 0.03 for _ in range(int(np.prod(s)))])
            for s in shapes
        ]
        text = [f"def program({', '.join(names)}):", *indent(lines)]
        if compiled:
            text += ["", "", "program = jax.jit(program)"]
        args = [x.reshape(s) for x, s in zip(args, shapes, strict=True)]
        return "\n".join([*text, ""]), args

    def fresh(self, letter: str) -> str:
        """A new name."""
        self.count += 1
        return f"{letter}{self.count}"

    def transformed(
        self,
        site: Site,
        name: str,
        args: list[str],
        shapes: list[Shape],
        depth: int,
        result: str | None,
    ) -> list[str]:
        """Lines that put a block under a stack, and return or assign what it gives."""
        outer, inner, value = self.stack(site, depth)
        inside = site
        for t in outer:
            inside = inside.under(t)
        if value is not None:
            whole = inside.kinds == () and not inside.batched
            settings = site.settings if whole else "forward"
            self.count += 1
            inside = dataclasses.replace(inside, settings=settings, scope=self.count)
        for t in inner:
            inside = inside.under(t)
        lines = self.block(inside, name, shapes, None)
        call = name
        for t in reversed(inner):
            call = f"transform({t!r}, {call})"
        if value is not None:
            own = self.fresh("f")
            lines += [f"def {own}({', '.join(args)}):", f"    with scale({value}):"]
            lines += [f"        return {call}({', '.join(args)})"]
            call = own
        for t in reversed(outer):
            call = f"transform({t!r}, {call})"
        call = f"{call}({', '.join(args)})"
        return [*lines, f"return {call}" if result is None else f"{result} = {call}"]

    def stack(self, site: Site, depth: int) -> tuple[list[str], list[str], Any]:
        """Names outside and inside of a `with`, and its value (None: there is none)."""
        c, value = self.c, None
        names: list[list[str]] = [[], []]
        part = 0
        before = c.below(2) if c.chance(70) else depth
        for i in range(c.below(depth + 1)):
            part = int(i >= before)
            allowed = [n for n in NAMES if site.allows(n)]
            # More derivatives that run the rules of forward mode in a `with`.
            pushes = [n for n in allowed if kinds(n) == ("forward",)]
            wanted = pushes if part and pushes and c.chance(40) else allowed
            names[part].append(c.one(wanted))
            site = site.under(names[part][-1])
        if not part or site.rules_around:
            return names[0] + names[1], [], None
        # What is not differentiated in it may be so outside of it, and read others.
        if not any(kinds(n) for n in names[1]) and site.kinds:
            return names[0] + names[1], [], None
        value = c.one([3.0, 0.5, 2.0])
        return names[0], names[1], value

    # ---- blocks

    def block(
        self,
        site: Site,
        name: str,
        shapes: list[Shape],
        shape: Shape | None,
        *,
        together: bool = False,
    ) -> list[str]:
        """A function; with a shape its result is one array of it, else a list.

        Together its arguments are those of a Function, first of all.
        """
        c = self.c
        site = dataclasses.replace(site, depth=site.depth + 1)
        have = [Variable(self.fresh("x"), s) for s in shapes]
        first = f"def {name}({', '.join(v.name for v in have)}):"
        lines = self.call_on(site, have, have[:]) if together else []
        self.blocks += 1
        for _ in range(1 + c.below(3 if site.depth == 1 else 2)):
            kinds_ = ["call", "call", "call", "compute"]
            if self.blocks < BLOCKS and self.can_derive_in_parts(site):
                kinds_ += ["parts", "parts"]
            if self.blocks < BLOCKS:
                kinds_ += ["loop", "branch", "nested", "nested"]
            if self.statements >= STATEMENTS:
                kinds_ = ["call"]
            self.statements += 1
            lines += getattr(self, c.one(kinds_))(site, have)
        unused = [v for v in have if not v.used] or have[-1:]
        if shape is None:
            out = f"[{', '.join(v.name for v in unused)}]"
        else:
            total = " + ".join(_fitted(v, shape) for v in unused)
            out = f"jnp.broadcast_to(jnp.tanh({total}), {shape})"
        return [first, *indent([*lines, f"return {out}"])]

    def pick(self, have: list[Variable]) -> Variable:
        """A variable, newer ones first."""
        v = have[-1 - min(self.c.below(3), len(have) - 1)]
        v.used = True
        return v

    def new(self, have: list[Variable], shape: Shape) -> str:
        have.append(Variable(self.fresh("v"), shape))
        return have[-1].name

    def call(self, site: Site, have: list[Variable]) -> list[str]:
        """Of a Function, on variables and constants."""
        v, more = self.pick(have), self.c.below(4)
        args = [v]
        if more in (1, 3):
            args.append(self.pick(have))
        if more == 2:
            shape = self.c.one([(), v.shape])
            args.append(Variable(constant(self.c, shape), shape))
        return self.call_on(site, have, args)

    def call_on(
        self, site: Site, have: list[Variable], args: list[Variable]
    ) -> list[str]:
        """Of a Function, on these."""
        for v in args:
            v.used = True
        made = self.pool.get(site.want(tuple(v.shape for v in args)))
        assert made is not None
        text = call_of(made, [v.name for v in args], self.c)
        return [f"{', '.join(self.new(have, s) for s in made.outs)} = {text}"]

    def compute(self, site: Site, have: list[Variable]) -> list[str]:
        """Plain JAX."""
        a, b = self.pick(have), self.pick(have)
        text = self.c.one(["{a} * jnp.sin({b})", "jnp.tanh({a}) + {b}"])
        name = self.new(have, broadcast(a.shape, b.shape))
        return [f"{name} = {text.format(a=a.name, b=b.name)}"]

    def nested(self, site: Site, have: list[Variable]) -> list[str]:
        """A block of its own under a stack."""
        args = [self.pick(have)]
        other = self.pick(have)
        if other is not args[0] and self.c.chance(60):
            args.append(other)
        names, shapes = [v.name for v in args], [v.shape for v in args]
        found = self.fresh("r")
        lines = self.transformed(site, self.fresh("f"), names, shapes, 2, found)
        name = self.new(have, shapes[0])
        return [*lines, f"{name} = {names[0]} * jnp.tanh(loss({found}))"]

    def can_derive_in_parts(self, site: Site) -> bool:
        """Is there another derivative to take, and may settings be read outside?"""
        return len(site.kinds) < ORDER and site.settings == "rules"

    def parts(self, site: Site, have: list[Variable]) -> list[str]:
        """The derivatives of one compiled block, by one argument and by the other."""
        site = dataclasses.replace(
            site,
            kinds=("reverse", *site.kinds),
            # What one derivative leaves out, the next one around meets first.
            rules_around=site.rules_around or site.kinds[:1] == ("forward",),
        )
        a, b, f = self.pick(have), self.pick(have), self.fresh("f")
        lines = self.block(site, f, [a.shape, b.shape], a.shape, together=True)
        p, q, name = self.fresh("p"), self.fresh("q"), self.new(have, a.shape)
        return [
            *lines,
            f"{f} = jax.jit({f})",
            f"{p} = jax.vjp(lambda x: loss({f}(x, {b.name})), {a.name})[1]",
            f"{q} = jax.vjp(lambda x: loss({f}({a.name}, x)), {b.name})[1]",
            f"{name} = {p}(jnp.ones(()))[0] + jnp.sum({q}(jnp.ones(()))[0])",
        ]

    def branch(self, site: Site, have: list[Variable]) -> list[str]:
        """One of two or three blocks, chosen by a value."""
        v, site = self.pick(have), dataclasses.replace(site, branch=True)
        names = [self.fresh("f") for _ in range(2 + self.c.below(2))]
        lines = [
            line for n in names for line in self.block(site, n, [v.shape], v.shape)
        ]
        name = self.new(have, v.shape)
        if len(names) == 2:
            text = f"lax.cond(jnp.sum({v.name}) > 0, {', '.join(names)}, {v.name})"
        else:
            index = f"jnp.where(jnp.sum({v.name}) > 0.5, 2, 1)"
            text = f"lax.switch({index}, [{', '.join(names)}], {v.name})"
        return [*lines, f"{name} = {text}"]

    def loop(self, site: Site, have: list[Variable]) -> list[str]:
        """A block on its own result, twice."""
        v, f = self.pick(have), self.fresh("f")
        lines = self.block(site, f, [v.shape], v.shape)
        name = self.new(have, v.shape)
        scan = (
            "lax.scan(lambda c, s: ({f}(s * c), None), {v}, jnp.array([0.5, 2.0]))[0]"
        )
        fori = "lax.fori_loop(0, 2, lambda _, c: {f}(c), {v})"
        turn = "lambda c: (c[0] + 1, {f}(c[1]))"
        repeat = f"lax.while_loop(lambda c: c[0] < 2, {turn}, (0, {{v}}))[1]"
        texts = [scan, fori] if "reverse" in site.kinds else [scan, fori, repeat]
        return [*lines, f"{name} = {self.c.one(texts).format(f=f, v=v.name)}"]


def _fitted(v: Variable, shape: Shape) -> str:
    return v.name if len(v.shape) <= len(shape) else f"jnp.sum({v.name})"
