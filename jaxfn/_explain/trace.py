"""What JAX makes of a function of flat arrays: asked by tracing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxfn._base import compat, pytree
from jaxfn._explain.target import Tag, struct

Fun = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Residual:
    """An array that is kept from the forward pass for the backward pass.

    Attributes:
        name: what a rule calls it (`saved_tensors[0]`, `ctx.mask`, `residuals[1]`);
            else the argument, or the operation that computed it.
        source: "input" or "output" of the Function, "attribute" of ctx,
            "intermediate" (anything else that was computed) or "constant".
        shape: of the array.
        dtype: of the array.
        nbytes: its size in memory.
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
    """What XLA's cost analysis says of a compiled program; None where it is silent.

    Attributes:
        flops: floating point operations, without transcendental ones.
        transcendentals: exp, sin and the like.
        nbytes: bytes read and written.
    """

    flops: float | None
    transcendentals: float | None
    nbytes: float | None


def flat(f: Fun) -> Fun:
    """Make `f` return the list of the arrays in its result."""
    return lambda *xs: pytree.split(f(*xs))[0]


def no_tag(x: Any, _: str) -> Any:
    """Return the array itself."""
    return x


def name_tag(x: Any, name: str) -> Any:
    """Mark the array with the name, by an operation that a jaxpr shows."""
    return checkpoint_name(x, name)


def vjp(f: Fun, xs: Sequence[Any]) -> tuple[list[Any], Any]:
    """Take `jax.vjp` of `f` with respect to all float and complex arrays."""
    along, moving = _of_moving(f, xs)
    return jax.vjp(along, *moving)


def _of_moving(f: Fun, xs: Sequence[Any]) -> tuple[Fun, list[Any]]:
    """Make of `f` a function of its float and complex arrays; return these too."""
    moving = [i for i, x in enumerate(xs) if pytree.is_number(jax.typeof(x))]

    def along(*values: Any) -> list[Any]:
        at = list(xs)
        for i, x in zip(moving, values, strict=True):
            at[i] = x
        return flat(f)(*at)

    return along, [xs[i] for i in moving]


