"""All private and experimental names of torch that jaxfn uses: tracing in two passes.

A release of torch may rename or remove any of them, so no other module uses them.
Public functions are no replacement, as of torch 2.13. `torch.export` takes 1.7 to 3.3 s
for a small body (this takes some 20 ms), and refuses `.data`. Its strict form refuses
autograd inside bodies. `torch.fx.symbolic_trace` knows no shapes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxfn.torch._base.decomposed import DECOMPOSED, of_lists
from jaxfn.torch._base.torch_module import torch

TESTED = ("2.11", "2.13", "2.14", "2.15")
"""The releases of torch with which jaxfn.torch was tested."""

_NAMES = {
    "make_fx": "torch.fx.experimental.proxy_tensor",
    "get_proxy_mode": "torch.fx.experimental.proxy_tensor",
    "ShapeEnv": "torch.fx.experimental.symbolic_shapes",
    "GuardOnDataDependentSymNode": "torch.fx.experimental.symbolic_shapes",
    "FakeTensor": "torch._subclasses",
    "FakeTensorMode": "torch._subclasses",
    "DataDependentOutputException": "torch._subclasses.fake_tensor",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor",
    "functionalize": "torch.func",
    "default_decompositions": "torch.export",
    "_set_grad_enabled": "torch._C",
    "_get_mkldnn_enabled": "torch._C",
    "_set_mkldnn_enabled": "torch._C",
    "_current_level": "torch.autograd.forward_ad",
    "TorchDispatchMode": "torch.utils._python_dispatch",
    "preserve_node_meta": "torch.fx.traceback",
    "set_stack_trace": "torch.fx.traceback",
    "OpOverload": "torch._ops",
    "CustomOpDef": "torch._library.custom_ops",
    "_get_current_function_mode_stack": "torch.overrides",
    "_get_current_dispatch_mode_stack": "torch.utils._python_dispatch",
    "_disable_current_modes": "torch.utils._python_dispatch",
    "_is_all_true": "torch",
    "_is_any_true": "torch",
}

# torch.fx replaces methods of torch while it traces: one thread at a time may trace.
LOCK = threading.RLock()


@functools.cache
def name(what: str) -> Any:
    """Return one of torch's experimental names.

    Raises:
        ImportError: This torch does not have it.
    """
    try:
        return getattr(importlib.import_module(_NAMES[what]), what)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"jaxfn.torch needs `{_NAMES[what]}.{what}`, which torch "
            f"{torch.__version__} does not have. Install a release that jaxfn was "
            f"tested with: torch {', '.join(TESTED)}."
        ) from error


def check() -> None:
    """Refuse a torch that lacks one of the names.

    Raises:
        ImportError: A name is missing. The message also lists the tested releases.
    """
    for what in _NAMES:
        name(what)


class TorchDispatchMode(name("TorchDispatchMode")):
    # Torch would wrap each call for its compiler, which takes a fifth of a trace.
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


SET_GRAD = name("_set_grad_enabled")

# Distributions check their arguments by these. Torch can't trace them for all shapes.
PLAINER: dict[Any, Callable[..., Any]] = {
    name("_is_all_true"): torch.all,
    name("_is_any_true"): torch.any,
}
"""Functions of torch, each with a plainer one that computes the same."""


def _pooled(pool: Any, input: Any, output_size: Any) -> Any:
    # For one pixel, contiguous() would leave strides that say channels_last.
    return pool(input.clone(memory_format=torch.contiguous_format), output_size)


class _AnswersNo(TorchDispatchMode):
    """A mode in which no two tensors are equal: torch asks so whether one is True."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.equal.default:
            return False
        return func(*args, **(kwargs or {}))


def _istft(*args: Any, **kwargs: Any) -> Any:
    """Return torch.istft, without its check that the windows leave out no sample."""
    with _AnswersNo():
        return torch.istft(*args, **kwargs)


PLAINER |= dict.fromkeys((torch.istft, torch.Tensor.istft), _istft)


