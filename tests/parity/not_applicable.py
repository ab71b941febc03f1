"""Rows that have no counterpart in JAX, and why."""

NOT_APPLICABLE: dict[str, str] = {
    # ---- A: FunctionCtx
    "CTX-06": "After apply there is no node: nobody holds the context (see CTX-05).",
    "CTX-12": "After apply there is no node whose saved tensors could be looked at.",
    "CTX-16": "Arrays have no grad_fn.",
    "CTX-18": "Arrays can't change, so there is no version to check (see CTX-17).",
    "CTX-29": "The new value is another array: that it is returned can't be checked.",
    "CTX-40": "Arrays have no requires_grad_(): what is differentiated by is said to "
    "jax.grad, and a marked output cuts the gradient (CTX-35).",
    "CTX-66": "JAX has no grad mode: any rule may be differentiated at any time.",
    "CTX-67": "Under a transformation arguments are tracers: no identity is promised.",
    "CTX-75": "to_save is private; save_for_backward always makes a tuple of it.",
    # ---- D: what forward may return
    "OUT-13": "Arrays are no views and can't be written to in place.",
    "OUT-14": "Arrays are no views and can't be written to in place.",
    "OUT-20": "JAX has no grad mode: what is not differentiated records nothing.",
    # ---- E: what backward may return
    "BWD-18": "JAX places arrays on devices itself: a gradient is moved, not refused.",
    "BWD-23": "Arrays have no strides and can't be written to in place.",
    # ---- G: torch.func
    "FUNC-27": "JAX functions are functional already: there is nothing to convert.",
    # ---- I: once_differentiable
    "OD-15": "A gradient is an array, without a node of a graph that has a name.",
    # ---- K: the legacy classes
    "BC-20": "Halves of torch's instance protocol; to call an instance works (BC-13).",
    "BC-21": "Private helpers of torch; jax.tree does this (see BC-13 to BC-18).",
    "BC-25": "A private leftover of torch's own operations.",
    # ---- L: since torch 2.8
    "NEW-12": "A private flag for views, which arrays are not.",
    "NEW-14": "Arrays have no grad_dtype: a gradient has the dtype of its array.",
    "NEW-15": "There is no graph whose edges could be kept.",
    "NEW-17": "Options of Tensor.backward, which arrays don't have.",
    # ---- M: saved-tensor hooks
    "HOOK-08": "A hook can't change an array in place.",
    "HOOK-18": "Arrays that are saved can't be changed.",
    "HOOK-22": "Arrays have no versions and no hooks of their own.",
    # ---- N: amp
    "AMP-09": "Deprecated names for a device: JAX has one amp for all of them.",
}
