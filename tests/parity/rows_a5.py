"""FunctionCtx: attributes, classes, and when it is made."""

from __future__ import annotations

import jax.numpy as jnp

from tests.build import saving

from .core import Raises, expect, row
from .rows_a1 import derivatives_of_a_product
from .rules import both_ways, forward_mode, saves, times, two_orders

X = [1.0, 2.0]


@row("CTX-57", "same", "any attribute set in forward is found in backward, as it is")
def _(fw):
    thing, seen = object(), {}

    def forward(ctx, x):
        ctx.thing, ctx.n, ctx.name_of = thing, 3, {"a": None}
        return 2 * x

    def backward(ctx, g):
        seen.update(same=ctx.thing is thing, n=ctx.n, of=ctx.name_of)
        return ctx.n * g

    f = fw.make(forward=forward, backward=backward).apply
    return [fw.grad(f, fw.array(X)), seen]


@row(
    "CTX-58",
    "same",
    "the error for a missing attribute names the class",
    own_words=True,
)
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: ctx.nope)
    return fw.grad(f.apply, fw.array(X))


@row("CTX-59", "must differ", "what backward writes on ctx is local to that run")
@expect(lambda fw: [1, 1])
def _(fw):
    seen = []

    def forward(ctx, x):
        ctx.count = 0
        return 2 * x

    def backward(ctx, g):
        ctx.count += 1
        seen.append(ctx.count)
        return g

    f = fw.make(forward=forward, backward=backward).apply
    fw.pull_twice(f, fw.array(X), retain=True)
    return seen


@row("CTX-60", "superset", "arrays in attributes keep their derivative")
@expect(lambda fw: derivatives_of_a_product(fw))
def _(fw):
    def forward(ctx, x):
        ctx.x = x
        ctx.more = {"w": fw.np.exp(x)}
        return x * ctx.more["w"]

    def backward(ctx, g):
        return g * (ctx.more["w"] + ctx.x * ctx.more["w"])

    f = fw.make(forward=forward, backward=backward)
    return two_orders(fw, f.apply, fw.array(X))


@row("CTX-61", "same", "the class of ctx is named after the Function's")
def _(fw):
    seen = {}

    def look(ctx):
        bases = [fw.BackwardCFunction, fw.FunctionCtx, fw.Function]
        order = [cls.__name__ for cls in type(ctx).__mro__]
        known = ("MyFBackward", "BackwardCFunction", "FunctionCtx", "object")
        return {
            "name": type(ctx).__name__,
            "called": ctx.name(),
            "is a": [isinstance(ctx, base) for base in bases],
            "order": [name for name in order if name in known],
        }

    def setup_context(ctx, inputs, output):
        seen["setup_context"] = look(ctx)

    def backward(ctx, g):
        seen["backward"] = look(ctx)
        return g

    f = fw.separate(lambda x: 2 * x, setup_context, backward=backward)
    fw.grad(f.apply, fw.array(X))
    return seen


@row("CTX-62", "same", "Function and class of ctx know each other")
def _(fw):
    seen = {}

    def forward(ctx, x):
        seen["to"] = ctx._forward_cls is f
        seen["from"] = f._backward_cls is type(ctx)
        return 2 * x

    f = fw.make(forward=forward)
    fw.call(f.apply, fw.array(X))
    return [seen, f._backward_cls.__name__]


OWN_NAMES = (
    ("apply", "apply_boxed", "apply_jvp", "mark_dirty", "mark_non_differentiable")
    + ("mark_shared_storage", "save_for_backward", "save_for_forward", "saved_tensors")
    + ("set_materialize_grads", "needs_input_grad", "name", "maybe_clear_saved_tensors")
)
GRAPH_NAMES = ("next_functions", "metadata", "register_hook", "register_prehook") + (
    "requires_grad",
    "_raw_saved_tensors",
    "_sequence_nr",
    "_input_metadata",
)


def names_on_ctx(fw, names):
    """Which of these names ctx has in backward."""
    seen = {}

    def backward(ctx, g):
        for name in names:
            seen[name] = fw.attempt(lambda name=name: getattr(ctx, name) is not None)
        return g

    f = fw.make(forward=saves(lambda x: 2 * x), backward=backward)
    fw.grad(f.apply, fw.array(X))
    return seen


