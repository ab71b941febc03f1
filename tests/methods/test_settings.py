"""Settings inside a `with`, and JAX's caches, under hooks and autocast."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

import jaxfn
from jaxfn import _settings as settings
from jaxfn.autograd import graph
from tests.build import function


class Square(jaxfn.Function):
    @staticmethod
    @jaxfn.amp.custom_fwd(device_type="cuda", cast_inputs=jnp.float16)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @jaxfn.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


X = jnp.float32(3)


def counted(fun):
    """`fun` under jit, and how often it was traced."""
    traces = []

    def run(x):
        traces.append(x)
        return fun(x)

    return jax.jit(run), traces


class Doubling:
    """Hooks that are methods: new objects at each access."""

    def pack(self, x):
        return x / 2

    def unpack(self, kept):
        return kept * 2


class Unhashable:
    def __eq__(self, other):
        return NotImplemented

    def __call__(self, x):
        return x


doubling, unhashable = Doubling(), Unhashable()


@pytest.mark.parametrize(
    "scope",
    [
        graph.save_on_cpu,
        graph.save_compressed,
        lambda: graph.save_compressed(jnp.int8),
        lambda: graph.saved_tensors_hooks(doubling.pack, doubling.unpack),
        lambda: graph.saved_tensors_hooks(unhashable, unhashable),
        lambda: graph.disable_saved_tensors_hooks("no"),
        lambda: jaxfn.amp.autocast("cuda"),
    ],
    ids=["cpu", "bfloat16", "int8", "methods", "unhashable", "disabled", "autocast"],
)
def test_entering_the_same_setting_again_traces_nothing_again(scope):
    gradient = jax.grad(lambda x: Square.apply(x).astype(jnp.float32))
    # JAX imports modules while it compiles for the first time, and some of them add to
    # the context that its caches look at: then all is traced once more.
    with scope():
        counted(gradient)[0](X)
    f, traces = counted(gradient)
    for _ in range(3):
        with scope():
            f(X)
    assert len(traces) == 1


def test_other_settings_trace_again():
    f, traces = counted(jax.grad(lambda x: Square.apply(x).astype(jnp.float32)))
    f(X)
    for dtype in (jnp.float16, jnp.bfloat16):
        with graph.save_compressed(dtype):
            f(X)
    with graph.saved_tensors_hooks(Doubling().pack, doubling.unpack):
        f(X)
    with graph.saved_tensors_hooks(doubling.pack, doubling.unpack):
        f(X)
    assert len(traces) == 5


def test_where_no_setting_changes_the_caches_of_jax_are_kept(monkeypatch):
    # As in a new process: at the first change of a setting JAX's caches are emptied.
    unused = settings.Scoped(settings.policy.get())
    monkeypatch.setattr(settings, "policy", unused)
    f, traces = counted(lambda x: x + 1)
    f(X)
    plain = function(
        forward=lambda ctx, x: x * x, backward=lambda ctx, g: g, name="Plain"
    )
    jax.jit(jax.grad(plain.apply))(X)
    f(X)
    assert len(traces) == 1


def test_a_thread_starts_without_settings_and_shares_no_compiled_code_of_others():
    f = jax.jit(Square.apply)
    seen = []
    with jaxfn.amp.autocast("cuda"):
        thread = threading.Thread(target=lambda: seen.append(f(X).dtype))
        thread.start()
        thread.join()
        seen.append(f(X).dtype)
    assert seen == [jnp.float32, jnp.float16]


def test_a_setting_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), jaxfn.amp.autocast("cuda"):
        raise ZeroDivisionError
    assert not jaxfn.amp.is_autocast_enabled()
    pair = graph.saved_tensors_hooks(doubling.pack, doubling.unpack)
    with pytest.raises(ZeroDivisionError), pair:
        raise ZeroDivisionError
    with graph.disable_saved_tensors_hooks("refused where hooks are left over"):
        pass


@pytest.mark.parametrize("outer", [lambda f: f, jax.jit])
def test_a_vmap_rule_that_runs_later_has_the_policy_of_the_call(outer):
    seen = []

    def vmap(info, in_dims, x):
        seen.append(jaxfn.amp.is_autocast_enabled())
        return 2 * x, 0

    f = function(
        forward=lambda x: 2 * x,
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, g: 2 * g,
        vmap=vmap,
        generate_jvp_rule=True,
    ).apply

    def under_autocast(x):
        with jaxfn.amp.autocast("cuda"):
            return jax.vmap(f)(x)

    # JAX asks for the rules of a jitted function when its `with` has ended.
    x = jnp.arange(2.0)
    jax.jvp(outer(under_autocast), (x,), (x,))
    assert seen
    assert all(seen)
