"""Arguments and outputs of an extended dtype: its tangents say if they have gradients.

Each Function is compared with a `jax.custom_vjp` of the same rules.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from tests.build import function, in_style, saving
from tests.extended import (
    MAX,
    from_max,
    from_quantized,
    quantized,
    readable,
    to_max,
)

X, SCALE = jnp.float32(2), to_max(jnp.float32(3))
XS, SCALES = jnp.arange(3.0), to_max(jnp.arange(3.0) + 1)
ONE = jnp.float32(1)


def forms(primal, bwd, jvp):
    """The same function as a custom_vjp and in every form, by name."""

    def fwd(*args):
        return primal(*args), args

    def several(rule):
        return lambda args, g: rule(args, *(g if isinstance(g, tuple) else (g,)))

    def backward(ctx, *gs):
        return bwd(ctx.saved_tensors, *gs)

    def forward_rule(ctx, *ts):
        return jvp(ctx.saved_tensors, *ts)

    plain = jax.custom_vjp(primal)
    plain.defvjp(fwd, several(bwd))
    decorated, both = (jaxfn.custom_function(lambda *a: primal(*a)) for _ in range(2))
    decorated.defvjp(fwd, several(bwd))
    both.defvjp(fwd, several(bwd))
    both.defjvp(lambda args, ts: (primal(*args), jvp(args, *ts)))
    one, apart = (
        in_style(style, lambda *args: primal(*args), saving()) | {"backward": backward}
        for style in ("combined", "separate")
    )
    return plain, {
        "combined": function(**one).apply,
        "separate": function(**apart).apply,
        "derived": function(**one, generate_jvp_rule=True).apply,
        "combined, both": function(**one, jvp=forward_rule).apply,
        "separate, both": function(**apart, jvp=forward_rule).apply,
        "decorator": decorated,
        "decorator, both": both,
    }


def scaled(x, s):
    return x * from_max(s)


PLAIN, SCALED = forms(
    scaled,
    lambda args, g: (g * from_max(args[1]), to_max(from_max(args[1]) + g)),
    lambda args, t, ts: t * from_max(args[1]),
)


def gradients(f, ct=ONE):
    return lambda *args: jax.vjp(f, *args)[1](ct)


def three_times(f):
    return lambda x, s: lax.scan(lambda c, _: (f(c, s), None), x, None, length=3)[0]


def along(f):
    return lambda x, s: lax.scan(lambda c, v: (f(c, v), None), x, s)[0]


def on_cond(f):
    return lambda x, s: lax.cond(x > 0, f, lambda x, s: x, x, s)


# JAX makes no constant of such an array: whatever is compiled gets them as arguments.
PROGRAMS = {
    "call": lambda f, x, s, xs, ss: f(x, s),
    "vjp": lambda f, x, s, xs, ss: gradients(f)(x, s),
    "grad": lambda f, x, s, xs, ss: jax.grad(f, (0, 1), allow_int=True)(x, s),
    "vmap": lambda f, x, s, xs, ss: jax.vmap(gradients(f))(xs, ss),
    "one": lambda f, x, s, xs, ss: jax.vmap(gradients(f), (0, None))(xs, s),
    "scan": lambda f, x, s, xs, ss: gradients(three_times(f))(x, s),
    "scan along": lambda f, x, s, xs, ss: gradients(along(f))(x, ss),
    "cond": lambda f, x, s, xs, ss: gradients(on_cond(f))(x, s),
    "checkpoint": lambda f, x, s, xs, ss: gradients(jax.checkpoint(f))(x, s),
    "converted": lambda f, x, s, xs, ss: jax.grad(lambda v: f(x, to_max(v)))(x),
    "grad of grad": lambda f, x, s, xs, ss: jax.grad(jax.grad(f))(x, s),
    "hessian": lambda f, x, s, xs, ss: jax.hessian(f)(x, s),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("form", SCALED)
def test_gradients_that_add_up_by_maximum(form, program, jit):
    def run(f):
        call = functools.partial(PROGRAMS[program], f)
        return readable((jax.jit(call) if jit else call)(X, SCALE, XS, SCALES))

    assert run(SCALED[form]) == run(PLAIN)


@pytest.mark.parametrize("form", [name for name in SCALED if "both" in name])
def test_jvp_gets_and_gives_such_tangents(form):
    f = SCALED[form]
    for wrap in (lambda f: f, jax.jit):
        out, t = wrap(lambda x, s: jax.jvp(f, (x, s), (ONE, s)))(X, SCALE)
        assert (out, t) == (6, 3)


# ---- a dtype whose tangents have another


PLAIN_QUANTIZED, WITH_QUANTIZED = forms(
    lambda x, q: x * from_quantized(q),
    lambda args, g: (g * from_quantized(args[1]), g * args[0]),
    lambda args, t, tq: t * from_quantized(args[1]) + args[0] * tq,
)


def of_integers(f):
    return lambda x, q: f(x, quantized(q))


QUANTIZED_PROGRAMS = {
    "vjp": lambda f: lambda x, q: gradients(f)(x, quantized(q)),
    "vmap": lambda f: jax.vmap(lambda q: gradients(f)(X, quantized(q))),
    "shared": lambda f: (
        lambda x, q: jax.vjp(jax.vmap(f, (0, None)), XS * x, quantized(q))[1](XS)
    ),
    "scan": lambda f: lambda x, q: gradients(three_times(f))(x, quantized(q)),
    "grad of grad": lambda f: (
        lambda x, q: jax.vjp(gradients(f), x, quantized(q))[1]((ONE, ONE))
    ),
}


@pytest.mark.parametrize("program", QUANTIZED_PROGRAMS)
@pytest.mark.parametrize("form", WITH_QUANTIZED)
def test_gradients_of_another_dtype_than_the_argument(form, program):
    make, q = QUANTIZED_PROGRAMS[program], jnp.int8(3)
    args = (jnp.arange(4, dtype="int8"),) if program == "vmap" else (X, q)
    want = jax.jit(make(PLAIN_QUANTIZED))(*args)
    got = jax.jit(make(WITH_QUANTIZED[form]))(*args)
    assert readable(got) == readable(want)
    assert [g.dtype for g in got] == [w.dtype for w in want]


@pytest.mark.parametrize("form", ["derived", "combined, both", "separate, both"])
def test_tangents_of_another_dtype_than_the_argument(form):
    f = WITH_QUANTIZED[form]
    found = jax.jit(lambda x, q: jax.jvp(f, (x, quantized(q)), (ONE, ONE)))
    assert found(X, jnp.int8(3)) == (6, 5)


def test_such_gradients_are_cast_and_summed():
    f = function(
        forward=lambda ctx, x, q: x * from_quantized(q),
        backward=lambda ctx, g: (g, jnp.full(2, g, jnp.bfloat16)),
    ).apply
    found = jax.jit(lambda x, q: gradients(f)(x, quantized(q)))(X, jnp.int8(3))
    assert (found[1], found[1].dtype) == (2, jnp.float32)


# ---- outputs


PLAIN_OUT, OUT = forms(
    lambda x, s: (x * from_max(s), to_max(2 * from_max(s))),
    lambda args, g, gs: (g * from_max(args[1]), gs),
    lambda args, t, ts: (t * from_max(args[1]), ts),
)

OUT_PROGRAMS = {
    "call": lambda f, x, s: f(x, s),
    "first": lambda f, x, s: gradients(lambda *a: f(*a)[0], x)(x, s),
    "second": lambda f, x, s: gradients(lambda *a: f(*a)[1], s)(x, s),
    "both": lambda f, x, s: gradients(f, (x, s))(x, s),
    "checkpoint": lambda f, x, s: gradients(jax.checkpoint(f), (x, s))(x, s),
    "vmap": lambda f, x, s: jax.vmap(gradients(f, (x, s)), (0, None))(XS, s),
    "scan": lambda f, x, s: gradients(
        lambda *a: lax.scan(lambda c, _: (f(*c), None), a, None, length=3)[0], (x, s)
    )(x, s),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("program", OUT_PROGRAMS)
@pytest.mark.parametrize("form", OUT)
def test_outputs_have_such_cotangents(form, program, jit):
    def run(f):
        call = functools.partial(OUT_PROGRAMS[program], f)
        return readable((jax.jit(call) if jit else call)(X, SCALE))

    assert run(OUT[form]) == run(PLAIN_OUT)


def test_an_output_that_ignores_a_batched_argument():
    # Its cotangents differ among the examples, though its value does not.
    f = function(
        forward=lambda ctx, x, s: (x, to_max(2 * from_max(s))),
        backward=lambda ctx, g, gs: (g + from_max(gs), gs),
    ).apply
    found = jax.vmap(lambda x, c: gradients(f, (x, c))(x, SCALE))(XS, SCALES)
    assert readable(found) == ([1, 3, 5], [1, 2, 3])
    outs = jax.vmap(f, (0, None))(XS, SCALE)
    assert outs[1].shape == (3,)


# ---- what is refused, and what takes no part


WRONG = {
    "f32[] for max32[]": (lambda g: (g, g), "expected max32.., got f32.."),
    "max32[] for f32[]": (
        lambda g: (to_max(g), None),
        "expected f32.., got max32..",
    ),
    "shape": (lambda g: (None, to_max(jnp.ones(2))), "invalid gradient at index 1"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_gradient_of_such_a_dtype_is_not_cast_or_summed(wrong):
    rule, match = WRONG[wrong]
    f = function(forward=lambda ctx, x, s: x * 1, backward=lambda ctx, g: rule(g)).apply
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises((TypeError, ValueError), match=match):
            wrap(gradients(f))(X, SCALE)


def test_keys_still_have_none():
    def forward(ctx, x, key):
        assert ctx.needs_input_grad in ((True, False), (False, False))
        ctx.save_for_backward(key)
        return x + jax.random.normal(key), key

    def backward(ctx, g, g_key):
        assert g_key is None
        return g, ctx.saved_tensors[0]

    f, key = function(forward=forward, backward=backward).apply, jax.random.key(0)
    ct = ONE, np.zeros((), jax.dtypes.float0)
    for wrap in (lambda f: f, jax.jit):
        g, g_key = wrap(gradients(f, ct))(X, key)
        assert (g, g_key.dtype) == (1, jax.dtypes.float0)


@pytest.mark.parametrize("kept", ["itself", "integers"])
def test_saved_tensor_hooks(kept):
    hooks = {
        "itself": (lambda x: x, lambda x: x),
        "integers": (
            lambda x: (from_max(x) if x.dtype == MAX else x).astype(jnp.int32),
            lambda x: x.astype(jnp.float32),
        ),
    }

    def forward(ctx, s, x):
        ctx.save_for_backward(s)
        return x * from_max(s)

    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return to_max(g), g * (from_max(s) if s.dtype == MAX else s)

    f = function(forward=forward, backward=backward).apply
    with jaxfn.autograd.graph.saved_tensors_hooks(*hooks[kept]):
        assert readable(gradients(f)(SCALE, X)) == (1, 3)


def test_a_dirty_argument_is_left_as_it_is():
    def forward(ctx, x, s):
        ctx.mark_dirty(s)
        return x, to_max(from_max(s) + 1)

    f = function(forward=forward, backward=lambda ctx, g, gs: (g, gs)).apply
    assert readable(f(X, to_max(jnp.float32(3)))) == (2, 4)


def test_the_tools():
    f = function(
        "F", forward=lambda ctx, x, s: 3 * x, backward=lambda ctx, g: (3 * g, None)
    )
    with pytest.raises(TypeError, match="extended dtype, max32.*convert_element_type"):
        jaxfn.check(f, X, SCALE)
    assert "max32[]" in str(jaxfn.explain(f, X, SCALE))
    with pytest.warns(UserWarning, match="double precision"):
        assert jaxfn.autograd.gradcheck(
            f.apply, (X, SCALE), eps=1e-2, atol=1e-1, rtol=1e-1
        )
    with pytest.raises(TypeError, match="another array of an extended dtype"):
        jaxfn.host_function(np.asarray)(SCALE)
