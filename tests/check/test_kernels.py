"""Functions with kernels: `check` skips what has no derivative, and says so.

`explain` names the kernels, and the memory that they read and write.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import jaxfn
from tests.build import function, keep

jnp.linalg.cholesky(jnp.eye(1))  # JAX finds LAPACK at the first call


def pallas(kernel, *xs):
    shape = jax.ShapeDtypeStruct(xs[0].shape, xs[0].dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(*xs)


def sine(x_ref, out_ref):
    out_ref[...] = jnp.sin(x_ref[...])


def slope(x_ref, grad_ref, out_ref):
    out_ref[...] = grad_ref[...] * jnp.cos(x_ref[...])


def kernels(name, value, slope):
    """A Function of one argument, by kernels; its slope is of x and the gradient."""
    return function(
        name,
        forward=lambda ctx, x: (ctx.save_for_backward(x), value(x))[1],
        backward=lambda ctx, grad: slope(*ctx.saved_tensors, grad),
    )


def root(x):
    """Return the root of a matrix of one element, by LAPACK's Cholesky."""
    outs = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), jnp.int32)
    name = "lapack_dpotrf_ffi" if x.dtype == jnp.float64 else "lapack_spotrf_ffi"
    call = jax.ffi.ffi_call(name, outs, vmap_method="sequential")
    return call(x, uplo=np.uint8(ord("L")))[0]


cube = jaxfn.partitioned(lambda x: x**3, "b n -> b n")
cube_grad = jaxfn.partitioned(lambda x, g: 3 * x**2 * g, "b n, b n -> b n")


Sine = kernels("Sine", lambda x: pallas(sine, x), lambda *xs: pallas(slope, *xs))
Root = kernels("Root", root, lambda x, grad: grad / (2 * root(x)))
Cube = kernels("Cube", cube, cube_grad)
X = jnp.linspace(0.3, 1.2, 6).reshape(2, 3)
CASES = {
    Sine: (X, "Pallas", ("sine", "slope")),
    Root: (jnp.array([[4.0]]), "FFI", ("lapack_spotrf_ffi",) * 2),
    Cube: (X, "custom_partitioning", ("<lambda>",) * 2),
}
each = pytest.mark.parametrize("cls", CASES)


@each
@pytest.mark.full
def test_second_derivatives_are_skipped_and_said(cls):
    x, kind, _ = CASES[cls]
    skip = ("low precision",) if cls is Root else ()  # LAPACK has no half precision
    report = jaxfn.check(cls, x, skip=skip)
    assert report.ok, str(report)
    row = next(r for r in report.results if r.check == "backward of backward")
    assert row.status == "skipped"
    assert f"kernels have no derivative ({kind} `" in row.message


def test_both_rules_by_kernels():
    def rule(ctx, t):
        return cube_grad(*ctx.saved_tensors, t)

    def forward(ctx, x):
        keep(ctx, x)
        return cube(x)

    report = jaxfn.check(function(forward=forward, backward=rule, jvp=rule), X)
    assert report.ok, str(report)
    skipped = {r.check for r in report.results if "kernels have no" in r.message}
    assert skipped >= {"backward of backward", "backward of jvp"}


@each
def test_a_wrong_rule_is_still_found(cls):
    wrong = function(base=cls, backward=lambda ctx, grad: 2 * cls.backward(ctx, grad))
    assert jaxfn.check(wrong, CASES[cls][0]).wrong_rules == ("backward",)


@pytest.mark.full
def test_an_error_beside_a_kernel_with_rules_is_no_kernels():
    @jax.custom_jvp
    def fails(x):
        return x

    @fails.defjvp
    def _(primals, tangents):
        raise ZeroDivisionError("of the user")

    raises = kernels(
        "Raises", jnp.sin, lambda x, grad: fails(grad) * jnp.cos(x) + 0 * Sine.apply(x)
    )
    report = jaxfn.check(raises, X)
    (row,) = report.failures
    assert row.check == "backward of backward"
    assert "of the user" in row.message


@each
def test_explain_names_kernels_and_their_memory(cls):
    x, kind, names = CASES[cls]
    report = jaxfn.explain(cls, x)
    assert [(k.kind, k.name) for _, k in report.kernels] == [(kind, n) for n in names]
    assert [where for where, _ in report.kernels] == ["forward", "backward"]
    (_, forward), (_, backward) = report.kernels
    extra = 4 if cls is Root else 0  # LAPACK's status
    assert forward.nbytes == 2 * x.nbytes + extra
    assert backward.nbytes == (2 if cls is Root else 3) * x.nbytes + extra
    assert f"  forward   {kind}  {names[0]}  " in str(report)


def test_a_function_without_kernels_has_no_table():
    report = jaxfn.explain(jaxfn.custom_function(jnp.sin), X)
    assert report.kernels == ()
    assert "kernels" not in str(report)
