"""Output of the commands: their text, and a progress bar."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO


def say(text: str) -> None:
    """Print a text, or nothing if the reader has gone, as `head` does."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, and would report the error there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def progress(
    stream: TextIO, unit: str = "check"
) -> Iterator[Callable[[int, int, str], None] | None]:
    """Show a bar on a terminal, if tqdm is installed."""
    tqdm = _tqdm() if stream.isatty() else None
    if tqdm is None:
        yield None
        return
    with tqdm(file=stream, leave=False, unit=unit, dynamic_ncols=True) as bar:

        def show(done: int, total: int, name: str) -> None:
            bar.total, bar.n = total, done
            bar.set_description(name)

        yield show


def _tqdm() -> Any | None:
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None
