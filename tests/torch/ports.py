"""Ten Functions of PyTorch, and for each the port that one would write by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.autograd import Function

from tests.build import function


@dataclasses.dataclass(frozen=True)
class Pair:
    """A Function twice, and the shapes of its arguments."""

    name: str
    torch: Any
    port: Any
    shapes: tuple[tuple[int, ...], ...]

    def args(self) -> list[Any]:
        keys = jax.random.split(jax.random.key(0), len(self.shapes))
        return [
            jax.random.normal(key, shape)
            for key, shape in zip(keys, self.shapes, strict=True)
        ]


def saving(f: Any) -> Any:
    """A forward that saves its arguments."""

    def forward(ctx: Any, *xs: Any) -> Any:
        ctx.save_for_backward(*xs)
        return f(*xs)

    return forward


def keeping(f: Any) -> Any:
    """A forward that saves its output."""

    def forward(ctx: Any, *xs: Any) -> Any:
        y = f(*xs)
        ctx.save_for_backward(y)
        return y

    return forward


def pulling(f: Any) -> Any:
    """A backward that is made of the gradient and what was saved."""
    return lambda ctx, g: f(g, *ctx.saved_tensors)


def original(name: str, value: Any, gradient: Any, saves: Any = saving) -> Any:
    """A Function of PyTorch that saves its arguments, or its output."""
    rules = {"forward": saves(value), "backward": pulling(gradient)}
    return function(name, Function, **rules)


def ported(name: str, value: Any, gradient: Any, saves: Any = saving) -> Any:
    """A Function of jaxfn that saves its arguments, or its output."""
    return function(name, forward=saves(value), backward=pulling(gradient))


PAIRS: list[Pair] = []


def pair(
    name: str, torchs: Any, ports: Any, *shapes: tuple[int, ...], saves: Any = saving
) -> None:
    """A pair of these values and gradients, in torch and in JAX."""
    both = original(name, *torchs, saves=saves), ported(name, *ports, saves=saves)
    PAIRS.append(Pair(name, *both, shapes or ((64, 128),)))


def torch_swish(g: Any, x: Any) -> Any:
    s = torch.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def port_swish(g: Any, x: Any) -> Any:
    s = jax.nn.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


pair(
    "Swish",
    (lambda x: x * torch.sigmoid(x), torch_swish),
    (lambda x: x * jax.nn.sigmoid(x), port_swish),
)
pair(
    "Exp",
    (torch.exp, lambda g, x: g * torch.exp(x)),
    (jnp.exp, lambda g, x: g * jnp.exp(x)),
)
pair(
    "RoundSte",
    (torch.round, lambda g, x: g * (x.abs() < 1)),
    (jnp.round, lambda g, x: g * (jnp.abs(x) < 1)),
)
pair(
    "Spike",
    (lambda x: (x > 0).float(), lambda g, x: g / (1 + (torch.pi * x) ** 2)),
    (
        lambda x: (x > 0).astype(jnp.float32),
        lambda g, x: g / (1 + (jnp.pi * x) ** 2),
    ),
)
pair(
    "Reversed",
    (lambda x: x.clone(), lambda g, x: -0.5 * g),
    (lambda x: x, lambda g, x: -0.5 * g),
)
pair(
    "Linear",
    (
        lambda x, w, b: x @ w.t() + b,
        lambda g, x, w, b: (g @ w, g.t() @ x, g.sum(0)),
    ),
    (
        lambda x, w, b: x @ w.T + b,
        lambda g, x, w, b: (g @ w, g.T @ x, g.sum(0)),
    ),
    (64, 32),
    (16, 32),
    (16,),
)


def torch_normalised(x: Any) -> Any:
    return x / x.pow(2).sum(-1, keepdim=True).sqrt()


def torch_unnormalised(g: Any, x: Any) -> Any:
    n = x.pow(2).sum(-1, keepdim=True).sqrt()
    y = x / n
    return (g - y * (g * y).sum(-1, keepdim=True)) / n


def port_normalised(x: Any) -> Any:
    return x / jnp.sqrt((x**2).sum(-1, keepdims=True))


def port_unnormalised(g: Any, x: Any) -> Any:
    n = jnp.sqrt((x**2).sum(-1, keepdims=True))
    y = x / n
    return (g - y * (g * y).sum(-1, keepdims=True)) / n


pair(
    "Normalise",
    (torch_normalised, torch_unnormalised),
    (port_normalised, port_unnormalised),
)
pair(
    "Clamp",
    (
        lambda x: x.clamp(-0.5, 0.5),
        lambda g, x: torch.where((x > -0.5) & (x < 0.5), g, 0.1 * g),
    ),
    (
        lambda x: jnp.clip(x, -0.5, 0.5),
        lambda g, x: jnp.where((x > -0.5) & (x < 0.5), g, 0.1 * g),
    ),
)


def torch_sparsemax(x: Any) -> Any:
    z = x.sort(-1, descending=True)[0]
    total = z.cumsum(-1) - 1
    k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    size = (k * z > total).sum(-1, keepdim=True)
    tau = total.gather(-1, size - 1) / size
    return (x - tau).clamp(min=0)


def port_sparsemax(x: Any) -> Any:
    z = -jnp.sort(-x, -1)
    total = jnp.cumsum(z, -1) - 1
    k = jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    size = (k * z > total).sum(-1, keepdims=True)
    tau = jnp.take_along_axis(total, size - 1, -1) / size
    return jnp.maximum(x - tau, 0)


def torch_unsparse(g: Any, y: Any) -> Any:
    g = torch.where(y > 0, g, 0.0)
    mean = g.sum(-1, keepdim=True) / (y > 0).sum(-1, keepdim=True)
    return torch.where(y > 0, g - mean, 0.0)


def port_unsparse(g: Any, y: Any) -> Any:
    g = jnp.where(y > 0, g, 0.0)
    mean = g.sum(-1, keepdims=True) / (y > 0).sum(-1, keepdims=True)
    return jnp.where(y > 0, g - mean, 0.0)


pair(
    "Sparsemax",
    (torch_sparsemax, torch_unsparse),
    (port_sparsemax, port_unsparse),
    (64, 32),
    saves=keeping,
)
pair(
    "Attention",
    (
        lambda q, k, v: torch.softmax(q @ k.t(), -1) @ v,
        lambda g, q, k, v: (g @ v.t() @ k, (g @ v.t()).t() @ q, q @ k.t() @ g),
    ),
    (
        lambda q, k, v: jax.nn.softmax(q @ k.T, -1) @ v,
        lambda g, q, k, v: (g @ v.T @ k, (g @ v.T).T @ q, q @ k.T @ g),
    ),
    (32, 16),
    (32, 16),
    (32, 16),
)
