"""Save and restore: what was saved comes back exactly, or nothing changes."""

import errno
import functools
import gc
import shutil
import types
from pathlib import Path

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait import checkpoint
from plait.checkpoint import layout, orbax, plain
from plait.errors import ArgumentError, ArgumentTypeError, CheckpointError, LostUpdateWarning

DATA = Path(__file__).parents[1] / "data"


class Everything(plait.Module):
    """A module with one of each kind of leaf, all values made from ``seed``."""

    def __init__(self, seed):
        numbers = np.random.default_rng(seed)
        self.layers = {1: plait.Param(jnp.asarray(numbers.normal(size=(3, 4)), jnp.bfloat16)), 20: [plait.Param(seed)]}
        self.names = {"1": plait.Param(jnp.full(2, float(seed))), "a.b/c": plait.BatchStat(jnp.full((1,), seed))}
        self.weak = plait.Variable(jnp.array(0.1 * seed))
        self.empty = plait.Variable(jnp.zeros((0, 3)))
        self.inside = plait.Variable({"a": jnp.full(2, seed, jnp.uint8), "b": (0.1 * seed, True)})
        self.number = plait.data(2.5 * seed)
        self.array = np.full(3, 1e-300 * seed)
        self.reference = plait.Variable(jnp.full(3, float(seed)), ref=True)
        self.rngs = plait.Rngs(seed, dropout=jax.random.key(seed, impl="rbg"))
        self.again = self.layers[1]
        self.nothing = None


def contents(node):
    """Every leaf as bytes that can be compared."""
    values, _, _ = checkpoint.leaf_descriptions.named_leaves(node)
    return {name: exact(value) for name, value in values.items()}


def exact(value):
    described = checkpoint.leaf_descriptions.describe(value, "")
    array = checkpoint.leaf_descriptions.to_array(value, "") if hasattr(value, "dtype") else None
    return (
        type(value).__name__,
        tuple(sorted(map(str, described.items()))),
        None if array is None else np.asarray(array).tobytes(),
    )


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of ``Everything(1)`` beside an array."""
    return checkpoint.save(tmp_path / "run" / "1", {"model": Everything(1), "x": jnp.arange(3)}, step=4)


@pytest.mark.slow
def test_every_kind_of_leaf_comes_back_exactly(saved):
    objects = {"model": Everything(2), "x": jnp.zeros(3, jnp.int32)}
    model, reference = objects["model"], objects["model"].reference.get_raw_value()
    draws = model.rngs.dropout()
    checkpoint.restore(saved, objects)
    assert contents(objects) == contents({"model": Everything(1), "x": jnp.arange(3)})
    assert objects["model"] is model
    assert model.again is model.layers[1]
    assert model.reference.get_raw_value() is reference
    assert (model.rngs.dropout() != draws).all()


def test_step_and_metrics_come_back(tmp_path):
    metrics = {"loss": np.float32(0.5), "epoch": 3, "best": jnp.array(True), "note": "x", "none": None}
    path = checkpoint.save(tmp_path / "1", plait.Param(1.0), step=np.int64(7), metrics=metrics)
    manifest = checkpoint.restore(path, plait.Param(0.0))
    assert manifest.step == 7
    assert manifest.metrics == {"loss": 0.5, "epoch": 3, "best": True, "note": "x", "none": None}
    assert checkpoint.latest(tmp_path) == path


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"step": 1.5}, "step"),
        ({"step": True}, "step"),
        ({"metrics": {"x": jnp.ones(2)}}, r"metrics\['x'\]"),
        ({"extra": {"x": {1: 2}}}, r"at +extra\['x'\]\n +found +\{1: 2\} of type dict\n"),
    ],
    ids=["float", "bool", "array", "dict"],
)
def test_steps_and_metrics_of_other_kinds_are_refused(tmp_path, options, what):
    with pytest.raises(ArgumentTypeError, match=what):
        checkpoint.save(tmp_path / "1", plait.Param(1.0), **options)
    assert list(tmp_path.iterdir()) == []


MISFITS = {
    "missing": (lambda objects: setattr(objects["model"], "more", plait.Param(jnp.ones(2))), r"model\.more: not in"),
    "unknown": (lambda objects: objects.pop("x"), "x: not in the model"),
    "shape": (lambda objects: objects.update(x=jnp.zeros((3, 1), jnp.int32)), r"x: int32\[3, 1\]"),
    "dtype": (lambda objects: objects.update(x=jnp.zeros(3)), r"x: float32\[3\]"),
    "kind": (lambda objects: setattr(objects["model"], "number", plait.data(3)), r"model\.number: a Python int"),
    "key": (lambda objects: objects["model"].rngs.default.key.set_raw_value(jax.random.key(0, impl="rbg")), "of rbg"),
}  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_named_and_changes_nothing(saved, misfit):
    change, message = MISFITS[misfit]
    objects = {"model": Everything(2), "x": jnp.zeros(3, jnp.int32)}
    change(objects)
    before = contents(objects)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.restore(saved, objects)
    assert contents(objects) == before


def test_an_array_in_an_immutable_container_is_refused_before_it_is_saved(tmp_path):
    """Nothing could be restored into it; a variable takes the whole container."""
    made = {"a": plait.Param(jnp.ones(2)), "b": (jnp.ones(2),)}
    with pytest.raises(ArgumentTypeError, match=r"(?s)at +b\[0\].*put the whole tuple into a variable"):
        checkpoint.save(tmp_path / "1", made)
    path = checkpoint.save(tmp_path / "1", {**made, "b": plait.Variable(made["b"])})
    with pytest.raises(ArgumentTypeError, match=r"at +b\[0\]"):
        checkpoint.restore(path, made)
    objects = {"a": plait.Param(jnp.zeros(2)), "b": plait.Variable((jnp.zeros(2),))}
    checkpoint.restore(path, objects)
    assert objects["b"].value[0].tolist() == [1, 1]


@pytest.mark.parametrize("step", ["write_manifest", "write_positions"])
def test_a_save_that_fails_leaves_what_was_there_and_no_more(saved, monkeypatch, step):
    """The error quotes the system's, the earlier checkpoint is whole, and no half-written one lies beside it."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.orbax, step, full)
    node = {"model": plait.Param(2.0), "data": iter_with_position()}  # without arrays, Orbax does nothing
    for path in (saved, saved.parent / "2"):
        with pytest.raises(CheckpointError, match="No space left") as caught:
            checkpoint.save(path, node, overwrite=True)
        assert [place.name for place in saved.parent.iterdir()] == ["1"]
        del caught  # until here it holds what save had begun, as an error in a notebook does
    assert checkpoint.restore(saved, {"model": Everything(2), "x": jnp.zeros(3, jnp.int32)}).step == 4


