"""Hooks on what is saved for backward."""

from __future__ import annotations

import functools

import jax

from .core import EAGER, Raises, expect, raises, row
from .rules import saves, times
from .transforms import func


def two(fw):
    return fw.array([2.0])


def saving(fw, log=None):
    """2 * x, which saves its input, None, an intermediate and its output."""
    log = [] if log is None else log

    def forward(ctx, x):
        middle, out = x + 4, 2 * x
        ctx.attribute = 7 * x
        ctx.save_for_backward(x, None, middle, out)
        return out

    def backward(ctx, g):
        saved = ctx.saved_tensors
        x, none, middle, out = saved
        log.append(["backward", none, len(saved)])
        return g * (x + 10 * middle + 100 * out + 1000 * ctx.attribute)

    return fw.make(forward=forward, backward=backward).apply


def cube(fw):
    rules = {"forward": saves(lambda x: x**3), "backward": times(lambda x: 3 * x**2)}
    return fw.make(**rules).apply


@row("HOOK-01", "same", "every saved array is packed once, when apply ends")
def _(fw):
    log = []

    def pack(x):
        log.append(["pack", tuple(x.shape)])
        return 2 * x

    def unpack(kept):
        log.append("unpack")
        return kept

    f = saving(fw, log)

    def run(x):
        out = f(x)
        log.append("applied")
        return out

    with fw.graph.saved_tensors_hooks(pack, unpack):
        return [fw.grad(run, two(fw)), log]


@row("HOOK-02", "same", "anything may be kept: an index, a text, a pair", modes=EAGER)
def _(fw):
    store = []

    def to_index(x):
        store.append(x)
        return len(store) - 1

    def to_pair(x):
        return {"text": "times two", "x": (2 * x, None)}

    def from_pair(kept):
        return kept["x"][0] / (2 if kept["text"] == "times two" else 1)

    found = []
    for pack, unpack in [(to_index, lambda i: store[i]), (to_pair, from_pair)]:
        with fw.graph.saved_tensors_hooks(pack, unpack):
            found.append(fw.grad(saving(fw), two(fw)))
    return [found, len(store)]


@row("HOOK-03", "same", "what is unpacked is an array")
def _(fw):
    def unpacked(value):
        with fw.graph.saved_tensors_hooks(lambda x: x, lambda kept: value):
            return fw.grad(saving(fw), two(fw))

    return [fw.attempt(lambda x=x: unpacked(x)) for x in (3, "a", None)]


@row("HOOK-06", "must differ", "the derivative goes through the hooks, or stops there")
@expect(lambda fw: {"differentiable": [6 * two(fw)], "constant": [0 * two(fw)]})
def _(fw):
    def second(unpack):
        with fw.graph.saved_tensors_hooks(lambda x: 2 * x, unpack):
            return fw.grad2(cube(fw), two(fw))

    return {
        "differentiable": second(lambda kept: kept / 2),
        "constant": second(lambda kept: fw.constant(kept) / 2),
    }


@row("HOOK-09", "must differ", "single saved arrays have no hooks")
@raises(
    NotImplementedError,
    "ctx._raw_saved_tensors of MyFBackward belongs to torch's autograd graph",
)
def hook_09(fw):
    out = saving(fw)(fw.leaf(two(fw)))
    saved = out.grad_fn._raw_saved_tensors
    return [len(saved), saved[0].register_hooks(lambda x: x, lambda x: 100 * x)]


@hook_09.jaxfn
def _(fw):
    ctx = fw.make(forward=lambda ctx, x: x)._backward_cls()
    return ctx._raw_saved_tensors


def counting(fw, run):
    """How often `run` makes a hook pack something."""
    packed = []

    def pack(x):
        packed.append(tuple(x.shape))
        return x

    with fw.graph.saved_tensors_hooks(pack, lambda kept: kept):
        result = run()
    return [result, packed]


@row("HOOK-10", "same", "nothing is packed where nothing is differentiated")
def _(fw):
    return counting(fw, lambda: fw.call(saving(fw), two(fw)))


@row("HOOK-11", "same", "what is saved for jvp is not packed")
def _(fw):
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return 2 * x

    jvp = times(lambda x: x)
    f = fw.make(forward=forward, jvp=jvp, backward=lambda ctx, g: 2 * g).apply
    return [
        counting(fw, lambda: fw.jvp(f, [two(fw)], [two(fw)])),
        counting(fw, lambda: fw.grad(f, two(fw))),
    ]


