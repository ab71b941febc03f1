"""Saved-tensor hooks on residuals: what is kept, and that it comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn.autograd import graph
from tests.build import function, in_style, saving


class Layer(jaxfn.Function):
    """tanh(w x), saving both arguments and the output."""

    @staticmethod
    def forward(ctx, w, x):
        y = jnp.tanh(w @ x)
        ctx.save_for_backward(w, x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        w, x, y = ctx.saved_tensors
        d = g * (1 - y * y)
        return jnp.outer(d, x), w.T @ d


def layers(n=64, seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    weights = [jax.random.normal(k, (n, n)) / np.sqrt(n) for k in keys[:4]]
    x = jax.random.normal(keys[4], (n,))

    def loss(weights):
        h = x
        for w in weights:
            h = Layer.apply(w, h)
        return (h**2).sum()

    return loss, weights


def kept_bytes(f, *args):
    residuals = jax.tree.leaves(jax.vjp(f, *args)[1])
    return sum(x.nbytes for x in {id(x): x for x in residuals}.values())


def test_bfloat16_halves_the_bytes_that_vjp_keeps():
    w, x = jnp.ones((256, 256)), jnp.ones(256)
    full = kept_bytes(Layer.apply, w, x)
    with graph.save_compressed(jnp.bfloat16):
        half = kept_bytes(Layer.apply, w, x)
    assert full == 4 * (256 * 256 + 2 * 256)
    assert half == full // 2


def test_int8_quarters_them():
    w, x = jnp.ones((256, 256)), jnp.ones(256)
    with graph.save_compressed(jnp.int8):
        quarter = kept_bytes(Layer.apply, w, x)
    scales = 3 * 4
    witnesses = 3 * 4  # one zero for each array, which refuses second derivatives
    assert quarter == 256 * 256 + 2 * 256 + scales + witnesses


# The figures of the docstring, and a tenth of room for other seeds and machines.
@pytest.mark.parametrize(
    ("dtype", "error"),
    [(jnp.bfloat16, 4.0e-3), (jnp.float16, 4.1e-4), ("int8", 1.4e-2)],
)
def test_the_error_of_the_gradient_is_as_documented(dtype, error):
    loss, weights = layers()
    exact = jax.grad(loss)(weights)
    with graph.save_compressed(dtype):
        got = jax.grad(loss)(weights)

    def norm(arrays):
        return float(jnp.sqrt(sum((a**2).sum() for a in arrays)))

    found = norm([a - b for a, b in zip(got, exact, strict=True)]) / norm(exact)
    assert error / 3 < found < 1.1 * error


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_what_is_packed_is_what_backward_gets(wrap):
    doubled = graph.saved_tensors_hooks(lambda x: 2 * x, lambda x: x)

    cube = function(
        **in_style("combined", lambda x: x**3, saving()),
        backward=lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
    ).apply

    def scan(x):
        return jax.lax.scan(lambda c, _: (cube(c), None), x, None, length=1)[0]

    for f in (cube, scan, lambda x: jax.vmap(cube)(x[None]).sum()):
        with doubled:
            assert jax.grad(wrap(f))(jnp.float32(1)) == 12
        assert jax.grad(wrap(f))(jnp.float32(1)) == 3


def test_a_jitted_function_is_traced_again_under_other_hooks():
    square = function(
        **in_style("combined", lambda x: x * x, saving()),
        backward=lambda ctx, g: 2 * ctx.saved_tensors[0] * g,
    )
    f = jax.jit(jax.grad(square.apply))
    assert f(1.0) == 2
    with graph.saved_tensors_hooks(lambda x: 10 * x, lambda x: x):
        assert f(1.0) == 20
        with graph.saved_tensors_hooks(lambda x: 3 * x, lambda x: x):
            assert f(1.0) == 6  # the innermost pair alone
        assert f(1.0) == 20
    assert f(1.0) == 2


def test_a_jitted_function_is_traced_again_under_another_autocast():
    cast = jaxfn.amp.custom_fwd(device_type="cuda", cast_inputs=jnp.bfloat16)
    f = jax.jit(function(forward=cast(lambda ctx, x: 2 * x)).apply)
    assert f(jnp.float32(1)).dtype == jnp.float32
    with jaxfn.amp.autocast("cuda"):
        assert f(jnp.float32(1)).dtype == jnp.bfloat16
    assert f(jnp.float32(1)).dtype == jnp.float32


def test_saving_on_the_host_changes_nothing_on_a_cpu():
    loss, weights = layers(8)
    plain = jax.make_jaxpr(jax.grad(loss))(weights)
    with graph.save_on_cpu():
        hosted = jax.make_jaxpr(jax.grad(loss))(weights)
    if jax.default_backend() == "cpu":
        assert str(hosted) == str(plain)
    else:
        assert "device_put" in str(hosted)


def test_an_exception_in_a_hook_passes_and_leaves_no_hook_behind():
    def broken(x):
        raise KeyError("mine")

    loss, weights = layers(4)
    with (
        pytest.raises(KeyError, match="mine"),
        graph.saved_tensors_hooks(broken, broken),
    ):
        jax.grad(loss)(weights)
    jax.grad(loss)(weights)


def test_hooks_that_are_left_out_of_order_leave_nothing_behind():
    first = graph.saved_tensors_hooks(lambda x: 2 * x, lambda x: x)
    second = graph.saved_tensors_hooks(lambda x: 3 * x, lambda x: x)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with graph.disable_saved_tensors_hooks("refused where hooks are left over"):
        pass


@pytest.mark.parametrize("make", [graph.save_on_cpu, graph.save_compressed])
@pytest.mark.full
def test_hooks_that_are_left_once_too_often_take_nothing_off(make):
    outer, inner = graph.saved_tensors_hooks(lambda x: 2 * x, lambda x: x), make()
    loss, weights = layers(2)
    with outer:
        packed = jax.grad(loss)(weights)[0]
        inner.__enter__()
        inner.__exit__()
        inner.__exit__()
        inner.__exit__(None, None, None)
        assert (jax.grad(loss)(weights)[0] == packed).all()
    outer.__exit__()
    assert (jax.grad(loss)(weights)[0] != packed).all()


def test_hooks_are_refused_in_calls_of_a_decorated_function():
    @graph.disable_saved_tensors_hooks("not in here")
    def f(depth):
        if depth:
            return f(depth - 1)
        with graph.save_on_cpu():
            raise AssertionError("hooks were entered")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="not in here"):
            f(2)
        with graph.save_on_cpu():  # they are refused nowhere else
            pass


def test_saving_on_the_host_moves_residuals_there_and_back(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # traced, not compiled
    w, x = jnp.ones((4, 4)), jnp.ones(4)
    with graph.save_on_cpu():
        jaxpr = jax.make_jaxpr(jax.grad(lambda w: Layer.apply(w, x).sum()))(w)
    moves = [
        eqn.params["devices"][0]
        for eqn in jaxpr.jaxpr.eqns
        if eqn.primitive.name == "device_put"
    ]
    host, device = jax.memory.Space.Host, jax.memory.Space.Device
    assert moves.count(host) == moves.count(device) == 3
