"""The command line: what `python -m jaxfn` understands.

`commands` has all commands. `target` reads their arguments: a name in a file or module,
and types such as "f32[3]". `output` writes their text. What a command does is in the
room of its name. `demo` runs `check` on the examples of PyTorch's pages
(`jaxfn._examples`) and prints a matrix.
"""

from jaxfn._cli import commands, demo
from jaxfn._cli.output import say
