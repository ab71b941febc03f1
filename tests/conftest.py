"""Settings of the whole suite: CPU, so that a number is the same on every machine."""

import os

import hypothesis

os.environ.setdefault("JAX_PLATFORMS", "cpu")

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
