"""The slips of a first day: each message names the class, the rule and the way out."""

import functools
import importlib.util
import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax._src import source_info_util
from jax.experimental import sparse

import jaxfn
from tests.build import function

X = jnp.array([1.0, 2.0])
HERE = Path(__file__).name


def identity(ctx, x):
    return 1 * x


WAYS = {"plain": lambda f: f, "jit": jax.jit, "grad": jax.grad}


@pytest.mark.parametrize("way", WAYS)
def test_forward_takes_ctx_beside_setup_context(way):
    def forward(ctx, x):
        return x

    f = function(
        "Late",
        forward=forward,
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, g: g,
    )
    match = (
        r"missing 1 required positional argument.*`Late.forward` is called with 1 "
        r"argument, .*without ctx.*There is a setup_context.*remove ctx"
    )
    with pytest.raises(TypeError, match=match):
        WAYS[way](f.apply)(1.0)


NO_CTX = {
    "one": (lambda q: 2 * q, (1.0,), r"forward\(ctx, q\).*forward\(q\)"),
    "none": (lambda: X, (), r"forward\(ctx\).*forward\(\)"),
    "default": (lambda q, n=2: n * q, (1.0, 3), r"forward\(ctx, q, n=2\)"),
    "keyword": (lambda q, *, n=2: n * q, (1.0,), r"forward\(ctx, q, \*, n=2\)"),
    "class": (classmethod(lambda cls, q: 2 * q), (1.0,), r"forward\(ctx, q\)"),
    "cast": (
        jaxfn.amp.custom_fwd(lambda q: 2 * q, device_type="cuda"),
        (1.0,),
        r"forward\(ctx, q\)",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("forward", NO_CTX)
def test_forward_without_ctx_and_without_setup_context(forward, way):
    rule, args, styles = NO_CTX[forward]
    if not args and way == "grad":
        return  # there is nothing to differentiate
    f = function("Bare", forward=rule, backward=lambda ctx, g: 2 * g)
    match = (
        r"(was|were) given.*`Bare.forward` is called with ctx and the arguments of "
        rf"apply, {len(args) + 1} in all; .*no setup_context.*{styles}"
        r".*define setup_context\("
    )
    with pytest.raises(TypeError, match=match):
        WAYS[way](f.apply)(*args)


TAKES_CTX_FOR_AN_ARRAY = {
    "operation": lambda q, n=2: n * q,
    "call": lambda q, n=2: jnp.sin(q),
    "attribute": lambda q, n=2: q.shape,
    "several": lambda *qs: 2 * qs[0],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("forward", TAKES_CTX_FOR_AN_ARRAY)
def test_forward_takes_ctx_for_an_array(forward, way):
    rule = TAKES_CTX_FOR_AN_ARRAY[forward]
    f = function("Bare", forward=rule, backward=lambda ctx, g: 2 * g)
    with pytest.raises((TypeError, AttributeError), match="BareBackward") as error:
        WAYS[way](f.apply)(1.0)
    (note,) = [n for n in error.value.__notes__ if "Bare.forward" in n]
    assert "`Bare.forward` got ctx for its first parameter" in note
    assert "define setup_context(ctx, inputs, output)" in note


def second(backward):
    """The gradient of the second output of a Function with two."""
    f = function("Two", forward=lambda ctx, x: (x, 2 * x), backward=backward).apply
    return jax.grad(lambda x: f(x)[1])(1.0)


def product_tangent(jvp):
    f = function("Two", forward=lambda ctx, x, y: x * y, jvp=jvp).apply
    return jax.jvp(f, (1.0, 1.0), (1.0, 1.0))


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (
            lambda: second(lambda ctx, g: (g, g)),
            (
                "takes 2 positional arguments but 3 were given. `Two.backward` is "
                "called with 3 arguments: ctx, and a gradient for each output.*got "
                r"backward\(ctx, g\)"
            ),
        ),
        (
            lambda: second(jaxfn.once_differentiable(lambda ctx, g: g)),
            "`Two.backward` is called with 3 arguments",
        ),
        (
            lambda: product_tangent(lambda ctx, t: t),
            "`Two.jvp` is called with 3 arguments: ctx, and a tangent for each arg",
        ),
    ],
    ids=["backward", "marked backward", "jvp"],
)
def test_a_rule_with_too_few_parameters(program, match):
    with pytest.raises(TypeError, match=match):
        program()


def helper(a):
    return a


def without_the_last(rule):
    @functools.wraps(rule)  # whose signature does not take what is passed
    def wrapper(*args):
        return rule(*args[:-1])

    return wrapper


@without_the_last
def raising(ctx, g):
    raise TypeError("mine")


def in_jvp(error):
    def jvp(ctx, t):
        assert ctx.needs_input_grad == (True,)
        raise error

    return jax.jvp(function("F", forward=identity, jvp=jvp).apply, (1.0,), (1.0,))


def call(forward, *args):
    return function("F", forward=forward, backward=lambda ctx, g: g).apply(*args)


# A program, words of its error, and others that would be untrue of it.
NOT_OURS = [
    (lambda: call(lambda ctx, x, y: x, X), "argument: 'y'", "is called with"),
    (lambda: call(lambda ctx, x: x, X, X), "but 3 were given", "setup_context"),
    (lambda: call(lambda q: q, X, X), "but 3 were given", "setup_context"),
    (lambda: call(lambda ctx, x: ctx.saved, X), "ctx.saved", "setup_context"),
    (lambda: call(lambda q, n: helper(q, n), X), "helper", "setup_context"),
    (lambda: second(lambda ctx, g, h: helper(g, h)), "helper", "is called with"),
    (lambda: second(lambda ctx, g, h: g * (1, 2.0)), "tuple", "ctx.saved_tensors"),
    (lambda: second(raising), "mine", "is called with"),
    (lambda: in_jvp(ValueError("mine")), "mine", "ctx."),
    (lambda: in_jvp(IndexError("mine")), "mine", "ctx."),
]


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("program", "words", "untrue"), NOT_OURS, ids=[row[1] for row in NOT_OURS]
)
def test_nothing_untrue_is_said_of_other_errors(program, words, untrue):
    kinds = (TypeError, AttributeError, ValueError, IndexError)
    with pytest.raises(kinds, match=words) as error:
        program()
    assert untrue not in str([error.value, *getattr(error.value, "__notes__", ())])


