"""Settings of the whole suite: CPU, so that a number is the same on every machine."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
