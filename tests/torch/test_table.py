"""Every row of the table of operations, beside torch.

The cases are torch's own: the samples of its OpInfo database, with empty arrays, arrays
without dimensions, broadcast and strided ones. What torch makes of them is traced, so
each operation that its decompositions leave meets its row.
"""

from __future__ import annotations

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

from jaxfn.torch import TorchRefusal
from jaxfn.torch import _ops as _table
from jaxfn.torch._base import Flattener, unflatten
from jaxfn.torch._base.dtypes import to_jax
from jaxfn.torch._base.experimental import _decompositions
from jaxfn.torch._function.graph_function import GraphFunction
from tests import sizes

from .compare import error

# The operations that torch's samples need and the table does not have.
LACKING = {
    "_batch_norm_with_update_functional.default", "_embedding_bag_forward_only.default",
    "_to_sparse.default", "_to_sparse.sparse_dim", "_unique2.default",
    "_upsample_bilinear2d_aa.default", "embedding_renorm.default",
    "_histogramdd_bin_edges.default", "grid_sampler_3d.default", "hash_tensor.default",
    "histogram.bin_ct", "linalg_ldl_factor_ex.default", "mode.default",
    "index_reduce.default", "linalg_ldl_solve.default", "narrow_copy.default",
    "nonzero.default", "ormqr.default", "segment_reduce.default",
    "special_airy_ai.default", "special_bessel_j0.default", "special_bessel_j1.default",
    "special_bessel_y0.default", "special_bessel_y1.default",
    "special_chebyshev_polynomial_t.default", "special_chebyshev_polynomial_u.default",
    "special_chebyshev_polynomial_v.default", "special_chebyshev_polynomial_w.default",
    "special_hermite_polynomial_h.default", "special_hermite_polynomial_he.default",
    "special_laguerre_polynomial_l.default", "special_legendre_polynomial_p.default",
    "special_modified_bessel_k0.default", "special_modified_bessel_k1.default",
    "special_scaled_modified_bessel_k0.default",
    "special_scaled_modified_bessel_k1.default",
    "special_shifted_chebyshev_polynomial_t.default",
    "special_shifted_chebyshev_polynomial_u.default",
    "special_shifted_chebyshev_polynomial_v.default",
    "special_shifted_chebyshev_polynomial_w.default",
    "special_spherical_bessel_j0.default", "unique_consecutive.default",
    "unique_dim.default",
}  # fmt: skip
PARTS = 16
SAMPLES = 2
# What is drawn has no value to compare; what is empty has any.
RANDOM = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
RANDOM |= {"new_empty_strided", "geqrf", "bernoulli", "multinomial", "normal"}
# No function of its input: another sign, another basis, any of equal ones.
AMBIGUOUS = {"linalg.svd", "svd", "linalg.eig", "linalg.eigh", "svd_lowrank"}
AMBIGUOUS |= {"pca_lowrank", "linalg.qr", "qr", "lobpcg"}
AMBIGUOUS |= {"topk", "sort", "msort", "argsort"}


# JAX's polygamma is, for negative numbers; torch_support.md says so.
LESS_PRECISE = 5e-3


def test_every_core_operation_that_is_left_has_a_row():
    # dir(torch.ops.aten) has those alone that something has asked for.
    known = [n.split(".")[0] for n in torch._C._dispatch_get_all_op_names()]
    missing = []
    for name in {n.removeprefix("aten::") for n in known if n.startswith("aten::")}:
        packet = getattr(torch.ops.aten, name, None)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            # The second pass takes apart each operation with a decomposition.
            is_left = torch.Tag.core in op.tags and op not in _decompositions()
            if is_left and _table.find(str(op)) is None:
                missing.append(str(op))
    left = {name.rsplit(".", 1)[0] for name in missing}
    assert sorted(name for name in left if not name.endswith("_")) == NO_ROW


