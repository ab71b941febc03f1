"""A constant, of any kind and in any place, is an array to every rule.

JAX hands constants on as it found them: as numbers with a dtype, as NumPy arrays with
or without one. Here each kind stands in each place of a Function (an argument, what is
saved, an output, a gradient, a tangent), in each control flow, under each derivative.
Value, dtype and derivative equal plain JAX, and every array that a rule sees is a
`jax.Array`. Rules in JAX's own terms may see what those of JAX's own decorators see;
and NumPy that a rule itself keeps on ctx may come back as it was kept: it may be needed
where a trace has no values (`jnp.transpose(g, ctx.order)`).

In the cells each kind meets each place, as does each maker of a Function, and most
derivatives are compiled as a whole. A normal run has every other cell; `--full` has
them all, and a cover of all pairs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from tests.build import function
from tests.sizes import parametrize

SEED = 20

# ---- kinds: make(value, dtype) prepares, and what it returns makes the constant


def made_inside(value, dtype):
    return lambda: jnp.asarray([value, 2 * value])


def jax_of_numpy(value, dtype):
    constant = np.array([value, 2 * value], dtype)
    return lambda: jnp.asarray(constant)


def numpy_array(value, dtype):
    constant = np.array([value, 2 * value], dtype)
    return lambda: constant


def numpy_double(value, dtype):
    return numpy_array(value, np.float64)


def numpy_integers(value, dtype):
    return numpy_array(value, np.int64)


def numpy_scalar(value, dtype):
    constant = np.dtype(dtype).type(value)
    return lambda: constant


def numpy_no_dimension(value, dtype):
    constant = np.array(value, dtype)
    return lambda: constant


def made_outside(value, dtype):
    constant = jnp.array([value, 2 * value], dtype)
    return lambda: constant


def bfloat16(value, dtype):
    return lambda: jnp.asarray(value, jnp.bfloat16)


KINDS = {
    "number": lambda value, _: lambda: jnp.asarray(value),
    "integer": lambda value, _: lambda: jnp.asarray(int(value)),
    "complex": lambda value, _: lambda: jnp.asarray(complex(value, 0.5)),
    "boolean": lambda value, _: lambda: jnp.asarray(bool(value)),
    "bfloat16": bfloat16,
    "made inside": made_inside,
    "made outside": made_outside,
    "JAX of NumPy": jax_of_numpy,
    "NumPy array": numpy_array,
    "NumPy without dimension": numpy_no_dimension,
    "NumPy scalar": numpy_scalar,
    "NumPy float64": numpy_double,
    "NumPy int64": numpy_integers,
}
VECTORS = ("made", "JAX of", "NumPy array", "NumPy float64", "NumPy int64")

# A gradient or tangent must have the dtype of its argument or output, but for torch,
# which converts what is real.
EXACT = {"number", "made inside", "made outside", "JAX of NumPy", "NumPy array"}
EXACT |= {"NumPy without dimension", "NumPy scalar"}
REAL = EXACT | {"integer", "bfloat16", "NumPy float64", "NumPy int64"}

# ---- places: the same mathematics, x * x * c, or x * x * 2 beside a constant zero

PLACES = [
    "argument",
    "saved",
    "attribute",
    "nested attribute",
    "output",
    "gradient",
    "tangent",
]
ZEROS = ("gradient", "tangent")


class Seen:
    """Says what a rule may see: each array must be a `jax.Array`, or it is recorded."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.others: set[tuple[str, type]] = set()

    def __call__(self, rule: str, *values: Any) -> None:
        for x in jax.tree.leaves(values):
            if isinstance(x, jax.Array):
                assert x.at is not None
                assert x.astype(x.dtype).shape == x.shape
            elif self.strict:
                raise AssertionError(f"{rule} saw {type(x)}: {x}")
            elif getattr(x, "dtype", None) != jax.dtypes.float0:
                self.others.add((rule, type(x)))


