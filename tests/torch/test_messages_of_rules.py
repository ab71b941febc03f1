# ruff: noqa: UP031  (the old way to format is what is tested)
"""Messages and warnings of rules that format values, which a trace has not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfn.torch import TorchRefusal, from_torch

from .classes import torch_class

X = jnp.float32([1, 2])


def checking(check):
    def forward(ctx, x):
        check(x)
        return x * 2

    return from_torch(torch_class(forward, lambda ctx, g: 3 * g))


def asserts(x):
    assert x.sum() > 0, "bad: %f" % x.sum().item()


def asserts_on_lines(x):
    assert x.sum() > 0, (
        "too small: %g and %d in %s"
        % (x.min().item(), x.argmin().item(), "x")
    )  # fmt: skip


def asserts_a_tensor(x):
    assert x.sum() > 0, "bad: %.3f" % x.sum()


def raises(x):
    low = x.min().item()
    if low < 0:
        raise ValueError(f"{low:g} of " + "%5.1f" % low + str(x.dtype))


def whole(x):
    n = (x < 0).sum().item()
    if n > 1:
        raise ValueError("%d of them, %i, %x" % (n, n, n))


@pytest.mark.parametrize(
    "check", [asserts, asserts_on_lines, asserts_a_tensor, raises, whole]
)
def test_a_message_that_formats_a_value(check):
    f = checking(check)
    for run in (f.apply, jax.jit(f.apply)):
        np.testing.assert_array_equal(run(X), 2 * X)
        grad = jax.grad(lambda x, run=run: run(x).sum())
        np.testing.assert_array_equal(grad(X), [3, 3])
    with pytest.raises((AssertionError, ValueError)):
        f.apply(-X)


def asks_a_text(x):
    assert float("%.1f" % x.sum().item()) > 0, "beside a message, on its line"


def asks_a_formatted_text(x):
    # fmt: off
    if float(f"{x.sum().item():.1f}") < 0: raise ValueError("on one line")  # noqa: E701
    # fmt: on


@pytest.mark.parametrize(
    "check",
    [
        asks_a_text,
        asks_a_formatted_text,
        lambda x: x.new_zeros(2)[int(x.sum().item()) % 2],
        lambda x: float(x.sum()) % 2,
        lambda x: int(x.sum() % 2),
        lambda x: float("%.1f" % x.sum().item()),
        lambda x: float(f"{x.sum().item():.1f}"),
        lambda x: {"3.0": 1}.get("%.1f" % x.sum(), 2),
    ],
)
def test_other_uses_of_a_value_are_refused(check):
    with pytest.raises(TorchRefusal, match="depends on the value of a tensor"):
        checking(check).apply(X)


def test_a_warning_of_a_branch_is_not_shown_while_tracing():
    def warns(x):
        warnings.warn("always", stacklevel=1)
        if x.sum() < 0:
            warnings.warn("negative: %g" % x.sum().item(), stacklevel=1)

    with pytest.warns(UserWarning, match="always") as caught:
        np.testing.assert_array_equal(checking(warns).apply(X), 2 * X)
    assert {str(w.message) for w in caught} == {"always"}
    assert {w.filename for w in caught} == {__file__}
