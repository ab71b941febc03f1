"""What `from_torch` gives is a jaxfn.Function like any other."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxfn
from jaxfn.autograd.graph import saved_tensors_hooks
from jaxfn.torch import from_torch
from jaxfn.torch._function import graph_function as body_module

from .classes import saves, torch_class


def cube_class(factor=3.0):
    """x³; its derivative is right for the factor 3."""

    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    return torch_class(
        forward, lambda ctx, g: g * factor * ctx.saved_tensors[1], "Cube"
    )


Cube = from_torch(cube_class())
Wrong = from_torch(cube_class(7.0))
X = jnp.array([0.5, -1.5, 2.0])


def test_check_finds_what_is_wrong():
    assert jaxfn.check(Cube, X).ok
    report = jaxfn.check(Wrong, X)
    assert not report.ok
    assert "backward" in str(report)


def test_explain_names_what_is_kept():
    report = jaxfn.explain(Cube, X)
    assert report.residual_bytes == 2 * X.nbytes
    assert "Cube" in str(report)
    assert "save_for_backward" in str(report) or "saved" in str(report)


def test_saved_tensor_hooks():
    packed = []

    def pack(x):
        packed.append(x.shape)
        return x

    with saved_tensors_hooks(pack, lambda x: 2 * x):
        grad = jax.grad(lambda x: Cube.apply(x).sum())(X)
    assert packed == [(3,), (3,)]
    assert np.allclose(grad, 3 * 2 * X * X)  # backward saw twice the square


def test_generate_jvp_rule_of_a_subclass():
    with pytest.raises(TypeError, match="generate_jvp_rule"):
        jax.jvp(Wrong.apply, (X,), (jnp.ones(3),))

    class Both(Wrong):
        generate_jvp_rule = True

    for wrap in (lambda f: f, jax.jit):
        _, dot = wrap(lambda x: jax.jvp(Both.apply, (x,), (jnp.ones(3),)))(X)
        assert np.allclose(dot, 7 * X * X)
        assert np.allclose(wrap(jax.jacfwd(Both.apply))(X), np.diag(7 * X * X))


def test_checkpoint_keeps_the_backward():
    def loss(x):
        return jax.checkpoint(lambda x: Wrong.apply(jnp.sin(x)).sum())(x)

    wanted = 7 * jnp.sin(X) ** 2 * jnp.cos(X)
    assert np.allclose(jax.grad(loss)(X), wanted)
    assert np.allclose(jax.jit(jax.grad(loss))(X), wanted)


@pytest.mark.parametrize("vma", [True, False])
def test_shard_map_on_eight_devices(vma):
    """x times a weight that all devices share; its gradient is summed over them."""

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 3 * g * w, 3 * g * x

    made = from_torch(torch_class(saves(lambda x, w: x * w), backward))
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    x, w = jnp.arange(16.0).reshape(8, 2), jnp.array([2.0, 5.0])

    def per_device(x, w):
        return lax.psum(made.apply(x, w).sum(), "d")

    sharded = jax.shard_map(
        per_device, mesh=mesh, in_specs=(P("d"), P()), out_specs=P(), check_vma=vma
    )
    value, grads = jax.jit(jax.value_and_grad(sharded, (0, 1)))(x, w)
    assert np.allclose(value, (x * w).sum())
    assert np.allclose(grads[0], 3 * np.broadcast_to(w, (8, 2)))
    assert np.allclose(grads[1], 3 * x.sum(0))
    placed = jax.device_put(x, NamedSharding(mesh, P("d")))
    whole = jax.jit(jax.grad(lambda x: made.apply(x, w).sum()))(placed)
    assert np.allclose(whole, grads[0])
    assert len(whole.sharding.device_set) == 8


def test_threads():
    """Traced at once by many, and right for each."""
    made = from_torch(cube_class(7.0))

    def work(i):
        x = jnp.arange(1.0, 2.0 + i % 3)
        grad = jax.jit(jax.grad(lambda x: made.apply(x).sum()))
        return np.allclose(grad(x), 7 * x * x)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [True] * 6


def test_a_class_of_the_same_name_is_another():
    old, new = from_torch(cube_class(3.0)), from_torch(cube_class(5.0))
    for made, factor in ((old, 3), (new, 5), (old, 3)):
        grad = jax.grad(lambda x, made=made: made.apply(x).sum())(X)
        assert np.allclose(grad, factor * X * X)


def test_a_rule_that_is_replaced_counts_from_the_next_call_on():
    cls = cube_class(3.0)
    made = from_torch(cls)

    def gradient():
        return jax.grad(lambda x: made.apply(x).sum())(X)

    assert np.allclose(gradient(), 3 * X * X)
    cls.backward = staticmethod(lambda ctx, g: g * 11)
    assert np.allclose(gradient(), 11)
    cls.forward = staticmethod(saves(lambda x: 2 * x))
    assert np.allclose(made.apply(X), 2 * X)


def test_caches_are_bounded_and_keep_no_class_alive():
    cls = cube_class(3.0)
    made = from_torch(cls)
    apply = made.apply
    for n in range(1, body_module._MOST + 4):
        apply(jnp.ones(n))
    assert len(made.jaxfn_torch_bridge._by_signature) <= body_module._MOST
    jax.grad(lambda x, apply=apply: apply(x).sum())(X)
    gone = weakref.ref(cls), weakref.ref(made)
    del cls, made, apply
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_nothing_global_is_changed():
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed()
    state = torch.get_rng_state()
    jax.grad(lambda x: from_torch(cube_class()).apply(x).sum())(X)
    after = torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed()
    assert before == after
    assert (torch.get_rng_state() == state).all()
    assert torch.overrides._get_current_function_mode_stack() == []
