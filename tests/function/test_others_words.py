"""Errors in the words of JAX, PyTorch and Python get a note: rule, cause, way out."""

import importlib.util
import pickle
import re
import traceback
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn._advice import words as advice
from tests.build import function

X = jnp.array([1.0, -2.0])


def in_place(ctx, x):
    x[0] = 1
    return x


def scaled(ctx, x, scale=2):
    ctx.scale = scale
    return x * scale


WORDS = {
    "if": (lambda ctx, x: x if x.sum() > 0 else -x, r"jnp.where\(cond, a, b\)"),
    "a mask": (lambda ctx, x: x[x > 0], r"jnp.where\(mask, x, 0\)"),
    "a write by mask": (lambda ctx, x: x.at[x > 0].set(0), r"jnp.where\(mask, v, x\)"),
    "int": (lambda ctx, x: x * int(x[0]), r"Keep the array.*F.apply\(x, True\)"),
    "item": (lambda ctx, x: x * x[0].item(), r"read the value of a traced array"),
    "range": (lambda ctx, x: [x for _ in range(x.astype(int)[0])], "range"),
    "a shape": (lambda ctx, x: x + jnp.zeros(x.astype(int)[0]), r"jnp.zeros\(n\)"),
    "a write": (in_place, r"x.at\[i\].set\(v\)"),
    "a method": (lambda ctx, x: x.clamp(0), r"x.clamp,.*jnp.clip\(x, lower, upper\)"),
    "a name of jnp": (lambda ctx, x: x.exp(), r"Write jnp.exp\(x\)"),
    "no name of jnp": (lambda ctx, x: jnp.cat([x, x]), r"jnp.concatenate\(arrays"),
    "a name of jax.nn": (lambda ctx, x: x.relu(), r"Write jax.nn.relu\(x\)"),
    "two arguments": (lambda ctx, x: x.copysign(x), r"Write jnp.copysign\(x, x2\)"),
    "dim": (lambda ctx, x: x.sum(dim=0), "dim is axis, keepdim is keepdims"),
    "keepdim": (lambda ctx, x: jnp.max(x, 0, keepdim=True), "keepdim is keepdims"),
    "size": (lambda ctx, x: x.size(0), r"x.size\(i\): x.shape\[i\]"),
    "view": (lambda ctx, x: x.view(-1), r"x.reshape\(shape\)"),
    "view of two": (lambda ctx, x: x.view(2, 1), r"x.reshape\(shape\)"),
    "flatten": (lambda ctx, x: x[None].flatten(1), r"x.reshape\(x.shape\[0\], -1\)"),
    "in place": (lambda ctx, x: x.tanh_(), r"jnp.tanh\(x\), and assign the result"),
    "another method": (lambda ctx, x: x.pin_memory(), r"JAX arrays do not\."),
    "an axis": (lambda ctx, x: x.softmax(0), r"Write jax.nn.softmax\(x, axis\)"),
    "a draw": (lambda ctx, x: x.uniform_(), "a function of jax.random, with a key"),
    "unbiased": (lambda ctx, x: x.std(0, unbiased=True), "unbiased is ddof=1"),
    "a shape of zeros": (lambda ctx, x: x + jnp.zeros(2, 3), r"jnp.zeros\(\(2, 3\)\)"),
    "ctx last": (lambda x, ctx: ctx.save_for_backward(x), "ctx is the first parameter"),
}


def noted(error):
    """The only note that names the rule."""
    (note,) = [n for n in error.__notes__ if n.startswith("`")]
    return note


@pytest.mark.parametrize("kind", WORDS)
def test_an_error_in_jaxs_words_has_a_note(kind):
    forward, way_out = WORDS[kind]
    f = function("F", forward=forward, backward=lambda ctx, g: g)
    kinds = TypeError, AttributeError, IndexError, NotImplementedError, ValueError
    with pytest.raises(kinds) as error:
        jax.jit(f.apply)(X)
    assert "`F.forward`" in noted(error.value)
    assert error.match(way_out)


