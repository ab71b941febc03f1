"""The one door to torch's private and experimental names: tracing in two passes.

A release of torch may rename or remove any of them, so no other module knows them.
Public routes were tried first, on torch 2.13: `torch.export` covers as much, takes 1.7
to 3.3 s for a small body (this takes some 20 ms), and refuses `.data`; its strict form
refuses autograd inside bodies. `torch.fx.symbolic_trace` knows no shapes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
    "_disable_current_modes": "torch.utils._python_dispatch",
    "_set_grad_enabled": "torch._C",
    "_current_level": "torch.autograd.forward_ad",
    "TorchDispatchMode": "torch.utils._python_dispatch",
    "preserve_node_meta": "torch.fx.traceback",
    "set_stack_trace": "torch.fx.traceback",
    "OpOverload": "torch._ops",
    "_is_all_true": "torch",
    "_is_any_true": "torch",
}

# torch.fx replaces methods of torch while it traces, so one thread at a time.
LOCK = threading.RLock()


@functools.cache
def name(what: str) -> Any:
    """One of torch's experimental names.

    Raises:
        ImportError: this torch does not have it.
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
        ImportError: names what is missing, and the releases that were tested.
    """
    for what in _NAMES:
        name(what)


TorchDispatchMode = name("TorchDispatchMode")

# Distributions check their arguments by these, which can't be traced for all shapes.
PLAINER = {name("_is_all_true"): torch.all, name("_is_any_true"): torch.any}
"""Functions of torch, and which of its others compute the same."""


@functools.cache
def _is_fake_tensor() -> Callable[[Any], bool]:
    # From torch 2.15 on, a tensor without values need not be a FakeTensor.
    module = importlib.import_module("torch._subclasses.fake_tensor")
    kind = name("FakeTensor")
    return getattr(module, "is_fake_tensor", lambda x: isinstance(x, kind))


def is_fake(x: Any) -> bool:
    """Is it a tensor without values, as rules get them while they are traced?"""
    return _is_fake_tensor()(x)


def is_operation(target: Any) -> bool:
    """Is this target of a node an operation of torch?"""
    return isinstance(target, name("OpOverload"))


def schema_of(target: Any) -> Any:
    """The types of an operation's arguments and results, and which it writes to."""
    return getattr(target, "_schema", None)


def whole_of(x: Any) -> Any:
    """The tensor that this one is a view of; itself, if it is none."""
    return x if x._base is None else x._base


def is_zero_tensor(x: Any) -> bool:
    """Is it one of the zeros for which torch keeps no memory?"""
    return x._is_zerotensor()


def needs_values() -> tuple[type[BaseException], ...]:
    """What torch raises where a rule asks a tensor for its value."""
    return (
        name("DataDependentOutputException"),
        name("DynamicOutputShapeException"),
        name("GuardOnDataDependentSymNode"),
    )


def in_forward_mode() -> bool:
    """Does a derivative in forward mode run here?"""
    return importlib.import_module(_NAMES["_current_level"])._current_level >= 0


def without_modes() -> Any:
    """A context in which tensors are real."""
    return name("_disable_current_modes")()


