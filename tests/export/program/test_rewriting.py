"""Operations that a converter lacks, in others that it has: the same numbers, and nothing else changes. (E32)"""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from plait.errors import ExportError
from plait.export import InputSpec, save_onnx
from plait.export.program.lowering import lowered, traced_program
from plait.export.program.program import program_of
from plait.export.program.rewriting import FOR_LITERT, FOR_ONE_DEVICE, FOR_ONNX, rewritten
from tests.sampling import slow_but

OUTSIDE = np.array([[-7, 2, 0], [9, -1, 4], [1, 3, -4]], np.int32)  # places in an axis of 4
X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
WITH_NAN = X.copy()
WITH_NAN[1, 2, 3] = WITH_NAN[1, 2, 1] = np.nan
WORDS = np.random.default_rng(1).integers(-9, 9, (3, 4, 5)).astype(np.int32)
KERNEL = np.random.default_rng(2).normal(size=(3, 5, 2)).astype(np.float32)
MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
WHOLE, SPLIT = NamedSharding(MESH, P()), NamedSharding(MESH, P(None, "a"))


def transposed(padding):
    return lambda x: lax.conv_transpose(x, KERNEL, (2,), padding)


def updated(n, axis=0, shift=0):
    """Slices of zeros written into each example at its own place, as into a cache; some would not lie inside of it."""

    def update(x, place):
        zeros = jnp.zeros([n if each == axis else size for each, size in enumerate(x.shape)])
        return lax.dynamic_update_slice_in_dim(x, zeros, place + shift, axis)

    return lambda x: jax.vmap(update)(x, (x[:, 3, :2] > 0).sum(-1, dtype=jnp.int32))  # 0, 1, 2


# name: (rules, what is not there afterwards, function, input)
CASES = {
    "stack": (FOR_ONNX, "stack", lambda x: jnp.stack([x, x + 1], 1), X),
    "a choice of truth values": (FOR_ONNX, "select_n", lambda x: jnp.where(x > 0, x < 1, x > -1), X),
    "pad": (FOR_ONNX, "pad", lambda x: jnp.pad(x, ((0, 0), (2, 1), (0, 3)), constant_values=7.0), X),
    "remainder": (FOR_ONNX, "rem", lambda x: lax.rem(x, jnp.int32(4) + 0 * x), WORDS),
    "remainder of Python": (FOR_ONNX, "rem", lambda x: x % jnp.int32(4), WORDS),
    "remainder with a sign": (FOR_LITERT, "", lambda x: lax.rem(x, jnp.int32(-4) + 0 * x), WORDS),
    "remainder of floats": (FOR_LITERT, "", lambda x: lax.rem(x, 0.3 + 0 * x), X),
    "a call": (FOR_ONNX, "jit", lambda x: jax.jit(lambda x: jnp.tanh(jax.jit(jnp.sin)(x)))(x) + 1, X),
    "a rule for gradients": (FOR_ONNX, "custom_jvp_call", jax.nn.relu, X),
    "transposed convolution": (FOR_ONNX, "conv with lhs_dilation", transposed("SAME"), X),
    "transposed convolution, cut": (FOR_LITERT, "conv with lhs_dilation", transposed("VALID"), X),
    "first of the largest": (FOR_LITERT, "argmax", lambda x: x.argmax(1), WORDS),
    "first of the smallest": (FOR_LITERT, "argmin", lambda x: x.argmin(-1), X),
    "not a number": (FOR_LITERT, "argmax", lambda x: x.argmax(-1), WITH_NAN),
    "the largest three": (FOR_LITERT, "top_k", lambda x: lax.top_k(x, 3)[1], X),
    "the largest of a vector, twice": (FOR_LITERT, "top_k", lambda x: lax.top_k(-lax.top_k(x[0, 0], 4)[0], 2)[0], X),
    "the largest of many equals": (FOR_LITERT, "top_k", lambda x: lax.top_k(x // 4, 5)[1], WORDS),
    "the largest with infinities": (FOR_LITERT, "top_k", lambda x: lax.top_k(jnp.where(x > 0, x, -jnp.inf), 5)[1], X),
    "the largest, and not a number": (FOR_LITERT, "top_k", lambda x: lax.top_k(x, 3)[0], WITH_NAN),
    "a slice at its own place": (FOR_ONNX, "scatter", updated(1), X),
    "two slices in a middle axis": (FOR_ONNX, "scatter", updated(2, axis=1), X),
    "a slice past the end": (FOR_ONNX, "scatter", updated(3, shift=9), X),
    "a slice before the beginning": (FOR_ONNX, "scatter", updated(3, shift=-9), X),
    "one row": (FOR_LITERT, "gather", lambda x: x[:, 2], X),
    "every other row": (FOR_LITERT, "gather", lambda x: x[..., 0::2], X),
    "rows by number": (FOR_LITERT, "gather", lambda x: x[:, np.array([3, 0, 0])], X),
    "some columns": (FOR_LITERT, "gather", lambda x: x[..., 1:3], X),
    "a corner": (FOR_LITERT, "gather", lambda x: x[:, 1, 2:], X),
    "an entry anywhere": (FOR_ONNX, "", lambda x: jnp.arange(4.0)[x[:, 0]], OUTSIDE),
    "a row anywhere": (FOR_ONNX, "", lambda x: x[x[0, 0]] + x[x[0, 1] * 9], OUTSIDE),
    "entries along an axis": (FOR_ONNX, "", lambda x: jnp.take_along_axis(x, x, 1), OUTSIDE),
    "rows, or a number": (FOR_ONNX, "", lambda x: jnp.zeros((4, 2)).at[x].get(mode="fill", fill_value=7), OUTSIDE),
    "words, or none": (FOR_ONNX, "", lambda x: jnp.take(jnp.arange(4, dtype=jnp.uint8), x), OUTSIDE),
    "windows": (FOR_ONNX, "", lambda x: jax.vmap(lambda i: lax.dynamic_slice(X[0], (i, i), (2, 3)))(x[:, 0]), OUTSIDE),
    "a slice of two axes": (FOR_ONNX, "", lambda x: lax.dynamic_slice(X[0], (x[0, 0], 9 + x[0, 0]), (2, 3)), OUTSIDE),
    "an update at the edge": (FOR_ONNX, "", lambda x: lax.dynamic_update_slice(X[0], X[0, :2], (x[0, 1], 3)), OUTSIDE),
    "a sum at the edges": (FOR_ONNX, "", lambda x: jnp.zeros(4).at[x[:, 0]].add(1.0, mode="clip"), OUTSIDE),
    "a layout": (FOR_ONE_DEVICE, "sharding_constraint", lambda x: lax.with_sharding_constraint(x, SPLIT) + 1, X),
    "triangle": (FOR_LITERT, "", lambda x: jnp.tril(jnp.ones((x.shape[0],) * 2)), X),
}


def free(array):
    names = ["batch", *map(str, array.shape[1:])]
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(names)), array.dtype)