NAMES = {
    "jax": jax,
    "jnp": jnp,
    "x": X[None],
    "y": X[None],
    "arrays": [X, X],
    "axis": 0,
    "ord": 2,
    "ctx": types.SimpleNamespace(needs_input_grad=(True,)),
    "dtype": jnp.float16,
    "i": 0,
    "index": jnp.zeros((1, 2), int),
    "k": 1,
    "lower": 0,
    "upper": 1,
    "mask": X > 0,
    "n": 1,
    "shape": (1, 2),
    "axes": (1, 0),
    "value": 3,
    "np": np,
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.parametrize("method", advice._METHODS)
def test_what_a_note_says_runs(method):
    code = re.split(", (with|for|and) |: |; | itself", advice._METHODS[method])[0]
    names = NAMES | ({"x": X[None].T, "y": X[None]} if "@" in code else {})
    names |= {"n": 0} if method == "split" else {}
    if not code.startswith(("the result", "nothing")):
        eval(code, names)


def decorated(rule_name, mistake):
    """A decorated function of which one rule is mistaken; and what runs this rule."""

    @jaxfn.custom_function
    def f(x):
        return mistake(x) if rule_name == "" else 2 * x

    def fwd(x):
        return (mistake(x) if rule_name == "fwd" else 2 * x), x

    def bwd(x, g):
        return (2 * (mistake(g) if rule_name == "bwd" else g),)

    if rule_name == "def_vmap":
        f.def_vmap(lambda size, batched, x: (mistake(x), True))
        return jax.vmap(f)
    if rule_name == "jvp":
        f.defjvp(lambda p, t: (f(*p), mistake(t[0])))
        return lambda x: jax.jvp(f, (x,), (x,))
    if rule_name == "jvps":
        f.defjvps(lambda t, out, x: mistake(t))
        return lambda x: jax.jvp(f, (x,), (x,))
    f.defvjp(fwd, bwd)
    return f if rule_name == "" else jax.grad(lambda x: f(x).sum())


MISTAKES = {
    "NumPy": (lambda x: jnp.asarray(np.sin(x)), "gave a traced array to NumPy.*host_f"),
    "if": (lambda x: x if x.sum() > 0 else -x, r"jnp.where\(cond, a, b\).*nondiff_arg"),
    "int": (lambda x: x * int(x.sum()), "Keep the array.*nondiff_argnums"),
    "a mask": (lambda x: x[x > 0], r"jnp.where\(mask, x, 0\)"),
    "a write": (lambda x: in_place(None, x), r"x.at\[i\].set\(v\)"),
    "a method": (lambda x: x.clamp(0), r"jnp.clip\(x, lower, upper\)"),
}


@pytest.mark.parametrize("rule", ["", "fwd", "bwd", "jvp", "jvps", "def_vmap"])
@pytest.mark.parametrize("kind", MISTAKES)
def test_a_rule_of_a_decorated_function_has_the_same_notes(kind, rule):
    mistake, way_out = MISTAKES[kind]
    with pytest.raises(Exception, match=way_out) as error:
        jax.jit(decorated(rule, mistake))(X)
    assert not isinstance(error.value, jaxfn.RuleError)  # the type is JAX's own
    name = {"": "f", "jvps": "f.jvp"}.get(rule, f"f.{rule}")
    assert noted(error.value).startswith(f"`{name}` ")


@pytest.mark.parametrize("kind", ["a write", "a method"])
def test_a_decorated_function_outside_of_a_trace_too(kind):
    mistake, way_out = MISTAKES[kind]
    with pytest.raises((TypeError, AttributeError), match=way_out):
        decorated("", mistake)(X)


def test_a_flag_of_a_decorated_function_that_jit_traces():
    @jaxfn.custom_function
    def f(x, flag):
        return x if flag else -x

    f.defvjp(lambda x, flag: (f(x, flag), None), lambda _, g: (g, None))
    with pytest.raises(jax.errors.TracerBoolConversionError, match="nondiff_argnums"):
        jax.jit(lambda x: f(x, True))(X)
    # What the note says.
    f = jaxfn.custom_function(f.fun, nondiff_argnums=1)
    f.defvjp(lambda x, flag: (f(x, flag), None), lambda flag, _, g: (g,))
    assert jax.jit(lambda x: f(x, False))(X).tolist() == (-X).tolist()


@pytest.mark.parametrize("kind", ["a write", "a method"])
def test_outside_of_a_trace_too(kind):
    forward, way_out = WORDS[kind]
    f = function("F", forward=forward, backward=lambda ctx, g: g)
    with pytest.raises((TypeError, AttributeError), match=way_out):
        f.apply(X)


def test_a_flag_that_jit_traces():
    f = function("F", forward=lambda ctx, x, flag: x if flag else -x)
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        jax.jit(f.apply)(X, True)
    assert error.match(r"`jax.jit\(lambda x: F.apply\(x, True\)\)`")


def test_the_innermost_rule_alone_is_noted():
    inner = function("Inner", forward=WORDS["if"][0], backward=lambda ctx, g: g)
    outer = function(
        "Outer", forward=lambda ctx, x: inner.apply(x), backward=lambda ctx, g: g
    )
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        jax.jit(outer.apply)(X)
    assert noted(error.value).startswith("`Inner.forward`")


def test_the_users_own_errors_have_no_note():
    def forward(ctx, x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as error:
        function("F", forward=forward).apply(X)
    assert not [n for n in getattr(error.value, "__notes__", ()) if n.startswith("`")]


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "plain"])
def test_torch_on_a_jax_array(run):
    import torch

    f = function("F", forward=lambda ctx, x: torch.exp(x))
    with pytest.raises(TypeError, match=r"write jnp.exp\(x\).*from_torch"):
        run(f.apply)(X)
    f = function("F", forward=lambda ctx, x: x * torch.ones(2))
    with pytest.raises(TypeError, match="`F.forward` mixed a JAX array with PyTorch"):
        run(f.apply)(X)


