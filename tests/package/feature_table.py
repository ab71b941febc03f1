"""The table of notebooks/design/measurements.md: its cells, run.

    python -m tests.package.feature_table

prints what the ways to give JAX a rule of one's own can do, with rules that are wrong
on purpose: the value is sin x, a reverse rule says 2 cos x, a forward rule 3 cos x, a
batching rule adds a half to the value.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec as P

from tests import wrong
from tests.build import function
from tests.ecosystem import definitions

X = 0.7
COS = float(np.cos(X))

# ---- sin with rules, by each peer; KeyError for a rule that it has no place for


def by_jaxfn(*rules: str, derive: bool = False) -> Callable[..., Any]:
    own = [rule for rule in rules if rule != "vmap"]
    engine = "derived" if derive else "both" if len(own) == 2 else own[0]
    return wrong.function(engine, batch="vmap" in rules).apply


def _batched_sin() -> Callable[..., Any]:
    f = custom_vmap(jnp.sin)
    f.def_vmap(lambda size, in_batched, x: (jnp.sin(x) + 0.5, True))
    return f


def by_custom_vjp(*rules: str) -> Callable[..., Any]:
    if "jvp" in rules:
        raise KeyError("jvp")
    return definitions.define("custom_vjp", batch="vmap" in rules)


def by_custom_jvp(*rules: str) -> Callable[..., Any]:
    if "backward" in rules:
        raise KeyError("backward")
    return definitions.define("custom_jvp", batch="vmap" in rules)


def by_hijax(*rules: str) -> Callable[..., Any]:
    from jax.experimental import hijax

    base = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive
    members = {
        "backward": {
            "vjp_fwd": lambda self, nzs_in, x: (jnp.sin(x), x),
            "vjp_bwd_retval": lambda self, x, g: (2 * jnp.cos(x) * g,),
        },
        "jvp": {
            "jvp": lambda self, p, t: (self(*p), 3 * jnp.cos(p[0]) * t[0]),
        },
        "vmap": {
            "batch": lambda self, axis, args, dims: (jnp.sin(args[0]) + 0.5, dims[0]),
        },
    }
    chosen = {"expand": lambda self, x: jnp.sin(x)}
    for rule in rules:
        chosen |= members[rule]
    if rules == ("jvp",) and hasattr(hijax, "vjp_from_jvp"):
        chosen["vjp_fwd"], chosen["vjp_bwd_retval"] = hijax.vjp_from_jvp

    def init(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        base.__init__(self)

    kind = type("Sin", (base,), chosen | {"__init__": init})
    return lambda x: kind(jax.typeof(x))(x)


def by_equinox(*rules: str) -> Callable[..., Any]:
    import equinox as eqx

    sin = _batched_sin() if "vmap" in rules else jnp.sin
    if {"backward", "jvp"} <= set(rules):
        raise KeyError("both")
    if "jvp" in rules:
        f = eqx.filter_custom_jvp(sin)
        f.def_jvp(lambda p, t: (sin(p[0]), 3 * jnp.cos(p[0]) * t[0]))
        return f
    f = eqx.filter_custom_vjp(lambda x: sin(x))
    f.def_fwd(lambda perturbed, x: (sin(x), x))
    f.def_bwd(lambda x, g, perturbed, _: 2 * jnp.cos(x) * g)
    return f


Peer = Callable[..., Callable[..., Any]]
PEERS: dict[str, Peer] = {
    "jaxfn": by_jaxfn,
    "custom_vjp": by_custom_vjp,
    "custom_jvp": by_custom_jvp,
    "hijax": by_hijax,
    "equinox": by_equinox,
}

# ---- rows


def slope(f: Callable[..., Any]) -> float:
    return float(jax.grad(f)(jnp.float32(X))) / COS


def pushed(f: Callable[..., Any]) -> float:
    return float(jax.jvp(f, (jnp.float32(X),), (jnp.float32(1),))[1]) / COS


def reverse_rule(peer: Peer) -> bool:
    return round(slope(peer("backward")), 4) == 2


def forward_rule(peer: Peer) -> bool:
    return round(pushed(peer("jvp")), 4) == 3


def both(peer: Peer) -> bool:
    f = peer("backward", "jvp")
    return (round(slope(f), 4), round(pushed(f), 4)) == (2, 3)


def own(peer: Peer) -> list[str]:
    """A derivative rule that the peer has a place for."""
    try:
        peer("backward")
    except KeyError:
        return ["jvp"]
    return ["backward"]


def factor(peer: Peer) -> int:
    return 2 if own(peer) == ["backward"] else 3


def batching(peer: Peer) -> bool:
    f, xs = peer(*own(peer), "vmap"), jnp.full(3, X, jnp.float32)
    return bool(jnp.allclose(jax.vmap(f)(xs), jnp.sin(xs) + 0.5))


def gradient_of_batch(peer: Peer) -> bool:
    f, xs = peer(*own(peer), "vmap"), jnp.full(3, X, jnp.float32)
    found = jax.grad(lambda xs: jax.vmap(f)(xs).sum())(xs)
    return bool(jnp.allclose(found, factor(peer) * COS))


def transposed(peer: Peer) -> bool:
    return round(slope(peer("jvp")), 4) == 3


def derived(peer: Peer) -> bool:
    if peer is by_jaxfn:
        return round(pushed(by_jaxfn("backward", derive=True)), 4) == 2
    if own(peer) != ["backward"]:
        raise KeyError("backward")
    return round(pushed(peer("backward")), 4) == 2


AROUND: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: (
        lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
    ),
    "cond": lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x),
}


def kept(peer: Peer) -> bool:
    rules = ["backward", "jvp"] if peer is by_hijax else own(peer)
    slopes = {name: slope(wrap(peer(*rules))) for name, wrap in AROUND.items()}
    wrong = [name for name, x in slopes.items() if round(x, 4) != factor(peer)]
    if wrong:
        raise ArithmeticError(f"another derivative under {', '.join(wrong)}")
    return True


def second(peer: Peer, twice: Any = lambda f: jax.grad(jax.grad(f))) -> bool:
    found = float(twice(peer(*own(peer)))(jnp.float32(X)))
    return round(found / -float(np.sin(X)), 4) == factor(peer)


def sharded(peer: Peer) -> bool:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    xs = jnp.full(jax.device_count(), X, jnp.float32)
    f = jax.shard_map(
        peer(*own(peer)), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=True
    )
    found = jax.jit(jax.grad(lambda xs: f(xs).sum()))(xs)
    return bool(jnp.allclose(found, factor(peer) * COS))


def _tree_and_text(peer: Peer) -> Callable[..., Any]:
    """sin of the entry of a dict; a text among the arguments says that it is sin."""

    def plain(tree, mode):
        return jnp.sin(tree["x"]) if mode == "sin" else tree["x"]

    def pull(x, g):
        return {"x": 2 * jnp.cos(x) * g}

    if peer is by_jaxfn:
        return function(
            forward=lambda ctx, tree, mode: (
                ctx.save_for_backward(tree["x"]),
                plain(tree, mode),
            )[1],
            backward=lambda ctx, g: (pull(*ctx.saved_tensors, g), None),
        ).apply
    if peer is by_custom_vjp:
        f = jax.custom_vjp(plain)
        f.defvjp(
            lambda tree, mode: (plain(tree, mode), tree["x"]),
            lambda x, g: (pull(x, g), None),
        )
        return f
    if peer is by_custom_jvp:
        f = jax.custom_jvp(plain)
        f.defjvp(lambda p, t: (plain(*p), 2 * jnp.cos(p[0]["x"]) * t[0]["x"]))
        return f
    if peer is by_equinox:
        import equinox as eqx

        f = eqx.filter_custom_vjp(plain)
        f.def_fwd(lambda perturbed, tree, mode: (plain(tree, mode), tree["x"]))
        f.def_bwd(lambda x, g, *_: pull(x, g))
        return f
    raise KeyError("not tried")


def tree_and_text(peer: Peer) -> bool:
    f = _tree_and_text(peer)
    return round(slope(lambda x: f({"x": x}, "sin")), 4) == 2


ROWS: dict[str, Callable[[Peer], bool]] = {
    "own reverse rule": reverse_rule,
    "own forward rule": forward_rule,
    "both on one function, each in its mode": both,
    "own batching rule beside a derivative": batching,
    "`grad` of `vmap` runs the derivative rule": gradient_of_batch,
    "reverse mode from a forward rule": transposed,
    "forward mode from a reverse rule": derived,
    "kept under `jit`, `checkpoint`, `scan`, `cond`": kept,
    "`grad` of `grad`": second,
    "`hessian`": lambda peer: second(peer, jax.hessian),
    "a dict, and a text that nobody marks as static": tree_and_text,
    "`shard_map` with `check_vma=True`": sharded,
}


def has(peer: str) -> bool:
    return peer != "equinox" or importlib.util.find_spec("equinox") is not None


def cell(row: str, peer: str) -> tuple[bool, str]:
    """Does it work, and if not, why?"""
    try:
        return ROWS[row](PEERS[peer]), ""
    except Exception as error:  # noqa: BLE001  (refusals are of any type)
        return False, f"{type(error).__name__}: {error}".partition("\n")[0][:90]


def main() -> None:
    for row in ROWS:
        for peer in filter(has, PEERS):
            works, why = cell(row, peer)
            print(f"{row:55} {peer:11} {'yes' if works else 'no':4} {why}")


if __name__ == "__main__":
    main()