def iter_with_position():
    return types.SimpleNamespace(get_state=lambda: 0, set_state=lambda state: None)


def test_a_checkpoint_may_be_moved(saved, tmp_path):
    saved.rename(tmp_path / "elsewhere")
    assert checkpoint.restore(tmp_path / "elsewhere", {"model": Everything(2), "x": jnp.zeros(3, jnp.int32)}).step == 4


def test_a_state_can_be_saved_and_restored_into_a_state(tmp_path):
    path = checkpoint.save(tmp_path / "1", plait.state(Everything(1)))
    state = plait.state(Everything(2))
    checkpoint.restore(path, state)
    assert contents(state) == contents(Everything(1))


def test_shapes_get_values(tmp_path):
    path = checkpoint.save(tmp_path / "1", plait.state(Stored(fill=5)))
    shapes = jax.eval_shape(lambda: plait.state(Stored(fill=2)))
    checkpoint.restore(path, shapes)
    assert contents(shapes) == contents(plait.state(Stored(fill=5)))


class Sharded(plait.Module):
    """Layers and streams that lie on a mesh, in a list or in a stack."""

    def __init__(self, seed, make_blocks=plait.Stack):
        rngs = plait.Rngs(seed)
        up = {"out_sharding": ("embed", "mlp")}
        self.blocks = make_blocks([plait.Linear(8, 8, kernel_metadata=up, rngs=rngs) for _ in range(2)])
        self.drop = plait.Dropout(0.5, rngs=rngs)


def on_mesh(seed, **options):
    model = Sharded(seed, **options)
    return {"model": model, "optimizer": plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)}


