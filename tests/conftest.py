"""Settings of the whole suite, and what it says at the end about the laws.

CPU, so that a number is the same on every machine; eight devices, for the tests that
shard; and a folder where each worker, with the processes that it starts, finds what it
has compiled before, as half of all programs are compiled more than once. XLA need not
spend long on machine code that hardly runs. JAX must be told before it starts.
"""

import gc
import importlib.metadata
import importlib.util
import os
import tempfile
import threading
import zlib
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

FLAGS = ["force_host_platform_device_count=8", "backend_optimization_level=0"]
IS_OLD = importlib.metadata.version("jaxlib").startswith("0.10.")
if IS_OLD:
    # Later ones don't know the first, and end; the second saves no time there.
    FLAGS += ["cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1"]

os.environ.setdefault("JAX_PLATFORMS", "cpu")
for flag in FLAGS:
    flags = os.environ.get("XLA_FLAGS", "")
    if flag.split("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_{flag}".strip()

_compiled = tempfile.TemporaryDirectory(prefix="jaxfn-tests-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _compiled.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def reuse_contexts():
    """Give ten programs in turn the same MLIR context, as later JAX does by itself.

    To make one takes 5 ms, and a run of all tests lowers 13,000 programs.
    """
    from jax._src.interpreters import mlir

    make, mine = mlir.make_ir_context, threading.local()

    def make_or_reuse():
        mine.uses = getattr(mine, "uses", 0) + 1
        if mine.uses % 10 == 1:
            mine.context = make()
        return mine.context

    make_or_reuse.__wrapped__ = make
    mlir.make_ir_context = make_or_reuse


if IS_OLD:
    reuse_contexts()

# The same examples on every run, without a deadline, as JAX compiles at first.
# `--hypothesis-profile=thorough` tries many others.
_SETTINGS = {
    "database": None,
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile(
    "normal", max_examples=5, derandomize=True, **_SETTINGS
)
hypothesis.settings.register_profile("thorough", max_examples=20_000, **_SETTINGS)
hypothesis.settings.load_profile("normal")


# What needs libraries that the extra `test` does not install, and which those are.
# .ci/run installs torch on 3.11 and on the newest Python, what the notebooks need on
# 3.11, and what `ecosystem` needs on the newest.
NEEDS = {
    "jaxfn/torch": ("torch",),  # tests/package/test_torch_extra.py: what holds without
    "tests/torch": ("torch",),
    "tests/torch/kernels": ("torch", "triton"),
    "tests/torch/kernels/packages.py": ("torch", "triton", "liger_kernel", "fla"),
    "tests/torch/kernels/test_packages.py": ("torch", "triton", "liger_kernel", "fla"),
    "jaxfn/_triton": ("triton",),  # tests/package/test_triton_extra.py: without
    "tests/triton": ("triton",),
    "notebooks/04_both_rules_in_a_library.ipynb": ("optimistix",),
    "notebooks/06_from_pytorch_to_jax.ipynb": ("torch", "entmax", "libcst"),
    "notebooks/08_a_pytorch_model_in_jax.ipynb": (
        *("torch", "transformers", "liger_kernel", "optax"),
    ),
    "notebooks/07_a_kernel_with_a_gradient.ipynb": ("torch", "triton", "liger_kernel"),
    "tests/ecosystem": ("diffrax", "flax", "numpyro"),
    "tests/gpu/comparison.py": ("torch",),
    "tests/gpu/norm.py": ("torch",),
    "tests/gpu/ports.py": ("torch",),
    "tests/gpu/aliases.py": ("torch", "triton"),
    "tests/gpu/call.py": ("torch", "triton"),
    "tests/gpu/functions.py": ("torch", "triton"),
    "tests/gpu/kernels.py": ("torch", "triton"),
    "tests/gpu/tuned.py": ("torch", "triton"),
}


# ---- how much runs
#
# If a test has many cells, a normal run has the first and one in ONE_IN of the others.
# What takes longest is marked `full` and left out. `--rest` has all that a normal run
# lacks.

MANY, ONE_IN = 4, 13
"""From how many cells a normal run leaves some out; it keeps one in so many of them."""

# Each cell here is a promise of its own, or these run on one Python alone.
WHOLE = ("ecosystem", "package", "pages", "parity/test_rows", "gpu", "torch", "triton")


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="all tests: every cell, more random programs, the slower notebooks",
    )
    parser.addoption(
        "--rest",
        action="store_true",
        help="what --full has and a normal run leaves out",
    )
    parser.addoption(
        "--sample",
        type=int,
        help="--full with so many times the samples of tests/laws/ (20 take hours), "
        "and with check on the slowest Functions too",
    )
    parser.addoption(
        "--programs", type=int, help="how many random programs tests/laws/ runs"
    )
    parser.addoption(
        "--share",
        help="2/3: of all tests, the second third, chosen by their names; 1,2/3: two",
    )
    parser.addoption(
        "--programs-seed", type=int, default=0, help="the number of the first of them"
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        f"thinned(n): a normal run has one in n of the cells of this test; {ONE_IN} if "
        "there are many",
    )
    config.addinivalue_line(
        "markers",
        "full(unless=None): not in a normal run, unless this says so of its parameters",
    )
    root = Path(__file__).parent.parent
    lacking = [
        path
        for path, libraries in NEEDS.items()
        if not all(map(importlib.util.find_spec, libraries))
    ]
    ignored = [str(root / path) for path in lacking]
    config.option.ignore = [*(config.option.ignore or []), *ignored]
    option = config.option
    option.full = option.full or option.rest or option.sample is not None


# The others compile for 8 to 30 seconds each, what tests compile in smaller pieces.
NORMAL_NOTEBOOKS = ("01_first_function",)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    cells = Counter(item.nodeid.partition("[")[0] for item in items)
    from tests import next_jax  # it imports JAX, which must get the flags above

    seen, kept, left = Counter(), [], []
    for item in items:
        chosen = config.option.full and not config.option.rest
        chosen = chosen or is_left_out(item, cells, seen) == config.option.rest
        chosen = chosen and is_in_share(item, config.option.share)
        (kept if chosen else left).append(item)
        if reason := next_jax.difference(item.nodeid):
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_collection_finish():
    # What has been imported and collected stays; to look through it for garbage, again
    # and again, takes a tenth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def is_left_out(item, cells, seen):
    """Does a normal run leave it out? `seen` counts those so far of each test."""
    if item.path.suffix == ".ipynb":
        return item.path.stem not in NORMAL_NOTEBOOKS
    found = [mark.kwargs.get("unless") for mark in item.iter_markers("full")]
    if not all(unless and unless(**item.callspec.params) for unless in found):
        return True
    if not hasattr(item, "callspec"):
        return False
    test = item.nodeid.partition("[")[0]
    seen[test] += 1
    is_whole = cells[test] < MANY or test.removeprefix("tests/").startswith(WHOLE)
    thinned = item.get_closest_marker("thinned")
    one_in = thinned.args[0] if thinned else 1 if is_whole else ONE_IN
    # Not by turns, which might take all that have one value of some parameter.
    by_chance = zlib.crc32(item.nodeid.encode()) % one_in == 0
    return not by_chance and seen[test] > 1


def is_in_share(item, share):
    """Is it in a share such as "2/3" or "1,2/3"?"""
    if share is None:
        return True
    numbers, _, count = share.partition("/")
    # Backwards, so that it is independent of the choice of thinned cells.
    number = zlib.crc32(item.nodeid[::-1].encode()) % int(count) + 1
    return str(number) in numbers.split(",")


def pytest_terminal_summary(terminalreporter):
    reports = [r for found in terminalreporter.stats.values() for r in found]
    ran = Counter(
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for key, value in report.user_properties
        if key == "law"
    )
    if ran:
        parts = ", ".join(f"{n} {word}" for word, n in sorted(ran.items()))
        terminalreporter.write_line(f"laws: {ran.total()} cells ({parts})")


def pytest_unconfigure():
    _compiled.cleanup()  # a worker may be ended before Python does it
