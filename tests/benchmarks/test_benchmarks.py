"""One quick round of the benchmarks; `--benchmark-enable` times them.

No test looks at a time. They see that what is timed computes what it should, and that
the numbers that do not depend on the machine are as promised.
"""

import json

import jax
import numpy as np
import pytest

from tests.benchmarks import (
    compiled,
    dispatch,
    eager,
    from_torch,
    importing,
    inside,
    peers,
    torch_twins,
    trace,
    widths,
)
from tests.benchmarks.__main__ import PARTS, main
from tests.benchmarks.eager import arrays
from tests.benchmarks.rows import names
from tests.benchmarks.timing import Effort, Times
from tests.twins import TWINS


def close(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def close_when_lowered(benchmark, call, expected):
    """Time the call, and compare what it has lowered."""
    lowered = benchmark.pedantic(call.run, setup=lambda: ((call.prepare(),), {}))
    close(lowered.compile()(trace.X, trace.Y), expected(trace.X, trace.Y))


def cells(measures):
    """What is measured, with each of those that can be measured here."""
    return [
        (what, name)
        for what, (_, pairs) in measures.items()
        for name in peers.available(names(pairs))
        if what != "grad of grad"  # compiled in tests of derivatives
    ]


@pytest.mark.parametrize(("what", "name"), cells(eager.MEASURES))
def test_eager(benchmark, what, name):
    transform = eager.MEASURES[what][0]
    benchmark.group = f"eager {what}"
    call = eager.calls([name], transform, *arrays(16))[name]
    close(benchmark(call.run, None), transform(peers.bare(), *arrays(16)))


@pytest.mark.parametrize("transform", [eager.plain, eager.gradient])
def test_forms_of_arguments(benchmark, transform):
    groups = [group for _, group in eager.forms(transform)]
    benchmark(lambda: [call.run(None) for group in groups for call in group.values()])
    assert len(groups) == 3
    for group in groups:
        expected = group["bare"].run(None)
        for name in ("Function", "custom_vjp"):
            close(group[name].run(None), expected)


@pytest.mark.parametrize(("what", "name"), cells(trace.MEASURES))
def test_trace(benchmark, what, name):
    transform = trace.MEASURES[what][0]
    benchmark.group = f"trace and lower {what}"
    close_when_lowered(benchmark, trace.fresh(name, transform), transform(peers.bare()))


def test_every_trace_is_of_a_new_function():
    call = trace.fresh("Function", trace.apply)
    first, second = call.prepare(), call.prepare()
    assert first is not second
    cells = [f.__closure__[0].cell_contents for f in (first, second)]
    assert cells[0] is not cells[1]


@pytest.mark.parametrize("name", ["Function", "Function, separate", "custom_vjp"])
def test_chain(benchmark, name):
    chain = trace.chain(10, trace.gradient)
    expected = jax.jit(chain(peers.bare()))
    close_when_lowered(benchmark, trace.fresh(name, chain), expected)


INSIDE = [
    (what, name) for what, (*_, pair) in trace.INSIDE.items() for name in names([pair])
]


@pytest.mark.parametrize(("what", "name"), INSIDE)
def test_functions_inside_others(benchmark, what, name):
    depth, rules, transform, _ = trace.INSIDE[what]
    call = trace.fresh_levels(name, depth, rules, transform)
    close_when_lowered(benchmark, call, transform(inside.levels("bare", depth, rules)))


@pytest.mark.parametrize("name", ["bare", "Function", "custom_vjp"])
def test_many_arguments_and_leaves(benchmark, name):
    wide, tree = widths.of_arguments(16, name), widths.of_leaves(10, name)
    lowered = benchmark(lambda: [c.run(c.prepare()) for c in (wide, tree)])
    inputs = [widths.arguments(16), widths.leaves(10)]
    for program, given in zip(lowered, inputs, strict=True):
        close(program.compile()(given), jax.tree.map(lambda x: np.float32(2), given))


@pytest.mark.parametrize("name", [*dispatch.HAND, "custom_vjp"])
def test_dispatch(benchmark, name):
    benchmark.group = "dispatch"
    call = dispatch.calls([name], 16)[name]
    expected = dispatch.step(peers.bare())(arrays(16))
    close(benchmark(call.run, None), expected)


@pytest.mark.parametrize("what", ["grad", "jvp"])
def test_compiled(benchmark, what):
    benchmark.group = "compiled"
    twin = TWINS["geglu"]
    args = twin.arguments(16)
    ours, hand = compiled.compiled(twin, 16, compiled.PROGRAMS[what])
    close(benchmark(ours, *args), hand(*args))
    assert compiled.peak(ours) == compiled.peak(hand) > 0


def test_import():
    found = importing.fresh("jaxfn")
    assert found["heavy"] == []
    assert "jaxfn._function" in found["modules"]
    assert not any(m.startswith("jaxfn") for m in importing.fresh()["modules"])


@pytest.mark.skipif(bool(peers.GAPS["torch"]), reason="torch is not installed")
@pytest.mark.parametrize("name", torch_twins.CASES)
def test_torch_computes_the_same(benchmark, name):
    benchmark.group = "torch"
    case = torch_twins.CASES[name]
    xs, cts = torch_twins.data(case, 40)
    ours = torch_twins.ours(case, xs, cts)
    other = torch_twins.theirs(case, xs, cts, "cpu", fused=False, threads=1)
    torch_twins.agree(ours, other)
    benchmark(other.run, None)


@pytest.mark.skipif(bool(peers.GAPS["torch"]), reason="torch is not installed")
@pytest.mark.parametrize("kind", from_torch.KINDS)
def test_torch_computes_the_same_as_from_torch_and_the_port(benchmark, kind):
    benchmark.group = "from_torch"
    some = from_torch.cases()
    assert len(some) >= 10
    for case in some:
        # Their results are compared here.
        group, numbers, _ = from_torch.calls(
            case, backward=from_torch.KINDS[kind], compiler=False
        )
        assert {"from_torch", "port by hand", "torch eager, 1"} <= set(group)
        assert numbers[from_torch.OURS] > 0
    benchmark(group["from_torch"].run, None)


def test_without_torch_from_torch_is_a_gap(monkeypatch):
    monkeypatch.setitem(peers.GAPS, "torch", "not installed")
    rows = list(from_torch.rows(Effort(quick=True)))
    assert {row.against for row in rows} == {
        "port by hand", "torch eager", "torch.compile"
    }  # fmt: skip
    assert {row.verdict for row in rows} == {"gap"}


def test_more_instructions_than_by_hand_miss_the_target():
    assert from_torch.alike("forward", 10, []).verdict == "met"
    row = from_torch.alike("forward", 10, ["Exp 9 to 7"])
    assert (row.verdict, row.note) == ("missed", "Exp 9 to 7")


def test_what_is_slower_than_by_hand_is_named():
    times = Times({"Exp, from_torch": [1.2, 1.2], "Exp, port by hand": [1.0, 1.0]})
    row = from_torch.overall("forward", from_torch.PORT, times)
    assert (row.verdict, row.note) == ("missed", "above 1.05: Exp 1.20")
    alone = Times({"from_torch": [1.0], "port by hand": [1.0]})
    found = list(from_torch.each("what", alone, Times({"from_torch": [1.0]}), "why"))
    assert [row.verdict for row, _, _ in found] == ["met", "gap", "gap"]


def test_the_comparison_with_torch_sees_a_difference():
    case = torch_twins.CASES["swish"]
    xs, cts = torch_twins.data(case, 40)
    ours = torch_twins.ours(case, xs, cts)

    class Tensor(np.ndarray):
        def detach(self):
            return self

        cpu = numpy = detach

    outs, (grads,) = ours.run(None)

    def other(scale):
        made = [np.asarray(x).view(Tensor) for x in (*outs, *grads)]
        return torch_twins.Call(lambda _: ([made[0]], [scale * made[1]]))

    torch_twins.agree(ours, other(1))
    with pytest.raises(AssertionError):
        torch_twins.agree(ours, other(1.01))


def test_torch_is_measured_with_its_best_threads():
    times = Times({"torch eager, 1": [2, 3], "torch eager, 2": [9, 1], "Function": [1]})
    assert torch_twins.fastest(times, torch_twins.EAGER) == "torch eager, 1"
    assert torch_twins.fastest(times, torch_twins.COMPILED) == ""


def test_inputs_for_torch_have_the_size():
    for name, case in torch_twins.CASES.items():
        xs, _ = torch_twins.data(case, 10_000)
        assert xs[0].size == 10_000, name
        assert all(x.dtype == np.float32 for x in xs)
    assert len(torch_twins.CASES) >= 10


# ---- the command


@pytest.mark.full
def test_command_reports_what_is_kept(tmp_path, capsys):
    """Bytes do not depend on the machine: every target is met."""
    assert main(["residuals", "--quick", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "benchmarks.json").read_text())["rows"]
    verdicts = {row["verdict"] for row in rows if row["target"] is not None}
    assert verdicts == {"met"}
    table = (tmp_path / "benchmarks.md").read_text()
    assert "40,000 to 40,000 bytes" in table
    assert str(tmp_path / "benchmarks.md") in capsys.readouterr().out


def test_command_knows_its_parts(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["eagre"])
    assert "no part is named 'eagre'" in capsys.readouterr().err
    assert set(PARTS) >= {"eager", "trace", "compiled", "gpu"}
