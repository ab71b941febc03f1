"""These tests need Triton beside torch."""

import importlib.util
import warnings

import pytest

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["*.py"]
else:
    import jaxfn

    warnings.filterwarnings("ignore", category=jaxfn.InterpreterWarning)


def pytest_collection_modifyitems(items):
    ignored = pytest.mark.filterwarnings("ignore::jaxfn.InterpreterWarning")
    for item in items:
        if "kernels" in str(item.path):
            item.add_marker(ignored)
