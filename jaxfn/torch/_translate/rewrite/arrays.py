"""NumPy's arrays in rules: arrays of JAX, computed on the host.

A tensor and its `.numpy()` are one array in JAX. What NumPy or SciPy computes of it,
and a helper that knows nothing but NumPy, goes on computing on the host, by
`jaxfn.host_function`; what `jax.numpy` has too is written in its terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxfn.torch._translate.observe import ExprType, seen_parts
from jaxfn.torch._translate.rewrite import promotion
from jaxfn.torch._translate.rewrite.references import References
from jaxfn.torch._translate.syntax import code, cst, keywords, loads
from jaxfn.torch._translate.table import arrays

_MATH = {n: n for n in ("exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "floor")}
_MATH |= {"ceil": "ceil", "fabs": "abs", "atan": "arctan", "isnan": "isnan"}
_KEPT = (np.array, np.asarray, np.ascontiguousarray, np.copy)
_ORDERS = ('"K"', "'K'", '"A"', "'A'")


class Arrays(References):
    """Rewrites what knows no tensors: other libraries, and NumPy's arrays."""

    def leave_BinaryOperation(self, original_node: Any, updated_node: Any) -> Any:
        facts = [self.infer.of(n) for n in (original_node.left, original_node.right)]
        result = self.infer.of(original_node)
        if result.numpy and any(f.kind in ("other", "callable") for f in facts):
            return self._operator_on_host(updated_node)
        if result.numpy:
            divides = isinstance(original_node.operator, cst.Divide)
            updated = self.started(original_node, updated_node, facts)
            return self._promoted(updated, facts, result, divides=divides)
        at = promotion.too_wide(facts, result)
        if not at:
            return updated_node
        both = [updated_node.left, updated_node.right]
        values = promotion.narrowed(both, facts, at)
        if values is None:
            self.problem("a 0-d tensor that would widen the result")
            return updated_node
        return updated_node.with_changes(left=values[0], right=values[1])

    def _operator_on_host(self, updated: Any) -> Any:
        """Of a sparse matrix of SciPy, say, and an array."""
        left, right = cst.Name("a"), cst.Name("b")
        bare = updated.with_changes(left=left, right=right, lpar=[], rpar=[])
        text = f"jaxfn.host_function(lambda a, b: {code(bare)})(_a, _b)"
        return self.filled(text, {"_a": updated.left, "_b": updated.right})

    def _promoted(
        self, updated: Any, facts: list[ExprType], result: ExprType, *, divides: bool
    ) -> Any:
        """NumPy and JAX have rules of their own for what has two dtypes."""
        ours = promotion.promoted(facts)
        if ours is None or result.dtype in ("bool", ours):
            return updated
        whole = not ours.startswith(("float", "bfloat", "complex"))
        if divides and whole and result.dtype == "float64":
            return updated
        wide = {"float64": "float", "complex128": "complex"}.get(str(result.dtype))
        if wide is None or not isinstance(updated, cst.BinaryOperation):
            text = f"{result.dtype} in NumPy, {ours} in JAX"
            self.problem(f"{code(updated)}: {text}")
            return updated
        side = "left" if _is_array(facts[0]) else "right"
        values = {"x": getattr(updated, side)}
        return updated.with_changes(**{side: self.filled(f"x.astype({wide})", values)})

    def started(self, original: Any, updated: Any, facts: list[ExprType]) -> Any:
        """An array of constants, which becomes one of JAX where it is written to."""
        if any(_is_array(f) for f in facts) or not self.infer.is_written(original):
            return updated
        return self.filled("jnp.array(x)", {"x": updated})

    def visit_Call(self, node: Any) -> None:
        super().visit_Call(node)
        asked = self.unit.references.get(node.func)
        if asked is not None and asked.name == "isinstance" and len(node.args) == 2:
            kinds = node.args[1].value
            kinds = [e.value for e in getattr(kinds, "elements", ())] or [kinds]
            if any(self.infer.meant(k) in arrays.KINDS for k in kinds):
                self.problem(f"{code(node)}: JAX's arrays are none of NumPy's")

    # ---- other libraries

    def _is_imported(self, func: Any) -> bool:
        target = self.unit.references.get(_root(func))
        return target is not None and target.kind == "import"

    def _imported(self, original: Any, updated: Any) -> Any:
        """A function of another library, which knows no tensors."""
        name, function = code(original.func), self.infer.meant(original.func)
        if "random" in name.split(".")[:-1] or self._is_of_random(original.func):
            self.problem(f"{name}: under jit it is drawn once, while JAX traces")
        for arg in original.args:
            if self._holds_arrays(arg.value):
                text = code(arg.value)
                self.problem(f"{name}: {text} may hold arrays that JAX traces")
        facts = [self.infer.of(a.value) for a in original.args]
        parts = [p for a in original.args for p in seen_parts(a.value)]
        if not any(_is_array(self.infer.of(p)) for p in parts):
            if self.infer.is_written(original) and self.infer.of(original).numpy:
                return self._made(function, original, updated)
            return updated
        short = name.rpartition(".")[2]
        if name.startswith("math.") and short in _MATH:
            return self.filled(f"jnp.{_MATH[short]}(x)", {"x": updated.args[0].value})
        if not _computes(function):
            self.problem(f"{name} of a tensor (jaxfn.host_function can run it)")
            return updated
        return self._of_numpy(function, original, updated, facts)

    def _of_numpy(
        self, function: Any, original: Any, updated: Any, facts: list[ExprType]
    ) -> Any:
        """A function of NumPy or SciPy, and arrays."""
        name = code(original.func)
        if _is_writing(function, original):
            self.problem(f"{name}: it writes to what it is given")
        if isinstance(function, type) and len(facts) == 1:  # np.float32(x)
            values = {"x": updated.args[0].value, "dtype": updated.func}
            return self.filled(_cast(facts[0], self.infer.of(original)), values)
        if function in _KEPT and len(facts) == 1 and facts[0].is_tensor:
            return updated.args[0].value  # arrays of JAX are never written to
        if function in arrays.MADE and not _is_small(self.infer.of(original)):
            return self._made(function, original, updated)
        if function in arrays.BY_VALUE or (function is np.where and len(facts) == 1):
            self.problem(f"{name}: the shape depends on values, which JAX can't trace")
        same, short = arrays.SAME.get(function), name.rpartition(".")[2]
        if same is not None and self._is_same(same, original, facts):
            same = short if getattr(np, short, None) is function else same
            return updated.with_changes(func=cst.parse_expression(f"jnp.{same}"))
        return self._on_host(original, updated)

    def _made(self, function: Any, original: Any, updated: Any) -> Any:
        """A new array, of constants if it is written to."""
        name = arrays.MADE.get(function)
        if name is None:
            return self.started(original, updated, [])
        order = keywords(updated).get("order")  # JAX's arrays have none in memory
        kept = [a for a in updated.args if a.value is not order]
        func = cst.parse_expression(f"jnp.{name}")
        return updated.with_changes(func=func, args=kept)

    def _is_same(self, name: str, original: Any, facts: list[ExprType]) -> bool:
        """Does jax.numpy's function of this name give the same for these arguments?"""
        result = self.infer.of(original)
        if keywords(original).keys() - arrays.KEYWORDS or any(
            a.star for a in original.args
        ):
            return False
        if name in arrays.OF_SEQUENCES:
            given = original.args[0].value
            items = [e.value for e in getattr(given, "elements", ())]
            facts = [self.infer.of(i) for i in items or seen_parts(given)]
        if name == "where":
            facts = facts[1:]
        dtypes = {f.dtype for f in facts if f.is_tensor}
        held = all(not f.numpy or f.is_tensor for f in facts)
        real = str(result.dtype).startswith(("float", "complex"))
        return bool(held and real and result.is_tensor and dtypes == {result.dtype})

    def _on_host(self, original: Any, updated: Any) -> Any:
        """`jaxfn.host_function(f)(x)` for `f(x)`."""
        name = code(original.func)
        if any(isinstance(a.value, cst.GeneratorExp) for a in original.args):
            self.problem(f"{name} of a generator: make it a list")
        result = self.infer.of(original)
        if not result.numpy and result.kind != "none":
            self.problem(f"{name} gives a {result.kind}: JAX can trace arrays alone")
        func = self.filled("jaxfn.host_function(f)", {"f": updated.func})
        return updated.with_changes(func=func)

    def _holds_arrays(self, node: Any) -> bool:
        """Is it a function that was made here, and may read arrays of its own?"""
        if isinstance(node, cst.Lambda):
            return any(_is_array(self.infer.of(name)) for name in loads(node.body))
        known = _root(node) in self.unit.references
        return self.infer.of(node).kind == "callable" and not known

    def _is_of_numpy(self, call: Any) -> bool:
        """Does an object of SciPy's, say, compute with arrays here?"""
        root = _root(call.func)
        if not isinstance(root, cst.Name) or root.value in ("cls", "self"):
            return False
        own = root in self.unit.references or self.infer.is_function(root)
        given = any(self.infer.of(a.value).numpy for a in call.args)
        return given and not own and self.infer.of(call).numpy

    def _is_of_random(self, func: Any) -> bool:
        """Is it a function that was imported from `random`, or from NumPy's?"""
        target = self.unit.references.get(func)
        owner = getattr(getattr(target, "value", None), "__self__", None)
        return type(owner).__name__ in ("Random", "RandomState", "Generator")

    # ---- arrays

    def _array_method(self, original: Any, updated: Any) -> Any:
        """A method of an array of NumPy."""
        func, name = original.func, original.func.attr.value
        facts = [self.infer.of(n) for n in (func.value, *_values(original))]
        result = self.infer.of(original)
        if name == "copy" and not original.args:
            return updated.func.value  # arrays of JAX are never written to
        if name == "astype" and updated.args:
            dtype = keywords(updated).get("dtype", updated.args[0].value)
            values = {"x": updated.func.value, "dtype": dtype}
            return self.filled(_cast(facts[0], result), values)
        keeps = result.dtype in ("bool", facts[0].dtype)
        keeps = keeps or name in ("argmax", "argmin")
        if any(code(v) in _ORDERS for v in _values(original)):
            self.problem(f"ndarray.{name}: JAX's arrays have no order in memory")
        if "out" in keywords(original):
            self.problem(f"ndarray.{name}: it writes to what it is given")
        if name in arrays.METHODS and keeps:
            return updated
        function = getattr(np, name, None)
        if name in ("item", "tolist"):
            self.problem(f"ndarray.{name}: values are not known while JAX traces")
            return updated
        if function in arrays.BY_VALUE:
            self.problem(f"ndarray.{name}: the shape depends on values")
        if name in arrays.IN_PLACE or not _computes(function) or not result.is_tensor:
            self.problem(f"ndarray.{name}: JAX's arrays have no such method")
            return updated
        values = {"x": updated.func.value, "f": self._numpy(name)}
        made = self.filled("jaxfn.host_function(f)(x)", values)
        return made.with_changes(args=[*made.args, *updated.args])

    def _numpy(self, name: str) -> Any:
        """A function of NumPy, by the name that the file has for that module."""
        for node, target in self.unit.references.items():
            if target.kind == "import" and target.value is np:
                return cst.parse_expression(f"{code(node)}.{name}")
        self.problem(f"ndarray.{name}: JAX's arrays have no such method")
        return cst.Name(name)


