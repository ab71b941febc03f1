"""The Functions of PyTorch's own tests (torch.testing._internal.autograd_function_db).

torch's side is the original. Three originals are wrong on purpose or by accident: there
the comment says what stands in.
"""

import importlib
import types

import numpy as np
from jax import lax

from tests.parity.catalogue.case import Case, Maker, normal
from tests.parity.catalogue.function_db_bodies import (
    CubeGenVmap,
    ForwardHasDefaultArgs,
    MulGenVmap,
    NumpyCube,
    NumpyCubeNotComposable,
    NumpyExp,
    NumpyMul,
    NumpySort,
    NumpyTake,
    ScaleGradGenVmap,
    Select,
    SelectGenVmap,
    SortGenVmap,
    TakeGenVmap,
    ZeroGradientsGenVmap,
)


def original(name, *statics):
    """A maker of torch's own Function of that name."""

    def make(torch):
        function = getattr(_module(), name)
        return lambda *xs: function.apply(*xs, *statics)

    return make


def _module() -> types.ModuleType:
    return importlib.import_module("torch.testing._internal.autograd_function_db")


def torch_exp(torch):
    """In place, so of a copy."""
    return lambda x: _module().NumpyExp_.apply(x.clone())


def torch_not_composable(torch):
    """torch's backward forgets to multiply by the gradient: NumpyCube does not."""

    def cube(x):
        value, array = _module().NumpyCubeNotComposable.apply(x)
        return _module().NumpyCube.apply(x)[0], value.detach(), torch.tensor(array)

    return cube


def not_composable_and_value(x):
    value, array = NumpyCubeNotComposable.apply(x)
    return value, lax.stop_gradient(value), array


def torch_sort(torch):
    """torch's values are not sorted: those of SortGenVmap are, and are the same."""

    def sort(x):
        _, order, ranks = _module().NumpySort.apply(x, 1)
        return _module().SortGenVmap.apply(x, 1)[0], order, ranks

    return sort


def torch_cube(torch):
    """torch's backward is wrong (21 for 3 at 1): NumpyCube is the same function. Its
    values and tangents are right."""

    def cube(x):
        values = [v.detach() for v in _module().CubeGenVmap.apply(x)]
        return _module().NumpyCube.apply(x), values

    return cube


def cube_and_values(x):
    return CubeGenVmap.apply(x), [lax.stop_gradient(v) for v in CubeGenVmap.apply(x)]


def permutations(*shape: int, inverse: bool) -> Maker:
    """Orders of the last axis, or what undoes them: two makers of the same draw."""

    def make(rng: np.random.Generator) -> np.ndarray:
        order = np.argsort(np.random.default_rng(1).normal(size=shape), -1)
        return (np.argsort(order, -1) if inverse else order).astype(np.int32)

    return make


X, ROWS = (normal(3),), (normal(3, 5),)
PAIR = (normal(4), normal(3, 4))
TAKE = (
    normal(3, 5),
    permutations(3, 5, inverse=False),
    permutations(3, 5, inverse=True),
)


def like_the_original(name, function, inputs, *statics):
    """A case of a Function that has the name of torch's."""
    theirs = original(function.__name__, *statics)
    ours = lambda *xs: function.apply(*xs, *statics)  # noqa: E731
    return Case(name, ours, theirs, inputs, forward=True)


CASES = [
    like_the_original("DB-01", NumpyCube, X),
    # A copy, as x is used up.
    Case("DB-02", lambda x: NumpyExp.apply(1 * x), torch_exp, X, forward=True),
    like_the_original("DB-03", NumpyMul, PAIR),
    # once_differentiable
    Case("DB-04", not_composable_and_value, torch_not_composable, X, second=False),
    Case("DB-05", lambda x: NumpySort.apply(x, 1), torch_sort, ROWS, forward=True),
    like_the_original("DB-06", NumpyTake, TAKE, 1),
    like_the_original("DB-07", Select, ROWS, 2),
    Case("DB-08", cube_and_values, torch_cube, X, forward=True),
    like_the_original("DB-09", MulGenVmap, PAIR),
    like_the_original("DB-10", SortGenVmap, ROWS, 1),
    like_the_original("DB-11", TakeGenVmap, TAKE, 1),
    like_the_original("DB-12", SelectGenVmap, ROWS, 2),
    like_the_original("DB-13", ScaleGradGenVmap, X),
    like_the_original("DB-14", ZeroGradientsGenVmap, PAIR),
    like_the_original("DB-15", ForwardHasDefaultArgs, ROWS),
]
