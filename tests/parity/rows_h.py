"""The vmap staticmethod: what it gets, and what it may return."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tests.build import nothing

from .core import EAGER, Raises, expect, raises, row, says
from .transforms import func


class VmapInfo(NamedTuple):
    """What the rule is told."""

    batch_size: int
    randomness: str


def matrix(fw):
    return fw.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


def doubling(fw, **members):
    """2 * x, in the separate style, with these members."""
    return fw.make(forward=lambda x: 2 * x, setup_context=nothing, **members).apply


def batched(fw, rule, forward=lambda x: 2 * x):
    """What vmap gives over the rows of a matrix, by this rule."""
    f = fw.separate(forward, vmap=rule)
    return fw.call(func(fw).vmap(f.apply), matrix(fw))


def each(fw, *results):
    """The same for rules with these results of the batch, which may fail."""

    def attempt(result):
        return fw.attempt(lambda: batched(fw, lambda info, in_dims, x: result(x)))

    return [attempt(result) for result in results]


@row("VMAP-01", "superset", "without a rule, JAX batches forward")
@expect(lambda fw: 2 * matrix(fw))
def _(fw):
    return fw.call(func(fw).vmap(doubling(fw)), matrix(fw))


@row("VMAP-02", "same", "a rule and generate_vmap_rule exclude each other")
@says("(`MyF.vmap` is at ", "rows_h.py:")
def _(fw):
    f = doubling(fw, generate_vmap_rule=True, vmap=lambda info, in_dims, x: (x, 0))
    return fw.call(func(fw).vmap(f), matrix(fw))


@row("VMAP-03", "same", "the base class has no rule", own_words=True)
def _(fw):
    return fw.Function.vmap(None, (0,), matrix(fw))


@row("VMAP-04", "must differ", "info.randomness is always error", modes=EAGER)
@expect(lambda fw: [VmapInfo(2, "error")] * 3)
def _(fw):
    seen = []

    def rule(info, in_dims, x):
        seen.append(info)
        return 2 * x, in_dims[0]

    f = doubling(fw, vmap=rule)
    if fw.name == "torch":
        for randomness in ("error", "different", "same"):
            fw.torch.func.vmap(f, randomness=randomness)(matrix(fw))
    else:
        jax.vmap(f)(matrix(fw))
        jax.jit(jax.vmap(f))(matrix(fw))
        jax.lax.map(jax.vmap(f), jnp.ones((4, 2, 3)))
    return seen


@row("VMAP-05", "must differ", "the batch axis is always the first", modes=EAGER)
@expect(
    lambda fw: [
        ((0, None, None), (3, 2), (5,), 7),
        ((0, 0, None), (2, 3), (2, 5), 7),
        ((None, 0, None), (2, 3), (2, 5), 7),
    ]
)
def _(fw):
    seen = []

    def rule(info, in_dims, x, y, k):
        seen.append((in_dims, tuple(x.shape), tuple(y.shape), k))
        return fw.np.ones((info.batch_size,)), 0

    f = fw.separate(lambda x, y, k: x.sum(), vmap=rule).apply
    x, vmap = matrix(fw), func(fw).vmap
    vmap(lambda x: f(x, fw.np.ones(5), 7), in_dims=1)(x)
    vmap(lambda x, y: f(x, y, 7), in_dims=(0, 1))(x, fw.np.ones((5, 2)))
    vmap(lambda x, y: f(x, y, 7), in_dims=(None, -1))(x, fw.np.ones((5, 2)))
    return seen


@row("VMAP-07", "same", "the rule gets whole batches", modes=EAGER)
def _(fw):
    shapes = []

    def rule(info, in_dims, x):
        shapes.append([info.batch_size, tuple(x.shape), in_dims])
        return 2 * x, 0

    return [batched(fw, rule), shapes]


@row("VMAP-08", "same", "the rule returns a pair")
@says("Got a <class 'jax", "Got 3 returns", "Got a <class 'list'>", "`MyF.vmap`")
def _(fw):
    no_pairs = lambda x: (x, 0, 0), lambda x: (x,), lambda x: [x, 0], lambda x: None
    return each(fw, lambda x: x, *no_pairs)


@row("VMAP-09", "same", "out_dims fits the output")
@says("Expected out_dims=(0,) to be compatible with the structure of `output`")
def _(fw):
    return each(
        fw,
        lambda x: (x, (0,)),
        lambda x: ([x], (0,)),
        lambda x: (x, [0, 0]),
        lambda x: (x, {"a": 0}),
    )


@row("VMAP-11", "same", "out_dims None: a value that all examples share")
def _(fw):
    def rule(info, in_dims, x):
        return (5 * fw.np.ones(3), 2 * x), (None, 0)

    def forward(x):
        return 5 * fw.np.ones(3), 2 * x

    return [
        batched(fw, lambda info, in_dims, x: (5 * fw.np.ones(3), None)),
        batched(fw, rule, forward),
    ]


@row("VMAP-12", "superset", "None as an output")
@expect(lambda fw: {"used": 2 * matrix(fw), "returned": (2 * matrix(fw), None)})
def _(fw):
    def rule(info, in_dims, x):
        return (2 * x, None), (0, None)

    f = fw.separate(lambda x: (2 * x, None), vmap=rule).apply
    vmap = func(fw).vmap
    return {
        "used": fw.call(vmap(lambda x: f(x)[0]), matrix(fw)),
        "returned": fw.attempt(lambda: fw.call(vmap(f), matrix(fw))),
    }


@row("VMAP-15", "same", "an out_dim out of range")
def _(fw):
    return each(fw, lambda x: (2 * x, 5), lambda x: (2 * x, 2))


@row("VMAP-16", "superset", "a batch of the wrong size is refused")
@expect(lambda fw: [wrong_size(0, 1), wrong_size(1, 3), wrong_size(0, 4)])
def _(fw):
    other = fw.np.ones((4, 3))
    return each(fw, lambda x: (x[:1], 0), lambda x: (2 * x, 1), lambda x: (other, 0))


def wrong_size(dim, got):
    text = "`MyF.vmap` returned a batch of the wrong size for output array 0"
    return Raises(ValueError, text, f"expected 2 at dim {dim}, got {got}")


@row("VMAP-17", "must differ", "an out_dim that is no int gets words of its own")
@expect(lambda fw: [bad_dims("'a' of type str"), bad_dims("0.0 of type float")])
def _(fw):
    return each(fw, lambda x: (2 * x, "a"), lambda x: (2 * x, 0.0))


def bad_dims(got):
    text = "`MyF.vmap` returned a bad out_dims for output array 0"
    return Raises(TypeError, text, "expected an int or None", f"got {got}")


@row("VMAP-18", "same", "the rule is not called where nothing is batched")
def _(fw):
    calls = []

    def forward(x):
        calls.append("forward")
        return 2 * x

    def rule(info, in_dims, x):
        calls.append("vmap")
        return 5 * x, in_dims[0]

    f = fw.separate(forward, vmap=rule).apply
    k = fw.array([10.0, 20.0, 30.0])
    found = fw.call(func(fw).vmap(lambda x: f(k) + x), matrix(fw))
    return [found, sorted(set(calls))]


@row("VMAP-20", "must differ", "out_dims None for a batched input is refused")
@raises(
    ValueError,
    "`MyF.vmap` returned other values than forward for output array 0",
    "expected f32[3] for each example, got f32[2,3]",
)
def _(fw):
    # torch knows the input by its identity, and ignores out_dims
    return batched(fw, lambda info, in_dims, x: (x, None), lambda x: 1 * x)
