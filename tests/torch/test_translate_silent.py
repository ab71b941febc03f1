"""Functions by which a translator could be wrong in silence: equal, or marked."""

from __future__ import annotations

import ast
import inspect

import pytest
import torch

from jaxfn.torch import translate
from jaxfn.torch._translate.port import compared

from . import lifelike, misleading_calls, misleading_writes
from .texts import functions

G = torch.Generator()
G.manual_seed(0)


def t(*shape):
    return torch.randn(*shape, generator=G)


def bits(*shape):
    return (t(*shape) > 0).float()


def spd(n):
    a = t(n, n)
    return a @ a.mT + n * torch.eye(n)


ARGS = {
    "IntDiv": lambda: [t(2, 3), 5],
    "Promote": lambda: [t(2, 3), 1],
    "NoneGrad": lambda: [t(2, 3), t(2, 3)],
    "Indexing": lambda: [t(4, 3), torch.tensor([0, 2, 2])],
    "DupWrite": lambda: [t(3, 3), torch.tensor([0, 2, 2])],
    "Einsum": lambda: [t(2, 3), t(2, 3)],
    "Clamps": lambda: [t(2, 3), 0.1],
    "Alpha": lambda: [t(2, 3), t(2, 3)],
    "GradAlias": lambda: [t(2, 3), t(2, 3)],
    "CondAlias": lambda: [t(2, 3), True],
    "StarArgs": lambda: [t(2, 3), t(2, 3)],
    "WhileLoop": lambda: [t(2, 3), 3],
    "GradReverse": lambda: [t(2, 3), 0.7],
    "Quantize": lambda: [t(2, 3), 4],
    "LSQ": lambda: [t(2, 3), torch.tensor([0.3]), 0.1, -4, 3],
    "SRUpdate": lambda: [t(2, 3) + 1, torch.tensor(0.9), 1.0],
    "VecQuant": lambda: [t(2, 4, 3), t(5, 3)],
    "SoftDTW": lambda: [t(2, 3).abs(), 1.0],
    "ChamferDistance": lambda: [t(2, 4, 3), t(2, 5, 3)],
    "MatrixSqrt": lambda: [spd(3)],
    "FocalLoss": lambda: [t(2, 3), bits(2, 3)],
    "Rotary": lambda: [t(2, 4), t(2, 2), t(2, 2)],
    "Checkpointed": lambda: [lifelike.run, t(2, 3), t(4, 3)],
    "RMSNorm": lambda: [t(2, 3), t(3), 1e-6],
}
EQUAL = """
ViewOfT Reshape2 IntDiv FloorDivNeg Unbiased WhereScalar NoneGrad Indexing DupWrite
Slices Roll Einsum Clamps Rounding Alpha Splits Uneven DtypeCheck Expand
IntMask Walrus MaskReads Builtins Hist KwDefault MultiOut Chained InplaceArg
TupleSwap ReluInplace ShapeInplace StarArgs Cumul Cumul2 SetterThenRead GradReverse
Quantize BinActive LSQ SRUpdate VecQuant SoftDTW ChamferDistance MatrixSqrt
Cond WhileLoop FocalLoss Rotary RMSNorm MedianOfNan
"""


SLOW = """
SoftDTW ChamferDistance VecQuant Splits Rounding Expand Hist FloorDivNeg WhereScalar
Indexing IntMask Promote Roll Einsum Alpha MatrixSqrt Rotary RMSNorm Cumul
"""


MISLEADING = {
    name: f"{those.HELPERS}\n{text}\n"
    for those in (misleading_calls, misleading_writes)
    for name, text in functions(those.FUNCTIONS).items()
}
LIFELIKE = [
    name
    for name, cls in vars(lifelike).items()
    if inspect.isclass(cls) and cls.__module__ == lifelike.__name__
]


@pytest.fixture
def load(module):
    """Give the class of a name, and arguments for it."""

    def load(name):
        made = module(MISLEADING[name]) if name in MISLEADING else lifelike
        return getattr(made, name), ARGS.get(name, lambda: [t(2, 3)])()

    return load


def kind_of(found):
    """What became of it.

    "equal" if all is translated and no row of the comparison differs; "partly" if so,
    but for marked lines that these arguments do not reach; "left" if a marked line is
    reached, or what it left undefined: an error, no value. "differs", where a row
    does, is never to be accepted; "draws" if not all could be compared.
    """
    report = found.comparison
    if report.ok:
        return "partly" if found.left else "equal"
    if found.left and all("the port raises" in row.message for row in report.failures):
        return "left"
    return "differs" if report.failures else "draws"


def unused_imports(source):
    """What a text imports and does not use."""
    tree = ast.parse(source)
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    bound = {(a.asname or a.name).split(".")[0] for n in imports for a in n.names}
    return bound - {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


@pytest.mark.full(unless=lambda name: name not in SLOW.split())
@pytest.mark.parametrize("name", [*MISLEADING, *LIFELIKE])
def test_it_is_equal_or_marked(name, load):
    cls, args = load(name)
    found = translate(cls, *args)
    assert not unused_imports(found.source)
    expected = "equal" if name in EQUAL.split() else "left"
    assert kind_of(found) == expected, str(found)


@pytest.mark.full
@pytest.mark.parametrize("name", MISLEADING)
def test_without_arguments_it_is_right_or_marked(name, load):
    cls, args = load(name)
    found = translate(cls)
    if not found.left:
        report = compared(found.source, cls, args)
        assert report.ok, str(report)
    else:
        assert all(left.reason for left in found.left)
