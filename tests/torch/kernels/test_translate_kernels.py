"""The translator on Functions that launch Triton kernels."""

import inspect
import threading

import pytest
import torch
import triton

import jaxfn.torch
from jaxfn.torch._triton import running
from tests.torch.kernels import functions, translated
from tests.torch.kernels.packages import CASES

pytestmark = [pytest.mark.filterwarnings("ignore")]
X = torch.linspace(-1.0, 2.0, 6)
FOUR = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)
SHORT = (
    "LigerSoftmaxFunction",
    "LigerLayerNormFunction",
    "LigerSiLUMulFunction",
    "fla l2norm:L2NormFunction",
)


def of(cls, *args):
    return jaxfn.torch.translate(cls, *(args or (X,)))


@pytest.mark.parametrize(
    ("cls", "args"),
    [
        (translated.Written, (X,)),
        (translated.Tuned, (X,)),
        (translated.SavesItsOutput, (X,)),
        (translated.Two, (X,)),
        (translated.InPlace, (X,)),
        (translated.ByRows, (X.reshape(2, 3),)),
        (translated.PartWritten, (X,)),
        (translated.IntoOutput, (X,)),
        (translated.Unreached, (X,)),
        (translated.Flagged, (X,)),
        (translated.AsksOnce, (X,)),
        (translated.AsksTwice, (X,)),
        (translated.Checked, (X.reshape(1, 2, 3),)),
        (translated.Many, (X,)),
        (translated.ShareALine, (X,)),
        (translated.OfATotal, (X,)),
        (translated.Multiplied, (X,)),
        (functions.Scale, (X,)),
        (functions.ScaleSeparately, (X,)),
        (functions.Square, (X,)),
        (functions.Part, (X,)),
        (functions.PlainBesideKernel, (X.reshape(2, 3),)),
    ],
)
def test_translated_and_equal(cls, args):
    result = of(cls, *args)
    assert result.ok, f"{result}\n{result.source}"


@pytest.mark.parametrize(
    ("cls", "args", "reason"),
    [
        (translated.Transposed, (X.reshape(2, 3),), "was not contiguous"),
        (translated.Transposed, (X.reshape(1, 6),), "was not contiguous"),
        (translated.TransposedIfAsked, (X.reshape(2, 3),), "may see its memory"),
        (translated.Bound, (X,), "launch a kernel by `kernel[grid](...)`"),
        (translated.Run, (X,), "launch a kernel by `kernel[grid](...)`"),
        (translated.LosesAWrite, (X,), "part may share the memory"),
        (translated.LosesInAHelper, (X,), "y may share the memory"),
        (translated.LosesThroughADict, (X,), "it writes to the argument y"),
        (translated.LosesThroughTwoNames, (X,), "may share its memory"),
        (translated.ByValue, (X,), "a branch on the values of a tensor"),
        (translated.Overlapping, (X,), "reads through one pointer what it wrote"),
        (translated.Chosen, (X,), "a kernel that has no name here"),
        (translated.Hooked, (X,), "pre_hook"),
        (translated.Doubled, (X,), "the decorator doubling"),
        (translated.Widened, (X,), "the decorator widening"),
        (translated.RemembersShapes, (X,), "the decorator remembering_shapes"),
        (translated.Nameless, (X,), "the decorator nameless"),
        (functions.InPlace, (X,), "y may share the memory"),
        (functions.SavedOutput, (X,), "whole may share the memory"),
        (functions.SavedTogether, (FOUR,), "x may share the memory"),
        (functions.NotNamed, (X,), "a kernel that has no name here"),
        (functions.Number, (X, torch.tensor(2.0)), "Tensor.item"),
    ],
)
def test_marked(cls, args, reason):
    result = of(cls, *args)
    assert any(reason in str(left) for left in result.left), str(result)
    assert "raise NotImplementedError" in result.source


def test_a_decorator_that_did_nothing_leaves_a_comment():
    source = of(translated.Written).source
    said = "# without @contiguous, which changed nothing when tried"
    assert source.count(said) == 2


def test_a_number_of_the_machine_keeps_its_name():
    lines = [line.strip() for line in of(translated.AsksTwice).source.splitlines()]
    said = "# 4: torch.cuda.get_device_properties(x.device).multi_processor_count"
    assert lines[lines.index("count = 4") - 1] == said


