"""Functions with torch-style rules: a decorated function as a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxfn._function import Function


def function_class(
    name: str, fun: Callable[..., Any], rules: Mapping[str, Any]
) -> type[Function]:
    """Make the `Function` whose forward is `fun`, with these rules.

    It has the separate style. Without a rule setup_context it saves nothing.
    """
    whole = {"setup_context": _save_nothing, **rules, "forward": fun}
    # A flag (generate_jvp_rule) is an attribute of the class as it is.
    namespace = {
        key: rule if isinstance(rule, bool) else staticmethod(rule)
        for key, rule in whole.items()
    }
    module = getattr(fun, "__module__", __name__)
    return type(name, (Function,), namespace | {"__module__": module})


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    del ctx, inputs, output
