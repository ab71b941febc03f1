"""Functions that are wrong on purpose, each in another way, for `check` to find.

`WRONG` has for each the rule that is wrong and the name of a check that must fail.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxfn
from tests.build import function, saving


class Wrong(NamedTuple):
    """A wrong Function."""

    rule: str
    check: str
    fun: Any
    args: tuple[Any, ...]


WRONG: dict[str, Wrong] = {}

# Found by the same check of the same rule as another that a normal run has.
ALIKE = {
    *("Sign", "Transposed", "MissingTerm", "WrongArgument", "MeanForSum", "RowForSum"),
    *("WrongOutput", "SwappedNeeds", "StoppedCotangent", "JvpJacobian", "JvpNone"),
    *("JvpMissingTerm", "VmapFactor", "VmapIgnoresInDims", "VmapFirstOnly"),
    *("MissingArgument", "WrongCount", "IgnoresCotangent", "JvpIgnoresTangent"),
    *("OneElement", "SavedInShort", "JvpAlone", "VmapOutDim"),
}

V = np.array([0.7, -1.3, 0.4], np.float32)
W = np.array([1.1, 0.6, -0.9], np.float32)
A = np.array([[0.3, 1.2, -0.5], [0.8, -0.2, 1.9], [0.1, 0.4, -1.1]], np.float32)
C = np.array([0.3 + 1j, -1.2 - 0.5j, 2j], np.complex64)


def add(name, rule, check, *args, base=None, **members):
    """Register a Function in the separate style that saves its inputs."""
    members.setdefault("setup_context", saving())
    fun = function(name, **members) if base is None else base
    WRONG[name] = Wrong(rule, check, fun, args)


def saved(ctx):
    return ctx.saved_tensors


def times(x, y):
    return x * y


def right_times(ctx, g):
    x, y = ctx.saved_tensors
    return g * y, g * x


def right_sin(ctx, g):
    return g * jnp.cos(ctx.saved_tensors[0])


def right_sin_jvp(ctx, t):
    return t * jnp.cos(ctx.saved_tensors[0])


# ---- backward

add(
    "Factor", "backward", "backward", V,
    forward=jnp.sin, backward=lambda ctx, g: 2 * right_sin(ctx, g),
)  # fmt: skip
add(
    "SlightFactor", "backward", "backward", V,
    forward=jnp.sin, backward=lambda ctx, g: 1.0001 * right_sin(ctx, g),
)  # fmt: skip
add(
    "Sign", "backward", "backward", V,
    forward=jnp.cos, backward=lambda ctx, g: g * jnp.sin(saved(ctx)[0]),
)  # fmt: skip
add(
    "Transposed", "backward", "backward", A, V,
    forward=lambda a, x: a @ x,
    backward=lambda ctx, g: (jnp.outer(g, saved(ctx)[1]), saved(ctx)[0] @ g),
)  # fmt: skip
add(
    "MissingTerm", "backward", "backward", V,
    forward=lambda x: x * jnp.sin(x), backward=lambda ctx, g: right_sin(ctx, g) * V,
)  # fmt: skip
add(
    "WrongArgument", "backward", "backward", V, W,
    forward=times, backward=lambda ctx, g: right_times(ctx, g)[::-1],
)  # fmt: skip
add(
    "MissingArgument", "backward", "backward", V, W,
    forward=times, backward=lambda ctx, g: (right_times(ctx, g)[0], None),
)  # fmt: skip
add(
    "MeanForSum", "backward", "backward", V, A,
    forward=lambda b, a: a + b, backward=lambda ctx, g: (g.mean(0), g),
)  # fmt: skip
add(
    "RowForSum", "backward", "backward", V, A,
    forward=lambda b, a: a + b, backward=lambda ctx, g: (g[0], g),
)  # fmt: skip
add(
    "IgnoresCotangent", "backward", "backward", V,
    forward=jnp.sin, backward=lambda ctx, g: jnp.cos(saved(ctx)[0]),
)  # fmt: skip
add(
    "OneElement", "backward", "backward", A,
    forward=jnp.exp,
    backward=lambda ctx, g: (g * jnp.exp(saved(ctx)[0])).at[1, 2].set(0),
)  # fmt: skip
add(
    "MissingConjugate", "backward", "backward", C, C[::-1].copy(),
    forward=times, backward=right_times,
)  # fmt: skip
add(
    "WrongOutput", "backward", "backward", V,
    forward=lambda x: (jnp.sin(x), x * x),
    backward=lambda ctx, g, h: right_sin(ctx, h) + 2 * saved(ctx)[0] * g,
)  # fmt: skip
add(
    "Clipped", "backward", "backward is linear", V,
    forward=lambda x: x * 1, backward=lambda ctx, g: jnp.clip(g, -5, 5),
)  # fmt: skip
add(
    "Constant", "backward", "backward of zero", V,
    forward=lambda x: 3 * x,
    backward=lambda ctx, g: jnp.where(jnp.any(g != 0), 3 * g, 1.0),
)  # fmt: skip


def _first_only(ctx, g):
    x, y = ctx.saved_tensors
    if ctx.needs_input_grad[0]:
        return g * y, g * x
    return None, None


def _swapped_needs(ctx, g):
    x, y = ctx.saved_tensors
    need_x, need_y = ctx.needs_input_grad
    return (g * y if need_y else None), (g * x if need_x else None)


add(
    "ForgottenNeeds", "backward", "backward of subsets", V, W,
    forward=times, backward=_first_only,
)  # fmt: skip
add(
    "SwappedNeeds", "backward", "backward of subsets", V, W,
    forward=times, backward=_swapped_needs,
)  # fmt: skip


def _unmaterialized(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _needs_both(ctx, g, h):
    if g is None or h is None:
        return None
    return right_sin(ctx, g) + 2 * h


add(
    "DropsUnused", "backward", "backward, unused outputs", V,
    forward=lambda x: (jnp.sin(x), 2 * x),
    setup_context=_unmaterialized, backward=_needs_both,
)  # fmt: skip


def _kept_short(ctx, inputs, output):
    ctx.save_for_backward(inputs[0].astype(jnp.bfloat16))


add(
    "SavedInShort", "backward", "backward", V,
    forward=jnp.sin, setup_context=_kept_short, backward=right_sin,
)  # fmt: skip

_runs = np.random.default_rng(0)
add(
    "NotRepeatable", "backward", "backward repeats", V,
    forward=jnp.sin,
    backward=lambda ctx, g: right_sin(ctx, g) * (1 + 1e-7 * float(_runs.random())),
)  # fmt: skip
add(
    "NumPyInBackward", "backward", "backward under jit", V,
    forward=jnp.sin,
    backward=lambda ctx, g: jnp.asarray(np.asarray(g) * np.cos(saved(ctx)[0])),
)  # fmt: skip
add(
    "WrongShape", "backward", "backward", V,
    forward=jnp.sin, backward=lambda ctx, g: right_sin(ctx, g)[:2],
)  # fmt: skip
add(
    "WrongCount", "backward", "backward", V, W,
    forward=times, backward=lambda ctx, g: right_times(ctx, g)[0],
)  # fmt: skip
add(
    "StoppedSecond", "backward", "backward of backward", V,
    forward=jnp.sin,
    backward=lambda ctx, g: g * jnp.cos(lax.stop_gradient(saved(ctx)[0])),
)  # fmt: skip
add(
    "StoppedCotangent", "backward", "backward of backward", V,
    forward=lambda x: 2 * x, backward=lambda ctx, g: 2 * lax.stop_gradient(g),
)  # fmt: skip


def _batch_wrong(scale):
    @jax.custom_batching.custom_vmap
    def cos(x):
        return jnp.cos(x)

    @cos.def_vmap
    def _(size, batched, x):
        return scale * jnp.cos(x), True

    return cos


_cos = _batch_wrong(2)
add(
    "BatchedBackward", "backward", "vmap of backward", V,
    forward=jnp.sin, backward=lambda ctx, g: g * _cos(saved(ctx)[0]),
)  # fmt: skip

# ---- jvp

BOTH = {"forward": jnp.sin, "backward": right_sin}
add("JvpFactor", "jvp", "jvp", V, jvp=lambda ctx, t: 3 * right_sin_jvp(ctx, t), **BOTH)
add("JvpJacobian", "jvp", "jvp", V, jvp=lambda ctx, t: jnp.diag(t), **BOTH)
add("JvpNone", "jvp", "jvp", V, jvp=lambda ctx, t: None, **BOTH)
add(
    "JvpIgnoresTangent", "jvp", "jvp", V,
    jvp=lambda ctx, t: jnp.cos(saved(ctx)[0]), **BOTH,
)  # fmt: skip
add(
    "JvpMissingTerm", "jvp", "jvp", V, W,
    forward=times, backward=right_times, jvp=lambda ctx, s, t: s * saved(ctx)[1],
)  # fmt: skip
add(
    "JvpNotLinear", "jvp", "jvp is linear", V,
    forward=lambda x: x * 1, backward=lambda ctx, g: g,
    jvp=lambda ctx, t: jnp.clip(t, -5, 5),
)  # fmt: skip


def _unmaterialized_jvp(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


def _jvp_of_both(ctx, s, t):
    x, y = ctx.saved_tensors
    return None if s is None or t is None else s * y + x * t


add(
    "JvpForgetsConstants", "jvp", "jvp of subsets", V, W,
    forward=times, setup_context=_unmaterialized_jvp,
    backward=lambda ctx, g: right_times(ctx, g), jvp=_jvp_of_both,
)  # fmt: skip
add(
    "JvpStopped", "jvp", "backward of jvp", V,
    jvp=lambda ctx, t: t * jnp.cos(lax.stop_gradient(saved(ctx)[0])), **BOTH,
)  # fmt: skip
add(
    "JvpAlone", "jvp", "jvp", V,
    forward=jnp.sin, jvp=lambda ctx, t: 2 * right_sin_jvp(ctx, t),
)  # fmt: skip

# ---- vmap

MATMUL = {
    "forward": lambda a, b: a @ b,
    "backward": lambda ctx, g: (g @ saved(ctx)[1].T, saved(ctx)[0].T @ g),
}


def _vmap_ignoring_dims(info, in_dims, a, b):
    return a @ b, 0


def _vmap_swapped(info, in_dims, a, b):
    a, b = (
        x if d == 0 else jnp.broadcast_to(x, (info.batch_size, *x.shape))
        for x, d in zip((a, b), in_dims, strict=True)
    )
    return jnp.swapaxes(a, 1, 2) @ b, 0


add("VmapFactor", "vmap", "vmap", V, vmap=lambda i, d, x: (2 * jnp.sin(x), 0), **BOTH)
add("VmapSwapped", "vmap", "vmap", A, A[::-1].copy(), vmap=_vmap_swapped, **MATMUL)
add(
    "VmapOutDim", "vmap", "vmap", A,
    forward=jnp.sin, backward=right_sin, vmap=lambda i, d, x: (jnp.sin(x), 1),
)  # fmt: skip
add(
    "VmapIgnoresInDims", "vmap", "vmap", V, W,
    forward=times, backward=right_times,
    vmap=lambda info, in_dims, x, y: (x * y.reshape(x.shape), 0),
)  # fmt: skip
add(
    "VmapFirstOnly", "vmap", "vmap", V,
    vmap=lambda i, d, x: (jnp.broadcast_to(jnp.sin(x[0]), x.shape), 0), **BOTH,
)  # fmt: skip

# ---- forward

_calls = np.random.default_rng(0)
add(
    "ForwardNotRepeatable", "forward", "value", V,
    forward=lambda x: x + float(_calls.random()), backward=lambda ctx, g: g,
)  # fmt: skip
add(
    "NumPyInForward", "forward", "value under jit", V,
    forward=lambda x: jnp.asarray(np.sin(np.asarray(x))), backward=right_sin,
)  # fmt: skip
add("Raises", "forward", "value", V, forward=lambda x: x @ A[:2], backward=right_sin)
add(
    "LowPrecisionOverflow", "forward", "low precision", V,
    forward=lambda x: jnp.log(jnp.exp(x * 1) + 1e-10) if x.dtype != jnp.bfloat16
    else x * jnp.nan,
    backward=lambda ctx, g: g,
)  # fmt: skip


def _leaking(always):
    """Keeps what it saw on the class; or only where nothing is differentiated."""

    def forward(ctx, x):
        if always or not ctx.needs_input_grad[0]:
            fun.seen = x
        ctx.save_for_backward(x)
        return jnp.sin(x)

    fun = function("Leaks", forward=forward, backward=right_sin)
    return fun


add("Leaks", "forward", "leaks", V, base=_leaking(always=True))
add("LeaksWithoutDerivative", "forward", "leaks", V, base=_leaking(always=False))


# ---- other forms


@jax.custom_vjp
def _square(x):
    return x * x


_square.defvjp(lambda x: (x * x, x), lambda x, g: (x * g,))
add("CustomVjp", "backward", "backward", V, base=_square)


@jaxfn.custom_function
def _leaks(x):
    _leaks.seen = x  # fwd does not
    return x**3


_leaks.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
add("DecoratedLeaks", "forward", "leaks", V, base=_leaks)


@jaxfn.custom_function
def _cube(x):
    return x**3


_cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
_cube.defjvp(lambda p, t: (_cube(*p), 2 * p[0] ** 2 * t[0]))
add("Decorated", "jvp", "jvp", V, base=_cube)
