"""The Functions that the laws are about, each with the same mathematics in plain JAX.

Most forwards compute on `stop_gradient` of their inputs: a plain derivative of the body
would be zero, so a rule that is lost anywhere shows in the numbers. Where a saved
intermediate must keep its own derivative, forward computes on its inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxfn
from tests.build import function, in_style, keep, nothing, rules_of

Flat = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A Function to be called on arrays.

    Attributes:
        name: of the case.
        call: from arrays to a pytree of arrays, through the Function.
        function: the class.
        wrap: makes `call` of its apply, or of what stands for it.
        reference: the same in plain JAX; autodiff of it is what the rules must give.
        args: makes the arrays; floats of the default width.
        forward_mode: has the Function a jvp, its own or derived?
        linear: is it linear in its only argument?
        transposable: may JAX transpose the call itself? (It refuses a custom_vjp and a
            custom_vmap.)
        in_forward_mode: the reference where only forward mode is used, for rules that
            differ on purpose.
        math: the name of the reference; cases with the same share it.
        host: does forward call back into Python?
        random: is an argument a key?
        collective: do the rules talk over an axis of a vmap? JAX traces rules late,
            outside of the vmap, in derivatives of derivatives.
    """

    name: str
    call: Flat
    function: Any
    wrap: Callable[[Flat], Flat]
    reference: Flat
    args: Callable[[], tuple[Any, ...]]
    forward_mode: bool
    linear: bool = False
    transposable: bool = True
    in_forward_mode: Flat | None = None
    math: str = ""
    host: bool = False
    random: bool = False
    collective: bool = False


def floats(*shape: int, shift: float = 0.0, dtype: Any = None) -> jax.Array:
    """Numbers in (-1, 1) that differ; the default dtype is wide where x64 is on."""
    x = jnp.sin(jnp.arange(1.0, 1 + np.prod(shape, dtype=int)) * 1.7 + shift)
    return x.reshape(shape).astype(dtype or x.dtype)


def complexes(*shape: int) -> jax.Array:
    return lax.complex(floats(*shape), floats(*shape, shift=0.6))


def still(x: Any) -> Any:
    """Without the derivative that a body would have by itself."""
    return lax.stop_gradient(x)


def row() -> tuple[Any, ...]:
    return (floats(2),)


CASES: list[Case] = []


def case(
    reference: Flat,
    cls: Any,
    args: Callable[[], tuple[Any, ...]] = row,
    call: Callable[[Flat], Flat] = lambda apply: apply,
    **more: Any,
) -> None:
    """Put a Function into the catalogue; `call` makes a function of flat arrays."""
    has_jvp = cls.jvp is not jaxfn.Function.jvp
    has_vmap = cls.vmap is not jaxfn.Function.vmap
    options = {
        "name": cls.__name__,
        "call": call(cls.apply),
        "function": cls,
        "wrap": call,
        "forward_mode": has_jvp or cls.generate_jvp_rule,
        "math": cls.__name__,
        "transposable": (has_jvp or cls.generate_jvp_rule) and not has_vmap,
    }
    CASES.append(Case(reference=reference, args=args, **options | more))


# ---- how a Function of the catalogue is written: see `tests.build.function`


def rule(formula: Flat) -> Flat:
    """A rule that is `formula` of what it is given, and then of what was saved."""
    return lambda ctx, *given: formula(*given, *ctx.saved_tensors)


