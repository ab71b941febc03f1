"""What a run of forward left behind: outputs, and what it kept on ctx."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxfn.torch._base import (
    OR_HOST,
    Ctx,
    Flattener,
    Leaf,
    TorchRefusal,
    attributes_of,
    experimental,
    given_to,
    is_inexact,
    torch,
)


@dataclasses.dataclass(slots=True)
class ForwardResult:
    """What forward left behind.

    Attributes:
        output: the template of what it returned.
        n_outputs: how many of the flat results are outputs.
        is_output: for each top-level output, which flat result it is, or None.
        saved: templates of what was saved for backward.
        for_forward: templates of what was saved for jvp.
        attributes: the template of the attributes of ctx.
        marked: flat results without derivative.
        materialize: zeros for gradients that are not there?
        inexact: for each flat result, can it have a gradient?
        numbers: flat results that are numbers to the rule, read from tensors.
    """

    output: Any
    n_outputs: int
    is_output: list[int | None]
    saved: list[Any]
    for_forward: list[Any]
    attributes: dict[str, Any]
    marked: list[int]
    materialize: bool
    inexact: list[bool]
    numbers: list[int]


def record(ctx: Ctx, result: Any) -> tuple[list[Any], ForwardResult]:
    """The tensors that forward left behind, and where they were."""
    outputs = Flattener(lambda x: isinstance(x, torch.Tensor))
    output = outputs(result)
    tops = output if isinstance(output, tuple) else (output,)
    n = len(outputs.leaves)
    _check_returned(output)
    saved = Flattener(lambda x: experimental.is_fake(x) or is_number(x))
    at = {id(x): i for i, x in enumerate(outputs.leaves)}
    saved.start(outputs.leaves)
    templates = [saved(x) for x in given_to(ctx, "to_save")]
    for_forward = [saved(x) for x in given_to(ctx, "saved_for_forward")]
    attributes = {k: saved(x) for k, x in attributes_of(ctx).items()}
    is_output = [int(x) if isinstance(x, Leaf) else None for x in tops]
    marked = [at[id(x)] for x in given_to(ctx, "non_differentiable") if id(x) in at]
    # As in torch, what is inside a list or dict has no gradient.
    marked += [i for i in range(n) if i not in is_output]
    numbers = [i for i, x in enumerate(saved.leaves) if is_number(x)]
    found = [torch.scalar_tensor(x) if is_number(x) else x for x in saved.leaves]
    return found, ForwardResult(
        output,
        n,
        is_output,
        templates,
        for_forward,
        attributes,
        marked,
        getattr(ctx, "materialize_grads", True),
        [is_inexact(x.dtype) for x in found],
        numbers,
    )


def is_number(x: Any) -> bool:
    """Is it a number that a rule has read from a tensor without values?"""
    return isinstance(x, (torch.SymFloat, torch.SymInt))


def _check_returned(template: Any) -> None:
    numbers = Flattener(is_number)
    numbers(template)
    if numbers.leaves:
        raise TorchRefusal(
            operation="tensor.item()",
            reason="the number is returned, and there are no values while JAX traces.",
            way_out=f"Return the tensor. Or: {OR_HOST}",
        )
