"""Transformations that stack: each takes a function of flat arrays and gives another.

The new function takes the same arguments, so any transformation goes around any other.
What it computes depends on them through the old one in a way that is not linear, so
that outer derivatives meet the values as well as the derivatives of inner ones. Results
without a derivative (of integers and keys) are dropped where derivatives are taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.build import function, in_style, saving
from tests.laws.catalogue import Flat

# ---- helpers


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def places(args: Any) -> tuple[int, ...]:
    """Which arguments are differentiated."""
    return tuple(i for i, x in enumerate(args) if is_inexact(x))


def smooth(f: Flat) -> Flat:
    """`f` with a list of its float and complex results only."""
    return lambda *args: [x for x in jax.tree.leaves(f(*args)) if is_inexact(x)]


def of_inexact(f: Flat, args: Any) -> tuple[Flat, list[Any]]:
    """`f` as a function of the arguments that are differentiated, and these."""
    at = places(args)

    def g(*some: Any) -> Any:
        full = list(args)
        for i, x in zip(at, some, strict=True):
            full[i] = x
        return f(*full)

    return g, [args[i] for i in at]


def _wave(x: Any, shift: float) -> Any:
    w = np.cos(np.arange(x.size) * 1.3 + shift).reshape(x.shape)
    return jnp.asarray(w, jnp.finfo(x.dtype).dtype).astype(x.dtype)


def like(xs: Any, shift: float) -> list[Any]:
    """Tangents or cotangents for these arrays: all different."""
    return [_wave(x, shift + i) for i, x in enumerate(xs)]


def loss(outs: Any) -> Any:
    """A real number: weighted, and with the square of each value."""
    total = jnp.zeros(())
    for i, x in enumerate(jax.tree.leaves(outs)):
        if is_inexact(x):
            weighted = (_wave(x, i + 0.5) * x).sum().real
            total += (weighted + 0.1 * (x * x.conj()).real.sum()).astype(total.dtype)
    return total


def scale(args: Any, s: Any) -> list[Any]:
    """The arguments, with those that are differentiated times `s`."""
    return [x * s.astype(x.dtype) if is_inexact(x) else x for x in args]


def points(*values: float) -> jax.Array:
    """An array of the default width."""
    return jnp.array(values, jnp.zeros(()).dtype)


# ---- derivatives


def grad(f: Flat) -> Flat:
    return lambda *args: jax.grad(lambda *a: loss(f(*a)), places(args))(*args)


def value_and_grad(f: Flat) -> Flat:
    def with_aux(*args):
        outs = f(*args)
        return loss(outs), outs

    return lambda *args: jax.value_and_grad(with_aux, places(args), has_aux=True)(*args)


def vjp(f: Flat) -> Flat:
    def g(*args):
        h, some = of_inexact(smooth(f), args)
        outs, pull = jax.vjp(h, *some)
        return outs, pull(like(outs, 0.2))

    return g


def jvp(f: Flat) -> Flat:
    def g(*args):
        h, some = of_inexact(smooth(f), args)
        return jax.jvp(h, some, like(some, 0.7))

    return g


def linearize(f: Flat) -> Flat:
    def g(*args):
        h, some = of_inexact(smooth(f), args)
        outs, push = jax.linearize(h, *some)
        return outs, push(*like(some, 0.7))

    return g


def _real(xs: Any) -> list[Any]:
    """Each complex array as two real ones."""
    parts = [(x.real, x.imag) if jnp.iscomplexobj(x) else (x,) for x in xs]
    return [x for pair in parts for x in pair]


def jacobian(jac: Callable[..., Any]) -> Callable[[Flat], Flat]:
    """`jac` of everything, with complex numbers as pairs of real ones."""

    def transform(f):
        def g(*args):
            h, some = of_inexact(smooth(f), args)

            def real(*xs):
                rest = iter(xs)
                made = [
                    lax.complex(next(rest), next(rest))
                    if jnp.iscomplexobj(x)
                    else next(rest)
                    for x in some
                ]
                return _real(h(*made))

            xs = _real(some)
            return jac(real, tuple(range(len(xs))))(*xs)

        return g

    return transform


def hessian(f: Flat) -> Flat:
    return jacobian(jax.hessian)(lambda *args: loss(f(*args)))


def linear_transpose(f: Flat) -> Flat:
    def g(x):
        (ct,) = jax.linear_transpose(f, x)(f(x))
        return ct

    return g


# ---- vmap


def _stack(x: Any, axis: int = 0) -> Any:
    half = x * 0.5 if is_inexact(x) else x
    return jnp.stack([x, half.astype(x.dtype)], axis)


def vmap(axis: int = 0, **options: Any) -> Callable[[Flat], Flat]:
    def transform(f):
        return lambda *args: jax.vmap(f, in_axes=axis, **options)(
            *[_stack(x, axis) for x in args]
        )

    return transform


def vmap_one(f: Flat) -> Flat:
    """The first argument only; a second one that is not used if there is no other."""

    def g(*args):
        first = _stack(args[0])
        if len(args) == 1:
            return jax.vmap(lambda x, _: f(x), in_axes=(0, None))(first, args[0])
        axes = (0, *[None] * (len(args) - 1))
        return jax.vmap(f, in_axes=axes)(first, *args[1:])

    return g


def vmap_nested(f: Flat) -> Flat:
    """The last argument by the outer vmap, the others by the inner one."""

    def g(*args):
        *others, last = args
        if not others:
            return jax.vmap(jax.vmap(f))(_stack(_stack(last)))
        inner = jax.vmap(f, in_axes=(*[0] * len(others), None))
        outer = jax.vmap(inner, in_axes=(*[None] * len(others), 0))
        return outer(*[_stack(x) for x in others], _stack(last))

    return g


def vmap_collective(f: Flat) -> Flat:
    """Examples that talk to each other, before and after."""

    def one(*args):
        shared = [
            x - 0.3 * lax.pmean(x, "i").astype(x.dtype) if is_inexact(x) else x
            for x in args
        ]
        outs = smooth(f)(*shared)
        return [x + 0.5 * lax.psum(x, "i").astype(x.dtype) for x in outs]

    return vmap(axis_name="i")(one)


# ---- control flow


def _next(carry: Any, outs: Any) -> Any:
    return jnp.tanh(carry + 0.3 * loss(outs))


def scan(f: Flat) -> Flat:
    def g(*args):
        def body(carry, s):
            outs = f(*scale(args, s + 0.2 * carry))
            return _next(carry, outs), outs

        return lax.scan(body, jnp.zeros(()), points(0.9, 0.6))

    return g


def _loop(f: Flat, args: Any) -> tuple[Any, Any]:
    """One turn of a loop, and its first carry."""

    def turn(carry):
        outs = f(*scale(args, 0.8 + 0.2 * carry[0]))
        return _next(carry[0], outs), outs

    shapes = jax.eval_shape(f, *args)
    outs = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return turn, (jnp.zeros(()), outs)


def fori_loop(f: Flat) -> Flat:
    def g(*args):
        turn, first = _loop(f, args)
        return lax.fori_loop(0, 2, lambda _, carry: turn(carry), first)

    return g


def while_loop(f: Flat) -> Flat:
    def g(*args):
        turn, first = _loop(f, args)
        return lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, turn(c[1])), (0, first)
        )

    return g


def cond(f: Flat) -> Flat:
    def g(*args):
        positive = loss(args) < 1e6

        def other(*args):
            return jax.tree.map(lambda x: x + x if is_inexact(x) else x, f(*args))

        return lax.cond(positive, f, other, *args)

    return g


def switch(f: Flat) -> Flat:
    def g(*args):
        index = (loss(args) < 1e6).astype(int)

        def halves(*args):
            return f(*scale(args, points(0.5)[0]))

        return lax.switch(index, [f, halves, f], *args)

    return g


def associative_scan(f: Flat) -> Flat:
    def g(*args):
        def combine(a, b):
            return jnp.tanh(a + b + 0.3 * loss(f(*scale(args, 0.5 + a * b))))

        return lax.associative_scan(jax.vmap(combine), points(0.9, 0.5, 0.3))

    return g


def map_in_batches(f: Flat) -> Flat:
    def g(*args):
        xs = points(1.0, 0.7, 0.4)
        return lax.map(lambda s: f(*scale(args, s)), xs, batch_size=2)

    return g


# ---- solvers


def custom_root(f: Flat) -> Flat:
    """The y with y = 0.1 tanh(loss of f at its arguments times 1 + y)."""

    def g(*args):
        def target(y):
            return 0.1 * jnp.tanh(loss(f(*scale(args, 1 + y))))

        def solve(residual, y):
            return lax.fori_loop(0, 10, lambda _, y: y - residual(y), y)

        return lax.custom_root(
            lambda y: y - target(y),
            jnp.zeros(()),
            solve,
            lambda g, y: y / g(jnp.ones_like(y)),
        )

    return g


def custom_linear_solve(f: Flat) -> Flat:
    """The Function gives the coefficients."""

    def g(*args):
        a = 2 + jnp.tanh(loss(f(*args)))
        return lax.custom_linear_solve(
            lambda v: a * v, points(0.3, 0.8), lambda _, b: b / a, symmetric=True
        )

    return g


def linear_solve_of(f: Flat) -> Flat:
    """The Function is (a part of) the linear map."""

    def g(x):
        def matvec(v):
            return 3 * v + 0.5 * f(v)

        def matrix():
            return jnp.stack([matvec(e) for e in jnp.eye(x.size, dtype=x.dtype)], 1)

        return lax.custom_linear_solve(
            matvec,
            jnp.sin(x),
            lambda _, b: jnp.linalg.inv(matrix()) @ b,
            lambda _, b: jnp.linalg.inv(matrix().T) @ b,
        )

    return g


# ---- checkpoint, and definitions around


def checkpoint(policy: Any = None) -> Callable[[Flat], Flat]:
    return lambda f: jax.checkpoint(f, policy=policy)


def in_a_function(f: Flat) -> Flat:
    """Inside another Function's forward, backward and jvp."""

    def backward(ctx, grads):
        args = ctx.saved_tensors
        h, some = of_inexact(smooth(f), args)
        _, pull = jax.vjp(h, *some)
        given = [g.conj() for g in jax.tree.leaves(grads) if is_inexact(g)]
        found = iter(pull(given))
        return tuple([next(found).conj() if is_inexact(x) else None for x in args])

    def jvp(ctx, *tangents):
        h, some = of_inexact(smooth(f), ctx.saved_tensors)
        _, dots = jax.jvp(h, some, [t for t in tangents if t is not None])
        found = iter(dots)
        shapes = jax.eval_shape(f, *ctx.saved_tensors)
        return [jax.tree.map(lambda s: next(found) if is_inexact(s) else None, shapes)]

    rules = in_style("combined", lambda *args: [f(*args)], saving())
    outer = function("Outer", backward=backward, jvp=jvp, **rules)
    return lambda *args: outer.apply(*args)[0]


