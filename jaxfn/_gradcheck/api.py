"""`gradcheck` and `gradgradcheck`: compare derivatives with finite differences.

The order of the checks and the first line of each message are torch's. The code of the
checks is imported at the first call, because most programs never call them.
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

    All is computed in the dtype of the inputs: pass float64 or complex128 inputs, with
    `jax_enable_x64`. `jaxfn.check` does more, and chooses the precision itself.

    Args:
        func: Any function that JAX can differentiate, such as `F.apply`. It returns an
            array, or a pytree of arrays.
        inputs: Its argument, or a tuple or list of arguments. Every float or complex
            array in them is differentiated; other values are passed on.
        eps: Step of the differences.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        raise_exception: Whether a failed check raises GradcheckError; else the result
            is False.
        nondet_tol: Largest difference of two runs of backward.
        check_undefined_grad: Whether to compare an unused output with one of zero
            gradient; with check_forward_ad also a constant input with one of zero
            tangent.
        check_grad_dtypes: Whether to compare the dtypes of gradients and inputs.
        check_batched_grad: Whether to compare `jax.vmap` of backward with a loop.
        check_batched_forward_grad: Whether to compare `jax.vmap` of jvp with a loop.
        check_forward_ad: Whether to check forward mode.
        check_backward_ad: Whether to check reverse mode.
        fast_mode: Accepted and ignored: whole Jacobians are compared. It saves torch
            time, and asks the same. `jaxfn.check` compares along random directions.
        masked: Accepted and ignored: there are no sparse arrays.

    Returns:
        True if all checks pass.

    Raises:
        GradcheckError: A check fails. (It is a RuntimeError.)
        ValueError: No input is a float or complex array.
        NotImplementedError: With check_forward_ad, the function has no forward rule.
        TypeError: An output is no array. (It is an AttributeError too, as in torch.)
        AssertionError: Options contradict each other. Also if the number, shape or
            dtype of the outputs changes when the inputs are perturbed. This error is a
            GradcheckError too, and raise_exception=False does not hide it.

    Differs from torch: arrays have no requires_grad, so all float inputs and outputs
    count. Leave out outputs marked non-differentiable: `lambda x: F.apply(x)[0]`. If no
    output is used, JAX does not run backward, so only some outputs at a time are
    undefined. A changing number of outputs raises.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxfn._examples import ExpDerived
        >>> from jaxfn.autograd import gradcheck
        >>> with jax.enable_x64(True):
        ...     gradcheck(ExpDerived.apply, jnp.array([0.5, -1.0]))
        True

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html
    """
    del masked, fast_mode
    _refuse(
        not (check_forward_ad or check_backward_ad),
        "Expected at least one of check_forward_ad or check_backward_ad to be True",
    )
    _refuse(
        check_batched_grad and not check_backward_ad,
        "Setting check_batched_grad=True requires check_backward_ad to be True",
    )
    _refuse(
        check_batched_forward_grad and not check_forward_ad,
        "Setting check_batched_forward_grad=True requires check_forward_ad to be True",
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
        check_batched_grad=check_batched_grad,
        check_batched_forward_grad=check_batched_forward_grad,
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

    This is `gradcheck` of the gradients, as a function of inputs and cotangents.

    Args:
        func: See `gradcheck`.
        inputs: See `gradcheck`.
        grad_outputs: A cotangent for each float output; random by default.
        eps: See `gradcheck`.
        atol: See `gradcheck`.
        rtol: See `gradcheck`.
        gen_non_contig_grad_outputs: Accepted and ignored: arrays have no strides.
        raise_exception: See `gradcheck`.
        nondet_tol: See `gradcheck`.
        check_undefined_grad: See `gradcheck`.
        check_grad_dtypes: See `gradcheck`.
        check_batched_grad: See `gradcheck`.
        check_fwd_over_rev: Whether to differentiate the gradients in forward mode.
        check_rev_over_rev: Whether to differentiate the gradients in reverse mode.
        fast_mode: See `gradcheck`.
        masked: Accepted and ignored: there are no sparse arrays.

    Returns:
        True if all checks pass.

    Raises:
        RuntimeError: As for `gradcheck`; also if backward is marked
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
    del gen_non_contig_grad_outputs, fast_mode
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

    # The map x, ct -> J^T ct; its derivatives by x and ct are checked.
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
        check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        masked=masked,
    )


def _refuse(wrong: bool, message: str) -> None:
    """Raise torch's error for options that contradict each other."""
    if wrong:
        raise AssertionError(message)  # what torch raises
