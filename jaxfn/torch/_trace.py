"""From a torch function of flat tensors to a program in terms of JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from jaxfn.torch import _experimental
from jaxfn.torch._program import Program, build
from jaxfn.torch._refusal import HOST, TorchRefusal, is_users, place_of
from jaxfn.torch._watch import Draws, NeedsRead, Watch, watched

Run = Callable[[Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """An input to trace with.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor, torch's.
        requires_grad: what torch would show there.
    """

    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool = False


def trace(
    run: Run,
    examples: Sequence[Example],
    *,
    seed: int | None = None,
    known: bool = True,
    keep: Sequence[Any] = (),
) -> Program:
    """The program of `run` for inputs of these types.

    Args:
        run: from tensors to tensors (or None).
        examples: the types of the inputs.
        seed: tells the draws apart; None refuses them.
        known: is it known which inputs are differentiated?
        keep: real tensors whose `grad` the rule must not change.

    Raises:
        TorchRefusal: what stands in the way.
        NeedsRead: `known` is False, and the rule asked.
    """
    with _experimental.LOCK, torch.random.fork_rng(devices=[]), _Kept(keep):
        try:
            return _two_passes(run, examples, seed, known, symbolic=False)
        except _experimental.needs_values() as error:
            first = error
        try:
            return _two_passes(run, examples, seed, known, symbolic=True)
        except _experimental.needs_values() as error:
            raise _asks_for_value(error) from first


def _two_passes(
    run: Run, examples: Sequence[Example], seed: int | None, known: bool, *, symbolic: bool
) -> Program:
    fakes = _experimental.Fakes(symbolic=symbolic)
    inputs = [
        fakes(x.shape, x.dtype).requires_grad_(x.requires_grad) for x in examples
    ]
    watch: list[Watch] = []
    draws = Draws(seed)
    try:
        with torch.no_grad():
            module = _experimental.record(
                watched(run, watch, draws, known), inputs, fakes
            )
        _check_writes(module)
        module = _experimental.functional(module, fakes)
    except (TorchRefusal, NeedsRead):
        raise
    except _experimental.needs_values() as error:
        error._jaxfn_last = watch[0].last if watch else ""  # type: ignore[attr-defined]
        raise
    except Exception as error:
        raise _refused(error) or error from error
    return build(module, draws.found, len(examples))


def _refused(error: Exception) -> Exception | None:
    """The refusal for what torch raised; None for what the rule itself raised."""
    tb, last = error.__traceback__, None
    while tb is not None:
        last, tb = tb, tb.tb_next
    if last is not None and is_users(last.tb_frame.f_code.co_filename):
        return None
    words = str(error).strip().splitlines()
    return TorchRefusal(
        operation=_operation(error),
        reason=f"torch raised {type(error).__name__} while it was traced without "
        f"values: {words[0] if words else ''}",
        where=place_of(error.__traceback__),
    )


def _operation(error: Exception) -> str:
    text = str(error)
    if ".numpy()" in text or "numpy" in text:
        return "a NumPy array of a tensor"
    if "marked with @once_differentiable" in text:
        return "the derivative of backward"
    return "an operation"


def _asks_for_value(error: BaseException) -> TorchRefusal:
    last = getattr(error, "_jaxfn_last", "")
    words = {
        "__bool__": "bool(tensor)",
        "__int__": "int(tensor)",
        "__index__": "int(tensor)",
        "__float__": "float(tensor)",
        "item": "tensor.item()",
        "tolist": "tensor.tolist()",
        "__getitem__": "x[mask]",
        "__setitem__": "x[mask] = …",
        "__contains__": "x in tensor",
    }
    return TorchRefusal(
        operation=words.get(last, last or "an operation"),
        reason="what comes next depends on the value of a tensor, and there are no "
        "values while JAX traces.",
        where=place_of(error.__traceback__),
        way_out=f"Write it with torch.where and masks. Or: {HOST[0].lower()}{HOST[1:]}",
    )


# ---- effects on what is not part of the call


def _check_writes(module: torch.fx.GraphModule) -> None:
    """Refuse writes to tensors that are closed over: they would be lost."""
    roots: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            roots[node] = node
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for spec, arg in zip(schema.arguments, node.args, strict=False):
            info = spec.alias_info
            if info is None or arg not in roots:
                continue
            if info.is_write:
                raise TorchRefusal(
                    operation=str(node.target),
                    reason="it writes to a tensor that is not an argument, and the "
                    "write would be lost.",
                    way_out=f"Pass the tensor to apply and return its new value. {HOST}",
                    where=_experimental.place_of(node),
                )
            if "lift_fresh" not in str(node.target):
                roots[node] = roots[arg]


class _Kept:
    """Around a trace: `grad` of these tensors is as it was, or it is a refusal."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._before = [(t, t.grad) for t in tensors if t.is_leaf]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, _: object) -> None:
        changed = [(t, g) for t, g in self._before if t.grad is not g]
        for t, g in changed:
            t.grad = g
        if changed and error is None:
            raise TorchRefusal(
                operation="backward()",
                reason="it adds gradients to tensors that are not arguments (as to the "
                "parameters of a module), which would be lost.",
                way_out="Pass them to apply, and return their gradients. " + HOST,
            )