def save_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def save_output(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


def keep_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    keep(ctx, *inputs)


# ---- one Function for each engine and style: x sin(x)


def _sine(x):
    return x * jnp.sin(x)


_slope = rule(lambda g, x: (jnp.sin(x) + x * jnp.cos(x)) * g)

for _engine in ("backward", "jvp", "both", "derived"):
    for _style in ("separate", "combined"):
        case(
            _sine,
            function(
                f"{_engine.title()}{_style.title()}",
                **in_style(_style, lambda x: _sine(still(x)), keep_inputs),
                **rules_of(_engine, _slope, _slope),
            ),
            math="sine",
        )

SINES = tuple(CASES)


# ---- elementwise

case(
    jnp.exp,
    function(
        "ExpSavesItsOutput",
        **in_style("combined", lambda x: jnp.exp(still(x)), save_output),
        backward=rule(lambda g, out: g * out),
    ),
)
case(
    lambda x: x + still(jnp.round(x) - x),
    function(
        "StraightThrough",
        forward=lambda ctx, x: jnp.round(x),
        backward=lambda ctx, g: g,
        generate_jvp_rule=True,
    ),
)


def _power(x, n, label="cube", fun=jnp.power):
    """Static arguments: a number, a string and a function."""
    assert label == "cube"
    return fun(still(x), n)


def _save_for_power(ctx, inputs, output):
    x, ctx.n, _, ctx.fun = inputs
    ctx.save_for_backward(x)


def _power_backward(ctx, g):
    (x,) = ctx.saved_tensors
    return g * ctx.n * ctx.fun(x, ctx.n - 1), None, None, None


case(
    lambda x: x**3,
    function(
        "Power",
        forward=_power,
        setup_context=_save_for_power,
        backward=_power_backward,
        generate_jvp_rule=True,
    ),
    call=lambda apply: lambda x: apply(x, n=3),
)


def _swish_jvp(t, x):
    s = jax.nn.sigmoid(x)
    return t * (s + x * s * (1 - s))


case(
    lambda x: x * jax.nn.sigmoid(x),
    function(
        "Bfloat16Swish",
        forward=lambda x: still(x) * jax.nn.sigmoid(still(x)),
        setup_context=lambda ctx, inputs, output: ctx.save_for_forward(*inputs),
        jvp=rule(_swish_jvp),
    ),
    lambda: (floats(2, dtype=jnp.bfloat16),),
)


def _saving_an_intermediate(ctx, x):
    t = jnp.tanh(x)
    ctx.save_for_backward(x, t)
    return x * t


case(
    lambda x: x * jnp.tanh(x),
    function(
        "SavesAnIntermediate",
        forward=_saving_an_intermediate,
        backward=rule(lambda g, x, t: g * (t + x * (1 - t * t))),
    ),
)


def _naming(ctx, x):
    """Names are for policies of jax.checkpoint that keep values by name."""
    s = checkpoint_name(jnp.sin(x), "kept")
    e = checkpoint_name(jnp.exp(x), "dropped")
    ctx.save_for_backward(x, s, e)
    return s * e


case(
    lambda x: jnp.sin(x) * jnp.exp(x),
    function(
        "NamesWhatItSaves",
        forward=_naming,
        backward=rule(lambda g, x, s, e: g * e * (jnp.cos(x) + s)),
    ),
)
case(
    jnp.tanh,
    function(
        "NamesItsOutput",
        forward=lambda x: checkpoint_name(jnp.tanh(still(x)), "kept"),
        setup_context=save_output,
        backward=rule(lambda g, out: g * (1 - out * out)),
        generate_jvp_rule=True,
    ),
)


def _with_attributes(ctx, x):
    """Arrays in containers on ctx, beside a static number."""
    ctx.parts = {"x": x, "pair": [x, None]}
    ctx.scale = 3
    return jnp.cos(still(x)) * ctx.scale


def _backward_by_attributes(ctx, g):
    a, (b, _) = ctx.parts["x"], ctx.parts["pair"]
    return -g * ctx.scale * jnp.sin((a + b) / 2)


case(
    lambda x: jnp.cos(x) * 3,
    function(
        "AttributesOfCtx",
        forward=_with_attributes,
        backward=_backward_by_attributes,
        jvp=lambda ctx, t: -t * ctx.scale * jnp.sin(ctx.parts["x"]),
    ),
)


# ---- reductions, matmul-like, several arguments


def _pair():
    return floats(2), floats(2, shift=0.4)


case(
    jax.nn.logsumexp,
    function(
        "LogSumExp",
        forward=lambda x: jax.nn.logsumexp(still(x)),
        setup_context=lambda ctx, inputs, output: keep(ctx, *inputs, output),
        backward=rule(lambda g, x, out: g * jnp.exp(x - out)),
        jvp=rule(lambda t, x, out: (t * jnp.exp(x - out)).sum()),
    ),
)
case(
    jnp.matmul,
    function(
        "Matmul",
        **in_style("combined", lambda x, w: still(x) @ still(w), save_inputs),
        backward=rule(lambda g, x, w: (g @ w.T, x.T @ g)),
        generate_jvp_rule=True,
    ),
    lambda: (floats(1, 2), floats(2, 2, shift=0.3)),
)
case(
    lambda x, w, b: x * w + b,
    function(
        "BroadcastIsSummed",
        forward=lambda x, w, b: still(x) * still(w) + still(b),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]),
        # Gradients that are bigger than the arguments.
        backward=rule(lambda g, x, w: (g * w, g * x, g)),
    ),
    lambda: (floats(2, 2), floats(2), floats()),
)


