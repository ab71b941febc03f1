"""One process of two: a training step on all their devices.

Run as `python -m tests.devices.worker <process> <port>`; prints the weights as JSON. A
third argument `dies` makes it stop, without a word, once both are connected.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.devices import layers
from tests.devices.layers import AXIS, numbers

STEPS, RATE = 2, 0.05
SPECS = (P(None, AXIS), P(AXIS))


# JAX computes nothing before jax.distributed is up: no arrays in the module.
def weights():
    return numbers(3, 16, shift=0.1), numbers(16, 2, shift=0.2)


def error(f, a, b):
    return ((f(numbers(4, 3), a, b) - numbers(4, 2, shift=0.9)) ** 2).sum()


def descend(gradient, a, b):
    for _ in range(STEPS):
        da, db = gradient(a, b)
        a, b = a - RATE * da, b - RATE * db
    return a, b


def on_one_device():
    """The same steps, in plain JAX."""

    return descend(jax.grad(partial(error, layers.mlp), (0, 1)), *weights())


def train():
    """The steps with the tensor-parallel pair, over all devices of all processes."""
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))
    copy = layers.copy_function("backward", True)
    reduce = layers.reduce_function("backward")

    mlp = partial(layers.mlp, copy=copy, reduce=reduce)
    step = partial(descend, jax.grad(partial(error, mlp), (0, 1)))
    split = [
        jax.make_array_from_callback(
            w.shape, NamedSharding(mesh, s), np.asarray(w).__getitem__
        )
        for w, s in zip(weights(), SPECS, strict=True)
    ]
    steps = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=SPECS, out_specs=SPECS))
    # Every process is to have all of the weights.
    whole = jax.jit(lambda *w: w, out_shardings=NamedSharding(mesh, P()))
    return whole(*steps(*split))


def main() -> None:
    process, port, *more = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", 2, int(process), initialization_timeout=60
    )
    if more == ["dies"]:
        os._exit(3)
    found = train()
    devices = [jax.device_count(), jax.local_device_count(), jax.process_count()]
    print(json.dumps([devices, [np.asarray(w).tolist() for w in found]]), flush=True)


if __name__ == "__main__":
    main()
