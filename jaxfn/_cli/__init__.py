"""The command line: what `python -m jaxfn` understands.

`commands` has `check`, `explain` and `compare`, `translation` has `translate`; `target`
reads what they are given: a name in a file or module, and arguments such as "f32[3]".
What PyTorch or LibCST is needed for is imported when the command runs. What a command
does is not here but in the room of its name, except for `demo`: it runs torch's own
examples (`jaxfn._examples`) under JAX's transformations, compares, and makes a table.
"""

from jaxfn._cli import commands, demo, translation
