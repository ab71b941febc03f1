"""Warnings of torch itself are not ours."""

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