@pytest.mark.slow
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("blocks", [plait.Stack, list], ids=["as saved", "a list of a stack"])
def test_shapes_made_under_a_mesh_get_values_on_its_devices(tmp_path, axis_type, blocks):
    """Where they are those of a model that was made there; the mesh of what ``eval_shape`` returns is abstract."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "model"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh), plait.logical_axis_rules(plait.partitioning.rules_for(mesh)):
        saved = plait.partitioning.create_sharded(lambda: on_mesh(1))
        path = checkpoint.save(tmp_path / "1", saved)
        abstract = plait.eval_shape(lambda: on_mesh(2, make_blocks=blocks))
        expected = plait.partitioning.create_sharded(lambda: on_mesh(1, make_blocks=blocks))
        checkpoint.restore(path, abstract)
    assert contents(abstract) == contents(expected)
    found, wanted = (jax.tree.leaves(plait.variables(each, plait.Not(plait.RngState))) for each in (abstract, expected))
    assert all(a.sharding.is_equivalent_to(b.sharding, a.ndim) for a, b in zip(found, wanted, strict=True))
    assert not all(leaf.sharding.is_fully_replicated for leaf in found)


@pytest.mark.slow
def test_shapes_of_another_mesh_are_an_error_that_says_what_to_do(tmp_path):
    mesh = jax.make_mesh((4, 2), ("fsdp", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), plait.logical_axis_rules(plait.partitioning.rules_for(mesh)):
        path = checkpoint.save(tmp_path / "1", on_mesh(1))
        abstract = plait.eval_shape(lambda: on_mesh(2))
    with pytest.raises(
        ArgumentError, match=r"model\.blocks.*\.bias\n(?s:.*)is not set(?s:.*)with jax\.set_mesh\(mesh\)"
    ):
        checkpoint.restore(path, abstract)
    other = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(other), pytest.raises(ArgumentError, match=r"and the current mesh AbstractMesh"):
        checkpoint.restore(path, abstract)
    assert isinstance(abstract["model"].blocks[0].kernel.get_raw_value(), jax.ShapeDtypeStruct)


def test_arrays_keep_the_sharding_of_the_model(tmp_path):
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    split = NamedSharding(mesh, PartitionSpec("data"))
    path = checkpoint.save(tmp_path / "1", plait.Param(jax.device_put(jnp.arange(8.0), split)))
    one, four = plait.Param(jnp.zeros(8)), plait.Param(jax.device_put(jnp.zeros(8), split))
    checkpoint.restore(path, one)
    checkpoint.restore(path, four)
    assert one[...].tolist() == four[...].tolist() == [*range(8)]
    assert four[...].sharding == split
    assert len(one[...].sharding.device_set) == 1


def test_other_programs_read_the_arrays_with_orbax_alone(tmp_path):
    import orbax.checkpoint

    path = checkpoint.save(tmp_path / "1", {"a": [plait.Param(jnp.arange(3))], "n": plait.Param(1.0)})
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        arrays = checkpointer.restore(path / "arrays", {"a[0]": np.zeros(3, np.int32)})
    assert arrays["a[0]"].tolist() == [0, 1, 2]


DTYPES = st.sampled_from(["float32", "bfloat16", "float16", "int8", "uint32", "bool", "int4", "float8_e5m2"])
KEYS = st.integers(0, 99) | st.text("ab0_./é'", min_size=1, max_size=4)
ARRAYS = st.builds(
    lambda dtype, shape, seed: jnp.asarray(np.random.default_rng(seed).integers(0, 7, shape), dtype),
    DTYPES,
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 9),
)
PLAIN = st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text(max_size=3)
LEAVES = st.builds(plait.Param, ARRAYS | PLAIN) | ARRAYS
TREES = st.dictionaries(
    KEYS, st.recursive(LEAVES, lambda below: st.dictionaries(KEYS, below, max_size=3), max_leaves=6), max_size=4
)


def blanked(tree):
    """The same structure with other values."""

    def blank(value):
        return jnp.zeros_like(value) if hasattr(value, "dtype") else type(value)()

    if isinstance(tree, dict):
        return {key: blanked(value) for key, value in tree.items()}
    return tree.replace(blank(tree.get_raw_value())) if isinstance(tree, plait.Variable) else blank(tree)


@pytest.mark.slow
@settings(max_examples=15)
@given(TREES)
def test_restore_undoes_save(tmp_path_factory, tree):
    path = checkpoint.save(tmp_path_factory.mktemp("trees") / "1", tree)
    other = blanked(tree)
    checkpoint.restore(path, other)
    assert contents(other) == contents(tree)


class Stored(plait.Module):
    """What the stored checkpoint in tests/data was made of."""

    def __init__(self, fill=0):
        self.kernel = plait.Param(jnp.full((2, 3), fill, jnp.bfloat16))
        self.blocks = {0: plait.BatchStat(jnp.full(2, fill, jnp.float32)), "0": plait.Variable(fill)}
        self.rngs = plait.Rngs(fill)


@pytest.mark.parametrize("name", ["checkpoint-v1", "checkpoint-v2"])
def test_a_stored_checkpoint_of_each_version_loads_for_ever(name):
    model = Stored()
    manifest = checkpoint.restore(DATA / name, model)
    assert (manifest.step, manifest.metrics) == (3, {"loss": 0.25})
    assert contents(model) == contents(Stored(fill=5))


def whole(seed=0, dtype=jnp.float32):
    model = plait.Dict(layer=plait.Linear(2, 3, param_dtype=dtype, rngs=plait.Rngs(seed)), rngs=plait.Rngs(seed))
    return {"model": model, "averages": plait.EMA(model["layer"], 0.5)}


def test_a_part_of_a_checkpoint(tmp_path):
    saved, fresh = whole(0), whole(1)
    path = checkpoint.save(tmp_path / "1", saved, step=3)
    with pytest.raises(CheckpointError, match=r"(?s)averages.*partial=True"):
        checkpoint.restore(path, {"model": fresh["model"]})
    assert checkpoint.restore(path, {"model": fresh["model"]}, partial=True).step == 3
    assert contents(fresh["model"]) == contents(saved["model"])
    assert contents(fresh["averages"]) == contents(whole(1)["averages"])
    with pytest.raises(CheckpointError, match=r"(?s)other: not in the checkpoint.*same structure"):
        checkpoint.restore(path, {"model": fresh["model"], "other": plait.Param(jnp.ones(2))}, partial=True)


def test_some_of_the_variables_of_a_model(tmp_path):
    saved, fresh = whole(0)["model"], whole(1)["model"]
    path = checkpoint.save(tmp_path / "1", saved)
    checkpoint.restore(path, plait.variables(fresh, plait.Param), partial=True)
    np.testing.assert_array_equal(fresh["layer"].kernel, saved["layer"].kernel)
    assert int(fresh["rngs"].default.key[...] == saved["rngs"].default.key[...]) == 0


@pytest.mark.parametrize(
    "dtypes",
    [("float32", "bfloat16"), ("bfloat16", "float32"), pytest.param(("float32", "float16"), marks=pytest.mark.slow)],
)
def test_another_dtype_when_asked(tmp_path, dtypes):
    saved, fresh = (whole(seed, jnp.dtype(dtype)) for seed, dtype in enumerate(dtypes))
    path = checkpoint.save(tmp_path / "1", saved)
    with pytest.raises(CheckpointError, match=rf"(?s){dtypes[0]}.*{dtypes[1]}.*cast=True"):
        checkpoint.restore(path, fresh)
    checkpoint.restore(path, fresh, cast=True)
    for path, value in plait.to_flat_state(plait.state(fresh["model"], plait.Param)):
        expected = getattr(saved["model"]["layer"], path[1])
        assert value.dtype == dtypes[1]
        np.testing.assert_array_equal(value, expected[...].astype(dtypes[1]))


def test_integers_are_not_made_floats(tmp_path):
    path = checkpoint.save(tmp_path / "1", {"x": plait.Variable(jnp.arange(3))})
    for other in (jnp.zeros(3), jnp.zeros(3, jnp.complex64)):
        with pytest.raises(CheckpointError, match="int32"):
            checkpoint.restore(path, {"x": plait.Variable(other)}, cast=True)
    path = checkpoint.save(tmp_path / "2", {"x": plait.Variable(jnp.zeros(3, jnp.complex64))})
    with pytest.raises(CheckpointError, match="complex64"):
        checkpoint.restore(path, {"x": plait.Variable(jnp.zeros(3))}, cast=True)


def test_a_cast_keeps_the_sharding_of_the_model(tmp_path):
    mesh = jax.make_mesh((8,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    path = checkpoint.save(tmp_path / "1", {"v": plait.Param(jnp.arange(8.0))})
    target = {"v": plait.Param(jax.device_put(jnp.zeros(8, jnp.bfloat16), sharding))}
    checkpoint.restore(path, target, cast=True)
    assert target["v"].get_raw_value().sharding == sharding
    assert target["v"].dtype == jnp.bfloat16
    assert target["v"].tolist() == list(range(8))


def test_names_that_were_text_before_are_found(tmp_path):
    """What is kept for a weight has a path as its key; version 1 of the layout had its text."""

    def wrapped(kind, seed):
        inner = plait.Sequential(plait.Linear(3, 3, rngs=plait.Rngs(seed)))
        return getattr(plait, kind)(inner, rngs=plait.Rngs(seed))

    for kind in ("WeightNorm", "SpectralNorm"):
        saved, fresh = wrapped(kind, 0), wrapped(kind, 1)
        state = plait.state(saved)
        if kind == "WeightNorm":
            saved.scales[("layers", 0, "kernel")][...] *= 3
            state = plait.state(saved)
            state["scales"] = {"layers[0].kernel": state["scales"][("layers", 0, "kernel")]}
        else:
            kept = state["batch_stats"]
            path = ("layers", 0, "kernel")
            state["batch_stats"] = {"layers[0].kernel": {name: kept[(*path, name)] for name in ("u", "sigma")}}
        path = checkpoint.save(tmp_path / kind, state)
        checkpoint.restore(path, fresh)
        assert contents(fresh) == contents(saved)


def test_a_state_that_is_restored_and_dropped_is_told(tmp_path):
    """Its values reach no model: the warning names what does. A state that is used, and live variables, are fine."""
    saved, model = (plait.Linear(2, 3, rngs=plait.Rngs(seed)) for seed in (0, 1))
    path = plait.checkpoint.save(tmp_path / "model", saved)

    def restore_and_drop():
        plait.checkpoint.restore(path, plait.state(model))
        gc.collect()

    with pytest.warns(LostUpdateWarning, match=r"plait\.update\(model, state\), or write into .*variables") as told:
        restore_and_drop()
    assert {each.filename for each in told} == {__file__}
    state = plait.state(model)
    plait.checkpoint.restore(path, state)
    plait.update(model, state)
    assert (model.kernel[...] == saved.kernel[...]).all()
    other = plait.Linear(2, 3, rngs=plait.Rngs(2))
    plait.checkpoint.restore(path, plait.variables(other))
    assert (other.kernel[...] == saved.kernel[...]).all()
    del state
    gc.collect()


@pytest.mark.parametrize(
    ("name", "letters"),
    [("lr=[0.1]", "[0.1]"), ("a**", "**"), ("a\\b", "\\"), ("gs:", "gs:"), ("a\udcff", "\\udcff")],
    ids=ascii,
)
@pytest.mark.parametrize("below", ["", "a"])
def test_a_path_that_orbax_would_read_as_a_pattern_is_refused(tmp_path, name, letters, below):
    """Orbax writes no index of the arrays there, and reports no error; or it fails at the first save."""
    for write in (lambda path: checkpoint.save(path, plait.Param(jnp.ones(2))), checkpoint.Checkpoints):
        with pytest.raises(CheckpointError, match="cannot be written under this path") as caught:
            write(tmp_path / "sweep" / name / below)
        assert ascii(caught.value.parts["at"]) == ascii(str(tmp_path / "sweep" / name / below))
        assert letters in str(caught.value).partition("found")[2]
        assert list(tmp_path.iterdir()) == []


OF_FOLDERS = {
    "save": lambda path: checkpoint.save(path, plait.Param(jnp.ones(2))),
    "restore": lambda path: checkpoint.restore(path, plait.Param(jnp.ones(2))),
    "Checkpoints": checkpoint.Checkpoints,
    "latest": checkpoint.latest,
    "read_manifest": checkpoint.read_manifest,
    "load_state": checkpoint.load_state,
    "save_safetensors": lambda path: checkpoint.save_safetensors(path, {"w": jnp.ones(2)}),
    "load_safetensors": checkpoint.load_safetensors,
}


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3://bucket/run", Path("gs://bucket/run")], ids=str)
@pytest.mark.parametrize("function", OF_FOLDERS)
def test_the_address_of_a_bucket_is_no_folder(tmp_path, monkeypatch, function, address):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="an address") as caught:
        OF_FOLDERS[function](address)
    assert caught.value.parts["at"] == str(address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a[b", "a]b", "b]a[", "a?b", "a*b", "{a}", "gs:a", "s3:", "é"])
def test_other_letters_of_patterns_are_fine(tmp_path, name):
    path = checkpoint.save(tmp_path / name / name, plait.Param(jnp.ones(2)))
    variable = plait.Param(jnp.zeros(2))
    checkpoint.restore(path, variable)
    assert variable[...].tolist() == [1, 1]


@pytest.mark.parametrize("file", ["manifest.ocdbt", "_METADATA"])
def test_a_save_without_the_index_of_its_arrays_has_failed(tmp_path, monkeypatch, file):
    finish = orbax.Saving.arrive

    def arrive(self):
        finish(self)
        (self._draft / "arrays" / file).unlink()

    monkeypatch.setattr(orbax.Saving, "arrive", arrive)
    with pytest.raises(CheckpointError, match="arrays are incomplete") as caught:
        checkpoint.save(tmp_path / "1", plait.Param(jnp.ones(2)))
    assert file in caught.value.parts["found"]
    assert caught.value.parts["at"] == str(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_may_take_longer_than_orbax_waits_by_itself(tmp_path, monkeypatch):
    """A week, not twenty minutes."""
    asked, begin = [], ocp.AsyncCheckpointer
    monkeypatch.setattr(ocp, "AsyncCheckpointer", lambda *a, **given: asked.append(given) or begin(*a, **given))
    checkpoint.save(tmp_path / "1", plait.Param(jnp.ones(2)))
    assert [given["async_options"].timeout_secs for given in asked] == [7 * 24 * 60 * 60]


NUMBERS = [
    (0, jnp.int32(3)),
    (0, np.uint8(3)),
    (0.5, jnp.bfloat16(3)),
    (0.5, np.array(0.1)),  # float64, which JAX does not have by default
    (False, jnp.array(True)),
    (0j, jnp.complex64(3)),
    (0, jnp.array(3)),  # with a weak type
]


@pytest.mark.parametrize(("first", "array"), NUMBERS)
def test_an_array_takes_the_place_of_the_python_number_it_began_as(tmp_path, first, array):
    """A jitted step makes an array of a counter that the constructor sets to 0."""
    path = checkpoint.save(tmp_path / "1", {"n": plait.Variable(array), "w": plait.Param(jnp.ones(2))})
    fresh = {"n": plait.Variable(first), "w": plait.Param(jnp.zeros(2))}
    checkpoint.restore(path, fresh)
    found = fresh["n"].get_raw_value()
    assert (found.shape, found.dtype, found.item()) == ((), array.dtype, array.item())
    assert getattr(found, "weak_type", False) == getattr(array, "weak_type", False)


def test_counters_of_a_stack_are_restored_into_a_list_of_python_numbers(tmp_path):
    class Counted(plait.Module):
        def __init__(self, count):
            self.count = plait.Variable(count)
            self.kernel = plait.Param(jnp.ones(2))

    stack = plait.Dict(blocks=plait.Stack([Counted(jnp.int32(number)) for number in range(3)]))
    fresh = plait.Dict(blocks=plait.List([Counted(0) for _ in range(3)]))
    checkpoint.restore(checkpoint.save(tmp_path / "1", stack), fresh)
    assert [int(block.count.value) for block in fresh["blocks"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("first", "array"),
    [(0, jnp.float32(3)), (0.5, jnp.int32(3)), (False, jnp.int32(1)), (0, jnp.array(True)), (0, jnp.zeros(1, int))],
)
def test_another_kind_of_number_does_not(tmp_path, first, array):
    path = checkpoint.save(tmp_path / "1", plait.Variable(array))
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.restore(path, plait.Variable(first), cast=True)


HOST_VALUES = [True, 3, 0.1, 1j, np.arange(4), np.full((2, 3), 1e-300), np.array([1e-300j])]


@pytest.mark.parametrize("value", HOST_VALUES, ids=repr)
def test_what_jax_made_of_a_number_or_of_a_numpy_array_goes_with_it(tmp_path, value):
    """``eval_shape`` and jitted steps make arrays of JAX's dtypes of them."""

    def make():
        return {"x": plait.Variable(value), "blocks": plait.Stack([plait.Dict(x=np.arange(2) * 0.1)] * 2)}

    saved, shapes = make(), plait.eval_shape(make)
    checkpoint.restore(checkpoint.save(tmp_path / "1", saved), shapes)
    assert contents(shapes) == contents(saved)
    saved["x"].set_value(jax.jit(jnp.asarray)(value))
    fresh = make()
    checkpoint.restore(checkpoint.save(tmp_path / "2", saved), fresh)
    assert contents(fresh) == contents(saved)


