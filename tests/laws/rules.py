"""Functions of every engine, style and form, and the same rules in plain JAX.

All have the same rules, with a factor of its own for each, so that one sees in the
numbers which ran:

    forward    2 x x        backward   3 g kept     and of what is saved: kept is 2 x
    vmap      14 x x        jvp        5 t kept

Every run of a rule's Python is counted, and one of the rules acts: see `contexts` and
`effects`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jaxfn
from tests.build import function, keep
from tests.laws.contexts import Runs

Flat = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How the rules are given.

    Attributes:
        form: "combined" or "separate", for a class; "decorator".
        engine: "backward", "jvp", "both", "derived" or, with a batch rule, "none".
        batch: is there a batch rule?
    """

    form: str
    engine: str
    batch: bool = False

    def __str__(self) -> str:
        return f"{self.form} {self.engine}{' vmap' if self.batch else ''}"

    @property
    def has_backward(self) -> bool:
        return self.engine in ("backward", "both", "derived")

    @property
    def has_jvp(self) -> bool:
        return self.engine in ("jvp", "both")

    @property
    def is_native(self) -> bool:
        """Is it one definition of JAX's, under another name?"""
        both = self.has_backward and self.has_jvp
        return self.form == "decorator" and not both

    @property
    def rules(self) -> list[str]:
        """The rules that it has."""
        has = {
            "forward": True,
            "setup_context": self.form == "separate",
            "backward": self.has_backward,
            "jvp": self.has_jvp,
            "vmap": self.batch,
        }
        return [rule for rule, is_there in has.items() if is_there]


KINDS = [
    *[Kind("combined", e) for e in ("backward", "jvp", "both", "derived")],
    *[Kind("separate", e) for e in ("backward", "jvp", "both", "derived")],
    *[Kind("separate", e, batch=True) for e in ("backward", "jvp", "both", "derived")],
    *[Kind("decorator", e) for e in ("backward", "jvp", "both")],
    *[Kind("decorator", e, batch=True) for e in ("none", "backward", "both")],
]


class Rules:
    """The bodies of the rules, which ours and the twin share.

    Args:
        acting: the rule that acts.
        act: what it does to its result, at a point.
        runs: how often the Python of each has run.
    """

    def __init__(self, acting: str, act: Callable[[Any, Any], Any], runs: Runs) -> None:
        self._acting = acting
        self._act = act
        self.runs = runs

    def _do(self, rule: str, value: Any, at: Any) -> Any:
        self.runs[rule] += 1
        return self._act(value, at) if rule == self._acting else value

    def forward(self, x: Any) -> tuple[Any, Any]:
        kept = self._do("forward", 2.0 * x, x)
        return kept * x, kept

    def setup_context(self, x: Any) -> Any:
        return self._do("setup_context", 2.0 * x, x)

    def backward(self, x: Any, kept: Any, g: Any) -> Any:
        return self._do("backward", 3.0 * g * kept, x)

    def jvp(self, x: Any, kept: Any, t: Any) -> Any:
        return self._do("jvp", 5.0 * t * kept, x)

    def vmap(self, x: Any) -> Any:
        return self._do("vmap", 14.0 * x, x) * x


# ---- through jaxfn


def ours(kind: Kind, rules: Rules) -> Flat:
    """The function that has these rules through jaxfn."""
    if kind.form == "decorator":
        return _decorated(kind, rules)
    members: dict[str, Any] = {"forward": lambda x: rules.forward(x)[0]}
    if kind.form == "combined":
        members = {"forward": _saving_forward(rules)}
    else:
        members["setup_context"] = _saving_setup(rules)
    if kind.has_backward:
        members["backward"] = lambda ctx, g: rules.backward(*ctx.saved_tensors, g)
    if kind.has_jvp:
        members["jvp"] = lambda ctx, t: rules.jvp(*ctx.saved_tensors, t)
    if kind.engine == "derived":
        members["generate_jvp_rule"] = True
    if kind.batch:
        members["vmap"] = lambda info, in_dims, x: (rules.vmap(x), 0)
    return function(**members).apply


def _saving_forward(rules: Rules) -> Flat:
    def forward(ctx, x):
        out, kept = rules.forward(x)
        keep(ctx, x, kept)
        return out

    return forward


def _saving_setup(rules: Rules) -> Flat:
    def setup_context(ctx, inputs, output):
        keep(ctx, *inputs, rules.setup_context(*inputs))

    return setup_context


def _decorated(kind: Kind, rules: Rules) -> Flat:
    f = jaxfn.custom_function(lambda x: rules.forward(x)[0])
    if kind.has_backward:
        f.defvjp(*_reverse_rules(rules))
    if kind.has_jvp:
        f.defjvp(_forward_rule(rules))
    if kind.batch:
        f.def_vmap(batch_rule(rules))
    return f


def _reverse_rules(rules: Rules) -> tuple[Flat, Flat]:
    def fwd(x):
        out, kept = rules.forward(x)
        return out, (x, kept)

    return fwd, lambda saved, g: (rules.backward(*saved, g),)


def _forward_rule(rules: Rules) -> Flat:
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        out, kept = rules.forward(x)
        return out, rules.jvp(x, kept, t)

    return rule


def batch_rule(rules: Rules) -> Flat:
    return lambda size, batched, x: (rules.vmap(x), True)
