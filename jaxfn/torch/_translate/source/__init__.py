"""The files of the original, and the definitions that are carried over.

`files` parses a module and finds out what its names refer to. From the Function,
`collect` follows these references to every class, helper and constant that it uses.
Each is a `Unit`.
"""

from jaxfn.torch._translate.source.files import (
    Referent,
    SourceFile,
    SourceFiles,
    key_of,
    literal,
)
from jaxfn.torch._translate.source.units import Unit, collect, is_for_onnx