# Of an array in the order channels_last, torch changes the strides of the result.
for pool in (
    torch.adaptive_avg_pool1d,
    torch.nn.functional.adaptive_avg_pool2d,
    torch.nn.functional.adaptive_avg_pool3d,
):
    PLAINER[pool] = functools.partial(_pooled, pool)


@functools.cache
def _is_fake_tensor() -> Callable[[Any], bool]:
    # From torch 2.15 on, a tensor without values need not be a FakeTensor.
    module = importlib.import_module("torch._subclasses.fake_tensor")
    kind = name("FakeTensor")
    return getattr(module, "is_fake_tensor", lambda x: isinstance(x, kind))


def is_fake(x: Any) -> bool:
    """Return whether it is a tensor without values, which rules get while tracing."""
    return _is_fake_tensor()(x)


def known(x: Any) -> Any:
    """Return the tensor with values, if torch knows those of one without; else `x`."""
    constant = getattr(x, "constant", None) if is_fake(x) else None
    if constant is None:
        return x
    constant._jaxfn_is_made = True
    return constant


def is_made(x: Any) -> bool:
    """Return whether `known` returned it: a rule made it, and no one else has it."""
    return getattr(x, "_jaxfn_is_made", False)


def is_operation(target: Any) -> bool:
    """Return whether this target of a node is an operation of torch."""
    return isinstance(target, name("OpOverload"))


def argument(operation: Any, wanted: str, args: Any, kwargs: Any) -> Any:
    """Return an argument of an operation by its name; None if it has none."""
    schema = schema_of(operation)
    for i, x in enumerate(() if schema is None else schema.arguments):
        if x.name == wanted:
            return args[i] if i < len(args) else kwargs.get(wanted, x.default_value)
    return None


def schema_of(target: Any) -> Any:
    """Return the types of an operation's arguments and results, with its writes."""
    return getattr(target, "_schema", None)


def asks_device(func: Any, args: Any) -> Any:
    """Return the device if torch asks for that of a tensor without values; else None.

    It asks at each operation, more often than everything else together.
    """
    if func is torch.ops.prim.device.default and type(args[0]) is name("FakeTensor"):
        return args[0].fake_device
    return None


def whole_of(x: Any) -> Any:
    """Return the base of a view; the tensor itself if it is no view."""
    return x if x._base is None else x._base


def is_base(x: Any) -> bool:
    """Return whether a tensor is no view of another one."""
    return x._base is None


def writes_to(x: Any) -> int:
    """Return how often an operation has written to a tensor, if torch counts it."""
    return 0 if x.is_inference() else x._version


def has_hooks(x: Any) -> bool:
    """Return whether a hook is registered on a tensor."""
    return bool(x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None))


def is_zero_tensor(x: Any) -> bool:
    """Return whether it is one of the zeros for which torch allocates no memory."""
    return x._is_zerotensor()


def needs_values() -> tuple[type[BaseException], ...]:
    """Return the errors that torch raises if a rule asks a tensor for its value."""
    return (
        name("DataDependentOutputException"),
        name("DynamicOutputShapeException"),
        name("GuardOnDataDependentSymNode"),
    )


def in_forward_mode() -> bool:
    """Return whether a forward-mode derivative is being computed."""
    return importlib.import_module(_NAMES["_current_level"])._current_level >= 0


