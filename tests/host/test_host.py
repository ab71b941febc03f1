"""host_function: NumPy bodies under every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxfn
from tests.build import function, nothing

X = jnp.float32([0.5, 1.0, 2.0])
LIKE = lambda x: x  # noqa: E731  (a result of the argument's shape)


def cube(result=None, **options):
    """x**3, forward and backward computed by NumPy; twice differentiable."""

    def value(x):
        return x**3

    def slope(x):
        assert isinstance(x, np.ndarray)
        return 3 * x**2

    host, host_slope = (
        jaxfn.host_function(f, result, **options) for f in (value, slope)
    )
    slope_fn = function(
        "Slope",
        forward=lambda ctx, x: (ctx.save_for_backward(x), host_slope(x))[1],
        backward=lambda ctx, g: 6 * ctx.saved_tensors[0] * g,
    )
    return function(
        "Cube",
        forward=lambda ctx, x: (ctx.save_for_backward(x), host(x))[1],
        backward=lambda ctx, g: slope_fn.apply(*ctx.saved_tensors) * g,
    ).apply


def plain(x):
    return x**3


def scanned(f):
    return lambda x: jax.lax.scan(lambda c, y: (c + f(y), f(y)), 0.0, x)[1]


PROGRAMS = {
    "call": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jit of grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
    "scan": scanned,
    "grad of scan": lambda f: jax.jit(jax.grad(lambda x: scanned(f)(x).sum())),
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum()),
    "second": lambda f: jax.vmap(jax.grad(jax.grad(f))),
    "jit of second": lambda f: jax.jit(jax.vmap(jax.grad(jax.grad(f)))),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("result", [None, LIKE], ids=["found", "given"])
def test_a_numpy_body_gives_what_jax_would_under_every_transformation(program, result):
    transform = PROGRAMS[program]
    found, expected = transform(cube(result))(X), transform(plain)(X)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # NumPy's power


DEVICES = {
    "jit": lambda f, mesh: jax.jit(f, in_shardings=NamedSharding(mesh, P("d"))),
    "shard_map": lambda f, mesh: jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    ),
}


@pytest.mark.parametrize("program", DEVICES)
def test_a_numpy_body_works_on_many_devices(program):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    x = jnp.arange(1.0, 17.0)
    gradient = DEVICES[program](jax.grad(lambda x: cube()(x).sum()), mesh)
    np.testing.assert_allclose(gradient(x), 3 * x**2, rtol=1e-6)  # NumPy's power


def test_a_scipy_body_needs_no_result():
    f = jaxfn.host_function(scipy.special.erf)
    np.testing.assert_allclose(jax.jit(f)(X), jax.scipy.special.erf(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("sequential", [(3,)] * 4),
        ("sequential_unrolled", [(3,)] * 4),
        ("expand_dims", [(4, 3)]),
        ("broadcast_all", [(4, 3)]),
    ],
)
def test_vmap_calls_the_body_as_its_method_says(method, calls):
    seen = []

    def body(x, y):
        seen.append((x.shape, y.shape))
        return x + y

    f = jaxfn.host_function(body, lambda x, y: x, vmap_method=method)
    x = jnp.arange(12.0).reshape(4, 3)
    found = jax.jit(jax.vmap(f, (0, None)))(x, X)
    np.testing.assert_array_equal(found, x + X)
    assert [shape for shape, _ in seen] == calls
    other = {"expand_dims": (1, 3), "broadcast_all": (4, 3)}.get(method, (3,))
    assert {shape for _, shape in seen} == {other}


def test_nested_vmap_batches_the_result_twice():
    f = jaxfn.host_function(np.add, lambda x, y: x, vmap_method="expand_dims")
    outer = jax.vmap(jax.vmap(f, (None, 0)), (0, None))
    x, y = jnp.arange(2.0), jnp.arange(3.0)
    np.testing.assert_array_equal(jax.jit(outer)(x, y), x[:, None] + y)


def test_arguments_and_results_may_be_pytrees_and_static_values():
    def body(pair, name, *, scale):
        assert name == "name"
        return {"sum": pair["a"] + pair["b"], "scaled": [scale * pair["a"]]}

    f = jaxfn.host_function(body)
    pair = {"a": X, "b": jnp.int32(2)}
    eager = f(pair, "name", scale=3)
    compiled = jax.jit(lambda pair: f(pair, "name", scale=3))(pair)
    assert jax.tree.structure(eager) == jax.tree.structure(compiled)
    for found in (eager, compiled):
        np.testing.assert_array_equal(found["sum"], X + 2)
        np.testing.assert_array_equal(found["scaled"][0], 3 * X)
        assert found["scaled"][0].dtype == jnp.float32


def recorder():
    """The identity, and the values that it has seen."""
    seen = []

    def body(x):
        seen.append(x.tolist())
        return x

    return body, seen


def test_without_a_tracer_the_body_is_called_at_once_and_once():
    body, seen = recorder()
    jaxfn.host_function(body)(X)
    assert seen == [X.tolist()]


def test_without_a_result_tracing_calls_the_body_on_zeros():
    body, seen = recorder()
    compiled = jax.jit(jaxfn.host_function(body)).lower(X).compile()
    assert seen == [[0, 0, 0]]
    compiled(X).block_until_ready()
    assert seen == [[0, 0, 0], X.tolist()]


def test_what_is_known_while_jax_traces_is_no_zero():
    """`np.repeat` of no repeats is empty, and a filter of zeros none."""
    counts = np.array([1, 2, 1])
    f = jaxfn.host_function(np.repeat)
    found = jax.jit(lambda x: f(x, counts))(X)
    assert found.tolist() == np.repeat(np.asarray(X), counts).tolist()


def test_with_a_result_tracing_does_not_call_the_body():
    body, seen = recorder()
    jax.jit(jaxfn.host_function(body, LIKE)).lower(X)
    assert seen == []


def test_a_result_function_gets_shapes_and_static_values():
    seen = []

    def result(x, n):
        seen.append((x, n))
        return jax.ShapeDtypeStruct((n,), x.dtype)

    f = jaxfn.host_function(lambda x, n: np.full(n, x.sum()), result)
    found = jax.jit(lambda x: f(x, 2))(X)
    assert found.tolist() == [3.5, 3.5]
    assert seen == [(jax.ShapeDtypeStruct((3,), jnp.float32), 2)]


SCALAR = lambda x: jax.ShapeDtypeStruct((), x.dtype)  # noqa: E731
WITH_DEFAULTS = {
    "sin": (np.sin, LIKE),
    "cumsum": (np.cumsum, LIKE),
    "sum": (np.sum, SCALAR),
    "norm": (np.linalg.norm, SCALAR),  # keepdims=False becomes an array
    "of numbers": (lambda x, n=2, *, m=3.0: n * m * x, LIKE),
    "a default that result takes": (lambda x, n=2: n * x, lambda x, n: x),
    "another default": (lambda x, n=None: 2 * x, lambda x, like=X: like),
    "any number": (lambda x, n=2: n * x, lambda *args: args[0]),
    "a ufunc of SciPy": (scipy.special.expit, LIKE),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("body", WITH_DEFAULTS)
def test_defaults_that_a_decorator_fills_in_are_not_for_result(body, jit):
    fn, result = WITH_DEFAULTS[body]
    host = jaxfn.host_function(fn, result)
    decorated, forward = jaxfn.custom_function(host), jaxfn.custom_function(host)
    decorated.defvjp(lambda *args: (host(*args), args), lambda args, g: args)
    forward.defjvp(lambda args, ts: (host(*args), host(*args)))
    as_class = function(forward=staticmethod(host), setup_context=nothing)
    given = (X, 2) if body == "a default that result takes" else (X,)
    for f in (host, decorated, forward, as_class.apply):
        got = jax.jit(lambda x, f=f: f(x, *given[1:]))(X) if jit else f(*given)
        np.testing.assert_allclose(got, fn(X), rtol=1e-6)


def test_an_argument_that_result_does_not_take_is_an_error():
    host = jaxfn.host_function(lambda x, y: x * y, LIKE)
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were"):
        jax.jit(host)(X, X)


def test_float64_of_numpy_becomes_float32_as_in_jax():
    f = jaxfn.host_function(lambda x: np.float64(x.sum()))
    g = jaxfn.host_function(
        lambda x: np.float64(x.sum()), jax.ShapeDtypeStruct((), np.float64)
    )
    dtypes = {h(X).dtype for h in (f, g, jax.jit(f), jax.jit(g))}
    assert dtypes == {jnp.dtype(jnp.float32)}


def test_bfloat16_goes_to_the_host_and_back():
    x = X.astype(jnp.bfloat16)
    f = jaxfn.host_function(lambda x: x * x)
    found = jax.jit(f)(x)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, f(x))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_body_can_not_write_to_its_argument(transform):
    def body(x):
        x[0] = 0
        return x

    error = (ValueError, jax.errors.JaxRuntimeError)
    x = np.ones(3, np.float32)
    with pytest.raises(error, match="read-only"):
        np.asarray(transform(jaxfn.host_function(body, LIKE))(x))
    assert x.tolist() == [1, 1, 1]


def test_a_later_write_by_the_body_does_not_change_a_result():
    kept = np.zeros(3, np.float32)

    def body(x):
        kept[:] = x
        return kept

    f = jaxfn.host_function(body)
    first = f(X)
    f(X + 1)
    np.testing.assert_array_equal(first, X)


def test_an_integer_result_has_no_derivative_and_is_no_obstacle():
    order = jaxfn.host_function(np.argsort)
    found = jax.jit(jax.grad(lambda x: x[order(x)[0]]))(X)
    assert found.tolist() == [1, 0, 0]


# ---- refusals


def test_a_derivative_without_a_function_around_is_refused():
    f = jaxfn.host_function(np.sin)
    with pytest.raises(NotImplementedError, match=r"`sin` runs on the host.*backward"):
        jax.grad(f)(jnp.float32(1))


def test_a_body_that_fails_on_zeros_needs_a_result():
    f = jaxfn.host_function(np.linalg.inv)
    x = jnp.eye(2)
    with pytest.raises(RuntimeError, match=r"`inv` raised .*LinAlgError.*f32\[2,2\]"):
        jax.jit(f)(x)
    given = jaxfn.host_function(np.linalg.inv, LIKE)
    np.testing.assert_array_equal(jax.jit(given)(x), x)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("body", "result", "kind", "words"),
    [
        (lambda x: x[x > 1], LIKE, ValueError, r"expected \(3,\), got \(1,\)"),
        (lambda x: (x, x), LIKE, TypeError, "another structure"),
        (lambda x: 1j * x, LIKE, TypeError, "returned complex64.*expected float32"),
        (
            lambda x: x,
            jax.ShapeDtypeStruct((3,), np.int32),
            TypeError,
            "returned float32.*expected int32",
        ),
        (lambda x: "text", LIKE, TypeError, "returned str"),
    ],
    ids=["shape", "structure", "complex", "float", "text"],
)
def test_a_body_that_returns_something_else_is_refused(
    body, result, kind, words, compiled
):
    f = jaxfn.host_function(body, result)
    if compiled:
        f, kind = jax.jit(f), jax.errors.JaxRuntimeError
    with pytest.raises(kind, match=f"(?s){words}"):
        np.asarray(f(X))


def test_a_shape_that_depends_on_values_is_refused_without_a_result_too():
    f = jax.jit(jaxfn.host_function(lambda x: x[x < 1]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="not on their values"):
        np.asarray(f(X))
    f = jax.jit(jaxfn.host_function(lambda x: x[x > 1]))  # XLA would drop the call
    with pytest.raises(ValueError, match="returned an empty array.*on zeros"):
        f(X)


def test_keys_are_refused():
    f = jaxfn.host_function(np.asarray)
    with pytest.raises(TypeError, match="PRNG key.*key_data"):
        f(jax.random.key(0))


def test_a_result_without_shapes_is_refused():
    f = jaxfn.host_function(np.sin, [1.0])
    with pytest.raises(TypeError, match=r"result of `sin`.*got 1\.0"):
        f(X)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="expected a function, got float"):
        jaxfn.host_function(1.0)  # type: ignore[arg-type]


def test_an_unknown_vmap_method_is_refused():
    with pytest.raises(ValueError, match="among sequential.*got 'fast'"):
        jaxfn.host_function(np.sin, vmap_method="fast")  # type: ignore[arg-type]


# ---- the way out, shown where NumPy meets a tracer


def body(*args):
    return np.asarray(args[-1])


def fine(*args):
    return args[-1]


MEETINGS = {
    "forward": ({"forward": body}, lambda f: jax.jit(f)),
    "forward, separate": (
        {"forward": body, "setup_context": nothing},
        lambda f: jax.jit(f),
    ),
    "setup_context": (
        {"forward": fine, "setup_context": lambda ctx, i, o: np.sin(o)},
        lambda f: jax.jit(f),
    ),
    "backward": ({"forward": fine, "backward": body}, lambda f: jax.jit(jax.grad(f))),
    "vjp": ({"forward": fine, "vjp": body}, lambda f: jax.jit(jax.grad(f))),
    "backward, transposed": (
        {"forward": fine, "backward": body, "generate_jvp_rule": True},
        lambda f: jax.jit(jax.grad(f)),
    ),
    "jvp": ({"forward": fine, "jvp": body}, lambda f: jax.jacfwd(f)),
    "vmap": (
        {"forward": fine, "setup_context": nothing}
        | {"vmap": lambda i, d, x: (body(x), 0)},
        lambda f: jax.jit(lambda x: jax.vmap(f)(jnp.stack([x, x]))),
    ),
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_numpy_on_a_tracer_names_the_rule_and_the_way_out_once(meeting):
    rules, program = MEETINGS[meeting]
    f = function("Meets", **rules)
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        program(f.apply)(jnp.float32(1))
    (note,) = [x for x in caught.value.__notes__ if "host_function" in x]
    rule = "backward" if meeting == "vjp" else meeting.split(",")[0]
    assert f"`Meets.{rule}` gave a traced array to NumPy" in note


def test_numpy_on_a_tracer_outside_of_rules_gets_no_note():
    f = function(forward=fine, backward=fine)
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        jax.jit(lambda x: np.sin(f.apply(x)))(X)
    assert "host_function" not in "".join(getattr(caught.value, "__notes__", ()))