def no_graph(name):
    return Raises(NotImplementedError, f"ctx.{name} of MyFBackward", "no graph")


@row("CTX-63", "must differ", "the public names of ctx are there, but for the graph's")
@expect(
    lambda fw: {
        **dict.fromkeys(OWN_NAMES, True),
        **{name: no_graph(name) for name in GRAPH_NAMES},
    }
)
def _(fw):
    return names_on_ctx(fw, OWN_NAMES + GRAPH_NAMES)


@row("CTX-64", "must differ", "nor does forward see a graph")
@expect(
    lambda fw: {
        name: no_graph(name) for name in ("next_functions", "metadata", "requires_grad")
    }
)
def _(fw):
    seen = {}

    def forward(ctx, x):
        for name in ("next_functions", "metadata", "requires_grad"):
            seen[name] = fw.attempt(lambda name=name: getattr(ctx, name) is not None)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g)
    fw.grad(f.apply, fw.array(X))
    return seen


@row("CTX-65", "same", "mark_shared_storage does nothing but warn")
def _(fw):
    def forward(ctx, x):
        out = 2 * x
        ctx.mark_shared_storage((x, out))
        return out

    return fw.call(fw.make(forward=forward).apply, fw.array(X))


@row("CTX-68", "same", "ctx is made also where nothing is differentiated")
def _(fw):
    seen = []

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        seen.append(ctx.needs_input_grad)

    f = fw.separate(lambda x: 2 * x, setup_context, backward=lambda ctx, g: g)
    return [fw.call(f.apply, fw.array(X)), seen]


@row("CTX-69", "same", "what setup_context returns is ignored")
def _(fw):
    f = fw.separate(
        lambda x: 2 * x, lambda ctx, inputs, output: 5, backward=lambda ctx, g: 3 * g
    )
    return both_ways(fw, f.apply)


@row("CTX-71", "superset", "an input that is returned as it is may be saved")
@expect(lambda fw: [jnp.array(X)])
def _(fw):
    f = fw.separate(lambda x: x, saving(), backward=times(lambda x: x))
    return fw.grad(f.apply, fw.array(X))


@row("CTX-72", "same", "in the combined style it may in torch, too")
def _(fw):
    f = fw.make(forward=saves(lambda x: x), backward=times(lambda x: 3 * x))
    return both_ways(fw, f.apply)


@row("CTX-73", "same", "what is on ctx at each stage")
def _(fw):
    seen = {}

    def setup_context(ctx, inputs, output):
        seen["setup_context"] = [len(ctx.saved_tensors), ctx.needs_input_grad]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs, output)

    def backward(ctx, g):
        seen["backward"] = [len(ctx.saved_tensors), ctx.needs_input_grad]
        return g, g

    def jvp(ctx, s, t):
        seen["jvp"] = len(ctx.saved_tensors)
        return s + t

    f = fw.separate(lambda x, y: x + y, setup_context, backward=backward, jvp=jvp).apply
    x = fw.array(X)
    fw.jvp(f, [x, fw.array(X)], [x, fw.array(X)])
    fw.grad(f, x, x)
    return seen


@row("CTX-74", "same", "names that torch's graph keeps can't be assigned; others can")
def _(fw):
    names = ("metadata", "next_functions", "requires_grad", "saved_variables")
    seen = {}

    def forward(ctx, x):
        ctx.save_for_backward(x)
        for name in (*names, "name", "free"):
            try:
                setattr(ctx, name, "x")
            except AttributeError as error:
                seen[name] = name in str(error)
            else:
                seen[name] = getattr(ctx, name)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: 3 * g).apply
    return [fw.grad(f, fw.array(X)), seen]


@row("CTX-76", "same", "inputs, outputs and intermediates may be saved for jvp")
def _(fw):
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs, *output)

    def jvp(ctx, t):
        x, w, out = ctx.saved_tensors
        return t * w, t * (w + x * w + 0 * out)

    def forward(x):
        w = fw.np.exp(x)
        return w, x * w

    f = fw.separate(forward, setup_context, jvp=jvp)
    return forward_mode(fw, f.apply)