def _asking_backward(ctx, g):
    x, y = ctx.saved_tensors
    needs_x, needs_y = ctx.needs_input_grad
    return g * y * y if needs_x else None, 2 * g * x * y if needs_y else None


case(
    lambda x, y: x * y * y,
    function(
        "AsksWhatIsNeeded",
        forward=lambda x, y: still(x) * still(y) ** 2,
        setup_context=save_inputs,
        backward=_asking_backward,
    ),
    _pair,
)


def _normalise(x):
    centred = x - x.mean()
    r = lax.rsqrt((centred * centred).mean() + 0.1)
    return centred * r, r


def _layer_norm(ctx, x, w):
    n, r = _normalise(x)
    ctx.save_for_backward(n, r, w)
    return n * w


def _layer_norm_backward(g, n, r, w):
    h = g * w
    return r * (h - h.mean() - n * (h * n).mean()), g * n


case(
    lambda x, w: _normalise(x)[0] * w,
    function(
        "LayerNorm",
        forward=_layer_norm,
        backward=rule(_layer_norm_backward),
        generate_jvp_rule=True,
    ),
    _pair,
)


def _gather(ctx, table, index):
    ctx.save_for_backward(index)
    ctx.n = table.shape[0]
    return still(table)[index]


def _scatter(ctx, g):
    (index,) = ctx.saved_tensors
    return jnp.zeros(ctx.n, g.dtype).at[index].add(g), None


case(
    lambda t, i: t[i],
    function("Gather", forward=_gather, backward=_scatter, generate_jvp_rule=True),
    lambda: (floats(3), jnp.array([2, 0])),
)


