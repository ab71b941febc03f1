"""Compiled code equals that of a hand-written custom_vjp or custom_jvp."""

import jax
import jax.numpy as jnp
import pytest

from tests.build import function
from tests.jaxprs import hlo

X = jnp.linspace(-1, 1, 12).reshape(3, 4)
Y = jnp.linspace(1, 2, 12).reshape(3, 4)
W = jnp.linspace(0, 1, 20).reshape(4, 5)

# name: (arguments, value, gradients from (args, value, g), tangent from (args, value,
# ts))
CASES = {
    "exp": ((X,), jnp.exp, lambda a, out, g: (g * out,), lambda a, out, t: t[0] * out),
    "sin times y": (
        (X, Y),
        lambda x, y: jnp.sin(x) * y,
        lambda a, out, g: (2 * g * jnp.cos(a[0]) * a[1], g * jnp.sin(a[0])),
        lambda a, out, t: t[0] * jnp.cos(a[0]) * a[1] + t[1] * jnp.sin(a[0]),
    ),
    "matmul": (
        (X, W),
        lambda x, w: x @ w,
        lambda a, out, g: (g @ a[1].T, a[0].T @ g),
        lambda a, out, t: t[0] @ a[1] + a[0] @ t[1],
    ),
    "sigmoid": (
        (X,),
        jax.nn.sigmoid,
        lambda a, out, g: (g * out * (1 - out),),
        lambda a, out, t: t[0] * out * (1 - out),
    ),
    "straight-through round": (
        (X,),
        jnp.round,
        lambda a, out, g: (g,),
        lambda a, out, t: t[0],
    ),
    "logsumexp": (
        (X,),
        lambda x: jax.nn.logsumexp(x, axis=1),
        lambda a, out, g: (g[:, None] * jnp.exp(a[0] - out[:, None]),),
        lambda a, out, t: (t[0] * jnp.exp(a[0] - out[:, None])).sum(1),
    ),
    "rms norm": (
        (X, Y),
        lambda x, y: x * jax.lax.rsqrt((x * x).mean(1, keepdims=True)) * y,
        lambda a, out, g: (g * a[1] * out, g * out),
        lambda a, out, t: t[0] * a[1] * out + t[1] * out,
    ),
    "clipped": (
        (X,),
        lambda x: jnp.clip(x, -0.5, 0.5),
        lambda a, out, g: (jnp.where(jnp.abs(a[0]) < 0.5, g, 0),),
        lambda a, out, t: jnp.where(jnp.abs(a[0]) < 0.5, t[0], 0),
    ),
}
cases = pytest.mark.parametrize("case", CASES)
styles = pytest.mark.parametrize("style", ["combined", "separate"])


def ours(case, style, rule):
    _, value, pull, push = CASES[case]

    def save(ctx, args, out):
        ctx.save_for_backward(*args, out)
        ctx.save_for_forward(*args, out)

    def combined(ctx, *args):
        out = value(*args)
        save(ctx, args, out)
        return out

    def backward(ctx, g):
        *args, out = ctx.saved_tensors
        return pull(args, out, g)

    def jvp(ctx, *ts):
        *args, out = ctx.saved_tensors
        return push(args, out, ts)

    members = {"backward": backward} if rule == "backward" else {"jvp": jvp}
    if style == "combined":
        return function(forward=combined, **members).apply
    return function(
        forward=lambda *args: value(*args), setup_context=save, **members
    ).apply


def by_hand(case, rule):
    _, value, pull, push = CASES[case]
    if rule == "backward":
        f = jax.custom_vjp(lambda *args: value(*args))

        def fwd(*args):
            args = [x.value for x in args]
            out = f(*args)
            return out, (args, out)

        f.defvjp(fwd, lambda res, g: pull(*res, g), symbolic_zeros=True)
        return f
    f = jax.custom_jvp(lambda *args: value(*args))

    @f.defjvp
    def rule_(primals, tangents):
        out = f(*primals)
        return out, push(primals, out, tangents)

    return f


def loss(f):
    return lambda *args: f(*args).sum()


@cases
@styles
def test_forward(case, style):
    args = CASES[case][0]
    for rule in ("backward", "jvp"):
        got = hlo(ours(case, style, rule), *args)
        assert got == hlo(CASES[case][1], *args)


@cases
@styles
@pytest.mark.parametrize("rule", ["backward", "jvp"])
def test_gradient(case, style, rule):
    args = CASES[case][0]
    argnums = tuple(range(len(args)))
    got = hlo(jax.grad(loss(ours(case, style, rule)), argnums), *args)
    assert got == hlo(jax.grad(loss(by_hand(case, rule)), argnums), *args)


@cases
@styles
def test_tangent(case, style):
    args = CASES[case][0]

    def push(f):
        return lambda *args: jax.jvp(f, args, args)

    got = hlo(push(ours(case, style, "jvp")), *args)
    assert got == hlo(push(by_hand(case, "jvp")), *args)


@pytest.mark.parametrize("case", ["exp", "sin times y", "sigmoid", "clipped"])
def test_vmap_of_gradient(case):
    args = tuple(x.reshape(-1) for x in CASES[case][0])
    argnums = tuple(range(len(args)))
    got = hlo(jax.vmap(jax.grad(ours(case, "combined", "backward"), argnums)), *args)
    assert got == hlo(jax.vmap(jax.grad(by_hand(case, "backward"), argnums)), *args)


def test_the_comparison_sees_a_difference():
    args = CASES["exp"][0]
    assert hlo(jnp.exp, *args) != hlo(lambda x: jnp.exp(x) + 1, *args)
    assert hlo(lambda a: jnp.exp(a), *args) == hlo(lambda b: jnp.exp(b), *args)


def test_both_rules_compile_to_each_alone():
    args, value, pull, push = CASES["sin times y"]

    def forward(ctx, *args):
        ctx.save_for_backward(*args)
        ctx.save_for_forward(*args)
        return value(*args)

    f = function(
        forward=forward,
        backward=lambda ctx, g: pull(ctx.saved_tensors, None, g),
        jvp=lambda ctx, *ts: push(ctx.saved_tensors, None, ts),
    ).apply
    got = hlo(jax.grad(loss(f), (0, 1)), *args)
    assert got == hlo(jax.grad(loss(by_hand("sin times y", "backward")), (0, 1)), *args)
    got = hlo(lambda *a: jax.jvp(f, a, a), *args)
    hand = by_hand("sin times y", "jvp")
    assert got == hlo(lambda *a: jax.jvp(hand, a, a), *args)