def _is_writing(function: Any, call: Any) -> bool:
    """Does a function write to one of its arguments?"""
    names = keywords(call)
    places = sum(a.keyword is None and not a.star for a in call.args)
    by_place = isinstance(function, np.ufunc) and places > function.nin
    by_place = by_place or (function is np.clip and places > 3)
    in_place = function is np.nan_to_num and "copy" in names
    return by_place or in_place or "out" in names or function in arrays.WRITING


def _cast(given: ExprType, result: ExprType) -> str:
    """Beyond the range of a small integer NumPy begins again, where JAX stays at it."""
    begins = _is_small(result) and str(given.dtype).startswith("float")
    return "x.astype(int).astype(dtype)" if begins else "x.astype(dtype)"


def _is_small(fact: ExprType) -> bool:
    return str(fact.dtype).removeprefix("u") in ("int8", "int16")


def _values(call: Any) -> list[Any]:
    return [a.value for a in call.args]


def _is_array(fact: ExprType) -> bool:
    """Is it computed from tensors, or does it hold what is?"""
    return fact.is_tensor or fact.numpy


def _root(node: Any) -> Any:
    """What the attributes of an expression are of."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _computes(function: Any) -> bool:
    """Is it a function of NumPy or SciPy?"""
    if isinstance(getattr(function, "__self__", None), np.ufunc):
        return function.__name__ != "at"  # it writes to its argument
    module = getattr(function, "__module__", None) or type(function).__module__
    return callable(function) and module.split(".")[0] in ("numpy", "scipy")
