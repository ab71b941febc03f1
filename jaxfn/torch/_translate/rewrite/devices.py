"""Devices: nothing in a translation needs one, so what only names one goes.

JAX places arrays itself, and while it traces, an array has no device. Where one is
still handed on, to a helper, say, it is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._translate.analysis import Inference
from jaxfn.torch._translate.syntax import code, cst, dotted, find, names_read


def named(infer: Inference, node: Any) -> str | None:
    """The name, or the attribute of ctx, that a statement gives a device to."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return None
    names = dotted(node.targets[0].target)
    if names is None or infer.of(node.value).kind != "device":
        return None
    return ".".join(names) if len(names) == 1 or names[0] == "ctx" else None


def without_devices(tree: Any, names: Sequence[str]) -> Any:
    """The tree without the assignments to these names, if nothing reads them."""
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
