"""Functions that draw random numbers: in JAX they take a key."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxfn.torch
from jaxfn.torch import translate
from jaxfn.torch._translate import table, verify
from jaxfn.torch._translate.table import drawing
from jaxfn.torch._translate.verify import load

from .texts import function

X = torch.tensor([[0.3, 0.2, 0.9], [0.1, 0.4, 0.7]])


def rows_of(found):
    return {r.check: r.status for r in found.comparison.results}


SAME = {
    "value with the same draws": "ok",
    "value with the same draws, under jit": "ok",
    "gradients with the same draws": "ok",
    "gradients with the same draws, under jit": "ok",
}

# ---- what is written

ONE_DRAW = """
class Noise(Function):
    @staticmethod
    def forward(ctx, x, scale=0.1):
        noise = scale * torch.randn_like(x)
        ctx.save_for_backward(noise)
        return x + x * noise

    @staticmethod
    def backward(ctx, g):
        (noise,) = ctx.saved_tensors
        return g + g * noise, None
"""
ONE_DRAW_IN_JAX = """
class Noise(jaxfn.Function):
    @staticmethod
    def forward(ctx, key, x, scale=0.1):
        noise = scale * jax.random.normal(key, x.shape, x.dtype)
        ctx.save_for_backward(noise)
        return x + x * noise

    @staticmethod
    def backward(ctx, g):
        (noise,) = ctx.saved_tensors
        return None, g + g * noise, None
"""
SEPARATE = """
class Rounded(Function):
    @staticmethod
    def forward(x: torch.Tensor, levels: int = 4) -> torch.Tensor:
        low = torch.floor(x * levels)
        up = torch.rand(x.shape, device=x.device) < x * levels - low
        # Some are left out.
        kept = torch.empty_like(x).bernoulli_(0.8)
        return (low + up) / levels * kept

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, levels = inputs
        ctx.levels = inputs[1]

    @staticmethod
    def backward(ctx, g):
        if ctx.needs_input_grad[0] and any(ctx.needs_input_grad):
            return (g * ctx.levels, None)
        return None, None
"""
SEPARATE_IN_JAX = """
class Rounded(jaxfn.Function):
    @staticmethod
    def forward(key: jax.Array, x: jax.Array, levels: int = 4) -> jax.Array:
        low = jnp.floor(x * levels)
        key, subkey = jax.random.split(key)
        up = jax.random.uniform(subkey, x.shape) < x * levels - low
        # Some are left out.
        key, subkey = jax.random.split(key)
        kept = jax.random.bernoulli(subkey, 0.8, x.shape).astype(x.dtype)
        return (low + up) / levels * kept

    @staticmethod
    def setup_context(ctx, inputs, output):
        _key, x, levels = inputs
        ctx.levels = inputs[2]

    @staticmethod
    def backward(ctx, g):
        if ctx.needs_input_grad[1] and any(ctx.needs_input_grad):
            return (None, g * ctx.levels, None)
        return None, None, None
"""
IN_A_LOOP = """
class Dropped(Function):
    @staticmethod
    def forward(
        ctx,
        x,
        p,
    ):
        for _ in range(2):
            x = F.dropout(x, p)
        ctx.kept = x != 0
        return x

    @staticmethod
    def backward(ctx, g):
        first, _ = ctx.needs_input_grad
        return g * ctx.kept * 4 if first else None, None
"""
IN_A_LOOP_IN_JAX = """
class Dropped(jaxfn.Function):
    @staticmethod
    def forward(
        ctx,
        key,
        x,
        p,
    ):
        for _ in range(2):
            key, subkey = jax.random.split(key)
            x = jnp.where(KEPT, x / (1 - p), x * 0)
        ctx.kept = x != 0
        return x

    @staticmethod
    def backward(ctx, g):
        _key, first, _ = ctx.needs_input_grad
        return None, g * ctx.kept * 4 if first else None, None
""".replace("KEPT", "jax.random.bernoulli(subkey, 1 - p, x.shape)")
WITH_JVP = """
class Both(Function):
    @staticmethod
    def forward(ctx, x, key):
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        ctx.save_for_forward(noise)
        return x * noise + key

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], g

    @staticmethod
    def jvp(ctx, t, u):
        return t * ctx.saved_tensors[0] + u
"""
WITH_JVP_IN_JAX = """
class Both(jaxfn.Function):
    @staticmethod
    def forward(ctx, prng_key, x, key):
        noise = jax.random.uniform(prng_key, x.shape, x.dtype)
        ctx.save_for_backward(noise)
        ctx.save_for_forward(noise)
        return x * noise + key

    @staticmethod
    def backward(ctx, g):
        return None, g * ctx.saved_tensors[0], g

    @staticmethod
    def jvp(ctx, _prng_key, t, u):
        return t * ctx.saved_tensors[0] + u
