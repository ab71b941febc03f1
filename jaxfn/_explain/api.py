"""`explain`: show what JAX will do with a Function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._core import values
from jaxfn._explain import trace
from jaxfn._explain.report import Explanation, Transformation
from jaxfn._explain.target import Target, struct, target
from jaxfn._kernels import Kernel, kernels


def explain(function: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Show what JAX will do with a call of a Function.

    The report names the definition of JAX that the rules become, and why; the array
    arguments and the static ones; and the transformations that work. It lists the
    residuals, which stay in memory for the backward pass, and the kernels, the jaxprs
    and the cost of both passes. Print it, or show it in a notebook. Its attributes have
    the same as data.

    JAX traces the call for the shapes of the arguments, and compiles both passes for
    their cost. The cost counts the body of a loop once, however often it runs. Nothing
    is computed. Only rules that can't be traced, because they need values, run once, on
    the arguments.

    Residuals are the arrays that `jax.vjp` closes over, for derivatives by all float
    and complex arguments:

    - The report lists those of an eager call: `jax.tree.leaves(jax.vjp(f, *args)[1])`,
      each array once. Saved arguments and outputs count, although they share memory
      with the caller.
    - `jax.vjp(jax.jit(f), *args)` has the same residuals, except constants, which
      become part of the compiled program.
    - Inside one `jax.jit` around forward and backward, nothing is closed over. XLA then
      stores only what it needs, which may be less.

    Args:
        function: A `jaxfn.Function` class, its `apply`, or a function decorated by
            `jaxfn.custom_function`.
        *args: Arguments of the call. A `jax.ShapeDtypeStruct` stands for an array.
        **kwargs: Keyword arguments of the call.

    Returns:
        The report. `report.residuals` have a name, source, shape, dtype and nbytes.
        `report.residual_bytes` is their sum; `report.plain_residual_bytes` is the sum
        if JAX differentiates forward without rules. `report.transformations` have a
        name, works (a bool) and how. `report.kernels` are pairs: "forward" or
        "backward", and a kernel (Triton, Pallas, FFI, custom_partitioning) with name,
        kind, and the nbytes of its arguments and results. `report.plot()` draws the
        residuals, with matplotlib.

    Raises:
        TypeError: `function` is none of these, or the arguments don't fit.
        RuntimeError: The rules contradict each other.

    If a rule raises, its error becomes part of the report.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> class Exp(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         out = jnp.exp(x)
        ...         ctx.save_for_backward(out)
        ...         return out
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (out,) = ctx.saved_tensors
        ...         return grad * out
        >>> report = jaxfn.explain(Exp, jnp.zeros(3))
        >>> report.engine.name
        'jax.custom_vjp'
        >>> [(x.name, x.source, x.nbytes) for x in report.residuals]
        [('saved_tensors[0]', 'output', 12)]
        >>> [t.name for t in report.transformations if not t.works]
        ['forward mode']

    Source: https://docs.jax.dev/en/latest/jaxpr.html
    """
    abstract = any(map(_is_struct, jax.tree.leaves((args, kwargs))))
    args, kwargs = jax.tree.map(_array_of, (args, kwargs))
    return _Report(target(function, args, kwargs), abstract=abstract).make()


