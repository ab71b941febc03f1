"""apply as an object, classes and inheritance."""

import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests.build import function

S = jnp.float32(3)


class Pickled(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, k=2):
        ctx.k = k
        return k * x

    @staticmethod
    def backward(ctx, g):
        return 10 * ctx.k * g


def test_apply_is_one_object_with_a_readable_name():
    assert Pickled.apply is Pickled.apply
    assert Pickled.apply.__name__ == "Pickled"
    assert Pickled.apply.__qualname__ == "Pickled.apply"
    assert Pickled.apply.__module__ == __name__
    assert "Pickled.apply" in repr(Pickled.apply)
    assert "jit_Pickled" in jax.jit(Pickled.apply).lower(S).as_text()
    assert "def apply(" in inspect.getsource(Pickled.apply)
    assert str(inspect.signature(Pickled.apply)) == "(x, k=2)"
    separate = function(forward=lambda x, y: x, setup_context=lambda *a: None)
    assert str(inspect.signature(separate.apply)) == "(x, y)"
    variadic = function(forward=lambda *args: args[1])
    assert str(inspect.signature(variadic.apply)) == "(*args)"


def test_apply_can_be_stored_and_pickled():
    f = pickle.loads(pickle.dumps(Pickled.apply))
    assert f is Pickled.apply
    assert pickle.loads(pickle.dumps(Pickled)) is Pickled
    assert jax.grad(f)(S) == 20


def test_jit_compiles_apply_once():
    traces = []
    f = function(forward=lambda ctx, x: traces.append(1) or 2 * x)
    for _ in range(3):
        jax.jit(f.apply)(S)
    assert len(traces) == 1


def test_static_arguments_of_jit():
    f = jax.jit(Pickled.apply, static_argnames="k")
    assert f(S, 5) == 15
    assert f(S, k=4) == 12
    assert jax.grad(jax.jit(Pickled.apply, static_argnums=1))(S) == 20


def test_every_subclass_has_its_own_apply_and_context():
    child = function("Child", base=Pickled, backward=lambda ctx, g: 7 * g)
    assert child.apply is not Pickled.apply
    assert jax.grad(child.apply)(S) == 7
    assert jax.grad(Pickled.apply)(S) == 20
    assert child._backward_cls is not Pickled._backward_cls
    assert child._backward_cls.__name__ == "ChildBackward"
    assert child._backward_cls.__module__ == child.__module__
    bare = function("Bare", base=Pickled)
    assert bare._backward_cls.__name__ == "BareBackward"
    assert bare._backward_cls._autograd_function_id > (
        Pickled._backward_cls._autograd_function_id
    )
    assert jax.grad(bare.apply)(S) == 20


def test_the_qualified_name_of_a_nested_class():
    class Inner(jaxfn.Function): ...

    assert Inner._backward_cls.__qualname__.endswith("<locals>.InnerBackward")


def test_apply_can_be_overridden_and_called_through_super():
    class Wrapped(Pickled):
        @classmethod
        def apply(cls, x):
            return super().apply(x, k=3) + 1

        @staticmethod
        def backward(ctx, g):
            return 10 * ctx.k * g, None

    assert Wrapped.apply(S) == 10
    assert jax.grad(Wrapped.apply)(S) == 30


def test_super_in_rules():
    class Child(Pickled):
        SCALE = 4

        @staticmethod
        def forward(ctx, x):
            return Pickled.forward(ctx, x, 5) + 1

        @classmethod
        def backward(cls, ctx, g):
            return cls.SCALE * super().backward(ctx, g)

    assert Child.apply(S) == 16
    assert jax.grad(Child.apply)(S) == 200


def test_a_rule_assigned_later_counts():
    f = function(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 2 * g)
    assert jax.grad(f.apply)(S) == 2
    f.backward = staticmethod(lambda ctx, g: 5 * g)
    assert jax.grad(f.apply)(S) == 5
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f.apply, (S,), (S,))
    f.jvp = staticmethod(lambda ctx, t: 7 * t)
    assert jax.jvp(f.apply, (S,), (S,))[1] == 21
    del f.backward
    assert jax.grad(f.apply)(S) == 7
    f.setup_context = staticmethod(lambda ctx, inputs, output: None)
    f.forward = staticmethod(lambda x: 9 * x)
    assert f.apply(S) == 27
    assert jax.grad(f.apply)(S) == 7


@pytest.mark.full
def test_classes_made_in_a_factory_do_not_accumulate():
    import gc
    import weakref

    def make(k):
        def forward(ctx, x):
            return k * x

        return function(forward=forward, backward=lambda ctx, g: k * g)

    dead = []
    for k in range(5):
        f = make(k)
        assert jax.grad(f.apply)(S) == k
        assert jax.vmap(f.apply)(S[None]) == 3 * k
        assert f.apply(x=S) == 3 * k
        dead.append(weakref.ref(f))
    del f
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in dead] == [None] * 5


def test_functions_of_functions():
    inner = function(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 20 * g)

    def forward(ctx, x):
        return inner.apply(x) + 1

    def backward(ctx, g):
        return inner.apply(g)

    f = function(forward=forward, backward=backward).apply
    assert jax.grad(f)(S) == 2
    assert jax.jit(jax.grad(f))(S) == 2
    # backward is inner.apply, whose derivative is 20
    second = jax.grad(jax.grad(lambda x: f(x) ** 2))
    np.testing.assert_allclose(second(S), 2 * 2 * 20)


def test_autograd_inside_backward():
    def forward(ctx, run, x, y):
        ctx.run, ctx.x, ctx.y = run, x, y
        return run(x, y)

    def backward(ctx, g):
        return (None, *jax.vjp(ctx.run, ctx.x, ctx.y)[1](g))

    f = function(forward=forward, backward=backward).apply

    def run(x, y):
        return jnp.sin(x) * y

    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        g = wrap(lambda x, y: f(run, x, y))
        got = jax.grad(g, (0, 1))(S, S)
        np.testing.assert_allclose(got, jax.grad(run, (0, 1))(S, S), rtol=1e-6)
        got = jax.grad(jax.grad(g))(S, S)
        np.testing.assert_allclose(got, jax.grad(jax.grad(run))(S, S), rtol=1e-6)
