"""Interception of torch calls while a rule's Python runs on tensors without values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxfn.torch._base import (
    OR_HOST,
    READ,
    TorchDispatchMode,
    TorchFunctionMode,
    TorchRefusal,
    experimental,
    fingerprint,
    has_draws,
    is_in_message,
    is_ours,
    is_users,
    next_draw,
    place_now,
    raised_by_statement,
    raised_by_user,
    torch,
)
from jaxfn.torch._trace import aliasing
from jaxfn.torch._triton import NOT_SHOWN, GpuLook, LaunchSeen, Surroundings


class Noted(NamedTuple):
    """The results of a function of tensors, with a note on them.

    Attributes:
        results: The tensors.
        note: A dataclass, equal on all paths through the function.
    """

    results: list[Any]
    note: Any


def results_of(found: Any) -> list[Any]:
    """Return the results without the note."""
    return found.results if isinstance(found, Noted) else found


def note_key(note: Any) -> Any:
    """Return a key of a note, equal for equal notes."""
    if note is None:
        return None
    parts = [getattr(note, f.name) for f in dataclasses.fields(note)]
    return fingerprint(parts, by_identity=False)


class NeedsRead(BaseException):
    """A rule read which inputs are differentiated, and that is not known yet.

    It is no Exception, because rules may catch those.
    """


_IS_LEAF = torch.Tensor.is_leaf.__get__
_GRADIENT = (_IS_LEAF, torch.Tensor.requires_grad.__get__, torch.Tensor.grad_fn.__get__)


MOST_CONDITIONS = 16
"""The greatest number of conditions on values on one path."""


class BranchDecisions:
    """The outcomes of the conditions on values, on one path through a rule.

    Args:
        begin: The outcomes of the first ones. The others are True.

    Attributes:
        taken: The outcomes.
        conditions: The conditions.
        places: The line of each.
        refusal: The refusal that it raised, because there were too many.
    """

    def __init__(self, begin: Sequence[bool]) -> None:
        self.taken = list(begin)
        self.conditions: list[Any] = []
        self.places: list[str] = []
        self.refusal: TorchRefusal | None = None

    def __call__(self, condition: Any) -> bool:
        """Return the outcome of the next condition."""
        if len(self.conditions) == MOST_CONDITIONS:  # it may be an endless loop
            self.refusal = self._too_many()
            raise self.refusal
        self.places.append(place_now(sys._getframe(1)))
        self.conditions.append(condition.reshape(()) != 0)
        if len(self.conditions) > len(self.taken):
            self.taken.append(True)
        return self.taken[len(self.conditions) - 1]

    @property
    def repeats(self) -> bool:
        """Whether one line has asked twice: it may stand in a loop."""
        return len(set(self.places)) < len(self.places)

    def _too_many(self) -> TorchRefusal:
        """Return the refusal of more conditions."""
        reason = "the next step depends on the value of a tensor, and a trace has no "
        reason += f"values (jaxfn traces at most {MOST_CONDITIONS} such conditions on "
        reason += "one path)."
        way_out = "Write it with torch.where."
        if self.repeats:
            reason = "how often a loop runs depends on the value of a tensor, and a "
            reason += f"trace has no values (it asked {MOST_CONDITIONS} times)."
            way_out = "Port this rule, with jax.lax.while_loop as its loop, or let the "
            way_out += "loop run a fixed number of steps, with torch.where in its body."
        return TorchRefusal(
            operation="bool(tensor)",
            reason=reason,
            way_out=f"{way_out} Or: {OR_HOST}",
            where=self.places[-1],
        )


def _equal(x: Any, y: Any) -> Any:
    return (x == y).all() if x.shape == y.shape else torch.tensor(False)


_CONDITIONS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__bool__: lambda x: x,
    torch.is_nonzero: lambda x: x,
    torch.Tensor.is_nonzero: lambda x: x,
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.allclose: lambda *args, **how: torch.isclose(*args, **how).all(),
    torch.Tensor.allclose: lambda *args, **how: torch.isclose(*args, **how).all(),
}


_NUMBERS = (torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__index__)
_READS = (*_NUMBERS, torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.tolist)
_READS += (torch.tensor, torch.Tensor.new_tensor)  # of a tensor: they copy its numbers
_TO_NUMPY = (torch.Tensor.numpy, torch.Tensor.__array__)

# These run nodes of torch's graph. Torch turns this mode off for all that it calls.
_ENGINE = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


class Watch(TorchFunctionMode):
    """A mode that gets each call of torch that the rule's Python makes.

    Args:
        known: Whether it is known which inputs are differentiated.
        choices: The outcomes of conditions on values.
        gpu: The GPU on which tensors seem to be, or None.
    """

    def __init__(
        self,
        choices: BranchDecisions,
        *,
        known: bool,
        gpu: GpuLook | None = None,
    ) -> None:
        super().__init__()
        self._gpu = gpu
        self._known, self._choices = known, choices
        self.last = self.place = self.backward_at = ""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        caller = sys._getframe(1)
        while _is_mode_of_ours(caller.f_code):  # it passed the call on
            caller = caller.f_back or caller
        if func is experimental.SET_GRAD:  # the end of a `with torch.enable_grad()`
            return func(*args, **(kwargs or {}))
        if func in _GRADIENT:
            return self._gradient(func, args, is_users(caller.f_code.co_filename))
        if is_ours(caller.f_code.co_filename) and func not in _ENGINE:
            return func(*args, **(kwargs or {}))  # jaxfn's own queries
        if self._gpu is not None:
            by_user = is_users(caller.f_code.co_filename)
            answer = self._gpu.shown(func, args, by_user=by_user)
            if answer is not NOT_SHOWN:
                return answer
            args, kwargs = self._gpu.moved(func, args, kwargs or {})
        place = place_now(caller)
        self.last, self.place = getattr(func, "__name__", str(func)), place
        if func in aliasing.REBOUND and args:
            raise aliasing.rebound(aliasing.REBOUND[func], place)
        # Torch reads addresses too. It calls __dlpack__ only if a user asks for it.
        is_asked = func is torch.Tensor.__dlpack__ or is_users(
            caller.f_code.co_filename
        )
        if func in aliasing.ADDRESSES and is_asked:
            refusal = aliasing.address(aliasing.ADDRESSES[func], place)
            if func is not torch.Tensor.data_ptr:
                raise refusal
            return aliasing.Address(args[0], refusal)
        experimental.note_place(place)
        if func in _TO_NUMPY and not experimental.is_fake(args[0]):
            raise _to_numpy(place)  # torch would make an array without values
        if func in _READS:
            for x in args:
                if isinstance(x, torch.Tensor) and not experimental.is_fake(x):
                    READ.note(x)
        if func is torch.Tensor.__setitem__ and _is_0d_mask(args):
            return _set_where(*args)
        if self.last == "backward":
            self.backward_at = place
        if func in _NUMBERS and experimental.is_fake(args[0]) and is_in_message(caller):
            return math.nan if func is torch.Tensor.__float__ else 0
        if func in _CONDITIONS:
            return self._condition(func, args, kwargs or {})
        if func in _ENGINE and args:
            return self._differentiate(func, args, kwargs or {})
        func = experimental.PLAINER.get(func, func)
        return func(*args, **(kwargs or {}))

    def _differentiate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let torch differentiate, with this mode on in other Functions' rules."""
        hooks = [
            node.register_prehook(lambda *_: self._enter())
            for node in experimental.nodes_of(args[0])
        ]
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if hooks:
                raise
            raise TorchRefusal(
                operation="autograd.grad",
                reason="its graph does not begin in this rule. The graph of another "
                "rule ends with that rule.",
                way_out="Compute it again in this rule, from saved tensors.",
                where=self.place,
            ) from error
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self) -> None:
        # No exit is needed: after each node, torch restores its own state.
        self.__enter__()

    def _condition(self, func: Any, args: Any, kwargs: Any) -> bool:
        if any(experimental.is_fake(x) for x in args):
            condition = _CONDITIONS[func](*args, **kwargs)
            if condition.numel() == 1:
                try:
                    return bool(condition)  # it is a constant
                except experimental.needs_values():
                    return self._choices(condition)
        return func(*args, **kwargs)

    def _gradient(self, func: Any, args: Any, by_user: bool) -> Any:
        """Return `requires_grad`, `is_leaf` or `grad_fn`, if it is known.

        If it is not known, all inputs require a gradient. A tensor that requires none
        even then requires none with fewer of them.
        """
        found = func(*args)
        depends = not found if func == _IS_LEAF else bool(found)
        if by_user and depends and not self._known and experimental.is_fake(args[0]):
            raise NeedsRead
        return found