# What writes in place is not left by the second pass.
# Sizes are numbers when the graph is traced; nonzero has no shape before it has values.
NO_ROW = ["aten.nonzero", "aten.sym_storage_offset"]


def samples(op, dtype=torch.float32):
    try:
        every = op.sample_inputs("cpu", dtype, requires_grad=False)
        found = list(itertools.islice(every, 40))
    except Exception:  # noqa: BLE001  (some need what is not installed)
        return []
    return found[:: max(1, len(found) // SAMPLES)][:SAMPLES]


def size(sample):
    x = sample.input
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return 0
    return x.numel() if x.isfinite().all() else 0


def flat(op, sample):
    """The operation as a function of flat tensors, and these."""
    taker = Flattener(lambda x: isinstance(x, torch.Tensor))
    template = taker([sample.input, list(sample.args), dict(sample.kwargs)])

    def run(tensors):
        first, rest, kwargs = unflatten(template, tensors)
        found = Flattener(lambda x: isinstance(x, torch.Tensor))
        found(op.op(first, *rest, **kwargs))
        return found.leaves

    return run, taker.leaves


@pytest.mark.parametrize("part", range(PARTS))
def test_operations_are_torchs(part, record_property, request):
    """On one of their samples, by turns; with `--full` on all."""
    ran, wrong, lacking = 0, {}, set()
    here = [op for op in op_db[part::PARTS] if op.name not in RANDOM | AMBIGUOUS]
    for n, op in enumerate(here):
        if torch.float32 not in op.dtypes:
            continue
        given = samples(op)
        if not request.config.option.full:
            given = given[n % max(1, len(given)) :][:1]
        for sample in given:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                why = compared(op, sample, lacking)
            ran += why is not REFUSED
            if why is not None and why is not REFUSED:
                wrong[op.name] = why
    record_property("compared", ran)
    assert ran > 10
    assert not wrong
    assert lacking <= LACKING


def test_what_is_lacking_has_no_row():
    assert not [name for name in LACKING if _table.find(f"aten.{name}") is not None]


REFUSED = "refused"


def compared(op, sample, lacking):
    """What differs, None if nothing does; notes an operation that has no row."""
    run, tensors = flat(op, sample)
    try:
        theirs = run([x.clone() for x in tensors])
    except Exception:  # noqa: BLE001  (torch refuses some of its own samples)
        return REFUSED
    body, arrays = GraphFunction(run, name=op.name, rule="op"), None
    try:
        arrays = [to_jax(x) for x in tensors]
        ours = jax.jit(lambda *xs: body(xs))(*arrays)
    except TorchRefusal as refusal:
        if "table does not have it" in str(refusal):
            lacking.add(refusal.operation.removeprefix("aten."))
        return str(refusal) if "a fault of jaxfn" in str(refusal) else REFUSED
    gap = error(ours, [x.resolve_conj() for x in theirs])
    allowed = LESS_PRECISE if "polygamma" in op.name else 2e-4
    return None if gap < allowed else f"{gap} for {sample}"


# How far results may be apart, of their largest element: by roundings of these dtypes.
ROUNDING = {
    torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.complex64: 2e-4,
    torch.float64: 1e-9, torch.complex128: 1e-9,
}  # fmt: skip
# At its poles, the integers below 1, torch has large numbers and JAX infinity.
POLES = {"polygamma", "special.polygamma"}
# torch's own is nan or infinite there, whatever the matrix; torch_support.md says so.
BROKEN = {("matrix_exp", torch.bfloat16), ("matrix_exp", torch.float16)}
# Torch computes it in integers; torch_support.md says so.
BROKEN |= {("nn.functional.interpolate", torch.uint8)}
BROKEN |= {("nn.functional.upsample_bilinear", torch.uint8)}
# Of one number torch leaves a rounding, where 0 is right.
BROKEN |= {("native_layer_norm", torch.bfloat16), ("native_layer_norm", torch.float16)}
# Of matrices said to be Hermitian that are not, which the page says, too.
BROKEN |= {("linalg.pinv", torch.complex64), ("linalg.pinv", torch.complex128)}
OTHERS = [*ROUNDING, torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64]


def wrong_by_turns(part, dtypes, compare, record_property):
    """Each operation in one of the dtypes that it has, by turns: what differs."""
    ran, wrong = 0, {}
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, op in list(enumerate(op_db))[part::PARTS]:
            known = [d for d in dtypes(op) if (op.name, d) not in BROKEN]
            if not known or op.name in RANDOM | AMBIGUOUS | POLES:
                continue
            dtype = known[n % len(known)]
            given = samples(op, dtype)
            if given:
                why = compare(op, given[n % len(given)], dtype)
                ran += why is not REFUSED
                if why is not None and why is not REFUSED:
                    wrong[op.name] = dtype, why
    record_property("compared", ran)
    assert ran > 5
    return wrong


@pytest.mark.parametrize("part", range(PARTS))
def test_operations_are_torchs_in_another_dtype(part, record_property):
    """Each in one of those that torch has for it, by turns."""

    def dtypes(op):
        return [dtype for dtype in OTHERS if dtype in op.dtypes]

    assert wrong_by_turns(part, dtypes, in_dtype, record_property) == {}


# By turns each operation meets one dtype: these were wrong, or refused, in others.
SOME = {
    "arange": torch.uint8,
    "gather": torch.float16,
    "index_add": torch.bool,
    "index_put": torch.bool,
    "masked_scatter": torch.int64,
    "scatter_reduce": torch.bool,
}


@pytest.mark.parametrize("name", SOME)
def test_an_operation_is_torchs_on_all_samples_of_a_dtype(name):
    (op, *_), dtype = [op for op in op_db if op.name == name], SOME[name]
    given = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    assert len(given) > 3
    with jax.enable_x64(True):
        found = [in_dtype(op, sample, dtype) for sample in given]
    assert not [why for why in found if why not in (None, REFUSED)]
    assert found.count(None) > len(given) / 2


def in_dtype(op, sample, dtype):
    """What differs; None if nothing does."""
    run, tensors = flat(op, sample)
    try:
        theirs = [x.resolve_conj() for x in run([x.clone() for x in tensors])]
    except Exception:  # noqa: BLE001  (torch refuses some of its own samples)
        return REFUSED
    body = GraphFunction(run, name=op.name, rule="op")
    try:
        ours = jax.jit(lambda *xs: body(xs))(*map(to_jax, tensors))
    except TorchRefusal as refusal:
        return str(refusal) if "a fault of jaxfn" in str(refusal) else REFUSED
    types = [(str(x.dtype), x.shape) for x in ours]
    wanted = [(str(x.dtype).removeprefix("torch."), tuple(x.shape)) for x in theirs]
    if types != wanted:
        return f"{types}, not {wanted}"
    gap = error(ours, theirs)
    return None if gap <= ROUNDING.get(dtype, 1e-5) else f"{gap} for {sample}"


@pytest.mark.parametrize("part", sizes.only(range(PARTS), lambda part: part % 8 == 3))
def test_gradients_are_torchs(part, record_property):
    """Each operation, differentiated by torch, is what torch gives when it runs."""
    ran, wrong = 0, {}
    for op in op_db[part::PARTS]:
        usable = torch.float32 in op.dtypes and op.supports_autograd
        if not usable or op.name in RANDOM | AMBIGUOUS:
            continue
        # The first sample is often empty, or has one element.
        for sample in sorted(samples(op), key=size)[-1:]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                why = compared_gradients(op, sample, 1e-3)
            ran += why is not REFUSED
            if why is not None and why is not REFUSED:
                wrong[op.name] = why
    record_property("compared", ran)
    assert ran > 5
    assert not wrong


# What of gradients is allowed: sums of products in few digits lose more than one.
ALLOWED = {torch.bfloat16: 6e-2, torch.float16: 1e-2, torch.float64: 1e-8}
ALLOWED |= {torch.complex64: 1e-3, torch.complex128: 1e-8}


@pytest.mark.parametrize("part", sizes.only(range(PARTS), lambda part: part % 8 == 5))
def test_gradients_are_torchs_in_another_dtype(part, record_property):
    """Each in one of those that torch differentiates it in, by turns."""

    def dtypes(op):
        both = op.dtypes & op.backward_dtypes if op.supports_autograd else ()
        return [dtype for dtype in ALLOWED if dtype in both]

    def compare(op, sample, dtype):
        return compared_gradients(op, sample, ALLOWED[dtype])

    assert wrong_by_turns(part, dtypes, compare, record_property) == {}


# These were refused as faults in dtypes that they meet by turns.
GRADIENTS = {
    "combinations": torch.complex64,
    "gather": torch.float64,
    "nn.functional.adaptive_avg_pool3d": torch.float64,
    "nn.functional.interpolate": torch.bfloat16,
    "nn.functional.upsample_bilinear": torch.float16,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_torchs_on_all_samples_of_a_dtype(name):
    dtype, reasons = GRADIENTS[name], set()
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in [op for op in op_db if op.name == name]:
            for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
                reasons.add(compared_gradients(op, sample, ALLOWED[dtype]))
    assert reasons <= {None, REFUSED}
    assert None in reasons


def compared_gradients(op, sample, allowed):
    """What differs; None if nothing does."""
    run, tensors = flat(op, sample)
    needs = tuple(map(is_inexact, tensors))
    leaves = [x.clone().requires_grad_(n) for x, n in zip(tensors, needs, strict=True)]
    try:
        if any(x.is_floating_point() and x.isnan().any() for x in tensors):
            return REFUSED  # XLA takes 0 * inf for 0, where a factor is a mask
        outs = run([x.clone() for x in leaves])
        given = tuple(x.requires_grad and is_inexact(x) for x in outs)
        smooth = [x for x, ok in zip(outs, given, strict=True) if ok]
        cts = [cotangent(x) for x in smooth]
        wanted = [x for x, need in zip(leaves, needs, strict=True) if need]
        theirs = torch.autograd.grad(smooth, wanted, cts, allow_unused=True)
    except Exception:  # noqa: BLE001  (torch refuses some of its own samples)
        return REFUSED
    theirs = [
        torch.zeros_like(x) if g is None else g
        for x, g in zip(wanted, theirs, strict=True)
    ]
    body = GraphFunction(run, name=op.name, rule="op").vjp(needs, given)
    try:
        ours = jax.jit(lambda *xs: body(xs))(*[to_jax(x) for x in (*tensors, *cts)])
    except TorchRefusal as refusal:
        return str(refusal) if "a fault of jaxfn" in str(refusal) else REFUSED
    ours = [
        jnp.zeros_like(to_jax(x)) if g is None else g
        for x, g in zip(wanted, ours, strict=True)
    ]
    theirs = [x.detach().resolve_conj().resolve_neg() + 0 for x in theirs]
    types = [str(x.dtype) for x in ours]
    expected = [str(x.dtype).removeprefix("torch.") for x in theirs]
    if jax.config.jax_enable_x64 and types != expected:
        return f"{types}, not {expected}"
    # What cancels leaves the rounding of numbers that are larger than the cotangents,
    # which are about 1; in few digits not by much, or nothing would be left.
    eps = max(torch.finfo(x.dtype).eps for x in leaves if is_inexact(x))
    larger = 1e3 if eps < 1e-6 else 4
    gap = error(ours, theirs, larger * eps / allowed)
    return None if gap < allowed else f"{gap} for {sample}"


def is_inexact(x):
    return x.is_floating_point() or x.is_complex()


def cotangent(x):
    """Numbers that are all different, with imaginary parts where it is complex."""
    real = torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).reshape(x.shape)
    return (real * (1 + 0.5j) if x.is_complex() else real).to(x.dtype)


DTYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8,
    torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64,
]  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "pow": lambda x, y: torch.pow(x, y.abs()), "maximum": torch.maximum,
    "remainder": torch.remainder, "fmod": torch.fmod, "atan2": torch.atan2,
    "lt": torch.lt, "eq": torch.eq, "where": lambda x, y: torch.where(x > 0, x, y),
    "number": lambda x, y: x * 2.5 + 1 - y, "and": torch.logical_and,
    "clamp": lambda x, y: torch.clamp(x, min=-1, max=2) + y,
    "sum": lambda x, y: x.sum(),
    "mean": lambda x, y: (x / 2).mean(0), "cast": lambda x, y: x.to(y.dtype),
    "mm": lambda x, y: x @ y.mT, "cat": lambda x, y: torch.cat([x, y]),
    "cumsum": lambda x, y: x.cumsum(0), "prod": lambda x, y: x.prod(),
    "bits": torch.bitwise_xor, "sign": lambda x, y: x.sign(),
}  # fmt: skip


