"""LibCST trees: expressions, the names that code reads and binds, and scopes.

`fill` puts expressions into a template, with the parentheses that they need. `names`
finds the names that a node reads and binds, `scopes` those of each function. Only this
group imports LibCST.
"""

from jaxfn.torch._translate.syntax.expressions import (
    Sizes,
    Unparen,
    code,
    cst,
    dotted,
    fill,
    find,
    indices,
    is_line,
    keywords,
    metadata,
    observed_parts,
    paren,
    zeros_made,
)
from jaxfn.torch._translate.syntax.liveness import Liveness, bound_by
from jaxfn.torch._translate.syntax.names import (
    NoImports,
    Stores,
    Targets,
    ValuesOnly,
    alias_name,
    bound_names,
    import_of,
    loads,
    names_read,
    scope_statements,
    small_statements,
    store_names,
    stored,
    stored_names,
)
from jaxfn.torch._translate.syntax.scopes import (
    NameUses,
    Scopes,
    cst_params,
    local_names,
    members,
)
from jaxfn.torch._translate.syntax.writes import (
    diagonal_of,
    is_in_place,
    is_write_name,
    root_of,
    view_of,
    writes_of,
)