def test_setup_context_with_too_few_parameters():
    f = function(
        "Two",
        forward=lambda x: x,
        setup_context=lambda ctx, inputs: None,
        backward=lambda ctx, g: g,
    )
    for way in WAYS.values():
        with pytest.raises(TypeError, match=r"three arguments: ctx, inputs and output"):
            way(f.apply)(1.0)


def test_jvp_reads_what_was_saved_for_backward():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 * x

    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * x

    f = function("F", forward=forward, jvp=jvp)
    with pytest.raises(ValueError, match="not enough values to unpack") as error:
        jax.jvp(f.apply, (1.0,), (1.0,))
    assert "`F.jvp` found nothing in ctx.saved_tensors" in error.value.__notes__[0]
    assert "Call save_for_forward too" in error.value.__notes__[0]


def test_an_index_that_needs_input_grad_has_not():
    def forward(ctx, x):
        return x * ctx.needs_input_grad[1]

    f = function("F", forward=forward, backward=lambda ctx, g: g)
    for way in WAYS.values():
        with pytest.raises(IndexError, match="tuple index out of range") as error:
            way(f.apply)(1.0)
        note = error.value.__notes__[0]
        assert "`F.forward` read ctx.needs_input_grad, of length 1" in note


def test_an_instance_is_not_a_call():
    f = function("F", forward=identity, backward=lambda ctx, g: g)
    with pytest.warns(DeprecationWarning, match=r"Call `F.apply\(...\)`"):
        f(1.0)


def test_a_python_number_is_saved():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    f = function("F", forward=forward, backward=lambda ctx, g: g)
    match = r"got 3.0, in `F.forward`.*is static: it has no gradient.*jnp.asarray\(x\)"
    with pytest.raises(TypeError, match=match):
        f.apply(3.0)


def test_taylor_mode():
    f = function("F", forward=identity, backward=lambda ctx, g: g)
    from jax.experimental.jet import jet

    with pytest.raises(RuntimeError, match=r"`F` was called inside of jet.*nest jax"):
        jet(f.apply, (1.0,), ((1.0, 0.0),))


def test_a_gradient_with_other_flags():
    def backward(ctx, g):
        return sparse.BCOO((jnp.full(2, g), ctx.indices), shape=(2, 2))

    def forward(ctx, m):
        ctx.indices = m.indices
        return m.data.sum()

    f = function("F", forward=forward, backward=backward)
    m = sparse.BCOO.fromdense(jnp.eye(2))
    match = "Both are a BCOO, which differ in what they hold beside their arrays"
    with pytest.raises(ValueError, match=match):
        jax.grad(f.apply, allow_int=True)(m)


# ---- where the rule is