def _is_struct(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _array_of(x: Any) -> Any:
    """Replace a type by an array that takes no memory."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape) if _is_struct(x) else x


class _Report:
    """The maker of the report on one call.

    Args:
        call: The call.
        abstract: Whether types stand for some of its arrays.
    """

    def __init__(self, call: Target, *, abstract: bool) -> None:
        self._call, self._abstract = call, abstract
        self._types = [struct(x) for x in call.arrays]
        self._labels = [label for arg in call.arguments for label, _ in arg.arrays]
        self._f = trace.flat(call.call(trace.no_tag))
        self._notes: list[str] = []
        # An array that is passed twice, as in f(x, x), is one residual.
        places: dict[int, int] = {}
        self._first = [places.setdefault(id(x), i) for i, x in enumerate(call.arrays)]

    def make(self) -> Explanation:
        """Trace all parts of the report; errors become notes."""
        forward = self._try("the call can't be traced", self._forward)
        # Rules that need values can't be traced. They run below, on the arguments.
        self._traced = forward is not None
        half = self._split(self._call.call, "can't be differentiated in reverse mode")
        plain = self._split(
            lambda _: self._call.plain,
            "without its rules can't be differentiated",
            complete=True,
        )
        backward = None
        if half is not None and half.pull is not None:
            backward = self._try(
                "the backward pass can't be traced", lambda: trace.backward(half)
            )
        transformations = tuple(self._transformations())
        return Explanation(
            self._call.name,
            self._call.engine,
            self._call.arguments,
            tuple(half.outs) if half is not None else self._outs(forward),
            transformations,
            None if half is None else half.residuals,
            None if plain is None else plain.residuals,
            None if forward is None else forward[0],
            None if backward is None else backward[0],
            None if forward is None else forward[1],
            None if backward is None else backward[1],
            _kernels(forward, backward),
            tuple(self._notes),
        )

    def _try(self, what: str, step: Callable[[], Any]) -> Any:
        """Take a step; if it raises, note the error, and return None."""
        try:
            return step()
        except Exception as error:  # noqa: BLE001  (rules raise anything)
            self._notes.append(f"{what}: {_words(error)}")
            return None

    def _forward(self) -> tuple[Any, trace.Cost]:
        """Return the jaxpr and the cost of the call."""
        return jax.make_jaxpr(self._f)(*self._types), trace.cost(self._f, *self._types)

    def _outs(self, forward: Any) -> tuple[Any, ...]:
        """Return the types of the outputs, if the call can't be differentiated."""
        return () if forward is None else tuple(forward[0].out_avals)

    def _split(
        self, f: Callable[[trace.Tag], Any], what: str, *, complete: bool = False
    ) -> trace.Split | None:
        """Differentiate the call in reverse mode, and find its residuals.

        With `complete`, trace the backward pass too: some operations refuse only there.
        """
        # Integers alone: there is nothing to differentiate.
        if not any(map(values.is_number, self._types)):
            return None
        kept = [i for i, first in enumerate(self._first) if first == i]
        labels = [self._labels[i] for i in kept]

        def once(tag: trace.Tag) -> Any:
            """Make the call a function of its distinct arrays."""
            fun = f(tag)
            place = {i: n for n, i in enumerate(kept)}
            return lambda *xs: fun(*[xs[place[i]] for i in self._first])

        def step() -> trace.Split:
            if self._traced:
                types = [self._types[i] for i in kept]
                half = trace.split(once(trace.name_tag), types, labels)
                if complete:
                    trace.check_backward(half)
                return half
            return trace.run(once, [self._call.arrays[i] for i in kept], labels)

        # There are no values to run the rules on.
        if not self._traced and self._abstract:
            return None
        return self._try(f"the function {what}", step)

    # ---- transformations

    def _transformations(self) -> list[Transformation]:
        """Try the call under each transformation."""
        f, engine = self._f, self._call.engine
        twice = "the code of the rules, differentiated"
        rows = []
        if self._traced or not self._abstract:
            rows.append(self._row("call", "forward", f))
        rows.append(self._row("jit", "XLA compiles forward", f, compiled=True))
        if any(map(values.is_number, self._types)):
            pulled, pushed = trace.pulled, trace.pushed
            rows += [
                self._row("reverse mode", engine.reverse, pulled(f)),
                self._row("forward mode", engine.forward, pushed(f)),
                self._row("reverse over reverse", twice, pulled(pulled(f))),
                self._row("forward over reverse", twice, pushed(pulled(f))),
            ]
        if self._types:
            axis = trace.with_axis(self._types, 2)
            program = trace.batched(f)
            rows.append(self._row("vmap", engine.batch, program, axis, compiled=True))
        return rows

    def _row(
        self,
        name: str,
        how: str,
        program: Callable[..., Any],
        types: Sequence[Any] | None = None,
        *,
        compiled: bool = False,
    ) -> Transformation:
        """Try one program: by a trace if possible, else by running it."""
        try:
            if compiled or self._traced or self._abstract:
                # Lower it, because JAX raises some errors only then, for example for
                # forward mode of a custom_vjp under jit.
                types = self._types if types is None else types
                jax.jit(program).lower(*types)
            else:
                program(*self._call.arrays)
        except Exception as error:  # noqa: BLE001  (rules raise anything)
            return Transformation(name, works=False, how=_words(error))
        return Transformation(name, works=True, how=how)


def _kernels(*passes: Any) -> tuple[tuple[str, Kernel], ...]:
    """Return the kernels of the passes that could be traced, with the pass."""
    return tuple(
        (name, kernel)
        for name, found in zip(("forward", "backward"), passes, strict=True)
        if found is not None
        for kernel in kernels(found[0])
    )


def _words(error: Exception) -> str:
    """Write the first paragraph of an error, and the notes that jaxfn added.

    JAX's errors have more paragraphs of advice, and JAX's own notes.
    """
    notes = [x for x in getattr(error, "__notes__", ()) if "jaxfn" in x or "`" in x]
    text = " ".join(f"{error}".split("\n\n")[0].split())
    return " ".join([f"{type(error).__name__}: {text}", *notes])
