"""Attributes of ctx of odd kinds: they work, or a message says what doesn't."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.build import function, in_style

X, Y, ONE = jnp.float32(3), jnp.float32(2), jnp.float32(1)


class Incomparable:
    """Its comparison gives an array, and it has no hash."""

    __hash__ = None

    def __eq__(self, other):
        return np.array([True, False])


class Hostile:
    """Whatever Python may ask of it raises."""

    def _refuse(self, *_):
        raise RuntimeError("asked")

    __eq__ = __hash__ = __bool__ = __repr__ = __len__ = __iter__ = _refuse
    __copy__ = __deepcopy__ = _refuse


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object


@dataclasses.dataclass
class Record:
    x: object


class Pair(NamedTuple):
    x: object
    y: int


class Plain:
    pass


HELD = Plain()


def holding_itself(make, put):
    value = make()
    put(value)
    return value


# Each makes an attribute of an array; the second function reads the array out of it.
WITH_ARRAYS = {
    "an array": (lambda x: x, lambda v: v),
    "a list": (lambda x: [1, x, "a"], lambda v: v[1]),
    "keys of two types": (lambda x: {"k": x, 1: 2}, lambda v: v["k"]),
    "in a tuple": (lambda x: {"a": [(x, None)]}, lambda v: v["a"][0][0]),
    "in a frozen dataclass": (lambda x: Frozen([x]), lambda v: v.x[0]),
    "a dataclass in a list": (lambda x: [Record([x])], lambda v: v[0].x[0]),
    "a Partial": (lambda x: jax.tree_util.Partial(jnp.multiply, x), lambda v: v(1)),
    "a pullback": (lambda x: jax.vjp(lambda y: y * x, x)[1], lambda v: v(ONE)[0]),
    "tuples as keys": (lambda x: {(1, "a"): x, (2, 3): 0}, lambda v: v[1, "a"]),
    "NaN as a key": (lambda x: {float("nan"): x}, lambda v: next(iter(v.values()))),
    "an object as a key": (lambda x: {HELD: x}, lambda v: v[HELD]),
    "nested": (lambda x: [({1: x, 2: None},)], lambda v: v[0][0][1]),
    "ordered": (lambda x: collections.OrderedDict(b=x, a=1), lambda v: v["b"]),
    "default": (lambda x: collections.defaultdict(int, a=x), lambda v: v["a"]),
    "a named tuple": (lambda x: Pair(x, 1), lambda v: v.x),
    "a frozen dataclass": (Frozen, lambda v: v.x),
    "a dataclass": (Record, lambda v: v.x),
    "a namespace": (lambda x: types.SimpleNamespace(x=x), lambda v: v.x),
}

STATIC = {
    "None": None,
    "NaN": float("nan"),
    "minus zero": -0.0,
    "a set": {1, "a"},
    "incomparable": Incomparable(),
    "hostile": Hostile(),
    "a list of unhashables": [{}, [], set()],
    "strings of NumPy": np.array(["a", "b"]),
    "objects of NumPy": np.array([1, "a", None], dtype=object),
    "records of NumPy": np.zeros(2, [("a", "f4"), ("b", "i4")]),
    "a weak reference": weakref.ref(HELD),
    "a weak proxy": weakref.proxy(HELD),
    "a function": lambda x: x,
    "a partial": functools.partial(jnp.multiply, 2.0),
    "a module": np,
    "a class": Plain,
    "an exception": ValueError("mine"),
    "a big integer": 10**30,
    "NotImplemented": NotImplemented,
}

CYCLES = {
    "a list of itself": holding_itself(list, lambda v: v.append(v)),
    "a list": holding_itself(lambda: [0], lambda v: v.append(v)),
    "a dict": holding_itself(dict, lambda v: v.update(a=v)),
    "a dataclass": holding_itself(lambda: Record(0), lambda v: setattr(v, "x", v)),
    "a namespace": holding_itself(types.SimpleNamespace, lambda v: setattr(v, "x", v)),
}

HIDDEN = {
    "a function": lambda x: lambda: x,
    "a method": lambda x: x.sum,
    "a partial": lambda x: functools.partial(jnp.multiply, x),
    "a deque": lambda x: collections.deque([x]),
    "a read-only dict": lambda x: types.MappingProxyType({"a": x}),
    "a user's list": lambda x: type("Mine", (list,), {})([x]),
}


def product(put, read, style):
    """x * y, whose backward finds on ctx what `put` left there."""

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        read(ctx)
        return g * y, g * x

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        put(ctx, *inputs)

    forward = in_style(style, lambda x, y: x * y, save)
    return function(backward=backward, **forward).apply


WAYS = {
    "eager": lambda f: jax.grad(f)(X, Y),
    "jit": lambda f: jax.jit(jax.grad(f))(X, Y),
    "vmap": lambda f: jax.vmap(jax.grad(f), (0, None))(jnp.stack([X, X]), Y)[0],
    "second": lambda f: jax.grad(lambda y: jax.grad(f)(X, y))(Y) + 1,
    "jit of second": lambda f: jax.jit(jax.grad(lambda y: jax.grad(f)(X, y)))(Y) + 1,
    "grad of jit": lambda f: jax.grad(jax.jit(f))(X, Y),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(X, Y),
    "scan": lambda f: jax.jit(
        jax.grad(
            lambda x: jax.lax.scan(lambda c, _: (f(c, Y), None), x, None, length=1)[0]
        )
    )(X),
}
styles = pytest.mark.parametrize("style", ["combined", "separate"])
ways = pytest.mark.parametrize("way", WAYS)


@ways
@styles
@pytest.mark.parametrize("kind", WITH_ARRAYS)
def test_arrays_in_odd_containers_are_saved(kind, style, way):
    make, find = WITH_ARRAYS[kind]

    def backward(ctx, g):
        return g * ctx.y, g * find(ctx.a)

    def save(ctx, inputs, output):
        x, ctx.y = inputs
        ctx.a = make(x)

    forward = in_style(style, lambda x, y: x * y, save)
    f = function(backward=backward, **forward).apply
    assert WAYS[way](f) == 2
    assert WAYS[way](lambda x, y: f(y, x)) == 2


@ways
@styles
@pytest.mark.parametrize("kind", STATIC)
def test_odd_static_values_arrive(kind, style, way):
    value, seen = STATIC[kind], []
    f = product(
        lambda ctx, *_: setattr(ctx, "a", value), lambda ctx: seen.append(ctx.a), style
    )
    assert WAYS[way](f) == 2
    kinds = {type(x) for x in seen}
    assert kinds == {type(value)}


@styles
@pytest.mark.parametrize("kind", CYCLES)
def test_a_value_that_holds_itself_is_refused(kind, style):
    f = product(lambda ctx, *_: setattr(ctx, "a", CYCLES[kind]), lambda _: None, style)
    for way in WAYS.values():
        with pytest.raises(TypeError, match="ctx.a is or holds a .* that holds itself"):
            way(f)


@ways
def test_an_iterator_is_no_container(way):
    # JAX warns of one that it finds among the leaves of a pytree.
    f = product(
        lambda ctx, *_: setattr(ctx, "a", iter([1])), lambda _: None, "combined"
    )
    assert WAYS[way](f) == 2
    f = product(lambda ctx, x, y: setattr(ctx, "a", iter([x])), lambda _: 0, "combined")
    # The second derivative is taken by y alone.
    if way not in ("eager", "second", "jit of second"):
        with pytest.raises(TypeError, match="ctx.a holds a traced value inside"):
            WAYS[way](f)


@styles
@pytest.mark.parametrize("kind", HIDDEN)
def test_a_traced_value_in_an_object_is_refused(kind, style):
    f = product(
        lambda ctx, x, y: setattr(ctx, "a", HIDDEN[kind](x)), lambda _: None, style
    )
    assert WAYS["eager"](f) == 2
    for way in ("jit", "vmap", "checkpoint"):
        with pytest.raises(TypeError, match="ctx.a holds a traced value inside"):
            WAYS[way](f)


NEEDS = {
    "None": None,
    "a list": [True],
    "a function": len,
    "NaN": float("nan"),
    "hostile": Hostile(),
}


@ways
@styles
@pytest.mark.parametrize("kind", NEEDS)
def test_needs_input_grad_may_be_anything(kind, style, way):
    value, seen = NEEDS[kind], []

    def put(ctx, *_):
        ctx.needs_input_grad = value
        assert type(ctx.needs_input_grad) is type(value)

    f = product(put, lambda ctx: seen.append(ctx.needs_input_grad), style)
    assert WAYS[way](f) == 2
    assert {type(x) for x in seen} == {type(value)}


@ways
def test_needs_input_grad_may_be_set_in_a_rule(way):
    def read(ctx):
        assert len(ctx.needs_input_grad) == 2
        ctx.needs_input_grad = None
        assert ctx.needs_input_grad is None

    assert WAYS[way](product(lambda ctx, *_: None, read, "combined")) == 2


# What jaxfn keeps in a context has names that nobody else uses.
FREE = ("needs", "needs_read", "saved", "reads", "rule", "check", "where", "clears")
FREE += ("kept", "attributes", "layout", "key", "record", "leaves", "own_needs")
NAMES = ("name", "apply", "vjp", "forward", "save_for_backward", "_x", "_dtype")


@styles
@pytest.mark.parametrize("private", ["", "_"])
@pytest.mark.parametrize("names", [*[(name,) for name in NAMES], FREE], ids=" ".join)
def test_an_attribute_may_have_any_name(names, private, style):
    names, seen = [private + name for name in names], []

    def put(ctx, x, y):
        for i, name in enumerate(names):
            setattr(ctx, name, {"a": x, "i": i})

    def read(ctx):
        found = [getattr(ctx, name) for name in names]
        assert [x["i"] for x in found] == list(range(len(names)))
        seen.extend(jnp.shape(x["a"]) for x in found)

    f = product(put, read, style)
    for way in WAYS.values():
        assert way(f) == 2
    assert set(seen) == {()}


def test_an_error_after_setup_context_is_not_about_its_parameters():
    f = product(lambda ctx, *_: setattr(ctx, "to_save", 3), lambda _: None, "separate")
    with pytest.raises(TypeError, match="must be an iterable") as error:
        jax.grad(f)(X, Y)
    assert "is called with" not in str(error.value)


# JAX can't sort the keys of these, or warns of them: no comparison of what two runs
# saved may flatten them.
UNFLATTENABLE = {
    "keys of two types": (lambda x: {"a": x, 1: 0, None: 2}, lambda v: v["a"]),
    "nested": (lambda x: [({1: x, "b": None},)], lambda v: v[0][0][1]),
    "without arrays": (lambda x: {"a": 1, 1: "a"}, lambda v: X),
    "an iterator": (lambda x: iter([1]), lambda v: X),
}


@ways
@styles
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("kind", UNFLATTENABLE)
def test_what_jax_cannot_flatten(kind, looks, style, way):
    make, find = UNFLATTENABLE[kind]

    def put(ctx, x, y):
        assert not looks or len(ctx.needs_input_grad) == 2
        ctx.a = make(x)

    assert WAYS[way](product(put, lambda ctx: find(ctx.a), style)) == 2
