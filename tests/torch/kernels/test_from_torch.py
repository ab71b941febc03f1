"""Torch Functions that launch kernels, in JAX: values, gradients, orders, memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxfn.torch
from tests.torch.kernels import functions

X = jnp.arange(1.0, 13.0)


def of(cls):
    return jaxfn.torch.from_torch(cls).apply


def same(found, want):
    np.testing.assert_allclose(found, want, rtol=1e-6)


def grad(apply, *args):
    return jax.grad(lambda x: (apply(x, *args)).sum())


# ---- every order, with rules that are wrong on purpose


@pytest.mark.parametrize(
    "cls",
    [
        functions.Scale,
        functions.ScaleSeparately,
        functions.Wrapped,
        functions.ByTritonOp,
        functions.OnGpuAlone,
        functions.BackwardOnGpu,
    ],
)
def test_own_rules_run(cls):
    apply = of(cls)
    same(apply(X), 3 * X)
    same(jax.jit(apply)(X), 3 * X)
    same(grad(apply)(X), jnp.full(12, 5.0))
    same(jax.jit(grad(apply))(X), jnp.full(12, 5.0))
    same(jax.vmap(grad(apply))(jnp.stack([X, X])), jnp.full((2, 12), 5.0))
    same(grad(jax.vmap(apply))(jnp.stack([X, X])), jnp.full((2, 12), 5.0))
    same(grad(jax.checkpoint(apply))(X), jnp.full(12, 5.0))
    same(jax.jacrev(apply)(X), 5 * jnp.eye(12))


RUNS = []  # a list in a closure would be a part of what the function reads


def counted(x):
    RUNS.append(None)
    return functions.scaled(x, 3.0)


def test_a_function_that_names_a_kernel_is_traced_once():
    apply = jaxfn.torch.from_torch(counted)
    same(apply(X), 3 * X)
    first = len(RUNS)
    same(apply(X), 3 * X)
    assert len(RUNS) == first


@pytest.mark.parametrize(
    "cls", [functions.ByDifferentiableOp, functions.ByOpWithKernel]
)
def test_an_operation_that_is_more_than_its_python_stays_closed(cls):
    with pytest.raises(jaxfn.torch.TorchRefusal, match=r"registered by torch\.library"):
        of(cls)(X)


def test_without_a_kernel_no_rule_runs_as_on_a_gpu():
    with pytest.raises(jaxfn.torch.TorchRefusal, match="NumPy array.*host"):
        of(functions.OtherOnGpu)(X)
    on_host = jaxfn.torch.from_torch(functions.OtherOnGpu, fallback="host").apply
    same(on_host(X), 3 * X)
    same(grad(on_host)(X), jnp.full(12, 5.0))


def test_vmap_by_the_class_or_by_an_example_a_launch():
    batch = jnp.stack([X, 2 * X])
    same(jax.vmap(of(functions.Scale))(batch), 3 * batch)
    same(jax.vmap(of(functions.ScaleSeparately))(batch), 11 * batch)
    same(jax.vmap(of(functions.Scale), 1, 1)(batch), 3 * batch)


def test_jvp_of_the_class():
    apply = of(functions.ScaleWithJvp)
    y, t = jax.jvp(apply, (X,), (X,))
    same(y, 3 * X)
    same(t, 7 * X)
    same(jax.jit(jax.jacfwd(apply))(X), 7 * jnp.eye(12))


def test_in_a_scan_and_its_gradient():
    apply = of(functions.Scale)

    def loss(x):
        last, all_of_them = jax.lax.scan(lambda c, _: (apply(c), c.sum()), x, None, 3)
        return last.sum() + all_of_them[2]

    same(loss(X), (27 + 9) * X.sum())
    same(jax.grad(loss)(X), jnp.full(12, 125.0 + 25.0))
    same(jax.jit(jax.grad(loss))(X), jnp.full(12, 125.0 + 25.0))


def test_in_a_cond():
    apply = of(functions.Scale)

    def f(p, x):
        return jax.lax.cond(p, apply, lambda x: x, x).sum()

    same(jax.jit(jax.grad(f, 1))(True, X), jnp.full(12, 5.0))
    same(jax.jit(jax.grad(f, 1))(False, X), jnp.ones(12))


# ---- memory

VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, ::2],
    "rows": lambda x: x[1::2],
    "offset": lambda x: x[2:5, 1:],
    "diagonal block": lambda x: x.t()[1:3, 2:4],
    "detached": lambda x: x.detach()[1:].t(),
    "data": lambda x: x.data[:, 3:].t(),
    "reshaped": lambda x: x.reshape(4, 9)[:, :6],
    "split": lambda x: x.split(2)[1],
    "strided by hand": lambda x: x.as_strided((3, 2), (7, 2), 1),
    "expanded": lambda x: x[:1].expand(3, 6),
}
PLACES = {
    "at the start": lambda y: y,
    "transposed": lambda y: y.t(),
    "every second": lambda y: y[::2, ::2],
    "in the middle": lambda y: y[3:, 4:],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_exact(view, place):
    take, put = VIEWS[view], PLACES[place]
    x = torch.arange(36.0).reshape(6, 6)
    part = take(x)
    rows, cols = part.shape

    def at(y):
        return put(y)[:rows, :cols]

    want = torch.full((12, 12), -1.0)
    at(want).copy_(2 * part)
    apply = of(functions.Views)
    found = apply(jnp.asarray(x.numpy()), take, at)
    same(found, want.numpy())
    if view == "expanded":  # then backward's stores collide, on a GPU too
        return
    g = torch.arange(144.0).reshape(12, 12)
    wanted = torch.zeros(6, 6)
    take(wanted).copy_(2 * at(g))
    _, pull = jax.vjp(lambda x: apply(x, take, at), jnp.asarray(x.numpy()))
    same(pull(jnp.asarray(g.numpy()))[0], wanted.numpy())


def test_a_saved_view_is_read_beside_it():
    x = jnp.arange(12.0).reshape(6, 2)
    found = jax.grad(lambda x: of(functions.BeyondSaved)(x).sum())(x)
    want = 2 * x[:, 0] + 10 * 2 * x[:, 1]
    same(found, jnp.stack([want, want], 1))


def test_a_saved_output_is_a_part_of_its_buffer():
    x = jnp.arange(1.0, 5.0)
    found = jax.grad(lambda x: of(functions.SavedOutput)(x).sum())(x)
    whole = jnp.concatenate([2 * x, 3 * x])
    same(found, whole[:4] + 10 * whole[1:5])


def test_written_in_place():
    same(of(functions.InPlace)(X), 2 * X + 1)
    same(grad(of(functions.InPlace))(X), 4 * 2 * X)


def test_an_argument_is_written_and_marked():
    same(jax.jit(of(functions.Dirty))(X), 2 * X)
    same(jax.jit(grad(of(functions.Dirty)))(X), jnp.full(12, 2.0))


def test_a_buffer_is_filled_in_part():
    x = jnp.array([5.0, 6.0, 7.0])
    same(of(functions.Part)(x), [0.0, 6.0, 1.0, 5.0, 2.0, 7.0])


def test_strides_that_forward_notes_hold_in_backward():
    x = jnp.arange(12.0).reshape(3, 4)
    apply = of(functions.PlainBesideKernel)
    same(apply(x), x.sum(1))
    same(jax.grad(lambda x: apply(x).sum())(x), 2 * x)
    same(jax.jit(jax.grad(lambda x: apply(x).sum()))(x), 2 * x)


def test_a_number_that_is_a_value():
    for transform in (lambda f: f, jax.jit):
        apply = transform(of(functions.Number))
        same(apply(X, jnp.float32(2.5)), 2.5 * X)
        same(apply(X, jnp.full((1, 1), 2.5)), 2.5 * X)
        f = transform(jax.grad(lambda x, by: of(functions.Number)(x, by).sum()))
        same(f(X, jnp.float32(2.5)), jnp.full(12, 2.5))
        same(f(X, jnp.float32(1.0)), jnp.full(12, 1.0))


def test_saved_tensors_in_one_memory_stay_there():
    x = jnp.arange(12.0).reshape(3, 4)
    add = jnp.array([10.0, 100.0, 0.0])[:, None]
    same(jax.grad(of(functions.SavedTogether))(x), x + add)
    same(jax.jit(jax.grad(of(functions.SavedTogether)))(x), x + add)


def test_numbers_of_constants_are_those_that_kernels_wrote():
    same(of(functions.NumberOfConstant)(X), X * 6.0)
    same(of(functions.AllConstant)(X), X * 5.0 + 4.0)


def test_an_integer_that_is_saved_stays_one():
    apply = of(functions.SavedNumber)
    same(apply(X, jnp.int32(7)), 7 * X)
    found = jax.grad(lambda x: apply(x, jnp.int32(7)).sum())(X)
    same(found, 2.0 * (jnp.arange(12) < 7))


def test_minus_zero_keeps_its_sign():
    assert (1 / of(functions.MinusZero)(X) == -jnp.inf).all()


def test_a_vmap_rule_beside_what_is_saved():
    batch = jnp.stack([X, 2 * X])
    apply = of(functions.SavesOutputBesideVmap)
    same(jax.vmap(grad(apply))(batch), 11 * batch)
    same(grad(apply)(X), 3 * X)
    apply = of(functions.SavesViewsBesideVmap)
    same(grad(apply)(X), jnp.full(12, 5.0))
    with pytest.raises(jaxfn.torch.TorchRefusal, match="a part of its memory"):
        jax.vmap(grad(apply))(batch)


def test_a_kernel_that_no_rule_names():
    apply = of(functions.NotNamed)
    same(apply(X), 3 * X)
    same(grad(apply)(X), jnp.full(12, 5.0))
    apply = of(functions.NotNamedInBackward)
    with pytest.raises(jaxfn.torch.TorchRefusal, match="Name it in a rule"):
        grad(apply)(X)


def test_rules_that_need_values_launch_on_the_host():
    with pytest.raises(jaxfn.torch.TorchRefusal, match='fallback="host"'):
        of(functions.NeedsValues)(X)
    apply = jaxfn.torch.from_torch(functions.NeedsValues, fallback="host").apply
    same(apply(X), 12 * X)
    same(jax.jit(grad(apply))(X), jnp.full(12, 5.0))


def test_int64_beside_bool():
    same(of(functions.Pick)(X), jnp.where(X > 4, X[::-1], 0))
