"""The examples of PyTorch's pages on autograd Functions, with jax.numpy inside.

`python -m jaxfn demo` runs them, and you can copy them. Each computes the same as the
page's example; `Example.formula` is the same value without a Function.

Sources: the pages of `torch.autograd.function.BackwardCFunction`, `InplaceFunction` and
`NestedIOFunction`, and https://docs.pytorch.org/docs/stable/notes/extending.func.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxfn._function import Function, once_differentiable


class MulAdd(Function):
    """x y + y z + (x z) y with a Python number z; saves an intermediate and the output.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxfn._examples import MulAdd
        >>> float(MulAdd.apply(jnp.float32(1), jnp.float32(2), 4))
        18.0
    """

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, z: int) -> Any:
        w = x * z
        out = x * y + y * z + w * y
        ctx.save_for_backward(x, y, w, out)
        ctx.z = z
        return out

    # torch's pages put this mark on most examples. With it a second derivative raises.
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Any) -> Any:
        x, y, w, _ = ctx.saved_tensors
        z = ctx.z
        return grad_out * (y + y * z), grad_out * (x + z + w), None


class Sort(Function):
    """The sorted values, and their indices, which have no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        idx = jnp.argsort(x)
        # As on torch's page; integers have no derivative, with or without the mark.
        ctx.mark_non_differentiable(idx)
        ctx.save_for_backward(x, idx)
        return x[idx], idx

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g1: Any, g2: Any) -> Any:  # noqa: ARG004  (zeros)
        x, idx = ctx.saved_tensors
        return jnp.zeros_like(x).at[idx].add(g1)


class Twice(Function):
    """Two copies; the gradient of an unused one arrives as zeros."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004
        return jnp.copy(x), jnp.copy(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g1: Any, g2: Any) -> Any:  # noqa: ARG004
        return g1 + g2


class TwiceUnmaterialized(Function):
    """Two copies; the gradient of an unused one arrives as None."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return jnp.copy(x), jnp.copy(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g1: Any, g2: Any) -> Any:
        (x,) = ctx.saved_tensors
        grad = jnp.zeros_like(x)
        if g1 is not None:
            grad = grad + g1
        if g2 is not None:
            grad = grad + g2
        return grad


class Product(Function):
    """x y z with a Python number z, a jvp and a vjp."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, z: int) -> Any:
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        ctx.z = z
        return x * y * z

    @staticmethod
    def jvp(ctx: Any, x_t: Any, y_t: Any, _: None) -> Any:
        # z is a Python number without a tangent, so its place has None.
        x, y = ctx.saved_tensors
        return ctx.z * (y * x_t + x * y_t)

    @staticmethod
    def vjp(ctx: Any, grad_out: Any) -> Any:
        x, y = ctx.saved_tensors
        return ctx.z * grad_out * y, ctx.z * grad_out * x, None


class Inplace(Function):
    """x + 1 that uses up x."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x + 1  # torch's page writes into x; JAX arrays can't change

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Any) -> Any:  # noqa: ARG004
        return grad_output


class Cube(Function):
    """x^3 in the separate style, with a derivative as second output, jvp and vmap."""

    @staticmethod
    def forward(x: Any) -> Any:
        # In torch a saved intermediate has a derivative only if it is an output. jaxfn
        # does not need this.
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_dx: Any) -> Any:
        x, dx = ctx.saved_tensors
        return grad * dx + 6 * grad_dx * x

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        x, dx = ctx.saved_tensors
        return t * dx, 6 * t * x

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:  # noqa: ARG004
        return (x**3, 3 * x**2), (in_dims[0], in_dims[0])


class ExpDerived(Function):
    """exp(x), which saves its output; the jvp is the transpose of backward."""

    generate_jvp_rule = True

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = jnp.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (out,) = ctx.saved_tensors
        return grad * out


@dataclasses.dataclass(frozen=True)
class Example:
    """A Function with example arguments.

    Attributes:
        function: The class.
        arrays: Function that makes the float arrays, anew for each call, because
            `Inplace` deletes them.
        static: Its other arguments.
        formula: The same value without a Function.
        once: Whether it refuses second derivatives.
    """

    function: Any
    arrays: Callable[[], tuple[Any, ...]]
    formula: Callable[..., Any]
    static: tuple[Any, ...] = ()
    once: bool = True


def _row() -> tuple[Any, ...]:
    return (jnp.array([0.3, -1.2, 0.8]),)


def _pair() -> tuple[Any, ...]:
    return (jnp.array([0.3, -1.2, 0.8]), jnp.array([1.1, 0.4, -0.7]))


EXAMPLES = (
    Example(MulAdd, _pair, lambda x, y, z: x * y + y * z + x * z * y, (4,)),
    Example(Sort, _row, lambda x: (jnp.sort(x), jnp.argsort(x))),
    Example(Twice, _row, lambda x: (x, x)),
    Example(TwiceUnmaterialized, _row, lambda x: (x, x)),
    Example(Product, _pair, lambda x, y, z: x * y * z, (4,), once=False),
    Example(Inplace, _row, lambda x: x + 1),
    Example(Cube, _row, lambda x: (x**3, 3 * x**2), once=False),
    Example(ExpDerived, _row, jnp.exp, once=False),
)