class Fakes:
    """A maker of tensors without values.

    Args:
        symbolic: Whether sizes and numbers may be unknown.
    """

    def __init__(self, *, symbolic: bool) -> None:
        env = name("ShapeEnv")() if symbolic else None
        self.mode = name("FakeTensorMode")(
            allow_non_fake_inputs=True,
            shape_env=env,
            static_shapes=True if symbolic else None,
        )

    def __call__(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor of this type."""
        with self.mode:
            return torch.empty(tuple(shape), dtype=dtype)

    def forget(self) -> None:
        """Forget which tensors were made of tensors with values."""
        # Torch exchanges no tensor that is in them: then the next trace refuses it.
        converter = self.mode.fake_tensor_converter
        getattr(converter.meta_converter, "tensor_memo", {}).clear()
        getattr(converter, "constant_storage_mapping", {}).clear()


def give_value(x: Any, value: Any) -> None:
    """Make a tensor without values one with this value; it stays the same object."""
    kind = torch.nn.Parameter if isinstance(x, torch.nn.Parameter) else torch.Tensor
    value = value.detach()
    if kind is torch.nn.Parameter:
        value = kind(value, requires_grad=x.requires_grad)
    # Torch refuses it for a tensor to which something else than Python refers.
    with contextlib.suppress(RuntimeError):
        torch.utils.swap_tensors(x, value.requires_grad_(x.requires_grad))


def with_values() -> Any:
    """Return a context in the middle of a trace, where torch computes with values."""
    return name("_disable_current_modes")()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging tracebacks of errors that jaxfn then handles."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def _plain_cpu() -> Iterator[None]:
    """Let torch not use its library of kernels for a CPU."""
    # The public flags of torch.backends.mkldnn change others too, and warn of them.
    set_enabled, before = name("_set_mkldnn_enabled"), name("_get_mkldnn_enabled")()
    set_enabled(False)
    try:
        yield
    finally:
        set_enabled(before)


def foreign_modes() -> list[str]:
    """Return the modes of torch that are active, but for that of a default device."""
    functions = name("_get_current_function_mode_stack")()
    dispatch = name("_get_current_dispatch_mode_stack")()
    names = [type(mode).__qualname__ for mode in (*functions, *dispatch)]
    return [x for x in names if x != "DeviceContext"]


@contextlib.contextmanager
def tracing(fakes: Fakes) -> Iterator[None]:
    """Let torch compute with tensors without values, by its plainest operations."""
    # The fused kernels of attention are marked as random, even without dropout.
    attention = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    # Its kernels for a CPU (an LSTM is one operation there) have no row either.
    with fakes.mode, name("preserve_node_meta")(), _quiet(), attention, _plain_cpu():
        yield


def trace(body: Callable[..., Any], examples: Sequence[Any], fakes: Fakes) -> Any:
    """Run the first pass: return all operations of the Python, writes included."""
    with tracing(fakes):
        # Without a table, torch 2.14 turns each `detach` into an `alias`.
        return name("make_fx")(body, decomposition_table=DECOMPOSED)(*examples)


@contextlib.contextmanager
def replaced(target: Any, name: str, mine: Callable[..., Any]) -> Iterator[None]:
    """Let this thread call `mine` inside this context; other threads, the original."""
    original, owner = getattr(target, name), threading.get_ident()
    is_inherited = name not in target.__dict__

    def chosen(*args: Any, **kwargs: Any) -> Any:
        is_mine = threading.get_ident() == owner
        return (mine if is_mine else original)(*args, **kwargs)

    setattr(target, name, chosen)
    try:
        yield
    finally:
        if is_inherited:
            delattr(target, name)
        else:
            setattr(target, name, original)


_noted = [""]
_modules: list[str] = []


def note_place(place: str) -> None:
    """Note the line of the user's file for operations that are traced from now on."""
    _noted[0] = place
    name("set_stack_trace")([place])


def note_modules(module: Any) -> None:
    """Note in which part of a module an operation is traced, too."""

    def leave(*_: Any) -> None:  # what a hook returns would become the result
        _modules.pop()

    for path, part in module.named_modules():
        if path:
            part.register_forward_pre_hook(lambda *_, path=path: _modules.append(path))
            part.register_forward_hook(leave, always_call=True)


def place_noted() -> str:
    """Return the line that was noted last, and the part of a module."""
    return f"{_noted[0]}, in {_modules[-1]}" if _modules else _noted[0]


def place_of(node: Any) -> str:
    """Return the line of the user's file that an operation comes from."""
    return node.stack_trace or ""


LAST = "last function of torch: "
PLACE = "its line: "
"""First words of the notes on an error that say where it comes from."""


class _Replay(torch.fx.Interpreter):
    """An interpreter of a graph that notes which operation runs, also on an error."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Torch 2.11 can't detach tensors of unknown size. Here `alias` does the same.
        if target is torch.ops.aten.detach.default:
            target = torch.ops.aten.alias.default
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Without it, torch fails where something writes to a copy of a constant.
        return torch.ops.aten.lift.default(super().get_attr(target, args, kwargs))

    def run_node(self, n: Any) -> Any:
        _noted[0] = place_of(n)
        try:
            return super().run_node(n)
        except Exception as error:
            error.add_note(f"{LAST}{n.target}")
            error.add_note(f"{PLACE}{place_of(n)}")
            raise


def functional(module: Any) -> Callable[..., Any]:
    """Return a graph as a function that computes the same without writes and views."""
    replay = _Replay(torch.fx.GraphModule(module, module.graph)).run
    return name("functionalize")(replay, remove="mutations_and_views")


def functional_by_torch(module: Any, fakes: Fakes) -> Any:
    """Run the second pass by torch's own `make_fx`."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    with fakes.mode, torch.no_grad():
        examples = [
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype)
            for v in (n.meta["val"] for n in inputs)
        ]
        with name("preserve_node_meta")(), _quiet():
            return name("make_fx")(
                functional(module), decomposition_table=_decompositions()
            )(*examples)


