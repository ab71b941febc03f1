"""`check` on the laws' catalogue: no right Function fails, every wrong one does."""

import pytest

import jaxfn
from tests.laws.catalogue import CASES

ON_PURPOSE = {
    "StraightThrough",  # the derivative is not that of the value
    "SortWithIndices",  # an output that moves is marked non-differentiable
}
WRONG = {
    "WrongBackward": ("backward",),
    "WrongJvp": ("backward", "jvp"),  # JAX transposes it, which the callable hides
    "WrongDerived": ("backward", "jvp"),
    "WrongBoth": ("backward", "jvp"),
}
RIGHT = [c for c in CASES if c.name not in WRONG and not c.collective]


@pytest.mark.parametrize("case", RIGHT, ids=[c.name for c in RIGHT])
def test_a_right_function_passes(case):
    reference = case.reference if case.name in ON_PURPOSE else None
    report = jaxfn.check(case.call, *case.args(), reference=reference)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", sorted(ON_PURPOSE))
def test_what_differs_on_purpose_fails_without_a_reference(name):
    (case,) = [c for c in CASES if c.name == name]
    report = jaxfn.check(case.call, *case.args())
    assert "backward" in report.wrong_rules


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_fails(name):
    (case,) = [c for c in CASES if c.name == name]
    assert jaxfn.check(case.call, *case.args()).wrong_rules == WRONG[name]
