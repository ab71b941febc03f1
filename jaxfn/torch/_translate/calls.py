"""Calls, in JAX's terms."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._base import has_draws, torch
from jaxfn.torch._translate.references import PAIRS, References
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    fill,
    is_in_place,
    is_write_name,
    keywords,
    observed_parts,
    paren,
)
from jaxfn.torch._translate.table import ROWS
from jaxfn.torch._translate.table.row import CallArgument

_HOST = {"item", "tolist", "numpy", "nonzero", "backward", "register_hook"}
_MATH = {n: n for n in ("exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "floor")}
_MATH |= {"ceil": "ceil", "fabs": "abs", "atan": "arctan", "isnan": "isnan"}
_KEY = (
    "a PRNG key, which JAX needs to draw: pass one to apply (from_torch, with "
    "random=True, runs the original so)"
)
_ELSEWHERE = {"torch.autograd.grad": "differentiate a function by jax.vjp"}
_REDUCED = {"sum", "mean", "any", "all", "prod"}
_VALUE, _KIND = "the value is not known", "it has another type in JAX"
_ASKING = dict.fromkeys(
    ("float", "int", "bool", "complex", "max", "min", "any", "all", "sorted", "range"),
    _VALUE,
) | dict.fromkeys(("hasattr", "getattr", "setattr", "type", "dir", "vars"), _KIND)


class Calls(References):
    """A transformer of calls, and of reads of their results."""

    def _part(self, call: Any) -> int | str | None:
        """Return which of two results is taken of a call; "both" if both get a name."""
        around: Any = self.parents.get(call)
        if isinstance(around, cst.Subscript) and around.value is call:
            index = _only_index(around)
            return int(index) % 2 if index in ("0", "1", "-1", "-2") else None
        if isinstance(around, cst.Attribute) and around.attr.value in PAIRS:
            return PAIRS.index(around.attr.value)
        target: Any = (
            around.targets[0].target if isinstance(around, cst.Assign) else None
        )
        is_pair = isinstance(target, cst.Tuple) and len(target.elements) == 2
        return "both" if is_pair and len(around.targets) == 1 else None

    def leave_Subscript(self, original_node: Any, updated_node: Any) -> Any:
        if original_node.value in self.paired:
            return updated_node.value
        if self.is_passed_over(original_node) or self._is_reduced(original_node):
            return updated_node
        return self.masks.read(self.problem, original_node, updated_node)

    def _is_reduced(self, node: Any) -> bool:
        """Return whether it is `x[mask]` in `x[mask].sum()`, which is where= in JAX."""
        func: Any = self.parents.get(node)
        call: Any = self.parents.get(func)
        is_part = isinstance(node, cst.Subscript) and self.is_called(func)
        if not is_part or call.args or code(func).rpartition(".")[2] not in _REDUCED:
            return False
        x, mask = self.infer.of(node.value), self.infer.of(self.masks.mask(node))
        return x.ndim is not None and mask.ndim == x.ndim

    def leave_BinaryOperation(self, original_node: Any, updated_node: Any) -> Any:
        facts = [self.infer.of(n) for n in (original_node.left, original_node.right)]
        self.check_dtype(facts, self.infer.of(original_node))
        return updated_node

    def leave_Call(self, original_node: Any, updated_node: Any) -> Any:
        target = self.unit.references.get(original_node.func)
        if isinstance(self.parents.get(original_node), cst.WithItem):
            return updated_node  # of a block, which is rewritten later
        if target is not None and target.kind == "torch":
            return self._function(original_node, updated_node, target.name)
        func = original_node.func
        if isinstance(func, cst.Attribute):
            owner = self.infer.of(func.value)
            if owner.is_tensor:
                return self._method(original_node, updated_node)
            name = func.attr.value
            known = f"Tensor.{name}" in ROWS or is_write_name(name)
            if known and self._is_doubtful(func):
                self.problem(
                    f"{code(func.value)}.{func.attr.value}: {code(func.value)} is not "
                    "known to be a tensor (give arguments that reach this line)"
                )
        root = self.unit.references.get(_root(func))
        if root is not None and root.kind == "import":
            return self._imported(original_node, updated_node)
        if target is not None and target.kind == "builtin":
            return self._builtin(original_node, updated_node, target.name)
        return updated_node

    # ---- other libraries

    def _imported(self, original: Any, updated: Any) -> Any:
        """Rewrite a function of another library, which knows no tensors."""
        name = code(original.func)
        if "random" in name.split(".")[:-1] or self._is_of_random(original.func):
            self.problem(f"{name}: under jit it is drawn once, while JAX traces")
        parts = [p for a in original.args for p in observed_parts(a.value)]
        if not any(self.infer.of(p).is_tensor for p in parts):
            return updated
        short, root = name.rpartition(".")[2], self.unit.references.get(original.func)
        module = getattr(getattr(root, "value", None), "__module__", None) or ""
        if module.startswith("einops."):  # it takes arrays of JAX too
            return updated
        if name.startswith("math.") and short in _MATH:
            values = {"x": updated.args[0].value}
            return paren(fill(f"jnp.{_MATH[short]}(x)", values))
        self.problem(f"{name} of a tensor (jaxfn.host_function can run it)")
        return updated

    def _is_of_random(self, func: Any) -> bool:
        """Return whether it comes from `random`, or from NumPy's."""
        target = self.unit.references.get(func)
        owner = getattr(getattr(target, "value", None), "__self__", None)
        return type(owner).__name__ in ("Random", "RandomState", "Generator")

    def _builtin(self, original: Any, updated: Any, name: str) -> Any:
        """Rewrite a builtin; some ask a tensor for its value or type."""
        kinds = [self.infer.of(a.value).kind for a in original.args]
        if "device" in kinds:
            self.problem(f"{name}() of a device: JAX has other devices")
        tensors = [kind == "tensor" for kind in kinds]
        if name not in _ASKING or not any(tensors):
            return updated
        if name in ("max", "min") and len(tensors) > 1:
            facts = [self.infer.of(a.value) for a in original.args]
            if all(f.shapes == ((),) for f in facts if f.is_tensor):
                found = updated.args[0].value
                for arg in updated.args[1:]:
                    values = {"x": found, "y": arg.value}
                    found = paren(fill(f"jnp.{name}imum(x, y)", values))
                return found
        self.problem(f"{name}() of a tensor: {_ASKING[name]}")
        return updated

    def _function(self, original: Any, updated: Any, name: str) -> Any:
        head, _, short = name.rpartition(".")
        if name == "torch.Size":
            return updated.with_changes(func=cst.Name("tuple"))
        if head == "torch.Tensor" and original.args:
            name = f"Tensor.{short}"
        args = self._given(original.args, updated.args)
        in_place = is_in_place(original)
        if args and (is_write_name(short) or in_place):
            self._check_write(original, name, self.is_alone(original))
        if in_place:
            args = [a for a in args if a.keyword != "inplace"]
        elif is_write_name(short):
            name, short = name[:-1], short[:-1]
        core = ROWS.get(f"torch.{short}", ()) if _is_core(head) else ()
        rows = ROWS.get(name) or core
        return self._by_rows(original, updated, name, rows, args)

    def _check_write(self, original: Any, name: str, is_bound: bool) -> None:
        """Refuse a write that can't be a new value, or whose value has no name."""
        decision = self.facts.decision(original)
        if decision.reason or (decision.back and not is_bound):
            self.problem(f"{name}: {decision.reason or 'it is read again'}")

    def _method(self, original: Any, updated: Any) -> Any:
        func, name = original.func, original.func.attr.value
        fact = self.infer.of(func.value)
        if self._is_reduced(func.value):
            part = updated.func.value
            values = {"_x": part.value, "_mask": part.slice[0].slice.value}
            return fill(f"jnp.{name}(_x, where=_mask)", values)
        receiver = CallArgument(None, "", func.value, updated.func.value, fact)
        args = [receiver, *self._given(original.args, updated.args)]
        if name in _HOST:
            way = " (jaxfn.host_function runs NumPy)" if name == "numpy" else ""
            self.problem(f"Tensor.{name}: values are not known while JAX traces{way}")
            return updated
        if is_write_name(name):
            return self._in_place(original, updated, name, args)
        rows = ROWS.get(f"Tensor.{name}", ())
        return self._by_rows(original, updated, f"Tensor.{name}", rows, args)

    def _in_place(
        self, original: Any, updated: Any, name: str, args: list[CallArgument]
    ) -> Any:
        self._check_write(original, f"Tensor.{name}", self.is_bound(original))
        self.written[original] = updated
        full = f"Tensor.{name}"
        rows = ROWS.get(full) or ROWS.get(f"Tensor.{name[:-1]}", ())
        found = self._by_rows(original, updated, full, rows, args)
        if full not in ROWS:  # rows of writes keep the dtype
            self.check_kept(args[0].fact, [a.fact for a in args[1:]])
        return found

    def _given(self, originals: Any, updateds: Any) -> list[CallArgument]:
        found = []
        for old, new in zip(originals, updateds, strict=True):
            keyword = old.keyword.value if old.keyword is not None else None
            if old.keyword is not None and keyword == "out":
                continue
            fact = self.infer.of(old.value)
            found.append(CallArgument(keyword, old.star, old.value, new.value, fact))
        return found

    def _by_rows(
        self,
        original: Any,
        updated: Any,
        name: str,
        rows: Any,
        args: list[CallArgument],
    ) -> Any:
        reason = ""
        if "out" in keywords(original):
            self._check_write(original, f"{name}(out=...)", self.is_alone(original))
        for row in rows:
            if row.elementwise:
                self.check_dtype([a.fact for a in args], self.infer.of(original))
            bound = row.bind(args, self.infer.of(original))
            if isinstance(bound, str):
                reason = bound
                continue
            found = self._bound(original, row, bound)
            if found is not None and _runs_twice(original, found):
                self.problem(f"{name}: an argument with side effects, read twice")
            if found is not None:
                return found if self._part(original) == "both" else paren(found)
            reason = "these arguments"
        if name.partition(".")[2] in _HOST:
            reason = "values are not known while JAX traces"
        if _draws(name):
            reason = _KEY
        if name in _ELSEWHERE:
            name, reason = f"{name}: {_ELSEWHERE[name]}", ""
        self.problem(f"{name} with {reason}" if reason else name)
        return updated

    def _bound(self, original: Any, row: Any, bound: Any) -> Any:
        if row.second is None:
            return bound.expression()
        part = self._part(original)
        if part is not None:
            self.paired.add(original)
        if part in (0, 1):
            return bound.expression("gives" if part == 0 else "second")
        if row.pair is not None:
            return bound.expression("pair")
        first = bound.expression("gives")
        second = bound.expression("second")
        pair = cst.Tuple([cst.Element(first), cst.Element(second)])
        if part == "both":
            return pair.with_changes(lpar=[], rpar=[])
        return pair


def _draws(name: str) -> bool:
    """Return whether a function or method of torch draws random numbers."""
    packet = getattr(torch.ops.aten, name.rpartition(".")[2], None)
    overloads = getattr(packet, "overloads", list)()
    return any(has_draws(getattr(packet, overload)) for overload in overloads)


def _runs_twice(original: Any, found: Any) -> bool:
    """Return whether the translation removes items more often than the original."""
    before, after = code(original), code(found)
    return any(
        after.count(w) > before.count(w) for w in (".pop(", "next(", ".popitem(")
    )


def _is_core(module: str) -> bool:
    """Return whether a name in this module means the same as `torch.name`."""
    return not module.startswith(("torch.nn.init", "torch.distributions"))


def _only_index(node: Any) -> str:
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return ""
    return code(node.slice[0].slice.value)


def _root(node: Any) -> Any:
    """Return the innermost owner of an attribute."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node
