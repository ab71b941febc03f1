"""The command line, `python -m jaxfn`.

`commands` has all commands. `target` reads their arguments: a name in a file or module,
and types such as "f32[3]". `output` writes their text. The package of each command's
name does its work. `demo` runs `check` on the examples of PyTorch's pages
(`jaxfn._examples`) and prints a matrix.
"""

from jaxfn._cli import commands, demo
from jaxfn._cli.output import say