def in_a_custom_vjp(f: Flat) -> Flat:
    def g(*args):
        h, some = of_inexact(smooth(f), args)
        outer = jax.custom_vjp(h)
        outer.defvjp(lambda *some: jax.vjp(h, *some), lambda pull, cts: pull(cts))
        return outer(*some)

    return g


def in_a_custom_jvp(f: Flat) -> Flat:
    def g(*args):
        h, some = of_inexact(smooth(f), args)
        outer = jax.custom_jvp(h)
        outer.defjvp(lambda primals, tangents: jax.jvp(h, primals, tangents))
        return outer(*some)

    return g


# ---- the table


@dataclasses.dataclass(frozen=True)
class Transformation:
    """One way to transform.

    Attributes:
        apply: to a function.
        plain: the same for the reference, where a custom derivative is not plain.
        kinds: of derivative that it takes of the function: "reverse", "forward".
        refuses: kinds of outer derivative that JAX refuses, whatever is inside.
        linear: for linear Functions only, and directly around them.
        leaks: does JAX's leak checker find fault with it, whatever is inside?
    """

    apply: Callable[[Flat], Flat]
    plain: Callable[[Flat], Flat] | None = None
    kinds: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    linear: bool = False
    leaks: bool = False


_reverse, _forward = frozenset({"reverse"}), frozenset({"forward"})
_dots = jax.checkpoint_policies.dots_saveable
_names = jax.checkpoint_policies.save_only_these_names("kept")

