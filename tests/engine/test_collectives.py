"""Rules that use the axis of a vmap by its name."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxfn
from tests.build import allclose, function, rules_of, saving

X = jnp.float32([1, 2, 3])
S = jnp.float32(5)


@pytest.mark.parametrize("rules", ["backward", "both"])
def test_collectives_in_forward_and_backward(rules):
    rule = lambda ctx, g: lax.psum(g, "i")  # noqa: E731
    total = lambda x: lax.psum(x, "i")  # noqa: E731
    f = function(forward=lambda ctx, x: total(x), **rules_of(rules, rule, rule)).apply

    def loss(f):
        return lambda x: (jax.vmap(f, axis_name="i")(x) * jnp.sin(x)).sum()

    def second(f):
        return jax.grad(lambda x: jax.grad(loss(f))(x).sum())

    for call in (jax.grad(loss(f)), jax.jit(jax.grad(loss(f)))):
        allclose(call(X), jax.grad(loss(total))(X))
    allclose(second(f)(X), second(total)(X))


# ---- while what is differentiated is the same for all examples


RULES = {
    "psum": lambda t: lax.psum(t, "i"),
    "all_gather": lambda t: lax.all_gather(t, "i").sum(),
    "axis_index": lambda t: t * (1.0 + lax.axis_index("i")),
}


def plain(rule):
    f = jax.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda xs, ts: (f(*xs), rule(ts[0] * xs[0])))
    return f


def decorated(rule, backward):
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (backward(g * x),))
    f.defjvp(lambda xs, ts: (f(*xs), rule(ts[0] * xs[0])))
    return f


def of_class(**members):
    def build(rule, backward):
        found = {
            "jvp": lambda ctx, t: rule(t * ctx.saved_tensors[0]),
            "backward": lambda ctx, g: backward(g * ctx.saved_tensors[0]),
        }
        rules = {
            key: found[key] if value is None else value
            for key, value in members.items()
        }
        return function(forward=lambda x: 2 * x, setup_context=saving(), **rules).apply

    return build


KINDS = {
    "jvp": of_class(jvp=None),
    "both": of_class(jvp=None, backward=None),
    "derived": of_class(backward=None, generate_jvp_rule=True),
    "decorated": decorated,
}


def mapped(f, x):
    """A batch of f(x), where x is the same for all."""
    return jax.vmap(lambda z: 0 * z + f(x), axis_name="i")(X)


def within(transform):
    """Transform f within the vmap."""
    return lambda f: jax.vmap(lambda z: 0 * z + transform(f)(S), axis_name="i")(X)


def push(f):
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


def twice(f):
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2)[0]


FORWARD = {
    "vmap(jvp)": within(push),
    "vmap(jvp(jit))": within(lambda f: push(jax.jit(f))),
    "vmap(jvp(scan))": within(lambda f: push(twice(f))),
    "vmap(jacfwd(jacfwd))": within(lambda f: jax.jacfwd(jax.jacfwd(f))),
    "jvp(vmap)": lambda f: push(lambda x: mapped(f, x))(S),
    "jvp(vmap(jit))": lambda f: push(lambda x: mapped(jax.jit(f), x))(S),
    "jacfwd(jacfwd(vmap))": lambda f: jax.jacfwd(jax.jacfwd(lambda x: mapped(f, x)))(S),
}
# Backward is psum(g * x): 3 equal summands where g is shared, and g is the sum of the
# weights 1, 2, 3 outside of the vmap.
REVERSE = {
    "vmap(grad)": (within(jax.grad), 15),
    "vmap(grad(jit))": (within(lambda f: jax.grad(jax.jit(f))), 15),
    "grad(vmap)": (lambda f: jax.grad(lambda x: (mapped(f, x) * X).sum())(S), 90),
    "grad(vmap(jit))": (
        lambda f: jax.grad(lambda x: (mapped(jax.jit(f), x) * X).sum())(S),
        90,
    ),
    "jacfwd(grad(vmap))": (
        lambda f: jax.jacfwd(jax.grad(lambda x: (mapped(f, x) * X).sum()))(S),
        18,
    ),
}
PLACES = pytest.mark.parametrize("place", [lambda f: f, jax.jit], ids=["eager", "jit"])


# One rule of each kind; the others are of the same mechanism.
@pytest.mark.full(
    unless=lambda kind, rule, place, **_: (
        (rule == "psum") == (kind != "both") and place is jax.jit
    )
)
@PLACES
@pytest.mark.parametrize("program", FORWARD)
@pytest.mark.parametrize(
    ("kind", "rule"),
    # A derived jvp is the transpose of backward, which JAX finds.
    [(k, r) for k in KINDS for r in RULES if k != "derived" or r == "psum"],
)
def test_forward_mode_is_that_of_a_custom_jvp(kind, rule, program, place):
    def run(f):
        return place(lambda: FORWARD[program](f))()

    f = KINDS[kind](RULES[rule], RULES["psum"])
    if (rule, program) == ("axis_index", "jacfwd(jacfwd(vmap))"):
        # An output that all share can't have a derivative for each of them.
        with pytest.raises(RuntimeError, match="a derivative that differs among them"):
            run(f)
    else:
        allclose(run(f), run(plain(RULES[rule])))


@pytest.mark.full(unless=lambda jvp, place, **_: jvp == "nothing" and place is jax.jit)
@PLACES
@pytest.mark.parametrize("program", REVERSE)
@pytest.mark.parametrize("kind", ["both", "derived", "decorated"])
@pytest.mark.parametrize("jvp", ["psum", "nothing"])
def test_backward_finds_the_axis(jvp, kind, program, place):
    """Also where jvp does not use it, as in model parallelism."""
    f = KINDS[kind](RULES["psum"] if jvp == "psum" else lambda t: t, RULES["psum"])
    run, expected = REVERSE[program]
    allclose(place(lambda: run(f))(), expected)


@pytest.mark.parametrize("program", ["grad(vmap)", "grad(vmap(jit))"])
@pytest.mark.parametrize("kind", ["both", "decorated"])
def test_what_all_share_can_not_have_a_backward_for_each(kind, program):
    """JAX has the sum of their cotangents, and refuses it for a custom_vjp as well."""
    f = KINDS[kind](lambda t: t, RULES["axis_index"])
    with pytest.raises(RuntimeError, match="derivative that differs among them"):
        REVERSE[program][0](f)


# Not under jit: there JAX loses the batch axis of a plain custom_jvp as well.
def test_a_derived_jvp_gives_each_example_its_own():
    f = KINDS["derived"](None, RULES["axis_index"])
    allclose(REVERSE["grad(vmap)"][0](f), S * (1 * 1 + 2 * 2 + 3 * 3))


# ---- in a vmap that has been traced, when JAX has forgotten the name of its axis


LATER = {
    "jvp(jit(vmap))": lambda h: push(jax.jit(h))(S),
    "jit(jvp(jit(vmap)))": lambda h: jax.jit(push(jax.jit(h)))(S),
    "jvp(scan(vmap))": lambda h: push(
        lambda x: lax.scan(lambda c, _: (c + h(x), None), jnp.zeros(3), None, 2)[0]
    )(S),
    "jvp(checkpoint(vmap))": lambda h: push(jax.checkpoint(h))(S),
    "jacfwd(jacfwd(jit(vmap)))": lambda h: jax.jacfwd(jax.jacfwd(jax.jit(h)))(S),
}


@pytest.mark.full(unless=lambda kind, program, **_: program == "jvp(jit(vmap))")
@pytest.mark.parametrize("program", LATER)
@pytest.mark.parametrize("what", ["one", "own"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["both", "decorated"])
def test_jvp_finds_the_axis_later_too(kind, rule, what, program):
    def batch(f):
        if what == "one":
            return lambda x: mapped(f, x)
        return lambda x: jax.vmap(f, axis_name="i")(x * jnp.float32([1, 10, 100]))

    # There is no size of an axis there for an all_gather of a custom_jvp: as a psum.
    expected = plain(RULES["psum" if rule == "all_gather" else rule])
    f = KINDS[kind](RULES[rule], RULES["psum"])
    if (rule, what, program) == ("axis_index", "one", "jacfwd(jacfwd(jit(vmap)))"):
        with pytest.raises(RuntimeError, match="derivative that differs among them"):
            LATER[program](batch(f))
    else:
        allclose(LATER[program](batch(f)), LATER[program](batch(expected)))
