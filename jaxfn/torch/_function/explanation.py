"""`explain`: the graphs of a PyTorch Function, or the reasons why there are none."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxfn.torch._base import TorchRefusal, to_jax, torch
from jaxfn.torch._function.call import Settings, TorchCall
from jaxfn.torch._function.function import Bridge, is_array
from jaxfn.torch._function.traced_forward import traced_forward
from jaxfn.torch._trace import BranchTree, Operation, Ref


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class RuleGraph:
    """One rule, traced.

    Attributes:
        rule: "forward" or "backward".
        operations: The count of each operation of torch in it.
        text: The graph, one operation a line, with the lines of the rule.
        paths: The number of paths, which conditions on values multiply.
        refusal: Why it can't be traced; None if it can.
        launches: Each launch of a Triton kernel: kernel, grid, place, buffers that it
            reads and writes, configurations.
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
    """The result of `jaxfn.torch.explain`. Print it.

    Attributes:
        name: The name of the class.
        forward: The graph of forward.
        backward: The graph of backward; None if there is none or forward is refused.
    """

    name: str
    forward: RuleGraph
    backward: RuleGraph | None

    @property
    def ok(self) -> bool:
        """Whether both rules run as JAX operations."""
        rules = [self.forward, *([self.backward] if self.backward else [])]
        return all(graph.refusal is None for graph in rules)

    def __str__(self) -> str:
        parts = [self.name, str(self.forward)]
        return "\n\n".join([*parts, *([str(self.backward)] if self.backward else [])])

    def __repr__(self) -> str:
        return str(self)


def explain_function(cls: type, *args: Any, random: bool = False) -> TorchExplanation:
    """Show the graphs of a `torch.autograd.Function`; see `jaxfn.torch.explain`."""
    bridge = Bridge(cls, Settings("never", random=random))
    dense = [getattr(x, "layout", None) is torch.strided for x in args]
    given = [to_jax(x) if d else x for x, d in zip(args, dense, strict=True)]
    call = TorchCall(given, is_array)
    call.arrays = list(map(jnp.asarray, call.arrays))
    needs_input_grad = tuple(
        top is not None and jnp.issubdtype(call.arrays[top].dtype, jnp.inexact)
        for top in call.tops
    )
    try:
        traced = traced_forward(cls, call, needs_input_grad, bridge.settings)
    except TorchRefusal as refusal:
        return TorchExplanation(cls.__name__, refused_graph("forward", refusal), None)
    forward = rule_graph("forward", traced.program)
    if not bridge.has_backward:
        return TorchExplanation(cls.__name__, forward, None)
    try:
        backward = rule_graph("backward", traced.whole_backward(needs_input_grad))
    except TorchRefusal as refusal:
        backward = refused_graph("backward", refusal)
    return TorchExplanation(cls.__name__, forward, backward)


def refused_graph(rule: str, refusal: TorchRefusal) -> RuleGraph:
    """Return the graph of a rule that can't be traced."""
    return RuleGraph(rule, {}, "", 0, refusal)


def rule_graph(rule: str, tree: BranchTree) -> RuleGraph:
    """Return the graph of a traced rule."""
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
