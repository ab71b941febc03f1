"""Rows that have no counterpart in JAX, and why."""

NOT_APPLICABLE: dict[str, str] = {
    # ---- E: what backward may return
    "BWD-18": "JAX places arrays on devices itself: a gradient is moved, not refused.",
    "BWD-23": "Arrays have no strides and can't be written to in place.",
    # ---- G: torch.func
    "FUNC-27": "JAX functions are functional already: there is nothing to convert.",
    # ---- I: once_differentiable
    "OD-15": "A gradient is an array, without a node of a graph that has a name.",
}