def _dropout(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


case(
    _dropout,
    function(
        "Dropout",
        forward=lambda x, key: _dropout(still(x), key),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
        backward=rule(lambda g, key: (_dropout(g, key), None)),
    ),
    lambda: (floats(2), jax.random.key(1)),
    random=True,
)


# ---- several outputs, pytrees


def _cube(x):
    """PyTorch's example: the derivative as second output, and all rules."""
    return x**3, 3 * x**2


case(
    _cube,
    function(
        "CubeWithVmap",
        forward=lambda x: _cube(still(x)),
        setup_context=lambda ctx, inputs, output: keep(ctx, inputs[0], output[1]),
        backward=rule(lambda g, g_slope, x, slope: g * slope + 6 * g_slope * x),
        jvp=rule(lambda t, x, slope: (t * slope, 6 * t * x)),
        vmap=lambda info, in_dims, x: (_cube(still(x)), (0, 0)),
    ),
)


def _not_materialised(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _sum_of_what_is_there(g, h, x):
    first = None if g is None else g * jnp.cos(x)
    second = None if h is None else 2 * h
    if first is None or second is None:
        return second if first is None else first
    return first + second


case(
    lambda x: (jnp.sin(x), 2 * x),
    function(
        "UnusedIsNone",
        **in_style(
            "combined",
            lambda x: (jnp.sin(still(x)), 2 * still(x)),
            _not_materialised,
        ),
        backward=rule(_sum_of_what_is_there),
    ),
)


class Affine(NamedTuple):
    value: Any
    slope: Any


def _affine(x, w, b):
    return {"out": Affine(x * w + b, w * w)}


def _affine_backward(g, x, w):
    g_value, g_slope = g["out"]
    g_w = g_value * x + 2 * w * g_slope
    return g_value * w, {"wb": [g_w, g_value]}


def _affine_jvp(t_x, t_params, x, w):
    t_w, t_b = t_params["wb"]
    return {"out": Affine(t_x * w + x * t_w + t_b, 2 * w * t_w)}


case(
    _affine,
    function(
        "Pytrees",  # a list in, a dict with a namedtuple out
        **in_style(
            "combined",
            lambda x, params: _affine(still(x), *map(still, params["wb"])),
            lambda ctx, inputs, _: keep(ctx, inputs[0], inputs[1]["wb"][0]),
        ),
        backward=rule(_affine_backward),
        jvp=rule(_affine_jvp),
    ),
    lambda: (floats(2), floats(2, shift=0.2), floats(2, shift=0.9)),
    lambda apply: lambda x, w, b: apply(x, {"wb": [w, b]}),
)


def _sort(ctx, x):
    """An integer output and one that is marked."""
    index = jnp.argsort(still(x))
    total = still(x).sum()
    ctx.mark_non_differentiable(index, total)
    ctx.save_for_backward(x, index)
    return still(x)[index], index, total


case(
    lambda x: (jnp.sort(x), jnp.argsort(x), still(x.sum())),
    function(
        "SortWithIndices",
        forward=_sort,
        backward=rule(lambda g, _, __, x, i: jnp.zeros_like(x).at[i].add(g)),
    ),
    lambda: (floats(3),),
)


# ---- complex; backward in PyTorch's convention


def _complex_cube(z):
    """Not holomorphic."""
    return z * z * jnp.conj(z)


def _complex_slope(t, z):
    return 2 * jnp.conj(z) * z * t + z * z * jnp.conj(t)


case(
    _complex_cube,
    function(
        "ComplexCube",
        **in_style("combined", lambda z: _complex_cube(still(z)), keep_inputs),
        backward=rule(_complex_slope),
        jvp=rule(_complex_slope),
    ),
    lambda: (complexes(2),),
)


def _absolute_square(z):
    return (z * jnp.conj(z)).real


case(
    _absolute_square,
    function(
        "AbsoluteSquare",
        forward=lambda z: _absolute_square(still(z)),
        setup_context=save_inputs,
        backward=rule(lambda g, z: 2 * g * z),
    ),
    lambda: (complexes(2),),
)


# ---- the host


def _on_host(fun, x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(
        lambda x: np.asarray(fun(x), x.dtype), shape, x, vmap_method="expand_dims"
    )


case(
    jnp.sin,
    function(
        "CallsTheHost",
        **in_style("combined", lambda x: _on_host(np.sin, x), save_inputs),
        backward=rule(lambda g, x: g * jnp.cos(x)),
    ),
    host=True,
)
case(
    jnp.sinh,
    function(
        "CallsTheHostWithJvp",
        forward=lambda x: _on_host(np.sinh, x),
        setup_context=keep_inputs,
        backward=rule(lambda g, x: g * jnp.cosh(x)),
        jvp=rule(lambda t, x: t * jnp.cosh(x)),
    ),
    host=True,
)


# ---- custom vmap

case(
    jnp.dot,
    function(
        "DotWithVmap",
        forward=lambda x, y: jnp.dot(still(x), still(y)),
        setup_context=save_inputs,
        vmap=lambda info, in_dims, x, y: ((still(x) * still(y)).sum(-1), 0),
        backward=rule(lambda g, x, y: (g * y, g * x)),
    ),
    _pair,
)


# ---- Functions and other definitions inside

_square = function(
    "_Square",
    **in_style("combined", lambda x: still(x) ** 2, keep_inputs),
    backward=rule(lambda g, x: 2 * x * g),
    jvp=rule(lambda t, x: 2 * x * t),
).apply

case(
    lambda x: x**4 / 2,
    function(
        "FunctionInside",  # one in forward and in backward
        **in_style("combined", lambda x: _square(_square(x)) / 2, save_inputs),
        backward=rule(lambda g, x: 2 * g * x * _square(x)),
        generate_jvp_rule=True,
    ),
)


@jax.custom_vjp
def _cosine(x):
    return jnp.cos(still(x))


_cosine.defvjp(lambda x: (_cosine(x), x), lambda x, g: (-g * jnp.sin(x),))


def _saving_a_cosine(ctx, x):
    c = _cosine(x)
    ctx.save_for_backward(x, c)
    return c * c


case(
    lambda x: jnp.cos(x) ** 2,
    function(
        "CustomVjpInside",  # of a saved intermediate, and in backward
        forward=_saving_a_cosine,
        backward=rule(lambda g, x, c: -2 * g * c * jnp.sin(x)),
    ),
)


# ---- a collective over the axis of a vmap, in forward and backward


def _centred(x):
    return x - lax.pmean(x, "devices")


def _over_devices(f):
    def call(x):
        return jax.vmap(f, axis_name="devices")(jnp.stack([x, x * x]))

    return call


_collective = _over_devices(lambda x: _centred(jnp.sin(x)))

for _name, _derived in {"Collective": False, "CollectiveDerived": True}.items():
    case(
        _collective,
        function(
            _name,
            **in_style("combined", lambda x: _centred(jnp.sin(still(x))), save_inputs),
            backward=rule(lambda g, x: _centred(g) * jnp.cos(x)),
            generate_jvp_rule=_derived,
        ),
        lambda: (floats(),),
        _over_devices,
        math="collective",
        collective=True,
    )


# ---- linear

_WEIGHTS = np.array([[1.0, 2.0], [-0.5, 0.25]])


def _linear(x):
    return jnp.asarray(_WEIGHTS, x.dtype) @ x


for _engine in ("backward", "jvp", "both"):
    case(
        _linear,
        function(
            f"Linear{_engine.title()}",
            # The call itself is transposed, and that transposes what forward computes.
            forward=_linear,
            setup_context=nothing,
            **rules_of(
                _engine,
                lambda ctx, g: jnp.asarray(_WEIGHTS, g.dtype).T @ g,
                lambda ctx, t: _linear(t),
            ),
        ),
        linear=True,
        math="linear",
    )


# ---- wrong on purpose: the rule says 2 cos(x), or 3 cos(x), for sin(x)


def _sine_with_slope(k):
    return lambda x: k * jnp.sin(x) + still((1 - k) * jnp.sin(x))


for _engine, _math in {
    "backward": "slope2",
    "jvp": "slope3",
    "derived": "slope2",
    "both": "slope2 or 3",
}.items():
    case(
        _sine_with_slope(3.0 if _engine == "jvp" else 2.0),
        function(
            f"Wrong{_engine.title()}",
            forward=lambda x: jnp.sin(still(x)),
            setup_context=keep_inputs,
            **rules_of(
                _engine,
                rule(lambda g, x: 2.0 * jnp.cos(x) * g),
                rule(lambda t, x: 3.0 * jnp.cos(x) * t),
            ),
        ),
        in_forward_mode=_sine_with_slope(3.0) if _engine == "both" else None,
        math=_math,
    )


BY_NAME = {case.name: case for case in CASES}
