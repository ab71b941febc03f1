"""The structure of the arguments of a call. `pytree.OutSpec` describes its outputs."""

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
        names: Names of the positional parameters.
        defaults: Default values of the last positional parameters.
        keyword_only: Names of the keyword-only parameters.
        variadic: Whether forward takes `*args`.
        function: Name of forward, for messages.
        place: File and line of forward.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    keyword_only: tuple[str, ...]
    variadic: bool
    function: str
    place: str

    def label(self, position: int) -> str:
        if position < len(self.names):
            return f"index {position} (`{self.names[position]}`)"
        return f"index {position}"


@dataclasses.dataclass(slots=True)
class Arguments:
    """The arguments of one call, without their arrays.

    Attributes:
        specs: Spec of each positional argument.
        kwargs: Keyword-only arguments, all static.
        known: Parameters of forward.
    """

    specs: tuple[Spec, ...]
    kwargs: Kwargs
    known: Parameters

    @classmethod
    def split(
        cls, args: Sequence[Any], kwargs: Kwargs, known: Parameters
    ) -> tuple[list[Any], Arguments]:
        """Return the array leaves of all arguments, in order, and their structure.

        Raises:
            TypeError: A leaf is a traced mutable array.
        """
        pairs = [pytree.split(x) for x in args]
        arrays = [x for leaves, _ in pairs for x in leaves]
        static = [x for _, s in pairs if not s.is_array for x in s.leaves]
        # A traced jax.Ref is a tracer but no jax.Array, so it counts as static.
        if any(map(compat.is_tracer, static)):
            raise errors.RuleTypeError(
                "apply got a mutable array (jax.Ref) that is traced, for "
                f"{known.function}: expected arrays, which have derivatives, got a "
                "reference. Pass its value, ref[...], and write the result back "
                "outside. If a rule is to write to it, take jaxfn.custom_function with "
                "fwd and bwd, whose arguments and residuals may be references."
            )
        return arrays, cls(tuple([spec for _, spec in pairs]), kwargs, known)

    def split_output(self, out: Any, *, name: str) -> tuple[list[Any], OutSpec]:
        """Return the array leaves of the result of forward, and its structure.

        Raises:
            TypeError: An object that is no pytree holds an array, which would lose its
                derivative.
        """
        arrays, spec = OutSpec.split(out)
        static = [x for x in spec.whole.leaves if x is not ARRAY]
        # Forward may return a static argument, whatever it holds.
        passed = static and {id(x) for arg in self.specs for x in arg.leaves}
        for leaf in static:
            if id(leaf) not in passed and search.hides_array(leaf):
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
        names += tuple([f"args[{i}]" for i in range(len(names), n)])
        pairs = zip(names, self.specs, strict=False)
        nested = [
            [name] if spec.is_array else [f"{name}[{i}]" for i in range(spec.n_arrays)]
            for name, spec in pairs
        ]
        return tuple([name for part in nested for name in part])

    def groups(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Group one value for each array by arguments."""
        groups, start = [], 0
        for spec in self.specs:
            stop = start + spec.n_arrays
            groups.append(values[start:stop])
            start = stop
        return groups

    def any(self, values: Sequence[bool]) -> tuple[bool, ...]:
        """Return for each argument whether any of its arrays has the value True."""
        return tuple([True in group for group in self.groups(values)])

    def join(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments with these arrays."""
        groups = self.groups(arrays)
        return tuple([s.join(g) for s, g in zip(self.specs, groups, strict=True)])

    def join_only(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments with these arrays, and None for static leaves."""
        groups = self.groups(arrays)
        return tuple([s.join_only(g) for s, g in zip(self.specs, groups, strict=True)])
