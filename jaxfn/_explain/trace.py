"""Residuals, jaxprs and cost of a function of flat arrays, found by tracing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxfn._core import internals, values
from jaxfn._explain.target import Tag, struct

Fun = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Residual:
    """An array that the forward pass saves for the backward pass.

    Attributes:
        name: Its name in a rule (`saved_tensors[0]`, `ctx.mask`, `residuals[1]`); else
            the argument, or the operation that computed it.
        source: "input" or "output" of the Function, "attribute" of ctx, "intermediate"
            (any other computed array) or "constant".
        shape: Shape of the array.
        dtype: Dtype of the array.
        nbytes: Size in memory.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: Any
    nbytes: int

    @property
    def type(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a compiled program by XLA; None for a number that XLA lacks.

    Attributes:
        flops: Floating point operations, without transcendental ones.
        transcendentals: Transcendental operations (exp, sin).
        nbytes: Bytes read and written.
    """

    flops: float | None
    transcendentals: float | None
    nbytes: float | None


def flat(f: Fun) -> Fun:
    """Make `f` return the list of the arrays in its result."""
    return lambda *xs: values.split(f(*xs))[0]


def no_tag(x: Any, _: str) -> Any:
    """Return the array itself."""
    return x


def name_tag(x: Any, name: str) -> Any:
    """Mark the array with a name, by an operation in the jaxpr."""
    return checkpoint_name(x, name)


def vjp(f: Fun, xs: Sequence[Any]) -> tuple[list[Any], Any]:
    """Take `jax.vjp` of `f` with respect to all float and complex arrays."""
    along, floats = _of_floats(f, xs)
    return jax.vjp(along, *floats)


def _of_floats(f: Fun, xs: Sequence[Any]) -> tuple[Fun, list[Any]]:
    """Return `f` as a function of its float and complex arrays, and these arrays."""
    floats = [i for i, x in enumerate(xs) if values.is_number(jax.typeof(x))]

    def along(*values: Any) -> list[Any]:
        at = list(xs)
        for i, x in zip(floats, values, strict=True):
            at[i] = x
        return flat(f)(*at)

    return along, [xs[i] for i in floats]


def cotangents(outs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """Make a cotangent for each output: the next of `cts` if it is float or complex.

    The others get zeros. For integers jax.vjp expects float0, which only NumPy has.
    """
    rest = iter(cts)

    def zeros(o: Any) -> Any:
        if values.is_inexact(o):
            return internals.zeros(internals.tangent_type(o))
        return np.zeros(o.shape, jax.dtypes.float0)

    return [next(rest) if values.is_number(o) else zeros(o) for o in outs]


# ---- residuals


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """The two halves of a differentiated call.

    Attributes:
        outs: Types of the outputs.
        residuals: Residuals of the first half for the second.
        forward: Jaxpr of the first half; None if it was not traced.
        pull: The second half, with types in place of arrays; None if it was not traced.
    """

    outs: list[Any]
    residuals: tuple[Residual, ...]
    forward: Any = None
    pull: Any = None


def split(f: Fun, types: Sequence[Any], labels: Sequence[str]) -> Split:
    """Trace the call, and find its residuals."""
    # jax.vjp returns a function that is a pytree of the residuals. So they are outputs
    # of this jaxpr, after the outputs of the call itself.
    jaxpr, (outs, pull) = jax.make_jaxpr(lambda *xs: vjp(f, xs), return_shape=True)(
        *types
    )
    opened, _ = internals.open_jaxpr(jaxpr)
    found = _residuals(opened, len(outs), labels)
    return Split(outs, found, jaxpr, pull)


def _residuals(jaxpr: Any, n_outs: int, labels: Sequence[str]) -> tuple[Residual, ...]:
    """Name the residuals of a jaxpr, and their sources."""
    same, names = _aliases(jaxpr)
    outs, kept = jaxpr.outvars[:n_outs], jaxpr.outvars[n_outs:]
    known = {id(v): ("constant", "constant") for v in jaxpr.constvars}
    known |= {
        id(v): ("intermediate", eqn.primitive.name)
        for eqn in jaxpr.eqns
        for v in eqn.outvars
    }
    known |= {id(same(v)): ("output", "output") for v in outs}
    # Inputs come last, because a later entry wins: a returned input is an input.
    known |= {id(v): ("input", x) for v, x in zip(jaxpr.invars, labels, strict=True)}
    found: dict[int, Residual] = {}
    for v in map(same, kept):
        # A literal is not among them, because it is part of the jaxpr.
        source, label = known.get(id(v), ("constant", "constant"))
        tags = names.get(id(v), ())
        if source in ("intermediate", "constant") and tags:
            saved = any(not x.startswith("ctx.") for x in tags)
            source = source if saved else "attribute"
        residual = _residual(", ".join(tags) or label, source, v.aval)
        if residual.nbytes or tags:  # the engine passes a key as an empty array
            found.setdefault(id(v), residual)
    return tuple(found.values())


def _residual(name: str, source: str, x: Any) -> Residual:
    return Residual(name, source, x.shape, x.dtype, x.size * x.dtype.itemsize)


def _aliases(jaxpr: Any) -> tuple[Callable[[Any], Any], dict[int, list[str]]]:
    """Find the variables that are one array in an eager call, and their names.

    Some operations exist only in a trace: an eager call passes on the same array. Their
    results must not count twice.
    """
    origin: dict[int, Any] = {}
    names: dict[int, list[str]] = {}

    def same(v: Any) -> Any:
        return origin.get(id(v), v)

    for eqn in jaxpr.eqns:
        kind, ins = eqn.primitive.name, eqn.invars
        if kind in ("name", "stop_gradient", "gate", "attach"):
            # The values come last, after the operands for the rule of `attach`.
            passed = ins[-len(eqn.outvars) :]
            for v, w in zip(eqn.outvars, passed, strict=True):
                origin[id(v)] = same(w)
        if kind == "name":
            tags = names.setdefault(id(same(ins[0])), [])
            if eqn.params["name"] not in tags:
                tags.append(eqn.params["name"])
    return same, names


def run(f: Callable[[Tag], Fun], arrays: Sequence[Any], labels: Sequence[str]) -> Split:
    """Find residuals by an eager call, for a function that can't be traced."""
    names: dict[int, list[str]] = {}
    held = []  # keeps the objects alive, and so their ids unique

    def tag(x: Any, name: str) -> Any:
        held.append(x)
        names.setdefault(id(x), []).append(name)
        return x

    # Each use of a NumPy array would make a new JAX array, and its residual would not
    # be recognized as an input.
    arrays = [jnp.asarray(x) for x in arrays]
    outs, pull = vjp(f(tag), arrays)
    known = {id(x): ("output", "output") for x in outs}
    known |= {id(x): ("input", k) for x, k in zip(arrays, labels, strict=True)}
    found: dict[int, Residual] = {}
    for x in jax.tree.leaves(pull):
        tags = names.get(id(x), ())
        source, label = known.get(id(x), ("intermediate", "computed"))
        if source == "intermediate" and tags:
            saved = any(not n.startswith("ctx.") for n in tags)
            source = source if saved else "attribute"
        residual = _residual(", ".join(tags) or label, source, jnp.asarray(x))
        if residual.nbytes or tags:
            found.setdefault(id(x), residual)
    return Split([struct(x) for x in outs], tuple(found.values()))


# ---- programs and their cost


def backward(half: Split) -> tuple[Any, Cost]:
    """Return the jaxpr and the cost of the second half of a differentiated call."""
    second, cts = _second(half)
    return jax.make_jaxpr(second)(half.pull, cts), cost(second, half.pull, cts)


def check_backward(half: Split) -> None:
    """Trace the second half, which raises what JAX raises there."""
    second, cts = _second(half)
    jax.eval_shape(second, half.pull, cts)


def _second(half: Split) -> tuple[Fun, list[Any]]:
    """Return the second half as a function, and the types of its cotangents."""

    def second(pull: Any, cts: Sequence[Any]) -> Any:
        return pull(cotangents(half.outs, cts))

    return second, [struct_of(x) for x in half.outs if values.is_number(x)]


def struct_of(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def cost(f: Fun, *types: Any) -> Cost:
    """Compile the program, and return XLA's cost analysis."""
    try:
        found: Any = jax.jit(f).lower(*types).compile().cost_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):  # not on all backends
        found = None
    if not found:
        return Cost(None, None, None)
    keys = ("flops", "transcendentals", "bytes accessed")  # it leaves out zeros
    return Cost(*[float(found.get(key, 0)) for key in keys])


def has_loop(jaxpr: Any) -> bool:
    """Return whether a jaxpr has a loop, whose body XLA's cost analysis counts once."""
    if isinstance(jaxpr, (tuple, list)):
        return any(map(has_loop, jaxpr))
    eqns = getattr(internals.open_jaxpr(jaxpr)[0], "eqns", ())
    return any(
        eqn.primitive.name in ("scan", "while") or has_loop(list(eqn.params.values()))
        for eqn in eqns
    )


# ---- transformations


def pushed(f: Fun) -> Fun:
    """Return a program for the tangents of `f` along ones: forward mode."""

    def program(*xs: Any) -> Any:
        along, floats = _of_floats(f, xs)
        at = tuple(map(jnp.asarray, floats))
        return jax.jvp(along, at, tuple(map(jnp.ones_like, at)))

    return program


def pulled(f: Fun) -> Fun:
    """Return a program for the gradients of half the sum of squares of `f`.

    The cotangents are the outputs, so they depend on the arguments, as in a loss. With
    constant cotangents, the second derivative of a linear Function would not use its
    backward.
    """

    def program(*xs: Any) -> Any:
        outs, pull = vjp(f, xs)
        cts = [o for o in outs if values.is_number(o)]
        found = pull(cotangents(outs, cts))
        return [x for x in found if values.is_number(x)]

    return program


def batched(f: Fun) -> Fun:
    """Map `f` by vmap, over arrays with an extra first axis."""
    return lambda *xs: jax.vmap(flat(f))(*xs)


def with_axis(types: Sequence[Any], size: int) -> list[Any]:
    """Add a first axis of this size to each type."""
    return [jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for x in types]
