"""The arguments of a call, taken apart: which arrays, which names, what is static.

As `pytree.OutSpec` says how the outputs of a call are put together, `Arguments` says it
of its inputs. Both outlive the call: a backward is run with them much later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxfn._base import compat, errors, pytree, search
from jaxfn._base.pytree import ARRAY, OutSpec, Spec

Kwargs = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a forward, without ctx.

    Attributes:
        names: the names of those that take positions.
        defaults: the default values of the last of them.
        keyword_only: the names of those that are keyword-only.
        variadic: whether it takes `*args`.
        function: the name of forward, for messages.
        place: the file and line of forward.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    keyword_only: tuple[str, ...]
    variadic: bool
    function: str
    place: str

    def label(self, position: int) -> str:
        """Name the argument at a position, for messages."""
        if position < len(self.names):
            return f"index {position} (`{self.names[position]}`)"
        return f"index {position}"


@dataclasses.dataclass(slots=True)
class Arguments:
    """The arguments of one call, without their arrays.

    Attributes:
        specs: the spec of each positional argument.
        kwargs: the keyword-only arguments, all static.
        known: the parameters of forward, for names.
    """

    specs: tuple[Spec, ...]
    kwargs: Kwargs
    known: Parameters

    @classmethod
    def split(
        cls, args: Sequence[Any], kwargs: Kwargs, known: Parameters
    ) -> tuple[list[Any], Arguments]:
        """Separate the array leaves of all arguments, in order, from the rest.

        Raises:
            TypeError: a mutable array is among them, traced.
        """
        pairs = [pytree.split(x) for x in args]
        arrays = [x for leaves, _ in pairs for x in leaves]
        static = [x for _, s in pairs if not s.is_array for x in s.leaves]
        # A traced jax.Ref is a tracer and no jax.Array, so it counts as static.
        if any(compat.is_tracer(x) for x in static):
            raise errors.RuleTypeError(
                f"apply got a mutable array (jax.Ref) for {known.function}, where it "
                "is traced: expected arrays, which have derivatives, got a reference. "
                "Pass its value, ref[...], and write the result back outside. If a "
                "rule is to write to it, take jaxfn.custom_function with fwd and bwd, "
                "whose arguments and residuals may be references."
            )
        return arrays, cls(tuple([spec for _, spec in pairs]), kwargs, known)

    def split_output(self, out: Any, *, name: str) -> tuple[list[Any], OutSpec]:
        """Separate the array leaves of what forward returned from the rest.

        Raises:
            TypeError: an object that is no pytree hides an array: its derivative would
                be lost.
        """
        arrays, spec = OutSpec.split(out)
        static = [x for x in spec.whole.leaves if x is not ARRAY]
        # A static argument may come out again as it went in, whatever it holds: the
        # rules have nothing to do with it.
        given = static and {id(x) for arg in self.specs for x in arg.leaves}
        for leaf in static:
            if id(leaf) not in given and search.hides_array(leaf):
                raise errors.RuleTypeError(
                    f"`{name}.forward` returned an array inside an object of type "
                    f"{type(leaf).__name__}, where JAX can't see it: expected arrays, "
                    "or pytrees of arrays. Return the array itself, or register the "
                    "type with jax.tree_util.register_pytree_node."
                )
        return arrays, spec

    def names(self) -> tuple[str, ...]:
        """Name each array, for JAX's errors."""
        names, n = self.known.names, len(self.specs)
        if n <= len(names) and all(spec.is_array for spec in self.specs):
            return names[:n]
        names += tuple([f"args[{i}]" for i in range(len(names), n)])
        return tuple(
            name if spec.is_array else f"{name}[{i}]"
            for name, spec in zip(names, self.specs, strict=False)
            for i in range(spec.n_arrays)
        )

    def groups(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Group values, one for each array, by the arguments that the arrays are in."""
        groups, start = [], 0
        for spec in self.specs:
            stop = start + spec.n_arrays
            groups.append(values[start:stop])
            start = stop
        return groups

    def any(self, values: Sequence[bool]) -> tuple[bool, ...]:
        """Say for each argument whether the value of one of its arrays is True."""
        return tuple([True in group for group in self.groups(values)])

    def join(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Put the arguments together with these arrays."""
        groups = self.groups(arrays)
        return tuple([s.join(g) for s, g in zip(self.specs, groups, strict=True)])

    def join_only(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Put the arguments together with these arrays, and None for what is static."""
        groups = self.groups(arrays)
        return tuple([s.join_only(g) for s, g in zip(self.specs, groups, strict=True)])
