"""The rules of a Function class at one call.

jaxfn looks up all rules at every call. So a rule assigned later counts from the next
call on, and earlier traces keep their rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxfn._base import errors


@dataclasses.dataclass(slots=True)
class Definition:
    """The rules and flags that a class defines; a rule is None if it is missing.

    Attributes:
        cls: The class.
        name: Name of the class.
        forward: The static method.
        setup_context: The static method; None in the combined style.
        vmap: The static method; None if JAX batches forward.
        jvp: The static method.
        backward: The static method backward or vjp; None unless exactly one exists.
        boxed: Whether backward gets the gradients in a list.
        has_backward: Whether backward or vjp (or both) is defined.
        once: Whether backward is marked `once_differentiable`.
        derive_jvp: Whether the jvp is derived from backward.
    """

    cls: Any
    name: str
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    backward: Callable[..., Any] | None
    boxed: Any
    has_backward: bool
    once: bool
    derive_jvp: bool

    @classmethod
    def of(cls, function: Any, base: Any) -> Definition:
        """Look up the rules of `function` that are not those of `base`.

        Raises:
            RuntimeError: The rules contradict each other.
        """
        name, own = function.__name__, {}
        for rule in ("setup_context", "vmap", "jvp", "vjp", "backward"):
            found = getattr(function, rule)
            if found is not getattr(base, rule):
                own[rule] = found
        if "vmap" in own and "setup_context" not in own:
            raise errors.RuleError(errors.VMAP_COMBINED.format(name=name))
        jvp, backwards = (
            own.get("jvp"),
            [own[x] for x in ("vjp", "backward") if x in own],
        )
        if function.generate_jvp_rule and (jvp is not None or not backwards):
            got = "no backward" if jvp is None else "an overridden jvp staticmethod"
            raise errors.RuleError(
                f"`{name}` has generate_jvp_rule=True and {got}: expected a backward "
                "to derive the jvp from, and no other jvp. Set "
                "generate_jvp_rule=False or change the rules."
            )
        return cls(
            cls=function,
            name=name,
            forward=function.forward,
            setup_context=own.get("setup_context"),
            vmap=_vmap(function) if "vmap" in own else None,
            jvp=jvp,
            backward=backwards[0] if len(backwards) == 1 else None,
            boxed=function.boxed_grads_call,
            has_backward=bool(backwards),
            once=bool(backwards) and getattr(backwards[0], "_jaxfn_once", False),
            derive_jvp=function.generate_jvp_rule,
        )


def rewrapped(rule: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """Wrap the function of a rule, also above `@staticmethod` or `@classmethod`."""
    if isinstance(rule, classmethod):
        return classmethod(wrap(rule.__func__))
    return wrap(rule.__func__ if isinstance(rule, staticmethod) else rule)


def _vmap(function: Any) -> Callable[..., Any]:
    """Return the vmap staticmethod, or one that raises if it is ambiguous.

    Like torch, jaxfn raises when the Function is batched, not at other calls.
    """
    if not function.generate_vmap_rule:
        return function.vmap

    def ambiguous(*_: Any, **__: Any) -> Any:
        raise errors.RuleError(errors.VMAP_TWICE.format(name=function.__name__))

    return ambiguous