class Wrong(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g, g


class Raises(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        raise KeyError("mine")


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_a_message_about_a_rule_tells_its_file_and_line(transform):
    with pytest.raises(ValueError, match="incorrect number") as error:
        transform(Wrong.apply)(1.0)
    line = Wrong.backward.__code__.co_firstlineno
    assert str(error.value).endswith(f"{HERE}:{line}.)")
    assert str(error.value).count("`Wrong.backward` is at") == 1


def test_the_innermost_rule_is_told():
    def backward(ctx, g):
        return jax.grad(Wrong.apply)(g)

    outer = function("Outer", forward=identity, backward=backward)
    with pytest.raises(ValueError, match="incorrect number") as error:
        jax.grad(outer.apply)(1.0)
    assert "`Wrong.backward` is at" in str(error.value)
    assert "`Outer.backward` is at" not in str(error.value)


CALLS = {
    "grad": lambda: jax.grad(Wrong.apply)(1.0),
    "jit of grad": lambda: jax.jit(jax.grad(Wrong.apply))(1.0),
    "plain": lambda: Raises.apply(X),
    "jit": lambda: jax.jit(Raises.apply)(X),
}


@pytest.mark.parametrize("call", CALLS)
def test_tracebacks_show_the_users_frames_alone(call):
    with pytest.raises((ValueError, KeyError)) as error:
        CALLS[call]()
    files = {f.filename for f in traceback.extract_tb(error.value.__traceback__)}
    package = str(Path(jaxfn.__file__).parent)
    assert any(Path(name).name == HERE for name in files)
    assert not [name for name in files if name.startswith(package)]


def test_a_package_beside_ours_is_a_users():
    # JAX compares beginnings of paths: jaxfn must not hide jaxfn_examples.
    package = str(Path(jaxfn.__file__).parent)
    assert not source_info_util.is_user_filename(f"{package}/_methods/node.py")
    assert source_info_util.is_user_filename(f"{package}_examples/model.py")
    assert source_info_util.is_user_filename(f"{package}.py")


def test_all_frames_are_shown_on_request():
    code = (
        "import jax, jaxfn, traceback\n"
        "class F(jaxfn.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): raise KeyError\n"
        "try: F.apply(jax.numpy.ones(1))\n"
        "except KeyError: print(traceback.format_exc())\n"
    )
    env = os.environ | {"JAX_TRACEBACK_FILTERING": "off"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert "_function" in run.stdout, run.stderr


def test_jaxprs_show_the_names_of_rules():
    text = str(jax.make_jaxpr(Wrong.apply)(1.0))
    for words in ("name=Wrong\n", "fwd=Wrong.forward", "bwd=Wrong.backward"):
        assert words in text
    both = function(
        "Both", forward=identity, backward=lambda c, g: g, jvp=lambda c, t: t
    )
    text = str(jax.make_jaxpr(both.apply)(1.0))
    assert "name=Both\n" in text
    assert "Both.jvp" in text


# ---- a gradient that is missing


@pytest.mark.parametrize("way", [jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_backward_without_a_return(way):
    def backward(ctx, g):
        2 * g

    f = function("F", forward=identity, backward=backward)
    line = backward.__code__.co_firstlineno
    match = rf"`F.backward` returned None, so .* missing.*{HERE}:{line}.\)"
    with pytest.warns(UserWarning, match=match):
        assert way(f.apply)(1.0) == 0


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, g: (None,),
        lambda ctx, g: jnp.zeros_like(g),
        lambda ctx, g: g if ctx.needs_input_grad[0] else None,
    ],
)
def test_a_zero_gradient_that_is_meant(backward, recwarn):
    f = function("F", forward=identity, backward=backward)
    jax.grad(f.apply)(1.0)
    assert not recwarn.list


# ---- arguments and attributes of another kind


def saving(ctx, x):
    ctx.save_for_backward(x)
    return 2 * x


def test_a_list_of_numbers_is_no_array():
    f = function("F", forward=saving, backward=lambda ctx, g: g)
    with pytest.raises(TypeError, match=r"no array. Pass jnp.asarray\(x\) to apply"):
        f.apply([1.0, 2.0])


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_a_tensor_of_torch_is_no_array():
    import torch

    f = function("F", forward=saving, backward=lambda ctx, g: g)
    with pytest.raises(TypeError, match=r"Pass a JAX array.*jaxfn.torch.from_torch"):
        f.apply(torch.ones(2))
    torch_class = type("T", (torch.autograd.Function,), {})
    with pytest.raises(TypeError, match="module of PyTorch, `T`.*jaxfn.torch.explain"):
        jaxfn.explain(torch_class, X)


def test_the_torch_part_must_be_imported():
    code = "import jaxfn; jaxfn.torch"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "write `import jaxfn.torch`, which needs PyTorch" in run.stderr


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ("a", r"`F.backward`.*another structure.*`d`.*It lacks the keys \['b'\]\. \("),
        ("abc", r"any part\), got .*\. The argument does not have \['c'\]\."),
        ("ac", r"It lacks the keys \['b'\]\. The argument does not have \['c'\]\."),
    ],
)
def test_a_gradient_without_a_key_or_with_one_too_many(keys, match):
    f = function(
        "F",
        forward=lambda ctx, d: d["a"] * d["b"],
        backward=lambda ctx, g: dict.fromkeys(keys, g),
    )
    with pytest.raises(ValueError, match=match):
        jax.grad(f.apply)({"a": 1.0, "b": 2.0})
