"""How much of jaxfn the smallest compiled gradient runs through.

Whoever follows a call in a debugger, or reads the code along it, meets these files and
functions.
"""

import json

import pytest

from tests.package import printed

# Most that `jax.grad(jax.jit(Exp.apply))(x)` may enter. Lower a limit when it can be.
LIMITS = {
    "files": 13,
    "functions": 156,
}

# Python 3.12 and later run comprehensions inside the function around them, so the count
# leaves them out everywhere.
PROGRAM = """
import json, pathlib, sys

import jax
import jax.numpy as jnp

import jaxfn


class Exp(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        out = jnp.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out


root = pathlib.Path(jaxfn.__file__).parent
x, codes = jnp.float32(1), set()
sys.setprofile(lambda frame, event, _: event == "call" and codes.add(frame.f_code))
gradient = jax.grad(jax.jit(Exp.apply))(x)
sys.setprofile(None)

assert jnp.allclose(gradient, jnp.exp(x))
entered = {}
for code in codes:
    path = pathlib.Path(code.co_filename)
    inlined = code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>")
    if path.is_relative_to(root) and not inlined:
        name = f"{code.co_qualname}:{code.co_firstlineno}"
        entered.setdefault(str(path.relative_to(root)), []).append(name)
print(json.dumps(entered))
"""


@pytest.fixture(scope="module")
def entered():
    """The functions that a fresh process enters, by file."""
    return json.loads(printed(PROGRAM))


def test_the_count_sees_the_way_from_the_call_to_backward(entered):
    assert any(name.startswith("apply:") for name in entered["_function.py"])
    assert any("backward:" in name for name in entered["_class_rules.py"])


def test_a_compiled_gradient_enters_few_files(entered):
    assert len(entered) <= LIMITS["files"], sorted(entered)


def test_a_compiled_gradient_enters_few_functions(entered):
    found = {file: sorted(names) for file, names in sorted(entered.items())}
    assert sum(map(len, found.values())) <= LIMITS["functions"], found
