"""Looking for arrays inside objects."""

import pytest

from jaxfn._base import search


class Slotted:
    """What a dataclass with `weakref_slot=True` is in early releases of Python 3.11."""

    __slots__ = ("held",)


def no_weakref(_):
    raise TypeError("descriptor '__weakref__' doesn't apply")


Slotted.__slots__ = ("held", "__weakref__")
Slotted.__weakref__ = property(no_weakref)


def test_weak_references_are_not_asked_for():
    x = Slotted()
    x.held = [1, "wanted"]
    with pytest.raises(TypeError, match="doesn't apply"):
        x.__weakref__  # noqa: B018
    assert search.find(x, lambda part: part == "wanted") == "wanted"
