"""Tensors that a rule makes once and keeps: in its class, in a dict, in a cache."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxfn.torch import TorchRefusal, from_torch
from jaxfn.torch._base.cache_key import ReadTensors
from jaxfn.torch._function import graph_function

from .classes import torch_class

X = jnp.float32([1, 2])


def keeping(make, used=lambda x, kept: x * kept):
    """A class whose forward and backward make a tensor at the first call."""

    def forward(ctx, x):
        if keeps.kept is None:
            keeps.kept = make(x)
        return used(x, keeps.kept)

    def backward(ctx, g):
        return 5 * used(g, keeps.kept)

    keeps = torch_class(forward, backward, kept=None)
    return keeps


def in_torch(cls):
    x = torch.tensor(np.asarray(X), requires_grad=True)
    y = cls.apply(x)
    return y.detach().numpy(), torch.autograd.grad(y.sum(), x)[0].numpy()


def written():
    x = torch.zeros(2)
    x[0] = 3
    return x.add_(torch.ones(2))


def written_by_a_view(x):
    made = torch.ones(2)
    made[:].mul_(x)
    return made


MADE = {
    "a number": lambda _: torch.tensor(2.0),
    "a list": lambda _: torch.tensor([2.0, 3.0]),
    "ones": lambda x: torch.ones(x.shape, dtype=x.dtype) * 3,
    "written to": lambda _: written(),
    "a parameter": lambda _: torch.nn.Parameter(torch.full((2,), 4.0)).detach() * 1,
    "a view": lambda _: torch.arange(6.0)[2:4],
    "of a draw's shape": lambda x: torch.ones_like(torch.empty(2)) + x.ndim,
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("jit", [False, True])
def test_it_has_values_after_the_trace(name, jit):
    cls = keeping(MADE[name])
    expected = in_torch(keeping(MADE[name]))
    f = from_torch(cls)
    run = lambda x: (f.apply(x), jax.grad(lambda x: f.apply(x).sum())(x))  # noqa: E731
    for kept in ("made", "used again"):
        found = (jax.jit(run) if jit else run)(X)
        np.testing.assert_array_equal(found, expected, err_msg=kept)
    assert type(cls.kept) is torch.Tensor
    # A second class of it is traced anew, with the tensor that the first trace made.
    np.testing.assert_array_equal(from_torch(cls).apply(X), expected[0])
    np.testing.assert_array_equal(in_torch(cls), expected)  # PyTorch itself goes on


def test_a_cached_function_and_a_parameter():
    @functools.cache
    def table():
        return {"w": torch.nn.Parameter(torch.tensor([2.0, 7.0]), False)}

    cached = torch_class(
        lambda ctx, x: x * table()["w"].detach(),
        lambda ctx, g: 5 * g * table()["w"].detach(),
    )
    expected = in_torch(cached)
    table.cache_clear()
    f = from_torch(cached)
    np.testing.assert_array_equal(f.apply(X), expected[0])
    np.testing.assert_array_equal(jax.grad(lambda x: f.apply(x).sum())(X), expected[1])
    assert isinstance(table()["w"], torch.nn.Parameter)
    assert table()["w"].tolist() == [2, 7]


DEPENDS = {
    "of an argument": lambda x: torch.ones(2) * x,
    "an argument written into it": lambda x: torch.ones(2).copy_(x),
    "a view": lambda x: torch.ones(2)[:].mul_(x),
    "by a view": written_by_a_view,
    "a condition": lambda x: torch.ones(2) * 2 if x.sum() > 10 else torch.ones(2) * 3,
    "a write under a condition": lambda x: (
        torch.ones(2).mul_(4) if x.sum() > 10 else torch.ones(2).mul_(5)
    ),
}


@pytest.mark.parametrize("make", DEPENDS.values(), ids=DEPENDS)
def test_what_depends_on_an_argument_has_no_value(make):
    with pytest.raises(TorchRefusal, match="it was made in another trace"):
        from_torch(keeping(make)).apply(X)


@pytest.mark.parametrize(
    "made",
    [
        lambda kept, x: kept[0].add_(x.sum().item() + 1),
        lambda kept, x: kept[0].add_(2 if x.requires_grad else 3),
        lambda kept, x: kept[0].numpy().fill(2),
    ],
)
def test_a_constant_of_a_trace_that_was_given_up_has_no_value(made):
    def forward(ctx, x):
        if keeps.kept is None:
            keeps.kept = [torch.zeros(2)]
            made(keeps.kept, x)
        return x * keeps.kept[0]

    keeps = torch_class(forward, lambda ctx, g: g, kept=None)
    for _ in range(2):
        with pytest.raises(TorchRefusal):
            from_torch(keeps).apply(X)


def test_a_constant_with_a_graph_keeps_it():
    def make(x):
        with torch.enable_grad():
            return torch.ones(2).requires_grad_() * 2

    cls = keeping(make, lambda x, kept: x * kept.detach())
    with pytest.raises(TorchRefusal):
        from_torch(cls).apply(X)
    assert cls.kept.grad_fn is not None


def test_a_tensor_of_the_program_is_not_written_to():
    table = torch.ones(2)
    cls = keeping(lambda _: (table.view(2), table * 2)[1])
    from_torch(cls).apply(X)
    gc.collect()
    assert table.tolist() == [1, 1]
    assert cls.kept.tolist() == [2, 2]


# ---- numbers that a rule reads from tensors that depend on no argument


def written_and_read(x):
    steps = torch.zeros(3)
    steps[1] = 2
    steps.mul_(3)
    return x * steps[1].item()


READ = {
    "axes": lambda x: x.sum(torch.arange(1, x.ndim).tolist()),
    "a size": lambda x: x[:, : int(torch.ones(2).sum())],
    "a schedule": lambda x: sum(x * float(k) for k in torch.linspace(0, 1, 3)),
    "a condition": lambda x: x * 2 if torch.arange(4).sum() > 5 else x,
    "written to": written_and_read,
    "many": lambda x: x.reshape(torch.arange(100)[[2, 3]].tolist()),
}


@pytest.mark.parametrize("run", READ.values(), ids=READ)
def test_a_number_that_depends_on_no_argument_is_known(run):
    x = torch.arange(6.0).reshape(2, 3)
    f = from_torch(run)
    np.testing.assert_allclose(f(jnp.asarray(x.numpy())), run(x).numpy())


SCALE = torch.tensor([2.0, 5.0])


def scaling(how):
    """A function, and the tensor of which it reads a number."""
    scale, holder = torch.tensor([2.0, 5.0]), {"scale": torch.tensor([2.0, 5.0])}
    scaled = torch_class(
        lambda ctx, x: x * (scaled.kept * 3).max().item(),
        lambda ctx, g: g * (scaled.kept * 3).max().item(),
        kept=torch.tensor([2.0, 5.0]),
    )

    def branch(x):
        return 15 * x if holder["scale"][0] < 3 else 30 * x

    return {
        "a branch": (from_torch(branch), holder["scale"]),
        "a closure": (from_torch(lambda x: x * (scale * 3).max().item()), scale),
        "a global": (from_torch(lambda x: x * (SCALE * 3).max().item()), SCALE),
        "in a dict": (
            from_torch(lambda x: x * (holder["scale"] * 3).max().item()),
            holder["scale"],
        ),
        "a class": (from_torch(scaled).apply, scaled.kept),
    }[how]


@pytest.mark.parametrize(
    "how", ["a branch", "a closure", "a global", "in a dict", "a class"]
)
@pytest.mark.parametrize(
    "double",
    [lambda t: t.mul_(2), lambda t: t.data.mul_(2), lambda t: t.numpy().__imul__(2)],
    ids=["in place", "its data", "its memory"],
)
def test_a_number_of_the_programs_own_tensor_is_read_in_each_call(how, double):
    f, scale = scaling(how)
    for factor in (15, 30):
        assert f(X)[0] == factor
        assert jax.grad(lambda x: f(x).sum())(X)[0] == factor
        double(scale)
    scale.div_(4)


def test_writes_to_a_tensor_whose_numbers_no_trace_reads_cost_nothing(monkeypatch):
    weight, traces, trace = torch.tensor([2.0, 5.0]), [], graph_function.trace
    monkeypatch.setattr(
        graph_function, "trace", lambda *a, **k: traces.append(1) or trace(*a, **k)
    )
    f = from_torch(lambda x: x * weight)
    for factor in (2, 4, 8):
        assert f(X)[0] == factor
        weight.mul_(2)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "read",
    [lambda t: t.numpy()[1], lambda t: np.asarray(t)[1], lambda t: t.cpu().numpy()[1]],
)
def test_a_numpy_array_of_the_programs_own_tensor_is_refused(read):
    """Torch would make an array of memory that nothing has written to."""
    own = torch.tensor([2.0, 3.0])
    with pytest.raises(TorchRefusal, match="a NumPy array of a tensor"):
        from_torch(lambda x: x * float(read(own)))(X)


def test_numbers_that_are_read_change_no_tensor_that_is_kept():
    """What is computed for a number is not what a kept tensor gets."""
    kept = {}

    def run(x):
        if "sum" not in kept:
            made, filled = torch.zeros(2), torch.empty(2).fill_(5.0)
            kept["sum"] = filled + made
            made.add_(1.0)
            kept["n"] = made.sum().item()
        return x * kept["sum"] * kept["n"]

    f = from_torch(run)
    for x in (X, jnp.ones((2, 2), jnp.float32)):
        np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(x), 10)


def test_a_kept_tensor_that_an_argument_decides_after_a_read_has_no_value():
    kept = {}

    def run(x):
        if "made" not in kept:
            made = kept["made"] = torch.zeros(2)
            kept["n"] = int(made.sum())
            made[0] = 7 * x[0].detach()
        return x * (kept["made"] + 1)

    f = from_torch(run)
    with pytest.raises(TorchRefusal, match="it was made in another trace"):
        f(X), f(jnp.ones((2, 2), jnp.float32))


def test_a_number_is_computed_in_the_default_dtype_of_its_operation():
    def run(x):
        torch.set_default_dtype(torch.float64)
        third = torch.full((2,), 1 / 3)
        torch.set_default_dtype(torch.float32)
        return x.double() * third.sum().item()

    with jax.enable_x64(True):
        assert from_torch(run)(jnp.ones(2)).tolist() == [2 / 3, 2 / 3]


def of_the_whole(x):
    made = torch.tensor([1.0])
    made[0] = x.sum()
    return x * made.item()


def of_a_part(x):
    made = torch.zeros(2)
    made[0] = x[0]  # the whole of it is no constant now
    made[1] += 3
    return x * made[1].item() + made[0]


def of_a_view(write):
    def run(x):
        made = torch.zeros(2)
        view = made[:1]
        write(made, x)
        return x * view.item()

    return run


WRITTEN = {
    "of the whole": of_the_whole,
    "of a part": of_a_part,
    "of a view, an argument": of_a_view(lambda made, x: made.copy_(x)),
    "of a view, what has no values": of_a_view(
        lambda made, x: made.add_(torch.empty_like(x) * 0)
    ),
}


@pytest.mark.parametrize("run", WRITTEN.values(), ids=WRITTEN)
def test_a_number_that_depends_on_an_argument_is_not_known(run):
    want = run(torch.tensor([1.0, 2.0])).numpy()
    np.testing.assert_allclose(from_torch(run)(X), want)
    np.testing.assert_allclose(jax.jit(from_torch(run))(X), want)


def test_a_drawn_number_is_not_known():
    with pytest.raises(TorchRefusal, match="draws random numbers"):
        from_torch(lambda x: x * torch.rand(1).item())(X)


# ---- shapes that depend on values, but on no argument

EDGES = torch.tensor([[0, 1, 2, 2, 1], [1, 1, 0, 2, 2]])


def without_loops(x, edges):
    edges = edges[:, edges[0] != edges[1]]
    return torch.zeros_like(x).index_add(0, edges[1], 3 * x[edges[0]])


MASK = torch.tensor([True, False, True])


SHAPED = {
    "a mask of the program": lambda x: x[MASK] * 2,
    "a graph": lambda x: without_loops(x, EDGES),
    "a mask": lambda x: x[EDGES[0, :3] > 0] * 2,
    "a write": lambda x: x.clone().index_put((EDGES[0, :3] > 0,), 2 * x[0]),
    "a write in place": lambda x: x.clone().masked_fill_(EDGES[0, :3] > 0, 0.5),
    "places": lambda x: x[(EDGES[0] == 2).nonzero()[:, 0] - 1],
    "unique": lambda x: x[torch.unique(EDGES[0])] * 2,
    "repeats": lambda x: x[torch.arange(3).repeat_interleave(torch.tensor([1, 0, 2]))],
    "counts": lambda x: x * torch.bincount(EDGES[0]),
}


@pytest.mark.parametrize("run", SHAPED.values(), ids=SHAPED)
def test_a_shape_that_depends_on_no_argument_is_known(run):
    x = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    want = torch.autograd.grad((run(x) ** 2).sum(), x)[0]
    f = from_torch(run)
    got = jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(jnp.asarray(x.detach()))
    np.testing.assert_allclose(got, want)


CHANGED = {
    "a mask": (lambda x, own: x[own], [True, False, True], 0, False),
    "a graph": (without_loops, [[0, 1, 2], [1, 1, 0]], (1, 1), 2),
}


@pytest.mark.parametrize("name", CHANGED)
def test_the_programs_own_tensor_decides_a_shape_and_has_changed(name):
    run, own, place, value = CHANGED[name]
    own, x = torch.tensor(own), torch.tensor([1.0, 2.0, 4.0])
    f = from_torch(lambda x: run(x, own))
    for _ in range(2):
        np.testing.assert_allclose(f(jnp.asarray(x)), run(x, own))
        own[place] = value


def test_a_tensor_that_takes_the_place_of_another_is_noted():
    read = ReadTensors()
    for number in range(100):
        x = torch.tensor([number])
        read.note(x)
        before = read.changes()
        x.add_(1000)
        assert read.changes() == before + 1
        del x


# ---- writes to copies of the program's own tensors

OWN = torch.tensor([2.0, 3.0, 4.0])


def cloned(x):
    made = OWN.clone()
    made.mul_(x)
    return made


def item_of_a_clone(x):
    made = OWN.clone()
    made[0] = x[0]
    return made * x


def product(x):
    made = OWN * 2
    made.mul_(x)
    return made


def repeated(x):
    made = OWN.repeat(2)
    made[:3] += x
    return made[:3] * made[3:]


def by_a_number(x):
    made = OWN.clone()
    made.mul_(2.0)
    return made * x


@pytest.mark.parametrize(
    "run", [cloned, item_of_a_clone, product, repeated, by_a_number]
)
def test_a_copy_of_the_programs_own_tensor_may_be_written_to(run):
    x = torch.tensor([1.0, 5.0, 7.0], requires_grad=True)
    want = torch.autograd.grad((run(x) ** 2).sum(), x)[0]
    f = from_torch(run)
    got = jax.grad(lambda x: (f(x) ** 2).sum())(jnp.asarray(x.detach()))
    np.testing.assert_allclose(got, want)
    assert OWN.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    "write", [lambda x: OWN.mul_(2.0), lambda x: OWN[1:].add_(x[1:])]
)
def test_the_tensor_itself_may_not(write):
    with pytest.raises(TorchRefusal, match="writes to a tensor that is not an arg"):
        from_torch(lambda x: (write(x), x * OWN)[1])(jnp.ones(3))
    assert OWN.tolist() == [2, 3, 4]
