"""One quick round of the eager benchmarks; `--benchmark-enable` times them."""

import numpy as np
import pytest

from tests.benchmarks import eager


@pytest.mark.parametrize("name", eager.FUNCTIONS)
@pytest.mark.parametrize("kind", ["calls", "gradients"])
def test_eager(benchmark, name, kind):
    calls = getattr(eager, kind)()
    benchmark.group = kind
    got = benchmark(calls[name])
    expected = calls["bare function"]()
    np.testing.assert_allclose(got, expected, rtol=1e-6)
