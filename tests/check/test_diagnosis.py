"""What a wrong array looks like, in words."""

import numpy as np
import pytest

from jaxfn._check.diagnosis import likeness

A = np.array([[0.3, 1.2, -0.5], [0.8, -0.2, 1.9], [0.1, 0.4, -1.1]])
C = np.array([0.3 + 1j, -1.2 - 0.5j, 2j])
TURNED = A * np.array([1, -1, -1])


@pytest.mark.parametrize(
    ("got", "expected", "text"),
    [
        (2 * A, A, "the whole value is 2 times the expected one"),
        (-A, A, "the whole value is the expected one with the sign turned"),
        (A / 9, A, "the whole value is 0.1111 times the expected one (1/9)"),
        (1.000001 * A, A, "the whole value is 1.000001 times the expected one"),
        (1j * C, C, "the whole value is (0+1j) times the expected one"),
        (0 * A, A, "the whole value is zero"),
        (C.conj(), C, "the whole value is the conjugate of the expected one"),
        (A.T, A, "the whole value is the transpose of the expected one"),
        (A[::-1], A, "the whole value is the expected one reversed along axis 0"),
        (A + 0.5, A, "every element is off by 0.5"),
        (TURNED, A, "the sign is turned at [1, 2] of axis 1"),
        (A[:2].T, A[:2], "the shape of the value is that of its transpose"),
        (A**2, A, ""),
        (A[:2], A, ""),
        (A * np.nan, A, ""),
        (A[:0], A[:0], ""),
    ],
)
def test_likeness(got, expected, text):
    assert likeness(got, expected, "value") == text