@dataclasses.dataclass
class Maths:
    """Value, pullback and pushforward with the constant in its place."""

    place: str
    constant: Any
    conj: bool

    def held(self, inputs) -> tuple[Any, Any]:
        """What the rules need: x and the constant."""
        constant = inputs[1] if self.place == "argument" else self.constant()
        return inputs[0], constant

    def out(self, x, c):
        if self.place == "gradient":
            return x * x * 2
        if self.place == "tangent":
            return x * x * 2, jnp.zeros_like(x)
        return (x * x, c) if self.place == "output" else x * x * c

    def pull(self, x, c, cts) -> tuple[Any, ...]:
        g = cts[0]
        if self.place == "gradient":
            return 4 * x * g, c
        if self.place == "tangent":
            return (4 * x * g,)
        if self.place == "output":
            return (2 * x * g,)
        slope = jnp.conj(c) if self.conj else c
        of_x = (2 * x * slope * g).real.astype(x.dtype)
        if self.place != "argument":
            return (of_x,)
        if not jnp.issubdtype(c.dtype, jnp.inexact):
            return of_x, None
        return of_x, (x * x * g).astype(c.dtype)

    def push(self, x, c, ts) -> Any:
        t = ts[0]
        if self.place == "gradient":
            return 4 * x * t
        if self.place == "tangent":
            return 4 * x * t, c
        if self.place == "output":
            return 2 * x * t, no_tangent(c)
        dot = 2 * x * c * t
        if self.place == "argument" and ts[1] is not None and is_smooth(ts[1]):
            dot = dot + x * x * ts[1]
        return dot

    def apply(self, f, x) -> Any:
        """What the function computes with it; real."""
        if self.place == "argument":
            return real(f(x, self.constant()))
        outs = f(x, x) if self.place == "gradient" else f(x)
        if self.place == "tangent":
            return outs[0] + outs[1]
        return real(outs[0] * outs[1]) if self.place == "output" else real(outs)

    def plain(self, x) -> Any:
        return real(x * x * (2 if self.place in ZEROS else self.constant()))


def is_numpy(x) -> bool:
    return isinstance(x, (np.ndarray, np.generic))


def real(x):
    return x.real + 2 * x.imag if jnp.iscomplexobj(x) else x


