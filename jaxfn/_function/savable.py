"""What a context is asked for and given: what may be saved, and needs_input_grad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from jaxfn._base import pytree


def can_be_saved(x: Any) -> bool:
    """Is `x` an array, None, or a pytree that holds arrays?"""
    if x is None or pytree.is_array(x):
        return True
    # An empty container holds no arrays and nothing else: there is nothing to lose.
    arrays, spec = pytree.split(x)
    return bool(arrays) or not spec.leaves


def advice(x: Any) -> str:
    """Say what to do with something that can't be saved."""
    if isinstance(x, (int, float, complex)):
        return (
            "A Python number that apply is given is static: it has no gradient. Pass "
            "jnp.asarray(x) to apply if it needs one; else keep it in an attribute: "
            "ctx.<name> = ..."
        )
    return "Save it as an attribute: ctx.<name> = ..."


class Needs(tuple[bool, ...]):
    """What `needs_input_grad` gives: a tuple that says what its indices are."""

    _name: str

    def __new__(cls, needs: Sequence[bool], name: str) -> Self:
        """Make it of the flags, for the Function of this name."""
        made = super().__new__(cls, needs)
        made._name = name
        return made

    def __getitem__(self, index: Any) -> Any:
        """Return an entry; an index out of range is told how many there are."""
        try:
            return super().__getitem__(index)
        except IndexError:
            n = len(self)
            raise IndexError(
                f"tuple index out of range: a rule of `{self._name}` read "
                f"ctx.needs_input_grad[{index}]: expected an index below {n}, for the "
                f"{n} argument{'' if n == 1 else 's'} of this call (ctx is none)."
            ) from None

    def __reduce__(self) -> Any:
        """Copy and pickle as a plain tuple: `__new__` takes more than the entries."""
        return tuple, (tuple(self),)