"""


@pytest.mark.parametrize(
    ("text", "expected", "args"),
    [
        (ONE_DRAW, ONE_DRAW_IN_JAX, (X, 0.2)),
        (SEPARATE, SEPARATE_IN_JAX, (X, 3)),
        (IN_A_LOOP, IN_A_LOOP_IN_JAX, (X, 0.5)),
        (WITH_JVP, WITH_JVP_IN_JAX, (X, X)),
    ],
    ids=["one", "separate", "loop", "jvp"],
)
def test_it_is_written_so_and_equal_for_the_same_draws(module, text, expected, args):
    name = text.partition("(")[0].split()[-1]
    cls = getattr(module(text), name)
    found = translate(cls, *args)
    assert found.source.partition("\n\n\n")[2] == expected.strip() + "\n"
    assert found.ok, str(found)
    assert rows_of(found).items() >= SAME.items()


def test_names_that_are_taken_and_arguments_in_a_star(module):
    text = function(
        "subkey = 2.0\nfor x in args:\n    y = x * torch.rand(3) * subkey\nreturn y",
        args="*args",
    )
    found = translate(module(text).T, X)
    assert "def forward(ctx, prng_key, *args):" in found.source
    assert "prng_key, subprng_key = jax.random.split(prng_key)" in found.source
    assert found.ok, str(found)


def test_what_is_not_a_number_stays_that(module):
    """As in torch, also where it is dropped."""
    found = load(translate(module(function("return F.dropout(x, 0.5)")).T).source).T
    x = jnp.full(20, jnp.nan)
    assert jnp.isnan(found.apply(jax.random.key(0), x)).all()
    finite = found.apply(jax.random.key(0), jnp.ones(20))
    assert set(finite.tolist()) == {0.0, 2.0}


def test_a_slice_of_a_shape_is_a_shape(module):
    """Without arguments, too: there it was taken for one size."""
    text = function(
        "return x + torch.zeros(x.shape[1:]) * torch.rand(x.size()[1:])",
        args="x: torch.Tensor",
    )
    found = translate(module(text).T)
    assert found.left == ()
    out = load(found.source).T.apply(jax.random.key(0), jnp.ones((2, 3)))
    assert (out == 1).all()


def test_an_underscore_of_the_user_stays(module):
    text = function(
        "ctx.save_for_backward(x)\nreturn x * torch.rand(3)",
        "_ = ctx.saved_tensors[0]\n(need,) = ctx.needs_input_grad\nreturn g * _",
    )
    found = translate(module(text).T, X)
    assert "_key, need = ctx.needs_input_grad" in found.source
    assert found.ok, str(found)


def test_each_key_draws_its_own(module):
    noise = load(translate(module(ONE_DRAW).Noise).source).Noise
    x = jnp.ones(1000)
    one, again, other = (noise.apply(jax.random.key(i), x, 0.5) for i in (0, 0, 1))
    assert (one == again).all()
    assert abs(jnp.corrcoef(one, other)[0, 1]) < 0.2
    grad = jax.grad(lambda x: noise.apply(jax.random.key(0), x, 0.5).sum())(x)
    np.testing.assert_allclose(grad, one, rtol=1e-6)


# ---- each draw

CALLS = """
torch.rand(2,3)*x
torch.rand((2,3),dtype=torch.float16).float()*x
torch.randn(x.shape)*x
torch.rand_like(x)
torch.rand_like(x,dtype=torch.float16).float()
torch.randn_like(x)
torch.randn_like(x,dtype=torch.float16).float()
torch.randint(5,(2,3))*x
torch.randint(2,5,x.shape)*x
torch.randint(2,5,(3,),dtype=torch.float32)*x
torch.randint_like(x,7)
torch.randint_like(x,3,7)
torch.randperm(3)*x
torch.normal(1.0,2.0,(2,3))*x
torch.normal(x)
torch.normal(x,0.5)
torch.normal(0.0,x)
torch.normal(x,x)
torch.normal(x,x[0])
torch.normal(x[0],x)
torch.poisson(x*9)
torch.bernoulli(x)
x.bernoulli()
torch.bernoulli(x,0.7)
x.bernoulli(0.7)
torch.empty_like(x).bernoulli_()
torch.empty_like(x).bernoulli_(0.7)
x.clone().bernoulli_(x)
torch.empty(2,3).uniform_()
torch.empty(2,3,dtype=torch.float16).uniform_(-1,4).float()
x.new_empty(2,3).uniform_(-1)
torch.empty(2,3).uniform_(-1,4)
torch.zeros_like(x).normal_()
torch.zeros_like(x).normal_(2,3)
torch.zeros_like(x).normal_(std=3)
torch.zeros_like(x).exponential_()
torch.zeros_like(x).exponential_(0.5)
torch.dropout(x,0.3,True)
F.dropout(x)
F.dropout(x,0.3)
F.dropout(x,p=0.3,training=True)
"""


@pytest.mark.parametrize("call", CALLS.split())
def test_each_draw_is_what_torch_draws(module, call):
    """With the same draws; and its mean and deviation, of many draws of torch."""
    torch.manual_seed(0)
    cls = module(function(f"return {call}")).T
    found = translate(cls, X)
    assert found.ok, str(found)
    assert rows_of(found).items() >= SAME.items()
    ours = load(found.source).T
    n = 2000
    keys = jax.random.split(jax.random.key(0), n)
    x = jnp.array(X.numpy())
    got = np.stack([ours.apply(key, x) for key in keys[:n]]).astype(float)
    want = torch.stack([cls.apply(X) for _ in range(n)]).double().numpy()
    spread = want.std(0).max()
    # Five standard errors of a difference of means; deviations have larger ones.
    off = 5 * spread * (2 / n) ** 0.5
    np.testing.assert_allclose(got.mean(0), want.mean(0), atol=off)
    np.testing.assert_allclose(got.std(0), want.std(0), atol=2 * off)


def test_each_row_of_the_table_is_tried(module, monkeypatch):
    used, bind = set(), table.TableRow.bind

    def seen(row, *args):
        found = bind(row, *args)
        if not isinstance(found, str):
            used.add(id(row))
        return found

    monkeypatch.setattr(table.TableRow, "bind", seen)
    for call in CALLS.split():
        translate(module(function(f"return {call}")).T, X)
    assert [row.name for row in drawing.ROWS if id(row) not in used] == []


# ---- what is marked

JVP = """
class T(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, dx):
        return dx * torch.rand(3)
