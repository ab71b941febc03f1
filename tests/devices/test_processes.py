"""Two processes with four devices each do what one device does."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.devices import worker

ROOT = Path(__file__).parents[2]
LIMIT = 120
"""Seconds that the processes may take, on a machine that does other things too."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def processes(*more):
    """Two workers with these further arguments; none is left at the end."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.devices.worker", str(i), port, *extra],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, extra in enumerate(more or ([], []))
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.full
def test_a_tensor_parallel_training_step_on_two_processes():
    with processes() as started:
        results = [process.communicate(timeout=LIMIT) for process in started]
        errors = [error[-2000:] for _, error in results]
        assert [process.returncode for process in started] == [0, 0], errors
    for out, _ in results:
        devices, found = json.loads(out.splitlines()[-1])
        assert devices == [8, 4, 2]
        steps = zip(found, worker.on_one_device(), worker.weights(), strict=True)
        for got, expected, first in steps:
            assert np.abs(expected - first).max() > 0.01  # there was something to do
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_nothing_is_left_when_a_process_dies():
    """The other one waits for it in vain, and is ended."""
    with processes([], ["dies"]) as started:
        assert started[1].wait(LIMIT) == 3
        time.sleep(0.5)
    assert [process.poll() is not None for process in started] == [True, True]


def test_import_starts_no_backend():
    """Else jax.distributed could not be set up after it."""
    code = (
        "import jaxfn; from jax._src import xla_bridge as x;"
        "assert not x.backends_are_initialized();"
        "import jax; jax.devices(); assert x.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)
