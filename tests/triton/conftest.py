"""All of this folder needs Triton, whose own warnings are not ours."""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        path = str(item.path)
        if "tests/triton" in path or "jaxfn/_triton" in path:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture
def not_warned(monkeypatch):
    """As if no kernel had run in the interpreter yet."""
    from jaxfn._triton import call

    monkeypatch.setattr(call, "_WARNED", type(call._WARNED)())