@pytest.mark.parametrize(
    ("attribute", "way_out"),
    [
        ("k", "Attributes that were set: scale.\n"),
        ("scal", r"Did you mean ctx.scale\?"),
        ("saved_tensor", r"Did you mean ctx.saved_tensors\?"),
    ],
)
def test_an_attribute_that_forward_did_not_set(attribute, way_out):
    f = function(
        "F", forward=scaled, backward=lambda ctx, g: g * getattr(ctx, attribute)
    )
    with pytest.raises(AttributeError) as error:
        jax.grad(lambda x: f.apply(x).sum())(X)
    assert error.match(rf"`F.backward` read ctx.{attribute}, which was not set")
    assert error.match(way_out)


class WithSelf(jaxfn.Function):
    def forward(self, ctx, x):  # pyright: ignore
        return x


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "plain"])
def test_a_rule_with_self(run):
    with pytest.raises(TypeError, match="parameter self.*put @staticmethod above"):
        run(WithSelf.apply)(X)


def test_an_unknown_keyword():
    with pytest.raises(TypeError, match="keyword argument 'by'.*`F.apply` takes x, sc"):
        function("F", forward=scaled).apply(X, by=2)


def test_a_dirty_array_that_is_used_again():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x + 1

    f, x = function("F", forward=forward), X + 1
    f.apply(x)
    with pytest.raises(RuntimeError, match="`F.forward` got an array that no longer"):
        f.apply(x)


TUPLES = {
    "minus": lambda m, g: g * (m - 0.1),
    "behind": lambda m, g: 0.1 - m,
    "product": lambda m, g: m * 2.0,
    "jnp": lambda m, g: g * jnp.cos(m),
    "negative": lambda m, g: -m,
    "compared": lambda m, g: jnp.where(m > 0, g, 0),
    "method": lambda m, g: m.sum() * g,
}


@pytest.mark.parametrize("kind", TUPLES)
@pytest.mark.parametrize("n", [1, 2])
def test_saved_tensors_without_a_comma(kind, n):
    def forward(ctx, x):
        ctx.save_for_backward(*[x] * n)
        return 2 * x

    f = function(
        "F",
        forward=forward,
        backward=lambda ctx, g: TUPLES[kind](ctx.saved_tensors, g),
    )
    with pytest.raises((TypeError, AttributeError)) as error:
        jax.grad(lambda x: f.apply(x).sum())(X)
    way_out = {1: "`(x,) = ctx.saved_tensors`", 2: "`x, y = ctx.saved_tensors`"}[n]
    assert noted(error.value).startswith("`F.backward` used a tuple")
    assert way_out in noted(error.value)


def looped(steps):
    """A rule that computes its derivative with a loop."""

    def backward(ctx, g):
        n = 3 if steps == "known" else jnp.int32(3)

        def run(x):
            return jax.lax.fori_loop(0, n, lambda _, u: 2 * u, x)

        return jax.vjp(jax.jit(run), g)[1](g)[0]

    return function("F", forward=lambda ctx, x: 8 * x, backward=backward)


def test_reverse_mode_of_a_while_loop_inside_of_a_rule():
    def gradient(f):
        return jax.jit(jax.grad(lambda x: f.apply(x).sum()))(X)

    with pytest.raises(ValueError, match="Reverse-mode differentiation") as error:
        gradient(looped("traced"))
    note = noted(error.value)
    assert note.startswith("`F.backward` took the reverse derivative of a while loop")
    assert "Python numbers" in note
    assert gradient(looped("known")).tolist() == [8, 8]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_in_linear_algebra(dtype):
    f = function("F", forward=lambda ctx, x: jnp.linalg.inv(x))
    x = 2 * jnp.eye(2, dtype=dtype)
    with pytest.raises((NotImplementedError, TypeError)) as error:
        f.apply(x)
    assert noted(error.value).startswith("`F.forward` called a function")
    assert "jnp.linalg.inv(x.astype(jnp.float32)).astype(x.dtype)" in noted(error.value)
    cast = jnp.linalg.inv(x.astype(jnp.float32)).astype(x.dtype)
    assert (cast.dtype, cast[0, 0]) == (dtype, 0.5)


