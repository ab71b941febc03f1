"""Rules that compute with NumPy and SciPy are marked: the user writes host_function."""

from __future__ import annotations

import pytest
import torch

from jaxfn.torch import translate

from .texts import function

X = torch.tensor([[0.3, -1.2, 2.5], [1.1, 0.4, -0.7]])
IMPORTS = """\
import math
import numpy as np
import scipy.special


def twice(a):
    return np.sqrt(a * a) * 2


def filled(n, device):
    return torch.full((n,), 2.0, device=device)


"""
MARKED = {
    "a = x.detach().numpy()\nreturn torch.from_numpy(np.sort(a))": "Tensor.numpy",
    "return torch.from_numpy(scipy.special.expit(x.numpy()))": "host_function",
    "return torch.from_numpy(twice(x.detach().cpu().numpy()))": "host_function",
    "return torch.from_numpy(np.asarray(x.detach()) * 2)": "np.asarray of a tensor",
    "a = x.numpy()\na[0] = 0\nreturn torch.from_numpy(a)": "Tensor.numpy",
    "return x * float(np.random.rand())": "it is drawn once",
}


@pytest.mark.parametrize("forward", MARKED)
def test_what_numpy_computes_of_tensors_is_marked(module, forward):
    found = translate(module(IMPORTS + function(forward)).T, X)
    assert any(MARKED[forward] in left.reason for left in found.left), found.left
    assert "raise NotImplementedError" in found.source
    assert all("the port raises" in row.message for row in found.comparison.failures)


def test_constants_stay_of_numpy(module):
    forward = """
        table = np.ones(3, dtype=np.float32) * 2
        table[1] = 5
        scale = np.sqrt(8) * math.pi
        return x * torch.from_numpy(table) / scale
    """
    backward = "return g * torch.tensor([2.0, 5.0, 2.0]) / (np.sqrt(8) * math.pi)"
    found = translate(module(IMPORTS + function(forward, backward)).T, X)
    assert found.ok, str(found)
    assert "table[1] = 5" in found.source
    assert "x * jnp.asarray(table) / scale" in found.source
    assert "\nimport numpy as np\n" in found.source


def test_a_device_is_none(module):
    forward = """
        device = x.device
        ctx.device = x.device
        w = torch.ones(3, device=device)
        ctx.save_for_backward(w)
        return x * w + filled(3, device)
    """
    backward = """
        (w,) = ctx.saved_tensors
        here = g.device
        return g.to(ctx.device) * w.to(here)
    """
    found = translate(module(IMPORTS + function(forward, backward)).T, X)
    assert found.ok, str(found)
    assert "device = None\n        ctx.device = None\n" in found.source
    assert "w = jnp.ones((3,))" in found.source
    assert "here = None\n        return g * w" in found.source
