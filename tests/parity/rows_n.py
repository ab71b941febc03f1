"""custom_fwd and custom_bwd under autocast."""

from __future__ import annotations

import types

import jax.numpy as jnp

import jaxfn

from .core import row


def amp(fw):
    """The names of torch.amp, for the CPU."""
    if fw.name == "torch":
        source, told = fw.torch.amp, fw.torch
    else:
        source = told = jaxfn.amp
    return types.SimpleNamespace(
        custom_fwd=source.custom_fwd,
        custom_bwd=source.custom_bwd,
        autocast=lambda **options: source.autocast("cpu", **options),
        policy=lambda: [
            told.is_autocast_enabled("cpu"),
            name(told.get_autocast_dtype("cpu")),
        ],
    )


def name(dtype):
    return str(dtype).split(".")[-1]


def wide(fw, x):
    """`x` as float32."""
    return x.float() if fw.name == "torch" else x.astype(jnp.float32)


def square(fw, log, *, style="combined", **options):
    """k * x * x, which logs what its rules see under autocast."""
    a = amp(fw)

    def compute(x, k):
        log.append(["forward", name(x.dtype), name(k.dtype), *a.policy()])
        return k * x * x

    def combined(ctx, x, k, text):
        log.append(["ctx", ctx._fwd_used_autocast, name(ctx._dtype), text])
        ctx.save_for_backward(x, k)
        return compute(x, k)

    def separate(x, k, text):
        return compute(x, k)

    def setup_context(ctx, inputs, output):
        x, k, text = inputs
        log.append(["setup_context", name(x.dtype), name(output.dtype), text])
        ctx.save_for_backward(x, k)

    @a.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, k = ctx.saved_tensors
        log.append(["backward", name(g.dtype), name(x.dtype), *a.policy()])
        return 2 * k * x * g, None, None

    rules = {"forward": combined}
    if style == "separate":
        rules = {"forward": separate, "setup_context": setup_context}
    rules["forward"] = a.custom_fwd(rules["forward"], device_type="cpu", **options)
    return fw.make(**rules, backward=backward).apply


def gradient(fw, f, **options):
    """Value and gradient of `f`, called under autocast; backward runs outside.

    At a number that half precision rounds to 1: from there on all is exact, and
    compiled code, which may round less often, gives the same.
    """
    k = fw.array([3], "int32")

    def inside(x):
        with amp(fw).autocast(**options):
            out = f(x, k, "a")
        return wide(fw, out)

    def outside(x):
        return wide(fw, f(x, k, "a"))

    run = outside if options.get("enabled") is None else inside
    x = fw.array([X])
    return [fw.call(run, x), fw.grad(run, x)]


X = 1 + 2**-12
ON = {"enabled": True}


@row("AMP-01", "same", "both rules run under the policy of the call")
def _(fw):
    log = []
    return [gradient(fw, square(fw, log), **ON), log, amp(fw).policy()]


@row("AMP-02", "same", "cast_inputs casts floats, and switches autocast off")
def _(fw):
    def run(dtype):
        log = []
        f = square(fw, log, cast_inputs=getattr(fw.np, dtype))
        return [gradient(fw, f, **ON), log]

    return {dtype: run(dtype) for dtype in ("float32", "bfloat16", "float16")}


@row("AMP-03", "same", "outside of autocast, and where it is off, nothing is cast")
def _(fw):
    log = []
    f = square(fw, log, cast_inputs=fw.np.bfloat16)
    return [gradient(fw, f), gradient(fw, f, enabled=False), log]


@row("AMP-04", "same", "device_type is a keyword, and a string", own_words=True)
def _(fw):
    a = amp(fw)
    half = fw.np.bfloat16
    return [
        fw.attempt(lambda: a.custom_fwd(cast_inputs=half)),
        fw.attempt(lambda: a.custom_fwd(lambda ctx, x: x, device_type=1)),
        fw.attempt(lambda: a.custom_fwd(device_type=None, cast_inputs=half)),
        fw.attempt(lambda: a.custom_bwd()),
        fw.attempt(lambda: a.custom_bwd(lambda ctx, g: g, device_type=1)),
    ]


@row("AMP-06", "same", "custom_bwd needs custom_fwd")
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: 2 * x,
        backward=amp(fw).custom_bwd(lambda ctx, g: 2 * g, device_type="cpu"),
    )
    return fw.grad(f.apply, fw.array([1.0]))


@row("AMP-07", "superset", "the separate style works")
def amp_07(fw):
    def run(**options):
        log = []
        f = square(fw, log, style="separate", **options)
        return [gradient(fw, f, **ON), log]

    return {
        "policy": fw.attempt(run),
        "cast": fw.attempt(lambda: run(cast_inputs=fw.np.bfloat16)),
    }


@amp_07.expect
def _(fw):
    def rules(dtype, *policy):
        forward = ["forward", dtype, "int32", *policy]
        return [forward, ["setup_context", dtype, dtype, "a"]]

    def found(dtype, *policy):
        x = jnp.asarray([X], dtype)
        value, slope = (y.astype(jnp.float32) for y in (3 * x * x, 6 * x))
        call = rules(dtype, *policy)
        back = ["backward", dtype, dtype, *policy]
        return [[value, [slope]], [*call, *call, back]]

    return {
        "policy": found("float32", True, "bfloat16"),
        "cast": found("bfloat16", False, "bfloat16"),
    }


@row("AMP-08", "same", "custom_fwd without parentheses", own_words=True)
def _(fw):
    def rule(ctx, x):
        return x

    a = amp(fw)
    return [
        fw.attempt(lambda: a.custom_fwd(rule)),
        fw.attempt(lambda: a.custom_bwd(rule)),
    ]


@row("AMP-10", "same", "backward runs under the dtype of the call")
def _(fw):
    def run(dtype):
        log = []
        f = square(fw, log)
        return [gradient(fw, f, dtype=getattr(fw.np, dtype), **ON), log]

    return [run("float16"), run("bfloat16")]
