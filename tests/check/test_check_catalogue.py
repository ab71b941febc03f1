"""`check` on the catalogues of the laws and of parity: no right Function fails, every
wrong one does.

A normal run has a few of them, which take 4 seconds each; `--full` has all but the
slowest, and `--sample` these too.
"""

import pytest

import jaxfn
from tests.check.purposes import PURPOSES, Purpose
from tests.laws.catalogue import BY_NAME as LAWS
from tests.parity.catalogue import FAMILIES
from tests.sizes import only, parametrize

ON_PURPOSE = {"StraightThrough"}  # the derivative is not that of the value
WRONG = {
    "WrongBackward": ("backward",),
    "WrongJvp": ("backward", "jvp"),  # JAX transposes it, which the callable hides
    "WrongDerived": ("backward", "jvp"),
    "WrongBoth": ("backward", "jvp"),
}
# JAX traces their rules outside of the vmap whose axis they name (test_refusals).
COLLECTIVE = {name for name, case in LAWS.items() if case.collective}
RIGHT = [name for name in LAWS if name not in {*WRONG, *COLLECTIVE}]
PARITY = {case.name: case for cases in FAMILIES.values() for case in cases}
# 10 s to 40 s each, of compiling loops and of callbacks.
SLOW = {
    *("leaky_neuron", "alignment", "linear_cross_entropy", "selective_scan"),
    *("ode_adjoint", "fixed_point", "quadratic_program", "attention"),
    *("DB-05", "DB-06"),
}
FEW = ("ExpSavesItsOutput",)
FEW_OF_PARITY = ("fast_sigmoid",)


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "law", FEW, lambda times: RIGHT)
    slow = SLOW if metafunc.config.option.sample is None else {}
    parametrize(
        metafunc,
        "twin",
        FEW_OF_PARITY,
        lambda times: [name for name in PARITY if name not in slow],
    )


def test_a_function_of_the_laws_passes(law):
    case = LAWS[law]
    reference = case.reference if law in ON_PURPOSE else None
    report = jaxfn.check(case.call, *case.args(), reference=reference)
    assert report.ok, str(report)


def test_a_function_of_the_parity_catalogue_passes(twin):
    case, told = PARITY[twin], PURPOSES.get(twin, Purpose(""))
    report = jaxfn.check(
        told.call or case.jax,
        *case.arrays("float32"),
        reference=told.reference,
        surrogate=told.surrogate,
        skip=told.skip,
        low_precision=told.low_precision,
    )
    assert report.ok, str(report)
    ran = {r.check for r in report.results if r.status == "ok"}
    assert {"value", "backward repeats"} <= ran, str(report)
    assert ("backward" in ran) != told.surrogate
    assert told.skip or {"value under jit", "vmap", "vmap of backward", "scan"} <= ran


def test_each_purpose_is_of_a_function_of_the_catalogue():
    assert set(PURPOSES) <= set(PARITY)


@pytest.mark.parametrize(
    "name",
    only(["round", "reverse", "batch_norm", "inherited"], lambda x: x != "batch_norm"),
)
def test_what_differs_on_purpose_fails_if_check_is_not_told(name):
    case = PARITY[name]
    report = jaxfn.check(case.jax, *case.arrays("float32"))
    assert report.wrong_rules == ("backward",), str(report)


@pytest.mark.parametrize("name", sorted(ON_PURPOSE))
@pytest.mark.full
def test_what_differs_on_purpose_fails_without_a_reference(name):
    report = jaxfn.check(LAWS[name].call, *LAWS[name].args())
    assert "backward" in report.wrong_rules


@pytest.mark.full
def test_bfloat16_as_it_is_given():
    case = LAWS["Bfloat16Swish"]
    report = jaxfn.check(case.call, *case.args(), precision="given")
    assert report.ok, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_fails(name):
    assert jaxfn.check(LAWS[name].call, *LAWS[name].args()).wrong_rules == WRONG[name]
