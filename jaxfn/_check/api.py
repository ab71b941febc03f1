"""`check`: check the rules of a Function on example arguments."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import numpy as np

from jaxfn._check.case import Case
from jaxfn._check.report import CheckReport
from jaxfn._check.runner import CHECKS, SECOND, Run
from jaxfn._check.shared import name_of
from jaxfn._core import find


def check(
    fun: Any,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    surrogate: bool = False,
    skip: Collection[str] = (),
    order: int = 2,
    rtol: float | None = None,
    atol: float = 0.0,
    precision: str = "float64",
    low_precision: str | None = "bfloat16",
    seed: int = 0,
    raise_on_failure: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CheckReport:
    """Check the rules of a function on example arguments.

    - The value is compared with itself under jit.
    - backward and jvp are compared with central differences, with each other, and with
      calls for fewer arguments or outputs. Both must be linear.
    - vmap, also of derivatives, is compared with a loop, for each argument alone too.
    - Second derivatives are compared with differences of the first.
    - scan, checkpoint, a low precision, and a search for leaked tracers come last.

    If a check fails, the checks that build on it are skipped: the failure names the
    wrong rule.

    The value of an iteration is no more accurate than its tolerance. If a comparison
    fails, `check` estimates the accuracy from jumps of the function near the arguments,
    and allows for it. The report says so ("forward is accurate to about 1e-10 here").
    Only jumps below 1e-4 of the value count, and kinks never do, so this can't hide a
    wrong rule.

    Differences need a value that is smooth near the arguments. Choose generic
    arguments, not zeros. Errors are relative to the largest element of an array, so
    choose arguments with gradients of similar size.

    Args:
        fun: A `Function` class, a `custom_function`, or any function of JAX arrays.
        *args: Its arguments: arrays, pytrees of arrays, and other objects, which are
            static. Float and complex arrays are differentiated; Python floats too, if
            the function is decorated or no argument is an array.
        reference: A plain JAX function with the right value and derivative, which
            replaces differences. It is needed if a part of the value has no derivative
            on purpose (`jax.lax.stop_gradient` in the reference). An output that
            forward marks non-differentiable needs none.
        surrogate: Whether the derivative differs from the value's on purpose (rounding
            with a straight-through gradient, spikes). It is compared with the
            derivative of `reference`, whose value may differ. Without a reference it is
            not compared, and the report says so. All else is checked. If backward clips
            gradients, it is not linear: pass `skip=["backward is linear"]`.
        skip: Names of checks to skip.
        order: 1 skips second derivatives, for a function that has none.
        rtol: Tolerance of every comparison, relative to the largest element. In float64
            the default is 5e-7 with finite differences, and 1.5e-8 between two
            computations of the same value. The low precision has its own, a tenth.
        atol: Absolute difference of an element of a value, gradient or tangent that
            always passes.
        precision: "float64" casts all float arguments to float64, and complex ones to
            complex128; JAX then forgets what it has compiled. "given" leaves their
            dtypes, with larger tolerances.
        low_precision: The dtype to try last; None for no such check.
        seed: Seed of the random directions.
        raise_on_failure: Whether to raise if a check fails.
        progress: Function called before each check with the number of finished checks,
            the number of all, and the name.

    Returns:
        The report. Print it, or read `ok`, `failures` and `wrong_rules`.

    Raises:
        CheckError: With raise_on_failure, a check failed. (It is an AssertionError.)
        ValueError: The precision, the order or the name of a check is unknown; or a
            tolerance is below 0.

    Example:
        >>> import jax.numpy as jnp, jaxfn
        >>> class Cube(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**3
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * x**2 * grad
        >>> report = jaxfn.check(Cube, jnp.array([1.0, 2.0]))
        >>> report.ok, report.wrong_rules
        (False, ('backward',))
        >>> report.failures[0].message.partition(": ")[0]
        'gradient of argument 0 (f32[2]) at [1]'

        >>> @jaxfn.custom_function
        ... def short(x):  # seven digits, whatever x has
        ...     return jnp.sin(x.astype(jnp.float32)).astype(x.dtype)
        >>> short.defvjp(lambda x: (short(x), x), lambda x, g: (g * jnp.cos(x),))
        >>> report = jaxfn.check(short, jnp.array([1.0, 2.0]))
        >>> report.ok, report.results[2].message[:27]
        (True, 'forward is accurate to abou')

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html
    and https://juliadiff.org/ChainRulesTestUtils.jl/stable/
    """
    expect_options("check", CHECKS, skip, precision, order, rtol, atol)
    told = dict.fromkeys(SECOND, "order=1") if order == 1 else {}
    told |= dict.fromkeys(skip, "skipped as told")
    wide = in_float64(fun) if precision == "float64" else contextlib.nullcontext()
    with wide, _mesh_of(args):
        make = functools.partial(
            Case,
            fun,
            args,
            reference=reference,
            surrogate=surrogate,
            seed=seed,
            rtol=rtol,
            atol=atol,
        )
        run = Run(make(precision=precision), told)
        if low_precision is not None:
            run.case.low = make(precision=low_precision)
        report = CheckReport(name_of(fun), run.run(progress))
    if raise_on_failure:
        report.raise_on_failure()
    return report


@contextlib.contextmanager
def in_float64(fun: Any) -> Iterator[None]:
    """Compute in 64 bits.

    JAX remembers the width of a NumPy array that `fun` closes over, and takes it for
    the other width too. Then JAX has to forget all that it has compiled.
    """
    if jax.config.read("jax_enable_x64"):
        yield
        return
    try:
        closes_over_numpy = _closes_over_numpy(fun)
    except Exception:  # noqa: BLE001  (an object whose attributes raise)
        closes_over_numpy = True
    forget = jax.clear_caches if closes_over_numpy else lambda: None
    forget()
    try:
        with jax.enable_x64(True):
            yield
    finally:
        forget()


def _mesh_of(args: Any) -> Any:
    """Set the mesh of the arguments, if their types name one and none is set.

    JAX has no place for what is computed eagerly beside them.
    """
    for x in jax.tree.leaves(args):
        mesh = getattr(getattr(x, "sharding", None), "mesh", None)
        axes = mesh.axis_types if isinstance(mesh, jax.sharding.Mesh) else ()
        is_set = not jax.sharding.get_abstract_mesh().empty
        if jax.sharding.AxisType.Explicit in axes and not is_set:
            return jax.set_mesh(mesh)
    return contextlib.nullcontext()


def _closes_over_numpy(fun: Any) -> bool:
    """Return whether a function, or one that it calls, names an array of NumPy."""
    seen: set[int] = set()
    todo = [fun]

    def is_numpy(x: Any) -> bool:
        if isinstance(x, types.FunctionType) and _may_be_users(x):
            todo.extend(map(x.__globals__.get, x.__code__.co_names))
        return isinstance(x, np.ndarray) and x.dtype.itemsize == 8

    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        members = list(vars(x).values()) if isinstance(x, type) else []
        if find([x, members], is_numpy) is not None:
            return True
    return False


def _may_be_users(function: Any) -> bool:
    package = str(function.__module__).partition(".")[0]
    return package not in ("jax", "jaxfn", "numpy", "torch", "triton")


def expect_options(
    tool: str,
    names: Collection[str],
    skip: Collection[str],
    precision: str,
    order: int,
    rtol: float | None,
    atol: float,
) -> None:
    """Refuse wrong options of a tool; `names` are the names of its checks."""
    if precision not in ("float64", "given"):
        raise ValueError(
            f"{tool} got precision {precision!r}: expected 'float64' or 'given'."
        )
    if order not in (1, 2):
        raise ValueError(f"{tool} got order={order!r}: expected 1 or 2.")
    for name, x in (("rtol", rtol), ("atol", atol)):
        if x is not None and not x >= 0:
            raise ValueError(f"{tool} got {name}={x!r}: expected 0 or more.")
    unknown = [name for name in skip if name not in names]
    if isinstance(skip, str) or unknown:
        raise ValueError(
            f"{tool} got skip={skip!r}: expected a list of names among "
            f"{', '.join(names)}."
        )
