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


def _scatter(given: BoundCall) -> str | None:
    if not _along(given) or not _fits(given):
        return None
    return "jnp.put_along_axis(x, index, src, axis=dim, inplace=False)"


def _fits(given: BoundCall) -> bool:
    """Return whether source and index match: torch ignores other elements."""
    return given.kind("src") != "tensor" or given.shape("src") == given.shape("index")


def _grid(given: BoundCall) -> str | None:
    """Return the index of `.at` with `index` along one axis and all of the others."""
    shape, dim = given.shape("index"), given.literal("dim", None)
    if not shape or dim is None:
        return None
    n = len(shape)
    parts = []
    for i in range(n):
        if i == dim % n:
            parts.append("index")
        else:
            tail = ", ".join([":"] + ["None"] * (n - 1 - i))
            end = f"[{tail}]" if i < n - 1 else ""
            parts.append(f"jnp.arange(index.shape[{i}]){end}")
    return ", ".join(parts)


def _scatter_add(given: BoundCall) -> str | None:
    grid = _grid(given)
    if grid is None or _fits(given):
        return grid and f"x.at[{grid}].add(src)"
    sizes = ", ".join(
        f":index.shape[{i}]" for i in range(len(given.shape("index") or ()))
    )
    return f"x.at[{grid}].add(src[{sizes}])"


def _axis(what: str) -> str:
    def found(given: BoundCall) -> str | None:
        ndim, dim = given.ndim("x"), given.literal("dim", None)
        if not ndim or dim is None:
            return None
        axis = dim % max(ndim, 1)
        return f"x.at[{':, ' * axis}index].{what}"

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
        "_scatter_value": lambda given: (
            "jnp.put_along_axis(x, index, value, axis=dim, inplace=False)"
            if _along(given)
            else None
        ),
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
