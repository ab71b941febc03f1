"""Devices: a translation needs none, so code that only names one goes.

JAX places arrays itself, and an array has no device during tracing. If code still
passes one on, for example to a helper, it is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._translate.analysis import Inference
from jaxfn.torch._translate.syntax import code, cst, dotted, find, names_read


def named(infer: Inference, node: Any) -> str | None:
    """Return the name, or the attribute of ctx, that a statement binds to a device."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return None
    names = dotted(node.targets[0].target)
    if names is None or infer.of(node.value).kind != "device":
        return None
    return ".".join(names) if len(names) == 1 or names[0] == "ctx" else None


def without_devices(tree: Any, names: Sequence[str]) -> Any:
    """Return the tree without the assignments to these names, if unread."""
    targets = [target.target for target in find(tree, cst.AssignTarget)]
    attributes = [a for a in find(tree, cst.Attribute) if a not in targets]
    unread = set(names) - names_read(tree) - {code(a) for a in attributes}
    return tree.visit(_Without(unread)) if unread else tree


class _Without(cst.CSTTransformer):
    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self._names = names

    def leave_Assign(self, original_node: Any, updated_node: Any) -> Any:
        target = original_node.targets[0].target
        gone = len(original_node.targets) == 1 and code(target) in self._names
        gone = gone and dotted(original_node.value) == ["None"]
        return cst.RemoveFromParent() if gone else updated_node
