"""What a context has in torch and can't have here: torch's graph of nodes."""

from __future__ import annotations

from typing import Any

from jaxfn._base import errors

_READ_ONLY = ("next_functions", "metadata", "requires_grad") + (
    ("_raw_saved_tensors", "_sequence_nr", "_input_metadata")
)
_GRAPH = frozenset((*_READ_ONLY, "register_hook", "register_prehook"))


class NoGraph:
    """A base of contexts that refuses the names of torch's graph, saying why.

    Otherwise a port that reads one would meet an AttributeError without a reason, and
    one that assigns it would set an attribute that nothing reads.
    """

    def __getattr__(self, attribute: str) -> Any:
        """Refuse a name of torch's graph, and any other that was not found."""
        # Python calls it for what was not found. What is no name of the graph gets
        # Python's own words, with the class.
        if attribute in _GRAPH:
            raise _no_graph(self, attribute)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {attribute!r}",
            name=attribute,
            obj=self,
        )


def _no_graph(ctx: NoGraph, name: str) -> errors.NoGraphError:
    """Make the error for a name of torch's graph."""
    return errors.NoGraphError(
        f"ctx.{name} of {type(ctx).__name__} belongs to torch's autograd graph: JAX "
        "has no graph of nodes, so there is nothing to read or to assign. For an "
        "attribute of your own take another name."
    )


def _not_writable(name: str) -> property:
    """Make a property that can be neither read nor assigned."""

    def refuse(ctx: NoGraph, _: Any) -> None:
        raise _no_graph(ctx, name)

    doc = "Of torch's graph, which JAX does not have: not to be read or assigned."
    # A property without a getter raises AttributeError, upon which Python calls
    # __getattr__: reading has its refusal there.
    return property(None, refuse, None, doc)


for _name in _READ_ONLY:
    setattr(NoGraph, _name, _not_writable(_name))
