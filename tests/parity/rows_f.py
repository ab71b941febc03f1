"""Forward mode."""

from __future__ import annotations

import jax.numpy as jnp

from .core import EAGER, expect, raises, row, says
from .rules import times
from .transforms import tangent


def twice(ctx, x):
    return 2 * x


def pair(ctx, x):
    return 2 * x, 3 * x


def forward_mode(fw, f, x=1.0):
    """The tangents of f's outputs, for one of 6."""
    return fw.jvp(f, [fw.array([x])], [fw.array([6.0])])


def six(factor):
    """That tangent, times a factor."""
    return jnp.float32([6 * factor])


def both(fw, forward, *rules):
    """Values and tangents with these jvp rules, or what went wrong."""
    found = []
    for rule in rules:
        f = fw.make(forward=forward, jvp=rule)
        found.append(fw.attempt(lambda f=f: forward_mode(fw, f.apply)))
    return found


@row("JVP-01", "same", "jvp is the derivative in forward mode")
def _(fw):
    # by a factor that shows that the body is not differentiated
    f = fw.make(forward=twice, jvp=lambda ctx, t: 100 * t)
    return forward_mode(fw, f.apply)


@row("JVP-02", "must differ", "without a jvp, JAX refuses; a note has torch's words")
@raises(
    TypeError,
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
    "You must implement the jvp function for custom autograd.Function to use it "
    "with forward mode AD.",
    "`MyF` has no jvp",
    "define a jvp staticmethod",
    "generate_jvp_rule = True",
)
def _(fw):
    f = fw.make(forward=twice, backward=lambda ctx, g: 2 * g)
    return forward_mode(fw, f.apply)


@row("JVP-03", "same", "without a jvp a Function of constants is fine in forward mode")
def _(fw):
    f = fw.make(forward=twice, backward=lambda ctx, g: 2 * g)
    constant = fw.array([5.0])
    return forward_mode(fw, lambda x: x * f.apply(constant))


@row("JVP-04", "same", "jvp returns one tangent for each output, no more and no fewer")
@says("RuleValueError", "`MyF.jvp`")
def _(fw):
    return {
        "one for two": both(fw, pair, lambda ctx, t: t),
        "two for one": both(fw, twice, lambda ctx, t: (t, t)),
        "None": both(fw, twice, lambda ctx, t: (t, None)),
        "none at all": both(fw, twice, lambda ctx, t: ()),
    }


@row("JVP-05", "superset", "None from jvp is a zero tangent")
@expect(lambda fw: [[six(2), six(0)], [six(0), six(3)]])
def _(fw):
    return both(fw, pair, lambda ctx, t: (2 * t, None), lambda ctx, t: (None, 3 * t))


@row("JVP-05b", "must differ", "without any tangent, it raises in clear words")
@raises(
    RuntimeError,
    "`MyF.jvp` returned None: expected a tangent for each output",
    "If a `return` is missing",
    "zeros_like",
)
def _(fw):
    f = fw.make(forward=twice, jvp=lambda ctx, t: None)
    return forward_mode(fw, f.apply)


def marked(ctx, x):
    a, b = 2 * x, 3 * x
    ctx.mark_non_differentiable(b)
    return a, b


@row("JVP-06", "same", "a tangent for an output without derivative is refused")
@says("`MyF.jvp`")
def _(fw):
    def integer(ctx, x):
        return 2 * x, fw.np.argsort(x)

    def first(f):
        # JAX has tangents of its own kind for integers: look at the float alone.
        return lambda x: f.apply(x)[0]

    def tangent(forward, rule):
        f = fw.make(forward=forward, jvp=rule)
        return fw.attempt(lambda: forward_mode(fw, first(f)))

    return [
        tangent(forward, rule)
        for forward in (integer, marked)
        for rule in (lambda ctx, t: (t, t), lambda ctx, t: (2 * t, None))
    ]


@row("JVP-07", "same", "a static output has its place among the tangents")
def _(fw):
    def tangent(rule):
        f = fw.make(forward=lambda ctx, x: (2 * x, "s"), jvp=rule)
        seen = []

        def run(x):
            out = f.apply(x)
            seen.append(out[1])
            return out[0]

        return [fw.attempt(lambda: forward_mode(fw, run)), seen]

    return [
        tangent(lambda ctx, t: (2 * t, None)),
        tangent(lambda ctx, t: (2 * t, t)),  # ignored
        tangent(lambda ctx, t: 2 * t),
    ]


