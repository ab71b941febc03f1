"""All of this folder needs Triton."""

import pytest

pytest.importorskip("triton")
