"""Random Functions: what is drawn of them."""

from __future__ import annotations

from tests.laws.draws import Choices
from tests.laws.program_functions import (
    READS,
    Made,
    Node,
    Shape,
    Want,
    broadcast,
    call,
    call_of_variables,
    constant,
)
from tests.laws.program_rules import mathematics, with_jaxfn

STYLES = ("combined", "separate", "torch decorator", "jax decorator")
ENGINES = ("backward", "jvp", "both", "derived")


class Pool:
    """The Functions of a program; a new one is made where none fits, and sometimes.

    Attributes:
        made: the Functions, each after those that it calls.
    """

    def __init__(self, choices: Choices) -> None:
        self.made: list[Made] = []
        self._choices, self._names = choices, 0

    def get(self, want: Want) -> Made | None:
        """One that fits, if there may be one."""
        if want.level > 2:
            return None
        fitting = [m for m in self.made if m.fits(want)]
        if fitting and self._choices.chance(40):
            return self._choices.one(fitting)
        name = f"F{self._names}"
        self._names += 1
        self.made.append(Maker(self._choices, name, want, self).made())
        return self.made[-1]


class Maker:
    """Makes one Function.

    Args:
        choices: what is drawn.
        name: of the Function.
        want: what the place can take.
        pool: where Functions come from that it calls.

    Attributes:
        style: one of STYLES.
        engine: one of ENGINES, or "batch".
        static: texts that its last argument may be; none if it has no such argument.
        closed: texts of the constants that it closes over.
        nodes: its values.
        outs: those that are outputs.
        saved: how a node is saved: as a "tensor" or an "attribute".
        vmap: has it a batch rule?
        asks: for needs_input_grad, and in a jvp for the value.
        in_dict: are attributes saved in a dict?
    """

    def __init__(self, choices: Choices, name: str, want: Want, pool: Pool) -> None:
        self.c, self.name, self.want, self.pool = choices, name, want, pool
        # What a `with` sets must reach the rules of each style and mode. Rules in JAX's
        # style are left to JAX, but for those of both kinds: more of them here.
        self.in_scope = want.scope > 0 and want.settings == "rules"
        more = 3 if self.in_scope and want.forward else 0
        self.style = choices.one(STYLES + ("jax decorator",) * more)
        self.engine = self._draw_engine()
        self.static = self._draw_static()
        # Are settings saved, so that the rules don't read them?
        self.saves_settings = self.engine != "batch" and (
            want.settings == "forward" or choices.chance(40)
        )
        self.closed: list[str] = []
        self.called: list[Made] = []
        self.nodes = [
            Node(f"x{i}", shape, "input") for i, shape in enumerate(want.shapes)
        ]
        for _ in range(1 + choices.below(2 if want.linear else 3)):
            self._draw_operation()
        self.outs = self._draw_outputs()
        self.saved: dict[int, str] = {}
        self._draw_saved()
        can_vmap = self.style != "combined" and not (want.linear or self.saves_settings)
        can_vmap = can_vmap and not (want.branch and self.has_arrays)
        self.vmap = can_vmap and (self.engine == "batch" or choices.chance(30))
        # Does it ask what it can: for needs_input_grad, and in a jvp for the value?
        self.asks, self.in_dict = choices.chance(25), choices.chance(25)

    def made(self) -> Made:
        """What was drawn."""
        settings = "none"
        if any(n.kind == "setting" for n in self.nodes):
            settings = "forward" if self.saves_settings else "rules"
        # What is called inside runs its forward when its own derivative is taken.
        if any(m.settings != "none" for m in self.called):
            settings = "rules"
        return Made(
            name=self.name,
            shapes=self.want.shapes,
            outs=tuple(self.nodes[i].shape for i in self.outs),
            static=self.static,
            modes=self._modes,
            settings=settings,
            linear=self.want.linear,
            # JAX does not transpose a custom_vmap, which is its derivative then.
            transposes=self.engine != "batch"
            and all(m.transposes for m in self.called),
            has_arrays=self.has_arrays,
            scope=self.want.scope if self._keeps_settings(settings) else None,
            branches=not (self.vmap and self.has_arrays)
            and all(m.branches for m in self.called),
            level=1 + max((m.level for m in self.called), default=-1),
            text=with_jaxfn(self),
            plain=mathematics(self),
        )

    # ---- what kind

    @property
    def has_backward(self) -> bool:
        """Is there a rule for reverse mode?"""
        return self.engine in ("backward", "both", "derived")

    @property
    def has_jvp(self) -> bool:
        """Is there a rule for forward mode?"""
        return self.engine in ("jvp", "both")

    def _keeps_settings(self, settings: str) -> bool:
        by_jax = self.style == "jax decorator" and self.vmap and settings != "none"
        return by_jax or any(m.scope is not None for m in self.called)

    @property
    def has_arrays(self) -> bool:
        """Does forward have constants that are arrays, here or in what it calls?"""
        texts = [n.text for n in self.nodes] + self.closed
        return any("np." in t.replace("jnp.s", "") for t in texts) or any(
            m.has_arrays for m in self.called
        )

    @property
    def _modes(self) -> str:
        if self.engine != "backward":
            return "any"
        inner = {m.modes for m in self.called}
        return "reverse first" if inner <= {"any"} else "reverse"

    def _draw_engine(self) -> str:
        engines = list(ENGINES)
        if self.style == "jax decorator":
            refused = self.want.linear or self.want.transposed or self.want.branch
            engines += [] if refused else ["batch"]
        if self.want.linear or not self.want.reverse:
            engines.remove("backward")
        if self.in_scope and self.style == "jax decorator":
            engines += ["both"] * 4
        return self.c.one(engines)

    def _draw_static(self) -> tuple[str, ...]:
        if self.want.linear or not self.c.chance(25):
            return ()
        # JAX's rules take numbers as arrays.
        numbers = self.style != "jax decorator" and self.c.chance(50)
        return ("0.5", "2", "True") if numbers else ("'half'", "'double'")

    # ---- operations

    def _draw_operation(self) -> None:
        kinds = ["constant", "setting", "setting", *["setting"] * 4 * self.in_scope]
        if not self.want.linear:
            kinds += ["sin", "multiply", "multiply", "add", "sum", "call", "linear"]
            kinds += ["static"] if self.static else []
        newest = max(i for i, n in enumerate(self.nodes) if n.kind != "setting")
        a = newest if newest >= len(self.want.shapes) else self._operand()
        getattr(self, f"_{self.c.one(kinds)}")(a)

    def _operand(self) -> int:
        """The newest values first, so that they follow from each other."""
        real = [i for i, n in enumerate(self.nodes) if n.kind != "setting"]
        return real[-1 - min(self.c.below(4), len(real) - 1)]

    def _new(self, kind: str, operands: tuple[int, ...], text: str, **more: str) -> int:
        shape: Shape = ()
        for i in operands:
            shape = broadcast(shape, self.nodes[i].shape)
        i = len(self.nodes)
        shape = () if kind == "sum" else shape
        self.nodes.append(Node(f"v{i}", shape, kind, operands, text, **more))
        return i

    def _sin(self, a: int) -> None:
        self._new("sin", (a,), f"jnp.sin({self._(a)})")

    def _multiply(self, a: int) -> None:
        b = self._operand()
        self._new("multiply", (a, b), f"{self._(a)} * {self._(b)}")

    def _add(self, a: int) -> None:
        b = self._operand()
        self._new("add", (a, b), f"{self._(a)} + {self._(b)}")

    def _sum(self, a: int) -> None:
        if self.nodes[a].shape:
            self._new("sum", (a,), f"jnp.sum({self._(a)})")
        else:
            self._sin(a)

    def _constant(self, a: int) -> None:
        c = self.c
        shape = self.nodes[a].shape if c.chance(50) else ()
        text = c.one(["1.5", "2", ""]) if not shape else ""
        text = text or constant(c, shape)
        if c.chance(30):
            self.closed.append(text)
            text = f"{self.name}_W{len(self.closed) - 1}"
        self._new("constant", (a,), f"{text} * {self._(a)}", detail=text)

    def _static(self, a: int) -> None:
        text = "FACTORS[k]" if "'" in self.static[0] else "k"
        self._new("constant", (a,), f"{text} * {self._(a)}", detail=text)

    def _setting(self, a: int) -> None:
        """A factor that the user's `with` sets."""
        allowed = READS.index("forward" if self.saves_settings else "rules")
        forbidden = self.saves_settings and not self._can_save_settings
        if forbidden or READS.index(self.want.settings) < allowed:
            self._constant(a)
            return
        as_array = self.saves_settings and self.c.chance(50)
        text = "jnp.asarray(SCALE.get())" if as_array else "SCALE.get()"
        i = len(self.nodes)
        detail = "array" if as_array else ""
        self.nodes.append(Node(f"s{i}", (), "setting", (), text, detail))
        self._new("setting_times", (i, a), f"s{i} * {self._(a)}")

    @property
    def _can_save_settings(self) -> bool:
        """Only a rule that runs with forward can; setup_context may run later."""
        by_jax = self.style == "jax decorator" and self.engine == "backward"
        return self.style == "combined" or by_jax

    def _call(self, a: int) -> None:
        """Of a Function of the pool that fits, on one or two values."""
        found = self._callee(a, linear=False)
        if found is None:
            self._sin(a)
            return
        made, operands = found
        text = call(made, [self._(i) for i in operands], self.c)
        which = self.c.below(len(made.outs))
        pick = f"[{which}]" if len(made.outs) > 1 else ""
        i = len(self.nodes)
        inside = call_of_variables(text, len(operands)) + pick
        node = Node(f"v{i}", made.outs[which], "call", operands, text + pick, inside)
        self.nodes.append(node)
        self.called.append(made)

    def _linear(self, a: int) -> None:
        """A call that the rules apply to cotangents and tangents too."""
        found = self._callee(a, linear=True)
        if found is None:
            self._constant(a)
            return
        made, operands = found
        self._new("linear", operands, f"{made.name}({self._(a)})", detail=made.name)
        self.called.append(made)

    def _callee(self, a: int, *, linear: bool) -> tuple[Made, tuple[int, ...]] | None:
        operands = (a,) if linear or self.c.chance(50) else (a, self._operand())
        # Rules take its derivative: reverse mode in backward, forward mode in jvp.
        only_reverse = self.engine == "backward" and not linear
        want = Want(
            shapes=tuple(self.nodes[i].shape for i in operands),
            reverse=only_reverse and not self.want.forward,
            forward=self.want.forward,
            settings="rules" if self.want.settings == "rules" else "none",
            linear=linear,
            transposed=self.want.transposed or self.engine == "derived",
            branch=self.want.branch,
            scope=self.want.scope,
            level=self.want.level + 1,
        )
        made = self.pool.get(want)
        return None if made is None else (made, operands)

    def _(self, i: int) -> str:
        return self.nodes[i].name

    # ---- outputs, and what is saved

    def _draw_outputs(self) -> list[int]:
        last = len(self.nodes) - 1
        outs = [last]
        if not self.want.linear and self.c.chance(25):
            others = [i for i, n in enumerate(self.nodes[:-1]) if n.kind != "setting"]
            outs.append(self.c.one(others))
        return outs

    @property
    def needed(self) -> list[int]:
        """The nodes whose values the rules use."""
        use = {"sin": 1, "multiply": 2, "call": 2, "setting_times": 1}
        return [i for n in self.nodes for i in n.operands[: use.get(n.kind, 0)]]

    def _draw_saved(self) -> None:
        for i in self.needed:
            self._save(i)
        for i, node in enumerate(self.nodes):
            if node.kind != "setting" and self._can_save(i) and self.c.chance(10):
                self.saved.setdefault(i, "tensor")

    def _save(self, i: int) -> None:
        """Save this value, or what it can be computed from."""
        node = self.nodes[i]
        if i in self.saved or (node.kind == "setting" and not self.saves_settings):
            return
        if node.kind == "setting":
            self.saved[i] = "tensor" if node.detail else "attribute"
        elif node.kind == "input" or (self._can_save(i) and self.c.chance(75)):
            self.saved[i] = self.c.one(["tensor", "tensor", "attribute"])
        else:
            for operand in node.operands:
                self._save(operand)

    def _can_save(self, i: int) -> bool:
        if self.style in ("separate", "torch decorator"):
            return self.nodes[i].kind == "input" or i in self.outs
        return True
