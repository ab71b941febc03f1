"""The command `python -m jaxfn demo`: torch's own examples under JAX's transformations.

`examples` are the Functions of torch's pages, as a port writes them; `demo` runs each,
compares it, and makes the table.
"""

from jaxfn._demo.demo import BROKEN, cells, table
