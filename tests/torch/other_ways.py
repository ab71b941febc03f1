"""PyTorch code in JAX, by jaxfn and by other packages: what runs, and how fast.

    python -m tests.torch.other_ways jaxfn
    python -m tests.torch.other_ways torchax        # pip install --no-deps --pre
    python -m tests.torch.other_ways torch2jax      # pip install --no-deps
    python -m tests.torch.other_ways wrap_torch2jax # pip install --no-deps

Each prints the rows of one column of the second table of
notebooks/design/measurements.md. The Function's backward is wrong on purpose: its
factor 7 shows whether it runs. Times are medians of one run, so compare those of runs
that alternate.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

X = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")
V = jnp.arange(1.0, 5.0)


class Square(torch.autograd.Function):
    """x², with the gradient 7 x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 7 * g * x


def module() -> Any:
    """Return a small module without parameters that require a gradient."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
    return torch.nn.Sequential(*layers).requires_grad_(False)


# ---- each package: a module and a Function, as JAX functions


def by_jaxfn() -> tuple[Any, Any]:
    from jaxfn.torch import from_torch

    net = module()
    return from_torch(lambda x: net(x)), from_torch(Square).apply


def by_torchax() -> tuple[Any, Any]:
    import torchax
    from torchax.interop import jax_view, torch_view

    env = torchax.default_env()
    with env:
        net = module().to("jax")

    def wrapped(f: Any) -> Any:
        def run(x: Any) -> Any:
            with env:
                return jax_view(f(torch_view(x)))

        return run

    return wrapped(net), wrapped(Square.apply)


def by_torch2jax() -> tuple[Any, Any]:
    from torch2jax import t2j

    net = module()
    run, values = t2j(net), {k: t2j(v) for k, v in net.named_parameters()}
    return lambda x: run(x, state_dict=values), t2j(Square.apply)


def by_wrap_torch2jax() -> tuple[Any, Any]:
    from wrap_torch2jax import torch2jax_with_vjp

    net = torch2jax_with_vjp(module(), torch.tensor(X))
    return net, torch2jax_with_vjp(Square.apply, torch.ones(4))


# ---- the rows


def rows(net: Any, square: Any) -> dict[str, Callable[[], Any]]:
    """Return what is tried, by its name."""
    x = jnp.asarray(X)
    of_square = jax.grad(lambda v: square(v).sum())
    twice = jax.grad(lambda v: of_square(v).sum())
    of_net = jax.jit(jax.grad(lambda x: net(x).sum()))

    def seconds() -> float:
        found = []
        for _ in range(300):
            start = time.perf_counter()
            jax.block_until_ready(of_net(x))
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    return {
        "gradient of a module": lambda: of_net(x).sum(),
        "a Function's backward, 7": lambda: of_square(V)[0],
        "the same under jit, 7": lambda: jax.jit(of_square)(V)[0],
        "vmap of its gradient, 7": lambda: jax.vmap(of_square)(V[None])[0, 0],
        "its second derivative, 7": lambda: twice(V)[0],
        "jvp of a module": lambda: jax.jvp(net, (x,), (x,))[1].sum(),
        "hessian of a module": lambda: jax.hessian(lambda x: net(x).sum())(x).sum(),
        "a jitted gradient, in us": lambda: 1e6 * seconds(),
    }


WAYS = {
    "jaxfn": by_jaxfn,
    "torchax": by_torchax,
    "torch2jax": by_torch2jax,
    "wrap_torch2jax": by_wrap_torch2jax,
}


def main(way: str) -> None:
    """Print a column of the table."""
    warnings.simplefilter("ignore")
    for name, run in rows(*WAYS[way]()).items():
        try:
            found = f"{float(run()):.6g}"
        except Exception as error:  # noqa: BLE001  (other packages raise what they like)
            found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        print(f"{name:26} {found}")


if __name__ == "__main__":
    main(sys.argv[1])