@pytest.mark.parametrize(("value", "own"), [(np.arange(4.0), jnp.zeros(4)), (3, jnp.int32(3)), (0.1, np.arange(1)[0])])
def test_they_do_not_replace_other_arrays(tmp_path, value, own):
    path = checkpoint.save(tmp_path / "1", plait.Variable(value))
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.restore(path, plait.Variable(own))


class Sowing(plait.Module):
    """What it has sown is in the model, as by Flax's ``sow``."""

    def __init__(self, weight):
        self.w = plait.Param(jnp.full(3, weight))

    def sow(self, length, value):
        self.h = plait.Intermediate(jnp.full(length, value))
        return self


@pytest.mark.parametrize("of_probe", [False, True])
@pytest.mark.parametrize(
    ("saved", "own", "expected"),
    [
        ((2, 5.0), None, None),
        (None, (2, 7.0), [7.0, 7.0]),
        ((2, 5.0), (3, 7.0), [7.0] * 3),
        ((2, 5.0), (2, 7.0), [5.0] * 2),
    ],
)
def test_what_was_sown_does_not_keep_a_run_from_going_on(tmp_path, saved, own, expected, of_probe):
    """It is of one call: a model that has not been called yet could not resume from its checkpoints."""
    model, again = Sowing(1.0), Sowing(2.0)
    for each, wanted in ((model, saved), (again, own)):
        if wanted is not None:
            each.sow(*wanted)
            if of_probe:
                each.h = plait.Perturbation(each.h[...])
    restored = {"model": again}
    checkpoint.restore(checkpoint.save(tmp_path / "run", {"model": model}), restored)
    assert again.w.value.tolist() == [1.0] * 3
    assert (again.h.value.tolist() if hasattr(again, "h") else None) == expected


