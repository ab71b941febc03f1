"""`partitioned`: a function that each device runs on its part of the arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import NamedSharding, PartitionSpec

from jaxfn._core import internals, messages, type_name
from jaxfn._kernels import KernelDerivativeError

_Axes = dict[str, tuple[str, ...]]


def partitioned(
    fn: Callable[..., Any],
    rule: str,
    *,
    replicated: Collection[str] = (),
    summed: Collection[str] = (),
) -> Callable[..., Any]:
    """Let each device run a function on its part of sharded arrays.

    XLA can't look into a kernel (Triton, Pallas, an FFI call), so it gathers sharded
    arguments on every device. A rule in einsum form says how to split them instead.
    Use it inside `forward` and `backward` of a Function: one rule for each.

    Args:
        fn: Function of arrays that returns an array or a tuple of arrays. It works for
            parts of the arrays as well as for whole ones.
        rule: Names of the dimensions of each argument, an arrow, and those of each
            output: `"b n, n -> b n"`. Dimensions with one name have one size.
        replicated: Names of dimensions that are never split: `fn` needs all of them.
        summed: Names of dimensions over which `fn` sums, so that an output lacks them.
            Each device sums over its part, and jaxfn adds up these sums. Every output
            without the name must be such a sum: no mean, and no maximum.

    Returns:
        The function, under `jax.jit`, `jax.vmap` and automatic sharding. It has no
        derivative of its own.

    Raises:
        ValueError: The rule does not fit the arguments or the outputs of `fn`, or `fn`
            uses arrays that are not among its arguments.
        TypeError: The result was differentiated.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> def norm(x, w):
        ...     return w * x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        >>> def norm_grad(x, w, grad):
        ...     return jax.vjp(norm, x, w)[1](grad)
        >>> forward = jaxfn.partitioned(norm, "b n, n -> b n", replicated=("n",))
        >>> backward = jaxfn.partitioned(
        ...     norm_grad, "b n, n, b n -> b n, n", replicated=("n",), summed=("b",)
        ... )
        >>> class Norm(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x, w):
        ...         ctx.save_for_backward(x, w)
        ...         return forward(x, w)
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return backward(*ctx.saved_tensors, grad)
        >>> x, w = jnp.array([[3.0, 4.0]]), jnp.ones(2)
        >>> jax.jit(jax.grad(lambda w: Norm.apply(x, w).sum()))(w).tolist()
        [0.6000000238418579, 0.800000011920929]

    Source: https://openxla.org/shardy/getting_started_jax
    """
    if not callable(fn):
        raise messages.RuleTypeError(
            f"partitioned got {type_name(fn)}: expected a function. Pass the function "
            "itself, and its arguments to what partitioned returns."
        )
    name = getattr(fn, "__name__", type_name(fn))
    parsed = _Rule.parse(name, rule, replicated, summed)
    run = _without_derivative(parsed.name, _batched(fn, parsed))

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return run(*map(internals.as_array, args))

    return call


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The dimensions of arguments and outputs.

    Attributes:
        name: Name of the function.
        arguments: Names of the dimensions of each argument.
        outputs: Names of the dimensions of each output.
        replicated: Names of dimensions that are never split.
    """

    name: str
    arguments: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    replicated: frozenset[str]

    @classmethod
    def parse(
        cls, name: str, rule: str, replicated: Collection[str], summed: Collection[str]
    ) -> _Rule:
        """Read a rule, and check it as far as that is possible without arrays."""
        if not isinstance(rule, str):
            raise messages.RuleTypeError(
                f"partitioned of `{name}` got {type_name(rule)} as its rule: expected "
                'a text with a name for each dimension, as in "b n, n -> b n".'
            )
        sides = [
            tuple(tuple(part.split()) for part in side.split(","))
            for side in rule.split("->")
        ]
        said = f"partitioned of `{name}` got the rule {rule!r}"
        if len(sides) != 2 or isinstance(replicated, str) or isinstance(summed, str):
            raise messages.RuleValueError(
                f'{said}: expected one arrow, as in "b n, n -> b n", and tuples of '
                f"names, got replicated={replicated!r} and summed={summed!r}."
            )
        known = {x for dims in sides[0] for x in dims}
        new = {x for dims in sides[1] for x in dims} - known - set(replicated)
        twice = [dims for side in sides for dims in side if len({*dims}) < len(dims)]
        if new or twice or not set(replicated) <= known | {*sum(sides[1], ())}:
            raise messages.RuleValueError(
                f"{said} and replicated={tuple(replicated)}: expected each name once "
                "in an array; a name that no argument has must be replicated. Names "
                "are separated by spaces: write `b n` for two dimensions, because `bn` "
                "is one."
            )
        free = known - set(replicated)
        missing = sorted({x for x in free for dims in sides[1] if x not in dims})
        useless = sorted({*summed} - {*missing})
        if useless:
            raise messages.RuleValueError(
                f"{said} and summed={tuple(summed)}: every output has {useless}, or no "
                "argument does, so nothing is summed over it. Leave it out of summed."
            )
        if missing != sorted(summed):
            raise messages.RuleValueError(
                f"{said} and summed={tuple(summed)}: an output lacks {missing}. If "
                "each such output is a sum over this dimension, name it in summed. "
                "Otherwise name it in replicated, so that it is never split."
            )
        return cls(name, sides[0], sides[1], frozenset(replicated))

    def batched(self, in_batched: Sequence[bool]) -> _Rule:
        """Return the rule with a batch axis in front."""
        axis = next(x for i in range(99) if (x := f"batch{i}") not in self.names())
        arguments = zip(self.arguments, in_batched, strict=True)
        return dataclasses.replace(
            self,
            arguments=tuple((axis, *dims) if b else dims for dims, b in arguments),
            outputs=tuple((axis, *dims) for dims in self.outputs),
        )

    def text(self) -> str:
        """Return the rule as JAX reads it."""
        sides = (self.arguments, self.outputs)
        return " -> ".join(", ".join(map(" ".join, side)) for side in sides)

    def reductions(self) -> tuple[str, ...]:
        """Return the names that no output has."""
        kept = {x for dims in self.outputs for x in dims} | self.replicated
        return tuple(x for x in self.names() if x not in kept)

    def names(self) -> list[str]:
        """Return all names in the order of the rule, in which XLA wants them."""
        sides = (*self.arguments, *self.outputs)
        return list(dict.fromkeys(x for dims in sides for x in dims))

    def check(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compare the rule with arrays or their shapes."""
        sizes: dict[str, int] = {}
        for what, rule, arrays in (
            ("arguments", self.arguments, arguments),
            ("outputs", self.outputs, outputs),
        ):
            fits = len(rule) == len(arrays)
            for dims, x in zip(rule, arrays, strict=False):
                fits &= len(dims) == len(x.shape) and all(
                    sizes.setdefault(name, size) == size
                    for name, size in zip(dims, x.shape, strict=True)
                )
            if not fits:
                found = ", ".join(str(tuple(x.shape)) for x in arrays)
                raise messages.RuleValueError(
                    f"`{self.name}` has {what} of shapes {found}: expected those of "
                    f'its rule "{self.text()}", with one size for each name. (Spaces '
                    "separate names. A dimension of size 1 that fn broadcasts needs a "
                    "name of its own, in replicated.)"
                )

    def axes(self, mesh: Any, arrays: Sequence[Any], rule: Sequence[Any]) -> _Axes:
        """Return the mesh axes that split each dimension, from shardings that XLA has.

        The first array that is split along a dimension decides. A mesh axis splits one
        dimension, and evenly: otherwise XLA pads, and a sum would count the padding.
        """
        found: _Axes = {}
        free = set(mesh.axis_names)
        for dims, x in zip(rule, arrays, strict=True):
            for name, size, axes in zip(dims, x.shape, x.sharding.spec, strict=False):
                given = (axes,) if isinstance(axes, str) else tuple(axes or ())
                parts = math.prod(mesh.shape[a] for a in given)
                if name in found or name in self.replicated or not free >= {*given}:
                    continue
                if given and size % parts == 0:
                    found[name] = given
                    free -= {*given}
        return found


def _batched(fn: Callable[..., Any], rule: _Rule) -> Callable[..., Any]:
    """Return the function with its partitioning, and with a batch rule."""

    @custom_vmap
    def run(*args: Any) -> Any:
        # Without shardings, because a kernel refuses axes that are not manual.
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
        traced, outputs = jax.make_jaxpr(fn, return_shape=True)(*types)
        is_tuple = isinstance(outputs, (tuple, list))
        arrays = outputs if is_tuple else (outputs,)
        if not all(hasattr(x, "shape") for x in arrays):
            raise messages.RuleTypeError(
                f"`{rule.name}` returned {type_name(outputs)}: partitioned expected an "
                "array or a tuple of arrays."
            )
        rule.check(args, arrays)
        has_types = _mesh_of(args) is not None
        if traced.consts and not has_types:
            shapes = ", ".join(map(str, map(np.shape, traced.consts)))
            raise messages.RuleValueError(
                f"`{rule.name}` uses arrays that are not among its arguments, of "
                f"shapes {shapes}: partitioned can't tell how to split them. Pass them "
                "as arguments, with names for their dimensions in the rule."
            )
        found = (_by_types if has_types else _on_devices)(fn, rule)(*args)
        return found if is_tuple else found[0]

    @run.def_vmap
    def _(_: int, in_batched: Sequence[bool], *args: Any) -> Any:
        if len(args) != len(rule.arguments):
            rule.check(args, ())
        axes = [0 if b else None for b in in_batched]
        each = jax.vmap(fn, axes)  # each device has a part of the batch
        out = _batched(each, rule.batched(in_batched))(*args)
        return out, jax.tree.map(lambda _: True, out)

    return run


def _mesh_of(args: Sequence[Any]) -> Any:
    """Return the mesh of the arguments if their types have one; else None."""
    if internals.vmapped_mesh_axes():  # shard_map refuses them
        return None
    meshes = [jax.typeof(x).sharding.mesh for x in args]
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


def _by_types(fn: Callable[..., Any], rule: _Rule) -> Callable[..., Any]:
    """Return the function under shard_map, for a mesh with explicit axes.

    Types then say how arrays are split, so XLA's partitioner has nothing to decide. An
    output with the dimensions of an argument has its type, so a gradient has that of
    its argument.
    """

    def run(*args: Any) -> tuple[Any, ...]:
        mesh = _mesh_of(args)
        types = list(map(jax.typeof, args))
        axes = rule.axes(mesh, types, rule.arguments)
        free = {*mesh.axis_names} - {*mesh.manual_axes}
        mapped = jax.shard_map(
            _local(fn, rule, axes),
            mesh=mesh,
            in_specs=_specs(axes, rule.arguments),
            out_specs=_specs(axes, rule.outputs),
            axis_names=free,
            check_vma=False,
        )
        inputs = _shardings(mesh, axes, rule.arguments)
        outs = mapped(*map(jax.sharding.reshard, args, inputs))
        known = {
            dims: x
            for dims, x in zip(rule.arguments[::-1], types[::-1], strict=True)
            if x.sharding.mesh.explicit_axes  # else it has no place on the mesh
        }
        outputs = [
            known[dims].sharding if dims in known else jax.typeof(y).sharding
            for dims, y in zip(rule.outputs, outs, strict=True)
        ]
        return tuple(map(jax.sharding.reshard, outs, outputs))

    return jax.jit(run)


def _local(fn: Callable[..., Any], rule: _Rule, axes: _Axes) -> Callable[..., Any]:
    """Return the function of one device's parts, which adds up sums over devices."""

    def local(*parts: Any) -> tuple[Any, ...]:
        found = []
        for dims, y in zip(rule.outputs, _as_tuple(fn(*parts)), strict=True):
            over = [a for name, own in axes.items() if name not in dims for a in own]
            found.append(jax.lax.psum(y, tuple(over)) if over else y)
        return tuple(found)

    return local


def _as_tuple(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _specs(axes: _Axes, arrays: Sequence[Any]) -> tuple[PartitionSpec, ...]:
    return tuple(PartitionSpec(*(axes.get(x) for x in dims)) for dims in arrays)


def _shardings(mesh: Any, axes: _Axes, arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(NamedSharding(mesh, spec) for spec in _specs(axes, arrays))


def _on_devices(fn: Callable[..., Any], rule: _Rule) -> Callable[..., Any]:
    """Return the function as one that XLA's partitioner splits by the rule."""
    fn = _in_settings_of_now(fn)

    def whole(*args: Any) -> tuple[Any, ...]:
        return _as_tuple(fn(*args))

    whole.__name__ = rule.name

    def infer(mesh: Any, args: Sequence[Any], _: Any) -> tuple[Any, ...]:
        return _shardings(mesh, rule.axes(mesh, args, rule.arguments), rule.outputs)

    def partition(mesh: Any, args: Sequence[Any], results: Sequence[Any]) -> Any:
        both = (*rule.arguments, *rule.outputs)
        axes = rule.axes(mesh, (*args, *results), both)
        outputs = _shardings(mesh, axes, rule.outputs)
        inputs = _shardings(mesh, axes, rule.arguments)
        return mesh, _local(fn, rule, axes), outputs, inputs

    split = internals.custom_partitioning(whole)
    split.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        sharding_rule=rule.text(),
        reduction_factors=rule.reductions(),
        need_replication_factors=tuple(x for x in rule.names() if x in rule.replicated),
    )
    return split


def _in_settings_of_now(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the settings of JAX that are in force now.

    XLA traces the parts when it compiles, after the caller's `with` blocks.
    """
    settings = [
        (jax.enable_x64, jax.config.jax_enable_x64),
        (jax.default_matmul_precision, jax.config.jax_default_matmul_precision),
        (jax.numpy_dtype_promotion, jax.config.jax_numpy_dtype_promotion),
        (jax.default_prng_impl, jax.config.jax_default_prng_impl),
    ]

    def run(*args: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for setting, value in settings:
                stack.enter_context(setting(value))
            return fn(*args)

    return run


def _without_derivative(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    guarded = jax.custom_jvp(run)

    @guarded.defjvp
    def _(*_: Any) -> Any:
        raise KernelDerivativeError(
            f"`{name}` was differentiated, and partitioned gives no derivative. Call "
            "it in forward of a Function, and another partitioned function in backward."
            " For a second derivative, or forward mode by generate_jvp_rule, call that "
            "one in forward of a Function of its own."
        )

    return guarded