def values(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(np.array(rng.integers(-3, 4, shape)))
    if dtype.is_floating_point or dtype.is_complex:
        x = x + torch.from_numpy(np.array(rng.uniform(0.1, 0.4, shape)))
    return (x.abs() if dtype is torch.uint8 else x).to(dtype)


@pytest.mark.parametrize("name", BINARY)
def test_dtypes_promote_as_in_torch(name):
    """All pairs of dtypes; an array without dimensions promotes otherwise."""
    ran = 0
    with jax.enable_x64(True):
        for i, a in enumerate(DTYPES):
            for j, b in enumerate(DTYPES):
                for shapes in (((2, 3), (2, 3)), ((2, 3), ())):
                    if (i + j) % 3 == 2 and shapes[1] == ():
                        continue
                    x, y = values(shapes[0], a, i), values(shapes[1], b, j + 20)
                    ran += _is_the_same(BINARY[name], x, y)
    assert ran > 5


BOUNDS = [(-1, None), (None, -1), (-1, 2), (None, 300), (300, None), (-300, -200)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_clamp_with_bounds_that_the_dtype_can_not_hold(dtype, bounds):
    """As in the release of torch that is installed: they are not alike."""
    x = torch.tensor([0, 1, 2, 100, 255]).to(dtype)
    body = GraphFunction(lambda t: [t[0].clamp(*bounds)], name="op", rule="op")
    try:
        expected = to_jax(x.clamp(*bounds))
    except RuntimeError:
        with pytest.raises(TorchRefusal, match="op"):
            body([to_jax(x)])
    else:
        np.testing.assert_array_equal(body([to_jax(x)])[0], expected)


def _is_the_same(fn, x, y):
    def run(tensors):
        return [fn(*tensors)]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (theirs,) = run([x.clone(), y.clone()])
    except (RuntimeError, TypeError):
        return 0  # torch does not have it for these dtypes
    arrays = [to_jax(x), to_jax(y)]
    try:
        (ours,) = GraphFunction(run, name="op", rule="op")(arrays)
    except TorchRefusal as refusal:
        if "JAX can't hold it" in str(refusal):  # complex32
            return 0
        raise
    wanted = to_jax(theirs)
    assert ours.dtype == wanted.dtype, (x.dtype, y.dtype)
    assert ours.shape == wanted.shape
    precise = {"bfloat16": 2e-2, "float16": 2e-3}.get(str(ours.dtype), 1e-5)
    two = [np.asarray(a).astype(complex) for a in (ours, wanted)]
    close = np.allclose(*two, precise, precise, equal_nan=True)
    by_zero = not x.is_floating_point() and not y.is_floating_point()
    assert close or (by_zero and bool((y == 0).any())), (x, y, ours, wanted)
    return 1
