"""All checks, in the order in which they run: the cheap and telling ones first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxfn._check import programs, rules, tangents, transforms
from jaxfn._check.case import Case, Plan
from jaxfn._check.numbers import Outcome
from jaxfn._check.second import Second


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        rule: what is wrong where it fails.
        run: gives the largest difference; raises Skip where it can't run.
        needs: the checks that it builds on: where one fails, it is not run, so that a
            failure names the rule that is wrong.
        about: what it computes in two ways, whose accuracy it allows for: "value",
            "gradient", "tangent".
        plan: what it computes, if that is known before it runs.
    """

    rule: str
    run: Callable[[Case], Outcome]
    needs: tuple[str, ...] = ("value",)
    about: tuple[str, ...] = ()
    plan: Plan | None = None


def _second(rule: str, mode: str, needs: tuple[str, ...]) -> Check:
    this = Second(rule, mode)
    return Check(rule, this, needs, plan=this.plan)


_BACKWARD = ("value", "backward", "backward repeats")
_TRACED = ("value", "value under jit")
_COMPILED = (*_BACKWARD, "value under jit", "backward under jit")
_JVP = ("value", "jvp")
_VALUE, _GRADIENT, _TANGENT = ("value",), ("gradient",), ("tangent",)
CHECKS: dict[str, Check] = {
    "value": Check("forward", rules.value, ()),
    "value under jit": Check("forward", rules.value_jit, about=_VALUE),
    "backward": Check("backward", rules.backward),
    "backward repeats": Check("backward", rules.backward_repeats, _BACKWARD[:2]),
    "backward under jit": Check(
        "backward", rules.backward_jit, (*_BACKWARD, "value under jit"), about=_GRADIENT
    ),
    "backward of zero": Check("backward", rules.backward_zero, _BACKWARD),
    "backward is linear": Check(
        "backward", rules.backward_linear, _BACKWARD, about=_GRADIENT
    ),
    "backward of subsets": Check(
        "backward", rules.backward_subsets, _BACKWARD, about=_GRADIENT
    ),
    "backward, unused outputs": Check(
        "backward", rules.backward_unused, _BACKWARD, about=_GRADIENT
    ),
    "jvp": Check("jvp", tangents.jvp),
    "jvp is linear": Check("jvp", tangents.jvp_linear, _JVP, about=_TANGENT),
    "jvp of subsets": Check("jvp", tangents.jvp_subsets, _JVP, about=_TANGENT),
    "jvp under jit": Check("jvp", tangents.jvp_jit, (*_TRACED, "jvp"), about=_TANGENT),
    "adjoint": Check(
        "backward or jvp",
        tangents.adjoint,
        (*_BACKWARD, "jvp"),
        about=(*_GRADIENT, *_TANGENT),
    ),
    "vmap": Check(
        "vmap", transforms.vmap, _TRACED, about=_VALUE, plan=transforms.batches
    ),
    "vmap under jit": Check(
        "vmap", transforms.vmap_jit, (*_TRACED, "vmap"), about=_VALUE
    ),
    "vmap of backward": Check(
        "backward",
        transforms.vmap_backward,
        (*_COMPILED, "vmap", "vmap under jit"),
        about=_GRADIENT,
        plan=transforms.batches_of_backward,
    ),
    "backward of vmap": Check(
        "backward",
        transforms.backward_vmap,
        (*_COMPILED, "vmap", "vmap under jit", "vmap of backward"),
        about=_GRADIENT,
        plan=transforms.backwards_of_batch,
    ),
    "vmap of jvp": Check(
        "jvp",
        transforms.vmap_jvp,
        (*_JVP, "jvp under jit", "vmap", "vmap under jit"),
        about=_TANGENT,
        plan=transforms.batches_of_jvp,
    ),
    "backward of backward": _second("backward", "reverse", _BACKWARD),
    "jvp of backward": _second(
        "backward", "forward", (*_BACKWARD, "jvp", "adjoint", "backward of backward")
    ),
    "backward of jvp": _second("jvp", "reverse", (*_BACKWARD, "jvp", "adjoint")),
    "jvp of jvp": _second("jvp", "forward", (*_JVP, "backward of jvp")),
    "scan": Check(
        "forward",
        programs.scan,
        _COMPILED,
        about=(*_VALUE, *_GRADIENT),
        plan=programs.scanned,
    ),
    "checkpoint": Check(
        "forward",
        programs.checkpoint,
        _COMPILED,
        about=_GRADIENT,
        plan=programs.checkpointed,
    ),
    "low precision": Check(
        "forward", programs.low_precision, _BACKWARD, plan=programs.lowered
    ),
    "leaks": Check("forward", programs.leaks, _COMPILED),
}
"""By name, in the order in which they run."""


SECOND = {
    "backward of backward",
    "jvp of backward",
    "backward of jvp",
    "jvp of jvp",
}
"""Those of second order."""
