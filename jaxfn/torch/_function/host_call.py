"""A call of a class that can't be traced: torch's own `apply` in a host callback."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax

from jaxfn.torch._base import (
    FORWARD,
    VMAP,
    Flattener,
    Leaf,
    Same,
    TorchRefusal,
    fingerprint,
    has_vmap,
    torch,
)
from jaxfn.torch._function import host
from jaxfn.torch._function.call import Batch, Dims, Settings, TorchCall
from jaxfn.torch._function.graph_function import GraphFunction


class HostCall:
    """The rules for one signature, in torch.

    Args:
        cls: The torch class.
        call: A call of this signature.
        settings: The settings of `from_torch`.
        refusal: Why it is not traced.
    """

    def __init__(
        self, cls: Any, call: TorchCall, settings: Settings, refusal: TorchRefusal
    ) -> None:
        self.cls, self.tops, self.args = cls, call.tops, call.args
        self.refusal = refusal
        self.name = cls.__name__
        self._settings = settings
        self._lock = threading.Lock()
        self._output: Any = None
        self.graph = GraphFunction(
            host.applied(cls, call.args, self._note),
            name=self.name,
            rule="apply",
            seed=settings.seed(FORWARD),
            host="always",
            batch=self._batched if has_vmap(cls) else None,
        )
        self.hidden = type("HostCall", (), {"rules": self})
        self._jvps: dict[Any, GraphFunction] = {}
        self._rules: dict[Any, GraphFunction] = {}

    def _batched(
        self, size: int, key_dim: Any, dims: Dims, key: Any, arrays: Sequence[Any]
    ) -> list[Any]:
        """Return the results of a batch, by the vmap rule of the class."""
        shapes = [
            jax.ShapeDtypeStruct(x.shape[1:] if d == 0 else x.shape, x.dtype)
            for x, d in zip(arrays, dims, strict=True)
        ]
        known = host.known_types(self.graph, shapes)
        assert known is not None  # they are known after forward or trial runs
        types = [(tuple(t.shape), t.dtype) for t in known if t is not None]
        batch = Batch(self.cls, self.args, self._output[0], types)
        batch.check(key_dim)
        where = (size, dims, Same(self.cls.vmap))
        if where not in self._rules:
            self._rules[where] = GraphFunction(
                batch.run(size, dims),
                name=self.name,
                rule="vmap",
                seed=self._settings.seed(VMAP),
                host="always",
                types=lambda _: [((size, *shape), dtype) for shape, dtype in types],
            )
        return self._rules[where].apply(key, *arrays)

    def _note(self, result: Any) -> None:
        """Remember the structure of the output, which must be the same at each call."""
        template = Flattener(lambda x: isinstance(x, torch.Tensor))(result)
        tops = template if isinstance(template, tuple) else (template,)
        for x in tops:
            if not isinstance(x, Leaf) and isinstance(x, (list, dict)):
                raise TorchRefusal(
                    operation="apply",
                    reason="it runs in a host callback, and returns tensors inside a "
                    "list or dict.",
                    way_out="Return them in a tuple.",
                )
        with self._lock:
            if self._output is None:
                self._output = [template]
            elif fingerprint(self._output[0]) != fingerprint(template):
                raise RuntimeError(
                    f"`{self.name}` returned other Python values than at its first "
                    "call. A host callback can only return tensors: return those."
                )

    def forward(self, ctx: Any, arrays: Sequence[Any], key: Any) -> Any:
        """Return torch's result, and save the arguments in jaxfn's ctx."""
        if self.graph.batch is None:
            results = self.graph(arrays, key)
        else:
            results = self.graph.apply(key, *arrays)
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)
        ctx.set_materialize_grads(False)
        template = self._output[0]
        tops = template if isinstance(template, tuple) else (template,)
        found = iter(results)
        parts = tuple(next(found) if isinstance(x, Leaf) else x for x in tops)
        return parts if isinstance(template, tuple) else parts[0]

    def is_output(self) -> list[bool]:
        """Return, for each output, whether it is a tensor."""
        template = self._output[0]
        tops = template if isinstance(template, tuple) else (template,)
        return [isinstance(x, Leaf) for x in tops]

    def gradients(
        self, ctx: Any, key: Any, needs_input_grad: Sequence[bool], cts: Sequence[Any]
    ) -> list[Any]:
        """Return a gradient (or None) for each argument."""
        arrays = ctx.saved_tensors
        wanted = [False] * len(arrays)
        for top, need in zip(self.tops, needs_input_grad, strict=True):
            if top is not None and need:
                wanted[top] = True
        cts = [ct for ct, ok in zip(cts, self.is_output(), strict=True) if ok]
        has_cotangent = tuple(ct is not None for ct in cts)
        if not any(wanted) or not any(has_cotangent):
            return [None] * len(self.tops)
        pulled = self.graph.vjp(tuple(wanted), has_cotangent).apply
        found = iter(pulled(key, *arrays, *[ct for ct in cts if ct is not None]))
        by_array = [next(found) if want else None for want in wanted]
        return [None if top is None else by_array[top] for top in self.tops]

    def tangents(self, ctx: Any, key: Any, tangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return a tangent for each output, by the class's own jvp."""
        arrays = ctx.saved_tensors
        by_array: list[Any] = [None] * len(arrays)
        for top, t in zip(self.tops, tangents, strict=True):
            if top is not None:
                by_array[top] = t
        has_tangent = tuple(t is not None for t in by_array)
        if has_tangent not in self._jvps:
            self._jvps[has_tangent] = GraphFunction(
                host.pushed(self.cls, self.args, has_tangent),
                name=self.name,
                rule="jvp",
                seed=self._settings.seed(FORWARD),
                host="always",
            )
        run = self._jvps[has_tangent].apply
        found = iter(run(key, *arrays, *[t for t in by_array if t is not None]))
        return tuple(next(found) if ok else None for ok in self.is_output())