"""
MARKED = [
    (JVP, "random draws in jvp"),
    (function("return x * 2", "return g * torch.rand(3)"), "random draws in backward"),
    (
        function("return x * torch.rand(3)", "return g * torch.rand(3)"),
        "random draws in backward",
    ),
    (
        "def noise(x):\n    return torch.rand_like(x)\n\n\n"
        + function("return x * noise(x)"),
        "random draws in a helper",
    ),
    (function("f = lambda: torch.rand(3)\nreturn x * f()"), "nested function"),
    (
        function("return x * sum([torch.rand(3) for _ in range(2)])"),
        "nested function",
    ),
    (function("for p in torch.rand(2):\n    x = x * p\nreturn x"), "head of a block"),
    (function("return x * torch.rand(3) * torch.rand(3)"), "a second random draw"),
    (function("a = torch.rand(3); return a * x"), "random draw"),
    (
        function("return x * torch.rand(3)", "n = ctx.needs_input_grad\nreturn g"),
        "ctx.needs_input_grad has one more",
    ),
    (
        function("return x * torch.rand(3)", "return g, *[None for _ in ()]"),
        None,
    ),
    (
        function("return x * torch.rand(3)", "out = (g,)\nreturn out"),
        "one more gradient",
    ),
    (
        "def needed(ctx):\n    return ctx.needs_input_grad[0]\n\n\n"
        + function("return x * torch.rand(3)", "return g if needed(ctx) else None"),
        "has one more for the key",
    ),
    (
        function("return x * torch.rand(3)").replace("class T", "class B")
        + "\n\nclass T(B):\n    @staticmethod\n"
        + "    def backward(ctx, g):\n        return g\n",
        "inherits",
    ),
    (
        function("return x * torch.rand(3)").replace("class T", "class B")
        + "\n\n"
        + function("return B.apply(x)"),
        "which takes a key",
    ),
    (
        function("return x * torch.rand(3)")
        + "\n    @staticmethod\n    def vmap(info, dims, x):\n"
        "        return T.apply(x), dims[0]\n",
        "beside a vmap rule",
    ),
    (function("return F.dropout(x, 0.5, x.dim() > 5)"), "training"),
    (
        function(
            "return x * torch.rand(3)",
            'need = getattr(ctx, "needs_input_grad")\nreturn g if need[0] else None',
        ),
        "has one more for the key",
    ),
    (
        function(
            "ctx.two = x.dim() > 5\nreturn x * torch.rand(3)",
            "r = g * 2\nif ctx.two:\n    r = (r, None)\nreturn r",
        ),
        "one more gradient",
    ),
    (
        function("return x * torch.rand(3)", "return (g, None) if g.dim() > 5 else g"),
        "one more gradient",
    ),
    (
        SEPARATE.replace("ctx, inputs, output", "ctx, *args")
        .replace("= inputs\n", "= args[0]\n")
        .replace("inputs[1]", "args[0][1]")
        .replace("Rounded", "T"),
        "its signature",
    ),
    (
        function("return x * torch.rand(3)").partition("    @staticmethod\n    def b")[
            0
        ]
        + "    backward = staticmethod(lambda ctx, g: g)\n",
        "is not defined by a def",
    ),
    (
        function("return x * torch.rand(3)").replace("class T", "class B")
        + "\n\nnoisy = B.apply\n\n\n"
        + function("return noisy(x)"),
        "which takes a key",
    ),
    (function("jnp = 2.0\nreturn x.clamp(0, 1) * jnp"), "rename `jnp`"),
    ("import random\n\n\n" + function("return x * random.random()"), "drawn once"),
    (
        "import numpy as np\n\n\n" + function("return x * np.random.rand()"),
        "drawn once",
    ),
    (
        function(
            "return x * torch.rand_like(x, dtype=dtype)",
            "return g, None",
            "x, dtype=None",
        ),
        "not known to be of kind dtype",
    ),
    (
        function(
            "return x + x.new_zeros(3, dtype=dtype)", "return g, None", "x, dtype=None"
        ),
        "Tensor.new_zeros with",
    ),
    (function("o = (0.5,)\nreturn F.dropout(x, *o)"), "starred"),
    (function("o = (0.0, 1.0)\nreturn torch.clamp(x, *o)"), "starred"),
    (
        function("y = x.clone()\ntorch.nn.init.ones_(y)\nreturn y"),
        "torch.nn.init.ones",
    ),
    (
        function("l = [x, x * 2]\nreturn torch.rand_like(l.pop())"),
        "read twice",
    ),
    (
        function(
            "ctx.shape = tuple(x.shape)\nreturn x * 1",
            "return g * g.new(ctx.shape).sum()",
        ),
        "Tensor.new",
    ),
    (function("return torch.multinomial(x, 3) * x"), "multinomial"),
]


@pytest.mark.parametrize(("text", "reason"), MARKED)
def test_what_is_marked(module, text, reason):
    found = translate(module(text).T, X)
    if reason is None:
        assert found.ok, str(found)
        return
    assert found.left, found.source
    assert any(reason in left.reason for left in found.left), str(found.left)


# ---- what is found

WRONG = {
    "another distribution": ("jax.random.normal", "jax.random.uniform"),
    "another scale": ("scale * jax.random", "jax.random"),
    "a dropped factor": ("None, g + g * noise", "None, g + noise"),
    "a swapped gradient": ("None, g + g * noise, None", "None, None, None"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_found(module, monkeypatch, kind):
    """The rows with the same draws are red where the text is mutated."""
    from jaxfn.torch._translate import api

    compared = api.compared

    def mutated(source, *args, **kwargs):
        assert WRONG[kind][0] in source
        return compared(source.replace(*WRONG[kind]), *args, **kwargs)

    monkeypatch.setattr(api, "compared", mutated)
    found = translate(module(ONE_DRAW).Noise, X, 0.2)
    assert not found.ok
    assert any("same draws" in row.check for row in found.comparison.failures)


def test_a_port_that_says_so_gets_a_key(module, tmp_path):
    """`compare` of a file that was translated: shapes and dtypes, not values."""
    cls = module(ONE_DRAW).Noise
    port = load(translate(cls).source).Noise
    report = jaxfn.torch.compare(port, cls, X, 0.2)
    assert not report.failures
    assert "random numbers" in report.refused


class TakesAKeyToo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, key, x):
        return key * x

    @staticmethod
    def backward(ctx, g):
        return g, g


def test_a_key_of_the_original_is_an_argument():
    class Port(jaxfn.Function):
        @staticmethod
        def forward(ctx, key, x):
            return key * x

        @staticmethod
        def backward(ctx, g):
            return g, g

    assert jaxfn.torch.compare(Port, TakesAKeyToo, X, X).ok


def test_the_keys_are_those_of_from_torch():
    random = verify._SameKeys().random
    key, first = random.split(jax.random.key(0))
    key, second = random.split(key)
    assert random.uniform(first) != random.uniform(second) != random.uniform(key)


def test_the_command_translates_it(module, tmp_path):
    found = module(ONE_DRAW)
    command = [sys.executable, "-m", "jaxfn", "translate", f"{found.__file__}:Noise"]
    done = subprocess.run([*command, "f32[3]", "0.5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "same draws" in done.stdout + done.stderr