@row("JVP-08", "same", "jvp gets None for what has no tangent, zeros for constants")
def _(fw):
    seen = []

    def jvp(ctx, *ts):
        seen.append([None if t is None else list(t.shape) for t in ts])
        return 2 * ts[0] + ts[3]  # which is zero

    f = fw.make(forward=lambda ctx, x, k, i, y: 2 * x, jvp=jvp)
    i, y = fw.array([1], "int32"), fw.array([5.0])
    return [forward_mode(fw, lambda x: f.apply(x, 3, i, y)), seen]


@row("JVP-09", "same", "a Python number is no tangent")
@says("RuleTypeError", "`MyF.jvp`")
def _(fw):
    return both(fw, twice, lambda ctx, t: 1.0, lambda ctx, t: "a", lambda ctx, t: [t])


@row("JVP-10", "same", "a tangent has the shape of its output")
@says(
    "RuleValueError",
    "Tensor is of size [1] while the given forward gradient is of size [2]",
)
def _(fw):
    return both(
        fw,
        twice,
        lambda ctx, t: fw.np.ones(2),
        lambda ctx, t: t.sum(),
        lambda ctx, t: fw.np.ones((1, 1)),
    )


@row("JVP-11", "must differ", "a tangent of another float dtype is cast")
@expect(lambda fw: [jnp.float16([1 / 3]).astype("float32")])
def _(fw):
    # 1/3 is not the same number in half precision
    f = fw.make(forward=twice, jvp=lambda ctx, t: fw.array([1 / 3], "float16"))
    return forward_mode(fw, f.apply)


@row("JVP-12", "superset", "a returned input may have any tangent")
@expect(lambda fw: [[jnp.float32([6])], [jnp.float32([30])]])
def _(fw):
    return both(fw, lambda ctx, x: x, lambda ctx, t: t, lambda ctx, t: 5 * t)


@row("JVP-13", "must differ", "the tangent of a consumed input is a new array, too")
@expect(lambda fw: [six(2)])
def _(fw):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2) if fw.name == "torch" else 2 * x

    f = fw.make(forward=forward, jvp=lambda ctx, t: 2 * t)
    return forward_mode(fw, lambda x: f.apply(1 * x))


@row("JVP-14", "same", "jvp runs once, after forward, and only in forward mode")
def _(fw):
    calls = []

    def forward(ctx, x):
        calls.append("forward")
        return 2 * x

    def jvp(ctx, t):
        calls.append("jvp")
        return 2 * t

    f = fw.make(forward=forward, jvp=jvp)
    fw.call(f.apply, fw.array([1.0]))
    calls.append("and")
    forward_mode(fw, f.apply)
    return calls


@row("JVP-15", "same", "jvp can be differentiated in reverse mode")
def jvp_15(fw):
    x = fw.leaf(fw.array([2.0]))
    f = cube(fw)
    ad = fw.torch.autograd.forward_ad
    with ad.dual_level():
        out = f.apply(ad.make_dual(x, fw.np.ones_like(x)))
        t = ad.unpack_dual(out).tangent
        return list(fw.torch.autograd.grad(t.sum(), [x]))


@jvp_15.jaxfn
def _(fw):
    return fw.grad(
        lambda x: tangent(fw, cube(fw).apply, x, jnp.ones_like(x)), fw.array([2.0])
    )


def cube(fw):
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x**3

    jvp = times(lambda x: 3 * x**2)
    # torch needs a backward for reverse mode to begin with
    return fw.make(forward=forward, jvp=jvp, backward=lambda ctx, g: g)


@row("JVP-16", "same", "a Function has both, each for its own mode")
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: 1 * x,
        jvp=lambda ctx, t: 100 * t,
        backward=lambda ctx, g: 2 * g,
    )
    return [forward_mode(fw, f.apply), fw.grad(f.apply, fw.array([1.0]))]


@row("JVP-18", "superset", "a Function with jvp alone works in reverse mode")
@expect(lambda fw: [jnp.float32([7, 14])])
def _(fw):
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x * x

    f = fw.make(forward=forward, jvp=times(lambda x: 7 * x))
    return fw.grad(f.apply, fw.array([1.0, 2.0]))


@row("JVP-19", "superset", "forward mode can be nested", modes=EAGER)
@expect(lambda fw: [jnp.float32([2])])
def _(fw):
    f = fw.make(forward=twice, jvp=lambda ctx, t: 2 * t)
    x = fw.array([1.0])

    def tangent(x):
        return fw.jvp(f.apply, [x], [fw.np.ones_like(x)])[0]

    return fw.jvp(lambda x: x * tangent(x), [x], [x])


@row("JVP-20", "same", "jvp in the separate style")
def _(fw):
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    jvp = times(lambda x: 3 * x**2)
    f = fw.separate(lambda x: x**3, setup_context, jvp=jvp)
    return forward_mode(fw, f.apply, 2.0)
