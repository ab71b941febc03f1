"""Torch Functions as source text for JAX.

The groups, from the bottom up. The `__init__` of each says how it works.

`syntax`    LibCST trees: expressions, names, scopes.
`source`    Files of the original, and the definitions that are carried over.
`observe`   Runs of the original, which show the type of each expression.
`table`     The JAX equivalents of torch's names.
`analysis`  Memory, writes, masks: which writes may become new values.
`rewrite`   The new text of a definition.

`api` goes through them, `assemble` makes one file of the parts, and `verify` compares
it with the original. `translation` is what users call. It imports the rest at the first
call, because the rest needs LibCST.
"""

from jaxfn.torch._translate.translation import Translation, translate, translated

__all__ = ["Translation", "translate", "translated"]