def is_smooth(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def no_tangent(x):
    if is_smooth(jnp.asarray(x)):
        return jnp.zeros_like(x)
    return np.zeros(np.shape(x), jax.dtypes.float0)


# ---- Functions in torch's terms


def torch_rules(m: Maths, see: Seen) -> dict[str, Any]:
    """All rules, for the separate style."""
    kept_numpy = m.place != "argument" and is_numpy(m.constant())

    def forward(*inputs):
        see("forward", *inputs)
        return m.out(*m.held(inputs))

    def setup_context(ctx, inputs, output):
        see("setup_context", *inputs, output)
        x, c = m.held(inputs)
        saved = (x, c) if m.place in ("argument", "saved") else (x,)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        if m.place == "attribute":
            ctx.constant = c
        if m.place == "nested attribute":
            ctx.held = {"constants": [c, "static"]}

    def load(ctx):
        x, *rest = ctx.saved_tensors
        if m.place == "attribute":
            rest = [ctx.constant]
        if m.place == "nested attribute":
            assert ctx.held["constants"][1] == "static"
            rest = [ctx.held["constants"][0]]
        if not kept_numpy:
            see("saved", *rest)
        see("saved", x)
        # Nothing is saved of the others, and a rule makes the constant anew.
        return x, rest[0] if rest else m.constant()

    def backward(ctx, *grads):
        see("backward", *grads)
        return m.pull(*load(ctx), grads)

    def jvp(ctx, *tangents):
        see("jvp", *tangents)
        dots = m.push(*load(ctx), tangents)
        return (dots[0], None) if m.place == "output" else dots

    def vmap(info, in_dims, *inputs):
        # The axis of the batch is the first; the constant has none, and broadcasts.
        see("vmap", *inputs)
        dims = {"output": (in_dims[0], None), "tangent": (in_dims[0],) * 2}
        return m.out(*m.held(inputs)), dims.get(m.place, in_dims[0])

    return {
        "forward": forward,
        "setup_context": setup_context,
        "backward": backward,
        "jvp": jvp,
        "vmap": vmap,
    }


ENGINES = {
    "backward": ("backward",),
    "jvp": ("jvp",),
    "both": ("backward", "jvp"),
    "derived": ("backward",),
}


def class_function(m: Maths, see: Seen, engine: str, style: str) -> Any:
    rules = torch_rules(m, see)
    chosen = {name: rules[name] for name in ENGINES[engine]}
    if engine == "derived":
        chosen["generate_jvp_rule"] = True
    if style == "separate":
        chosen |= {k: rules[k] for k in ("forward", "setup_context")}
        return function(**chosen).apply

    def forward(ctx, *inputs):
        out = rules["forward"](*inputs)
        rules["setup_context"](ctx, inputs, [])
        return out

    return function(forward=forward, **chosen).apply


def torch_decorated(m: Maths, see: Seen, engine: str, _: str) -> Any:
    rules = torch_rules(m, see)
    names = ("backward", "jvp", "vmap") if engine == "vmap" else ENGINES[engine]
    chosen = {k: rules[k] for k in ("setup_context", *names)}
    return jaxfn.custom_function(rules["forward"], **chosen)


# ---- Functions in JAX's terms


def jax_rules(m: Maths, see: Seen) -> Any:
    def fun(*inputs):
        see("fun", *inputs)
        return m.out(*m.held(inputs))

    def fwd(*inputs):
        see("fwd", *inputs)
        x, c = m.held(inputs)
        saved = {"attribute": {"c": c}, "nested attribute": {"c": {"d": [c]}}}
        return m.out(x, c), (x, saved.get(m.place, c))

    def bwd(residuals, cts):
        see("bwd", residuals, cts)
        x, saved = residuals
        (c,) = jax.tree.leaves(saved)
        return m.pull(x, jnp_if(c, m.place), jax.tree.leaves(cts))

    def jvp(primals, tangents):
        see("jvp", primals, tangents)
        x, c = m.held(primals)
        return m.out(x, c), m.push(x, c, tangents)

    def batch(size, batched, *inputs):
        see("def_vmap", *inputs)
        flags = {"output": (batched[0], False), "tangent": (batched[0],) * 2}
        return m.out(*m.held(inputs)), flags.get(m.place, batched[0])

    return fun, fwd, bwd, jvp, batch


def jnp_if(c, place):
    """A gradient as the constant came; else an array, as JAX's own rules must."""
    return c if place == "gradient" else jnp.asarray(c)


def jax_decorated(m: Maths, see: Seen, engine: str, _: str) -> Any:
    fun, fwd, bwd, jvp, batch = jax_rules(m, see)
    f = jaxfn.custom_function(fun)
    if engine in ("defvjp", "all"):
        f.defvjp(fwd, bwd)
    if engine in ("defjvp", "all", "defvjp and defjvp"):
        f.defjvp(jvp)
    if engine == "defvjp and defjvp":
        f.defvjp(fwd, bwd)
    if engine in ("def_vmap", "all"):
        f.def_vmap(batch)
    return f


def jax_own(m: Maths, see: Seen) -> list[Any]:
    """The same rules under JAX's decorators, each kind alone."""
    fun, fwd, bwd, jvp, batch = jax_rules(m, see)
    reverse = jax.custom_vjp(fun)
    reverse.defvjp(fwd, bwd)
    forward = jax.custom_jvp(fun)
    forward.defjvp(jvp)
    batched = jax.custom_batching.custom_vmap(fun)
    batched.def_vmap(batch)
    return [reverse, forward, batched]


MAKERS = {
    **{
        f"{style}: {engine}": (class_function, engine, style)
        for style in ("combined", "separate")
        for engine in ENGINES
    },
    **{
        f"torch-style: {engine}": (torch_decorated, engine, "")
        for engine in ("backward", "jvp", "both", "vmap")
    },
    **{
        f"JAX-style: {engine}": (jax_decorated, engine, "")
        for engine in ("defvjp", "defjvp", "defvjp and defjvp", "all", "def_vmap")
    },
}

# ---- what is around the call


def evaluated(f):
    """The jaxpr, by JAX's interpreter: it hands on literals as they stand."""

    def g(x):
        jaxpr = jax.make_jaxpr(f)(x)
        return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x)[0]

    return g


