"""Write notebooks/reference/api.md from docstrings: `python -m tests.pages.api`.

It reads the source, so it needs neither PyTorch nor Triton.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "notebooks/reference/api.md"

SPACES = {
    "jaxfn": "",
    "jaxfn.autograd": "",
    "jaxfn.autograd.graph": "",
    "jaxfn.amp": "",
    "jaxfn.torch": " (extra `torch`)",
}
MEMBERS = {"Function": "Function", "FunctionCtx": "ctx", "BackwardCFunction": "ctx"}
HEAD = """# API

This page lists the public names with the first line of their docstrings. `help(...)`
prints the rest: arguments, errors, an example and the source.
[Back to the README](../../README.md)

| name | what |
|---|---|
"""

Definition = ast.ClassDef | ast.FunctionDef


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """Return the text of the page."""
    rows = []
    for space, needs in SPACES.items():
        rows.append(f"| **{space}**{needs} | |")
        for name in public(space):
            found = definition(space, name)
            if found is None or (name == "Function" and space != "jaxfn"):
                continue
            rows.append(row(name, found))
            if name in MEMBERS:
                rows += members(MEMBERS[name], found)
    return HEAD + "\n".join(rows) + "\n"


def row(name: str, found: Definition) -> str:
    """Return the line of a name."""
    return f"| `{name}{signature(found)}` | {first_line(found)} |"


def members(owner: str, cls: ast.ClassDef) -> Iterator[str]:
    """Yield the lines of what users define, call or read on a class."""
    if owner == "Function":
        call = definition("jaxfn._function", "apply")
        yield f"| `Function.apply(*args, **kwargs)` | {first_line(call)} |"
    for x in cls.body:
        if not isinstance(x, ast.FunctionDef) or x.name.startswith("_"):
            continue
        how = {ast.unparse(decorator) for decorator in x.decorator_list}
        if "property" in how:
            yield f"| `{owner}.{x.name}` | {first_line(x)} |"
        elif how == {"staticmethod"} or cls.name == "FunctionCtx":
            yield row(f"{owner}.{x.name}", x)


def public(space: str) -> list[str]:
    """Return the names in the `__all__` of a module."""
    for node in module(space).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise LookupError(space)


def definition(space: str, name: str) -> Definition | None:
    """Return where a name is defined, through imports; None for a module."""
    for node in ast.walk(module(space)):
        is_one = isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name
        if is_one and "overload" not in map(ast.unparse, node.decorator_list):
            return node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets) == name:
            return definition(space, ast.unparse(node.value))  # another name for it
        if isinstance(node, ast.ImportFrom) and name in [x.name for x in node.names]:
            is_module = any(file.exists() for file in files(f"{node.module}.{name}"))
            found = None if is_module else definition(str(node.module), name)
            if found or (is_module and node.module == space):
                return found
    return None


def signature(found: Definition) -> str:
    """Return the parameters (of a constructor, for a class) without annotations."""
    if isinstance(found, ast.ClassDef):
        made = [x for x in found.body if getattr(x, "name", "") == "__init__"]
        if not made or not found.name[0].islower():
            return ""
        found = made[0]
    arguments = ast.parse(ast.unparse(found)).body[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    if positional and positional[0].arg == "self":
        (arguments.posonlyargs or arguments.args).pop(0)
    return f"({ast.unparse(arguments)})"


def first_line(found: Definition) -> str:
    """Return the first line of a docstring, for a cell of a table."""
    text = inspect.cleandoc(ast.get_docstring(found) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def module(space: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(next(x for x in files(space) if x.exists()).read_text())


def files(space: str) -> list[Path]:
    """Return where the text of a module may be."""
    path = ROOT / space.replace(".", "/")
    return [path / "__init__.py", path.with_suffix(".py")]


if __name__ == "__main__":
    main()
