"""Texts of Functions."""

import textwrap


def function(forward, backward="return g", args="x"):
    """A Function `T` of these rules."""
    text = f"class T(Function):\n    @staticmethod\n    def forward(ctx, {args}):\n"
    text += textwrap.indent(textwrap.dedent(forward).rstrip(), " " * 8)
    text += "\n\n    @staticmethod\n    def backward(ctx, g):\n"
    return text + textwrap.indent(textwrap.dedent(backward).rstrip(), " " * 8) + "\n"
