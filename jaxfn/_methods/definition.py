"""The rules of a Function class at one call.

jaxfn looks up all rules at every call. So a rule assigned later counts from the next
call on, and earlier traces keep their rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxfn._base import errors


class Definition:
    """The rules and flags that a class defines; a rule is None if it is missing.

    Args:
        cls: The class; an attribute too.
        base: `Function`; a rule inherited from it counts as missing.

    Raises:
        RuntimeError: The rules contradict each other.

    Attributes:
        name: Name of the class.
        forward: The static method.
        setup_context: The static method; None in the combined style.
        vmap: The static method; None if JAX batches forward.
        vmap_twice: Whether a vmap contradicts `generate_vmap_rule`. Like torch, jaxfn
            raises when the Function is batched, not at other calls.
        jvp: The static method.
        backward: The static method backward or vjp; None unless exactly one exists.
        boxed: Whether backward gets the gradients in a list.
        has_backward: Whether backward or vjp (or both) is defined.
        once: Whether backward is marked `once_differentiable`.
        derive_jvp: Whether the jvp is derived from backward.
    """

    def __init__(self, cls: Any, base: Any) -> None:
        own = {}
        for rule in ("setup_context", "vmap", "jvp", "vjp", "backward"):
            found = getattr(cls, rule)
            if found is not getattr(base, rule):
                own[rule] = found
        backwards = [own[rule] for rule in ("vjp", "backward") if rule in own]
        self.cls, self.name, self.forward = cls, cls.__name__, cls.forward
        self.setup_context, self.jvp = own.get("setup_context"), own.get("jvp")
        self.vmap, self.vmap_twice = own.get("vmap"), cls.generate_vmap_rule
        self.backward = backwards[0] if len(backwards) == 1 else None
        self.boxed, self.derive_jvp = cls.boxed_grads_call, cls.generate_jvp_rule
        self.has_backward = bool(backwards)
        self.once = bool(backwards) and getattr(backwards[0], "_jaxfn_once", False)
        if "vmap" in own and "setup_context" not in own:
            raise errors.RuleError(errors.VMAP_COMBINED.format(name=self.name))
        if self.derive_jvp and ("jvp" in own or not backwards):
            got = "an overridden jvp staticmethod" if "jvp" in own else "no backward"
            raise errors.RuleError(
                f"`{self.name}` has generate_jvp_rule=True and {got}: expected a "
                "backward to derive the jvp from, and no other jvp. Set "
                "generate_jvp_rule=False or change the rules."
            )


def rewrapped(rule: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """Wrap the function of a rule, also above `@staticmethod` or `@classmethod`."""
    if isinstance(rule, classmethod):
        return classmethod(wrap(rule.__func__))
    return wrap(rule.__func__ if isinstance(rule, staticmethod) else rule)
