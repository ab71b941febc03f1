"""Kernels on tensors with values: `compare` runs them, `translate` refuses them."""

import threading

import pytest
import torch
import triton

import jaxfn.torch
from jaxfn.torch._triton import running
from tests.torch.kernels import functions

pytestmark = [pytest.mark.filterwarnings("ignore")]
X = torch.linspace(-1.0, 2.0, 6)


@pytest.mark.parametrize("args", [(), (X,)])
def test_translate_refuses_a_kernel_and_says_the_way_out(args):
    with pytest.raises(ValueError, match=r"from_torch, .* jaxfn.triton_call for the"):
        jaxfn.torch.translate(functions.Scale, *args)


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
