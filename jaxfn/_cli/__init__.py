"""The command line: what `python -m jaxfn` understands but for `demo`.

`commands` has `check`, `explain` and `compare`, `translation` has `translate`; `target`
reads what they are given: a name in a file or module, and arguments such as "f32[3]".
What PyTorch or LibCST is needed for is imported when the command runs. What a command
does is not here but in the room of its name.
"""

from jaxfn._cli import commands, translation
