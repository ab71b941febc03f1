"""What a check calls a Function, its arguments and its rules."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from jaxfn._base import pytree, short
from jaxfn._decorator import custom_function
from jaxfn._function import Function


def name_of(fun: Any) -> str:
    """The name of a function or a class, without the functions around it."""
    found = getattr(fun, "__qualname__", None) or f"{type(fun).__name__}"
    return found.rsplit("<locals>.", maxsplit=1)[-1]


def sources(fun: Any) -> dict[str, str]:
    """Which derivative is the transpose of the other, where the function says so."""
    if isinstance(fun, custom_function):
        own = {k.removeprefix("def") for k in fun._jax_rules.kinds}
        own |= set(fun._torch_rules)
    elif isinstance(fun, type) and issubclass(fun, Function):
        names = ("backward", "vjp", "jvp", "generate_jvp_rule")
        own = {k for k in names if getattr(fun, k) not in (getattr(Function, k), False)}
    else:
        own = {"jvp"} if hasattr(fun, "defjvp") else set()  # JAX's decorator
    backward, jvp = own & {"backward", "vjp"}, "jvp" in own
    if jvp and not backward:
        return {"backward": "jvp", "backward or jvp": "jvp"}
    if backward and not jvp and "generate_jvp_rule" in own:
        return {"jvp": "backward", "backward or jvp": "backward"}
    return {}


def of_arrays(args: tuple[Any, ...]) -> list[str]:
    """What to call each array among the arguments, inside of pytrees too."""
    labels = []
    for path, leaf in tree_util.tree_flatten_with_path(args)[0]:
        if pytree.is_array(leaf):
            position, *rest = path
            inside = tree_util.keystr(tuple(rest))
            labels.append(f"argument {position.idx}{inside} ({short(leaf)})")
    return labels
