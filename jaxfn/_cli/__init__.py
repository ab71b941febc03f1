"""The command line: what `python -m jaxfn` understands.

`commands` has `check`, `explain` and `compare`, `translation` has `translate`; `target`
reads what they are given: a name in a file or module, and arguments such as "f32[3]".
What PyTorch or LibCST is needed for is imported when the command runs. What a command
does is in the room of its name. `demo` runs `check` on the examples of PyTorch's pages
(`jaxfn._examples`) and prints a matrix.
"""

from jaxfn._cli import commands, demo, translation
