"""Launches on JAX arrays, and `triton_call`."""

import functools
import importlib
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jaxfn
from jaxfn._triton import KernelError, bindings, call
from jaxfn._triton import variants as variants_module
from jaxfn._triton.effects import Effects
from jaxfn._triton.errors import LaunchError
from tests.build import function
from tests.triton.test_effects import launch

X = jnp.arange(12.0).reshape(3, 4)


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def by_block(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@triton.jit
def axpy(x, y, z, n, a, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = a * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n)
    tl.store(z + i, v, mask=i < n)


def run(x, y, a=2.0, kernel=axpy, **arguments):
    """a x + y by a kernel."""
    given = {"x": x, "y": y, "n": x.size, "a": a, "BLOCK": 8, **arguments}
    return jaxfn.triton_call(kernel, by_block, **{"out": {"z": like(x)}, **given})


@triton.jit
def divided(x, q, r, n, by, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(r + i, v % by, mask=i < n)
    tl.store(q + i, v // by, mask=i < n)


@triton.jit
def counted(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


@triton.jit
def beyond(x, z, n):
    i = tl.arange(0, 8)
    tl.store(z + i, tl.load(x + i), mask=i < n)


# ---- under every transformation


def test_eagerly_and_under_jit():
    assert np.array_equal(run(X, X), 3 * X)
    assert np.array_equal(jax.jit(run)(X, X), 3 * X)
    assert run(X, X).shape == X.shape


def test_vmap_runs_once_for_each_example():
    over = jax.vmap(run, (0, None))
    assert np.array_equal(over(X, X[0]), 2 * X + X[0])
    assert np.array_equal(jax.jit(over)(X, X[0]), 2 * X + X[0])
    twice = jax.vmap(jax.vmap(lambda x: run(x[None], x[None])[0], 0), 1)
    assert np.array_equal(twice(X), 3 * X.T)


def test_in_loops_branches_and_remat():
    _, found = jax.lax.scan(lambda c, x: (c + 1, run(x, x) + c), 0.0, X)
    assert np.array_equal(found, 3 * X + jnp.arange(3.0)[:, None])
    found = jax.lax.fori_loop(0, 3, lambda _, x: run(x, X), X)
    assert np.array_equal(found, 15 * X)
    found = jax.lax.cond(jnp.array(True), lambda x: run(x, x), lambda x: x, X)
    assert np.array_equal(found, 3 * X)
    assert np.array_equal(jax.checkpoint(run)(X, X), 3 * X)


def test_with_a_function_around_it_a_kernel_has_a_gradient():
    axpy_ = function(
        forward=lambda ctx, x, y: run(x, y),
        backward=lambda ctx, g: (run(g, jnp.zeros_like(g)), g),
    )

    def loss(x, y):
        return (axpy_.apply(x, y) ** 2).sum()

    x, y = X, X + 1
    for f in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        dx, dy = f(x, y)
        assert np.allclose(dx, 4 * (2 * x + y))
        assert np.allclose(dy, 2 * (2 * x + y))
    over = jax.vmap(jax.grad(loss))(x, y)
    assert np.allclose(over, 4 * (2 * x + y))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_kernel_has_no_derivative(wrap):
    words = "kernel `axpy`, launched at .*test_call.py:.*jaxfn.Function"
    f = wrap(lambda x: run(x, X).sum())
    with pytest.raises(TypeError, match=words):
        jax.grad(f)(X)
    with pytest.raises(TypeError, match=words):
        jax.jvp(f, (X,), (X,))
    assert np.array_equal(jax.grad(lambda x: (x * f(X)).sum())(X), 0 * X + f(X))


def test_equal_calls_are_one_function_to_jax():
    before = call._function.cache_info()
    for _ in range(2):
        jax.make_jaxpr(lambda x: run(x, x, a=5.0))(X)
    after = call._function.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)


# ---- arguments and outputs


def test_outputs_come_in_the_order_of_out():
    x = jnp.arange(7)
    q, r = jaxfn.triton_call(
        divided, 1, out={"q": like(x), "r": like(x)}, x=x, n=7, by=3, BLOCK=8
    )
    assert (q.tolist(), r.tolist()) == ((x // 3).tolist(), (x % 3).tolist())
    r, q = jaxfn.triton_call(
        divided, 1, out={"r": like(x), "q": like(x)}, x=x, n=7, by=3, BLOCK=8
    )
    assert (q.tolist(), r.tolist()) == ((x // 3).tolist(), (x % 3).tolist())


def test_outputs_of_which_one_is_an_array():
    x = jnp.arange(7)
    out = {"q": like(x), "r": like(x)}
    q, r = jaxfn.triton_call(divided, 1, out=out, r=x, x=x, n=7, by=3, BLOCK=8)
    assert (q.tolist(), r.tolist()) == ((x // 3).tolist(), (x % 3).tolist())


def test_an_output_begins_as_zeros_or_as_the_array():
    out = {"total": jax.ShapeDtypeStruct((), X.dtype)}
    add = functools.partial(
        jaxfn.triton_call, counted, by_block, out=out, x=X, n=X.size, BLOCK=4
    )
    assert add() == X.sum()
    start = jnp.float32(100)
    assert add(total=start) == X.sum() + 100
    assert jax.jit(lambda s: add(total=s))(start) == X.sum() + 100
    assert start == 100


def test_a_numpy_array_is_an_array_and_stays_as_it_is():
    x = np.arange(4.0, dtype="float32")
    z = np.full(4, 7, "float32")
    found = jaxfn.triton_call(
        axpy, 1, out={"z": like(z)}, x=x, y=x, z=z, n=4, a=np.float32(1), BLOCK=4
    )
    assert isinstance(found, jax.Array)
    assert found.tolist() == [0, 2, 4, 6]
    assert z.tolist() == [7] * 4


def test_a_number_that_jax_traces_is_a_pointer():
    @triton.jit
    def scaled(x, by, z, n):
        i = tl.arange(0, 4)
        tl.store(z + i, tl.load(x + i) * tl.load(by), mask=i < n)

    def f(by):
        out = {"z": like(X[0])}
        return jaxfn.triton_call(scaled, 1, out=out, x=X[0], by=by, n=4)

    assert np.array_equal(jax.jit(f)(jnp.float32(3)), 3 * X[0])


def test_the_launch_of_an_empty_grid_writes_nothing():
    out = {"total": jax.ShapeDtypeStruct((), X.dtype)}
    assert jaxfn.triton_call(counted, 0, out=out, x=X, n=0, BLOCK=4) == 0
    with_jit = jax.jit(
        lambda x: jaxfn.triton_call(counted, (2, 0), out=out, x=x, n=0, BLOCK=4)
    )
    assert with_jit(X) == 0


def test_an_empty_array():
    x = jnp.zeros(0)
    assert run(x, x).shape == (0,)


# ---- autotuned kernels and heuristics


def test_an_autotuned_kernel_with_a_heuristic():
    seen = []

    def is_even(args):
        seen.append((args["n"], args["BLOCK"]))
        return args["n"] % args["BLOCK"] == 0

    @triton.jit
    def tripled(x, z, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(z + i, 3 * tl.load(x + i))
        else:
            tl.store(z + i, 3 * tl.load(x + i, mask=i < n), mask=i < n)

    configs = [triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8}, num_warps=2)]
    inside = triton.heuristics({"EVEN": is_even})(tripled)
    tuned = triton.autotune(configs, key=["n"])(inside)
    outside = triton.heuristics({"EVEN": lambda a: False})(
        triton.autotune(configs, key=["n"])(tripled)
    )
    for kernel in (tuned, outside):
        found = jaxfn.triton_call(kernel, by_block, out={"z": like(X)}, x=X, n=12)
        assert np.array_equal(found, 3 * X)
    assert seen == [(12, 4), (12, 8)]


def bound(kernel, *args, grid=(1,), **kwargs):
    return bindings(kernel, args, kwargs, grid)


def test_bindings_of_an_autotuner():
    configs = [
        triton.Config({"BLOCK": 8}, num_warps=1),
        triton.Config({"BLOCK": 16}, num_warps=2, num_stages=1),
    ]
    kernel = triton.autotune(configs, key=["n"])(axpy)
    one, two = bound(kernel, "x", "y", "z", 20, 1.0, grid=by_block)
    assert one.kernel is two.kernel is axpy
    assert one.arguments == {
        "x": "x", "y": "y", "z": "z", "n": 20, "a": 1.0, "BLOCK": 8
    }  # fmt: skip
    assert (one.grid, two.grid) == ((3, 1, 1), (2, 1, 1))
    assert two.options == {"num_warps": 2, "num_stages": 1, "num_ctas": 1}
    shared, own = variants_module.split([one, two])
    assert own == [{"BLOCK": 8}, {"BLOCK": 16}]
    assert shared == {"x": "x", "y": "y", "z": "z", "n": 20, "a": 1.0}


def test_configurations_are_pruned():
    seen = {}

    def early(configs, named, **kwargs):
        seen.update(named, **kwargs)
        return configs[1:]

    configs = [triton.Config({"BLOCK": n}) for n in (8, 16, 32)]
    prune = {
        "early_config_prune": early,
        "perf_model": lambda BLOCK, **_: -BLOCK,
        "top_k": 1,
    }
    kernel = triton.autotune(configs, key=["n"], prune_configs_by=prune)(axpy)
    (only,) = bound(kernel, "x", "y", "z", 20, a=1.0)
    assert only.arguments["BLOCK"] == 32
    assert seen == {"x": "x", "y": "y", "z": "z", "n": 20, "a": 1.0}


def test_a_heuristic_sees_those_before_it():
    values = {
        "BLOCK": lambda args: 2 * args["n"],
        "a": lambda args: float(args["BLOCK"] + args["n"]),
    }
    (found,) = bound(triton.heuristics(values)(axpy), "x", "y", "z", 4)
    assert (found.arguments["BLOCK"], found.arguments["a"]) == (8, 12.0)


def test_numbers_that_are_equal_and_not_the_same():
    configs = [triton.Config({"BLOCK": n}) for n in (1, True, 1.0)]
    found = bound(triton.autotune(configs, key=[])(axpy), "x", "y", "z", 4, 1.0)
    _, own = variants_module.split(found)
    assert [type(v["BLOCK"]) for v in own] == [int, bool, float]


def test_defaults_and_a_parameter_that_is_an_option():
    @triton.jit
    def kernel(x, by=2.0, num_warps: tl.constexpr = 4):
        tl.store(x, by * num_warps)

    (found,) = bound(kernel, "x", num_warps=8, num_stages=2)
    assert found.arguments == {"x": "x", "by": 2.0, "num_warps": 8}
    assert found.options == {"num_warps": 8, "num_stages": 2}
    (found,) = bound(kernel, "x", by=tl.constexpr(3.0))
    assert found.arguments == {"x": "x", "by": 3.0, "num_warps": 4}
    assert found.options == {}


def test_hooks_of_configurations():
    def zero(name):
        return lambda args: args[name]

    def tuned(*hooks):
        configs = [
            triton.Config({"BLOCK": 8 * i}, pre_hook=h) for i, h in enumerate(hooks, 1)
        ]
        return triton.autotune(configs, key=[])(axpy)

    one, two = bound(tuned(zero("x"), zero("x")), "x", "y", "z", 20, 1.0)
    assert one.hook({"x": 3}) == two.hook({"x": 3}) == 3
    for other in (zero("y"), zero(X), None):
        with pytest.raises(NotImplementedError, match="`axpy` have different pre_hook"):
            bound(tuned(zero("x"), other), "x", "y", "z", 20, 1.0)
    given = {"out": {"z": like(X)}, "x": X, "y": X, "n": 12, "a": 1.0}
    kernel = tuned(zero("x"), zero("x"))
    with pytest.raises(NotImplementedError, match="`axpy` have a pre_hook"):
        jaxfn.triton_call(kernel, by_block, **given)


def test_hooks_that_are_refused():
    @triton.jit
    def hooked(x):
        tl.store(x, 1.0)

    own = triton.autotune([triton.Config({})], key=[], pre_hook=lambda *_, **__: None)
    with pytest.raises(NotImplementedError, match="autotuner of `hooked` has a pre_ho"):
        bound(own(hooked), "x")
    hooked.add_pre_run_hook(lambda *_, **__: None)
    with pytest.raises(NotImplementedError, match="`hooked` has hooks that run before"):
        bound(hooked, "x")


def test_conflicts():
    kernel = triton.autotune([triton.Config({"BLOCK": 8})], key=[])(axpy)
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        bound(kernel, "x", "y", "z", 20, 1.0, BLOCK=16)


def test_the_first_configuration_that_compiles_runs_on_a_cpu():
    @triton.jit
    def sized(z, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK > 8)
        tl.store(z, BLOCK)

    configs = [triton.Config({"BLOCK": n}) for n in (4, 8, 16, 32)]
    kernel = triton.autotune(configs, key=[])(sized)
    out = {"z": jax.ShapeDtypeStruct((), "int32")}
    assert jaxfn.triton_call(kernel, 1, out=out) == 16


# ---- errors


def error_of(kernel=axpy, grid=(2,), error=TypeError, match="", **changes):
    given = {"out": {"z": like(X)}, "x": X, "y": X, "n": 12, "a": 1.0, "BLOCK": 8}
    given = {k: v for k, v in {**given, **changes}.items() if v is not ...}
    with pytest.raises(error, match=match):
        jaxfn.triton_call(kernel, grid, **given)


def test_wrong_arguments():
    error_of(match="`axpy`: missing a required argument: 'y'.*name it in `out`", y=...)
    error_of(error=KeyError, match="argument foo was specified but unrecog", foo=1)
    error_of(kernel=lambda x: x, match="expected a kernel: a function with the decora")
    error_of(match="`axpy` got complex64 for `x`.*Cast", x=X.astype("complex64"))
    error_of(error=KernelError, match="pointers, are: `x`, `y`, `z`, `n`", n=X[0, 0])
    error_of(match="`axpy` got key<fry> for `x`.*Cast", x=jax.random.key(0))
    error_of(match="`axpy` got tuple of arrays for `x`", x=(X, X))
    error_of(error=KernelError, match="arange's range must be a power of 2", BLOCK=6)


def test_kernels_of_other_languages(monkeypatch):
    gluon = importlib.import_module("triton.experimental.gluon").jit(counted.fn)
    error_of(kernel=gluon, match="`counted` is written in Gluon")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    error_of(kernel=triton.jit(counted.fn), match="`counted` was made.*TRITON_INTERPR")


def test_an_array_that_the_kernel_leaves_as_it_is_comes_back():
    z, x = run(X, X, out={"z": like(X), "x": like(X)})
    np.testing.assert_array_equal(z, 3 * X)
    np.testing.assert_array_equal(x, X)


def test_wrong_outputs():
    error_of(
        error=ValueError, match="writes to `z`, which `out` leaves out", z=X, out={}
    )
    more = {"z": like(X), "y": like(X)}
    said = "does not write to `y`.*It writes to: z"
    error_of(error=ValueError, match=said, out=more, y=...)
    error_of(match="as `out`: expected a dict", out=like(X))
    error_of(match=r"got an array as `out\['z'\]`", out={"z": X})
    error_of(match=r"got 3 as `out\['z'\]`: expected a jax.ShapeDty", out={"z": 3})
    error_of(
        match=r"an array of float32\(4,\) for `z`.*expected float32\(3, 4\)", z=X[0]
    )
    error_of(match="got 3 for the output `z`: expected an array", z=3)
    extra = {"z": like(X), "w": like(X)}
    error_of(error=KeyError, match="argument w was specified but unrecog", out=extra)


def test_a_kernel_of_which_the_writes_are_not_known():
    @triton.jit
    def hidden(x, y, z):
        n = y.to(tl.int64) ^ (tl.program_id(0) * 0.0).to(tl.int64)
        tl.store(n.to(tl.pointer_type(tl.float32)), tl.load(x) + tl.load(z))

    made = launch(hidden)
    assert not made.effects.are_known
    assert made.writes == (0, 1, 2)
    words = "`hidden` does not tell.*in `out`: x, y, z"
    given = {"kernel": hidden, "grid": 1, "n": ..., "a": ..., "BLOCK": ...}
    error_of(**given, error=ValueError, match=words)
    x = X + 1
    found = jaxfn.triton_call(
        hidden, 1, x=x, y=x, z=x, out={"x": like(x), "y": like(x), "z": like(x)}
    )
    assert [v[0, 0] for v in found] == [1, 2, 1]


def test_a_grid_that_depends_on_values():
    match = "grid of `axpy` .*can't depend on values of arrays"
    for grid in (lambda m: (m["x"],), lambda m: (int(m["x"]),), (X[0, 1],), 1.5, "a"):
        error_of(grid=grid, error=ValueError, match="grid of `axpy`")
    error_of(grid=lambda m: (m["x"],), error=ValueError, match=match)
    error_of(grid=lambda m: (m["x"] + 1,), error=ValueError, match=match)
    for grid in ((1, 1, 1, 1), (), (-1,)):
        error_of(grid=grid, error=ValueError, match="one to three integers")


def test_a_kernel_that_leaves_its_arrays():
    def f(x):
        return jaxfn.triton_call(beyond, 1, out={"z": like(x)}, x=x, n=5)

    words = r"`beyond`.* element 5 of `x`, which has 5 elements.*launched at .*test_cal"
    with pytest.raises(LaunchError, match=words) as caught:
        f(jnp.ones(5))
    assert "test_call.py" in caught.value.place
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        jax.block_until_ready(jax.jit(f)(jnp.ones(5)))


def test_a_write_that_the_analysis_did_not_find_is_an_error():
    made = launch(axpy, n=12, a=1.0, BLOCK=16)
    made.__dict__["effects"] = Effects(made.usable, (0, 1, 2), (0,))
    with pytest.raises(KernelError, match="`axpy`.* wrote to `z`.*did not find this"):
        call.launch(made, [jnp.ones(64)] * 3)


# ---- what is installed


def test_the_warning_comes_once_at_the_users_line(not_warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # A process reads an entry that another one is writing; see pyproject.toml.
        warnings.filterwarnings("ignore", "Error .* persistent compilation cache")
        run(X, X)
        run(X, X)
    (one,) = caught
    assert one.category is jaxfn.InterpreterWarning
    assert one.filename == __file__
    assert "interpreter" in str(one.message)


def test_on_a_gpu_without_jax_triton(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(call, "_jax_triton", lambda: ImportError("none"))
    with pytest.raises(ImportError, match=r"`axpy`.*pip install 'jaxfn\[triton\]'"):
        run(X, X)


def test_a_name_that_triton_lacks(monkeypatch):
    experimental = importlib.import_module("jaxfn._triton.experimental")
    monkeypatch.setitem(experimental._NAMES, "gone", "triton.compiler")
    with pytest.raises(ImportError, match=r"triton.compiler.gone.*triton 3\.6, 3\.7"):
        experimental.name("gone")


def test_a_list_that_is_a_constant_and_changes_is_another_constant():
    @triton.jit
    def first(z, sizes: tl.constexpr):
        tl.store(z, sizes[0])

    out, sizes = {"z": jax.ShapeDtypeStruct((1,), jnp.int32)}, [3]
    assert jaxfn.triton_call(first, 1, sizes=sizes, out=out) == 3
    sizes[0] = 4
    assert jaxfn.triton_call(first, 1, sizes=sizes, out=out) == 4


@pytest.mark.parametrize("warps", [1, 8])
def test_a_kernel_can_ask_for_its_warps(warps):
    @triton.jit
    def asked(z):
        tl.store(z, tl.extra.cuda.num_warps())

    out = {"z": jax.ShapeDtypeStruct((1,), jnp.int32)}
    assert jaxfn.triton_call(asked, 1, out=out, num_warps=warps) == warps


def test_between_types_of_eight_bits():
    @triton.jit
    def cast(x, z, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(z + i, tl.load(x + i).to(tl.float8e5))

    x = jnp.array([1.0, -2.0, 0.5, 240.0], jnp.float8_e4m3fn)
    out = {"z": jax.ShapeDtypeStruct((4,), jnp.float8_e5m2)}
    found = jaxfn.triton_call(cast, 1, x=x, BLOCK=4, out=out)
    assert (found == x.astype(jnp.float8_e5m2)).all()


def test_on_a_cpu_a_jax_triton_that_can_t_be_imported_is_not_needed(monkeypatch):
    monkeypatch.setattr(call, "_jax_triton", lambda: ImportError("a GPU is needed"))
    call._function.cache_clear()
    assert (jax.jit(lambda x: run(x, x))(X) == 3 * X).all()


class Scaled(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return run(x, x, 1.0) * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        doubled = run(grad, grad, 1.0)
        return doubled * w, (doubled * x).sum(0)


def test_in_a_shard_map_results_vary_like_the_arguments():
    code = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from tests.triton.test_call import Scaled
jax.config.update("jax_platforms", "cpu")
mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
x, w = jnp.arange(16.0).reshape(4, 4), jnp.arange(4.0)

def loss(check):
    def one(x, w):
        return jax.lax.psum(jnp.sin(Scaled.apply(x, w)).sum(), "i")
    specs = {"in_specs": (P("i"), P()), "out_specs": P(), "check_vma": check}
    return lambda x, w: jax.shard_map(one, mesh=mesh, **specs)(x, w)

want = jax.grad(lambda x, w: jnp.sin(2 * x * w).sum(), (0, 1))(x, w)
for check in (True, False):
    found = jax.grad(loss(check), (0, 1))(x, w)
    for a, b in zip(found, want):
        assert jnp.allclose(a, b, atol=1e-5), (check, a, b)
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    environment = {**os.environ, **flags}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


Thrice = function(
    "Thrice",
    forward=lambda ctx, x: run(x, jnp.zeros_like(x), 3.0),
    backward=lambda ctx, grad: run(grad, jnp.zeros_like(grad), 3.0),
)


def test_check_skips_second_derivatives_and_explain_names_kernels():
    report = jaxfn.check(Thrice, X)
    assert report.ok, str(report)
    row = next(r for r in report.results if r.check == "backward of backward")
    assert "kernels have no derivative (Triton `axpy`)" in row.message
    kernels = jaxfn.explain(Thrice, X).kernels
    names = [(where, k.kind, k.name, k.nbytes) for where, k in kernels]
    nbytes = 4 * X.nbytes  # x, y, and z before and after
    assert names == [(x, "Triton", "axpy", nbytes) for x in ("forward", "backward")]