def test_what_was_sown_is_saved_where_it_is_asked_for(tmp_path):
    path = checkpoint.save(tmp_path / "run", plait.state(Sowing(1.0).sow(2, 5.0), plait.Intermediate))
    assert [each.tolist() for each in jax.tree.leaves(checkpoint.load_state(path))] == [[5.0, 5.0]]


def restore_all(path):
    checkpoint.restore(path, plait.Param(jnp.zeros(2)))


@pytest.mark.parametrize("read", [restore_all, checkpoint.load_state], ids=["restore", "load_state"])
@pytest.mark.parametrize("when", ["checked", "found whole"])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_told(tmp_path, monkeypatch, read, when):
    """As by a run with ``Keep(last=1)``, while another program reads it. It was an error of Orbax, or of the system."""
    path = checkpoint.save(tmp_path / "step-1", plait.Param(jnp.ones(2)), step=1)

    def remove(act, *arguments):
        found = act(*arguments)
        shutil.rmtree(path)
        return found

    if when == "checked":
        monkeypatch.setattr(layout, "checksums", functools.partial(remove, layout.checksums))
    else:
        for module in (orbax, plain):
            monkeypatch.setattr(module, "check_whole_together", functools.partial(remove, module.check_whole_together))
    with pytest.raises(CheckpointError) as caught:
        read(path)
    assert (
        str(caught.value)
        == f"""the checkpoint was removed while it was read
  at        {path}
  found     no plait.json any more
  expected  a checkpoint that stays: a run removes those that its Keep does not keep
  do        read the newest one, plait.checkpoint.latest({str(tmp_path)!r}), or have the run keep more"""
    )


def test_a_weakly_typed_array_divided_over_explicit_axes_comes_back(tmp_path):
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        model = plait.List([plait.Param(jax.device_put(jnp.full(16, 1.0), jax.P("a")))])
        path = checkpoint.save(tmp_path / "1", model)
        model[0].value = model[0].value * 0.0
        checkpoint.restore(path, model)
        found = model[0].get_raw_value()
    assert (found.weak_type, found.sharding.spec, float(found.sum())) == (True, jax.P("a"), 16.0)
