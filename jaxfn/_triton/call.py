"""A launch on JAX arrays, which returns the new contents of written buffers.

On a CPU the kernel runs in an interpreter, as a host callback; on a GPU jax-triton
makes it a part of XLA's program. JAX chooses when it compiles.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxfn._core import internals
from jaxfn._kernels import LAUNCH, KernelDerivativeError
from jaxfn._triton import experimental, interpreter
from jaxfn._triton.errors import LaunchError
from jaxfn._triton.launch import KernelError, Launch


class InterpreterWarning(UserWarning):
    """Triton kernels run in a slow interpreter; the warning appears once in a process.

    Example:
        >>> import warnings, jaxfn
        >>> warnings.filterwarnings("ignore", category=jaxfn.InterpreterWarning)
    """


def launch(launch: Launch, buffers: Sequence[Any]) -> list[jax.Array]:
    """Run a launch; return the new contents of the buffers that it writes, in order.

    Args:
        launch: The launch.
        buffers: An array for each of its buffers.

    Raises:
        KernelError: Triton can't compile the kernel.
        LaunchError: On a CPU, the kernel uses an address outside its buffers.
        ImportError: There is a GPU, but jax-triton is missing.
    """
    if not launch.writes:
        return []
    has_gpu = jax.default_backend() in ("gpu", "cuda", "rocm")
    if not has_gpu:
        _warn_of_interpreter(launch.place)
    elif (error := _not_on_gpu(launch)) is not None:
        raise type(error)(
            f"The kernel `{launch.name}`, launched at {launch.place}, can't run on a "
            f"GPU: {error}"
        ) from error
    if 0 in launch.usable[0].grid:
        return [jnp.asarray(buffers[i]) for i in launch.writes]
    if all(_is_here(x) for x in buffers):  # at once, so errors keep their type
        values = on_host(launch, [*map(np.asarray, buffers)])
        return [jnp.asarray(x) for x in values]
    arrays = [*map(jnp.asarray, buffers)]
    # Neither a callback nor jax-triton declares the axes of a `shard_map` that results
    # vary over. If JAX took them for equal on all devices, gradients would be wrong.
    return [
        functools.reduce(internals.match_varying, arrays, x)
        for x in _function(_Keyed(launch))(*arrays)
    ]


def _is_here(x: Any) -> bool:
    """Return whether `x` is an array with known values on JAX's default CPU."""
    if isinstance(x, Tracer) or jax.default_backend() != "cpu":
        return False
    return isinstance(x, np.ndarray) or x.devices() == {jax.devices()[0]}


class _Keyed:
    """A launch that equals others with the same effect on the same buffers."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def __hash__(self) -> int:
        return hash(self.launch.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.launch.key == other.launch.key


@functools.lru_cache(maxsize=1024)  # JAX caches programs by function
def _function(keyed: _Keyed) -> Callable[..., Any]:
    """Make the launch a function of arrays."""
    launch = keyed.launch
    types = [launch.buffers[i] for i in launch.writes]

    def by_callback(*buffers: Any) -> Any:
        def run(*values: Any) -> Any:
            # JAX passes its own arrays; the kernel gets NumPy's.
            return on_host(launch, [*map(np.asarray, values)])

        run.__name__ = launch.name
        setattr(run, LAUNCH, launch.name)
        return jax.pure_callback(run, types, *buffers, vmap_method="sequential")

    def on_gpu(*buffers: Any) -> Any:
        return _on_gpu(launch, buffers)

    def choose(*buffers: Any) -> Any:
        if _not_on_gpu(launch) is not None:
            return by_callback(*buffers)
        return jax.lax.platform_dependent(
            *buffers, cuda=on_gpu, rocm=on_gpu, default=by_callback
        )

    choose.__name__ = launch.name  # the name in a jaxpr
    compiled = jax.jit(jax.custom_batching.sequential_vmap(choose))

    def refuse(primals: Any, tangents: Any) -> Any:  # noqa: ARG001
        raise KernelDerivativeError(
            f"The kernel `{launch.name}`, launched at {launch.place}, was "
            "differentiated. A kernel has no derivative of its own. Launch it in the "
            "forward of a jaxfn.Function that has a backward; for a second derivative, "
            "let that backward call a Function again."
        )

    run = jax.custom_jvp(compiled)
    run.defjvp(refuse)
    return run


# ---- on a CPU

_WARNED = threading.Event()


def _warn_of_interpreter(place: str) -> None:
    """Warn once in a process that the interpreter is slow."""
    if _WARNED.is_set():
        return
    _WARNED.set()
    file, _, line = place.rpartition(":")
    warnings.warn_explicit(
        "On a CPU, Triton kernels run in an interpreter: far slower than when "
        "compiled, for tests. On a GPU, jax-triton compiles them. (To hide this: "
        'warnings.filterwarnings("ignore", category=jaxfn.InterpreterWarning).)',
        InterpreterWarning,
        filename=file or place,
        lineno=int(line) if line.isdecimal() else 0,
    )


def on_host(launch: Launch, buffers: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a launch in the interpreter, on copies of the buffers."""
    copies = [np.array(x, order="C") for x in buffers]
    variant = launch.usable[0]
    arguments: dict[str, Any] = {f"b{i}": x for i, x in enumerate(copies)}
    arguments |= launch.constants(variant)
    names = {
        f"b{i}": "` and `".join(launch.parameters_of(i)) for i in range(len(copies))
    }
    try:
        interpreter.run(
            launch.generated,
            variant.grid,
            arguments,
            names=names,
            title=launch.name,
            num_warps=variant.num_warps,
        )
    except LaunchError as error:
        found = LaunchError(error.kernel, f"{error}, launched at {launch.place}")
        found.place = error.place
        raise found from error
    for i, (before, after) in enumerate(zip(buffers, copies, strict=True)):
        if i not in launch.writes and not _same_bytes(before, after):
            raise KernelError(
                f"The kernel `{launch.name}`, launched at {launch.place}, wrote to "
                f"{launch.parameter_of(i)}. jaxfn did not find this store in the "
                "kernel's code, so on a GPU it would change an array in place. Please "
                "report the kernel."
            )
    return [copies[i] for i in launch.writes]


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