class Fakes:
    """Makes tensors without values.

    Args:
        symbolic: may sizes and numbers be unknown?
    """

    def __init__(self, *, symbolic: bool) -> None:
        env = name("ShapeEnv")() if symbolic else None
        self.mode = name("FakeTensorMode")(
            allow_non_fake_inputs=True,
            shape_env=env,
            static_shapes=True if symbolic else None,
        )

    def __call__(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor of this type."""
        with self.mode:
            return torch.empty(tuple(shape), dtype=dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """While it lasts, torch does not log the tracebacks of what is then refused."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def record(body: Callable[..., Any], examples: Sequence[Any], fakes: Fakes) -> Any:
    """First pass: the Python, with all that it does, as operations."""
    # Attention by operations, not by one kernel that says it may draw.
    attention = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with fakes.mode, name("preserve_node_meta")(), _quiet(), attention:
        # Without a table, torch 2.14 turns each `detach` into an `alias`.
        return name("make_fx")(body, decomposition_table={})(*examples)


@contextlib.contextmanager
def replaced(target: Any, name: str, mine: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, this thread calls `mine`; other threads what was there."""
    original, owner = target.__dict__[name], threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        is_mine = threading.get_ident() == owner
        return (mine if is_mine else original)(*args, **kwargs)

    setattr(target, name, chosen)
    try:
        yield
    finally:
        setattr(target, name, original)


def note_place(place: str) -> None:
    """Operations that are recorded from now on come from this line."""
    name("set_stack_trace")([place])


def place_of(node: Any) -> str:
    """The line of the user's file that an operation comes from."""
    return node.stack_trace or ""


LAST = "last function of torch: "
PLACE = "its line: "
"""How notes on an error begin that say where it comes from."""


class _Replay(torch.fx.Interpreter):
    """Runs a graph; an error says at which of its operations."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Without derivatives, the same; torch 2.11 can't detach what has no known size.
        if target is torch.ops.aten.detach.default:
            target = torch.ops.aten.alias.default
        return super().call_function(target, args, kwargs)

    def run_node(self, n: Any) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            error.add_note(f"{LAST}{n.target}")
            error.add_note(f"{PLACE}{place_of(n)}")
            raise


def functional(module: Any, fakes: Fakes) -> Any:
    """Second pass: without writes and views, in few operations."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    with fakes.mode, torch.no_grad():
        examples = [
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype)
            for v in (n.meta["val"] for n in inputs)
        ]
        replay = _Replay(module).run
        run = name("functionalize")(replay, remove="mutations_and_views")
        with name("preserve_node_meta")(), _quiet():
            return name("make_fx")(run, decomposition_table=_decompositions())(
                *examples
            )


def forget_numbers(x: Any) -> None:
    """Let torch not use numbers that it knew of this tensor before it was written to.

    Torch itself forgets those of the tensor, but not of others in the same memory.
    """
    known = name("get_proxy_mode")().tracer.tensor_tracker
    if x in known and known[x].constant is not None:
        return  # it was written to with numbers that torch knows
    number = storage_number(x)
    for other, what in known.items():
        if what.constant is not None and storage_number(other) == number:
            what.constant = None


def nodes_of(outputs: Any) -> list[Any]:
    """The nodes of the autograd graph that ends in these tensors."""
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
def _decompositions() -> dict[Any, Any]:
    return dict(name("default_decompositions")().items())


# ---- for Triton kernels


def storage_number(x: Any) -> int:
    """A number that tensors have in common if they share their memory."""
    return x.untyped_storage()._cdata


def storage_bytes(x: Any) -> int:
    """How many bytes the memory of a tensor has."""
    return x.untyped_storage().nbytes()


@contextlib.contextmanager
def device_shown(device: Any, is_asked: Callable[[Any], bool]) -> Iterator[None]:
    """While this lasts, tensors without values show this device in this thread.

    Args:
        device: What they show.
        is_asked: Whether the frame that asks is one that must see it.
    """
    kind, owner = name("FakeTensor"), threading.get_ident()
    original = vars(kind).get("device")
    if original is None:  # then it is asked as a function of torch
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


# Triton is not imported for this: if no one else has imported it, there are no kernels.
_LAUNCHERS = {
    "JITFunction": "triton.runtime",
    "Autotuner": "triton.runtime",
    "InterpretedFunction": "triton.runtime.interpreter",
}


def is_kernel(x: Any) -> bool:
    """Whether it is a kernel of Triton, or an autotuner or heuristics around one."""
    kind = getattr(sys.modules.get("triton.runtime"), "KernelInterface", None)
    return kind is not None and isinstance(x, kind)


@contextlib.contextmanager
def launches_caught(act: Callable[..., None]) -> Iterator[None]:
    """While this lasts, a launch of Triton in this thread calls `act` instead."""
    with contextlib.ExitStack() as stack:
        for what, where in _LAUNCHERS.items():
            kind = getattr(sys.modules.get(where), what, None)
            if kind is not None:
                stack.enter_context(replaced(kind, "run", act))
        yield


def plain_launches() -> Any:
    """A context in which `torch.library.wrap_triton` gives the kernel itself."""
    return importlib.import_module("torch._library.triton").set_wrap_triton_enabled(
        False
    )


# How many numbers of a tensor torch keeps while it traces: of one that a rule makes of
# Python's numbers. Torch keeps one, and then a product of sizes is unknown.
_KEPT = 64


@contextlib.contextmanager
def eased() -> Iterator[None]:
    """While this lasts, tracing knows small constants and goes into torch.compile."""
    wanted = {
        "torch._dynamo.config": ("error_on_nested_fx_trace", False),
        "torch._subclasses.fake_tensor": ("CONSTANT_NUMEL_LIMIT", _KEPT),
        "torch.fx.experimental.proxy_tensor": ("CONSTANT_NUMEL_LIMIT", _KEPT),
    }
    with contextlib.ExitStack() as stack:
        for where, (what, value) in wanted.items():
            module = sys.modules.get(where)  # no compiled function without Dynamo
            if module is not None and hasattr(module, what):
                stack.callback(setattr, module, what, getattr(module, what))
                setattr(module, what, value)
        yield
