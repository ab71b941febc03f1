"""Torch Functions as source text for JAX.

In the order in which they are best read:

`translation`   what users call, which imports the rest at the first call
`_api`          from classes to the text of a file
`_sources`      the files of the original, with `_binding` (what statements bind)
`_units`        the definitions that are carried over, with `_pullbacks` (`vjp` in place
                of `autograd.grad`)
`_learn`        runs of the original, with `_instrument` (its text, made to tell),
                `_seen` and `_facts` (what was told of each expression), and `_computed`
                (which arrays of NumPy came from tensors)
`_infer`        what an expression is where no run came by, with `_scopes`
`_draws`        random draws, which need a key, with `_keyed` (the class that takes one)
`_names`        what torch's names are in JAX: the tables
`_flow`         writes into memory, with `_memory` (what shares it), `_liveness` (what
                is read later), `_writes` (which become new values) and `_masks`
`_rewrite`      the new text, with `_rewriting`, `_references`, `_arrays` (NumPy, with
                `_hosted`: functions that stay as they are), `_calls` and `_statements`
                (with `_assignments`), `_decorators`, `_annotations`, `_devices` (which
                go), `_promotion` (dtypes) and `_marks` (what is left)
`_assemble`     the file, from imports to definitions
`_compared`     the translation as a port, for `jaxfn.torch.compare`, with `_same_draws`
                (for one that draws)

`_expressions`, `_loads`, `_visitors` and `_lib` are tools for trees of LibCST, which is
imported here alone, at first use.
"""

from jaxfn.torch._translate.translation import Translation, translate, translated

__all__ = ["Translation", "translate", "translated"]