def hooks(fw):
    return fw.graph.saved_tensors_hooks(lambda x: x, lambda kept: kept)


@row("HOOK-12", "same", "hooks can be forbidden", own_words=True)
def _(fw):
    def forbidden():
        with fw.graph.disable_saved_tensors_hooks("nope"), hooks(fw):
            pass

    found = fw.attempt(forbidden)
    return [found, counting(fw, lambda: fw.grad(cube(fw), two(fw)))]


@row("HOOK-13", "same", "but not where they are active", own_words=True)
def _(fw):
    with hooks(fw), fw.graph.disable_saved_tensors_hooks("nope"):
        pass


@row("HOOK-14", "superset", "hooks work in transformations")
@expect(lambda fw: [3 * two(fw) ** 2, [(1,)]])
def _(fw):
    gradient = func(fw).grad(lambda x: cube(fw)(x).sum())
    return counting(fw, lambda: fw.call(gradient, two(fw)))


@row("HOOK-15", "same", "save_on_cpu")
def _(fw):
    found = []
    for options in ({}, {"pin_memory": False, "device_type": "cpu"}):
        with fw.graph.save_on_cpu(**options):
            found.append([fw.grad(saving(fw), two(fw)), fw.grad2(cube(fw), two(fw))])
    return found


@row("HOOK-16", "must differ", "hooks are used again; an unmatched exit does nothing")
@expect(lambda fw: [[3 * two(fw) ** 2], [3 * two(fw) ** 2], 3, None])
def _(fw):
    pair = hooks(fw)
    with pair:
        first = fw.grad(cube(fw), two(fw))
    with pair:
        second = fw.grad(cube(fw), two(fw))
    return [
        first,
        second,
        pair.pack_hook(1) + pair.unpack_hook(2),
        fw.attempt(lambda: pair.__exit__(None, None, None)),
    ]


@row("HOOK-17", "same", "every reading of saved_tensors unpacks", modes=EAGER)
def _(fw):
    log = []

    def unpack(kept):
        log.append("unpack")
        return kept

    def backward(ctx, g):
        (x,), (y,) = ctx.saved_tensors, ctx.saved_tensors
        return (x + y) * g

    f = fw.make(forward=saves(lambda x: x**2), backward=backward).apply
    with fw.graph.saved_tensors_hooks(lambda x: x, unpack):
        return [fw.grad(f, two(fw)), log]


@row("HOOK-19", "same", "checkpoint runs forward again", modes=EAGER)
def _(fw):
    runs = []

    def forward(ctx, x):
        runs.append("forward")
        ctx.save_for_backward(x)
        return x**2

    f = fw.make(forward=forward, backward=times(lambda x: 7 * x)).apply
    if fw.name == "torch":
        from torch.utils.checkpoint import checkpoint

        again = functools.partial(checkpoint, f, use_reentrant=False)
    else:
        again = jax.checkpoint(f)
    return [fw.grad(again, two(fw)), len(runs)]


@row("HOOK-20", "must differ", "a context takes no hooks of a node", modes=EAGER)
def hook_20(fw):
    node = cube(fw)(fw.leaf(two(fw))).grad_fn
    for register in (node.register_hook, node.register_prehook):
        register(lambda *grads: None).remove()


@hook_20.jaxfn
def _(fw):
    ctx = fw.make(forward=lambda ctx, x: x)._backward_cls()
    return [
        fw.attempt(lambda: ctx.register_hook(print)),
        fw.attempt(lambda: ctx.register_prehook(print)),
    ]


@hook_20.expect
def _(fw):
    text = "of MyFBackward belongs to torch's autograd graph"
    return [
        Raises(NotImplementedError, f"ctx.{name} {text}")
        for name in ("register_hook", "register_prehook")
    ]


@row("HOOK-21", "same", "a context is a Node")
def _(fw):
    seen = []

    def backward(ctx, g):
        seen.append(isinstance(ctx, fw.graph.Node))
        return g

    f = fw.make(forward=lambda ctx, x: 1 * x, backward=backward)
    fw.grad(f.apply, two(fw))
    return [seen, issubclass(f._backward_cls, fw.graph.Node)]


@row("HOOK-23", "same", "hooks may be left by a call without arguments")
def _(fw):
    left = []
    for context in (hooks(fw), fw.graph.save_on_cpu()):
        context.__enter__()
        left.append(context.__exit__())
    return left
