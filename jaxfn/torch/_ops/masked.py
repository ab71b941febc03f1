"""The result of a boolean mask: the whole array and the mask, as JAX needs shapes.

Elementwise operations, reductions to one number and writes under the same mask accept
such a value. Any other operation refuses it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._base import TorchRefusal
from jaxfn.torch._ops.row import highest, lowest


@dataclasses.dataclass(frozen=True, slots=True)
class Masked:
    """`whole[mask]`.

    Attributes:
        whole: The array; its first dimensions are those of the mask.
        mask: The mask.
        key: Equal for masks that are computed alike.
    """

    whole: Any
    mask: Any
    key: Any

    def refusal(self, use: str) -> TorchRefusal:
        """Return the refusal of a use that needs the shape."""
        return refusal("x[mask]", f"the result of the mask is {use}")

    def filled(self, value: Any) -> Any:
        """Return the whole array, with a value for elements outside of the mask."""
        lead = self.mask.shape + (1,) * (self.whole.ndim - self.mask.ndim)
        return jnp.where(
            self.mask.reshape(lead), self.whole, jnp.asarray(value, self.whole.dtype)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """The number of entries that a mask selects, as a size and as a number.

    Attributes:
        of: The result of the mask.
    """

    of: Masked

    def number(self) -> Any:
        """Return it as an array without dimensions."""
        return jnp.sum(self.of.mask)


KINDS = Masked, Count
"""The classes of results of a mask."""


def refusal(operation: str, what: str) -> TorchRefusal:
    """Return the refusal of a read or write whose shape depends on values."""
    return TorchRefusal(
        operation=operation,
        reason=f"{what}, and its shape depends on values.",
        way_out="Use torch.where(mask, x, …) in the rule, or pass "
        'fallback="host" to from_torch. If all calls have the same mask (the edges '
        "of a graph, for example), let the function close over it, or make it an "
        "attribute of the module.",
    )


def pick(x: Any, mask: Any) -> Masked:
    """Return `x[mask]`."""
    return Masked(x, mask.astype(bool), None)


def has_masked(x: Any) -> bool:
    """Return whether there is a result of a mask in a pytree."""
    return any(type(leaf) in KINDS for leaf in jax.tree.leaves(x))


def run(step: Any, args: Any, kwargs: Any) -> Any:
    """Run one operation on the result of a mask, or on its number of entries."""
    name = step.name.split(".")[1]
    if name in ("sym_size", "sym_numel"):
        return _size(step, name, *args)
    if name == "masked_scatter_backward" and isinstance(args[2][0], Count):
        return _gathered(step, *args)
    at = _SIZES.get(name, len(args))
    if at < len(args) and isinstance(args[at], list) and has_masked(args[at]):
        return _sized(step, name, args, kwargs, at)
    args, kwargs = jax.tree.map(
        lambda x: x.number() if isinstance(x, Count) else x, (args, kwargs)
    )
    leaves = jax.tree.leaves((args, kwargs))
    found = next((x for x in leaves if isinstance(x, Masked)), None)
    if found is None:
        return step.row(step.out, step.common, *args, **kwargs)
    if step.row.elementwise:
        return _elementwise(step, args, kwargs, found)
    if name == "index_put":
        return _written(step, args)
    if name == "masked_scatter" and not has_masked(args[:2]):
        return _scattered(step, *args)
    if name in _REDUCTIONS and _reduces_all(args, kwargs):
        return _reduced(step, name, args[0])
    raise refusal(step.name, "it is applied to the result of a mask")


def _size(step: Any, name: str, x: Masked, dim: int = 0) -> Any:
    rest = x.whole.shape[x.mask.ndim :]
    dim = dim % (len(rest) + 1)
    if name == "sym_size" and dim > 0:
        return rest[dim - 1]
    if name == "sym_numel" and rest:
        raise refusal(step.name, "it reads the size of the result of a mask")
    return Count(x)


def _sized(step: Any, name: str, args: Any, kwargs: Any, at: int) -> Masked:
    """Return an array of equal entries, as many as a mask selects."""
    first, *rest = args[at]
    if not isinstance(first, Count) or not all(type(n) is int for n in rest):
        raise refusal(step.name, "its size is that of the result of a mask")
    like, x = first.of, args[0]
    lead = like.mask.shape
    if name == "expand":
        if isinstance(x, Masked):
            x = _under(step, x, like)
        elif x.ndim == len(args[at]):
            if x.shape[0] != 1:
                raise refusal(step.name, "it combines an array with x[mask]")
            x = x.reshape((1,) * len(lead) + x.shape[1:])
        own = x.shape[x.ndim - len(rest) :] if x.ndim >= len(rest) else rest
        rest = [m if n == -1 else n for m, n in zip(own, rest, strict=True)]
        whole = jnp.broadcast_to(x, (*lead, *rest))
    else:
        out = dataclasses.replace(step.out, shape=(*lead, *rest))
        args = [list(out.shape) if i == at else x for i, x in enumerate(args)]
        whole = step.row(out, step.common, *args, **kwargs)
    return Masked(whole.astype(step.out.dtype), like.mask, like.key)


# The place of the size among the arguments of operations whose entries are equal.
_SIZES: dict[str, int] = {
    **dict.fromkeys(["empty", "full", "ones", "zeros"], 0),
    "expand": 1,
}


def _under(step: Any, x: Masked, like: Masked) -> Any:
    """Return the whole array, if it has the same mask as the other operand."""
    if x.key != like.key:
        raise refusal(step.name, "it combines the results of two masks")
    return x.whole


def _elementwise(step: Any, args: Any, kwargs: Any, like: Masked) -> Any:
    def whole(x: Any) -> Any:
        if isinstance(x, Masked):
            return _under(step, x, like)
        if isinstance(x, jax.Array) and x.ndim > like.whole.ndim - like.mask.ndim:
            raise refusal(step.name, "it combines an array with x[mask]")
        return x

    args, kwargs = jax.tree.map(whole, (args, kwargs))
    out = dataclasses.replace(step.out, shape=like.whole.shape)
    # Operations that cast only return x: the last line casts.
    result = jnp.asarray(step.row(out, step.common, *args, **kwargs))
    result = jnp.broadcast_to(result, like.whole.shape)
    return Masked(result.astype(step.out.dtype), like.mask, like.key)


def _written(step: Any, args: Any) -> Any:
    x, indices, values, *rest = args
    accumulate = bool(rest and rest[0])
    if len(indices) != 1 or not isinstance(values, Masked) or has_masked([x, indices]):
        raise refusal(step.name, "x[mask] is written at other positions")
    if step.args[1][0] is None or values.key != step.mask_key:
        raise refusal(step.name, "x[mask] is written under another mask")
    lead = values.mask.shape + (1,) * (x.ndim - values.mask.ndim)
    new = values.whole.astype(x.dtype)
    return jnp.where(values.mask.reshape(lead), x + new if accumulate else new, x)


def _scattered(step: Any, x: Any, mask: Any, source: Masked) -> Any:
    if source.key != step.mask_key or source.mask.shape != x.shape:
        raise refusal(step.name, "x[mask] is written under another mask")
    return jnp.where(mask, source.whole.astype(x.dtype), x)


def _gathered(step: Any, g: Any, mask: Any, sizes: Any) -> Masked:
    """Return the gradient of values that were written under a mask."""
    of = sizes[0].of
    if len(sizes) > 1 or of.key != step.mask_key or of.mask.shape != g.shape:
        raise refusal(step.name, "x[mask] is written under another mask")
    return Masked(g.astype(step.out.dtype), mask, of.key)


def _reduces_all(args: Any, kwargs: Any) -> bool:
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    only = args[0]
    if not isinstance(only, Masked) or only.whole.ndim != only.mask.ndim:
        return False
    return dims is None or dims in (0, -1, [0], [-1], [])


def _reduced(step: Any, name: str, x: Masked) -> Any:
    keep = step.kwargs.get("keepdim", len(step.args) > 2 and step.args[2])
    dtype = step.out.dtype
    if name == "mean":
        total = jnp.sum(x.filled(0).astype(dtype))
        value = total / jnp.sum(x.mask).astype(dtype)
    else:
        fill, fn = _REDUCTIONS[name]
        whole = x.filled(fill(x.whole.dtype))
        value = fn(whole.astype(dtype) if name in ("sum", "prod") else whole)
    return jnp.reshape(value, (1,) if keep is True else ()).astype(dtype)


_REDUCTIONS: dict[str, Any] = {
    "sum": (lambda _: 0, jnp.sum),
    "prod": (lambda _: 1, jnp.prod),
    "any": (lambda _: 0, jnp.any),
    "all": (lambda _: 1, jnp.all),
    "amax": (lowest, jnp.max),
    "amin": (highest, jnp.min),
    "mean": (None, None),
}