def operations(jaxpr):
    """The names of all operations, those in loops, branches and calls too."""
    inner = [operations(each) for eqn in jaxpr.eqns for each in jax.extend.core.jaxprs_in_params(eqn.params)]
    dilated = {"conv with lhs_dilation" for eqn in jaxpr.eqns if set(eqn.params.get("lhs_dilation", (1,))) != {1}}
    return {eqn.primitive.name for eqn in jaxpr.eqns}.union(dilated, *inner)


@pytest.mark.sampled
@pytest.mark.parametrize("name", slow_but([*CASES][::2], CASES))
def test_the_numbers_are_the_same(name):
    rules, _, function, x = CASES[name]
    expected, found = function(jnp.asarray(x)), rewritten(function, rules)(jnp.asarray(x))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(-1, 0, 0), (0, -2, 0), (1, -1, 0), (-1, 2, 0), (1, 2, 1), (0, 0, 3)], ids=str)
def test_padding_that_cuts_or_spreads_stays(sizes):
    padded = lambda x: lax.pad(x, jnp.float32(7), ((0, 1, 0), sizes, (0, 0, 0)))
    np.testing.assert_array_equal(rewritten(padded, FOR_ONNX)(X), padded(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_with_a_free_batch_size_too(name):
    """Ask 17: the operation is gone, and one program takes every size."""
    rules, gone, function, x = CASES[name]
    replaced = rewritten(function, rules)
    if gone:
        assert gone in operations(jax.make_jaxpr(function)(free(x)).jaxpr)
        assert gone not in operations(jax.make_jaxpr(replaced)(free(x)).jaxpr)
    program = jax.export.export(jax.jit(replaced))(free(x))
    for size in (1, 3):
        np.testing.assert_allclose(program.call(x[:size]), function(jnp.asarray(x[:size])), rtol=1e-5, atol=1e-6)


def test_the_first_of_a_free_length_is_a_slice_and_others_are_not_known_to_be_there():
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, length, 5"), jnp.float32)
    first = rewritten(lambda x: x[:, 0], FOR_LITERT)
    assert "gather" not in operations(jax.make_jaxpr(first)(shape).jaxpr)
    np.testing.assert_array_equal(jax.export.export(jax.jit(first))(shape).call(X), X[:, 0])
    second = rewritten(lambda x: x[:, 1], FOR_LITERT)
    assert "gather" in operations(jax.make_jaxpr(second)(shape).jaxpr)


def test_what_has_no_equal_is_refused_by_name():
    scatter = rewritten(lambda x: x.at[jnp.array([0, 0])].add(1.0), FOR_LITERT)
    with pytest.raises(ExportError, match="the operation scatter-add"):
        jax.make_jaxpr(scatter)(X)


INSIDE = [name for name, case in CASES.items() if case[3] is OUTSIDE]


@pytest.mark.slow
@pytest.mark.parametrize("name", INSIDE)
def test_places_outside_of_an_array_are_those_of_jax_in_a_file(name, tmp_path):
    """E44"""
    runtime = pytest.importorskip("onnxruntime")
    _, _, function, x = CASES[name]
    save_onnx(lambda _, x: function(x), {}, tmp_path / "model.onnx", input_spec=InputSpec(x.shape, "int32"))
    (found,) = runtime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(found, function(jnp.asarray(x)))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits_of_integers_are_not_reduced_in_an_onnx_file(name):
    """E44"""
    reduced = rewritten(lambda x: getattr(jnp, name).reduce(x, axis=0), FOR_ONNX)
    with pytest.raises(ExportError, match=r"reduce_(and|or|xor) of int32"):
        reduced(OUTSIDE)
    assert not reduced(OUTSIDE > 9).any()


@pytest.mark.parametrize(
    "scatter",
    [
        lambda x: x.at[:, jnp.array([0, 2])].set(1.0),
        lambda x: jax.vmap(lambda x, i: lax.dynamic_update_slice(x, jnp.ones((2, 2)), (i, i)))(x, jnp.arange(3)),
        lambda x: x.at[jnp.array([0, 0])].add(1.0),
    ],
)
def test_other_scatters_stay(scatter):
    found = operations(jax.make_jaxpr(rewritten(scatter, FOR_ONNX))(X).jaxpr)
    assert found & {"scatter", "scatter-add"}


SEARCHES = {  # of the largest values: sizes, and whether they stay
    "along the last axis": (lambda x: lax.top_k(x, 64), "4, 70", False),
    "along another axis": (lambda x: lax.top_k(x, 2, axis=0), "4, 8", True),
    "of too many values": (lambda x: lax.top_k(x, 65), "4, 70", True),
    "of a free size": (lambda x: lax.top_k(x, 2), "4, n + 2", True),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_of_the_largest_stays_where_no_fixed_number_of_turns_along_the_last_axis_finds_them(name):
    top, sizes, stays = SEARCHES[name]
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(sizes), jnp.float32)
    assert ("top_k" in operations(jax.make_jaxpr(rewritten(top, FOR_LITERT))(x).jaxpr)) == stays


def test_in_loops_branches_and_calls():
    def body(x, _):
        x = lax.cond(
            x.sum() > 0, lambda x: x[..., ::-1], lambda x: jax.jit(lambda x: x + x.argmax(-1, keepdims=True))(x), x
        )
        return x, x.argmax(-1)

    function = lambda x: lax.scan(body, x, None, length=3)
    replaced = rewritten(function, FOR_LITERT)
    assert "argmax" in operations(jax.make_jaxpr(function)(WORDS).jaxpr)
    assert "argmax" not in operations(jax.make_jaxpr(replaced)(WORDS).jaxpr)
    jax.tree.map(np.testing.assert_array_equal, replaced(WORDS), function(WORDS))


def test_what_no_rule_names_keeps_its_place_in_the_source():
    jaxpr = jax.make_jaxpr(rewritten(lambda x: jnp.stack([x, jnp.sin(x)]), FOR_ONNX))(X).jaxpr
    places = {eqn.primitive.name: str(eqn.source_info.traceback) for eqn in jaxpr.eqns}
    assert "test_rewriting.py" in places["sin"]
    assert "test_rewriting.py" in places["concatenate"]


def test_trees_come_and_go():
    replaced = rewritten(lambda tree, y: {"a": tree["x"].argmax(), "b": (y, None)}, FOR_LITERT)
    found = replaced({"x": jnp.asarray([1.0, 3.0])}, jnp.ones(2))
    assert int(found["a"]) == 1
    np.testing.assert_array_equal(found["b"][0], np.ones(2))


def scaled_in_a_loop(scale, x):
    """Laid out by a jitted function, by constraints inside of it, in a loop and in a derivative."""

    @jax.jit
    def body(x, _):
        return jax.jit(jnp.sin, in_shardings=WHOLE, out_shardings=SPLIT)(x * scale), x.sum()

    def loss(x):
        x, sums = lax.scan(body, lax.with_sharding_constraint(x, SPLIT), None, length=2)
        return (x**2).sum() + sums.sum()

    return jax.grad(loss)(x)


@pytest.mark.slow
def test_a_function_that_lays_its_arrays_out_is_a_program_for_one_device():
    function = jax.jit(scaled_in_a_loop, in_shardings=(WHOLE, WHOLE), out_shardings=SPLIT)
    scale = jax.ShapeDtypeStruct((), jnp.float32)
    assert jax.export.export(function)(scale, free(X)).nr_devices == 4
    program = lowered(function, scale, free(X), platforms=["cpu"])
    assert program.nr_devices == 1
    assert "shard" not in program.mlir_module()
    for size in (1, 3):
        expected = scaled_in_a_loop(2.0, jnp.asarray(X[:size]))
        np.testing.assert_allclose(program.call(jnp.float32(2), X[:size]), expected, rtol=1e-5, atol=1e-6)


def test_a_mesh_in_force_is_left_out_too():
    with jax.set_mesh(MESH):
        program = lowered(jax.jit(lambda x: lax.with_sharding_constraint(x, P(None, "a")) + 1), free(X))
    assert program.nr_devices == 1
    np.testing.assert_array_equal(program.call(X), X + 1)


EXPLICIT = Mesh(MESH.devices, ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
SEVERAL_DEVICES = {
    "shard_map": lambda x: jax.shard_map(lambda x: lax.psum(x, "a"), in_specs=P(None, "a"), out_specs=P())(x),
    "explicit axes": lambda x: jax.reshard(x, P(None, "a")) + 1,
}


@pytest.mark.parametrize(("name", "mesh"), [("shard_map", MESH), ("explicit axes", EXPLICIT)])
def test_a_function_that_computes_with_several_devices_is_refused(name, mesh):
    expected = r"(?s)computes on several devices.*found +4 devices.*remove shard_map"
    with jax.set_mesh(mesh), pytest.raises(ExportError, match=expected):
        lowered(SEVERAL_DEVICES[name], jnp.asarray(X), platforms=["cpu"])


def test_what_a_call_has_inside_keeps_its_layers():
    """E32: the names of the layers that made a call come before those of the layers in it."""
    inner = jax.jit(jax.named_scope("inner")(lambda x: jnp.sin(x)))
    closed = jax.make_jaxpr(rewritten(jax.named_scope("outer")(lambda x: inner(inner(x)) + 1), FOR_ONNX))(X)
    found = [(eqn.primitive.name, str(eqn.source_info.name_stack)) for eqn in closed.eqns]
    assert found == [("sin", "outer/inner"), ("sin", "outer/inner"), ("add", "outer")]


def test_nothing_that_is_recomputed_is_left_in_a_program():
    """E32: nor in a loop, or in another one; what is in it is rewritten, too."""
    again = jax.checkpoint(lambda x: jax.checkpoint(lambda x: jnp.stack([x, x]).sum(0))(x) * 2)
    looped = lambda x: lax.scan(lambda x, _: (again(x), None), x, length=2)[0]
    program, _ = traced_program(program_of(({}, lambda _, x: looped(x)), InputSpec(X.shape, name="x")))
    for function in (lambda x: program.call({}, {"x": x})["y"], rewritten(looped, FOR_LITERT)):
        text = str(jax.make_jaxpr(function)(X))
        assert "remat" not in text
        assert "checkpoint" not in text
        np.testing.assert_allclose(function(X), looped(X), rtol=1e-6)
