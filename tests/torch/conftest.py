"""Warnings of torch itself are not ours; and files of torch Functions, to translate."""

import importlib.util
import sys
import textwrap
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.fx.experimental.proxy_tensor
    import torch.fx.experimental.symbolic_shapes  # noqa: F401


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/torch" in str(item.path) or "jaxfn/torch" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


HEAD = """
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

"""


@pytest.fixture
def module(tmp_path):
    """Make a module of a text."""
    made = []

    def make(text):
        path = tmp_path / f"original{len(made)}_{tmp_path.name}.py"
        path.write_text(HEAD + textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        found = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = found
        made.append(path.stem)
        spec.loader.exec_module(found)
        return found

    yield make
    for name in made:
        del sys.modules[name]
