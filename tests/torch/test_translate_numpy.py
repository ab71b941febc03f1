"""Rules that compute with NumPy and SciPy: arrays of JAX, and `host_function`."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import pytest
import scipy.sparse
import torch

from jaxfn.torch import translate
from jaxfn.torch._dtypes import to_jax
from jaxfn.torch._translate._names import arrays

from . import numpy_bodies

G = torch.Generator()
G.manual_seed(0)


def t(*shape):
    return torch.randn(*shape, generator=G)


EQUAL = {
    "BadFFT": lambda: [t(8, 8)],
    "ScipyConv2d": lambda: [t(10, 10), t(3, 3), t(1, 1)],
    "NumpySort": lambda: [t(3, 5), 1],
    "NumpyCube": lambda: [t(4)],
    "SoftDTW": lambda: [t(4, 5).abs(), 0.7],
    "Digamma": lambda: [t(5).abs() + 0.5],
    "Inline": lambda: [t(5, 3), 2],
    "Inverse": lambda: [t(3, 3) + 4 * torch.eye(3)],
    "Loops": lambda: [t(4, 3)],
    "Masked2": lambda: [t(4, 3)],
    "Sqrtm": lambda: [t(3, 3)],
    "Gaussian": lambda: [t(3, 8)],
    "Double": lambda: [t(3, 8).double()],
    "ViaHelpers": lambda: [t(3, 8)],
    "Many": lambda: [t(6), t(6)],
    "Annotated": lambda: [t(3, 2)],
    "Device": lambda: [t(2, 3)],
    "LiftedConstant": lambda: [t(3)],
    "FromScalar": lambda: [t(4, 2)],
    "FromList": lambda: [t(2, 3)],
    "Unreached": lambda: [t(2, 3)],
    "Sparse": lambda: [scipy.sparse.csr_array(np.eye(3) * 2), t(3)],
    "Interpolated": lambda: [t(3)],
    "Ints": lambda: [torch.randint(0, 5, (4, 3), generator=G), t(4, 3)],
    "Scalars": lambda: [t(3, 8)],
    "Wraps": lambda: [t(8).abs() * 3],
    "Comprehended": lambda: [t(2, 5)],
    "LookUp": lambda: [t(2, 3)],
    "Ranks": lambda: [t(3)],
    "ConstantMethod": lambda: [t(3)],
    "Filtered": lambda: [t(6)],
    "InnerLambda": lambda: [t(3)],
    "ClipNames": lambda: [t(5)],
    "Ordered": lambda: [t(2, 3)],
    "LoopCarry": lambda: [t(3)],
    "HostedConstant": lambda: [t(3)],
    "LeastOfThree": lambda: [t(3)],
    "Shared": lambda: [t(2, 3)],
    "Counts": lambda: [torch.ones(2, 3, dtype=torch.int32), t(3)],
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
@pytest.mark.filterwarnings("ignore:Matrix is singular")
@pytest.mark.parametrize("name", EQUAL)
def test_they_are_equal(name):
    found = translate(getattr(numpy_bodies, name), *EQUAL[name]())
    assert found.left == ()
    assert found.comparison.ok, str(found.comparison)


MARKED = {
    "WriteInput": (lambda: [t(4, 3)], "it writes to the argument x"),
    "WriteView": (lambda: [t(4, 3)], "y may share the memory"),
    "WriteReshaped": (lambda: [t(4, 3)], "a may share the memory"),
    "OutArg": (lambda: [t(4, 3)], "np.multiply: it writes to what it is given"),
    "PutAlong": (lambda: [t(2, 3)], "np.put_along_axis: it writes"),
    "HelperWrites": (lambda: [t(2, 3)], "it writes to a"),
    "SortInPlace": (lambda: [t(4, 3)], "ndarray.sort: JAX's arrays have no such"),
    "IsNd": (lambda: [t(4, 3)], "isinstance(a, np.ndarray): JAX's arrays are none"),
    "Branch": (lambda: [t(4, 3)], "a branch on the values of a tensor"),
    "ScalarBranch": (lambda: [t(4, 3)], "a branch on the values of a tensor"),
    "LoopBranch": (lambda: [t(4)], "a branch on the values of a tensor"),
    "Numbers": (lambda: [t(4)], "np.allclose gives a bool"),
    "Fitted": (lambda: [t(4)], "CubicSpline gives a callable"),
    "ImagView": (
        lambda: [torch.complex(t(4), t(4))],
        "it may write to what is not known",
    ),
    "SplitView": (lambda: [t(4)], "it may write to what is not known"),
    "AstypeView": (lambda: [t(4)], "it writes to the argument x"),
    "SometimesView": (lambda: [t(3, 2)], "it may write to what is not known"),
    "SharedTable": (lambda: [t(3)], "a write to SHARED, which calls share"),
    "OutByPlace": (lambda: [t(3)], "np.exp: it writes to what it is given"),
    "ClipOut": (lambda: [t(3)], "ndarray.clip: it writes to what it is given"),
    "NanToNum": (lambda: [t(3)], "np.nan_to_num: it writes to what it is given"),
    "RavelAny": (lambda: [t(2, 3)], "ndarray.ravel: JAX's arrays have no order"),
    "Generated": (lambda: [t(3)], "np.fromiter of a generator: make it a list"),
    "DeviceText": (lambda: [t(3)], "str() of a device"),
    "DeviceTruth": (lambda: [t(3)], "a branch on here: JAX's devices are others"),
    "DeviceOptions": (lambda: [t(3)], "torch.ones with a starred argument"),
    "FloatOf": (lambda: [t(4, 3)], "float() of a tensor"),
    "Masked": (lambda: [t(4, 3)], "np.where: the shape depends on values"),
    "Unique": (lambda: [t(2, 3)], "np.unique: the shape depends on values"),
    "Optimise": (lambda: [t(5)], "may hold arrays that JAX traces"),
    "Nested": (lambda: [t(3, 8)], "np.apply_along_axis: f may hold arrays"),
    "Rand": (lambda: [t(3, 8)], "np.random.randn: under jit it is drawn once"),
    "Chance": (lambda: [t(3, 8)], "np.random.default_rng: under jit"),
    "AddAt": (lambda: [t(3, 8)], "np.add.at of a tensor"),
    "Item": (lambda: [t(6)], "ndarray.item: values are not known"),
    "Strides": (lambda: [t(6)], "ndarray.strides: JAX's arrays have no such"),
}


@pytest.mark.parametrize("name", MARKED)
def test_what_can_not_be_had_is_marked(name):
    args, reason = MARKED[name]
    found = translate(getattr(numpy_bodies, name), *args())
    assert any(reason in line.reason for line in found.left), found.left
    assert "raise NotImplementedError" in found.source


def test_all_bodies_are_tried():
    classes = {
        name
        for name, value in vars(numpy_bodies).items()
        if isinstance(value, type) and issubclass(value, torch.autograd.Function)
    }
    assert classes - {"Function"} == {*EQUAL, *MARKED}


def test_a_helper_of_numpy_alone_is_carried_over_as_it_is():
    found = translate(numpy_bodies.SoftDTW, *EQUAL["SoftDTW"]())
    for helper in (numpy_bodies.soft_dtw_forward, numpy_bodies.soft_dtw_backward):
        assert inspect.getsource(helper).strip() in found.source
    assert "jaxfn.host_function(soft_dtw_forward)(D_, gamma)" in found.source


def test_what_jax_numpy_has_too_is_written_so():
    source = translate(numpy_bodies.Many, *EQUAL["Many"]()).source
    assert "e = jnp.exp(-jnp.abs(d))" in source
    assert "jaxfn.host_function(np.linalg.eigh)(e + e.T)" in source


def test_what_has_other_dtypes_runs_in_numpy():
    source = translate(numpy_bodies.Counts, *EQUAL["Counts"]()).source
    assert "jaxfn.host_function(np.sum)(i, axis=0)" in source


def test_a_helper_that_gets_tensors_too_is_translated():
    source = translate(numpy_bodies.Shared, *EQUAL["Shared"]()).source
    assert "return twice(x) + twice(x)" in source
    source = translate(numpy_bodies.Unreached, *EQUAL["Unreached"]()).source
    assert "chosen(x, True) + last_sums(x)" in source


def test_constants_stay_of_numpy():
    source = translate(numpy_bodies.LiftedConstant, *EQUAL["LiftedConstant"]()).source
    assert "table = np.ones(3) * 2\n        table[1] = 5" in source
    assert "moved = jnp.array(np.ones(3, dtype=a.dtype) * 2)" in source


def test_an_import_for_each_module():
    source = translate(numpy_bodies.BadFFT, *EQUAL["BadFFT"]()).source
    assert "\nfrom numpy.fft import irfft2, rfft2\n" in source


def test_devices_that_nothing_needs_are_gone():
    source = translate(numpy_bodies.Device, *EQUAL["Device"]()).source
    assert "device = None\n        w = jnp.ones((3,))" in source  # a helper gets it
    assert "ctx.device" not in source
    assert "here" not in source
    assert "g * w" in source


# ---- functions that jax.numpy has too

X = np.array([[0.3, -1.2, 2.5], [1.1, 0.4, -0.7]], np.float32)
M = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 5.0]], np.float32)
POSITIVE = np.abs(X) / 3 + np.float32(0.01)
CALLS = {
    "array": [([X, X],)],
    "broadcast_to": [(X, (4, 2, 3))],
    "clip": [(X, -1.0, 1.0)],
    "concatenate": [([X, X],), ([X, X], 1)],
    "diag": [(M,), (X[0],), (M, 1)],
    "dot": [(M, M), (X[0], X[1])],
    "einsum": [("ij,kj->ik", X, X)],
    "expand_dims": [(X, 1)],
    "flip": [(X,), (X, 1)],
    "hstack": [([X, X],)],
    "matmul": [(X, M)],
    "moveaxis": [(X, 0, 1)],
    "outer": [(X[0], X[1])],
    "reshape": [(X, (3, 2)), (X, -1)],
    "roll": [(X, 1), (X, 1, 1)],
    "stack": [([X, X],), ([X, X], 1)],
    "swapaxes": [(X, 0, 1)],
    "tensordot": [(X, M, 1), (X, X, ([0, 1], [0, 1]))],
    "tile": [(X, 2), (X, (2, 1))],
    "trace": [(M,)],
    "tril": [(M,), (M, 1)],
    "triu": [(M,), (M, -1)],
    "vstack": [([X, X],)],
    "where": [(X > 0, X, np.float32(2) * X)],
    "linalg.cholesky": [(M,)],
    "linalg.det": [(M,)],
    "linalg.inv": [(M,)],
    "linalg.norm": [(X,), (X[0], 1)],
    "linalg.solve": [(M, M[0])],
}
BINARY = {"add", "arctan2", "divide", "maximum", "minimum", "multiply", "subtract"}
KEYS = {
    "sum": [{"axis": 1}, {"axis": 0, "keepdims": True}],
    "std": [{"ddof": 1}, {"axis": 1, "ddof": 1}],
    "transpose": [{"axes": (1, 0)}],
    "cumsum": [{"axis": 1}],
}
KEYS |= {"var": KEYS["std"]} | dict.fromkeys(("max", "min", "mean"), KEYS["sum"])


@pytest.mark.parametrize("function", arrays.SAME, ids=arrays.SAME.get)
def test_jax_numpy_gives_the_same(function):
    name = arrays.SAME[function]
    given = CALLS.get(name, [(POSITIVE, POSITIVE[::-1])] if name in BINARY else None)
    ours = jax.numpy
    for part in name.split("."):
        ours = getattr(ours, part)
    for args in given or [(POSITIVE,)]:
        for keywords in [{}, *KEYS.get(name, [])]:
            expected = function(*args, **keywords)
            found = ours(*args, **keywords)
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            # Sums in another order, and LAPACK's ways.
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def test_arrays_of_jax_have_the_methods_and_attributes():
    array = to_jax(t(2, 3))
    assert all(hasattr(array, name) for name in arrays.METHODS | arrays.ATTRIBUTES)
