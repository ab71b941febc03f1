"""once_differentiable."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.build import in_style, saving

from .core import Raises, Warns, expect, raises, row
from .rules import saves, times
from .transforms import func

TWICE = (
    "trying to differentiate twice a function that was marked with @once_differentiable"
)
REFUSED = Raises(RuntimeError, TWICE, "`MyF.backward` was differentiated")


def three(fw):
    return fw.array([3.0])


def square(fw, style="combined"):
    """x * x, once differentiable."""
    rules = in_style(style, lambda x: x * x, saving())
    backward = fw.once_differentiable(times(lambda x: 2 * x))
    return fw.make(**rules, backward=backward).apply


def once(fw, rule, forward=lambda ctx, x: 2 * x):
    """A Function with this rule as its backward, which is marked."""
    return fw.make(forward=forward, backward=fw.once_differentiable(rule)).apply


@row("OD-01", "same", "the first derivative is as without the mark")
def _(fw):
    return [fw.grad(square(fw, style), three(fw)) for style in ("combined", "separate")]


def twice(fw, f, x):
    """The derivative of the pullback, by the argument and by the cotangent."""
    ct = fw.array([1.0])
    if fw.name == "torch":
        x, ct = fw.leaf(x), fw.leaf(ct)
        (g,) = fw.torch.autograd.grad(f(x), [x], ct, create_graph=True)
        g.sum().backward()
        return [x.grad, ct.grad]
    return fw.grad(lambda x, ct: jax.vjp(f, x)[1](ct)[0], x, ct)


@row("OD-02", "same", "the second derivative is refused")
def _(fw):
    return twice(fw, square(fw), three(fw))


@row("OD-03", "must differ", "also where the cotangent is a constant")
@expect(lambda fw: REFUSED)
def _(fw):
    return fw.grad2(lambda x: square(fw)(x).sum(), three(fw))


def in_a_product(fw):
    f = square(fw)
    return lambda x: f(x) * x


@row("OD-04", "superset", "in a product: where torch gives 6 for 18, it is refused")
@expect(lambda fw: REFUSED)
def _(fw):
    return fw.grad2(in_a_product(fw), three(fw))


@row("OD-04b", "same", "in a product, for all leaves")
def od_04b(fw):
    x = fw.leaf(three(fw))
    (g,) = fw.torch.autograd.grad(in_a_product(fw)(x).sum(), [x], create_graph=True)
    g.sum().backward()


od_04b.jaxfn(lambda fw: fw.grad2(in_a_product(fw), three(fw)))


@row("OD-04c", "superset", "a gradient penalty is refused, whoever asks")
@expect(lambda fw: dict.fromkeys(("backward", "by w", "by x"), REFUSED))
def od_04c(fw):
    f, x, w = square(fw), fw.leaf(three(fw)), fw.leaf(fw.array([5.0]))
    grad = fw.torch.autograd.grad

    def penalty():
        (g,) = grad((w * f(x)).sum(), [x], create_graph=True)
        return (g**2).sum()

    return {
        "backward": fw.attempt(lambda: penalty().backward()),
        "by w": fw.attempt(lambda: grad(penalty(), [w])),
        "by x": fw.attempt(lambda: grad(penalty(), [x])),
    }


@od_04c.jaxfn
def _(fw):
    f = square(fw)

    def penalty(x, w):
        (g,) = fw.grad(lambda x: w * f(x), x)
        return (g**2).sum()

    def by(i):
        gradient = jax.grad(penalty, i)
        return fw.attempt(lambda: fw.call(gradient, three(fw), fw.array([5.0])))

    return {"backward": by((0, 1)), "by w": by(1), "by x": by(0)}


@row("OD-05", "superset", "in a sum: where torch gives 18 for 20, it is refused")
@expect(lambda fw: REFUSED)
def _(fw):
    f = square(fw)
    return fw.grad2(lambda x: f(x) + x**3, three(fw))


@row("OD-07", "must differ", "None as the gradient is zero, with a warning")
@expect(lambda fw: Warns([jnp.zeros(1)], UserWarning, "`MyF.backward` returned None"))
def _(fw):
    return fw.grad(once(fw, lambda ctx, g: None), three(fw))


@row("OD-08", "must differ", "a list of gradients is refused in clear words")
@raises(RuntimeError, "expected Variable or None (got list)", "`MyF.backward`")
def _(fw):
    return twice(fw, once(fw, lambda ctx, g: [g]), three(fw))


@row("OD-09", "must differ", "so is a Python number")
@raises(RuntimeError, "expected Variable or None (got float)", "`MyF.backward`")
def _(fw):
    return twice(fw, once(fw, lambda ctx, g: 1.0), three(fw))


@row("OD-10", "same", "the mark stands above or below staticmethod")
def _(fw):
    rule, x = times(lambda x: 2 * x), three(fw)
    orders = [
        fw.once_differentiable(staticmethod(rule)),
        staticmethod(fw.once_differentiable(rule)),
    ]
    fs = [fw.make(forward=saves(lambda x: x * x), backward=b).apply for b in orders]
    refused = [TWICE in repr(fw.attempt(lambda f=f: twice(fw, f, x))) for f in fs]
    return [*[fw.grad(f, x) for f in fs], *refused]


@row("OD-12", "same", "the marked rule takes keywords", own_words=True)
def _(fw):
    def backward(ctx, g, k=2):
        return k * g

    rule = fw.once_differentiable(backward)
    return [rule(None, g=three(fw)), rule(None, three(fw), k=5), rule.__name__]


@row("OD-13", "superset", "the second derivative by transformations is refused")
@expect(
    lambda fw: {"grad": jnp.float32(6), "grad of grad": REFUSED, "jvp of grad": REFUSED}
)
def _(fw):
    f, t = square(fw, "separate"), func(fw)
    x, gradient = fw.array(3.0), t.grad(f)

    def tangent(x):
        return t.jvp(gradient, (x,), (fw.np.ones_like(x),))[1]

    return {
        "grad": fw.call(gradient, x),
        "grad of grad": fw.attempt(lambda: fw.call(t.grad(gradient), x)),
        "jvp of grad": fw.attempt(lambda: fw.call(tangent, x)),
    }


@row("OD-16", "same", "a marked jvp is a jvp")
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: 1 * x,
        jvp=fw.once_differentiable(lambda ctx, t: 2 * t),
    )
    return fw.jvp(f.apply, [three(fw)], [fw.array([1.0])])
