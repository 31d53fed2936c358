"""Names and descriptions of leaves."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint.leaf_descriptions import (
    check_same_leaves,
    describe,
    from_array,
    is_in_arrays,
    is_same_kind,
    named_leaves,
    show,
    stored_names,
    to_array,
    to_target,
)
from plait.errors import ArgumentError, ArgumentTypeError, CheckpointError, GraphTypeError

VALUES = {
    "float32[2, 3]": np.zeros((2, 3), np.float32),
    "bfloat16[1]": jnp.zeros(1, jnp.bfloat16),
    "int4[2]": jnp.ones(2, jnp.int4),
    "bool[]": jnp.array(True),
    "complex64[0]": jnp.zeros(0, jnp.complex64),
    "float64[]": np.float64(0.1),
    "uint8[]": jnp.uint8(3),
    "a key of threefry2x32": jax.random.key(3),
    "a key of rbg, shape [2]": jax.random.split(jax.random.key(3, impl="rbg")),
    "a Python bool": False,
    "a Python int": -(10**40),
    "a Python float": 0.1,
    "a Python complex": complex(1, -0.1),
    "a Python str": "1\n",
}


@pytest.mark.parametrize("words", VALUES)
def test_a_value_comes_back_from_its_description_and_array(words):
    value = VALUES[words]
    description = describe(value, "w")
    assert show(description) == words
    again = from_array(to_array(value, "w") if is_in_arrays(description) else None, description, value)
    assert type(again) is type(value)
    if hasattr(value, "dtype"):
        assert again.dtype == value.dtype
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value, again = jax.random.key_data(value), jax.random.key_data(again)
        np.testing.assert_array_equal(again, value, strict=True)
    else:
        assert again == value


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, 5e-324], ids=repr)
def test_floats_come_back_exactly(value):
    again = from_array(None, describe(value, "w"), value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize("value", [0.1, 3, np.ones(2, np.float32)], ids=repr)
def test_weak_types_stay_as_they_are(value):
    array = jnp.array(value)
    again = from_array(np.asarray(array), describe(array, "w"), array)
    assert again.weak_type == array.weak_type
    np.testing.assert_array_equal(again, array, strict=True)


@pytest.mark.parametrize(
    "value",
    # The last are not Python's own, whatever they are called.
    [
        object(),
        types.SimpleNamespace(shape=()),
        types.SimpleNamespace(dtype="float32"),
        np.array(["a"]),
        np.zeros(2, "M8[s]"),
        b"1",
        None,
        np.zeros(1, [("x", "f4")]),
    ]
    + [type(f"{kind.__name__}", (kind,), {})() for kind in (int, float, complex, str)],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_what_a_checkpoint_cannot_hold_is_refused_by_name(value):
    with pytest.raises(ArgumentTypeError, match=r"at +model\.w\n"):
        describe(value, "model.w")


@pytest.mark.parametrize(
    "value", [jnp.ones(2, jnp.bfloat16), jax.random.key(0, impl="rbg"), jnp.zeros((0, 2))], ids=str
)
def test_a_shape_is_described_and_read_as_its_value_would_be(value):
    shape = jax.eval_shape(lambda: value)
    assert is_same_kind(describe(value, "w"), describe(shape, "w"), cast=False)
    target, shaped = to_target(value, "leaf"), to_target(shape, "leaf")
    assert (shaped.shape, shaped.dtype) == (target.shape, target.dtype)


EIGHT = jax.sharding.NamedSharding(jax.make_mesh((8,), ("x",)), jax.sharding.PartitionSpec("x"))
ONE = jax.sharding.SingleDeviceSharding(jax.devices()[3])
PLACED = {
    "an array": (jnp.ones((8, 2)), jnp.ones(1).sharding),
    "an array of another device": (jax.device_put(jnp.ones((8, 2)), ONE), ONE),
    "a sharded array": (jax.device_put(jnp.ones((8, 2)), EIGHT), EIGHT),
    "a shape": (jax.ShapeDtypeStruct((8, 2), jnp.float32), None),
    "a sharded shape": (jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=EIGHT), EIGHT),
    "a key": (jax.device_put(jax.random.key(0), ONE), ONE),
}


@pytest.mark.parametrize("case", PLACED)
def test_what_is_read_goes_where_the_value_lies(case):
    value, sharding = PLACED[case]
    target = to_target(value, "leaf")
    assert isinstance(target, jax.ShapeDtypeStruct)
    assert (target.sharding is None) == (sharding is None)
    assert sharding is None or target.sharding.is_equivalent_to(sharding, len(target.shape))
    if isinstance(value, jax.Array) and case != "a key":
        assert to_array(value, "leaf") is value


@pytest.mark.parametrize("case", PLACED)
def test_what_one_of_several_processes_has_for_itself_is_read_onto_its_host(case, monkeypatch):
    """And stored from there; what lies on the devices of all stays there."""
    value, _ = PLACED[case]
    alone = to_target(value, "leaf")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    target = to_target(value, "leaf")
    assert (type(target) is np.ndarray) == (case != "a sharded shape")
    assert (target.shape, target.dtype) == (alone.shape, alone.dtype)
    if isinstance(value, jax.Array):
        stored = to_array(value, "leaf")
        assert (type(stored), stored.shape, stored.dtype) == (np.ndarray, target.shape, target.dtype)


@pytest.mark.parametrize("value", [np.ones((2, 3), np.int8), np.float64(3), np.ones((0, 2))], ids=repr)
def test_numpy_is_read_into_numpy(value):
    target = to_target(value, "leaf")
    assert (type(target), target.shape, target.dtype) == (np.ndarray, value.shape, value.dtype)
    assert type(to_array(value, "leaf")) is np.ndarray


def test_a_sharding_that_cannot_cut_a_shape_names_the_leaf():
    shape = jax.ShapeDtypeStruct((7, 2), jnp.float32, sharding=EIGHT)
    with pytest.raises(ArgumentError, match=r"at +model\.w of the checkpoint\n"):
        to_target(shape, "model.w")


def test_a_shape_without_values_cannot_be_stored():
    with pytest.raises(ArgumentTypeError, match=r"at +model\.w\n(?s:.*)before saving"):
        to_array(jax.ShapeDtypeStruct((2,), jnp.float32), "model.w")


def test_a_tracer_is_refused():
    with pytest.raises(ArgumentTypeError, match="outside"):
        jax.jit(lambda x: describe(x, "w") and x)(1.0)


def test_names_are_paths_as_errors_print_them():
    graph = {"model": plait.Dict(layers=plait.List([plait.Param(jnp.ones(1))])), 3: jnp.zeros(1), "3": jnp.zeros(2)}
    graph["cache"] = plait.Variable({"key": (jnp.ones(1), 2.0)})
    values, _, _ = named_leaves(graph)
    assert set(values) == {"model.layers[0]", "[3]", "['3']", "cache.key[0]", "cache.key[1]"}


def test_a_single_variable_has_a_name_too():
    values, _, state_of = named_leaves(plait.Param(1.0))
    (name,) = values
    assert state_of({name: 2.0}).get_raw_value() == 2.0


def test_a_shared_variable_is_one_leaf():
    shared = plait.Param(jnp.ones(2))
    assert set(named_leaves({"a": shared, "b": shared})[0]) == {"a"}


@pytest.mark.parametrize(
    "container", [{"model": plait.Param(1.0), "epoch": 3}, [plait.Param(1.0), {"name": "x"}]], ids=["dict", "list"]
)
def test_a_plain_value_beside_modules_is_refused_instead_of_lost(container):
    with pytest.raises(ArgumentTypeError, match=r"at +(epoch|\[1\]\.name)\n"):
        named_leaves(container)


@pytest.mark.parametrize("value", [3, "model", plait.Param], ids=str)
def test_what_is_no_graph_is_told_where_it_is_passed(value):
    """In the words of the function that was called, and before any file is touched."""
    with pytest.raises(GraphTypeError, match=r"^a checkpoint takes a module, a variable or a container of them\n"):
        named_leaves(value)


def test_every_leaf_that_differs_is_named():
    own = {name: describe(VALUES[name], name) for name in ("float32[2, 3]", "bool[]", "a Python int")}
    stored = {**own, "extra": describe(1.0, ""), "bool[]": describe(jnp.array(1), "")}
    del stored["a Python int"]
    with pytest.raises(CheckpointError) as caught:
        check_same_leaves(stored, own, at="run/1")
    assert caught.value.parts["at"] == "a Python int, bool[], extra (in run/1)"
    assert [*map(str.strip, caught.value.parts["found"].splitlines())] == [
        "a Python int: not in the checkpoint",
        "bool[]: int32[]",
        "extra: a Python float",
    ]
    assert [*map(str.strip, caught.value.parts["expected"].splitlines())] == [
        "a Python int: a Python int",
        "bool[]: bool[]",
        "extra: not in the model",
    ]


@pytest.mark.parametrize("cast", [False, True])
def test_another_dtype_of_floats_is_taken_only_when_asked(cast):
    own, stored = ({"w": describe(jnp.ones(2, dtype), "w")} for dtype in (jnp.float32, jnp.bfloat16))
    if cast:
        check_same_leaves(stored, own, at="run/1", cast=True)
        return
    with pytest.raises(CheckpointError, match=r"found +w: bfloat16\[2\]\n +expected +w: float32\[2\]\n +do.*cast=True"):
        check_same_leaves(stored, own, at="run/1")


def test_a_leaf_is_found_under_the_name_that_it_had_before():
    """A key that is a path was text, also with its last entry for itself, whatever stands below it."""
    key = ("layers", 0, "kernel")
    node = {"scales": {key: {"a": {"b": jnp.ones(1)}}, "plain": jnp.ones(2)}}
    name, plain = "scales[('layers', 0, 'kernel')].a.b", "scales.plain"
    assert set(named_leaves(node)[0]) == {name, plain}
    own = {name: {}, plain: {}}
    for older in ("scales['layers[0].kernel'].a.b", "scales['layers[0]'].kernel.a.b"):
        assert stored_names(node, own, {older: {}, plain: {}}) == {name: older, plain: plain}
    assert stored_names(node, own, {"scales.kernel.a.b": {}}) == {}
    assert stored_names(node, own, own) == {name: name, plain: plain}


@pytest.mark.parametrize(("count", "more"), [(7, None), (8, None), (9, "… and 1 more"), (20, "… and 12 more")])
def test_a_long_list_is_shortened(count, more):
    """To eight leaves, in each part of the error."""
    own = {f"w{i:02d}": describe(1.0, "") for i in range(count)}
    with pytest.raises(CheckpointError, match=f"{count} of {count} leaves differ") as caught:
        check_same_leaves({}, own, at="run/1")
    shown = [f"w{i:02d}" for i in range(min(count, 8))]
    rest = [more] if more else []
    parts = caught.value.parts
    assert parts["at"] == ", ".join([*shown, *rest]) + " (in run/1)"
    for part, words in (("found", "not in the checkpoint"), ("expected", "a Python float")):
        assert [*map(str.strip, parts[part].splitlines())] == [*(f"{name}: {words}" for name in shown), *rest]
