"""An argument's walk through the rooms: on the way to forward, and on the way back.

A room is entered when a function of it is called while none of it is at work. So what
JAX, the user's rules or a lower room call back is part of the same stay.
"""

import collections
import pathlib
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxfn
from tests.wrong import BACKWARD, JVP, Combined, Separate

ROOT = pathlib.Path(jaxfn.__file__).parent
ROOMS = ("_function", "_methods", "_engine")  # `_base` is what all stand on
X = jnp.float32(2)


class Walk:
    """Counts how often each room is entered."""

    def __init__(self):
        self.entered = collections.Counter()

    def _room(self, frame):
        parts = pathlib.Path(frame.f_code.co_filename).parts[len(ROOT.parts) :]
        inside = frame.f_code.co_filename.startswith(str(ROOT))
        return parts[0] if inside and parts[0] in ROOMS else None

    def __call__(self, frame, event, _):
        room = self._room(frame) if event == "call" else None
        above = frame.f_back
        while room is not None and above is not None:
            if self._room(above) == room:
                return
            above = above.f_back
        if room is not None:
            self.entered[room] += 1


def rooms_entered(run):
    walk, before = Walk(), sys.getprofile()
    sys.setprofile(walk)
    try:
        run()
    finally:
        sys.setprofile(before)
    return dict(walk.entered)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return BACKWARD * jnp.cos(x) * grad


def jvp(ctx, t):
    (x,) = ctx.saved_tensors
    return JVP * jnp.cos(x) * t


RULES = {
    "backward": {"backward": staticmethod(backward)},
    "jvp": {"jvp": staticmethod(jvp)},
    "both": {"backward": staticmethod(backward), "jvp": staticmethod(jvp)},
    "derived": {"backward": staticmethod(backward), "generate_jvp_rule": True},
}
styles = pytest.mark.parametrize("style", [Combined, Separate])


@styles
@pytest.mark.parametrize("engine", RULES)
def test_a_gradient_goes_through_each_room_and_back(engine, style):
    f = type("F", (style,), RULES[engine]).apply
    entered = rooms_entered(lambda: jax.grad(f)(X))
    # With a jvp alone JAX transposes what the jvp computed: nothing is entered again.
    back = 0 if engine == "jvp" else 1
    assert entered == {"_function": 1, "_methods": 1 + back, "_engine": 1 + back}


@styles
@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
def test_a_tangent_goes_through_each_room_once(engine, style):
    f = type("F", (style,), RULES[engine]).apply
    entered = rooms_entered(lambda: jax.jvp(f, (X,), (X,)))
    assert entered == dict.fromkeys(ROOMS, 1)


@styles
def test_a_plain_call_meets_no_engine(style):
    f = type("F", (style,), RULES["both"]).apply
    assert rooms_entered(lambda: f(X)) == {"_function": 1, "_methods": 1}