def scanned(f):
    def g(x):
        return lax.scan(lambda c, y: (c + f(c * y).astype(c.dtype), y), x, np.ones(2))[
            0
        ]

    return g


def looped(f):
    def g(x):
        def body(state):
            return state[0] + 1, jnp.sin(f(state[1])).astype(x.dtype)

        return lax.while_loop(lambda state: state[0] < 2, body, (0, x))[1]

    return g


CONTEXTS = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "evaluated jaxpr": evaluated,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x / 2])).sum(0),
    "map": lambda f: lambda x: lax.map(f, jnp.stack([x, x / 2])).sum(0),
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, f, lambda x: 0 * f(x), x),
    "switch": lambda f: (
        lambda x: lax.switch(
            (x.sum() > 0).astype(int), [lambda x: 0 * f(x), f, lambda x: -f(x)], x
        )
    ),
    "scan": scanned,
    "fori_loop": lambda f: (
        lambda x: lax.fori_loop(0, 2, lambda _, y: jnp.sin(f(y)).astype(y.dtype), x)
    ),
    "while_loop": looped,
}


def total(f):
    return lambda x: jnp.sin(f(x)).sum()


def pushed(f):
    return lambda x: jax.jvp(f, (x,), (0.3 * jnp.ones_like(x),))


ORDERS = {
    "jit": jax.jit,
    "grad of jit": lambda f: jax.grad(jax.jit(total(f))),
    "jit of grad": lambda f: jax.jit(jax.grad(total(f))),
    "grad": lambda f: jax.grad(total(f)),
    "jvp": pushed,
    "jvp of jit": lambda f: pushed(jax.jit(f)),
    "jit of jvp": lambda f: jax.jit(pushed(f)),
    "hessian": lambda f: jax.hessian(total(f)),
    "hessian of jit": lambda f: jax.hessian(jax.jit(total(f))),
    "jit of hessian": lambda f: jax.jit(jax.hessian(total(f))),
    "grad of grad": lambda f: jax.grad(total(jax.grad(total(f)))),
    "jit of jacfwd of jacfwd": lambda f: jax.jit(jax.jacfwd(jax.jacfwd(f))),
}
FORWARD = {"jvp", "jvp of jit", "jit of jvp", "jit of jacfwd of jacfwd"}
WITHOUT_REVERSE = {"jit", *FORWARD}

