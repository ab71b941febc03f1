"""A traced graph as a list of steps, and its evaluation in JAX.

The safety rule: each result is cast to the dtype and checked against the shape that
torch's own trace had. That gives torch's promotion exactly, and turns a wrong row of
the table into an error.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch import _experimental, _masked, _table
from jaxfn.torch._dtypes import to_jax, to_jax_dtype
from jaxfn.torch._lib import torch
from jaxfn.torch._refusal import TorchRefusal


class Ref(int):
    """The place of a value among those of a program."""


@dataclasses.dataclass(slots=True)
class Type:
    """What a step gives, as torch's trace knows it.

    Attributes:
        shape: of the tensor; None where it depends on values.
        dtype: of the tensor, JAX's.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype


@dataclasses.dataclass(slots=True)
class Step:
    """One operation.

    Attributes:
        name: of the operation and its overload, such as "aten.add.Tensor".
        row: what computes it in JAX.
        args: its arguments, with `Ref` in place of computed values.
        kwargs: the same.
        out: its type; a tuple of them for several results; None for a number.
        common: the dtype in which torch compares the operands.
        where: the line of the user's file.
        key: equal for two steps that compute the same.
        draw: which random draw it is; None for an operation that draws nothing.
        mask_key: the key of what it indexes with, if that is one array.
    """

    name: str
    row: _table.Row
    args: Any
    kwargs: dict[str, Any]
    out: Any
    common: Any
    where: str
    key: Any
    draw: int | None = None
    mask_key: Any = None


@dataclasses.dataclass(slots=True)
class Program:
    """A graph in terms of JAX.

    Attributes:
        n_inputs: how many arrays it takes.
        constants: real tensors that it reads.
        steps: its operations, in order.
        outputs: for each result a `Ref`, or None.
        types: of the results.
        draws: does it draw random numbers?
    """

    n_inputs: int
    constants: list[Any]
    steps: list[Step]
    outputs: list[Any]
    types: list[Any]
    draws: bool

    @property
    def is_dynamic(self) -> bool:
        """Does the shape of a value depend on other values?"""
        return any(
            isinstance(t, Type) and t.shape is None
            for step in self.steps
            for t in (step.out if isinstance(step.out, tuple) else (step.out,))
        )

    def __call__(self, arrays: Sequence[Any], key: Any = None) -> list[Any]:
        """The results for these arrays."""
        values = [*arrays, *[to_jax(t) for t in self.constants]]
        for step in self.steps:
            values.append(_run(step, values, key))
        found = [None if ref is None else values[ref] for ref in self.outputs]
        for x in found:
            if isinstance(x, _masked.Masked):
                raise x.refusal("returned or saved")
        return found


def _run(step: Step, values: list[Any], key: Any) -> Any:
    args = _fill(step.args, values)
    kwargs = {name: _fill(x, values) for name, x in step.kwargs.items()}
    try:
        if _masked.has_masked((args, kwargs)):
            return _masked.run(step, args, kwargs)
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
    return checked(step, found)


def checked(step: Step, found: Any) -> Any:
    """A result in the types that torch's trace had."""
    if isinstance(step.out, tuple):
        return tuple(
            x if x is None or t is None else _cast(step, x, t)
            for x, t in zip(found, step.out, strict=True)
        )
    if isinstance(found, _masked.Masked):
        return dataclasses.replace(found, key=found.key or step.mask_key)
    if step.out is None:
        return found
    return _cast(step, found, step.out)


def _cast(step: Step, x: Any, want: Type) -> Any:
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


def cast(x: Any, dtype: Any) -> Any:
    """`x` in another dtype, as torch casts."""
    if x.dtype == dtype:
        return x
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = x.real
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        # torch's wrap around in a small integer dtype; XLA's stop at its bounds.
        wide = jax.dtypes.canonicalize_dtype(np.int64)
        x = jax.lax.convert_element_type(x, wide)
    return jax.lax.convert_element_type(x, dtype)


def _fill(x: Any, values: list[Any]) -> Any:
    kind = type(x)
    if kind is Ref:
        return values[x]
    if kind is list or kind is tuple:
        return kind([_fill(y, values) for y in x])
    return x


# ---- from a graph


def build(
    module: Any,
    draws: Sequence[int],
    n_inputs: int,
    *,
    drop: int = 0,
    only: int | None = None,
) -> Program:
    """The program of a graph that writes nothing.

    Args:
        module: what the second pass gave.
        draws: which draw each random operation is, in order.
        n_inputs: how many inputs it has.
        drop: so many of the first results are not wanted.
        only: the one result that is wanted.

    Raises:
        TorchRefusal: an operation that the table does not have.
    """
    wanted = slice(drop, None) if only is None else slice(only, only + 1)
    return _Builder(module, list(draws), n_inputs, wanted).program()