def writes(target: Any) -> bool:
    """Return whether this target of a node is an operation that writes."""
    return is_operation(target) and schema_of(target).is_mutable


def has_writes(module: Any) -> bool:
    """Return whether an operation of a graph writes to its arguments."""
    return any(writes(n.target) for n in module.graph.nodes)


def forget_numbers(x: Any) -> None:
    """Make torch forget the numbers that a tensor had before a rule wrote to it.

    Torch itself forgets the tensor's own numbers, but not those of other tensors in the
    same memory.
    """
    mode = name("get_proxy_mode")()
    if mode is None:  # then no other numbers are known than those of the tensors
        return
    known = mode.tracer.tensor_tracker
    if x in known and known[x].constant is not None:
        return  # torch knows the numbers that the rule wrote
    number = storage_number(x)
    for other, what in known.items():
        if what.constant is not None and storage_number(other) == number:
            what.constant = None


def nodes_of(outputs: Any) -> list[Any]:
    """Return the nodes of the autograd graph that ends in these tensors."""
    outputs = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
    left = [getattr(x, "grad_fn", None) for x in outputs]
    seen: dict[Any, None] = {}
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen[node] = None
            left.extend(n for n, _ in node.next_functions)
    return list(seen)


@functools.cache
def decomposition(target: Any) -> Callable[..., Any] | None:
    """Return how torch writes an operation by others; None if it does not."""
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    if target in _decompositions():
        return _decompositions()[target]
    if str(target).startswith("aten._foreach_"):
        return of_lists(target)
    if target.namespace == "prim":  # a question, for example for the device
        return None
    if target.has_kernel_for_dispatch_key(implicit):
        return target.decompose
    return None


@functools.cache
def _decompositions() -> dict[Any, Any]:
    return dict(name("default_decompositions")().items()) | DECOMPOSED


# ---- operations of torch.library


class LibraryRules(NamedTuple):
    """The rules of an operation that `torch.library.custom_op` made.

    Attributes:
        name: Its name, without the namespace.
        forward: What it computes on a CPU.
        setup_context: What it saves for backward; None if it has no such rule.
        backward: None if it has no such rule.
        vmap: None if it has no such rule.
    """

    name: str
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None
    backward: Callable[..., Any] | None
    vmap: Callable[..., Any] | None


def library_rules(x: Any) -> LibraryRules | None:
    """Return the rules of an operation of torch.library; None for anything else."""
    if not isinstance(x, name("CustomOpDef")):
        return None
    forward = x._backend_fns.get("cpu", x._init_fn)
    rules = x._setup_context_fn, x._backward_fn, x._vmap_fn
    return LibraryRules(x._name, forward, *rules)


def library_schema(x: Any) -> Any:
    """Return the types of the arguments of an operation of torch.library."""
    return x._opoverload._schema


# ---- for Triton kernels


def storage_number(x: Any) -> int:
    """Return a number that two tensors have in common if they share their memory."""
    return x.untyped_storage()._cdata


def storage_bytes(x: Any) -> int:
    """Return the size of a tensor's memory in bytes."""
    return x.untyped_storage().nbytes()


