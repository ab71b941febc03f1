"""References (jax.new_ref) in the rules of a Function: of its own, and from outside."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests.build import function

X, ONE = jnp.float32(0.5), jnp.float32(1)


def sine(x):
    ref = jax.new_ref(x)
    ref[...] = jnp.sin(ref[...])
    return ref[...]


def with_a_reference(style, sine):
    def save(ctx, x):
        ctx.save_for_backward(x)

    def combined(ctx, x):
        save(ctx, x)
        return sine(x)

    rules = {"forward": combined}
    if style == "separate":
        rules = {"forward": sine}
        rules["setup_context"] = lambda ctx, inputs, output: save(ctx, *inputs)
    backward = lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0])  # noqa: E731
    return function("F", backward=backward, generate_jvp_rule=True, **rules).apply


def along(f):
    return lambda x: jax.jvp(f, (x,), (ONE,))[1]


SECOND = {
    "grad grad": lambda f: jax.grad(jax.grad(f)),
    "hessian": jax.hessian,
    "jvp jvp": lambda f: along(along(f)),
    "jit inside": lambda f: jax.grad(jax.jit(jax.grad(f))),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_forward_with_a_reference_is_differentiated_twice_under_jit(style, second):
    plain = with_a_reference(style, sine)
    assert jax.grad(plain)(X) == pytest.approx(np.cos(0.5))
    with pytest.raises(RuntimeError, match="put the code that uses it under jax.jit"):
        second(plain)(X)
    inside = with_a_reference(style, jax.jit(sine))
    assert second(inside)(X) == pytest.approx(-np.sin(0.5))


# ---- from outside


def counting(engine, use):
    """A Function whose rules count their runs, and what they count in."""
    ref = jax.new_ref(jnp.float32(0))

    def scaled(x):
        return use(ref, x)

    if engine == "def_vmap":
        f = jaxfn.custom_function(scaled)
        f.def_vmap(lambda n, batched, x: (scaled(x), batched[0]))
        return f, ref

    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return 1 * x

    rules = {"backward": lambda ctx, g: scaled(ctx.saved_tensors[0]) * g}
    if engine == "both":
        rules["jvp"] = rules["backward"]
    derived = engine == "derived"
    f = function("F", forward=forward, generate_jvp_rule=derived, **rules).apply
    if engine == "plain":
        f = jax.custom_jvp(lambda x: 1 * x)
        f.defjvp(lambda p, t: (f(*p), scaled(*p) * t[0]))
    return along(f), ref


def count(ref, x):
    ref[...] += 1
    return 3 * x


def count_and_read(ref, x):
    ref[...] += 1
    return ref[...] * x


def read_and_count(ref, x):
    value = ref[...] + 1
    ref[...] = value
    return value * x


def read(ref, x):
    return (ref[...] + 3) * x


@pytest.mark.parametrize("engine", ["both", "def_vmap"])
def test_a_reference_is_written_as_often_as_in_plain_jax(engine):
    f, ref = counting(engine, count)
    plain, expected = counting("plain", count)
    if engine == "def_vmap":
        plain = partial(count, expected)
    assert jax.jvp(f, (X,), (ONE,)) == (1.5, 3) == jax.jvp(plain, (X,), (ONE,))
    assert ref[...] == expected[...]


@pytest.mark.parametrize("use", [count_and_read, read_and_count])
@pytest.mark.parametrize("engine", ["both", "def_vmap"])
def test_a_rule_that_reads_what_it_writes_is_not_run_again(engine, use):
    f, ref = counting(engine, use)
    assert f(X) == 0.5
    with pytest.raises(NotImplementedError, match="`.*` computes its result with that"):
        jax.value_and_grad(f)(X)
    assert ref[...] == 2


def test_a_rule_may_read_a_reference_that_it_leaves_alone():
    for engine in ("both", "def_vmap"):
        f, _ = counting(engine, read)
        assert jax.value_and_grad(f)(X) == (1.5, 3)
        # One of its own may be written to.
        f, _ = counting(engine, lambda ref, x: read(ref, sine(x)))
        assert jax.value_and_grad(f)(X)[1] == pytest.approx(3 * np.cos(0.5))


@pytest.mark.parametrize("use", [count, read])
@pytest.mark.parametrize("engine", ["both", "derived", "def_vmap"])
def test_a_reference_is_refused_in_an_operation_that_is_compiled(engine, use):
    f, _ = counting(engine, use)
    with pytest.raises(NotImplementedError, match="uses a reference from outside"):
        jax.jit(f)(X)


def test_a_backward_may_use_a_reference_under_jit():
    ref = jax.new_ref(jnp.float32(0))
    f = function(
        forward=lambda ctx, x: 1 * x, backward=lambda ctx, g: count_and_read(ref, g)
    ).apply
    assert jax.jit(jax.grad(f))(X) == 1
    assert jax.jit(jax.grad(f))(X) == 2
    assert ref[...] == 2
