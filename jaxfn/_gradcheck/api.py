"""`gradcheck` and `gradgradcheck`: derivatives against finite differences, as torch.

The order of the checks and the first line of each message are torch's. What does them
is imported at the first call: most programs never ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._gradcheck.errors import GradcheckError, OutputChangedError


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Compare derivatives with central differences, as `torch.autograd.gradcheck`.

    Everything is computed in the dtype of the inputs: use float64 or complex128 inputs,
    with `jax_enable_x64`. `jaxfn.check` does more, and takes care of that itself.

    Args:
        func: any function that JAX can differentiate, such as `F.apply`. It returns an
            array, or several in a tuple or another pytree.
        inputs: its argument, or a tuple or list of them. Every float or complex array
            in them is differentiated; anything else is passed on.
        eps: the step of the differences.
        atol: absolute tolerance.
        rtol: relative tolerance.
        raise_exception: raise GradcheckError if a check fails; else return False.
        nondet_tol: by how much two runs of backward may differ.
        check_undefined_grad: compare an unused output with one whose gradient is zero,
            and, with check_forward_ad, a constant input with one whose tangent is zero.
        check_grad_dtypes: compare the dtype of each gradient with that of its input.
        check_batched_grad: False; `jaxfn.check` compares `jax.vmap` with a loop.
        check_batched_forward_grad: False, as check_batched_grad.
        check_forward_ad: check the forward mode.
        check_backward_ad: check the reverse mode.
        fast_mode: False; `jaxfn.check` compares along random directions.
        masked: accepted; there are no sparse arrays.

    Returns:
        True if all checks pass.

    Raises:
        GradcheckError: (a RuntimeError) a check fails.
        ValueError: no input is a float or complex array.
        NotImplementedError: check_forward_ad, and the function has no forward rule; or
            an option that only `jaxfn.check` has.
        TypeError: an output is no array (an AttributeError too, as in torch).
        AssertionError: options that contradict each other. Also, whatever
            raise_exception says, and then it is a GradcheckError too: the number, shape
            or dtype of the outputs changes when the inputs are perturbed.

    Differs from torch: arrays have no requires_grad, so all float inputs count, and all
    float outputs: leave out what is marked as non-differentiable, as in
    `lambda x: F.apply(x)[0]`. Where no output is used JAX does not run backward at all,
    so only some at a time are left undefined. A number of outputs that changes is
    refused, not overlooked.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxfn._examples import ExpDerived
        >>> from jaxfn.autograd import gradcheck
        >>> with jax.enable_x64(True):
        ...     gradcheck(ExpDerived.apply, jnp.array([0.5, -1.0]))
        True

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html
    """
    del masked
    _expect_false(
        "gradcheck",
        fast_mode=fast_mode,
        check_batched_grad=check_batched_grad,
        check_batched_forward_grad=check_batched_forward_grad,
    )
    _refuse(
        not (check_forward_ad or check_backward_ad),
        "Expected at least one of check_forward_ad or check_backward_ad to be True",
    )
    from jaxfn._gradcheck.call import Options
    from jaxfn._gradcheck.run import Gradcheck

    options = Options(
        eps=eps,
        atol=atol,
        rtol=rtol,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_forward_ad=check_forward_ad,
        check_backward_ad=check_backward_ad,
    )
    run = Gradcheck(func, inputs, options)
    try:
        run.run()
    except OutputChangedError:
        raise  # an AssertionError, which torch does not hide either
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Compare second derivatives, as `torch.autograd.gradgradcheck`.

    `gradcheck` of the gradients, as a function of the inputs and the cotangents.

    Args:
        func: see `gradcheck`.
        inputs: see `gradcheck`.
        grad_outputs: a cotangent for each float output; random ones by default.
        eps: see `gradcheck`.
        atol: see `gradcheck`.
        rtol: see `gradcheck`.
        gen_non_contig_grad_outputs: accepted; arrays have no strides.
        raise_exception: see `gradcheck`.
        nondet_tol: see `gradcheck`.
        check_undefined_grad: see `gradcheck`.
        check_grad_dtypes: see `gradcheck`.
        check_batched_grad: see `gradcheck`.
        check_fwd_over_rev: differentiate the gradients in forward mode.
        check_rev_over_rev: differentiate the gradients in reverse mode.
        fast_mode: see `gradcheck`.
        masked: accepted; there are no sparse arrays.

    Returns:
        True if all checks pass.

    Raises:
        RuntimeError: as for `gradcheck`, and where backward is marked
            `once_differentiable`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxfn._examples import ExpDerived
        >>> from jaxfn.autograd import gradgradcheck
        >>> with jax.enable_x64(True):
        ...     gradgradcheck(ExpDerived.apply, jnp.array([0.5, -1.0]))
        True

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradgradcheck.html
    """
    del gen_non_contig_grad_outputs
    _expect_false(
        "gradgradcheck", fast_mode=fast_mode, check_batched_grad=check_batched_grad
    )
    _refuse(
        not (check_fwd_over_rev or check_rev_over_rev),
        "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True",
    )
    _refuse(
        check_undefined_grad and not check_rev_over_rev,
        "Setting check_undefined_grad=True requires check_rev_over_rev to be True",
    )
    from jaxfn._gradcheck import jacobians
    from jaxfn._gradcheck.call import Call, as_tuple, random

    call = Call(func, inputs, eps)
    floats = jacobians.of_floats(call)
    if grad_outputs is None:
        generator = np.random.default_rng(0)
        cts = [random(o, generator, low=-1.0) for o in floats(*call.xs)]
    else:
        cts = [jnp.asarray(ct) for ct in as_tuple(grad_outputs)]
    n = len(call.xs)

    # x, ct -> J^T ct: its derivatives in the inputs and in the cotangents are checked.
    def gradients(*given: Any) -> Any:
        return jax.vjp(floats, *given[:n])[1](list(given[n:]))

    gradients.__qualname__ = f"the gradient of {call.name}"
    return gradcheck(
        gradients,
        (*call.xs, *cts),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        masked=masked,
    )


def _refuse(wrong: bool, message: str) -> None:
    """Raise what torch raises for options that contradict each other."""
    if wrong:
        raise AssertionError(message)  # what torch raises


def _expect_false(tool: str, **options: bool) -> None:
    """Refuse torch's options for which `jaxfn.check` is the better tool."""
    for name, given in options.items():
        if given:
            raise NotImplementedError(
                f"`{tool}` has no {name}: leave the option out, and call jaxfn.check, "
                "which compares along random directions and compares jax.vmap with a "
                "loop."
            )
