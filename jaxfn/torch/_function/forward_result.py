"""Outputs and saved tensors of one forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
    outputs_of,
    parts_of,
    to_jax_dtype,
    torch,
)
from jaxfn.torch._triton import Storages, StoredView, stored_views


@dataclasses.dataclass(slots=True)
class ForwardResult:
    """Outputs and saved tensors of one forward, as numbers of flat results.

    Attributes:
        output: The template of its result.
        n_outputs: The number of flat results that are outputs.
        is_output: For each top-level output, its flat result, or None.
        saved: Templates of the tensors that it saved for backward.
        for_forward: Templates of the tensors that it saved for jvp.
        attributes: The template of the attributes of ctx.
        marked: Flat results without derivative.
        materialize: Whether zeros stand for gradients that are None.
        inexact: For each flat result, whether it can have a gradient.
        numbers: Flat results that are numbers to the rule, read from tensors.
        views: For flat results that are the memory of a saved tensor: its place there.
        shared: For saved tensors that are an input, or a view of one: that input, whose
            `requires_grad` they have in torch.
        parts: For saved tensors that are a view of an output: that output, likewise.
        tracked: Other saved tensors that require a gradient.
        grad_dtypes: For each top-level output, the dtype of its gradient in backward
            (`set_output_grad_dtype`); None if that was not set.
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
    views: dict[int, StoredView]
    shared: dict[int, int]
    parts: dict[int, int]
    tracked: list[int]
    grad_dtypes: tuple[Any, ...] | None

    @property
    def backward_leaves(self) -> list[int]:
        """The flat results that backward gets."""
        return leaves_of([self.saved, self.attributes])

    @property
    def jvp_leaves(self) -> list[int]:
        """The flat results that jvp gets."""
        return leaves_of([self.for_forward, self.attributes])

    def save(self, ctx: Any, results: Sequence[Any]) -> None:
        """Save in jaxfn's ctx what the rule saved in torch's."""

        def at(template: Any) -> Any:
            return results[template] if isinstance(template, Leaf) else None

        ctx.save_for_backward(*map(at, self.saved))
        ctx.save_for_forward(*map(at, self.for_forward))
        for name, template in self.attributes.items():
            leaves = leaves_of([template])
            if leaves:
                setattr(ctx, name, [results[i] for i in leaves])
        marked = [results[i] for i in self.marked if self.inexact[i]]
        if marked:
            ctx.mark_non_differentiable(*marked)
        ctx.set_materialize_grads(self.materialize)
        if self.grad_dtypes is not None:
            ctx.set_output_grad_dtype(*map(_to_jax_dtype, self.grad_dtypes))

    def restored(self, ctx: Any, saved: list[Any], wanted: list[int]) -> list[Any]:
        """Return the flat results `wanted` from a ctx of jaxfn that saved `saved`."""
        at: dict[int, Any] = {}
        for template, x in zip(saved, ctx.saved_tensors, strict=True):
            if isinstance(template, Leaf):
                at[int(template)] = x
        for name, template in self.attributes.items():
            leaves = leaves_of([template])
            if leaves:
                at.update(zip(leaves, getattr(ctx, name), strict=True))
        return [at[i] for i in wanted]


def leaves_of(templates: Any) -> list[int]:
    """Return the flat results in templates, each once, in order."""
    found: dict[int, None] = {}

    def look(template: Any) -> None:
        if isinstance(template, Leaf):
            found[int(template)] = None
        for part in parts_of(template):
            look(part)

    look(templates)
    return list(found)


def forward_result(
    ctx: Ctx, result: Any, inputs: Sequence[Any], storages: Storages | None = None
) -> tuple[list[Any], ForwardResult]:
    """Return the tensors of one forward, and their places.

    Args:
        ctx: The ctx of forward.
        result: The result of forward.
        inputs: The tensors among its arguments.
        storages: The storages of its tensors, if saved views are saved as views.
    """
    outputs = Flattener(lambda x: isinstance(x, torch.Tensor) or is_number(x))
    output = outputs(result)
    if any(map(is_number, outputs.leaves)):
        raise TorchRefusal(
            operation="tensor.item()",
            reason="the number is returned, and a trace has no values.",
            way_out=f"Return the tensor. Or: {OR_HOST}",
        )
    tops = outputs_of(output)
    n = len(outputs.leaves)
    saved = Flattener(lambda x: experimental.is_fake(x) or is_number(x))
    at = {id(x): i for i, x in enumerate(outputs.leaves)}
    # Outputs become contiguous in JAX. With kernels, a saved output stays a view.
    saved.start(outputs.leaves if storages is None else [object() for _ in range(n)])
    # A number that is saved as a tensor, torch.tensor(3), stays known to the rules.
    known = experimental.known
    templates = [
        saved(x if id(x) in at else known(x)) for x in given_to(ctx, "to_save")
    ]
    for_forward = [saved(known(x)) for x in given_to(ctx, "saved_for_forward")]
    attributes = {
        k: saved(x if id(x) in at else known(x)) for k, x in attributes_of(ctx).items()
    }
    leaves = [*outputs.leaves, *saved.leaves[n:]]
    is_output = [int(x) if isinstance(x, Leaf) else None for x in tops]
    marked = [at[id(x)] for x in given_to(ctx, "non_differentiable") if id(x) in at]
    # As in torch, outputs inside a list or dict have no gradient.
    marked += [i for i in range(n) if i not in is_output]
    numbers = [i for i, x in enumerate(leaves) if is_number(x)]
    found = [_tensor_of(x) if is_number(x) else x for x in leaves]
    tensors = {i: leaves[i] for i in range(n, len(leaves)) if i not in numbers}
    views: dict[int, StoredView] = {}
    if storages is not None:
        for i, (view, flat) in stored_views(tensors, storages).items():
            views[i], found[i] = view, flat
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
        views,
        *_requires_grad_of(tensors, at, inputs),
        ctx.output_grad_dtypes,
    )


def _requires_grad_of(
    tensors: dict[int, Any], outputs: dict[int, int], inputs: Sequence[Any]
) -> tuple[dict[int, int], dict[int, int], list[int]]:
    """Return what the `requires_grad` of saved tensors depends on.

    In torch a view requires a gradient if its tensor does, under no_grad too.

    Args:
        tensors: The saved tensors that are no outputs, by their flat results.
        outputs: The flat result of each output, by its id.
        inputs: The tensors among the arguments.

    Returns:
        `shared`, `parts` and `tracked` of `ForwardResult`.
    """
    at_input = {id(x): i for i, x in enumerate(inputs)}
    wholes = {i: id(experimental.whole_of(x)) for i, x in tensors.items()}
    parts = {i: outputs[whole] for i, whole in wholes.items() if whole in outputs}
    tracked = [i for i, x in tensors.items() if x.requires_grad and i not in parts]
    shared = {i: at_input[wholes[i]] for i in tracked if wholes[i] in at_input}
    return shared, parts, [i for i in tracked if i not in shared]


def _to_jax_dtype(dtype: Any) -> Any:
    return to_jax_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype


def is_number(x: Any) -> bool:
    """Return whether a rule read this number from a tensor without values."""
    return isinstance(x, (torch.SymFloat, torch.SymInt))


def _tensor_of(number: Any) -> Any:
    is_whole = isinstance(number, torch.SymInt)
    return torch.scalar_tensor(number, dtype=torch.int64 if is_whole else None)