# ---- on a GPU


@functools.cache
def _jax_triton() -> Any:
    """Return the module `jax_triton`, or the ImportError of its import."""
    variable = "TRITON_CACHE_DIR"
    before = os.environ.get(variable)
    try:
        return importlib.import_module("jax_triton")
    except ImportError as error:  # for example, it needs a JAX with GPU support
        return error
    finally:  # jax-triton sets or deletes the variable; Triton's launches use it
        if before is not None:
            os.environ[variable] = before
        else:
            os.environ.pop(variable, None)


def _not_on_gpu(launch: Launch) -> Exception | None:
    """Return the reason why jax-triton can't run a launch; None if it can."""
    module = _jax_triton()
    if isinstance(module, ImportError):
        return ImportError(f"pip install 'jaxfn[triton]'. ({module})")
    if _is_old(module.triton_call) and launch.effects.describes:
        return NotImplementedError(
            "it makes tensor descriptors, which need memory that jax-triton gives from "
            "0.4 on. Install a newer one, or use pointers."
        )
    return None


def _is_old(call: Any) -> bool:
    """Return whether it is older than 0.4, which passes outputs again after inputs."""
    return "out_type" not in inspect.signature(call).parameters


def _capability() -> int | None:
    """Return the compute capability to compile for; None if there is a GPU."""
    try:
        found = jax.devices("gpu")
    except RuntimeError:
        found = []
    return None if found else 90


def _on_gpu(launch: Launch, buffers: Sequence[Any]) -> Sequence[Any]:
    """Run a launch in XLA's program; written buffers are outputs that alias inputs.

    jax-triton restores them before it times the next variant.
    """
    call = _jax_triton().triton_call
    is_old = _is_old(call)
    kernel = launch.generated_with_outputs if is_old else launch.generated
    types = [launch.buffers[i] for i in launch.writes]
    given: dict[str, Any] = {"out_shape" if is_old else "out_type": types}
    first, *others = launch.usable
    if others:
        configs = [_config(launch.constants(v), v.options) for v in launch.usable]
        kernel = experimental.module().autotune(configs, key=[])(kernel)
    else:
        given |= launch.constants(first) | _options(first.options, is_old=is_old)
    grids = {launch.constants(v).get("CASE"): v.grid for v in launch.usable}
    with warnings.catch_warnings():
        # Since 0.4 it advises references, which can't be used inside a branch.
        warnings.filterwarnings("ignore", "input_output_aliases", DeprecationWarning)
        return call(
            *buffers,
            kernel=kernel,
            name=launch.name,
            grid=lambda constants: grids[constants.get("CASE")],
            input_output_aliases={b: i for i, b in enumerate(launch.writes)},
            compute_capability=_capability(),
            **given,
        )


_TUNED = ("num_warps", "num_stages", "num_ctas")


def _config(constants: dict[str, Any], options: dict[str, Any]) -> Any:
    # jax-triton passes no other options of a configuration to the compiler.
    tuned = {k: v for k, v in options.items() if k in _TUNED}
    return experimental.module().Config(constants, **tuned)


def _options(options: dict[str, Any], *, is_old: bool) -> dict[str, Any]:
    """Return the options of a launch in the form of jax-triton's triton_call."""
    named = (*_TUNED, "enable_fp_fusion") if is_old else _TUNED
    given: dict[str, Any] = {k: v for k, v in options.items() if k in named}
    if not is_old:
        others = {k: v for k, v in options.items() if k not in (*_TUNED, "debug")}
        given["backend_options"] = others
    return given
