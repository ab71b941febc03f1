"""Random programs of several Functions give what plain JAX gives.

`pytest tests/laws/test_programs.py --programs-seed 7 --programs 2000` runs the programs
7 to 2006, the same on every machine. One that fails is shown as small as it could be
made in half a minute, with the command that runs it alone.
"""

import jax
import numpy as np
import pytest

from tests.laws.draws import shrink
from tests.laws.programs import Program
from tests.sizes import parametrize

NORMAL, FULL = 6, 40
SECONDS = 30


def pytest_generate_tests(metafunc):
    option = metafunc.config.option
    first, n = option.programs_seed, option.programs or NORMAL
    parametrize(
        metafunc,
        "number",
        normal=range(first, first + n),
        full=lambda times: range(first, first + (option.programs or FULL * times)),
    )


def test_a_program_gives_what_plain_jax_gives(number):
    program = Program(str(number))
    problem = wrong(program)
    if problem is not None:
        pytest.fail(described(number, program, problem), pytrace=False)
    if number % 50 == 49:
        jax.clear_caches()


def wrong(program):
    """What is wrong with it (None: nothing): the kind, and the details."""
    expected = program.expected()
    try:
        got = program.got()
    except Exception as error:  # noqa: BLE001  (none is expected)
        return type(error).__name__, str(error)
    if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in expected]:
        return "types", f"got {got}\nexpected {expected}"
    if not all(map(close, got, expected)):
        return "numbers", f"got {got}\nexpected {expected}"
    return None


def close(a, b):
    """In double precision, relative to the biggest number of an array.

    Rules and plain autodiff round in another order: 1e-16 for each of hundreds of
    operations, and second derivatives cancel by some orders of magnitude. What is wrong
    differs in the first digits.
    """
    size = np.abs(b).max(initial=1e-2)
    return np.isfinite(b).all() and np.allclose(a, b, rtol=0, atol=1e-9 * size)


def described(number, program, problem):
    def fails(made):
        smaller = Program(made)
        try:
            found = wrong(smaller)
        except Exception:  # noqa: BLE001  (plain JAX refuses it)
            return None
        return smaller.made if found is not None and found[0] == problem[0] else None

    small = Program(shrink(program.made, fails, SECONDS))
    kind, details = wrong(small) or problem
    return (
        f"Program {number} is wrong: {kind}. Made smaller, it is\n\n{small}\n"
        f"and there {details}\n\nTo run it alone: python -m pytest "
        f"tests/laws/test_programs.py --programs-seed {number} --programs 1"
    )
