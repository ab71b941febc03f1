"""Rules that compute with NumPy and SciPy: arrays of JAX, and `host_function`."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import pytest
import scipy.sparse
import torch

from jaxfn.torch import translate
from jaxfn.torch._base.dtypes import to_jax
from jaxfn.torch._translate.table import arrays
from jaxfn.torch._translate.verify import load

from . import numpy_bodies
from .texts import function

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
    "HelperWrites": (
        lambda: [
            t(
                6,
            )
        ],
        "it writes to a",
    ),
    "Fitted": (lambda: [t(4)], "CubicSpline gives a callable"),
    "ImagView": (
        lambda: [torch.complex(t(4), t(4))],
        "it may write to what is not known",
    ),
    "SharedTable": (lambda: [t(3)], "a write to SHARED, which calls share"),
    "Optimise": (lambda: [t(5)], "may hold arrays that JAX traces"),
    "Chance": (
        lambda: [
            t(
                8,
            )
        ],
        "np.random.default_rng: under jit",
    ),
}


BODIES = [
    (
        (4, 3),
        "it writes to the argument x",
        """\
        a = x.numpy()
        a[0] = 1
        return x * 2
    """,
    ),
    (
        (4, 3),
        "y may share the memory",
        """\
        y = x * 1
        a = y.detach().numpy()
        a[0] = 1
        return y * 2
    """,
    ),
    (
        (4, 3),
        "a may share the memory",
        """\
        a = x.detach().numpy().copy()
        b = a.reshape(-1)
        b[0] = 7
        return torch.from_numpy(a * 2)
    """,
    ),
    (
        (4, 3),
        "np.multiply: it writes to what it is given",
        """\
        a = x.detach().numpy().copy()
        np.multiply(a, 2, out=a)
        return torch.from_numpy(a)
    """,
    ),
    (
        (4, 3),
        "ndarray.sort: JAX's arrays have no such",
        """\
        a = x.detach().numpy().copy()
        a.sort(axis=0)
        return torch.from_numpy(a)
    """,
    ),
    (
        (4, 3),
        "isinstance(a, np.ndarray): JAX's arrays are none",
        """\
        a = x.detach().numpy()
        k = 3.0 if isinstance(a, np.ndarray) else 5.0
        return torch.from_numpy(a * np.float32(k))
    """,
    ),
    (
        (4, 3),
        "a branch on the values of a tensor",
        """\
        a = x.detach().numpy()
        if a.max() > 1:
            a = a / a.max()
        return torch.from_numpy(a)
    """,
    ),
    (
        (4, 3),
        "float() of a tensor",
        """\
        a = x.detach().numpy()
        s = float(np.abs(a).max())
        return torch.from_numpy(a) / s
    """,
    ),
    (
        (4, 3),
        "np.where: the shape depends on values",
        """\
        a = x.detach().numpy().copy()
        a[a < 0] = 0
        b = np.where(a > 1, np.float32(1), a)
        i = np.where(b > 0.5)
        c = np.zeros((4, 3), dtype=np.float32)
        c[i] = 1.0
        ctx.m = b > 0
        return torch.from_numpy(b + c)
    """,
    ),
    (
        (3, 8),
        "np.random.randn: under jit it is drawn once",
        """\
        a = x.detach().numpy()
        return torch.from_numpy(a + np.random.randn(*a.shape).astype(np.float32))
    """,
    ),
    (
        (8,),
        "np.add.at of a tensor",
        """\
        a = x.detach().numpy()
        out = np.zeros(8, dtype=np.float32)
        np.add.at(out, np.array([0, 0, 1]), a[:3])
        return torch.from_numpy(out)
    """,
    ),
    (
        (3, 8),
        "np.apply_along_axis: f may hold arrays",
        """\
        a = x.detach().numpy()

        def f(row):
            return np.sort(row)[::-1] + a[0, 0]

        return torch.from_numpy(np.apply_along_axis(f, 1, a))
    """,
    ),
    (
        (6,),
        "ndarray.item: values are not known",
        """\
        a = x.detach().numpy()
        k = a.argmax()
        top = a[k].item()
        return torch.from_numpy(a) * top
    """,
    ),
    (
        (4, 3),
        "a branch on the values of a tensor",
        """\
        a = x.detach().numpy()
        known = np.any(np.ones(2) > 0)  # the same object as the next
        any_is = np.any(a > 0)
        factor = 3.0 if known and any_is else 2.0
        return x * factor
    """,
    ),
    (
        (2, 3),
        "np.put_along_axis: it writes",
        """\
        a = x.detach().numpy().copy()
        np.put_along_axis(a, np.array([[0], [1]]), 9.0, axis=1)
        return torch.from_numpy(a)
    """,
    ),
    (
        (6,),
        "np.unique: the shape depends on values",
        """\
        a = np.unique(x.detach().numpy())
        return torch.from_numpy(a)
    """,
    ),
    (
        (6,),
        "ndarray.strides: JAX's arrays have no such",
        """\
        a = x.detach().numpy()
        k = a.strides[0]
        return x * float(k)
    """,
    ),
    (
        (4,),
        "a branch on the values of a tensor",
        """\
        total = 0.0
        for v in x.detach().numpy():
            if v > 0:
                total = total + v
        return x * float(1.0) + torch.tensor(total)
    """,
    ),
    (
        (4,),
        "it may write to what is not known",
        """\
        a = x.detach().numpy().copy()
        parts = np.split(a, 2)
        last = parts[1]
        last[0] = 5
        return torch.from_numpy(a)
    """,
    ),
    (
        (4,),
        "np.allclose gives a bool",
        """\
        a = x.detach().numpy()
        if np.allclose(a, 0):
            return x * 2
        return x * 3
    """,
    ),
    (
        (4,),
        "it writes to the argument x",
        """\
        a = x.detach().numpy()
        b = a.astype(np.float32, copy=False)
        b -= b.mean()
        return torch.from_numpy(b) + x
    """,
    ),
    (
        (3, 2),
        "it may write to what is not known",
        """\
        a = x.detach().numpy()
        a = a * 2
        b = np.ascontiguousarray(a.T)
        b[0] = 0
        return torch.from_numpy(a)
    """,
    ),
    (
        (3,),
        "np.exp: it writes to what it is given",
        """\
        a = x.detach().numpy()
        a = a.copy()
        np.exp(a, a)
        return torch.from_numpy(a)
    """,
    ),
    (
        (3,),
        "ndarray.clip: it writes to what it is given",
        """\
        a = x.detach().numpy()
        a = a.copy()
        a.clip(0, 1, out=a)
        return torch.from_numpy(a)
    """,
    ),
    (
        (3,),
        "np.nan_to_num: it writes to what it is given",
        """\
        a = x.detach().numpy()
        a = a.copy()
        np.nan_to_num(a, copy=False)
        return torch.from_numpy(a)
    """,
    ),
    (
        (2, 3),
        "ndarray.ravel: JAX's arrays have no order",
        """\
        a = x.detach().numpy()
        return torch.from_numpy(a.T.ravel("A").reshape(2, 3))
    """,
    ),
    (
        (3,),
        "str() of a device",
        """\
        factor = 2.0 if str(x.device) == "cpu" else 3.0
        return x * factor
    """,
    ),
    (
        (3,),
        "a branch on here: JAX's devices are others",
        """\
        here = x.device
        return x * (2.0 if here else 5.0)
    """,
    ),
    (
        (3,),
        "torch.ones with a starred argument",
        """\
        options = {"device": x.device}
        return x * torch.ones(3, **options)
    """,
    ),
    (
        (3,),
        "np.fromiter of a generator: make it a list",
        """\
        a = x.detach().numpy()
        return torch.from_numpy(np.fromiter((np.exp(v) for v in a), dtype=a.dtype))
    """,
    ),
]


@pytest.mark.parametrize(
    ("shape", "reason", "forward"), BODIES, ids=[reason for _, reason, _ in BODIES]
)
def test_a_body_that_can_not_be_had_is_marked(module, shape, reason, forward):
    found = translate(module(function(forward)).T, t(*shape))
    assert any(reason in line.reason for line in found.left), found.left
    assert "raise NotImplementedError" in found.source


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


@pytest.mark.parametrize(
    "expression",
    [
        "(a * 255).astype(np.uint8)",
        "(a * 255).astype(dtype=np.uint8, copy=False)",
        "np.array(a * 255, dtype=np.uint8)",
        "np.uint8(a * 255)",
    ],
)
def test_small_integers_begin_again(module, expression):
    """Also for values beyond those that it was translated with."""
    text = f"a = x.detach().numpy()\nreturn torch.from_numpy({expression}).to(x.dtype)"
    original = module(function(text)).T
    found = translate(original, torch.tensor([0.1, 0.2]))
    assert found.ok, str(found)
    x = torch.tensor([0.5, 1.2, 2.7])
    ours = load(found.source).T.apply(to_jax(x))
    assert (np.asarray(ours) == original.apply(x).numpy()).all()


def test_what_has_two_dtypes_is_cast_where_jax_would_not(module):
    text = """
        a = x.detach().numpy()
        b = a * np.linspace(0, 1, 3)
        return torch.from_numpy(b / np.sqrt(a.shape[0]) + a / np.float64(3)).to(x.dtype)
    """
    found = translate(module(function(text)).T, t(3))
    assert found.ok, str(found)
    assert "b = a * np.linspace(0, 1, 3)" in found.source  # JAX finds the same there
    assert "a.astype(float) / np.float64(3)" in found.source


def test_a_copy_is_no_call(module):
    text = """
        b = np.copy(x.detach().numpy())
        b[0] = 5
        return torch.from_numpy(b) + x
    """
    found = translate(module(function(text)).T, t(3))
    assert found.ok, str(found)
    assert "b = x\n        b = b.at[0].set(5)" in found.source


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
