"""Here kernels run in the interpreter, so nobody need be told."""

import pytest

import jaxfn


def pytest_collection_modifyitems(items):
    for item in items:
        path = str(item.path)
        if "tests/triton" in path or "jaxfn/_triton" in path:
            mark = pytest.mark.filterwarnings("ignore::jaxfn.InterpreterWarning")
            item.add_marker(mark)


@pytest.fixture
def not_warned(monkeypatch):
    """As if no kernel had run in the interpreter yet."""
    from jaxfn._triton import call

    monkeypatch.setattr(call, "_WARNED", type(call._WARNED)())
    return jaxfn.InterpreterWarning