# ---- tracebacks


def raised(call):
    with pytest.raises(jaxfn.RuleError) as error:
        call()
    return error.value


def test_errors_have_public_names():
    f = function("F", forward=lambda ctx, x: x, backward=lambda ctx, g: (g, g))
    error = raised(lambda: jax.grad(f.apply)(1.0))
    assert traceback.format_exception_only(error)[0].startswith("jaxfn.RuleValueError:")
    assert isinstance(error, jaxfn.RuleError)
    assert type(error) is jaxfn.RuleValueError
    assert type(pickle.loads(pickle.dumps(error))) is jaxfn.RuleValueError


def test_chains_of_our_own_are_not_shown():
    f = function("F", forward=lambda ctx, x: x, backward=lambda ctx, g: {"a": g})
    misfit = function("F", forward=lambda ctx, x: (x, x), backward=lambda ctx, g: g)
    other = raised(lambda: jax.vjp(f.apply, {"a": X, "b": X})[1]({"a": X, "b": X}))
    for error in (other, raised(lambda: jax.vjp(misfit.apply, X)[1]((X, X)))):
        text = "".join(traceback.format_exception(error))
        assert "During handling" not in text


def test_another_name_for_ctx():
    def forward(self, x):
        self.save_for_backwards(x)
        return x

    f = function("F", forward=forward, backward=lambda ctx, g: g)
    with pytest.raises(AttributeError, match=r"Did you mean ctx.save_for_backward\?"):
        f.apply(X)


def unpacks(ctx, g):
    (x,) = ctx.saved_tensors
    return g * x


@pytest.mark.parametrize("backward", [unpacks, lambda ctx, g: g * ctx.saved_tensors[0]])
def test_nothing_was_saved(backward):
    f = function("F", forward=lambda ctx, x: x * 2, backward=backward)
    with pytest.raises((ValueError, IndexError), match="saved_tensors is a tuple of 0"):
        jax.grad(lambda x: f.apply(x).sum())(X)


def test_a_misspelt_rule_is_named():
    f = function("F", foward=scaled)
    with pytest.raises(NotImplementedError, match="has `foward`: is it a misspelling"):
        f.apply(X)
    f = function("F", forward=scaled, backwards=lambda ctx, g: g)
    with pytest.raises(NotImplementedError, match="has `backwards`: is it a missp"):
        jax.grad(lambda x: f.apply(x).sum())(X)


def test_a_while_loop_is_not_told_to_transpose_otherwise():
    def backward(ctx, g):
        return jax.lax.while_loop(lambda u: abs(u).max() < 3, lambda u: u * 2, g)

    f = function("F", forward=lambda ctx, x: x * 2, backward=backward)
    with pytest.raises(ValueError, match="scan of a fixed length, or jax.lax") as error:
        jax.hessian(lambda x: f.apply(x).sum())(X)
    assert "jacrev" not in str(error.value)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "plain"])
def test_a_tensor_as_an_argument(run):
    import torch

    f = function("F", forward=lambda ctx, x: x * 2)
    with pytest.raises(TypeError, match="returned a torch.Tensor.*jnp.asarray"):
        run(lambda _: f.apply(torch.ones(2)))(X)
    f = function("F", forward=lambda ctx, x: jnp.exp(x))
    with pytest.raises(TypeError, match="gave a torch.Tensor to JAX"):
        run(lambda _: f.apply(torch.ones(2)))(X)
    f = function("F", forward=lambda ctx, x: (x > 0).astype(jnp.float32))
    with pytest.raises(AttributeError, match=r"or got one.*jnp.asarray"):
        run(lambda _: f.apply(torch.ones(2)))(X)


def test_a_saved_function_that_closes_over_an_array():
    """It can't be registered: its array must be an argument."""

    def forward(ctx, x, f):
        ctx.f = f
        return f(x)

    f = function("F", forward=forward, backward=lambda ctx, g: (ctx.f(g), None))

    def loss(w):
        return f.apply(X, lambda x: x * jax.lax.stop_gradient(w)).sum()

    with pytest.raises(TypeError, match="Pass the array to apply as an argument"):
        jax.jit(lambda w: jax.grad(lambda x: loss(w) * x)(1.0))(2.0)
