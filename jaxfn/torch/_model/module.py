"""A module of PyTorch as a function of its parameters."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._base import (
    Flattener,
    TorchRefusal,
    experimental,
    from_numpy,
    is_inexact,
    to_jax,
    torch,
    unflatten,
)
from jaxfn.torch._function import Settings
from jaxfn.torch._model.function import OnArrays
from jaxfn.torch._model.state import UNREAD, ModuleWatch, Snapshot, Spans, hide


class TorchModel:
    """A module of PyTorch in JAX, as it was when `from_torch` got it.

    Attributes:
        params: The parameters that require a gradient, by their names in the module. A
            parameter with two names has the first one. Arrays of the same shapes and
            dtypes (int64 becomes int32 if x64 is off; float64 needs x64).
        frozen: The parameters that don't require one.
        buffers: The buffers.
        mutable: Whether `apply` returns the new buffers, too.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.func.functional_call.html
    """

    params: dict[str, jax.Array]
    frozen: dict[str, jax.Array]
    buffers: dict[str, jax.Array]
    mutable: bool

    def __init__(self, module: Any, settings: Settings, *, mutable: bool) -> None:
        self._name, self._settings = type(module).__name__, settings
        self.mutable = mutable
        for path, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                raise TypeError(
                    f"from_torch expected modules in Python, got a part of {self._name}"
                    f" made by torch.jit: `{path or self._name}`. Pass the module that "
                    "it was made of."
                )
        tensors = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        every = tensors | buffers
        for name, x in every.items():
            if isinstance(x, torch.nn.parameter.UninitializedTensorMixin):
                raise TypeError(
                    f"from_torch expected all parameters, got `{name}` of {self._name} "
                    "without a shape. Call the module once, on tensors."
                )
            if experimental.has_hooks(x):
                raise TypeError(
                    f"from_torch expected parameters without hooks, got one on `{name}`"
                    f" of {self._name}, which JAX would not call. Remove it, and change"
                    " the gradient where jax.grad returns it."
                )
        try:
            arrays = {k: to_jax(x) for k, x in every.items()}
        except TorchRefusal as refusal:
            raise refusal.of(self._name, "params") from None
        self.params = {k: arrays[k] for k, x in tensors.items() if x.requires_grad}
        self.frozen = {k: arrays[k] for k, x in tensors.items() if not x.requires_grad}
        self.buffers = {k: arrays[k] for k in buffers}
        self._dtypes = {k: x.dtype for k, x in every.items()}
        self._names = {  # of a state_dict, with those of tied parameters
            name: next(k for k, x in every.items() if x is value)
            for name, value in module.state_dict(keep_vars=True).items()
            if isinstance(value, torch.Tensor)
        }
        spans = Spans()
        for name, x in every.items():
            if other := spans.other(x):
                raise TypeError(
                    "from_torch expected parameters and buffers with memory of their "
                    f"own, got `{name}` of {self._name}, which shares that of `{other}`"
                    ": a write to one would not be seen in the other. Make the view in "
                    "forward, or a copy (clone) here."
                )
            spans.add(name, x)
        self._module, self._tensors = _without_values(
            module, list(every.values()), spans
        )
        # Parameters and buffers have no values; constants have.
        self._registered = {id(x) for x in self._tensors if x.is_meta}
        self._on_arrays = OnArrays(self._run, self._name, settings)

    def __repr__(self) -> str:
        n = sum(x.size for x in self.params.values())
        return f"TorchModel({self._name}, {len(self.params)} params, {n:,} numbers)"

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse a call without parameters."""
        raise TypeError(
            f"TorchModel({self._name}) expected its parameters in a call: "
            "model.apply(model.params, ...)."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._module, name):
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)
        raise AttributeError(
            f"TorchModel({self._name}) has no `{name}`, which belongs to the module: "
            "expected params, frozen, buffers, apply and state_dict. Change the module "
            "before from_torch.",
            name=name,
            obj=self,
        )

    def apply(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the module with these parameters.

        Args:
            params: The parameters that it was trained with. It may have frozen ones and
                buffers too, which then replace the model's.
            *args: The arguments of its forward: arrays in place of tensors, also in
                containers. Everything else is static. With `random=True` a PRNG key
                comes first.
            **kwargs: The keyword arguments, likewise.

        Returns:
            What its forward returns, with arrays in place of tensors. With
            `mutable=True` a pair of that and the new buffers.

        Raises:
            TypeError: `params` is no mapping, or has a name or a shape that the module
                does not have.
            TorchRefusal: The module can't run in JAX.

        Example:
            >>> import jax, jax.numpy as jnp, torch, jaxfn.torch
            >>> model = jaxfn.torch.from_torch(torch.nn.Linear(3, 1))
            >>> loss = lambda params, x: (model.apply(params, x) ** 2).sum()
            >>> grads = jax.jit(jax.grad(loss))(model.params, jnp.ones((2, 3)))
            >>> grads["weight"].shape, grads["bias"].shape
            ((1, 3), (1,))
        """
        return self._on_arrays(args, kwargs, self._checked(params))

    def _traced(self, *values: Any) -> tuple[Any, list[Any]]:
        """Return the function for a call with these values, for `explain`."""
        return self._on_arrays.traced(*values)

    def state_dict(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors for `module.load_state_dict`, from parameters.

        Args:
            params: As in `apply`.
        """
        values = self._checked(params, "state_dict")
        return {
            name: from_numpy(values[known], self._dtypes[known])
            for name, known in self._names.items()
        }

    def _checked(self, params: Any, what: str = "apply") -> dict[str, Any]:
        """Return all parameters and buffers."""
        if not isinstance(params, Mapping):
            raise TypeError(
                f"`{self._name}.{what}` expected a dict of parameters by name as its "
                f"first argument, as model.params is, got {type(params).__name__}."
            )
        known = {**self.buffers, **self.frozen, **self.params}
        for name in self.params:
            if name not in params:
                raise TypeError(
                    f"`{self._name}.{what}` expected a parameter `{name}`, got none: "
                    "pass all of model.params. (Parameters that are to stay as they "
                    "are: {**model.params, **yours}.)"
                )
        for name, x in params.items():
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f" Did you mean `{near[0]}`?" if near else ""
                raise TypeError(
                    f"`{self._name}.{what}` got a parameter `{name}`, which the module "
                    f"does not have.{hint}"
                )
            if jnp.shape(x) != known[name].shape:
                raise TypeError(
                    f"`{self._name}.{what}` expected `{name}` of shape "
                    f"{known[name].shape}, got {jnp.shape(x)}."
                )
            known[name] = x
        if {_dtype(params[name]) for name in self.params} == {"float64"}:
            # As after module.double(): a batch norm would compute in two precisions.
            for name, x in known.items():
                if name not in params and _dtype(x) == "float32":
                    known[name] = jnp.asarray(x, jnp.float64)
        return known

    def _run(self, values: dict[str, Any], args: Any, kwargs: Any) -> Any:
        """Call a copy of the module on tensors."""
        memo = {id(x): x for x in self._tensors}
        # A module may keep its parameters in a list or a dict of its own, too.
        own = zip(self._dtypes, self._tensors, strict=False)  # the constants are last
        memo |= {id(x): values[name] for name, x in own}
        module = copy.deepcopy(self._module, memo)
        experimental.note_modules(module)
        tensors = dict(values)
        for name in self.params:
            if not tensors[name].requires_grad and is_inexact(tensors[name].dtype):
                tensors[name].requires_grad_()
        before = {k: (x, experimental.writes_to(x)) for k, x in tensors.items()}
        known = self._registered | {id(x) for x in values.values()}
        state = Snapshot(module, known)
        with ModuleWatch() as watch:
            result = torch.func.functional_call(module, tensors, args, kwargs)
        written = [
            name
            for name, (x, count) in before.items()
            if tensors[name] is not x
            or experimental.writes_to(x) != count
            or any(x is y for y in watch.written)
        ]
        leaves = {k: x for k, x in tensors.items() if x.is_leaf}
        if grads := [f"{k}.grad" for k, x in leaves.items() if x.grad is not None]:
            raise self._writes(grads, _GRADS)
        lost = [name for name in written if name not in self.buffers]
        if written and not lost and not self.mutable:
            raise self._writes(written, _BUFFERS + _EVAL * module.training)
        known |= {id(x) for x in tensors.values()}
        changed = state.changes(Snapshot(module, known))
        lost += self._read_again(changed, module, watch, tensors, args, kwargs)
        lost += [name for name, _ in module.named_buffers() if name not in self.buffers]
        if lost:
            in_params = any(name in (*self.params, *self.frozen) for name in lost)
            raise self._writes(lost, _PARAMS if in_params else _ATTRIBUTES)
        if not self.mutable:
            return result
        return result, {name: tensors[name] for name in self.buffers}

    def _read_again(
        self,
        changed: tuple[list[str], list[str]],
        module: Any,
        first: ModuleWatch,
        *values: Any,
    ) -> list[str]:
        """Return the attributes whose new value would change the next call.

        Nothing reads a tensor that each call sets anew, for inspection. And a second
        call finds a cache of plain values as it is, and calls the same functions.
        """
        tensors, plain = changed
        if not tensors and not plain:
            return []
        flattener = Flattener(lambda x: isinstance(x, torch.Tensor))
        template = flattener(list(values))
        copies = [x.clone() for x in flattener.leaves]
        own = self._registered | {id(x) for x in (*flattener.leaves, *copies)}
        if not all(hide(module, name) for name in tensors):
            return [*tensors, *plain]
        before = Snapshot(module, own)
        with ModuleWatch(first) as watch:
            try:
                torch.func.functional_call(module, *unflatten(template, copies))
            except Exception:  # noqa: BLE001  (what a second call finds may not suit it)
                return [*tensors, *plain]
        _, again = before.changes(Snapshot(module, own))
        is_same = watch.calls == first.calls and set(again) <= set(tensors)
        return [] if is_same else [*tensors, *plain]

    def _writes(self, names: list[str], way_out: str) -> TorchRefusal:
        some = ", ".join(f"`{name}`" for name in names[:3])
        more = f" and {len(names) - 3} others" if len(names) > 3 else ""
        return TorchRefusal(
            operation=f"a write to {some}{more}",
            reason="the new value would be lost.",
            way_out=way_out,
        ).of(self._name, "apply")


def _dtype(x: Any) -> str:
    return str(getattr(x, "dtype", ""))


_BUFFERS = (
    "Pass mutable=True: apply then returns a pair of the result and the new buffers."
)
_EVAL = " Or call module.eval() before from_torch."
_GRADS = "Call torch.autograd.grad in forward, in place of backward()."
_PARAMS = "A parameter can't be written to in forward."
_ATTRIBUTES = (
    "Make it a buffer that holds a tensor (register_buffer), and pass mutable=True. If "
    "it is a cache, call the module once in PyTorch before from_torch. If each call "
    "begins anew, reset it at the end of forward."
)


def _without_values(
    module: Any, tensors: list[Any], spans: Spans
) -> tuple[Any, list[Any]]:
    """Return a copy of a module without the values of these tensors, and its tensors.

    Other tensors in it, which are constants, are copied with their values. But those
    that were computed of these tensors would not change with them. The old weight_norm
    has some, which each call computes anew.
    """
    memo: dict[int, Any] = {}
    for x in tensors:
        empty = torch.empty_like(x, device="meta")
        if isinstance(x, torch.nn.Parameter):
            empty = torch.nn.Parameter(empty, requires_grad=x.requires_grad)
        memo[id(x)] = empty
    for x in chain.from_iterable(Snapshot(module).tensors.values()):
        if id(x) not in memo and (x.grad_fn is not None or spans.other(x)):
            memo[id(x)] = UNREAD
    try:
        copied = copy.deepcopy(module, memo)
        found = [x for x in memo.values() if isinstance(x, torch.Tensor)]
        return copied, [x for x in found if x is not UNREAD]
    except Exception as error:
        raise TypeError(
            f"from_torch could not copy `{type(module).__name__}` by copy.deepcopy: "
            f"{type(error).__name__}: {error}. Remove what can't be copied. Or pass a "
            "function that calls the module by torch.func.functional_call."
        ) from error
