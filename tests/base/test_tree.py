"""Array leaves and static leaves."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxfn._base import pytree, search
from tests.build import function

X = jnp.float32([1, 2, 3])


@pytest.mark.parametrize(
    ("value", "is_array"),
    [
        (X, True),
        (np.ones(2), True),
        (np.float32(1), True),
        (np.bool_(True), True),
        (np.ones(2, ml_dtypes.bfloat16), True),
        (jax.random.key(0), True),
        (np.array(["a"]), False),
        (np.array([object()]), False),
        (np.datetime64("2020-01-01"), False),
        (np.zeros(2, [("a", "i4")]), False),
        (1, False),
        (1.0, False),
        (None, False),
        ("a", False),
        ([X], False),
    ],
)
def test_is_array(value, is_array):
    assert pytree.is_array(value) is is_array


@pytest.mark.parametrize(
    "value",
    [X, 1, None, (), [X, 1], {"a": (X, None, "b"), "c": [[], X]}, {1: 2, "a": 3}],
)
def test_split_and_join(value):
    arrays, spec = pytree.split(value)
    assert all(x is X for x in arrays)
    assert spec.n_arrays == len(arrays)
    assert spec.join(["array"] * len(arrays)) == _replace(value)


def _replace(value):
    if isinstance(value, (list, tuple)):
        return type(value)(_replace(x) for x in value)
    if isinstance(value, dict):
        return {k: _replace(x) for k, x in value.items()}
    return "array" if value is X else value


def test_join_only_drops_what_is_static():
    arrays, spec = pytree.split({"a": X, "b": 1})
    assert spec.join_only(arrays) == {"a": arrays[0], "b": None}


def test_pair_takes_one_value_for_a_part():
    _, spec = pytree.split({"a": [X, 1], "b": X})
    pairs = pytree.pair({"a": None, "b": 5}, spec)
    assert pairs == [(None, pytree.ARRAY), (None, 1), (5, pytree.ARRAY)]
    with pytest.raises(ValueError, match="a"):
        pytree.pair({"c": 1}, spec)


@pytest.mark.parametrize(
    ("shape", "to", "expected"),
    [
        ((3,), (3,), [1, 2, 3]),
        ((2, 3), (3,), [2, 4, 6]),
        ((2, 3), (1, 3), [[2, 4, 6]]),
        ((2, 3), (2, 1), [[6], [6]]),
        ((2, 3), (1,), [12]),
        ((2, 3), (), 12),
        ((), (1,), None),
        ((3,), (2,), None),
        ((1,), (3,), None),
        ((3,), (1, 3), None),
    ],
)
def test_sum_to_shape(shape, to, expected):
    x = jnp.broadcast_to(X if shape and shape[-1] == 3 else 1.0, shape)
    got = pytree.sum_to_shape(x, to)
    if expected is None:
        assert got is None
    else:
        assert got.shape == to
        np.testing.assert_array_equal(got, expected)


class Holder:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@dataclasses.dataclass
class Record:
    value: object

    def method(self):
        return self.value


HELD = {
    "list": lambda x: [1, [x]],
    "dict value": lambda x: {"a": x},
    "attribute": Holder,
    "slot": Slotted,
    "dataclass": Record,
    "closure": lambda x: lambda: x,
    "partial": lambda x: functools.partial(print, x),
    "keyword of partial": lambda x: functools.partial(print, a=x),
    "default": lambda x: lambda a=x: a,
    "bound method": lambda x: Record(x).method,
    "set of holders": lambda x: {Holder(x)},
    "deep": lambda x: Holder([{"a": Slotted(lambda: x)}]),
}


@pytest.mark.parametrize("kind", HELD)
def test_find_looks_into_everything(kind):
    assert search.hides_array(HELD[kind](X))
    assert not search.hides_array(HELD[kind](1))


def test_find_ends_on_cycles_and_skips_modules():
    a = Holder(None)
    a.value = [a, np, jax]
    assert not search.hides_array(a)


def test_boxes_are_equal_whatever_they_hold():
    assert pytree.Box(1) == pytree.Box(np.ones(2))
    assert hash(pytree.Box(1)) == hash(pytree.Box([]))
    assert pytree.Box(1) != 1


@jax.tree_util.register_pytree_node_class
class Checked:
    """A custom node that checks as JAX advises: arrays, None and plain objects pass."""

    def __init__(self, a):
        if not (a is None or type(a) is object or hasattr(a, "shape")):
            raise ValueError(f"expected an array, got {a!r}")
        self.a = a

    def tree_flatten(self):
        return (self.a,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_nodes_that_check_what_they_hold_carry_gradients_and_tangents():
    f = function(
        forward=lambda ctx, node: Checked(2 * node.a),
        backward=lambda ctx, grad: Checked(3 * grad.a),
        jvp=lambda ctx, tangent: Checked(4 * tangent.a),
    ).apply

    def total(x):
        return f(Checked(x)).a.sum()

    assert jax.grad(total)(X).tolist() == [3, 3, 3]
    assert jax.jvp(total, (X,), (X,))[1] == 4 * X.sum()
    assert jax.jit(jax.vmap(jax.grad(total)))(X).tolist() == [3, 3, 3]
