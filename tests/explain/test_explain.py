"""explain: what it says is what JAX does."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn._explain import trace
from jaxfn._explain.target import struct
from tests import wrong
from tests.build import function
from tests.laws.catalogue import CASES
from tests.sizes import only

X = jnp.float32([1, 2, 3])
W = jnp.float32([4, 5])
S = jnp.float32(2)


def kept(f, *args):
    """The bytes of the arrays that an eager `jax.vjp` closes over, each once."""
    leaves = jax.tree.leaves(jax.vjp(f, *args)[1])
    return sum(x.nbytes for x in {id(x): x for x in leaves}.values())


def backward(ctx, *grads):
    _ = ctx.saved_tensors
    return (grads[0],) * len(ctx.needs_input_grad)


def save_all(ctx, x):
    y = jnp.exp(x)
    ctx.save_for_backward(x, y, jnp.sin(x))
    ctx.table = {"k": jnp.arange(5), "n": 3}
    ctx.same = y
    return y


class Config(types.SimpleNamespace):
    pass


def save_record(ctx, x):
    ctx.config = Config(mask=x > 0, scale=2.0)
    return x * 2


def save_nothing(ctx, x):
    return x * 2


def save_argument_twice(ctx, x, y):
    ctx.save_for_backward(x, y)
    return x * y


def setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)
    ctx.save_for_forward(*inputs)


def save_wide(ctx, x):
    ctx.save_for_backward(x.astype(jnp.bfloat16), x > 1, np.ones(7), None)
    ctx.key = jax.random.key(0)
    return x.sum(), x.astype(jnp.int32)


def both(**rules):
    return {"backward": backward, "jvp": lambda ctx, *ts: ts[0], **rules}


FUNCTIONS = {
    "inputs, outputs, intermediates, attributes": ({"forward": save_all}, (X,)),
    "a record": ({"forward": save_record}, (X,)),
    "nothing": ({"forward": save_nothing}, (X,)),
    "one array twice": ({"forward": save_argument_twice}, (X, X)),
    "two arrays": ({"forward": save_argument_twice}, (X, 2 * X)),
    "the separate style": (
        {"forward": lambda x, y: x * y, "setup_context": setup},
        (X, S),
    ),
    "an input returned and saved": (
        {"forward": lambda ctx, x: (ctx.save_for_backward(x), x)[1]},
        (X,),
    ),
    "other dtypes, several outputs": (
        {"forward": save_wide, "backward": lambda ctx, g, _: g * jnp.ones(3)},
        (X,),
    ),
    "a pytree": (
        {"forward": lambda ctx, d: (ctx.save_for_backward(d["b"]), d["a"] * 2)[1]}
        | {"backward": lambda ctx, g: {"a": g, "b": None}},
        ({"a": X, "b": W},),
    ),
    "both rules": (both(forward=save_all), (X,)),
    "both rules, separate": (
        both(forward=lambda x, y: x * y, setup_context=setup),
        (X, S),
    ),
    "a derived jvp": ({"forward": save_all, "generate_jvp_rule": True}, (X,)),
}
FUNCTIONS = {
    k: (function(**({"backward": backward} | rules)), args)
    for k, (rules, args) in FUNCTIONS.items()
}
FUNCTIONS |= {
    f"wrong {engine}, {style}": (wrong.function(engine, style), (X,))
    for engine in wrong.ENGINES
    for style in wrong.STYLES
}


def sources(report):
    return [(x.name, x.source) for x in report.residuals]


def row(report, name):
    """What the report says of a transformation."""
    (found,) = [t for t in report.transformations if t.name == name]
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_residual_bytes_are_what_vjp_closes_over(name):
    f, args = FUNCTIONS[name]
    report = jaxfn.explain(f, *args)
    assert report.notes == ()
    assert report.residual_bytes == kept(f.apply, *args)
    assert report.residual_bytes == kept(jax.jit(f.apply), *args)
    assert report.residual_bytes == sum(x.nbytes for x in report.residuals)


BODIES = {
    "exp": jnp.exp,
    "sin": jnp.sin,
    "square": lambda x: x * x,
    "constants": lambda x: 2.0 * jnp.where(x > 1, x, 0.0),
    "scan": lambda x: jax.lax.scan(lambda c, y: (c * y, c + y), x[0], x),
    "softplus": lambda x: jnp.log1p(jnp.exp(x)).sum(),
}


@pytest.mark.parametrize("body", BODIES)
def test_plain_residuals_are_what_vjp_of_the_body_closes_over(body):
    f = function(forward=lambda ctx, x: BODIES[body](x), backward=backward)
    report = jaxfn.explain(f, X)
    assert report.plain_residual_bytes == kept(BODIES[body], X)
    batched = jaxfn.custom_function(BODIES[body], vmap=lambda info, dims, x: (x, 0))
    assert jaxfn.explain(batched, X).plain_residual_bytes == kept(BODIES[body], X)


def decorated(*kinds):
    f = jaxfn.custom_function(jnp.sin)
    if "vjp" in kinds:
        f.defvjp(
            lambda x: (f(x), {"x": x, "cos": [jnp.cos(x)]}),
            lambda res, g: (g * res["cos"][0],),
        )
    if "jvp" in kinds:
        f.defjvp(lambda primals, ts: (f(*primals), ts[0] * jnp.cos(primals[0])))
    if "vmap" in kinds:
        f.def_vmap(lambda size, batched, x: (jnp.sin(x), True))
    return f


KINDS = [("vjp",), ("jvp",), ("vmap",), ("vjp", "jvp"), ("vjp", "jvp", "vmap")]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_a_decorated_function_is_explained_like_a_class(kinds):
    f = decorated(*kinds)
    report = jaxfn.explain(f, X)
    assert report.notes == ()
    assert report.residual_bytes == kept(f, X)
    assert works(report) == tried(f)


def works(report):
    return {t.name: t.works for t in report.transformations}


def tried(f):
    """Which transformations work, found by doing them."""

    def loss(x):
        return (f(x) ** 2).sum()

    programs = {
        "call": lambda: f(X),
        "jit": lambda: jax.jit(f)(X),
        "reverse mode": lambda: jax.grad(loss)(X),
        "forward mode": lambda: jax.jvp(f, (X,), (X,)),
        "reverse over reverse": lambda: jax.jacrev(jax.grad(loss))(X),
        "forward over reverse": lambda: jax.hessian(loss)(X),
        "vmap": lambda: jax.vmap(f)(jnp.stack([X, X])),
    }
    found = {}
    for name, program in programs.items():
        try:
            program()
            found[name] = True
        except (TypeError, RuntimeError):  # NotImplementedError is a RuntimeError
            found[name] = False
    return found


def test_names_of_decorated_residuals_are_their_paths():
    report = jaxfn.explain(decorated("vjp"), X)
    assert sources(report) == [
        ("residuals['cos'][0]", "intermediate"),
        ("residuals['x']", "input"),
    ]


def test_torch_style_rules_of_a_decorated_function_are_explained():
    f = jaxfn.custom_function(
        jnp.sin, setup_context=lambda ctx, i, o: ctx.save_for_backward(*i)
    )
    f.backward(lambda ctx, g: g)
    report = jaxfn.explain(f, X)
    assert report.name == "sin"
    assert sources(report) == [("saved_tensors[0]", "input")]
    assert report.residual_bytes == kept(f, X)


def test_a_decorated_method_is_explained_with_its_self():
    class Scale:
        @jaxfn.custom_function
        def __call__(self, x):
            return x * 2

    Scale.__call__.backward(lambda ctx, g: (None, g))
    report = jaxfn.explain(Scale().__call__, X)
    assert [len(arg.arrays) for arg in report.arguments] == [0, 1]
    assert report.residual_bytes == 0


def test_every_residual_has_its_name_source_type_and_bytes():
    report = jaxfn.explain(
        FUNCTIONS["inputs, outputs, intermediates, attributes"][0], X
    )
    found = {(x.name, x.source, x.shape, x.dtype, x.nbytes) for x in report.residuals}
    f32, i32 = jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)
    assert found == {
        ("saved_tensors[0]", "input", (3,), f32, 12),
        ("saved_tensors[1], ctx.same", "output", (3,), f32, 12),
        ("saved_tensors[2]", "intermediate", (3,), f32, 12),
        ("ctx.table['k']", "attribute", (5,), i32, 20),
    }


def test_an_array_in_a_record_has_its_path_as_name():
    report = jaxfn.explain(FUNCTIONS["a record"][0], X)
    (x,) = report.residuals
    assert (x.name, x.source, x.nbytes) == ("ctx.config.mask", "attribute", 3)


def test_what_saved_tensor_hooks_packed_is_counted():
    f = function(forward=save_argument_twice, backward=backward)

    def pack(x):
        return x.astype(jnp.bfloat16)

    with jaxfn.autograd.graph.saved_tensors_hooks(pack, lambda x: x * 1.0):
        report = jaxfn.explain(f, X, 2 * X)
        assert report.residual_bytes == kept(f.apply, X, 2 * X)
    assert [x.nbytes for x in report.residuals] == [6, 6]
    assert [x.name for x in report.residuals] == [
        "saved_tensors[0], packed",
        "saved_tensors[1], packed",
    ]


# ---- arguments


def test_a_function_with_rules_in_torchs_terms_takes_keywords_and_defaults():
    f = jaxfn.custom_function(lambda x, k=3, *, by=2.0: x * k * by)
    f.backward(lambda ctx, g: (3 * g, None))
    report = jaxfn.explain(f, by=1.0, x=X)
    assert report.notes == ()
    assert [(a.name, a.static) for a in report.arguments] == [
        ("x", ()),
        ("k", (("k", 3),)),
        ("by", (("by", 1.0),)),
    ]


def statics(arguments):
    return [pair for a in arguments for pair in a.static]


def test_arguments_are_split_into_arrays_and_statics():
    f = function(
        forward=lambda ctx, tree, name, *rest: tree["a"][0] * 2, backward=backward
    )
    tree = {"a": [X, 3], "b": None}
    arguments = jaxfn.explain(f, tree, "text", W).arguments
    assert [a.name for a in arguments] == ["tree", "name", "args[2]"]
    arrays = [(label, x.shape) for a in arguments for label, x in a.arrays]
    assert arrays == [("tree['a'][0]", (3,)), ("args[2]", (2,))]
    assert statics(arguments) == [("tree['a'][1]", 3), ("name", "text")]


def test_numbers_are_arrays_under_jax_style_rules():
    f = jaxfn.custom_function(lambda x, k: x * k, nondiff_argnums=1)
    f.defvjp(lambda x, k: (f(x, k), None), lambda k, res, g: (g * k,))
    x, k = jaxfn.explain(f, 2.0, 3.0).arguments
    assert [(label, aval.shape) for label, aval in x.arrays] == [("x", ())]
    assert k.static == (("k", 3.0),)


def test_keyword_arguments_are_bound():
    f = function(
        forward=lambda ctx, x, n=2, *, mode=None: x * n, backward=lambda ctx, g: g
    )
    report = jaxfn.explain(f, X, n=3, mode="fast")
    assert statics(report.arguments) == [("n", 3), ("mode", "fast")]


def test_a_type_stands_for_an_array():
    f, _ = FUNCTIONS["two arrays"]
    huge = jax.ShapeDtypeStruct((1 << 15, 1 << 15), jnp.bfloat16)  # 2 GiB
    report = jaxfn.explain(f, huge, huge)
    assert report.notes == ()
    assert report.residual_bytes == 2 * (2 << 30)


def test_nothing_is_computed():
    f = function(forward=lambda ctx, x: x / 0, backward=lambda ctx, g: g / 0)
    with jax.debug_nans(True), jax.debug_infs(True):
        report = jaxfn.explain(f, X)
    assert report.notes == ()


# ---- transformations


@pytest.mark.parametrize("engine", wrong.ENGINES)
@pytest.mark.parametrize("style", wrong.STYLES)
def test_transformations_are_refused_where_jax_refuses_them(engine, style):
    f = wrong.function(engine, style)
    found = works(jaxfn.explain(f, X))
    assert found == tried(f.apply)
    assert found["forward mode"] == (wrong.FORWARD[engine] is not None)


def test_a_refusal_says_the_ways_out():
    how = row(jaxfn.explain(wrong.function("backward"), X), "forward mode").how
    assert "define a jvp staticmethod, or set generate_jvp_rule" in how


ONCE = jaxfn.once_differentiable(lambda ctx, g: g * 2)
DECORATED = jaxfn.custom_function(jnp.sin)
DECORATED.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


def raising(ctx, g):
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("f", "name", "cell"),
    [
        (wrong.function("backward"), "forward mode", "needs jvp or generate_jvp_rule"),
        (DECORATED, "forward mode", "needs defjvp or generate_jvp_rule"),
        (function(forward=save_nothing), "reverse mode", "needs backward or vjp"),
        (
            function(forward=save_nothing, backward=ONCE),
            "forward over reverse",
            "backward is marked once_differentiable",
        ),
        (
            function(forward=save_nothing, backward=raising),
            "reverse mode",
            "raises KeyError",
        ),
    ],
    ids=["backward alone", "defvjp alone", "no rule", "once", "its own"],
)
def test_a_refusal_is_short_in_the_table_and_whole_below_it(f, name, cell):
    report = jaxfn.explain(f, X)
    how = row(report, name).how
    table, _, rest = str(report).partition("\nrefused\n")
    (line,) = [x for x in table.splitlines() if x.startswith(f"  {name}  ")]
    assert line.endswith(f" no ({cell})")
    assert how not in table
    refused = rest.partition("\n\n")[0].splitlines()
    assert [how in text for text in refused].count(True) == 1  # for all that it is
    shown = report._repr_html_()
    assert f"no ({cell})" in shown
    assert shown.index("<h4>transformations") < shown.index("<h4>refused")


def test_without_a_derivative_rule_differentiation_is_refused():
    report = jaxfn.explain(function(forward=lambda ctx, x: jnp.sin(x)), X)
    assert row(report, "jit").works
    assert not row(report, "reverse mode").works
    assert (
        "must implement either the backward or vjp" in row(report, "reverse mode").how
    )
    assert "the backward pass can't be traced" in report.notes[0]


def test_a_second_derivative_is_refused_where_once_differentiable_does():
    f = function(forward=save_nothing, backward=ONCE)
    found = works(jaxfn.explain(f, X))
    assert found == tried(f.apply)
    assert found["reverse mode"]
    assert not found["reverse over reverse"]
    assert not found["forward over reverse"]


def test_a_wrong_rule_is_part_of_the_report():
    f = function(forward=save_nothing, backward=lambda ctx, g: g[:2])
    refused = row(jaxfn.explain(f, X), "reverse mode")
    assert not refused.works
    assert "`F.backward`" in refused.how


def test_integers_have_no_derivative_and_no_residuals():
    report = jaxfn.explain(function(forward=save_nothing), jnp.arange(3))
    assert report.residuals is None
    assert works(report) == {"call": True, "jit": True, "vmap": True}


NUMPY = function(
    "Numpy",
    forward=lambda ctx, x: (
        ctx.save_for_backward(x),
        setattr(ctx, "mask", jnp.asarray(np.asarray(x) > 1)),
        np.sin(np.asarray(x)),
    )[2],
    backward=lambda ctx, g: g * np.cos(np.asarray(ctx.saved_tensors[0])),
)


def test_a_numpy_body_is_run_and_the_way_out_shown():
    report = jaxfn.explain(NUMPY, X)
    assert report.forward_jaxpr is None
    assert "host_function" in report.notes[0]
    found = works(report)
    assert found["call"]
    assert found["reverse mode"]
    assert not found["jit"]
    assert not found["vmap"]
    names = {(x.name, x.source, x.nbytes) for x in report.residuals}
    assert names == {
        ("saved_tensors[0]", "input", 12),
        ("ctx.mask", "attribute", 3),
    }
    assert report.residual_bytes == kept(NUMPY.apply, X)


def test_a_numpy_body_is_not_run_on_a_type():
    report = jaxfn.explain(NUMPY, jax.ShapeDtypeStruct((3,), jnp.float32))
    assert report.residuals is None
    assert not any(works(report).values())


def test_a_host_function_is_traced_and_has_no_plain_derivative():
    sin = jaxfn.host_function(np.sin)
    f = function(forward=lambda ctx, x: sin(x), backward=lambda ctx, g: g)
    report = jaxfn.explain(f, X)
    assert works(report)["jit"]
    assert report.residual_bytes == 0
    assert report.plain_residuals is None
    assert "`sin` runs on the host" in report.notes[0]


# ---- programs


def test_the_jaxprs_are_those_of_jax():
    f = wrong.function("backward")
    report = jaxfn.explain(f, X)
    assert str(report.forward_jaxpr) == str(jax.make_jaxpr(f.apply)(X))
    backward = str(report.backward_jaxpr)
    assert "cos" in backward
    assert "sin" not in backward


LOOPS = {
    "fori_loop": lambda x: jax.lax.fori_loop(0, 30, lambda _, u: u * x, x),
    "scan": lambda x: jax.lax.scan(lambda c, _: (c * x, None), x, length=30)[0],
    "while_loop": lambda x: jax.lax.while_loop(
        lambda u: u.max() < 9, lambda u: 2 * u, x
    ),
    "in a jit": lambda x: jax.jit(LOOPS["scan"])(x),
    "in a branch": lambda x: jax.lax.cond(x[0] > 0, LOOPS["scan"], jnp.sin, x),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_report_says_that_the_body_of_a_loop_counts_once(loop):
    f = function(forward=lambda ctx, x: LOOPS[loop](x), backward=lambda ctx, g: 2 * g)
    text = str(jaxfn.explain(f, jnp.ones(3)))
    forward, backward = [x for x in text.splitlines() if "read and written" in x]
    assert forward.endswith("read and written (the body of a loop counts once)")
    assert backward.endswith("read and written")


def test_the_cost_is_that_of_the_compiled_program():
    f = function(forward=lambda ctx, x: x @ x, backward=lambda ctx, g: g @ g)
    x = jnp.ones((8, 8))
    report = jaxfn.explain(f, x)
    (analysis,) = [jax.jit(f.apply).lower(x).compile().cost_analysis()]
    assert report.forward_cost.flops == analysis["flops"]
    assert report.forward_cost.nbytes == analysis["bytes accessed"]
    assert report.forward_cost.flops >= 2 * 8**3 - 8**2  # products and sums
    assert report.backward_cost.flops == report.forward_cost.flops


# ---- forms


def test_apply_and_the_class_are_explained_alike():
    f = wrong.function("both")
    assert str(jaxfn.explain(f.apply, X)) == str(jaxfn.explain(f, X))


def test_the_text_says_it_all():
    text = str(jaxfn.explain(FUNCTIONS["two arrays"][0], X, 2 * X))
    assert text == repr(jaxfn.explain(FUNCTIONS["two arrays"][0], X, 2 * X))
    for part in (
        "engine\n  jax.custom_vjp",
        "\n  x  array  f32[3]\n",
        "saved_tensors[0]  input  f32[3]  12 bytes\n",
        "forward jaxpr\n  {",
        "backward jaxpr\n  {",
        "plain autodiff",
    ):
        assert part in text
    total = [line.split() for line in text.splitlines() if "total" in line]
    assert total == [["total", "24", "bytes"]]


def test_the_html_holds_the_same_and_escapes_it():
    f = function("Tag", forward=lambda ctx, x, s: x * 2, backward=lambda ctx, g: g)
    shown = jaxfn.explain(f, X, "<b>")._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    for part in ("<h3>Tag</h3>", "jax.custom_vjp", "f32[3]", "<details>"):
        assert part in shown


def test_a_long_static_value_is_shortened():
    f = function(forward=lambda ctx, x, s: x * 2, backward=lambda ctx, g: g)
    text = str(jaxfn.explain(f, X, "a" * 1000))
    assert "aaa..." in text
    assert "a" * 50 not in text


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


def test_the_plot_has_a_bar_of_its_bytes_for_each_residual(pyplot):
    report = jaxfn.explain(FUNCTIONS["two arrays"][0], X, 2 * X)
    axes = report.plot()
    widths = [bar.get_width() for bar in axes.patches]
    expected = [*report.residuals, *report.plain_residuals]
    assert widths == [x.nbytes for x in expected]
    assert [x.get_text() for x in axes.get_yticklabels()] == ["F", "plain autodiff"]
    own = pyplot.subplots()[1]
    assert report.plot(own) is own


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch):
    report = jaxfn.explain(FUNCTIONS["nothing"][0], X)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxfn\[notebooks\]'"):
        report.plot()


def test_a_plot_of_nothing_is_refused():
    report = jaxfn.explain(function(forward=save_nothing), jnp.arange(3))
    with pytest.raises(ValueError, match="`F` has no residuals to plot"):
        report.plot()


@pytest.mark.parametrize("value", [jnp.sin, 3, jaxfn.Function.forward])
def test_what_has_no_rules_is_refused(value):
    with pytest.raises(TypeError, match=r"explain got .*: expected a jaxfn\.Function"):
        jaxfn.explain(value, X)


# ---- over the catalogue


def real_call(case):
    """The arguments that the Function is called with, static ones too."""
    seen = []

    def apply(*args, **kwargs):
        seen.append((args, kwargs))
        return case.function.apply(*args, **kwargs)

    case.wrap(apply)(*case.args())
    ((args, kwargs),) = seen
    return args, kwargs


def is_float(x):
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)


def kept_by(f, leaves):
    """`kept` of a function of many leaves, by the float arrays among them."""
    moving = [i for i, x in enumerate(leaves) if is_float(x)]

    def of_moving(*xs):
        at = list(leaves)
        for i, x in zip(moving, xs, strict=True):
            at[i] = x
        return f(*at)

    return kept(of_moving, *[leaves[i] for i in moving])


@pytest.mark.parametrize(
    "case",
    only([c for c in CASES if not c.collective], lambda c: CASES.index(c) % 5 == 0),
    ids=lambda case: case.name,
)
def test_residual_bytes_of_the_catalogue_are_what_vjp_closes_over(case):
    args, kwargs = real_call(case)
    leaves, tree = jax.tree.flatten((args, kwargs))

    def f(*leaves):
        args, kwargs = tree.unflatten(leaves)
        out = case.function.apply(*args, **kwargs)
        return [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array)]

    report = jaxfn.explain(case.function, *args, **kwargs)
    assert report.residual_bytes == sum(x.nbytes for x in report.residuals)
    assert report.residual_bytes == kept_by(f, leaves)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.collective], ids=lambda case: case.name
)
def test_residuals_under_a_named_axis_are_what_vjp_closes_over(case):
    args = case.args()
    labels = [str(i) for i in range(len(args))]
    found = trace.split(case.call, [struct(x) for x in args], labels).residuals
    assert sum(x.nbytes for x in found) == kept_by(case.call, args)


def test_the_catalogue_has_all_engines_and_styles():
    def has(case, rule):
        return getattr(case.function, rule) is not getattr(jaxfn.Function, rule)

    found = {
        (
            has(case, "backward"),
            has(case, "jvp"),
            case.function.generate_jvp_rule,
            has(case, "setup_context"),
        )
        for case in CASES
    }
    engines = [(1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 1)]
    assert found >= {(*engine, style) for engine in engines for style in (0, 1)}