# ---- cells


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry of each list.

    Attributes:
        maker: of the Function.
        place: of the constant.
        kind: of the constant.
        context: around the call.
        order: of derivatives.
        wide: with 64 bits?
    """

    maker: str
    place: str
    kind: str
    context: str
    order: str
    wide: bool

    def __str__(self) -> str:
        width = "x64" if self.wide else "x32"
        return (
            f"{self.order} of {self.context} of {self.maker}, {self.kind} as "
            f"{self.place}, {width}"
        )

    @property
    def is_jax_style(self) -> bool:
        return self.maker.startswith("JAX-style")

    def is_valid(self) -> bool:
        """Does JAX have it for the same mathematics, and is the place one of a rule?"""
        engine = MAKERS[self.maker][1]
        reverse_only = engine in ("backward", "defvjp")
        if reverse_only and self.order in FORWARD:
            return False
        # JAX has no reverse mode of it.
        if self.context == "while_loop" and self.order not in WITHOUT_REVERSE:
            return False
        if self.place in ZEROS:
            has = {"gradient": "backward", "tangent": "jvp"}[self.place]
            names = (*ENGINES.get(engine, ()), *JAX_ENGINES.get(engine, ()))
            if has not in names and engine != "vmap":
                return False
            return self.kind in (EXACT if self.is_jax_style else REAL)
        return True

    def run(self, function: Any, transform: Any = lambda f: f) -> list[np.ndarray]:
        """The results for this function of x."""
        x = jnp.asarray([0.6, 0.4] if self.kind.startswith(VECTORS) else 0.6)
        f = transform(ORDERS[self.order](CONTEXTS[self.context](function)))
        return [np.asarray(out) for out in jax.tree.leaves(f(x))]

    def maths(self) -> Maths:
        value = 0.0 if self.place in ZEROS else 1.0
        constant = KINDS[self.kind](value, jnp.zeros(()).dtype)
        return Maths(self.place, constant, conj=not self.is_jax_style)

    def expected(self) -> list[np.ndarray]:
        place = "zero" if self.place in ZEROS else "any"
        return _expected(place, self.kind, self.context, self.order, self.wide)

    def got(self) -> list[np.ndarray]:
        make, engine, style = MAKERS[self.maker]
        see = Seen(strict=not self.is_jax_style)
        with jax.enable_x64(self.wide):
            m = self.maths()
            f = make(m, see, engine, style)
            outs = self.run(lambda x: m.apply(f, x))
            if see.others:
                assert see.others <= self.seen_by_jax()
        return outs

    def seen_by_jax(self) -> set[tuple[str, type]]:
        """What is no `jax.Array` to the same rules under JAX's own decorators."""
        found: set[tuple[str, type]] = set()
        m = self.maths()
        for i in range(3):
            see = Seen(strict=False)
            f = jax_own(m, see)[i]
            try:
                self.run(lambda x, f=f: m.apply(f, x))
            except (TypeError, NotImplementedError, ValueError):
                continue  # this decorator alone has no such derivative
            found |= see.others
        return found


JAX_ENGINES = {
    "defvjp": ("backward",),
    "defjvp": ("jvp",),
    "defvjp and defjvp": ("backward", "jvp"),
    "all": ("backward", "jvp"),
}


# Under `jit`, which changes neither value nor dtype and takes a third of the time.
@functools.cache
def _expected(place: str, kind: str, context: str, order: str, wide: bool) -> Any:
    place = "gradient" if place == "zero" else "saved"
    cell = Cell("JAX-style: defvjp", place, kind, context, order, wide)
    with jax.enable_x64(wide):
        return cell.run(cell.maths().plain, jax.jit)


LISTS: dict[str, list[Any]] = {
    "maker": list(MAKERS),
    "place": PLACES,
    "kind": list(KINDS),
    "context": list(CONTEXTS),
    "order": list(ORDERS),
    "wide": [False, True],
}
ALL_PAIRS = list(itertools.combinations(LISTS, 2))
SOME_PAIRS = [("maker", "place"), ("place", "kind"), ("context", "wide")]
# How often: eager derivatives compile each operation, and second ones have many.
SECOND = ("hessian", "hessian of jit", "jit of hessian", "grad of grad") + (
    "jit of jacfwd of jacfwd",
)
WEIGHTS = {"jit": 3, "jit of grad": 8, "grad of jit": 3, "jit of jvp": 8}
WEIGHTS |= dict.fromkeys(SECOND, 0.4)


@functools.cache
def cells(times: int = 0) -> list[Cell]:
    """Cells in which pairs of entries meet; or so many covers of all that may."""
    covers = range(times or 1)
    pairs = ALL_PAIRS if times else SOME_PAIRS
    found = [_cover(random.Random(SEED + k), pairs) for k in covers]
    return list(dict.fromkeys(itertools.chain(*found)))


