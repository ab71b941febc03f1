"""The names of torch's graph, which a context refuses."""

from __future__ import annotations

from typing import Any

from jaxfn._base import errors

_READ_ONLY = ("next_functions", "metadata", "requires_grad") + (
    ("_raw_saved_tensors", "_sequence_nr", "_input_metadata")
)
_GRAPH = frozenset((*_READ_ONLY, "register_hook", "register_prehook"))


class NoGraph:
    """A base of contexts that refuses the names of torch's graph, and says why."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _GRAPH:
            raise _no_graph(self, attribute)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {attribute!r}",
            name=attribute,
            obj=self,
        )


def _no_graph(ctx: NoGraph, name: str) -> errors.NoGraphError:
    return errors.NoGraphError(
        f"ctx.{name} of {type(ctx).__name__} belongs to torch's autograd graph: JAX "
        "has no graph of nodes, so there is nothing to read or to assign. For an "
        "attribute of your own take another name."
    )


def _not_writable(name: str) -> property:
    """Make a property that refuses reading and assignment."""

    def refuse(ctx: NoGraph, _: Any) -> None:
        raise _no_graph(ctx, name)

    doc = "Of torch's graph, which JAX does not have: not to be read or assigned."
    # Reading a property without getter raises AttributeError; then Python calls
    # __getattr__, which refuses it.
    return property(None, refuse, None, doc)


for _name in _READ_ONLY:
    setattr(NoGraph, _name, _not_writable(_name))
