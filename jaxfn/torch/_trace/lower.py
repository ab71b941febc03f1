"""Programs from torch's graphs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from jaxfn.torch import _ops
from jaxfn.torch._base import (
    X64,
    TorchRefusal,
    experimental,
    has_draws,
    has_x64,
    is_inexact,
    to_jax,
    to_jax_dtype,
    torch,
)
from jaxfn.torch._trace.program import Operation, Ref, TracedProgram, Type
from jaxfn.torch._triton import launch_row


def build(
    module: Any,
    draws: Sequence[int],
    n_inputs: int,
    *,
    wanted: slice = slice(None),
) -> TracedProgram:
    """Return the program of a graph without writes.

    Args:
        module: The graph of the second pass.
        draws: The number of each random draw, in order.
        n_inputs: The number of inputs.
        wanted: The slice of the results that the program returns.

    Raises:
        TorchRefusal: The table lacks an operation, or JAX can't hold a value.
    """
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
        # Equal computations have the same number, which stands for them in others.
        self._known: dict[Any, int] = {}
        self._keys: dict[int, int] = {
            i: self._number(("input", i)) for i in range(n_inputs)
        }
        self._constants: list[Any] = []
        self._steps: list[Operation] = []
        self._drawn = 0
        self._missing: dict[str, str] = {}
        self._used: set[Any] = set()

    def program(self) -> TracedProgram:
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
        self._used = _used(nodes, outputs)
        for n in nodes:
            if n.op == "call_function" and n in self._used:
                if str(n.target) == "aten._conj.default" and type(n.args[0]) is complex:
                    # Autograd conjugates Python scalars. Fold it: it stays a scalar.
                    self._refs[n] = n.args[0].conjugate()
                    continue
                self._step(n)
            elif has_draws(n.target):
                self._drawn += 1
        if self._missing:
            raise _lacking(self._missing)
        if self._drawn != len(self._draws):
            raise TorchRefusal(
                operation="random draws",
                reason=f"torch's trace has {self._drawn} of them, and the rule made "
                f"{len(self._draws)}.",
            )
        types = [_type(n.meta["val"]) if n is not None else None for n in outputs]
        return TracedProgram(
            self._n_inputs,
            self._constants,
            self._steps,
            self._ref(outputs),
            types,
            self._drawn > 0,
            [None if n is None else self._keys[self._refs[n]] for n in outputs],
        )

    def _number(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))

    def _constant(self, node: Any) -> None:
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        user = next(iter(node.users), node)
        if experimental.is_fake(value):
            raise TorchRefusal(
                operation="a tensor that is no argument",
                reason="it was made in another trace (and cached by functools.cache, "
                "for example), so it has no values.",
                way_out="Make it in the rule each time.",
                where=experimental.place_of(user),
            )
        # Call it now for its refusal of values that JAX can't hold.
        to_jax(value, where=experimental.place_of(user))
        self._refs[node] = Ref(self._n_inputs + len(self._constants))
        self._keys[self._refs[node]] = self._number(("constant", id(value)))
        self._constants.append(value)

    def _step(self, node: Any) -> None:
        name = _name(node.target)
        where = experimental.place_of(node)
        row = _ops.find(name) or _launch(name, node)
        if row is None:  # go on, to name all of them
            self._missing.setdefault(name, where)
            self._refs[node] = Ref(0)
            return
        draw = None
        if has_draws(node.target):
            draw = self._draws[self._drawn] if self._drawn < len(self._draws) else -1
            self._drawn += 1
        args, kwargs = self._ref(node.args), self._ref(dict(node.kwargs))
        try:
            out = _type(node.meta.get("val"))
        except TorchRefusal as refusal:
            refusal.where = where
            raise
        if not has_x64():
            _check_numbers(node, name, out, where)
        if row.lazy:
            out = self._asked_for(node, out)
        ref = Ref(self._n_inputs + len(self._constants) + len(self._steps))
        key = self._step_key(name, args, kwargs, draw)
        self._refs[node], self._keys[ref] = ref, key
        self._steps.append(
            Operation(
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

    def _step_key(self, name: str, args: Any, kwargs: Any, draw: int | None) -> int:
        if name in _SAME_AS_BEFORE and type(args[0]) is Ref and not kwargs:
            return self._keys[args[0]]
        key = name, self._key(args), self._key(kwargs)
        return self._number(key if draw is None else (*key, len(self._steps)))

    def _asked_for(self, node: Any, out: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the types of several results; None for those that nothing uses."""
        users = [n for n in node.users if n in self._used]
        if any(n.target is not operator.getitem for n in users):
            return out
        asked = {n.args[1] for n in users}
        return tuple(t if i in asked else None for i, t in enumerate(out))

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


_SAME_AS_BEFORE = {
    f"aten.{name}.default"
    for name in ("alias", "alias_copy", "clone", "detach", "detach_copy")
}


def _used(nodes: list[Any], outputs: list[Any]) -> set[Any]:
    """Return the nodes on which the outputs depend."""
    used = {n for n in outputs if n is not None}
    for n in reversed(nodes):
        if n in used:
            used.update(n.all_input_nodes)
    return used


def _lacking(missing: dict[str, str]) -> TorchRefusal:
    """Return the refusal of operations without a row, by their places."""
    (name, where), *others = missing.items()
    reason = _unknown(name)
    if others:
        more = ", ".join(f"{other} ({place})" for other, place in others)
        reason += f" Nor does it have: {more}."
    return TorchRefusal(operation=name, reason=reason, where=where)


def _unknown(name: str) -> str:
    if name.startswith(("aten.", "prims.", "number.", "getitem")):
        return "jaxfn's table does not have it."
    return (
        "it is registered by torch.library, so jaxfn can't see which operations it "
        "computes or launches. Call the function itself, without torch.library."
    )


def _launch(name: str, node: Any) -> _ops.Row | None:
    run = launch_row(name, node.args[1] if len(node.args) > 1 else None)
    return None if run is None else _ops.Row(run)


def _name(target: Any) -> str:
    if experimental.is_operation(target):
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


def _check_numbers(node: Any, name: str, out: Any, where: str) -> None:
    """Refuse an integer operand that fits into int64 and not into int32."""
    schema = experimental.schema_of(node.target)
    big = []
    for i, spec in enumerate(() if schema is None else schema.arguments):
        x = node.args[i] if i < len(node.args) else node.kwargs.get(spec.name)
        is_big = type(x) is int and not -(2**31) <= x < 2**31
        if is_big and str(spec.type) in ("number", "Optional[number]", "Tensor"):
            big.append(x)
    if not big:
        return
    tensors = [x.meta.get("val") for x in node.all_input_nodes]
    tensors = [x for x in tensors if isinstance(x, torch.Tensor)]
    inexact = any(is_inexact(x.dtype) for x in tensors)
    if not inexact and not (tensors == [] and out.dtype.kind in "fcV"):
        raise TorchRefusal(
            operation=name,
            reason=f"{big[0]} does not fit into int32, and JAX would narrow it, since "
            "x64 is off.",
            way_out=X64,
            where=where,
        )


def _common(node: Any) -> Any:
    """Return the dtype to which torch casts the two operands of an operation."""
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
