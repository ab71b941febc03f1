"""Launches lowered for a GPU of NVIDIA, without one.

The kernels are compiled by Triton and put into the program by jax-triton, which takes
one module of JAX's plugin for CUDA. Whether the program is right, only a GPU says.
"""

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import triton
import triton.language as tl

import jaxfn
from jaxfn._triton import call
from tests.build import function
from tests.triton.test_call import X, axpy, by_block, counted, divided, like, run


def missing():
    """What lowering lacks here, or None."""
    for name in ("jax_triton", "jax_cuda12_plugin"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    plugin, jaxlib = map(importlib.metadata.version, ("jax-cuda12-plugin", "jaxlib"))
    if plugin != jaxlib:
        return f"jax-cuda12-plugin {plugin} is not for jaxlib {jaxlib}"
    return None


needs_plugin = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def lowered(f, *args):
    """The program for CUDA."""
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def launches(text):
    """How many launches a program has."""
    return len(re.findall(r"custom_call @triton_kernel_call\w*\(", text))


@needs_plugin
@pytest.mark.parametrize(
    "f",
    [
        lambda x: run(x, x),
        lambda x: jax.vmap(run, (0, None))(x, x[0]),
        lambda x: jax.lax.map(lambda x: run(x, x), x),
        lambda x: jax.checkpoint(run)(x, x),
    ],
    ids=["plain", "vmap", "map", "remat"],
)
def test_a_launch_is_a_part_of_the_program(f):
    text = lowered(f, X)
    assert launches(text) == 1
    assert "callback" not in text


@needs_plugin
def test_the_gradient_of_a_function_around_a_kernel():
    double = function(
        forward=lambda ctx, x: run(x, x, 1.0),
        backward=lambda ctx, g: run(g, g, 1.0, num_warps=2),
    )
    assert launches(lowered(jax.grad(lambda x: (double.apply(x) ** 2).sum()), X)) == 2


@needs_plugin
def test_what_is_written_is_an_output_in_the_place_of_an_input():
    x = jnp.arange(7)
    out = {"q": like(x), "r": like(x)}
    text = lowered(
        lambda x: jaxfn.triton_call(divided, 1, out=out, x=x, n=7, by=3, BLOCK=8), x
    )
    found = re.findall(r"output_tuple_indices = \[(\d)\],\s*operand_index = (\d)", text)
    assert found == [("0", "1"), ("1", "2")]


@needs_plugin
def test_an_autotuned_kernel_has_all_its_configurations(monkeypatch):
    configs = [
        triton.Config({"BLOCK": 4}, num_warps=1),
        triton.Config({"BLOCK": 8}, num_warps=2),
        triton.Config({"BLOCK": 8}, num_warps=4, num_stages=1),
        triton.Config({"BLOCK": 6}),  # does not compile
    ]
    kernel = triton.autotune(configs, key=["n"])(axpy)
    seen = []
    real = call._jax_triton().triton_call

    @functools.wraps(real)
    def spy(*args, **kwargs):
        seen.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(call._jax_triton(), "triton_call", spy)

    def f(x):
        return jaxfn.triton_call(kernel, by_block, out={"z": like(x)}, **given(x))

    def given(x):
        return {"x": x, "y": x, "n": x.size, "a": 1.0}

    assert launches(lowered(f, X)) == 1
    tuned, grid = seen[0]["kernel"], seen[0]["grid"]
    # jax-triton compiles each of them; a wrong one would have raised.
    assert [(c.num_warps, c.num_stages, c.num_ctas) for c in tuned.configs] == [
        (1, 3, 1), (2, 3, 1), (4, 1, 1)
    ]  # fmt: skip
    assert [grid(c.kwargs) for c in tuned.configs] == [(3, 1, 1), (2, 1, 1), (2, 1, 1)]


@needs_plugin
def test_an_empty_grid_is_no_launch():
    out = {"total": jax.ShapeDtypeStruct((), X.dtype)}
    empty = functools.partial(jaxfn.triton_call, counted, (0, 2), out=out)
    assert launches(lowered(lambda x: empty(x=x, n=0, BLOCK=4), X)) == 0


@needs_plugin
def test_options_of_a_single_launch():
    few, many = (lowered(lambda x, n=n: run(x, x, num_warps=n), X) for n in (1, 8))
    assert launches(few) == launches(many) == 1
    assert few != many
    assert launches(lowered(lambda x: run(x, x, maxnreg=64, debug=True), X)) == 1


@needs_plugin
def test_types_that_jax_and_triton_both_have():
    @triton.jit
    def copied(x, y):
        i = tl.arange(0, 4)
        tl.store(y + i, tl.load(x + i))

    for dtype in ("bool", "int8", "uint32", "float16", "bfloat16", "float8_e5m2"):
        x = jnp.zeros(4, dtype)
        copy = functools.partial(jaxfn.triton_call, copied, 1, out={"y": like(x)})
        assert launches(lowered(lambda x, f=copy: f(x=x), x)) == 1


@needs_plugin
def test_atomics():
    out = {"total": jax.ShapeDtypeStruct((), X.dtype)}
    call_ = functools.partial(jaxfn.triton_call, counted, by_block, out=out)
    assert launches(lowered(lambda x: call_(x=x, n=x.size, BLOCK=4), X)) == 1


@needs_plugin
def test_jax_triton_leaves_the_variable_of_triton_as_it_is():
    code = (
        "import os; from jaxfn._triton import call; assert call._jax_triton(); "
        "print(os.environ.get('TRITON_CACHE_DIR'))"
    )
    for value in (None, "/somewhere"):
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_CACHE_DIR"}
        if value:
            environment["TRITON_CACHE_DIR"] = value
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(value)


@triton.jit
def described(x, y, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [N], [1], [N])
    tl.store(y + tl.arange(0, N), source.load([0]))


@needs_plugin
def test_tensor_descriptors_need_a_newer_jax_triton(monkeypatch):
    def f(x):
        return jaxfn.triton_call(described, 1, x=x, N=8, out={"y": like(x)})

    x = jnp.arange(8.0)
    assert (jax.jit(f)(x) == x).all()
    if not importlib.metadata.version("jax-triton").startswith("0.3"):
        assert launches(lowered(f, x)) == 1
    else:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        with pytest.raises(NotImplementedError, match="`described`.*descriptors"):
            f(x)


@needs_plugin
@pytest.mark.parametrize("transform", [jax.grad, jax.vmap])
def test_jax_tritons_own_call_has_no_rules(transform):
    # The page of measurements says so, beside what triton_call and from_torch do.
    import jax_triton

    def double(x):
        out = "out_shape" if call._is_old(jax_triton.triton_call) else "out_type"
        given = {out: like(x), "n": x.size, "a": 1.0, "BLOCK": 16}
        found = jax_triton.triton_call(
            x, x, kernel=axpy_of_two, grid=1, compute_capability=90, **given
        )
        return found.sum()

    with pytest.raises(NotImplementedError, match="does not support"):
        jax.make_jaxpr(transform(double))(X)


@triton.jit
def axpy_of_two(x, y, z, n: tl.constexpr, a: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = a * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n)
    tl.store(z + i, v, mask=i < n)
