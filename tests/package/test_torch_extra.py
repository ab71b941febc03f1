"""jaxfn without PyTorch, and beside it."""

from __future__ import annotations

import importlib.util

import pytest

from jaxfn.__main__ import main
from tests.package import printed

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_the_command_line_does_not_import_torch():
    code = """
import sys
from jaxfn.__main__ import main
for argv in (["--version"], ["compare", "--help"]):
    try:
        main(argv)
    except SystemExit:
        pass
assert main(["check", "jax.numpy:sin", "f32[2]", "--skip", "leaks"]) == 0
sys.exit("torch" in sys.modules)
"""
    printed(code)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
def test_without_torch_compare_says_what_to_install(capsys):
    target = "jax.numpy:sin"
    assert main(["compare", target, target, "f32[2]"]) == 2
    assert "pip install 'jaxfn[torch]'" in capsys.readouterr().err


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
def test_without_torch_the_bridge_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'jaxfn\[torch\]'"):
        importlib.import_module("jaxfn.torch")