TRANSFORMATIONS: dict[str, Transformation] = {
    "jit": Transformation(jax.jit),
    "grad": Transformation(grad, kinds=_reverse),
    "value_and_grad": Transformation(value_and_grad, kinds=_reverse),
    "vjp": Transformation(vjp, kinds=_reverse),
    "jvp": Transformation(jvp, kinds=_forward),
    "linearize": Transformation(linearize, kinds=_forward),
    "jacrev": Transformation(jacobian(jax.jacrev), kinds=_reverse),
    "jacfwd": Transformation(jacobian(jax.jacfwd), kinds=_forward),
    "hessian": Transformation(hessian, kinds=_reverse | _forward),
    "vmap": Transformation(vmap()),
    "vmap one": Transformation(vmap_one),
    "vmap last": Transformation(vmap(-1)),
    "vmap nested": Transformation(vmap_nested),
    "vmap out": Transformation(vmap(out_axes=-1)),
    "vmap collective": Transformation(vmap_collective),
    "vmap spmd": Transformation(vmap(spmd_axis_name="devices")),
    "scan": Transformation(scan),
    "fori": Transformation(fori_loop),
    "while": Transformation(while_loop, refuses=_reverse),
    "cond": Transformation(cond),
    "switch": Transformation(switch),
    "associative scan": Transformation(associative_scan),
    "map": Transformation(map_in_batches),
    "checkpoint": Transformation(checkpoint()),
    "checkpoint dots": Transformation(checkpoint(_dots)),
    "checkpoint names": Transformation(checkpoint(_names)),
    "root": Transformation(custom_root, kinds=_reverse | _forward),
    "linear solve": Transformation(custom_linear_solve, kinds=_reverse | _forward),
    "in a Function": Transformation(in_a_function, plain=lambda f: f),
    "in a custom_vjp": Transformation(
        in_a_custom_vjp, plain=smooth, kinds=_reverse, refuses=_forward, leaks=True
    ),
    "in a custom_jvp": Transformation(
        in_a_custom_jvp, plain=smooth, kinds=_forward, leaks=True
    ),
    "linear_transpose": Transformation(linear_transpose, linear=True),
    "linear solve of": Transformation(linear_solve_of, linear=True),
}

PAIRS = ("jit", "grad", "vjp", "jvp", "linearize", "jacfwd") + (
    "vmap",
    "scan",
    "cond",
    "map",
    "checkpoint",
    "in a Function",
)
"""A dozen of which all pairs are tried."""
