"""Methods of a NestedIOFunction: `self` is the context, and acts as the instance."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxfn

X = jnp.float32(2)


class Scale(jaxfn.NestedIOFunction):
    offset = 10.0

    def __init__(self, k):
        with pytest.warns(DeprecationWarning, match="should not be instantiated"):
            super().__init__()
        self.k = k

    @property
    def by_property(self):
        return self.k

    @functools.cached_property
    def by_cached_property(self):
        return self.k

    @classmethod
    def by_class(cls):
        return cls.offset

    @staticmethod
    def by_static(k):
        return k

    def by_method(self, k):
        return self.k * k

    def factor(self):
        return (
            (self.by_property + self.by_cached_property + self.by_class())
            * self.by_static(2.0)
            * self.by_method(3.0)
        )

    def forward_extended(self, x):
        return x * self.factor()

    def backward_extended(self, g):
        return g * self.factor()


def test_all_kinds_of_methods_work_on_self():
    k = 5.0
    scale = Scale(k)
    factor = (k + k + 10) * 2 * (k * 3)
    assert float(scale(X)) == factor * 2
    assert float(jax.grad(scale)(X)) == factor


def test_super_finds_the_rules_of_the_base_class():
    class Tripled(Scale):
        def forward_extended(self, x):
            return 3 * super().forward_extended(x)

        def backward_extended(self, g):
            return 3 * super().backward_extended(g)

    scale, tripled = Scale(1.0), Tripled(1.0)
    assert float(tripled(X)) == 3 * float(scale(X))
    assert float(jax.grad(tripled)(X)) == 3 * float(jax.grad(scale)(X))
    assert float(jax.jit(jax.grad(tripled))(X)) == 3 * float(jax.grad(scale)(X))


def test_self_is_a_context_and_an_instance_of_its_class():
    seen = []

    class Identity(jaxfn.NestedIOFunction):
        def forward_extended(self, x):
            seen.append(self)
            return x

    Identity.apply(X)
    assert isinstance(seen[0], jaxfn.BackwardCFunction)
    assert isinstance(seen[0], Identity)


def test_an_instance_is_its_own_context():
    k = Scale(1.0)
    with pytest.raises(
        AttributeError, match="`Scale.saved_tensors` was read before .* save_for_b"
    ):
        k.saved_tensors  # noqa: B018
    k.save_for_backward([X, None], {"b": (X, X)})
    assert k.to_save == (X, X, X)
    assert k.saved_tensors == ([X, None], {"b": (X, X)})
    k.mark_dirty([X], more={"b": X})
    assert k.dirty_tensors == (X, X)
    k.mark_non_differentiable(X, (None, [X]))
    assert k.non_differentiable == (X, X)
    with pytest.raises(ValueError, match="`Scale.forward_extended` got, saved, marked"):
        k.save_for_backward(["a"])


def test_super_finds_the_methods_of_the_context():
    class Saving(jaxfn.NestedIOFunction):
        def forward_extended(self, x, k):
            super().save_for_backward([k], {"x": x})
            super().mark_non_differentiable(())
            return {"y": k * x}

        def backward_extended(self, g):
            (k,), rest = super().saved_tensors
            return k * g["y"], rest["x"] * g["y"]

    def f(x, k):
        return Saving.apply(x, k)["y"]

    for run in (f, jax.jit(f)):
        got = jax.grad(run, argnums=(0, 1))(X, jnp.float32(5))
        assert got == (5, 2)
