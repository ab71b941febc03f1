"""Texts of Functions."""

import re
import textwrap


def function(forward, backward="return g", args="x"):
    """A Function `T` of these rules."""
    forward = textwrap.indent(textwrap.dedent(forward).strip("\n"), " " * 4)
    backward = textwrap.indent(textwrap.dedent(backward).strip("\n"), " " * 4)
    text = f"def T(ctx, {args}):\n{forward}\ndef backward(ctx, g):\n{backward}\n"
    return functions(text)["T"]


def functions(text):
    """The Functions of a text, by name.

    Each has its forward there, under its own name, and then its backward.
    """
    rules = re.split(r"^(?=def )", text, flags=re.MULTILINE)[1:]
    found = {}
    for forward, backward in zip(rules[::2], rules[1::2], strict=True):
        name = re.match(r"def (\w+)", forward)[1]
        assert backward.startswith("def backward("), name
        forward = forward.replace(name, "forward", 1)
        found[name] = f"class {name}(Function):\n" + "\n\n".join(
            textwrap.indent(f"@staticmethod\n{rule.rstrip()}", " " * 4)
            for rule in (forward, backward)
        )
    return found
