"""What JAX refuses without jaxfn too, with the words that the laws allow.

Each row of notebooks/guides/troubleshooting.md that quotes JAX has its reproduction
here. One that JAX no longer refuses fails, and the row goes.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental.jet import jet

from jaxfn._core.messages import NOT_TRANSPOSED
from tests.build import function, in_style, rules_of, saving
from tests.laws.cells import COLLECTIVE, FORWARD, LINEARIZED, TRANSPOSED


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_batching.custom_vmap
def double(x):
    return 2 * x


double.def_vmap(lambda size, batched, x: (2 * x, batched[0]))


def centred(x):
    return x - lax.pmean(x, "i")


@jax.custom_vjp
def talking(x):
    return centred(x**3)


talking.defvjp(lambda x: (talking(x), x), lambda x, g: (centred(g) * 3 * x**2,))


@jax.custom_jvp
def talking_forward(x):
    return centred(x**3)


@talking_forward.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return talking_forward(x), centred(3 * x**2 * t)


def cosine(ctx, g):
    return g * jnp.cos(ctx.saved_tensors[0])


def sine_function(engine, backward=cosine, jvp=cosine):
    rules = in_style("combined", jnp.sin, saving()) | rules_of(engine, backward, jvp)
    return function("Sine", **rules).apply


X = jnp.float32(0.5)

allowed_next = pytest.mark.xfail(
    getattr(jax.config, "jax_custom_vjp3", False),
    reason="JAX's next implementation does not refuse it",
    strict=True,
)


def pushed(f):
    return lambda x: jax.linearize(f, x)[1](jnp.ones_like(x))


def total(f):
    return lambda x: (jax.vmap(f, axis_name="i")(jnp.stack([x, 2 * x])) ** 2).sum()


def test_forward_mode_of_a_reverse_rule():
    with pytest.raises(TypeError, match=FORWARD):
        jax.jvp(sine, (X,), (X,))


@pytest.mark.parametrize(
    "derivative",
    [
        jax.grad,
        lambda f: lambda x: jax.vmap(jax.grad(f))(x[None]),
        jax.jacfwd,
        lambda f: jax.jit(jax.jacfwd(f)),
    ],
    ids=["grad", "vmap of grad", "jacfwd", "jit of jacfwd"],
)
def test_derivative_of_a_linearized_reverse_rule(derivative):
    # The next implementation fails with a TypeError, before it can say so.
    refused = (NotImplementedError, TypeError)
    with pytest.raises(refused, match=f"{LINEARIZED}|{FORWARD}"):
        derivative(pushed(sine))(X)


@pytest.mark.parametrize("f", [sine, double])
def test_transposing_a_call(f):
    with pytest.raises(NotImplementedError, match=TRANSPOSED):
        jax.linear_transpose(f, X)(X)


def repeated(g):
    return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, 2 * s[1]), (0, g))[1]


def test_transposing_a_while_loop():
    # jax.linear_transpose is how the tangents of a Function with backward alone are
    # had; JAX has them by the derivative of the body, which a Function need not have.
    with pytest.raises((NotImplementedError, ValueError), match="while_loop|while"):
        jax.linear_transpose(repeated, X)(X)
    f = function(
        "Loop",
        forward=lambda ctx, x: 4 * x,
        backward=lambda ctx, g: repeated(g),
    ).apply
    assert jax.grad(f)(X) == 4
    with pytest.raises(ValueError, match="`Loop.backward` can't be transposed.*while"):
        jax.hessian(lambda x: f(x) ** 2)(X)


@allowed_next
def test_collective_of_a_vmap_in_a_derivative_of_a_reverse_rule():
    with pytest.raises(NameError, match=f"{COLLECTIVE}: i"):
        jax.grad(jax.grad(total(talking)))(X)


@allowed_next
def test_collective_of_a_vmap_in_a_branch():
    def branch(x):
        return jax.lax.cond(x > 0, talking, lambda x: 100 * x, x)

    with pytest.raises(NameError, match=f"{COLLECTIVE}: i"):
        jax.grad(total(branch))(X)


@allowed_next
def test_collective_of_a_vmap_in_a_forward_rule_that_is_linearized_through_jit():
    with pytest.raises(NameError, match=f"{COLLECTIVE}: i"):
        pushed(jax.jit(total(talking_forward)))(X)


@jax.custom_jvp
def forward_sine(x):
    return jnp.sin(x)


forward_sine.defjvps(lambda t, _, x: t * jnp.cos(x))


# In JAX's words, which depend on its version and settings, or for a Function in ours.
TAYLOR = "(?i)unexpected tracer|attribute 'process_primitive'|eval_jaxpr|inside of jet"

REFUSED_TAYLOR = (TypeError, AttributeError, KeyError, RuntimeError)


@pytest.mark.parametrize("f", [sine, forward_sine, sine_function("backward")])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_taylor_mode(f, transform):
    with pytest.raises(REFUSED_TAYLOR, match=TAYLOR):
        jet(transform(f), (X,), ((1.0, 0.0),))


EFFECT = "Effects not supported in (AD|partial-eval) of `checkpoint`"


def called_back(x):
    return io_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x)


@jax.custom_jvp
def calling_back(x):
    return jnp.sin(x)


calling_back.defjvps(lambda t, _, x: t * called_back(jnp.cos(x)))


def called_back_cosine(ctx, g):
    return g * called_back(jnp.cos(ctx.saved_tensors[0]))


CALLING_BACK = {
    "plain": calling_back,
    "derived": sine_function("derived", backward=called_back_cosine),
    "both": sine_function("both", jvp=called_back_cosine),
}


@allowed_next
@pytest.mark.parametrize("f", CALLING_BACK.values(), ids=CALLING_BACK)
def test_a_callback_of_a_forward_rule_in_a_checkpoint(f):
    with pytest.raises(NotImplementedError, match=EFFECT):
        jax.grad(jax.checkpoint(f))(X)


def test_the_page_lists_what_is_refused():
    root = Path(__file__).parent.parent.parent
    page = (root / "notebooks/guides/troubleshooting.md").read_text()
    tables = page[page.index("| words |") :].partition("## In a backward")[0]
    said = [row.split(" | ")[0] for row in tables.splitlines()]
    refused = [f"{FORWARD}.*{LINEARIZED}", TRANSPOSED, NOT_TRANSPOSED, COLLECTIVE]
    refused += [EFFECT, TAYLOR]
    for pattern in refused:
        assert any(re.search(pattern, words) for words in said), pattern