def cotangents(outs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """Give each output a cotangent: the next of `cts` if it is float or complex.

    The others get zeros. For integers jax.vjp wants these of float0, which only NumPy
    has.
    """
    rest = iter(cts)

    def zeros(o: Any) -> Any:
        if pytree.is_inexact(o):
            return compat.zeros(compat.tangent_aval(o))
        return np.zeros(o.shape, jax.dtypes.float0)

    return [next(rest) if pytree.is_number(o) else zeros(o) for o in outs]


# ---- residuals


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A differentiated call, in its two halves.

    Attributes:
        outs: the types of the outputs.
        residuals: what the first half keeps for the second.
        forward: the jaxpr of the first half; None if it was not traced.
        pull: the second half, with types in place of arrays; None if it was not traced.
    """

    outs: list[Any]
    residuals: tuple[Residual, ...]
    forward: Any = None
    pull: Any = None


def split(f: Fun, types: Sequence[Any], labels: Sequence[str]) -> Split:
    """Trace the call, and see what JAX keeps."""
    # The function that jax.vjp returns is a pytree of the arrays that it closes over.
    # So they are outputs of this jaxpr, after those of the call itself.
    jaxpr, (outs, pull) = jax.make_jaxpr(lambda *xs: vjp(f, xs), return_shape=True)(
        *types
    )
    opened, _ = compat.open_jaxpr(jaxpr)
    found = _residuals(opened, len(outs), labels)
    return Split(outs, found, jaxpr, pull)


def _residuals(jaxpr: Any, n_outs: int, labels: Sequence[str]) -> tuple[Residual, ...]:
    """Name the variables that are kept, and say where each comes from."""
    same, names = _aliases(jaxpr)
    outs, kept = jaxpr.outvars[:n_outs], jaxpr.outvars[n_outs:]
    known = {id(v): ("constant", "constant") for v in jaxpr.constvars}
    known |= {
        id(v): ("intermediate", eqn.primitive.name)
        for eqn in jaxpr.eqns
        for v in eqn.outvars
    }
    known |= {id(same(v)): ("output", "output") for v in outs}
    # Last, as the last entry stays: an input that is returned counts as the input.
    known |= {id(v): ("input", x) for v, x in zip(jaxpr.invars, labels, strict=True)}
    found: dict[int, Residual] = {}
    for v in map(same, kept):
        # A literal is not among them: JAX wrote that number into the jaxpr.
        source, label = known.get(id(v), ("constant", "constant"))
        given = names.get(id(v), ())
        if source in ("intermediate", "constant") and given:
            saved = any(not x.startswith("ctx.") for x in given)
            source = source if saved else "attribute"
        residual = _residual(", ".join(given) or label, source, v.aval)
        if residual.nbytes or given:  # the engine passes a key as an empty array
            found.setdefault(id(v), residual)
    return tuple(found.values())


def _residual(name: str, source: str, x: Any) -> Residual:
    return Residual(name, source, x.shape, x.dtype, x.size * x.dtype.itemsize)


def _aliases(jaxpr: Any) -> tuple[Callable[[Any], Any], dict[int, list[str]]]:
    """Find which variables are one array in an eager call, and the names of each.

    Some operations are there for the trace alone: an eager call passes on the very
    array. To count their result too would count its bytes twice.
    """
    origin: dict[int, Any] = {}
    names: dict[int, list[str]] = {}

    def same(v: Any) -> Any:
        return origin.get(id(v), v)

    for eqn in jaxpr.eqns:
        kind, ins = eqn.primitive.name, eqn.invars
        if kind in ("name", "stop_gradient", "gate", "attach"):
            # The values come last: attach gets what its rule needs before them.
            passed = ins[-len(eqn.outvars) :]
            for v, w in zip(eqn.outvars, passed, strict=True):
                origin[id(v)] = same(w)
        if kind == "name":
            given = names.setdefault(id(same(ins[0])), [])
            if eqn.params["name"] not in given:
                given.append(eqn.params["name"])
    return same, names


def run(f: Callable[[Tag], Fun], arrays: Sequence[Any], labels: Sequence[str]) -> Split:
    """Do the same by an eager call, for what can't be traced."""
    names: dict[int, list[str]] = {}
    held = []  # an id is that of one object as long as it lives

    def tag(x: Any, name: str) -> Any:
        held.append(x)
        names.setdefault(id(x), []).append(name)
        return x

    # Each use of a NumPy array would make another JAX array of it, and what is kept
    # would not be known for an input.
    arrays = [jnp.asarray(x) for x in arrays]
    outs, pull = vjp(f(tag), arrays)
    known = {id(x): ("output", "output") for x in outs}
    known |= {id(x): ("input", k) for x, k in zip(arrays, labels, strict=True)}
    found: dict[int, Residual] = {}
    for x in jax.tree.leaves(pull):
        given = names.get(id(x), ())
        source, label = known.get(id(x), ("intermediate", "computed"))
        if source == "intermediate" and given:
            saved = any(not n.startswith("ctx.") for n in given)
            source = source if saved else "attribute"
        residual = _residual(", ".join(given) or label, source, jnp.asarray(x))
        if residual.nbytes or given:
            found.setdefault(id(x), residual)
    return Split([struct(x) for x in outs], tuple(found.values()))


# ---- programs and their cost


def backward(half: Split) -> tuple[Any, Cost]:
    """Return the jaxpr and the cost of the second half of a differentiated call."""

    def second(pull: Any, cts: Sequence[Any]) -> Any:
        return pull(cotangents(half.outs, cts))

    cts = [struct_of(x) for x in half.outs if pytree.is_number(x)]
    return jax.make_jaxpr(second)(half.pull, cts), cost(second, half.pull, cts)


def struct_of(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def cost(f: Fun, *types: Any) -> Cost:
    """Compile the program, and return what XLA says of its cost."""
    try:
        found: Any = jax.jit(f).lower(*types).compile().cost_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):  # not on all backends
        found = None
    if not found:
        return Cost(None, None, None)
    keys = ("flops", "transcendentals", "bytes accessed")  # it leaves out zeros
    return Cost(*[float(found.get(key, 0)) for key in keys])


# ---- transformations


def pushed(f: Fun) -> Fun:
    """Make the tangents of `f` along ones: forward mode."""

    def program(*xs: Any) -> Any:
        along, moving = _of_moving(f, xs)
        at = tuple(map(jnp.asarray, moving))
        return jax.jvp(along, at, tuple(map(jnp.ones_like, at)))

    return program


def pulled(f: Fun) -> Fun:
    """Make the gradients of half the sum of squares of `f`: reverse mode.

    The cotangents are the outputs, so they depend on the arguments, as they do in a
    loss. With constants, the second derivative of a linear Function would not meet its
    backward.
    """

    def program(*xs: Any) -> Any:
        outs, pull = vjp(f, xs)
        cts = [o for o in outs if pytree.is_number(o)]
        found = pull(cotangents(outs, cts))
        return [x for x in found if pytree.is_number(x)]

    return program


def batched(f: Fun) -> Fun:
    """Map `f` by vmap, over arrays with a first axis more."""
    return lambda *xs: jax.vmap(flat(f))(*xs)


def with_axis(types: Sequence[Any], size: int) -> list[Any]:
    """Put an axis of this size before those of each type."""
    return [jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for x in types]
