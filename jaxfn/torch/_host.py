"""Bodies that run in torch, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch

import jaxfn
from jaxfn.torch import _dtypes


def call(body: Any, arrays: Sequence[Any], key: Any) -> list[Any]:
    """The results of a body, computed by torch."""
    raise NotImplementedError