@contextlib.contextmanager
def device_shown(device: Any, is_asked: Callable[[Any], bool]) -> Iterator[None]:
    """Let tensors without values report this device to this thread.

    Args:
        device: The reported device.
        is_asked: Whether the frame that asks gets that answer.
    """
    kind, owner = name("FakeTensor"), threading.get_ident()
    original = vars(kind).get("device")
    if original is None:  # then `__torch_function__` sees the access
        yield
        return

    def shown(self: Any) -> Any:
        is_mine = threading.get_ident() == owner and is_asked(sys._getframe(1))
        return device if is_mine else original.fget(self)

    kind.device = property(shown)
    try:
        yield
    finally:
        kind.device = original


# If no one has imported Triton, there are no kernels. So this does not import it.
_LAUNCHERS = {
    "JITFunction": "triton.runtime",
    "Autotuner": "triton.runtime",
    "InterpretedFunction": "triton.runtime.interpreter",
}


def is_kernel(x: Any) -> bool:
    """Return whether it is a Triton kernel, an autotuner or heuristics around one."""
    kind = getattr(sys.modules.get("triton.runtime"), "KernelInterface", None)
    return kind is not None and isinstance(x, kind)


@contextlib.contextmanager
def launches_caught(act: Callable[..., None]) -> Iterator[None]:
    """Let launches of Triton kernels in this thread call `act` instead."""
    with contextlib.ExitStack() as stack:
        for what, where in _LAUNCHERS.items():
            kind = getattr(sys.modules.get(where), what, None)
            if kind is not None:
                stack.enter_context(replaced(kind, "run", act))
        yield


def triton_ops_open() -> Any:
    """Return a context in which operations of `torch.library.triton_op` run as Python.

    One with a derivative, a vmap rule or a kernel for the CPU of its own stays closed:
    its Python does not have those.
    """
    kind = name("CustomOpDef")
    call = kind.__call__

    def opened(op: Any, *args: Any, **kwargs: Any) -> Any:
        modes = [mode.__name__ for mode in op._torch_dispatch_fns]
        others = op._backward_fn or op._vmap_fn or len(op._backend_fns) > 1
        is_open = "FunctionalTensorMode" in modes and not others
        return (op._init_fn if is_open else functools.partial(call, op))(
            *args, **kwargs
        )

    return replaced(kind, "__call__", opened)


def plain_launches() -> Any:
    """Return a context in which `torch.library.wrap_triton` returns its kernel."""
    return importlib.import_module("torch._library.triton").set_wrap_triton_enabled(
        False
    )


# While torch traces, it knows the values of a constant tensor of so many elements. Its
# own limit is 1: then the product of a tensor of sizes is unknown.
_MOST_CONSTANTS = 64


# A torch.utils.checkpoint runs its function again in backward, in the middle of which
# nothing can be traced. These run it once: values and gradients are the same.
_CHECKPOINT = "torch.utils.checkpoint"


def _once(*_: Any, **__: Any) -> Iterator[None]:
    yield


class _Reentrant:
    """The older kind of checkpoint: without inputs that require a gradient, none."""

    @staticmethod
    def apply(run: Callable[..., Any], _: bool, *args: Any) -> Any:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        is_on = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        with torch.set_grad_enabled(is_on):
            return run(*args)


@contextlib.contextmanager
def eased() -> Iterator[None]:
    """Let tracing remember constants, and call what compile and checkpoint wrap."""
    wanted = [
        ("torch._subclasses.fake_tensor", "CONSTANT_NUMEL_LIMIT", _MOST_CONSTANTS),
        ("torch.fx.experimental.proxy_tensor", "CONSTANT_NUMEL_LIMIT", _MOST_CONSTANTS),
        (_CHECKPOINT, "_checkpoint_without_reentrant_generator", _once),
        (_CHECKPOINT, "_checkpoint_without_reentrant_generator_impl", _once),  # 2.14
        (_CHECKPOINT, "CheckpointFunction", _Reentrant),
    ]
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for where, what, value in wanted:
            module = sys.modules.get(where)
            if module is not None and hasattr(module, what):
                stack.callback(setattr, module, what, getattr(module, what))
                setattr(module, what, value)
        yield
