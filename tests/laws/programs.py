"""Random programs of several Functions, as Python text: with jaxfn, and in plain JAX.

A program is a block of statements under a stack of transformations. A statement calls a
Function, computes something, chooses between blocks, loops, or puts a block of its own
under a stack. A `with` may stand inside a stack, around derivatives: it sets a factor
that Functions read, in forward or in their rules. What JAX refuses for any custom rule
is not drawn.

The plain program has the same text, but for the Functions: there these are what they
compute, and JAX's autodiff of it is what their rules must give.
"""

from __future__ import annotations

import linecache
import textwrap
from typing import Any

import jax
import numpy as np

from tests.laws.draws import Choices
from tests.laws.program_writer import Writer
from tests.laws.stacks import TRANSFORMATIONS, loss

PRELUDE = """
import contextlib, contextvars
import jax, jax.numpy as jnp, numpy as np
from jax import lax
import jaxfn
from tests.laws.programs import loss, transform

SCALE = contextvars.ContextVar("SCALE", default=1.0)
FACTORS = {"half": 0.5, "double": 2.0}


@contextlib.contextmanager
def scale(value):
    token = SCALE.set(value)
    try:
        yield
    finally:
        SCALE.reset(token)
"""


def transform(name: str, f: Any) -> Any:
    """`f` under a transformation of the laws."""
    return TRANSFORMATIONS[name].apply(f)


def transform_plain(name: str, f: Any) -> Any:
    """The same where a custom derivative would not be plain."""
    t = TRANSFORMATIONS[name]
    return (t.plain or t.apply)(f)


class Program:
    """A program that was drawn.

    Args:
        source: the seed, or choices.

    Attributes:
        made: the choices.
        functions: the text of the Functions.
        plain_functions: the text of what they compute.
        text: the rest.
        args: the arguments.
    """

    def __init__(self, source: str | list[int]) -> None:
        choices = Choices(source)
        writer = Writer(choices)
        self.text, self.args = writer.program()
        self.functions = "\n\n".join(m.text for m in writer.pool.made)
        self.plain_functions = "\n\n".join(m.plain for m in writer.pool.made)
        self.made = choices.made

    def got(self) -> list[np.ndarray]:
        """What it gives with jaxfn."""
        return self._run(self.functions, transform)

    def expected(self) -> list[np.ndarray]:
        """What plain JAX gives."""
        return self._run(self.plain_functions, transform_plain, whole=True)

    def _run(self, functions: str, transform: Any, *, whole: bool = False) -> Any:
        text = f"{PRELUDE}\n\n{functions}\n\n{self.text}"
        file = f"<program {hash(text)}>"
        names: dict[str, Any] = {"__name__": "program"}
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)
        with jax.enable_x64(True):
            try:
                exec(compile(text, file, "exec"), names)
                names["transform"] = transform
                f = jax.jit(names["program"]) if whole else names["program"]
                outs = f(*[jax.numpy.asarray(x) for x in self.args])
                return [np.asarray(x) for x in jax.tree.leaves(outs)]
            finally:
                del linecache.cache[file]

    def __str__(self) -> str:
        """Text that runs as it is, and prints what is compared."""
        args = ", ".join(f"jnp.array({x.tolist()})" for x in self.args)
        plain = textwrap.indent(self.plain_functions.strip(), "#   ")
        return (
            f"{PRELUDE.strip()}\n\n\n{self.functions.strip()}\n\n\n{self.text}\n"
            f"jax.config.update('jax_enable_x64', True)\nprint(program({args}))\n\n"
            f"# The plain mathematics of the Functions:\n{plain}\n"
        )


__all__ = ["Program", "loss", "transform"]