class _Builder:
    def __init__(
        self,
        module: Any,
        draws: list[int],
        n_inputs: int,
        wanted: slice,
    ) -> None:
        self._wanted = wanted
        self._module, self._draws, self._n_inputs = module, draws, n_inputs
        self._refs: dict[Any, Any] = {}
        self._keys: dict[int, Any] = {i: ("input", i) for i in range(n_inputs)}
        self._constants: list[Any] = []
        self._steps: list[Step] = []
        self._drawn = 0

    def program(self) -> Program:
        nodes = list(self._module.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        for i, n in enumerate(inputs):
            self._refs[n] = Ref(i)
        for n in nodes:
            if n.op == "get_attr":
                self._constant(n)
        last = nodes[-1].args[0]
        outputs = list(last if isinstance(last, (list, tuple)) else [last])
        outputs = outputs[self._wanted]
        used = _used(nodes, outputs)
        for n in nodes:
            if n.op == "call_function" and n in used:
                self._step(n)
            elif _experimental.has_draws(n.target):
                self._drawn += 1
        if self._drawn != len(self._draws):
            raise TorchRefusal(
                operation="random draws",
                reason=f"torch's trace lost count of them ({self._drawn} of "
                f"{len(self._draws)}).",
            )
        types = [_type(n.meta["val"]) if n is not None else None for n in outputs]
        return Program(
            self._n_inputs,
            self._constants,
            self._steps,
            self._ref(outputs),
            types,
            self._drawn > 0,
        )

    def _constant(self, node: Any) -> None:
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        to_jax(value)  # refuses now what JAX can't hold
        self._refs[node] = Ref(self._n_inputs + len(self._constants))
        self._keys[self._refs[node]] = ("constant", id(value))
        self._constants.append(value)

    def _step(self, node: Any) -> None:
        name = _name(node.target)
        where = _experimental.place_of(node)
        row = _table.find(name)
        if row is None:
            raise TorchRefusal(
                operation=name, reason="jaxfn's table does not have it.", where=where
            )
        draw = None
        if _experimental.has_draws(node.target):
            draw = self._draws[self._drawn] if self._drawn < len(self._draws) else -1
            self._drawn += 1
        args, kwargs = self._ref(node.args), self._ref(dict(node.kwargs))
        try:
            out = _type(node.meta.get("val"))
        except TorchRefusal as refusal:
            refusal.where = where
            raise
        ref = Ref(len(self._refs))
        key = (name, self._key(args), self._key(kwargs), len(self._steps))
        if draw is None:
            key = key[:3]
        self._refs[node], self._keys[ref] = ref, key
        self._steps.append(
            Step(
                name,
                row,
                args,
                kwargs,
                out,
                _common(node),
                where,
                key,
                draw,
                self._mask_key(args),
            )
        )

    def _mask_key(self, args: Any) -> Any:
        at = args[1] if len(args) > 1 else None
        at = at[0] if isinstance(at, list) and len(at) == 1 else at
        return self._keys[at] if type(at) is Ref else None

    def _ref(self, x: Any) -> Any:
        if isinstance(x, torch.fx.Node):
            return self._refs[x]
        if isinstance(x, (list, tuple)):
            return [self._ref(y) for y in x]
        if isinstance(x, dict):
            return {k: self._ref(v) for k, v in x.items()}
        return x

    def _key(self, x: Any) -> Any:
        if type(x) is Ref:
            return self._keys[x]
        if isinstance(x, (list, tuple)):
            return tuple(self._key(y) for y in x)
        if isinstance(x, dict):
            return tuple((k, self._key(v)) for k, v in x.items())
        return (type(x), repr(x))


def _used(nodes: list[Any], outputs: list[Any]) -> set[Any]:
    """The nodes on which the outputs depend."""
    used = {n for n in outputs if n is not None}
    for n in reversed(nodes):
        if n in used:
            used.update(n.all_input_nodes)
    return used


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if target is operator.getitem:
        return "getitem"
    return f"number.{getattr(target, '__name__', target)}"


def _type(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        known = all(type(n) is int for n in shape)
        return Type(shape if known else None, to_jax_dtype(value.dtype))
    if isinstance(value, (list, tuple)):
        return tuple(_type(x) for x in value)
    return None


def _common(node: Any) -> Any:
    """The dtype to which torch brings the two operands of an operation."""
    operands = [
        x.meta.get("val") if isinstance(x, torch.fx.Node) else x for x in node.args[:2]
    ]
    if len(operands) < 2 or not isinstance(operands[0], torch.Tensor):
        return None
    if not isinstance(operands[1], (torch.Tensor, int, float, complex)):
        return None
    try:
        return to_jax_dtype(torch.result_type(*operands))
    except (TorchRefusal, RuntimeError, TypeError):
        return None
