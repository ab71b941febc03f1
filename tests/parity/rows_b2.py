"""Function: the class, its attributes, and what is called how often."""

from __future__ import annotations

import functools
import pickle

import jax

import jaxfn
from tests.build import saving

from .core import EAGER, expect, row
from .rules import both_ways

X = [1.0, 2.0]


@row("FN-27", "same", "the flags of a Function are False")
def _(fw):
    flags = (
        "generate_vmap_rule",
        "clear_saved_tensors_on_access",
        "boxed_grads_call",
    )
    return {name: getattr(fw.Function, name) for name in flags}


@row("FN-28", "same", "the names of the module; `traceable` is gone")
def _(fw):
    module = fw.function
    return {
        "names": sorted(module.__all__),
        "there": all(hasattr(module, name) for name in module.__all__),
        "traceable": [
            hasattr(module, "traceable"),
            hasattr(fw.Function, "is_traceable"),
        ],
    }


@row("FN-29", "same", "the classes behind Function")
def _(fw):
    return {
        "metaclass": type(fw.Function).__name__,
        "is a context": issubclass(fw.Function, fw.FunctionCtx),
        "is a node": issubclass(fw.Function, fw.BackwardCFunction),
        "ctx is a context": issubclass(fw.BackwardCFunction, fw.FunctionCtx),
        "others": [
            issubclass(cls, fw.Function)
            for cls in (fw.InplaceFunction, fw.NestedIOFunction)
        ],
    }


@row("FN-30", "same", "each class has a number")
def _(fw):
    a, b = fw.make("A"), fw.make("B")
    first, second = (cls._backward_cls._autograd_function_id for cls in (a, b))
    return second - first


@row("FN-31", "same", "forward called directly is a plain function")
def _(fw):
    f = fw.separate(lambda x: x**2, backward=lambda ctx, g: 100 * g)
    x = fw.array(X)
    return [fw.call(f.forward, x), fw.grad(f.forward, x)]


@row("FN-32", "same", "exceptions of the rules come out as they are", own_words=True)
def _(fw):
    def failing(error):
        def rule(*_):
            raise error

        return rule

    def good(*args):
        return 2 * args[-1]

    rules = {"forward": good, "setup_context": saving(), "backward": good, "jvp": good}
    errors = {
        "forward": ValueError("fwd"),
        "setup_context": KeyError("setup"),
        "backward": ZeroDivisionError("bwd"),
        "jvp": OSError("jvp"),
    }
    x = fw.array(X)

    def run(name, error):
        f = fw.make(**{**rules, name: failing(error)}).apply
        return fw.jvp(f, [x], [x]) if name == "jvp" else fw.grad(f, x)

    return {
        name: fw.attempt(functools.partial(run, name, error))
        for name, error in errors.items()
    }


@row("FN-33", "same", "apply may be kept and called")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g).apply
    return [*both_ways(fw, f), callable(f)]


@row("FN-34", "same", "a subclass has a ctx class of its own")
def _(fw):
    a = fw.make("A", forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g)
    b = fw.make("B", base=a)
    return [
        a._backward_cls is b._backward_cls,
        b._backward_cls.__name__,
        b._backward_cls._forward_cls is b,
        fw.grad(b.apply, fw.array(X)),
    ]


def scale(fw):
    def forward(ctx, x):
        ctx.k = 3
        return ctx.k * x

    return fw.make(forward=forward, backward=lambda ctx, g: ctx.k * g)


@row("FN-35", "same", "backward by hand, on a ctx", own_words=True)
def fn_35(fw):
    node = scale(fw).apply(fw.leaf(fw.array(X))).grad_fn
    g = fw.array(X)
    return [node.apply(g), fw.attempt(lambda: node(g))]


@fn_35.jaxfn
def _(fw):
    f = scale(fw)
    ctx, g = f._backward_cls(), fw.array(X)
    f.forward(ctx, g)
    return [fw.call(ctx.apply, g), fw.attempt(lambda: ctx(g))]


@row("FN-36", "must differ", "compiled, forward runs once for many calls", modes=EAGER)
@expect(lambda fw: 1)
def _(fw):
    ran = []

    def forward(ctx, x):
        ran.append(1)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g).apply
    f = jax.jit(f) if fw.name == "jaxfn" else f
    for _ in range(3):
        f(fw.array(X))
    return len(ran)


class Pickled(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x


@row("FN-37", "same", "classes pickle by reference")
def fn_37(fw):
    from torch.utils.checkpoint import CheckpointFunction as Known

    return pickle.loads(pickle.dumps(Known)) is Known


fn_37.jaxfn(lambda fw: pickle.loads(pickle.dumps(Pickled)) is Pickled)
