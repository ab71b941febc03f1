"""From a torch function of flat tensors to a program in terms of JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxfn.torch._base import (
    OR_HOST,
    TorchRefusal,
    draws_by_torch,
    experimental,
    of_unused,
    place_of,
    raised_by_jaxfn,
    raised_by_user,
    torch,
)
from jaxfn.torch._trace.aliasing import ParameterGradGuard
from jaxfn.torch._trace.branches import Branch, BranchTree, Node, RaiseLeaf
from jaxfn.torch._trace.intercept import (
    MOST_CONDITIONS,
    NeedsRead,
    Noted,
    Path,
    note_key,
)
from jaxfn.torch._trace.lower import build
from jaxfn.torch._trace.recorder import Recorder

TensorFunction = Callable[[Sequence[Any]], "list[Any] | Noted"]
"""From tensors to tensors (or None)."""
MOST_PATHS = 16
"""The greatest number of paths through a rule."""
MOST_NODES = 8_000
"""The greatest number of operations on all paths together."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input to trace with.

    Attributes:
        shape: The shape of the tensor.
        dtype: Its dtype, torch's.
        requires_grad: Its `requires_grad`.
    """

    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool = False


def trace(
    run: TensorFunction,
    examples: Sequence[TensorSpec],
    *,
    seed: int | None = None,
    known: bool = True,
    parameters: Sequence[Any] = (),
    as_gpu: bool = False,
) -> BranchTree:
    """Return the program of `run` for inputs of these types.

    Args:
        run: From tensors to tensors (or None); the results may be `Noted`.
        examples: The types of the inputs.
        seed: The seed of the random draws; None refuses them.
        known: Whether it is known which inputs are differentiated.
        parameters: Real tensors whose `grad` the rule must not change.
        as_gpu: Whether tensors seem to be on a GPU, and launches become operations.

    Raises:
        TorchRefusal: The rule can't run in JAX.
        NeedsRead: `known` is False, and the rule read it.
        LaunchSeen: `as_gpu` is False, and the rule launched a kernel.
    """
    if modes := experimental.foreign_modes():
        raise TorchRefusal(
            operation=f"a mode of torch, {modes[-1]}",
            reason="it changes what operations compute, and the trace would keep that.",
            way_out="Call it outside of that mode (of a `with`, or of the environment "
            "of another library).",
            lasts=False,
        )
    guard = ParameterGradGuard(parameters)
    draws = torch.random.fork_rng(devices=[])
    with experimental.LOCK, draws, guard, experimental.eased(), _no_collection():
        how = {"known": known, "as_gpu": as_gpu}
        tracer = _Tracer(run, examples, seed, guard, symbolic=False, **how)
        try:
            return tracer.tree()
        except experimental.needs_values() as error:
            first = error
        tracer = _Tracer(run, examples, seed, guard, symbolic=True, **how)
        try:
            return tracer.tree()
        except experimental.needs_values() as error:
            raise _asks_for_value(error) from first


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Let Python not look for garbage.

    Of a model, it would look through all operations again and again, and find none.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Tracer:
    """A tracer of all paths through a rule, one for each outcome of its conditions.

    If it refuses one path, it refuses the rule.
    """

    def __init__(
        self,
        run: TensorFunction,
        examples: Sequence[TensorSpec],
        seed: int | None,
        guard: ParameterGradGuard,
        *,
        known: bool,
        symbolic: bool,
        as_gpu: bool,
    ) -> None:
        self._run, self._examples, self._seed = run, examples, seed
        self._known, self._symbolic = known, symbolic
        self._guard, self._as_gpu = guard, as_gpu
        self._notes: list[Any] = []
        self._paths = self._runs = self._nodes = 0
        self._has_looked_ahead = False

    def tree(self) -> BranchTree:
        """Trace all paths."""
        root = self._from((), 0)
        if not self._notes:
            raise self._error
        return BranchTree(
            root,
            len(self._examples),
            self._notes[0],
        )

    def _from(self, begin: tuple[bool, ...], known: int) -> Node:
        """Trace all paths that begin with these choices.

        Args:
            begin: The outcomes of the first conditions.
            known: The number of conditions whose other side is traced elsewhere.
        """
        path = Path(
            self._run, begin, self._seed, known=self._known, as_gpu=self._as_gpu
        )
        module = self._graph(path)
        if path.choices.repeats and not self._has_looked_ahead:
            self._look_ahead()
        taken, n = path.choices.taken, len(path.choices.conditions)
        self._runs, self._nodes = self._runs + 1, self._nodes + len(module.graph.nodes)
        twins = self._twins(module, path)
        for i, twin in twins.items():
            if taken[i] != taken[twin]:  # this path is impossible
                self._check_bounds(path)
                return self._from((*taken[:i], taken[twin]), known)
        self._paths += 1
        node = self._end(module, path)
        for i in reversed(range(known, n)):
            if i in twins:
                continue
            self._check_bounds(path)
            condition = self._build(module, path, slice(i, i + 1))
            other = self._from((*taken[:i], False), i + 1)
            node = Branch(condition, node, other)
        return node

    def _look_ahead(self) -> None:
        """Refuse a loop that a value ends at once, and not after as many traces.

        The first path takes each condition as True, which leaves such a loop at a
        `break`. If it never leaves it with False, it has too many conditions.
        """
        self._has_looked_ahead = True
        begin = (False,) * MOST_CONDITIONS
        path = Path(
            self._run, begin, self._seed, known=self._known, as_gpu=self._as_gpu
        )
        with contextlib.suppress(Exception):
            self._graph(path)
        if path.choices.refusal is not None:
            raise path.choices.refusal

    def _check_bounds(self, path: Path) -> None:
        runs = self._runs >= MOST_PATHS * MOST_PATHS
        if runs or self._paths >= MOST_PATHS or self._nodes > MOST_NODES:
            raise _too_many(path)

    def _end(self, module: Any, path: Path) -> Node:
        """Return the end of this path."""
        if path.raised is not None:
            self._error = path.raised
            return RaiseLeaf(path.raised)
        self._same(path.note)
        return self._build(module, path, slice(len(path.choices.conditions), None))

    def _build(self, module: Any, path: Path, wanted: slice) -> Any:
        return build(module, path.draws, len(self._examples), wanted=wanted)

    def _twins(self, module: Any, path: Path) -> dict[int, int]:
        """Return conditions that equal an earlier one, each with that earlier one."""
        n = len(path.choices.conditions)
        if n < 2:
            return {}
        keys = self._build(module, path, slice(0, n)).keys
        firsts = [keys.index(key) for key in keys]
        return {i: first for i, first in enumerate(firsts) if first != i}

    def _same(self, note: Any) -> None:
        self._notes.append(note)
        if note is not None and note_key(note) != note_key(self._notes[0]):
            raise TorchRefusal(
                operation="bool(tensor)",
                reason="its branches return or save values of different structure.",
            )

    def _graph(self, path: Path) -> Any:
        fakes = experimental.Fakes(symbolic=self._symbolic)
        inputs = [
            fakes(x.shape, x.dtype).requires_grad_(x.requires_grad)
            for x in self._examples
        ]
        try:
            with torch.no_grad(), draws_by_torch():
                if self._symbolic:
                    module = experimental.trace(path, inputs, fakes)
                else:
                    recorder = Recorder(inputs, fakes)
                    module = recorder.graph(path)
                    recorder.give_values(path.choices.conditions)
            self._guard.check(path.backward_at or path.place)
            if self._symbolic:
                return experimental.functional_by_torch(module, fakes)
            if experimental.has_writes(module):
                again = [fakes(x.shape, x.dtype) for x in self._examples]
                with torch.no_grad():
                    run = experimental.functional(module)
                    return Recorder(again, fakes).graph(run)
            return module
        except TorchRefusal as refusal:
            refusal.where = refusal.where or path.place
            raise
        except NeedsRead:
            raise
        except experimental.needs_values() as error:
            error.add_note(f"{experimental.LAST}{path.last}")
            error.add_note(f"{experimental.PLACE}{path.place}")
            raise
        except Exception as error:
            if not self._known and re.search("require.* grad", str(error)):
                raise NeedsRead from error  # not all arguments may require one
            if raised_by_user(error) or raised_by_jaxfn(error) or _misses(error):
                raise
            raise _refused(error) from error


def _misses(error: Exception) -> bool:
    """Return whether a call has not the arguments of the rule."""
    words = r"\(\) (missing \d|takes \d|takes from \d|got an unexpected keyword)"
    return isinstance(error, TypeError) and bool(re.search(words, str(error)))


def _too_many(path: Path) -> TorchRefusal:
    return TorchRefusal(
        operation="bool(tensor)",
        reason="its conditions on values make too many paths (more than "
        f"{MOST_PATHS}, or {MOST_NODES} operations).",
        way_out=f"Write it with torch.where. Or: {OR_HOST}",
        where=path.place,
    )


class _Words(NamedTuple):
    """The parts of a refusal; a reference to a group stands for what torch says."""

    operation: str
    reason: str
    way_out: str


# For what torch says, by a pattern.
_WORDS = {
    # A user's operation that writes to its arguments, or one without a function for
    # tensors without values.
    r"custom \(non-ATen\) operator|no fake impl"
    r"|UnsupportedOperatorException: (?!aten\.)": _Words(
        operation="an operation of torch.library",
        reason="jaxfn can't see which operations it computes or launches.",
        way_out=f"Call the function itself, without torch.library. Or: {OR_HOST}",
    ),
    r"HigherOrderOperator (\w+)": _Words(
        operation=r"torch.\1",
        reason="jaxfn does not trace the functions that are passed to it.",
        way_out="Write the condition or the loop in Python: jaxfn traces both sides of "
        f"an `if` and each step of a `for`. Or: {OR_HOST}",
    ),
    r"only concrete integers|must be tuple of ints": _Words(
        operation="a size that is computed from a tensor",
        reason="its shape depends on values.",
        way_out=f"Compute the size from shapes, or from Python numbers. Or: {OR_HOST}",
    ),
    r"\.numpy\(\) is not supported": _Words(
        operation="a NumPy array of a tensor",
        reason="it is traced without values.",
        way_out=f"Compute it with torch. Or: {OR_HOST}",
    ),
    # torch mistakes the device of tensors without values here, 2.14 still does.
    "FakeTensorDeviceMismatchError: .* meta and cpu": _Words(
        operation="torch.func.jvp, jacfwd or hessian inside of torch.func.vmap",
        reason="torch can't trace the gradient of forward mode over jacrev there.",
        way_out="Write it over torch.func.grad or vjp: jacfwd(grad(f)) for hessian(f). "
        f"Or: {OR_HOST}",
    ),
    "A view was created in no_grad mode": _Words(
        operation="the derivative of a rule that writes",
        reason="a kernel that it launches, or a write in place, has no derivative: it "
        "writes to a part of a tensor that forward saved.",
        way_out="Launch the kernel in a Function of its own that has a backward, or "
        "write the rule without kernels and writes in place.",
    ),
    r"([Ff]unction.* returned an (?:incorrect number of|invalid) gradient.*"
    r"|expected Variable or None.*)": _Words(
        operation="the result of backward",
        reason=r"PyTorch raises: \1.",
        way_out="Correct backward.",
    ),
}


def _refused(error: Exception) -> TorchRefusal:
    """Return the refusal for an error of torch."""
    if isinstance(error.__cause__, TorchRefusal):  # it was ours
        return error.__cause__
    unused = of_unused(error)
    if unused is not None:
        return unused
    said = str(error).strip().partition("\n")[0].rstrip(".")
    words = _Words(
        operation=_operation(error),
        reason=f"torch raised {type(error).__name__} while it was traced without "
        f"values: {said}.",
        way_out="If PyTorch raises it for tensors of these shapes and dtypes too, "
        f"correct the call. Or: {OR_HOST}",
    )
    for pattern, texts in _WORDS.items():
        if found := re.search(pattern, f"{type(error).__name__}: {error}"):
            words = _Words(*map(found.expand, texts))
            break
    return TorchRefusal(
        **words._asdict(),
        where=place_of(error.__traceback__) or _noted(error, experimental.PLACE),
    )


def _operation(error: Exception) -> str:
    text = str(error)
    if re.search(r"Sparse[A-Z]|[Ss]parse (tensor|layout|CSR|COO)|to_sparse", text):
        return "a sparse tensor"
    if ".numpy()" in text or "numpy" in text:
        return "a NumPy array of a tensor"
    if "marked with @once_differentiable" in text:
        return "the derivative of backward"
    return "an operation"


def _asks_for_value(error: BaseException) -> TorchRefusal:
    last = _noted(error, experimental.LAST)
    words = {
        "__bool__": "bool(tensor)",
        "__int__": "int(tensor)",
        "__index__": "int(tensor)",
        "__float__": "float(tensor)",
        "item": "tensor.item()",
        "tolist": "tensor.tolist()",
        "__getitem__": "x[i]",
        "aten.select.int": "x[i]",
        "__setitem__": "x[i] = …",
        "__contains__": "x in tensor",
    }
    way_out = "Write it with torch.where and masks."
    if last in ("__getitem__", "__setitem__", "aten.select.int"):
        way_out = "Write x[i] as x[i.reshape(1)], and x[:i] with torch.where and masks."
    return TorchRefusal(
        operation=words.get(last, last or "an operation"),
        reason="the next step depends on the value of a tensor, and a trace has no "
        "values.",
        where=place_of(error.__traceback__) or _noted(error, experimental.PLACE),
        way_out=f"{way_out} Or: {OR_HOST}",
    )


def _noted(error: BaseException, begin: str) -> str:
    notes = [x for x in getattr(error, "__notes__", ()) if x.startswith(begin)]
    return notes[0][len(begin) :] if notes else ""
