"""`explain`: what becomes of a PyTorch Function, or why nothing does."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxfn.torch._base import TorchRefusal
from jaxfn.torch._function.call import Settings, TorchCall
from jaxfn.torch._function.function import Bridge, is_array
from jaxfn.torch._function.traced_forward import traced_forward
from jaxfn.torch._trace import BranchTree, Operation, Ref


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class RuleGraph:
    """One rule, traced.

    Attributes:
        rule: "forward" or "backward".
        operations: how often each operation of torch is in it.
        text: the graph, an operation a line, with the lines of the rule.
        paths: how many paths its conditions on values make.
        refusal: why it can't be traced; None if it can.
        launches: Each launch of a Triton kernel: kernel, grid, place, what it reads and
            writes, configurations.
    """

    rule: str
    operations: dict[str, int]
    text: str
    paths: int
    refusal: TorchRefusal | None
    launches: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"{self.rule}: refused\n  {self.refusal}"
        count = sum(self.operations.values())
        many = "" if self.paths == 1 else f", {self.paths} paths"
        lines = [f"{self.rule}: {count} operations{many}", *self.launches, self.text]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TorchExplanation:
    """What `jaxfn.torch.explain` found. Print it.

    Attributes:
        name: of the class.
        forward: its graph.
        backward: its graph; None where forward is refused or there is no backward.
    """

    name: str
    forward: RuleGraph
    backward: RuleGraph | None

    @property
    def ok(self) -> bool:
        """Do both rules run as JAX operations?"""
        rules = [self.forward, *([self.backward] if self.backward else [])]
        return all(graph.refusal is None for graph in rules)

    def __str__(self) -> str:
        parts = [self.name, str(self.forward)]
        return "\n\n".join([*parts, *([str(self.backward)] if self.backward else [])])

    def __repr__(self) -> str:
        return str(self)


def explain(cls: type, *args: Any, random: bool = False) -> TorchExplanation:
    """Show the graphs of a `torch.autograd.Function`, and what is refused where.

    Args:
        cls: the torch class.
        *args: those of its `apply`, with JAX arrays; without a key.
        random: may it draw random numbers?

    Returns:
        The graphs of forward and backward, with the operations of torch that are in
        them. Nothing is computed.

    TensorSpec:
        >>> import jax.numpy as jnp, torch, jaxfn.torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * g * x
        >>> report = jaxfn.torch.explain(Square, jnp.ones(3))
        >>> report.ok, report.backward.operations
        (True, {'aten.mul.Tensor': 2})
    """
    bridge = Bridge(cls, Settings("never", random=random))
    call = TorchCall(args, is_array)
    call.arrays = [jnp.asarray(x) for x in call.arrays]
    needs = tuple(
        top is not None and jnp.issubdtype(call.arrays[top].dtype, jnp.inexact)
        for top in call.tops
    )
    try:
        traced = traced_forward(cls, call, needs, bridge.settings)
    except TorchRefusal as refusal:
        return TorchExplanation(cls.__name__, _refused("forward", refusal), None)
    forward = _graph("forward", traced.program)
    if not bridge.has_backward:
        return TorchExplanation(cls.__name__, forward, None)
    try:
        backward = _graph("backward", traced.whole_backward(needs))
    except TorchRefusal as refusal:
        backward = _refused("backward", refusal)
    return TorchExplanation(cls.__name__, forward, backward)


def _refused(rule: str, refusal: TorchRefusal) -> RuleGraph:
    return RuleGraph(rule, {}, "", 0, refusal)


def _graph(rule: str, tree: BranchTree) -> RuleGraph:
    steps = [step for path in tree.paths for step in path.steps]
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.name] = counts.get(step.name, 0) + 1
    text = "\n".join(
        "\n".join(_lines(path.steps, path.n_inputs + len(path.constants)))
        for path in tree.paths
    )
    launches = [_launched(launch) for launch in tree.launches]
    return RuleGraph(rule, counts, text, len(tree.paths), None, tuple(launches))


def _launched(launch: Any) -> str:
    def names(numbers: Any) -> str:
        return (
            ", ".join(p for i in numbers for p in launch.parameters_of(i)) or "nothing"
        )

    lines = [f"  kernel {launch.name}, launched at {launch.place}"]
    lines.append(f"    reads {names(launch.reads)}; writes {names(launch.writes)}")
    for variant in launch.usable:
        chosen = {**variant.constants, **variant.options}
        text = ", ".join(f"{k}={v}" for k, v in chosen.items())
        lines.append(f"    grid {variant.grid}" + (f": {text}" if text else ""))
    return "\n".join(lines)


def _lines(steps: list[Operation], start: int) -> list[str]:
    return [
        f"  v{i} = {step.name}({_text(step.args)})  # {step.where}"
        for i, step in enumerate(steps, start)
    ]


def _text(args: Any) -> str:
    def one(x: Any) -> str:
        if type(x) is Ref:
            return f"v{int(x)}"
        return f"[{_text(x)}]" if isinstance(x, (list, tuple)) else repr(x)

    return ", ".join(map(one, args))