def _cover(chosen: random.Random, pairs: list[tuple[str, str]]) -> list[Cell]:
    """The next pair that is left, in that cell of a few which has the most others."""
    todo = [{i: a, j: b} for i, j in pairs for a in LISTS[i] for b in LISTS[j]]
    chosen.shuffle(todo)
    left = {tuple(pair.items()): pair for pair in todo}
    found: list[Cell] = []
    while left:
        key, fixed = next(iter(left.items()))
        tried = [_with(chosen, fixed) for _ in range(10)]
        valid = [cell for cell in tried if cell is not None]
        left.pop(key)
        if not valid:
            continue
        met = [[k for k in left if _has(cell, k)] for cell in valid]
        best = max(range(len(valid)), key=lambda i: len(met[i]))
        found.append(valid[best])
        for k in met[best]:
            left.pop(k)
    return found


def _with(chosen: random.Random, fixed: dict[str, Any]) -> Cell | None:
    """A valid cell with these entries; None if a few tries find none."""
    for _ in range(30):
        entries = {name: chosen.choice(items) for name, items in LISTS.items()}
        weights = [WEIGHTS.get(order, 1) for order in ORDERS]
        (entries["order"],) = chosen.choices(LISTS["order"], weights)
        cell = Cell(**{**entries, **fixed})
        if cell.is_valid():
            return cell
    return None


def _has(cell: Cell, pair: tuple[tuple[str, Any], ...]) -> bool:
    return all(getattr(cell, name) == entry for name, entry in pair)


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "cell", cells()[::2], lambda times: cells() + cells(times))


def test_the_gradient_of_a_jitted_call_with_a_number_made_in_it():
    def backward(ctx, g):
        x, c = ctx.saved_tensors
        Seen(strict=True)("backward", x, c, g)
        return 2 * x * c.at[...].get() * g, None

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    F = function(  # noqa: N806
        forward=lambda x, c: x * x * c, setup_context=setup_context, backward=backward
    )
    got = jax.grad(jax.jit(lambda x: F.apply(x, jnp.asarray(2.0))))(1.0)
    assert got == 4
    assert got.dtype == jnp.float32


def test_a_constant_is_an_array_to_every_rule(cell: Cell):
    expected, got = cell.expected(), cell.got()
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        tol = 1e-9 if cell.wide else 1e-4
        if cell.kind == "bfloat16":
            tol = 0.02
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


WHOLE = {
    "grad": lambda f: jax.grad(f),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(x[None])[0],
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in REAL])
def test_a_gradient_that_is_a_constant(kind):
    make = KINDS[kind](3, jnp.float32)
    f = function(
        forward=lambda ctx, x: x * make(), backward=lambda ctx, g: make()
    ).apply
    x = jnp.ones(2 if kind.startswith(VECTORS) else ())
    for name, transform in WHOLE.items():
        got = transform(lambda x: f(x).sum().astype(x.dtype))(x)
        assert (got.shape, got.dtype) == (x.shape, x.dtype), name
        np.testing.assert_allclose(got, make(), err_msg=name)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in REAL])
def test_a_tangent_that_is_a_constant(kind):
    make = KINDS[kind](3, jnp.float32)
    f = function(
        forward=lambda ctx, x: (x * make()).astype(x.dtype),
        jvp=lambda ctx, t: make(),
    ).apply
    x = jnp.ones(2 if kind.startswith(VECTORS) else ())
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        for outer in (lambda f: f, jax.jit):
            push = outer(lambda x, wrap=wrap: jax.jvp(wrap(f), (x,), (x,)))
            out, got = push(x)
            assert (got.shape, got.dtype) == (x.shape, x.dtype)
            np.testing.assert_allclose(out, make())
            np.testing.assert_allclose(got, make())


def test_each_entry_is_in_a_cell():
    for name, entries in LISTS.items():
        assert {getattr(cell, name) for cell in cells()} == set(entries)


def test_a_number_that_is_no_array_shows():
    see = Seen(strict=True)
    with pytest.raises(AssertionError, match="backward saw <class 'float'>"):
        see("backward", jnp.ones(2), 2.0)
    with pytest.raises(AssertionError, match="numpy"):
        see("backward", np.ones(2))
