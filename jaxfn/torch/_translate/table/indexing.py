"""Elements by their indices."""

from jaxfn.torch._translate.table.columns import table
from jaxfn.torch._translate.table.row import BoundCall


def _along(given: BoundCall) -> bool:
    """Return whether the index has the shape of the array, except along the axis."""
    x, index = given.shape("x"), given.shape("index")
    dim = given.traced("dim", None)
    if x is None or index is None or len(x) != len(index) or dim is None:
        return False
    axis = dim % max(len(x), 1)
    pairs = zip(x, index, strict=True)
    return all(a == b for i, (a, b) in enumerate(pairs) if i != axis)


def _gather(given: BoundCall) -> str | None:
    """If the index is smaller along other axes, torch reads the first elements."""
    if _along(given):
        return "jnp.take_along_axis(x, index, axis=dim)"
    ndim, dim = given.ndim("x"), given.traced("dim", None)
    if not ndim or not isinstance(dim, int):
        return None
    sizes = [":" if i == dim % ndim else f":index.shape[{i}]" for i in range(ndim)]
    return f"jnp.take_along_axis(x[{', '.join(sizes)}], index, axis=dim)"


def _fits(given: BoundCall) -> bool:
    """Return whether source and index match: torch ignores other elements."""
    return given.kind("src") != "tensor" or given.shape("src") == given.shape("index")


def _grid(given: BoundCall) -> str | None:
    """Return the index of `.at` with `index` along one axis and all of the others."""
    dim = given.literal("dim", None)
    if not given.shape("index") or not isinstance(dim, int):
        return None
    grid = "*jnp.indices(index.shape, sparse=True)"
    head = f"{grid}[:{dim}], " if dim else ""
    tail = f", {grid}[{dim + 1}:]" if dim != -1 else ""
    return f"({head}index{tail})"


def _at_grid(what: str, source: str) -> str:
    def found(given: BoundCall) -> str | None:
        grid, part = _grid(given), "[tuple(map(slice, index.shape))]"
        fits = not given.has("src") or _fits(given)
        return grid and f"x.at[{grid}].{what}({source}{'' if fits else part})"

    return found  # pyright: ignore[reportReturnType]


_scatter, _scatter_add = _at_grid("set", "src"), _at_grid("add", "src")
_scatter_value = _at_grid("set", "value")


def _axis(what: str) -> str:
    def found(given: BoundCall) -> str | None:
        dim = given.literal("dim", None)
        if not given.ndim("x") or not isinstance(dim, int):
            return None
        head = ":, " * dim if dim >= 0 else "..., "
        return f"x.at[{head}index{', :' * (-dim - 1)}].{what}"

    return found  # pyright: ignore[reportReturnType]


_index_add, _index_fill = _axis("add(source)"), _axis("set(value)")
_index_add_times = _axis("add(alpha * source)")
_index_copy = _axis("set(source)")

ROWS = table(
    """
gather             x dim index                   @_gather
take_along_dim     x indices dim                 jnp.take_along_axis(x, indices, axis=dim)
index_select       x dim index                   jnp.take(x, index, axis=dim)
take               x index                       jnp.take(x.ravel(), index)
index_add          x dim index source            @_index_add
index_add          x dim index source -alpha     @_index_add_times
index_copy         x dim index source            @_index_copy
index_fill         x dim index value             @_index_fill
scatter            x dim index src               @_scatter
scatter            x dim index -value            @_scatter_value
scatter_add        x dim index src               @_scatter_add
searchsorted       sorted_sequence x right?      @_searchsorted
bucketize          x boundaries right==True      jnp.searchsorted(boundaries, x, side="right")
bucketize          x boundaries                  jnp.searchsorted(boundaries, x)
isin               x test_elements               jnp.isin(x, test_elements)
""",
    {
        **locals(),
        "_searchsorted": lambda given: (
            None
            if given.ndim("sorted_sequence") != 1
            else "jnp.searchsorted(sorted_sequence, x)"
            if not given.has("right")
            else {
                True: 'jnp.searchsorted(sorted_sequence, x, side="right")',
                False: "jnp.searchsorted(sorted_sequence, x)",
            }.get(given.literal("right", None))
        ),
    },
)
