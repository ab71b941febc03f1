"""Which device and which versions: prints one line of JSON."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import subprocess
from typing import Any

import jax

import jaxfn
from tests.gpu.table import PACKAGES


def main() -> None:
    print(json.dumps(described()))


def described() -> dict[str, Any]:
    """The device that JAX has, the one that torch has, and the versions."""
    device, why = jax.devices()[0], ""
    if device.platform != "gpu":
        why = f"its devices are {device.platform}"
        try:
            jax.devices("gpu")
        except RuntimeError as error:
            why = " ".join(str(error).split())
    return {
        "platform": device.platform,
        "why": why,
        "device": f"{device.device_kind} ({device.platform})",
        "driver": driver(),
        "torch_device": torch_device(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES}
        | {"jaxfn": jaxfn.__version__},
    }


def driver() -> str:
    """The version of NVIDIA's driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip().replace("\n", ", ") or "unknown"


def torch_device() -> str:
    """The name of torch's GPU."""
    if importlib.util.find_spec("torch") is None:
        return "none"
    import torch

    if not torch.cuda.is_available():
        return "none"
    return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
