"""jaxfn without PyTorch, and beside it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_import_of_jaxfn_does_not_import_torch():
    code = "import sys, jaxfn, jaxfn.check; sys.exit('torch' in sys.modules)"
    code = code.replace(", jaxfn.check", "; jaxfn.check")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
def test_without_torch_the_bridge_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'jaxfn\[torch\]'"):
        importlib.import_module("jaxfn.torch")
