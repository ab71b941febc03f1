"""The only module that uses private and experimental names of Triton.

A release of Triton may rename or remove any of them, so no other module knows them.
`import jaxfn` does not import Triton: each name is looked up at its first use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

TESTED = ("3.6", "3.7", "3.8", "3.9")
"""The releases of Triton with which jaxfn was tested."""

LOCK = threading.RLock()
"""One thread compiles at a time, because silencing warnings is global."""

_NAMES = {
    # compiling, without a GPU
    "ASTSource": "triton.compiler",
    "make_backend": "triton.compiler",
    "GPUTarget": "triton.backends.compiler",
    "ir": "triton._C.libtriton",
    "passes": "triton._C.libtriton",
    # what a kernel is
    "JITFunction": "triton.runtime",
    "Autotuner": "triton.runtime",
    "Heuristics": "triton.runtime",
    "driver": "triton.runtime.driver",
}


@functools.cache
def name(what: str) -> Any:
    """Return one of Triton's names.

    Raises:
        ImportError: This Triton lacks the name, or Triton is missing.
    """
    triton = module()
    try:
        return getattr(importlib.import_module(_NAMES[what]), what)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"jaxfn needs `{_NAMES[what]}.{what}`, which Triton {triton.__version__} "
            "does not have. Install a release that jaxfn was tested with: triton "
            f"{', '.join(TESTED)}."
        ) from error


@functools.cache
def module() -> Any:
    """Return the module `triton`.

    Raises:
        ImportError: Triton is not installed.
    """
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise ImportError(
            "jaxfn needs Triton to run Triton kernels: pip install 'jaxfn[triton]'."
        ) from error


def language() -> Any:
    """Return the module `triton.language`."""
    module()
    return importlib.import_module("triton.language")


def check() -> None:
    """Refuse a Triton that lacks one of the names.

    Raises:
        ImportError: A name is missing; the message lists the tested releases.
    """
    for what in _NAMES:
        name(what)


# ---- what a kernel is


def is_jit_function(x: Any) -> bool:
    """Return whether `x` is decorated by `triton.jit`, in Triton's own language."""
    return isinstance(x, name("JITFunction")) and type(x).__name__ != "GluonJITFunction"


def name_of(kernel: Any) -> str:
    """Return the name of a kernel, also inside an autotuner or heuristics."""
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return getattr(kernel, "__name__", repr(kernel))


def is_constexpr(parameter: Any) -> bool:
    """Return whether a parameter of a kernel is annotated as `tl.constexpr`."""
    return parameter.is_constexpr


def annotated_type(parameter: Any) -> str:
    """Return the annotated type of a parameter (for example `i32`); or empty."""
    return parameter.annotation_type.lstrip("*k")


def is_specialized(parameter: Any) -> bool:
    """Return whether Triton compiles the value 1 of a parameter as a constant."""
    return not (parameter.do_not_specialize or parameter.annotation_type)


def has_own_hooks(tuner: Any) -> bool:
    """Return whether an autotuner has the user's hooks around each timed launch."""
    return tuner.user_defined_pre_hook or tuner.user_defined_post_hook


def parameters(kernel: Any) -> list[Any]:
    """Return the parameters of a kernel, with name, default and annotation."""
    return kernel.params


def changed_globals(kernel: Any) -> list[str]:
    """Return the globals of a kernel and its helpers that changed since compilation."""
    found, seen, left = [], set(), [kernel]
    while left:
        function = left.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        used = function.used_global_vals.items()
        found += [what for (what, _), (value, of) in used if of.get(what) != value]
        names = function.fn.__code__.co_names
        held = (function.fn.__globals__.get(what) for what in names)
        left += [x for x in held if is_jit_function(x)]
    return found


# ---- compiling


def option_names() -> frozenset[str]:
    """Return the names of a launch's options: `num_warps` and others."""
    with LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = name("make_backend")(target(90)).parse_options({})
        return frozenset(options.__dict__)


def ttir(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[tuple[int, ...], Any],
    options: dict[str, Any],
    capability: int = 90,
) -> Any:
    """Compile a kernel to Triton's intermediate language, with inlined helpers.

    It needs no GPU. The passes are the first ones that Triton runs for a GPU; they
    leave a third of the operations.

    Args:
        kernel: The `triton.JITFunction`.
        signature: Type of each parameter, "constexpr" for constants.
        constants: Values of the constants, by position.
        options: Options of the compiler.
        capability: Compute capability of the GPU that it is compiled for.
    """
    goal = target(capability)
    backend = name("make_backend")(goal)
    ir = name("ir")
    with LOCK, warnings.catch_warnings():
        # The author of the kernel sees the warnings on a GPU.
        warnings.simplefilter("ignore")
        parsed = backend.parse_options(options)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        module = name("ASTSource")(kernel, signature, constants).make_ir(
            goal,
            parsed,
            backend.get_codegen_implementation(parsed),
            backend.get_module_map(),
            context,
        )
        module.context = context  # The module must not outlive it.
        passes, common = ir.pass_manager(context), name("passes").common
        for add in (
            *(common.add_inliner, common.add_canonicalizer, common.add_cse),
            *(common.add_symbol_dce, common.add_licm),
        ):
            add(passes)
        passes.run(module, "jaxfn")
    return module


# ---- while a rule is traced


def target(capability: int) -> Any:
    """Return an NVIDIA GPU of this compute capability, for example 90."""
    return name("GPUTarget")("cuda", capability, 32)


@contextlib.contextmanager
def driver_for_this_thread(mine: Any) -> Iterator[None]:
    """Make `mine` the `triton.runtime.driver.active` of this thread for a while.

    Args:
        mine: An object with the attributes of a driver that rules read.
    """
    config = name("driver")
    before, owner = config._active, threading.get_ident()

    class Chosen:
        def __getattr__(self, what: str) -> Any:
            if threading.get_ident() == owner:
                return getattr(mine, what)
            return getattr(config.default if before is None else before, what)

    config._active = Chosen()
    try:
        yield
    finally:
        config._active = before
