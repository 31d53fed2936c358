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
    named_leaves,
    to_array,
    to_target,
)
from plait.errors import ArgumentError, ArgumentTypeError, CheckpointError, GraphTypeError


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