def _to_numpy(place: str) -> TorchRefusal:
    return TorchRefusal(
        operation="a NumPy array of a tensor",
        reason="it is traced without values.",
        way_out=f"Compute it with torch, or before the call. Or: {OR_HOST}",
        where=place,
    )


def _is_mode_of_ours(code: Any) -> bool:
    return code.co_name == "__torch_function__" and is_ours(code.co_filename)


def _is_0d_mask(args: Any) -> bool:
    _, key, value = args
    return (
        isinstance(key, torch.Tensor)
        and key.dtype == torch.bool
        and key.ndim == 0
        and (not isinstance(value, torch.Tensor) or value.ndim == 0)
    )


# Torch itself would read the value of a mask without dimensions.
def _set_where(x: Any, mask: Any, value: Any) -> None:
    value = torch.as_tensor(value, dtype=x.dtype)
    x.copy_(torch.where(mask, value, x))


class RandomDraws(TorchDispatchMode):
    """A mode that numbers random draws, by the state of the generator.

    A rule that saves the state and restores it therefore draws the same numbers again.

    Args:
        seed: The first state; None refuses draws.
        note: Function that is called with each result.
    """

    def __init__(
        self, seed: int | None, note: Callable[[Any], None] | None = None
    ) -> None:
        super().__init__()
        self._note_result = note
        self._seed = seed
        self.is_real = False
        self.found: list[int] = []
        self._memory = aliasing.Memory()
        if seed is not None:
            torch.default_generator.manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        device = experimental.asks_device(func, args)
        if device is not None:
            return device
        kwargs = kwargs or {}
        if has_draws(func) and not (
            self.is_real and _drops_nothing(func, args, kwargs)
        ):
            self._note(func, kwargs)
        if self.is_real:
            return func(*args, **kwargs)
        _check_dtypes(func, args)
        found = self._memory(func, args, kwargs)
        if self._note_result is not None:
            self._note_result(found)
        return found

    def _note(self, func: Any, kwargs: Any) -> None:
        place = place_now(sys._getframe(2))
        if self._seed is None:
            raise TorchRefusal(
                operation=str(func),
                reason="it draws random numbers, which need a key in JAX.",
                way_out="Pass random=True to from_torch: apply then takes a PRNG key "
                "as its first argument.",
                where=place,
            )
        if kwargs.get("generator") is not None:
            raise TorchRefusal(
                operation=str(func),
                reason="it draws from a generator of its own.",
                where=place,
            )
        if self.is_real:
            return
        self.found.append(next_draw(torch.default_generator))


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether it is attention without dropout, which draws nothing."""
    return experimental.argument(func, "dropout_p", args, kwargs) == 0


_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("mm", "bmm", "addmm", "mv", "addmv", "baddbmm", "addbmm", "dot")
)


def _check_dtypes(func: Any, args: Any) -> None:
    """Refuse a product of two dtypes, as PyTorch does where there are values."""
    if getattr(func, "overloadpacket", None) not in _PRODUCTS:
        return
    dtypes = {str(x.dtype) for x in args if isinstance(x, torch.Tensor)}
    if len(dtypes) > 1:
        raise TorchRefusal(
            operation=str(func),
            reason=f"PyTorch refuses a product of two dtypes, got {sorted(dtypes)}.",
            way_out="Cast one of them.",
            where=place_now(sys._getframe(2)),
        )


class Path:
    """One run of a rule's Python.

    Args:
        run: From tensors to tensors (or None); the results may be `Noted`.
        begin: The outcomes of the first conditions on values.
        seed: The first state of the generator; None refuses draws.
        known: Whether it is known which inputs are differentiated.
        as_gpu: Whether tensors seem to be on a GPU, and launches become operations.

    Attributes:
        surroundings: The context of a run as on a GPU, or None.
        choices: The conditions of this path.
        draws: The numbers of its random draws.
        note: The note on its results, if any.
        raised: The error that the rule raised after a condition, if any.
        last: The name of the last function of torch that was called.
        place: The line of that call.
        backward_at: The line of the call of tensor.backward(), if any.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Any],
        begin: Sequence[bool],
        seed: int | None,
        *,
        known: bool,
        as_gpu: bool = False,
    ) -> None:
        self._run, self._seed, self._known = run, seed, known
        self.surroundings = Surroundings() if as_gpu else None
        self._has_launched = False
        self.choices = BranchDecisions(begin)
        self.draws: list[int] = []
        self.note: Any = None
        self.raised: Exception | None = None
        self.last = self.place = self.backward_at = ""

    def __call__(self, *tensors: Any) -> list[Any]:
        """Return the conditions, then the results, for the first pass."""
        gpu = note = None
        here: Any = experimental.launches_caught(self._launched)
        if self.surroundings is not None:
            gpu, note = self.surroundings.gpu, self.surroundings.storages.note
            here = self.surroundings.here()
            note(tensors)
        watch = Watch(self.choices, known=self._known, gpu=gpu)
        draws = RandomDraws(self._seed, note)
        found: list[Any] = []
        numbers, messages = _numbers_decide(self.choices), _messages_read(self.choices)
        opened = experimental.triton_ops_open()
        swaps = experimental.replaced(torch.utils, "swap_tensors", aliasing.swapped)
        with watch, draws, here, opened, swaps, numbers, messages:
            try:
                result = self._run(tensors)
                self.note = result.note if isinstance(result, Noted) else None
                found = [_own(x) for x in results_of(result)]
            except Exception as error:
                if not self.choices.conditions or not _is_users_own(error):
                    raise
                self.raised = error
            finally:
                self.last, self.place = watch.last, watch.place
                self.backward_at = watch.backward_at
                self.draws = draws.found
            if self._has_launched:  # even if the rule caught LaunchSeen
                raise LaunchSeen
            return [*self.choices.conditions, *found]

    def _launched(self, *_: Any, **__: Any) -> None:
        self._has_launched = True
        raise LaunchSeen


