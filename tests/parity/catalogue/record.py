"""Records what real torch computes for the catalogue: `python -m tests.parity.record`.

The files hold, for each case and dtype, the outputs, the gradients, the second
derivatives (where torch's double backward is right) and the tangents (where there is a
jvp), as [dtype, shape, numbers]; complex numbers as pairs.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.catalogue import FAMILIES
from tests.parity.catalogue.case import Case

DATA = Path(__file__).parent / "data"
DTYPES = ("float32", "float64")
Quantities = dict[str, list[np.ndarray]]


def main() -> None:
    """Write the file of each family."""
    DATA.mkdir(exist_ok=True)
    for family, cases in FAMILIES.items():
        blocks = [f"{json.dumps(c.name)}: {_encoded_case(c)}" for c in cases]
        text = "{\n" + ",\n".join(blocks) + "\n}\n"
        (DATA / f"{family}.json").write_text(text)


def load(family: str) -> dict[str, dict[str, Quantities]]:
    """What was recorded: by case, dtype and quantity."""
    found = json.loads((DATA / f"{family}.json").read_text())
    return {
        case: {
            dtype: {q: [decode(x) for x in arrays] for q, arrays in quantities.items()}
            for dtype, quantities in by_dtype.items()
        }
        for case, by_dtype in found.items()
    }


def _encoded_case(case: Case) -> str:
    lines = []
    for dtype in DTYPES:
        found = measure(case, dtype)
        for quantity, arrays in found.items():
            text = json.dumps([encode(x) for x in arrays], separators=(",", ":"))
            lines.append((dtype, f'"{quantity}": {text}'))
    groups = [
        f'"{dtype}": {{\n' + ",\n".join(x for d, x in lines if d == dtype) + "\n}"
        for dtype in DTYPES
    ]
    return "{" + ", ".join(groups) + "}"


def encode(x: np.ndarray) -> list[Any]:
    """An array as JSON, in the fewest digits that give the same number back."""
    flat = np.atleast_1d(x).ravel()
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    numbers = [float(str(v)) if flat.dtype.kind == "f" else int(v) for v in flat]
    return [str(x.dtype), list(x.shape), numbers]


def decode(item: list[Any]) -> np.ndarray:
    """The array that `encode` wrote."""
    name, shape, numbers = item
    dtype = np.dtype(name)
    if dtype.kind == "c":
        part = np.zeros((), dtype).real.dtype
        return np.asarray(numbers, part).view(dtype).reshape(shape)
    return np.asarray(numbers, dtype).reshape(shape)


# ---- torch


def measure(case: Case, dtype: str) -> Quantities:
    """What torch computes for one case. Needs torch."""
    import torch

    f = case.torch(torch)
    xs = [_tensor(torch, x) for x in case.arrays(dtype)]
    diff = [x for x in xs if x.requires_grad]
    outs = _tensors(torch, f(*xs))
    smooth = [o for o in outs if o.is_floating_point() or o.is_complex()]
    cts = [_tensor(torch, ct) for ct in case.like(_numpy(smooth), "cotangents")]
    pairs = [(o, ct) for o, ct in zip(smooth, cts, strict=True) if o.requires_grad]
    options = {"allow_unused": True, "materialize_grads": True}
    grads = torch.autograd.grad(
        [o for o, _ in pairs],
        diff,
        [ct for _, ct in pairs],
        create_graph=case.second,
        **options,
    )
    found = {"outputs": _numpy(outs), "gradients": _numpy(grads)}
    if case.second:
        weights = [torch.tensor(w) for w in case.like(_numpy(diff), "weights")]
        total = sum(
            (w.conj() * g).real.sum() for w, g in zip(weights, grads, strict=True)
        )
        found["second"] = _numpy(
            torch.autograd.grad(total, [*diff, *cts], **options)
            if total.requires_grad
            else [torch.zeros_like(x) for x in (*diff, *cts)]
        )
    if case.forward:
        dots = [torch.tensor(t) for t in case.like(_numpy(diff), "tangents")]
        found["tangents"] = _numpy(_tangents(torch, f, xs, dots))
    return found


def _tangents(torch: Any, f: Any, xs: Sequence[Any], dots: Sequence[Any]) -> list[Any]:
    fwd, rest = torch.autograd.forward_ad, iter(dots)
    with warnings.catch_warnings(), fwd.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own imports
        duals = [
            fwd.make_dual(x.detach(), next(rest)) if x.requires_grad else x for x in xs
        ]
        outs = [fwd.unpack_dual(o) for o in _tensors(torch, f(*duals))]
        return [
            torch.zeros_like(o.primal) if o.tangent is None else o.tangent
            for o in outs
            if o.primal.is_floating_point() or o.primal.is_complex()
        ]


def _tensor(torch: Any, x: np.ndarray) -> Any:
    if x.dtype.kind == "i":  # torch indexes with 64 bits
        return torch.tensor(x.astype(np.int64))
    return torch.tensor(x, requires_grad=x.dtype.kind in "fc")


def _tensors(torch: Any, out: Any) -> list[Any]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, (tuple, list)):
        return [x for part in out for x in _tensors(torch, part)]
    return []


def _numpy(tensors: Sequence[Any]) -> list[np.ndarray]:
    return [t.detach().resolve_conj().numpy().copy() for t in tensors]


if __name__ == "__main__":
    main()
