"""The rules of a Function class as they are at one call.

They are looked up at every call, all of them together: a rule assigned after the class
was made counts from the next call on, and what was traced before keeps its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxfn._base import errors


@dataclasses.dataclass(slots=True)
class Definition:
    """The rules that a class defines, and what it says of them.

    Attributes:
        cls: the class.
        name: its name.
        forward: the static method, bound through the class.
        setup_context: the static method; None for the combined style.
        vmap: the static method; None where JAX batches forward itself.
        jvp: the static method; None where it is not defined.
        backward: the static method, under whichever of its two names; None where there
            is not just one.
        boxed: whether backward gets the gradients in a list.
        has_backward: whether backward or vjp is defined, or both.
        once: whether backward is marked `once_differentiable`.
        derive_jvp: whether the jvp is to be derived from backward.
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
        """Look up what `function` defines beyond `base`, whose rules all raise.

        Raises:
            RuntimeError: the rules contradict each other.
        """

        # A static method that is looked up on a class is the plain function: the same
        # object for a class that only inherits it.
        def own(rule: str) -> bool:
            return getattr(function, rule) is not getattr(base, rule)

        name, separate, has_vmap = function.__name__, own("setup_context"), own("vmap")
        has_jvp, names = own("jvp"), [x for x in ("vjp", "backward") if own(x)]
        if has_vmap and not separate:
            raise errors.RuleError(errors.VMAP_COMBINED.format(name=name))
        if function.generate_jvp_rule and (has_jvp or not names):
            got = "an overridden jvp staticmethod" if has_jvp else "no backward"
            raise errors.RuleError(
                f"`{name}` has generate_jvp_rule=True and {got}: expected a backward "
                "to derive the jvp from, and no other jvp. Set "
                "generate_jvp_rule=False or change the rules."
            )
        backwards = [getattr(function, x) for x in names]
        return cls(
            cls=function,
            name=name,
            forward=function.forward,
            setup_context=function.setup_context if separate else None,
            vmap=_vmap(function) if has_vmap else None,
            jvp=function.jvp if has_jvp else None,
            backward=backwards[0] if len(backwards) == 1 else None,
            boxed=function.boxed_grads_call,
            has_backward=bool(backwards),
            once=getattr(next(iter(backwards), None), "_jaxfn_once", False),
            derive_jvp=function.generate_jvp_rule,
        )


def rewrapped(rule: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """Wrap the function of a rule, whether or not the rule is bound to a class already.

    Decorators stand above or below `@staticmethod` and `@classmethod`, in any order.
    """
    if isinstance(rule, classmethod):
        return classmethod(wrap(rule.__func__))
    return wrap(rule.__func__ if isinstance(rule, staticmethod) else rule)


def _vmap(function: Any) -> Callable[..., Any]:
    """Return the vmap staticmethod, or one that raises where it is ambiguous.

    torch raises when the Function is batched, and not at other calls; so do we.
    """
    if not function.generate_vmap_rule:
        return function.vmap

    def ambiguous(*_: Any, **__: Any) -> Any:
        raise errors.RuleError(errors.VMAP_TWICE.format(name=function.__name__))

    return ambiguous