@contextlib.contextmanager
def _numbers_decide(choices: BranchDecisions) -> Iterator[None]:
    """Let a condition on a number branch, like one on a tensor.

    Such a number comes from `x.item()`, and has no value in a trace.
    """
    original = torch.SymBool.__bool__

    def decide(condition: Any, depth: int = 2) -> bool:
        try:
            return original(condition)
        except experimental.needs_values():
            caller: Any = sys._getframe(depth)
            if not is_users(caller.f_code.co_filename):
                raise  # torch itself asks, for example about a size
            return choices(torch.scalar_tensor(condition, dtype=torch.bool))

    def is_not_zero(number: Any) -> bool:
        condition = number != 0
        return condition if type(condition) is bool else decide(condition, 3)

    with (
        experimental.replaced(torch.SymBool, "__bool__", decide),
        experimental.replaced(torch.SymInt, "__bool__", is_not_zero),
        experimental.replaced(torch.SymFloat, "__bool__", is_not_zero),
    ):
        yield


@contextlib.contextmanager
def _messages_read(choices: BranchDecisions) -> Iterator[None]:
    """Let messages format numbers without a value, and warn on no unknown branch."""
    kinds = ((torch.SymFloat, "__float__"), (torch.SymInt, "__int__"))
    kinds += ((torch.SymInt, "__index__"),)
    warn = warnings.warn

    def reading(original: Any, number: Any) -> Any:
        try:
            return original(number)
        except experimental.needs_values():
            if is_in_message(sys._getframe(2)):
                return _unknown(number)
            raise

    def formatted(number: Any, spec: str) -> str:
        if not spec:
            return str(number)
        if is_in_message(sys._getframe(2)):
            return format(_unknown(number), spec)
        raise TorchRefusal(
            operation="format(number)",
            reason="the next step depends on the value of a tensor, and a trace has no "
            "values.",
            way_out=f"Format it in the message itself. Or: {OR_HOST}",
        )

    def warned(
        message: Any, category: Any = None, stacklevel: int = 1, **how: Any
    ) -> None:
        # Whether the program takes the branch of this warning is not known now.
        by_user = is_users(sys._getframe(2).f_code.co_filename)
        if not (by_user and choices.conditions):
            warn(message, category, stacklevel + 2, **how)

    with contextlib.ExitStack() as stack:
        for kind, method in kinds:
            read = functools.partial(reading, getattr(kind, method))
            stack.enter_context(experimental.replaced(kind, method, read))
        for kind in (torch.SymFloat, torch.SymInt):
            stack.enter_context(experimental.replaced(kind, "__format__", formatted))
        stack.enter_context(experimental.replaced(warnings, "warn", warned))
        yield


def _unknown(number: Any) -> float:
    """Return the number that a message shows for one without a value."""
    return 0 if isinstance(number, torch.SymInt) else math.nan


def _is_users_own(error: Exception) -> bool:
    """Return whether a line of the rule raised it, or a check of torch's arguments."""
    if isinstance(error, (TorchRefusal, *experimental.needs_values())):
        return False
    return raised_by_user(error) or raised_by_statement(error)


def _own(x: Any) -> Any:
    # A real tensor becomes a constant of the graph, which must have an operation.
    if isinstance(x, torch.Tensor) and not experimental.is_fake(x):
        return x.detach().clone()
    return x
