"""The text of a Function that was drawn, in each style."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.laws.program_functions import Node, Shape, indent

if TYPE_CHECKING:
    from tests.laws.program_maker import Maker


def mathematics(m: Maker) -> str:
    """Its mathematics, as a Python function of the same name."""
    lines = [f"def {m.name}({_params(m)}):", *indent(_forward(m))]
    return "\n".join([*_constants(m), *lines, ""])


def with_jaxfn(m: Maker) -> str:
    """With jaxfn; in a function of its own, if forward and the rules close over it."""
    if m.style == "jax decorator":
        lines = _jax_decorator(m)
    elif m.style == "torch decorator":
        lines = _torch_decorator(m)
    else:
        lines = _class(m)
    if m.closed:
        names = ", ".join(f"{m.name}_W{i}" for i in range(len(m.closed)))
        inner = [*lines, f"return {m.name}"]
        lines = [f"def make_{m.name}({names}):", *indent(inner), ""]
        lines += [f"{m.name} = make_{m.name}({', '.join(m.closed)})"]
    return "\n".join([*lines, ""])


def _constants(m: Maker) -> list[str]:
    return [f"{m.name}_W{i} = {text}" for i, text in enumerate(m.closed)]


def _params(m: Maker) -> str:
    return ", ".join(_arrays(m) + (["k"] if m.static else []))


def _arrays(m: Maker) -> list[str]:
    return [n.name for n in m.nodes if n.kind == "input"]


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _results(items: list[str]) -> str:
    return ", ".join(items)


# ---- values and derivatives


def _values(m: Maker, wanted: list[int], known: set[int]) -> list[str]:
    """Lines that compute these nodes from those that are known, in order."""
    todo: set[int] = set()

    def need(i: int) -> None:
        if i not in known | todo and m.nodes[i].kind != "input":
            todo.add(i)
            for operand in m.nodes[i].operands:
                need(operand)

    for i in wanted:
        need(i)
    return [f"{m.nodes[i].name} = {m.nodes[i].text}" for i in sorted(todo)]


def _forward(m: Maker, *, more: list[str] | None = None) -> list[str]:
    lines = [f"{n.name} = {n.text}" for n in m.nodes if n.kind != "input"]
    return [*lines, *(more or []), f"return {_outs(m)}"]


def _outs(m: Maker) -> str:
    return _results([m.nodes[i].name for i in m.outs])


def _pull(m: Maker, given: list[str]) -> tuple[list[str], list[str]]:
    """Lines from cotangents of the outputs to those of the inputs, and these (None)."""
    lines: list[str] = []
    terms: dict[int, list[str]] = {i: [] for i in range(len(m.nodes))}
    for i, g in zip(m.outs, given, strict=True):
        terms[i].append(g)
    for i, node in reversed(list(enumerate(m.nodes))):
        if not terms[i]:
            continue
        lines.append(f"g{i} = {' + '.join(terms[i])}")
        if node.kind == "call":
            values = ", ".join(m.nodes[o].name for o in node.operands)
            pulled = [f"g{i}_{o}" for o in range(len(node.operands))]
            variables = ", ".join("ab"[: len(node.operands)])
            lines += [
                f"pull = jax.vjp(lambda {variables}: {node.detail}, {values})[1]",
                f"{_tuple(pulled)} = pull(g{i})",
            ]
            pairs = list(zip(node.operands, pulled, strict=True))
        else:
            pairs = [
                (o, _reduced(t, node.shape, m.nodes[o].shape))
                for o, t in _pulled(m, node, f"g{i}")
            ]
        for operand, term in pairs:
            terms[operand].append(term)
    n = len(_arrays(m))
    return lines, [f"g{i}" if terms[i] else "None" for i in range(n)]


def _pulled(m: Maker, node: Node, g: str) -> list[tuple[int, str]]:
    """For each operand the text of its cotangent; of the shape of the result."""
    a, b = (*node.operands, -1, -1)[:2]
    names = [m.nodes[i].name for i in node.operands]
    match node.kind:
        case "sin":
            return [(a, f"{g} * jnp.cos({names[0]})")]
        case "multiply":
            return [(a, f"{g} * {names[1]}"), (b, f"{g} * {names[0]}")]
        case "add":
            return [(a, g), (b, g)]
        case "sum":
            return [(a, f"{g} * jnp.ones({m.nodes[a].shape})")]
        case "constant":
            return [(a, f"{node.detail} * {g}")]
        case "setting_times":
            return [(b, f"{names[0]} * {g}")]
        case "linear":
            return [(a, f"{node.detail}({g})")]
    return []


def _reduced(text: str, have: Shape, want: Shape) -> str:
    if len(have) <= len(want):
        return text
    return f"jnp.sum({text})" if not want else f"jnp.sum({text}, 0)"


def _push(m: Maker) -> list[str]:
    """Lines from the tangents of the inputs to those of all."""
    lines = []
    for i, node in enumerate(m.nodes):
        names = [m.nodes[o].name for o in node.operands]
        ts = [f"t{o}" for o in node.operands]
        match node.kind:
            case "sin":
                text = f"{ts[0]} * jnp.cos({names[0]})"
            case "multiply":
                text = f"{ts[0]} * {names[1]} + {names[0]} * {ts[1]}"
            case "add":
                text = f"{ts[0]} + {ts[1]}"
            case "sum":
                text = f"jnp.sum({ts[0]})"
            case "constant":
                text = f"{node.detail} * {ts[0]}"
            case "setting_times":
                text = f"{names[0]} * {ts[1]}"
            case "linear":
                text = f"{node.detail}({ts[0]})"
            case "call":
                f = f"lambda {', '.join('ab'[: len(names)])}: {node.detail}"
                text = f"jax.jvp({f}, {_tuple(names)}, {_tuple(ts)})[1]"
            case _:
                continue
        lines.append(f"t{i} = {text}")
    return lines


# ---- in torch's terms


def _class(m: Maker) -> list[str]:
    body: list[str] = []
    if m.engine == "derived":
        body += ["generate_jvp_rule = True", ""]
    ctx = "ctx, " if m.style == "combined" else ""
    body += ["@staticmethod", f"def forward({ctx}{_params(m)}):"]
    if m.style == "combined":
        body += indent(_forward(m, more=_save(m)))
    else:
        body += [*indent(_forward(m)), "", "@staticmethod", *_setup_context(m)]
    for rule in _rules(m):
        body += ["", "@staticmethod", *rule]
    return [
        f"class {m.name}(jaxfn.Function):",
        *indent(body),
        "",
        f"{m.name} = {m.name}.apply",
    ]


def _torch_decorator(m: Maker) -> list[str]:
    derived = "generate_jvp_rule=True" if m.engine == "derived" else ""
    lines = [f"def {m.name}({_params(m)}):", *indent(_forward(m)), ""]
    lines += [
        f"{m.name} = jaxfn.custom_function({m.name}, {derived})".replace(", )", ")")
    ]
    for rule in [_setup_context(m), *_rules(m)]:
        name = rule[0].split("(")[0].removeprefix("def ")
        lines += [
            "",
            f"@{m.name}.{name}",
            f"def _{rule[0].removeprefix('def ' + name)}",
        ]
        lines += rule[1:]
    return lines


def _save(m: Maker) -> list[str]:
    tensors = ", ".join(_saved(m, "tensor"))
    kept = _saved(m, "attribute")
    lines = [f"ctx.{x} = {x}" for x in kept]
    if kept and m.in_dict:
        lines = [f"ctx.kept = {{{', '.join(f'{x!r}: {x}' for x in kept)}}}"]
    if m.static:
        lines.append("ctx.k = k")
    if tensors and m.has_backward:
        lines.append(f"ctx.save_for_backward({tensors})")
    if tensors and m.has_jvp:
        lines.append(f"ctx.save_for_forward({tensors})")
    return lines


def _saved(m: Maker, how: str) -> list[str]:
    return [m.nodes[i].name for i in sorted(m.saved) if m.saved[i] == how]


def _setup_context(m: Maker) -> list[str]:
    lines = [f"{_tuple(_params(m).split(', '))} = inputs", f"{_outs(m)} = output"]
    return ["def setup_context(ctx, inputs, output):", *indent([*lines, *_save(m)])]


def _read(m: Maker) -> list[str]:
    """What the rules need of the values."""
    tensors = _saved(m, "tensor")
    of = "kept[{!r}]" if m.in_dict else "{}"
    lines = [f"{x} = ctx.{of.format(x)}" for x in _saved(m, "attribute")]
    if m.static:
        lines.append("k = ctx.k")
    if tensors:
        lines.append(f"{_tuple(tensors)} = ctx.saved_tensors")
    return lines + _values(m, m.needed, set(m.saved))


def _rules(m: Maker) -> list[list[str]]:
    rules = []
    if m.has_backward:
        given = [f"h{k}" for k in range(len(m.outs))]
        lines, found = _pull(m, given)
        if m.asks:
            found = [
                g if g == "None" else f"{g} if ctx.needs_input_grad[{i}] else None"
                for i, g in enumerate(found)
            ]
        found += ["None"] if m.static else []
        body = [*_read(m), *lines, f"return {_results(found)}"]
        rules.append([f"def backward(ctx, {', '.join(given)}):", *indent(body)])
    if m.has_jvp:
        given = [f"t{i}" for i in range(len(_arrays(m)))] + (["_"] if m.static else [])
        outs = _results([f"t{i}" for i in m.outs])
        body = [*_read(m), *_push(m), f"return {outs}"]
        rules.append([f"def jvp(ctx, {', '.join(given)}):", *indent(body)])
    if m.vmap:
        rules.append(_vmap(m))
    return rules


def _vmap(m: Maker) -> list[str]:
    axes = f"in_dims[:{len(_arrays(m))}]"
    zeros = "0" if len(m.outs) == 1 else _tuple(["0"] * len(m.outs))
    arrays = ", ".join(_arrays(m))
    body = [
        f"def one({arrays}):",
        *indent(_forward(m)),
        f"out = jax.vmap(one, {axes}, axis_size=info.batch_size)({arrays})",
        f"return out, {zeros}",
    ]
    return [f"def vmap(info, in_dims, {_params(m)}):", *indent(body)]


# ---- in JAX's terms


def _jax_decorator(m: Maker) -> list[str]:
    name, params = m.name, _params(m)
    derived = "(generate_jvp_rule=True)" if m.engine == "derived" else ""
    lines = [f"@jaxfn.custom_function{derived}"]
    lines += [f"def {name}({params}):", *indent(_forward(m))]
    if m.has_backward:
        saved = [m.nodes[i].name for i in sorted(m.saved)] + (["k"] if m.static else [])
        fwd = _forward(m)
        fwd[-1] = f"return ({_outs(m)}), {_tuple(saved) if saved else '()'}"
        given = [f"h{k}" for k in range(len(m.outs))]
        pull, found = _pull(m, given)
        found += ["None"] if m.static else []
        bwd = [f"{_tuple(saved)} = saved"] if saved else []
        bwd += _values(m, m.needed, set(m.saved))
        bwd += [f"{_results(given)} = h"] if len(given) > 1 else ["h0 = h"]
        bwd += [*pull, f"return {_tuple(found)}"]
        lines += ["", f"def {name}_fwd({params}):", *indent(fwd)]
        lines += ["", f"def {name}_bwd(saved, h):", *indent(bwd)]
        lines += ["", f"{name}.defvjp({name}_fwd, {name}_bwd)"]
    if m.has_jvp:
        ts = [f"t{i}" for i in range(len(_arrays(m)))] + (["_"] if m.static else [])
        body = [f"{_tuple(params.split(', '))} = primals", f"{_tuple(ts)} = tangents"]
        body += [*_forward(m)[:-1], *_push(m)]
        out = f"{name}({params})" if m.asks else f"({_outs(m)})"
        body.append(f"return {out}, ({_results([f't{i}' for i in m.outs])})")
        lines += ["", f"@{name}.defjvp", f"def {name}_jvp(primals, tangents):"]
        lines += indent(body)
    if m.vmap:
        lines += ["", f"@{name}.def_vmap", *_def_vmap(m)]
    return lines


def _def_vmap(m: Maker) -> list[str]:
    arrays = ", ".join(_arrays(m))
    flags = "True" if len(m.outs) == 1 else _tuple(["True"] * len(m.outs))
    body = [f"def one({arrays}):", *indent(_forward(m))]
    body += [
        f"if not batched[{i}]:\n    {x} = jnp.broadcast_to({x}, (size, *{x}.shape))"
        for i, x in enumerate(_arrays(m))
    ]
    body += [f"return jax.vmap(one)({arrays}), {flags}"]
    return [f"def {m.name}_vmap(size, batched, {_params(m)}):", *indent(body)]
