"""The one door to Triton's private names.

A release of Triton may rename or remove any of them, so no other module knows them.
"""

from __future__ import annotations

import functools
import importlib
import threading
import warnings
from typing import Any

import triton

TESTED = ("3.6", "3.7", "3.8", "3.9")
"""The releases of Triton with which jaxfn was tested."""

LOCK = threading.RLock()
"""One thread at a time compiles: warnings are silenced meanwhile, which is global."""

_NAMES = {
    # Compiling to TTIR.
    "ASTSource": "triton.compiler.compiler",
    "make_backend": "triton.compiler.compiler",
    "GPUTarget": "triton.backends.compiler",
    "ir": "triton._C.libtriton",
    "JITFunction": "triton.runtime.jit",
}


@functools.cache
def name(what: str) -> Any:
    """One of Triton's private names.

    Raises:
        ImportError: this Triton does not have it.
    """
    try:
        return getattr(importlib.import_module(_NAMES[what]), what)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"jaxfn needs `{_NAMES[what]}.{what}`, which triton {triton.__version__} "
            "does not have. Install a release that jaxfn was tested with: triton "
            f"{', '.join(TESTED)}."
        ) from error


def ttir(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[tuple[int, ...], Any],
    options: dict[str, Any],
    capability: int = 90,
) -> Any:
    """A kernel in Triton's intermediate language, before any optimisation.

    Args:
        kernel: The `triton.JITFunction`.
        signature: Type of each parameter, "constexpr" for constants.
        constants: Values of the constants, by position.
        options: Options of the compiler.
        capability: Compute capability of the GPU that it is compiled for.
    """
    target = name("GPUTarget")("cuda", capability, 32)
    backend = name("make_backend")(target)
    ir = name("ir")
    with LOCK, warnings.catch_warnings():
        # Whoever wrote the kernel can act on them, and sees them on a GPU.
        warnings.simplefilter("ignore")
        parsed = backend.parse_options(options)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        module = name("ASTSource")(kernel, signature, constants).make_ir(
            target,
            parsed,
            backend.get_codegen_implementation(parsed),
            backend.get_module_map(),
            context,
        )
        module.context = context  # The module must not outlive it.
    return module


def parameters(kernel: Any) -> list[Any]:
    """The parameters of a kernel: name, default, whether constant, annotation."""
    return kernel.params
