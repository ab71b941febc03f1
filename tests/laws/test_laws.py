"""Every cell equals plain JAX, or is refused as guides/troubleshooting.md says.

A normal run has an eighth of these cells: all pairs of a dozen transformations, each
for one engine, and a tenth of a seeded sample of depth 3. With `--full` the pairs run
for each engine, in one of its two styles by turns, and in the whole sample each
Function of the catalogue meets each transformation and each mode. With `--sample` the
pairs run for each engine in each style.
"""

import re

import numpy as np
import pytest

from tests.laws.catalogue import CASES, SINES
from tests.laws.cells import Cell, pairs, sample, some
from tests.laws.modes import MODES
from tests.laws.stacks import PAIRS, TRANSFORMATIONS
from tests.sizes import parametrize


def pytest_generate_tests(metafunc):
    one_in = 1 if metafunc.config.option.sample else 2
    parametrize(
        metafunc,
        "cell",
        normal=pairs(8) + some(sample()),
        full=lambda times: pairs(one_in) + sample(times),
    )


@pytest.mark.thinned(8)
def test_a_cell_is_right_or_refused(cell: Cell, record_property):
    expected = cell.expected()
    allowed = cell.may_be_refused()
    try:
        got = cell.got()
    except (TypeError, NotImplementedError, NameError) as error:
        if allowed is None or not re.search(allowed, str(error), re.DOTALL):
            raise
        record_property("law", "refused")
        return
    assert not cell.must_be_refused()
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert_close(a, b, tolerance(cell))
    record_property("law", "equal")


def tolerance(cell: Cell) -> float:
    """Relative to the biggest number of an array.

    Rules and plain autodiff round in another order. In bfloat16 a rounding is 2^-8, and
    a stack has a dozen; in float32 1e-7, and third derivatives cancel.
    """
    if cell.name.startswith("Bfloat16"):
        return 12 * 2.0**-8
    return 1e-9 if cell.mode == "x64" else 1e-4


def assert_close(a: np.ndarray, b: np.ndarray, tol: float) -> None:
    wide = np.complex128 if np.iscomplexobj(b) else np.float64
    size = np.abs(b.astype(wide)).max(initial=1e-2)
    np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=0, atol=tol * size)


# ---- the sample covers what it says


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_function_meets_each_transformation_and_mode(case):
    cells = [cell for cell in sample() if cell.name == case.name]
    assert all(cell.is_valid() for cell in cells)
    met = {name for cell in cells for name in cell.stack}
    possible = {t for t in TRANSFORMATIONS if Cell(case.name, (t,)).is_valid()}
    assert met == possible
    modes = {m for m in MODES if Cell(case.name, ("jit",), m).is_valid()}
    assert {cell.mode for cell in cells} == modes


def test_the_sample_has_depth_three():
    depths = [len(cell.stack) for cell in sample()]
    assert max(depths) == 3
    assert depths.count(3) > 0.9 * len(depths)


def test_there_are_all_pairs_of_a_dozen():
    per_function = {}
    for cell in pairs():
        per_function.setdefault(cell.name, set()).add(cell.stack)
    assert {len(stacks) for stacks in per_function.values()} == {144}
    assert len(per_function) == 8


def engine(name):
    return name.removesuffix("Combined").removesuffix("Separate")


def test_half_of_the_pairs_has_each_engine_and_in_each_style():
    cells = pairs(2)
    assert len({(engine(cell.name), *cell.stack) for cell in cells}) == len(cells)
    assert len(cells) == len(pairs()) / 2
    assert {cell.name for cell in cells} == {cell.name for cell in pairs()}


def test_a_normal_run_has_all_pairs():
    cells = pairs(8)
    met = {(engine(cell.name), *cell.stack) for cell in cells}
    assert len(met) == len(cells) == 144
    assert len({cell.stack for cell in cells}) == 144
    for place in (0, 1):
        met = {(cell.name, cell.stack[place]) for cell in cells}
        assert len(met) == len(SINES) * len(PAIRS)


def test_a_normal_run_has_each_transformation_mode_and_function():
    cells = some(sample())
    assert {cell.name for cell in cells} == {case.name for case in CASES}
    for t in TRANSFORMATIONS:
        names = {cell.name for cell in cells if t in cell.stack}
        assert names, t
    for mode in MODES:
        assert len({cell.name for cell in cells if cell.mode == mode}) >= 2, mode


def test_a_wrong_rule_shows():
    """The comparison is not blind: another slope is not equal."""
    right = Cell("WrongBackward", ("jit", "grad"))
    wrong = Cell("WrongJvp", ("jit", "grad"))
    with pytest.raises(AssertionError):
        assert_close(right.got()[0], wrong.expected()[0], tolerance(right))
