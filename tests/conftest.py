"""Settings of the whole suite, and what it says at the end about the laws.

CPU, so that a number is the same on every machine; eight devices, for the tests that
shard; and a folder where each worker, with the processes that it starts, finds what it
has compiled before, as half of all programs are compiled more than once. XLA need not
spend long on machine code that hardly runs. JAX must be told before it starts.
"""

import importlib.metadata
import importlib.util
import os
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis

FLAGS = ["force_host_platform_device_count=8", "backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
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

# The same examples on every run, without a deadline, as JAX compiles at first.
# `--hypothesis-profile=thorough` tries many others.
_SETTINGS = {
    "database": None,
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile(
    "normal", max_examples=500, derandomize=True, **_SETTINGS
)
hypothesis.settings.register_profile("thorough", max_examples=20_000, **_SETTINGS)
hypothesis.settings.load_profile("normal")


HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = ["jaxfn/torch", "tests/torch"]


def pytest_configure(config):
    if not HAS_TORCH:  # tests/test_torch_extra.py says what holds then
        root = Path(__file__).parent.parent
        ignored = [str(root / path) for path in NEEDS_TORCH]
        config.option.ignore = [*(config.option.ignore or []), *ignored]


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="twenty times the sample of the laws, thousands of random programs, and "
        "check on all of the catalogues",
    )
    parser.addoption(
        "--programs", type=int, help="how many random programs tests/laws/ runs"
    )
    parser.addoption(
        "--programs-seed", type=int, default=0, help="the number of the first of them"
    )


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