def test_outputs_have_a_line_each_if_one_is_too_short():
    lines = [line.strip() for line in of(translated.Flagged).source.splitlines()]
    place = lines.index("out={")
    assert lines[place + 1 : place + 4] == [
        '"y": y,',
        '"z": jax.ShapeDtypeStruct(squared_output.shape, squared_output.dtype),',
        "},",
    ]


def test_a_second_derivative_that_a_kernel_lacks_is_skipped():
    (row,) = [
        row
        for row in of(translated.SavesItsOutput).comparison.results
        if row.check == "second derivative"
    ]
    assert row.status == "skipped"
    assert "the port refuses it: The kernel `scale_kernel`" in row.message


def test_kernels_stay_word_for_word():
    source = of(translated.Written).source
    for kernel in (translated.times, translated.scale_kernel):
        assert inspect.getsource(kernel.fn).strip() in source
    assert "torch" not in source
    assert "contiguous(" not in source
    assert "y = jax.ShapeDtypeStruct(x.shape, x.dtype)" in source
    call = [line.strip() for line in source.split("triton_call(")[1].splitlines()]
    assert call[1:8] == [
        "scale_kernel,",
        "(triton.cdiv(x.size, 8),),",
        'out={"y": y},',
        "x=x,",
        "n=x.size,",
        "by=3.0,",
        "BLOCK=8,",
    ]


def test_a_tuned_kernel_and_its_constants_stay():
    source = of(translated.Tuned).source
    text = inspect.getsource(translated.tuned_kernel.fn.fn.fn)
    assert text.strip() in source
    assert "WARPS = [1, 2]\n" in source  # what the platform has made of it
    assert "FACTOR: tl.constexpr = tl.constexpr(3.0)" in source
    assert 'lambda meta: (triton.cdiv(n, meta["BLOCK"]),)' in source


def test_a_number_of_the_gpu_is_written_out():
    source = of(translated.ByRows, X.reshape(2, 3)).source
    assert "# 4: torch.cuda.get_device_properties(x.device).multi_processor" in source
    assert "many = 4\n" in source
    assert "xpu" not in source
    assert "xr=x.shape[1], xc=1, yr=y.shape[1], yc=1" in source


def test_compare_runs_an_original_that_launches():
    port = jaxfn.torch.from_torch(functions.Scale)
    report = jaxfn.torch.compare(port, functions.Scale, X)
    assert report.ok, str(report)
    wrong = jaxfn.torch.compare(port, functions.Square, X)
    assert "value" in {row.check for row in wrong.failures}


def test_nothing_stays_replaced():
    before = vars(triton.runtime.JITFunction)["run"], torch.cuda.is_available
    with pytest.raises(ZeroDivisionError), running():
        raise ZeroDivisionError
    assert (vars(triton.runtime.JITFunction)["run"], torch.cuda.is_available) == before
    seen = []
    with running():
        functions.Scale.apply(X)
        thread = threading.Thread(target=lambda: seen.append(X.is_cuda))
        thread.start()
        thread.join()
        assert torch.cuda.is_available()
    assert seen == [False]
    with pytest.raises(Exception, match="driver"):
        functions.Scale.apply(X)


def count(cases):
    """Translate: how many are equal, and names of those that differ unmarked."""
    equal, silent = 0, []
    for case in cases:
        given = case.arguments()
        for i in case.positions(given):
            given[i].requires_grad_()
        result = jaxfn.torch.translate(case.load(), *given)
        equal += result.comparison.ok
        if not (result.comparison.ok or result.left):
            silent.append((case.name, str(result)))
    return equal, silent


@pytest.mark.skipif(not all(c.is_here for c in CASES), reason="not installed here")
def test_some_functions_of_packages():
    cases = [c for c in CASES if c.name in SHORT]
    assert count(cases) == (len(cases), [])
    assert len(cases) == len(SHORT)


@pytest.mark.full
@pytest.mark.skipif(not all(c.is_here for c in CASES), reason="not installed here")
def test_all_functions_of_packages():
    equal, silent = count(CASES)
    assert not silent
    assert equal >= 26
