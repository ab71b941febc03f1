"""The comparison sees differences: a row can fail."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from .core import (
    Failure,
    Raises,
    Warns,
    attempt,
    compare,
    describe,
    differ,
    first_sentence,
    to_json,
)

LONG = "torch's words. `MyF.backward` must return something else: return that."


def failing(error):
    def f():
        raise error

    return attempt(f)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.float32(1), np.float32(1.0001)),
        (np.float32(1), np.float16(1)),
        (np.ones(1), np.ones(())),
        (np.ones(2), [1.0, 1.0]),
        (1, 1.0),
        (True, 1),
        (None, np.zeros(1)),
        ((1,), [1]),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (1j, 2j),
        ("a", "b"),
    ],
)
def test_values_that_differ(ours, theirs):
    assert differ(describe(ours), describe(theirs))
    assert not differ(describe(ours), describe(ours))


def test_an_error_has_torchs_sentence_and_type_and_goes_on():
    theirs = to_json(failing(RuntimeError("torch's words. More of them.")))
    assert theirs == {"$error": "RuntimeError", "says": "torch's words"}
    compare(failing(RuntimeError(LONG)), theirs)
    compare(failing(NotImplementedError(LONG)), theirs)  # a RuntimeError
    for error in (
        TypeError(LONG),
        RuntimeError("other words: `MyF.backward` is wrong in some other way"),
        RuntimeError("torch's words"),
        RuntimeError("torch's words. Something is wrong, but nobody says where."),
        RuntimeError("torch's words. (`MyF.backward`)"),
    ):
        with pytest.raises(AssertionError):
            compare(failing(error), theirs)
    with pytest.raises(AssertionError):
        compare(describe(jnp.ones(1)), theirs)
    with pytest.raises(AssertionError):
        compare(failing(RuntimeError(LONG)), describe(1))
    compare(failing(RuntimeError("torch's words")), theirs, own_words=True)


def test_expected_errors_and_warnings():
    def warned():
        import warnings

        warnings.warn("old name", DeprecationWarning, stacklevel=1)
        return 1

    seen = attempt(warned)
    compare(seen, Warns(1, DeprecationWarning, "old"))
    compare(seen, to_json(seen), own_words=True)
    for wrong in (
        Warns(2, DeprecationWarning, "old"),
        Warns(1, UserWarning, "old"),
        Warns(1, DeprecationWarning, "new"),
        1,
    ):
        with pytest.raises(AssertionError):
            compare(seen, wrong)
    with pytest.raises(AssertionError):
        compare(1, to_json(seen))
    compare(failing(ValueError("a b")), Raises(ValueError, "b", "a"))
    for wrong in (Raises(KeyError, "a"), Raises(ValueError, "a", "c")):
        with pytest.raises(AssertionError):
            compare(failing(ValueError("a b")), wrong)


def test_first_sentences_are_the_same_in_each_run():
    assert first_sentence("a.b c. More") == "a.b c"
    assert first_sentence("x.<locals>.F.forward() missing\nmore") == (
        "F.forward() missing"
    )
    assert first_sentence("<class 'a.b.<locals>.F'> is") == "<class 'F'> is"
    assert first_sentence("One (Triggered internally at /x/y.cpp:3.)") == "One"
    assert Failure(ValueError("a")).message == "a"
