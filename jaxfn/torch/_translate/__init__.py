"""Torch Functions as source text for JAX.

Groups, from the bottom up; each has a door that says how it works:

`syntax`    LibCST trees: expressions, names, scopes
`source`    the files of the original, and the definitions that are carried over
`observe`   runs of the original, which show the type of each expression
`table`     what torch's names are in JAX
`analysis`  memory, writes, masks: what may become a new value
`rewrite`   the new text of a definition

`api` goes through them, `assemble` makes one file of the parts, and `verify` compares
it with the original. `translation` is what users call. It imports the rest, and so
LibCST, at the first call.
"""

from jaxfn.torch._translate.translation import Translation, translate, translated

__all__ = ["Translation", "translate", "translated"]
