"""The package as a whole."""

import subprocess
import sys
from pathlib import Path


def printed(code: str, cwd: Path | None = None) -> str:
    """What a program prints, in a process of its own."""
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert run.returncode == 0, run.stderr
    return run.stdout
