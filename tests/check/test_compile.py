"""What checks compile together, what they don't, and what they leave as it was."""

import gc
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxfn
from jaxfn._check.checks.programs import small_heap
from jaxfn._check.compile import Together
from tests.build import function, saving


def test_a_call_that_raises_does_not_disturb_those_beside_it():
    def refuse(x):
        raise ValueError("mine")

    def raise_later(x):
        def fail(_):
            raise ValueError("later")

        return jax.pure_callback(fail, jax.ShapeDtypeStruct((), x.dtype), x)

    x = jnp.float32(2)
    found = Together({"sin": (jnp.sin, (x,)), "refuse": (refuse, (x,))})
    assert ("sin" in found, "refuse" in found) == (True, False)
    assert found["sin"] == ((x,), jnp.sin(x))
    calls = {str(i): (lambda x, i=i: jnp.sin(x + i), (x,)) for i in range(5)}
    calls["3"] = (raise_later, (x,))
    found = Together(calls)
    assert [key for key in calls if key in found] == ["0", "1", "2", "4"]
    assert found["4"][1] == jnp.sin(x + 4)


@pytest.mark.full
def test_a_small_function_compiles_few_programs():
    code = """
import jax, jax.monitoring, jaxfn
from jaxfn._examples import ExpDerived
found = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: found.append(event)
)
x = jax.numpy.arange(3.0)
found.clear()
assert jaxfn.check(ExpDerived, x).ok
print(sum("backend_compile" in event for event in found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        # What other tests compiled would not be counted.
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    # Three programs, and its operations; it was 22 when each check compiled its own.
    assert 4 < int(done.stdout) <= 10


def is_compiled(x):
    return type(x).__name__ in ("DynamicJaxprTracer", "JitTracer")


@pytest.mark.parametrize("rule", ["value", "backward"])
@pytest.mark.full
def test_what_is_wrong_only_when_compiled_is_told_once(rule):
    """Other checks run such a function as it is, so they are not about that."""

    def twice_if_compiled(what, x):
        return 2 if rule == what and is_compiled(x) else 1

    wrong = function(
        generate_vmap_rule=True,
        forward=lambda x: jnp.sin(x) * twice_if_compiled("value", x),
        setup_context=saving(),
        backward=lambda ctx, g: (
            g * jnp.cos(*ctx.saved_tensors) * twice_if_compiled("backward", g)
        ),
        jvp=lambda ctx, t: t * jnp.cos(*ctx.saved_tensors),
    )
    report = jaxfn.check(wrong, jnp.array([0.3, -1.2]))
    assert [failed.check for failed in report.failures] == [f"{rule} under jit"]


@pytest.fixture
def heap():
    """pytest's own, which is frozen, afterwards as it was."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_the_heap_is_frozen_while_leaks_are_looked_for(heap):
    with small_heap():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_a_heap_that_is_frozen_stays_so(heap):
    gc.freeze()
    before = gc.get_freeze_count()
    made = [[] for _ in range(1000)]
    with small_heap():
        assert gc.get_freeze_count() < before + len(made)
    assert before - len(made) < gc.get_freeze_count() <= before
