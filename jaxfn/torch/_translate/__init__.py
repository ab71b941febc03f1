"""Torch Functions as source text for JAX.

Read `_api` (what users call), `_sources` and `_units` (what is carried over), `_learn`,
`_facts` and `_infer` (what is a tensor), `_names` (what torch's names are in JAX),
`_rewrite` with `_statements`, `_decorators`, `_annotations` and `_marks` (the text),
`_flow`, `_writes` and `_masks` (writes into memory), `_assemble` (the file) and
`_comparison` (is it right?).

Imported at first use: LibCST is needed here alone.
"""

from jaxfn.torch._translate._api import translate as translate
