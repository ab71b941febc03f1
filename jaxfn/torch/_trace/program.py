"""A traced graph as a list of steps, and its evaluation in JAX.

One rule makes it safe: jaxfn casts each result to the dtype in torch's trace, and
compares its shape. So promotion is exactly torch's, and a wrong row of the table is an
error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch import _ops
from jaxfn.torch._base import TorchRefusal, to_jax, torch
from jaxfn.torch._ops import convert, masked
from jaxfn.torch._triton import launch_of


class Ref(int):
    """The index of a value among those of a program."""


@dataclasses.dataclass(slots=True)
class Type:
    """The type of a tensor in torch's trace.

    Attributes:
        shape: Its shape; None if it depends on values.
        dtype: Its dtype, JAX's.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype


@dataclasses.dataclass(slots=True)
class Operation:
    """One operation.

    Attributes:
        name: Its name with the overload, for example "aten.add.Tensor".
        row: The row that computes it in JAX.
        args: Its arguments, with a `Ref` for each computed value.
        kwargs: Its keyword arguments, in the same form.
        out: The type of its result; a tuple for several results; None for a number.
        common: The dtype in which torch compares the operands.
        where: The line of the user's file.
        key: Equal for two steps that compute the same.
        draw: The number of its random draw; None if it draws nothing.
        mask_key: The key of its index, if that is one array.
    """

    name: str
    row: _ops.Row
    args: Any
    kwargs: dict[str, Any]
    out: Any
    common: Any
    where: str
    key: Any
    draw: int | None = None
    mask_key: Any = None


@dataclasses.dataclass(slots=True)
class TracedProgram:
    """A graph in terms of JAX.

    Attributes:
        n_inputs: The number of arrays that it takes.
        constants: The real tensors that it reads.
        steps: Its operations, in order.
        outputs: A `Ref` for each result, or None.
        types: The types of the results.
        draws: Whether it draws random numbers.
        keys: The keys of the results, equal for two that are computed alike.
    """

    n_inputs: int
    constants: list[Any]
    steps: list[Operation]
    outputs: list[Any]
    types: list[Any]
    draws: bool
    keys: list[Any]

    @property
    def launches(self) -> list[Any]:
        """The kernels that it launches, in order."""
        return [x for step in self.steps if (x := launch_of(step.row)) is not None]

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape of a value depends on other values."""
        return any(
            isinstance(t, Type) and t.shape is None
            for step in self.steps
            for t in (step.out if isinstance(step.out, tuple) else (step.out,))
        )

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]:
        """Return the results for these arrays."""
        values = [*arrays, *[to_jax(t) for t in self.constants]]
        for step in self.steps:
            values.append(run_step(step, values, key))
        found = [None if ref is None else values[ref] for ref in self.outputs]
        for x in found:
            if isinstance(x, masked.Masked):
                raise x.refusal("returned or saved")
        return found


def run_step(step: Operation, values: Any, key: Any) -> Any:
    """Return the result of an operation, from the values by their references."""
    leaves, spec = jax.tree.flatten((step.args, step.kwargs))
    leaves = [values[x] if type(x) is Ref else x for x in leaves]
    args, kwargs = spec.unflatten(leaves)
    try:
        if any(type(x) in masked.KINDS for x in leaves):
            return checked(step, masked.run(step, args, kwargs))
        if step.draw is not None:
            kwargs["key"] = jax.random.fold_in(key, step.draw)
        found = step.row(step.out, step.common, *args, **kwargs)
    except TorchRefusal as refusal:
        refusal.where = refusal.where or step.where
        raise
    except NotImplementedError as error:
        raise TorchRefusal(
            operation=step.name,
            reason=f"jaxfn's table does not have {error}.",
            where=step.where,
        ) from error
    except Exception as error:
        if launch_of(step.row) is not None:
            raise _failed(step, error) from error
        raise _unfit(step, error) from error
    return checked(step, found)


def _failed(step: Operation, error: Exception) -> TorchRefusal:
    """Return the refusal for an error of a kernel or its compiler."""
    return TorchRefusal(
        operation=f"kernel `{launch_of(step.row).name}`",
        reason=str(error),
        way_out="Correct the kernel, or compute it with torch operations in the rule.",
        where=step.where,
    )


def _unfit(step: Operation, error: Exception) -> TorchRefusal:
    """Return the refusal for an error of a row."""
    if type(error).__name__ == "ShardingTypeError":
        return TorchRefusal(
            operation=step.name,
            reason="its arguments are on a mesh whose axes are explicit, and PyTorch "
            f"does not say how results are split: {error}",
            way_out="Make the mesh with axis_types=(jax.sharding.AxisType.Auto,) for "
            "each axis: XLA then chooses.",
            where=step.where,
        )
    out = step.out if isinstance(step.out, tuple) else (step.out,)
    if any(isinstance(t, Type) and t.shape is None for t in out):
        return TorchRefusal(
            operation=step.name,
            reason="its shape depends on values.",
            where=step.where,
        )
    return TorchRefusal(
        operation=step.name,
        reason=f"its row in jaxfn's table raised {type(error).__name__}: {error}; "
        "that is a fault of jaxfn, please report it.",
        where=step.where,
    )


def checked(step: Operation, found: Any) -> Any:
    """Return a result in the types of torch's trace."""
    if isinstance(step.out, tuple):
        return tuple(
            x if x is None or t is None else _cast(step, x, t)
            for x, t in zip(found, step.out, strict=True)
        )
    if isinstance(found, masked.Masked):
        return dataclasses.replace(found, key=found.key or step.mask_key)
    if step.out is None:
        return found
    return _cast(step, found, step.out)


def _cast(step: Operation, x: Any, want: Type) -> Any:
    if want.shape is None:
        raise TorchRefusal(
            operation=step.name,
            reason="its shape depends on values.",
            where=step.where,
        )
    x = jnp.asarray(x)
    if x.shape != want.shape:
        raise TorchRefusal(
            operation=step.name,
            reason=f"its row in jaxfn's table gave shape {x.shape}, and torch's trace "
            f"has {want.shape}: that is a fault of jaxfn, please report it.",
            where=step.where,
        )
    return cast(x, want.dtype)


# A number too large for float8 becomes the greatest one, but nan in torch 2.11.
_HAS_GREATEST = not bool(torch.tensor(1e4).to(torch.float8_e4m3fn).float().isnan())


def cast(x: Any, dtype: Any) -> Any:
    """Cast `x` as torch does."""
    if x.dtype == dtype:
        return x
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = x.real
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        # Values outside of a small integer dtype wrap in torch; XLA clips them.
        wide = jax.dtypes.canonicalize_dtype(np.int64)
        x = jax.lax.convert_element_type(x, wide)
    if dtype == jnp.float8_e4m3fn and _HAS_GREATEST:
        most = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -most, most)
    return convert(x, dtype)
