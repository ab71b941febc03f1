"""Torch Functions as source text for JAX.

The order of work, each step with its modules::

    collect the class and all that it uses          # units; files finds their text
    run the original, instrumented                  # runs
        each expression shows its type              # observed
        each write shows who shares its memory      # observed
    visit each definition once                      # rewriter; below it, in layers,
                                                    #   statements, assignments, calls,
                                                    #   references, base
        guess the types that no run has shown       # infer
        look up the names of torch                  # table
        write the line in JAX's terms, or mark it
    make one file of the parts, and compare it      # port

`port` also goes through the steps. Only `syntax` imports LibCST, at the first call.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._compare import CompareReport

__all__ = ["Translation", "translate", "translated"]

_NOT_COMPARED = "not compared with the original: no arguments were given"


@dataclasses.dataclass(frozen=True)
class Translation:
    """Functions of torch as source text for JAX.

    Attributes:
        source: Text of a file that needs only jax and jaxfn.
        left: What could not be translated, each with its place, line and reason. In
            `source` the line is a comment, and a statement that raises replaces it.
        comparison: Report of `jaxfn.torch.compare` on the translation and its original;
            None if there were no arguments.
    """

    source: str
    left: tuple[Any, ...]
    comparison: CompareReport | None = None

    @property
    def ok(self) -> bool:
        """Return whether everything is translated, and nothing differs."""
        return not self.left and (self.comparison is None or self.comparison.ok)

    def brief(self) -> str:
        """Return what a person, or an agent, needs to finish the port.

        For each line that is left: the reason, the dtypes, shapes and values that it
        read in the runs, and the rows of the table for its operations. Then what failed
        in the comparison.

        Example:
            >>> import torch, jaxfn.torch
            >>> from torch.autograd.function import InplaceFunction
            >>> print(jaxfn.torch.translate(InplaceFunction).brief())
            nothing is left
            not compared with the original: no arguments were given
        """
        lines = []
        for left in self.left:
            lines += [f"{left.where}: {left.text}", f"    why:  {left.reason}"]
            lines += [f"    seen: {seen}" for seen in left.seen]
            lines += [f"    row:  {row}" for row in left.rows]
        if not lines:
            lines.append("nothing is left")
        if self.comparison is None:
            lines.append(_NOT_COMPARED)
        else:
            failures, refused = self.comparison.failures, self.comparison.refused
            lines += [f"differs: {f.check}: {f.message}" for f in failures]
            lines += [refused] if refused else []
            if not failures:
                lines.append("no row of the comparison differs")
        return "\n".join(lines)

    def __str__(self) -> str:
        parts = [f"left: {left}" for left in self.left]
        if self.comparison is None:
            parts.append(_NOT_COMPARED)
        else:
            parts.append(str(self.comparison))
        return "\n".join(parts)


def translate(cls: Any, *args: Any) -> Translation:
    """Translate a `torch.autograd.Function` to source text for JAX.

    The translation includes what the class uses of its file and its package. If you
    pass arguments, the original runs on them, which shows what is a tensor. Then
    `jaxfn.torch.compare` compares the translation with it. Without arguments, only what
    is certain from the text is translated.

    Args:
        cls: The class, derived from `torch.autograd.Function`.
        args: Arguments of its apply: tensors, NumPy or JAX arrays, and other objects.
            All float and complex tensors are differentiated.

    Returns:
        The source, what is left, and the comparison.

    Raises:
        TypeError: `cls` is no torch Function.
        ValueError: The class has no source text, or itself fails on `args`.
        ImportError: LibCST is not installed.

    Example:
        >>> import torch, jaxfn.torch
        >>> from torch.autograd.function import InplaceFunction
        >>> found = jaxfn.torch.translate(InplaceFunction)
        >>> found.left
        ()
        >>> "class InplaceFunction(jaxfn.Function):" in found.source
        True

    Source: https://docs.pytorch.org/docs/stable/notes/extending.html
    """
    return translated([cls], args, False)


def translated(
    classes: Sequence[Any],
    args: Sequence[Any],
    whole: bool,
    progress: Callable[[int, int, str], None] | None = None,
) -> Translation:
    """Translate classes of one file; `whole` keeps the rest of its top level."""
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
            raise TypeError(
                "translate expected a class derived from torch.autograd.Function, got "
                f"{cls!r}. Pass the class itself, not its apply."
            )
    if importlib.util.find_spec("libcst") is None:
        raise ImportError(
            "translate needs LibCST, which is not installed here: "
            "pip install 'jaxfn[translate]'."
        )
    api = importlib.import_module("jaxfn.torch._translate.port")
    return Translation(*api.translate(classes, args, whole=whole, progress=progress))
