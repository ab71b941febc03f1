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
    args: Callable[[], tuple[Any, ...]] = row,
    call: Callable[[Flat], Flat] = lambda apply: apply,
    **more: Any,
):
    """Put a Function into the catalogue; `call` makes a function of flat arrays."""

    def add(cls: Any) -> Any:
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
        return cls

    return add


# ---- one Function for each engine and style: x sin(x)


def _sine(x):
    return x * jnp.sin(x)


def _slope(x):
    return jnp.sin(x) + x * jnp.cos(x)


class _SineSeparate(jaxfn.Function):
    @staticmethod
    def forward(x):
        return _sine(still(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _SineCombined(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return _sine(still(x))


def _backward(ctx, g):
    return _slope(ctx.saved_tensors[0]) * g


def _jvp(ctx, t):
    return _slope(ctx.saved_tensors[0]) * t


_RULES: dict[str, dict[str, Any]] = {
    "backward": {"backward": staticmethod(_backward)},
    "jvp": {"jvp": staticmethod(_jvp)},
    "both": {"backward": staticmethod(_backward), "jvp": staticmethod(_jvp)},
    "derived": {"backward": staticmethod(_backward), "generate_jvp_rule": True},
}

for _engine, _rules in _RULES.items():
    for _base in (_SineSeparate, _SineCombined):
        _style = _base.__name__.removeprefix("_Sine")
        case(_sine, math="sine")(type(f"{_engine.title()}{_style}", (_base,), _rules))

SINES = tuple(CASES)


# ---- elementwise


@case(jnp.exp)
class ExpSavesItsOutput(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        out = jnp.exp(still(x))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


@case(lambda x: x + still(jnp.round(x) - x))
class StraightThrough(jaxfn.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, x):
        return jnp.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


@case(lambda x: x**3, call=lambda apply: lambda x: apply(x, n=3))
class Power(jaxfn.Function):
    """Static arguments: a number, a string and a function."""

    generate_jvp_rule = True

    @staticmethod
    def forward(x, n, label="cube", fun=jnp.power):
        assert label == "cube"
        return fun(still(x), n)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n, _, ctx.fun = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.n * ctx.fun(x, ctx.n - 1), None, None, None


@case(lambda x: x * jax.nn.sigmoid(x), lambda: (floats(2, dtype=jnp.bfloat16),))
class Bfloat16Swish(jaxfn.Function):
    @staticmethod
    def forward(x):
        return still(x) * jax.nn.sigmoid(still(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        s = jax.nn.sigmoid(x)
        return t * (s + x * s * (1 - s))


@case(lambda x: x * jnp.tanh(x))
class SavesAnIntermediate(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        t = jnp.tanh(x)
        ctx.save_for_backward(x, t)
        return x * t

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        return g * (t + x * (1 - t * t))


@case(lambda x: jnp.sin(x) * jnp.exp(x))
class NamesWhatItSaves(jaxfn.Function):
    """For policies of jax.checkpoint that keep values by name."""

    @staticmethod
    def forward(ctx, x):
        s = checkpoint_name(jnp.sin(x), "kept")
        e = checkpoint_name(jnp.exp(x), "dropped")
        ctx.save_for_backward(x, s, e)
        return s * e

    @staticmethod
    def backward(ctx, g):
        x, s, e = ctx.saved_tensors
        return g * e * (jnp.cos(x) + s)


@case(jnp.tanh)
class NamesItsOutput(jaxfn.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return checkpoint_name(jnp.tanh(still(x)), "kept")

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - out * out)


@case(lambda x: jnp.cos(x) * 3)
class AttributesOfCtx(jaxfn.Function):
    """Arrays in containers on ctx, beside a static number."""

    @staticmethod
    def forward(ctx, x):
        ctx.parts = {"x": x, "pair": [x, None]}
        ctx.scale = 3
        return jnp.cos(still(x)) * ctx.scale

    @staticmethod
    def backward(ctx, g):
        a, (b, _) = ctx.parts["x"], ctx.parts["pair"]
        return -g * ctx.scale * jnp.sin((a + b) / 2)

    @staticmethod
    def jvp(ctx, t):
        return -t * ctx.scale * jnp.sin(ctx.parts["x"])


# ---- reductions, matmul-like, several arguments


def _pair():
    return floats(2), floats(2, shift=0.4)


@case(lambda x: jax.nn.logsumexp(x))
class LogSumExp(jaxfn.Function):
    @staticmethod
    def forward(x):
        return jax.nn.logsumexp(still(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return g * jnp.exp(x - out)

    @staticmethod
    def jvp(ctx, t):
        x, out = ctx.saved_tensors
        return (t * jnp.exp(x - out)).sum()


@case(jnp.matmul, lambda: (floats(1, 2), floats(2, 2, shift=0.3)))
class Matmul(jaxfn.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return still(x) @ still(w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.T, x.T @ g


@case(lambda x, w, b: x * w + b, lambda: (floats(2, 2), floats(2), floats()))
class BroadcastIsSummed(jaxfn.Function):
    """Backward returns gradients that are bigger than the arguments."""

    @staticmethod
    def forward(x, w, b):
        return still(x) * still(w) + still(b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x, g


@case(lambda x, y: x * y * y, _pair)
class AsksWhatIsNeeded(jaxfn.Function):
    @staticmethod
    def forward(x, y):
        return still(x) * still(y) ** 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return g * y * y if needs_x else None, 2 * g * x * y if needs_y else None


def _normalise(x):
    centred = x - x.mean()
    return centred * lax.rsqrt((centred * centred).mean() + 0.1)


@case(lambda x, w: _normalise(x) * w, _pair)
class LayerNorm(jaxfn.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, x, w):
        centred = x - x.mean()
        r = lax.rsqrt((centred * centred).mean() + 0.1)
        n = centred * r
        ctx.save_for_backward(n, r, w)
        return n * w

    @staticmethod
    def backward(ctx, g):
        n, r, w = ctx.saved_tensors
        h = g * w
        return r * (h - h.mean() - n * (h * n).mean()), g * n


@case(lambda t, i: t[i], lambda: (floats(3), jnp.array([2, 0])))
class Gather(jaxfn.Function):
    """An integer argument."""

    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.n = table.shape[0]
        return still(table)[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return jnp.zeros(ctx.n, g.dtype).at[index].add(g), None


def _dropout(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


@case(_dropout, lambda: (floats(2), jax.random.key(1)), random=True)
class Dropout(jaxfn.Function):
    """A key is an argument, and is saved."""

    @staticmethod
    def forward(x, key):
        return _dropout(still(x), key)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (key,) = ctx.saved_tensors
        return _dropout(g, key), None


# ---- several outputs, pytrees


@case(lambda x: (x**3, 3 * x**2))
class CubeWithVmap(jaxfn.Function):
    """PyTorch's example: the derivative as second output, and all rules."""

    @staticmethod
    def forward(x):
        x = still(x)
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, g, g_slope):
        x, slope = ctx.saved_tensors
        return g * slope + 6 * g_slope * x

    @staticmethod
    def jvp(ctx, t):
        x, slope = ctx.saved_tensors
        return t * slope, 6 * t * x

    @staticmethod
    def vmap(info, in_dims, x):
        x = still(x)
        return (x**3, 3 * x**2), (0, 0)


@case(lambda x: (jnp.sin(x), 2 * x))
class UnusedIsNone(jaxfn.Function):
    """Gradients are not materialised."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return jnp.sin(still(x)), 2 * still(x)

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        first = None if g is None else g * jnp.cos(x)
        second = None if h is None else 2 * h
        if first is None or second is None:
            return second if first is None else first
        return first + second


class Affine(NamedTuple):
    value: Any
    slope: Any


def _affine(x, w, b):
    return {"out": Affine(x * w + b, w * w)}


@case(
    _affine,
    lambda: (floats(2), floats(2, shift=0.2), floats(2, shift=0.9)),
    lambda apply: lambda x, w, b: apply(x, {"wb": [w, b]}),
)
class Pytrees(jaxfn.Function):
    """A list in, a dict with a namedtuple out."""

    @staticmethod
    def forward(ctx, x, params):
        w, b = params["wb"]
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)
        return _affine(still(x), still(w), still(b))

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g_value, g_slope = g["out"]
        g_w = g_value * x + 2 * w * g_slope
        return g_value * w, {"wb": [g_w, g_value]}

    @staticmethod
    def jvp(ctx, t_x, t_params):
        x, w = ctx.saved_tensors
        t_w, t_b = t_params["wb"]
        return {"out": Affine(t_x * w + x * t_w + t_b, 2 * w * t_w)}


@case(lambda x: (jnp.sort(x), jnp.argsort(x), still(x.sum())), lambda: (floats(3),))
class SortWithIndices(jaxfn.Function):
    """An integer output and one that is marked."""

    @staticmethod
    def forward(ctx, x):
        index = jnp.argsort(still(x))
        total = still(x).sum()
        ctx.mark_non_differentiable(index, total)
        ctx.save_for_backward(x, index)
        return still(x)[index], index, total

    @staticmethod
    def backward(ctx, g, _, __):
        x, index = ctx.saved_tensors
        return jnp.zeros_like(x).at[index].add(g)


# ---- complex; backward in PyTorch's convention


@case(lambda z: z * z * jnp.conj(z), lambda: (complexes(2),))
class ComplexCube(jaxfn.Function):
    """z^2 conj(z): not holomorphic."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        ctx.save_for_forward(z)
        z = still(z)
        return z * z * jnp.conj(z)

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return 2 * jnp.conj(z) * z * g + z * z * jnp.conj(g)

    @staticmethod
    def jvp(ctx, t):
        (z,) = ctx.saved_tensors
        return 2 * jnp.conj(z) * z * t + z * z * jnp.conj(t)


@case(lambda z: (z * jnp.conj(z)).real, lambda: (complexes(2),))
class AbsoluteSquare(jaxfn.Function):
    @staticmethod
    def forward(z):
        z = still(z)
        return (z * jnp.conj(z)).real

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return 2 * g * z


# ---- the host


def _on_host(fun, x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(
        lambda x: np.asarray(fun(x), x.dtype), shape, x, vmap_method="expand_dims"
    )


@case(jnp.sin, host=True)
class CallsTheHost(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _on_host(np.sin, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * jnp.cos(x)


@case(jnp.sinh, host=True)
class CallsTheHostWithJvp(jaxfn.Function):
    @staticmethod
    def forward(x):
        return _on_host(np.sinh, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * jnp.cosh(x)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * jnp.cosh(x)


# ---- custom vmap


@case(lambda x, y: jnp.dot(x, y), _pair)
class DotWithVmap(jaxfn.Function):
    @staticmethod
    def forward(x, y):
        return jnp.dot(still(x), still(y))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info, in_dims, x, y):
        return (still(x) * still(y)).sum(-1), 0

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


# ---- Functions and other definitions inside


class _Square(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return still(x) ** 2

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * ctx.saved_tensors[0] * t


@case(lambda x: x**4 / 2)
class FunctionInside(jaxfn.Function):
    """One in forward and in backward."""

    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _Square.apply(_Square.apply(x)) / 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * _Square.apply(x)


@jax.custom_vjp
def _cosine(x):
    return jnp.cos(still(x))


_cosine.defvjp(lambda x: (_cosine(x), x), lambda x, g: (-g * jnp.sin(x),))


@case(lambda x: jnp.cos(x) ** 2)
class CustomVjpInside(jaxfn.Function):
    """Of a saved intermediate, and in backward."""

    @staticmethod
    def forward(ctx, x):
        c = _cosine(x)
        ctx.save_for_backward(x, c)
        return c * c

    @staticmethod
    def backward(ctx, g):
        x, c = ctx.saved_tensors
        return -2 * g * c * jnp.sin(x)


# ---- a collective over the axis of a vmap, in forward and backward


def _centred(x):
    return x - lax.pmean(x, "devices")


def _over_devices(f):
    def call(x):
        return jax.vmap(f, axis_name="devices")(jnp.stack([x, x * x]))

    return call


class _Collective(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _centred(jnp.sin(still(x)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _centred(g) * jnp.cos(x)


_collective = _over_devices(lambda x: _centred(jnp.sin(x)))


@case(
    _collective, lambda: (floats(),), _over_devices, math="collective", collective=True
)
class Collective(_Collective):
    pass


@case(
    _collective, lambda: (floats(),), _over_devices, math="collective", collective=True
)
class CollectiveDerived(_Collective):
    generate_jvp_rule = True


# ---- linear


_WEIGHTS = np.array([[1.0, 2.0], [-0.5, 0.25]])


def _linear(x):
    return jnp.asarray(_WEIGHTS, x.dtype) @ x


class _Linear(jaxfn.Function):
    @staticmethod
    def forward(x):
        return _linear(still(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def _linear_back(ctx, g):
    return jnp.asarray(_WEIGHTS, g.dtype).T @ g


def _linear_jvp(ctx, t):
    return _linear(t)


for _name, _rules in {
    "LinearBackward": {"backward": staticmethod(_linear_back)},
    "LinearJvp": {"jvp": staticmethod(_linear_jvp)},
    "LinearBoth": {
        "backward": staticmethod(_linear_back),
        "jvp": staticmethod(_linear_jvp),
    },
}.items():
    # The call itself is transposed here, and that transposes what forward computes.
    _rules["forward"] = staticmethod(_linear)
    case(_linear, linear=True, math="linear")(type(_name, (_Linear,), _rules))


# ---- wrong on purpose: the rule says 2 cos(x), or 3 cos(x), for sin(x)


def _sine_with_slope(k):
    return lambda x: k * jnp.sin(x) + still((1 - k) * jnp.sin(x))


def _wrong(k):
    return staticmethod(lambda ctx, g: k * jnp.cos(ctx.saved_tensors[0]) * g)


class _Wrong(jaxfn.Function):
    @staticmethod
    def forward(x):
        return jnp.sin(still(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


@case(_sine_with_slope(2.0), math="slope2")
class WrongBackward(_Wrong):
    backward = _wrong(2.0)


@case(_sine_with_slope(3.0), math="slope3")
class WrongJvp(_Wrong):
    jvp = _wrong(3.0)


@case(_sine_with_slope(2.0), math="slope2")
class WrongDerived(_Wrong):
    backward = _wrong(2.0)
    generate_jvp_rule = True


@case(_sine_with_slope(2.0), in_forward_mode=_sine_with_slope(3.0), math="slope2 or 3")
class WrongBoth(_Wrong):
    backward = _wrong(2.0)
    jvp = _wrong(3.0)


BY_NAME = {case.name: case for case in CASES}
