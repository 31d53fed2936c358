"""Conversion without the other libraries: laws over all layers, sharing, sharding, and what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import plait
from plait import bridge, checkpoint, convert
from plait._public import PUBLIC
from plait.convert import linen_layouts, torch_layouts  # noqa: F401 - they register the layouts
from plait.convert.layouts import alternatives, path_of_name
from plait.errors import ArgumentError, ArgumentTypeError, CheckpointError, ConversionError
from tests.environment import environment
from tests.forked import run_python
from tests.sampling import slow_but


def _attention(rngs, **options):
    return plait.MultiHeadAttention(2, 4, decode=False, rngs=rngs, **options)


LAYERS = {
    "Linear": lambda rngs: plait.Linear(2, 3, rngs=rngs),
    "Linear without bias": lambda rngs: plait.Linear(2, 3, use_bias=False, rngs=rngs),
    "LinearGeneral": lambda rngs: plait.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=rngs),
    "LinearGeneral with batch axes": lambda rngs: plait.LinearGeneral(2, 3, batch_axis={0: 4}, rngs=rngs),
    "Einsum": lambda rngs: plait.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), rngs=rngs),
    "Conv over one axis": lambda rngs: plait.Conv(4, 6, 3, feature_group_count=2, rngs=rngs),
    "Conv over three axes": lambda rngs: plait.Conv(2, 3, (2, 3, 4), rngs=rngs),
    "ConvTranspose": lambda rngs: plait.ConvTranspose(2, 3, (2, 4), rngs=rngs),
    "ConvTranspose of a transposed kernel": lambda rngs: plait.ConvTranspose(
        2, 3, (2, 4), transpose_kernel=True, rngs=rngs
    ),
    "BatchNorm": lambda rngs: plait.BatchNorm(3, rngs=rngs),
    "BatchNorm without scale": lambda rngs: plait.BatchNorm(3, use_scale=False, rngs=rngs),
    "LayerNorm": lambda rngs: plait.LayerNorm(3, rngs=rngs),
    "RMSNorm": lambda rngs: plait.RMSNorm(3, rngs=rngs),
    "GroupNorm": lambda rngs: plait.GroupNorm(4, num_groups=2, rngs=rngs),
    "InstanceNorm": lambda rngs: plait.InstanceNorm(3, rngs=rngs),
    "Embed": lambda rngs: plait.Embed(5, 3, rngs=rngs),
    "PReLU": lambda rngs: plait.PReLU(),
    "LoRA": lambda rngs: plait.LoRA(4, 2, 3, rngs=rngs),
    "LoRALinear": lambda rngs: plait.LoRALinear(4, 3, lora_rank=2, rngs=rngs),
    "Dropout": lambda rngs: plait.Dropout(0.5, rngs=rngs),
    "WeightNorm": lambda rngs: plait.WeightNorm(plait.Linear(2, 3, rngs=rngs), rngs=rngs),
    "SpectralNorm": lambda rngs: plait.SpectralNorm(plait.Linear(2, 3, rngs=rngs), rngs=rngs),
    "MultiHeadAttention": _attention,
    "MultiHeadAttention with normalized keys": lambda rngs: _attention(rngs, normalize_qk=True),
    "MultiHeadAttention of grouped heads": lambda rngs: _attention(rngs, num_kv_heads=1),
    "MultiHeadAttention over other keys": lambda rngs: _attention(rngs, in_kv_features=3, use_bias=False),
    "LSTMCell": lambda rngs: plait.LSTMCell(2, 3, rngs=rngs),
    "OptimizedLSTMCell": lambda rngs: plait.OptimizedLSTMCell(2, 3, keep_rngs=True, rngs=rngs),
    "GRUCell": lambda rngs: plait.GRUCell(2, 3, rngs=rngs),
    "SimpleCell": lambda rngs: plait.SimpleCell(2, 3, rngs=rngs),
    "RNN": lambda rngs: plait.RNN(plait.LSTMCell(2, 3, rngs=rngs), rngs=rngs),
    "Bidirectional": lambda rngs: plait.Bidirectional(
        plait.RNN(plait.GRUCell(2, 3, rngs=rngs)), plait.RNN(plait.GRUCell(2, 3, rngs=rngs)), rngs=rngs
    ),
    "Sequential": lambda rngs: plait.Sequential(plait.Linear(2, 3, rngs=rngs), plait.relu),
    "Stack": lambda rngs: plait.Stack(lambda rngs: plait.Linear(3, 3, rngs=rngs), 4, rngs=rngs),
}


def with_noise(model, seed=3):
    """The model with other numbers in each weight."""
    rng = np.random.default_rng(seed)
    for _, variable in plait.to_flat_state(plait.variables(model)):
        if not isinstance(variable, plait.RngState):
            variable.value = jnp.asarray(rng.normal(size=variable.value.shape), variable.value.dtype)
    return model


def weights(model):
    flat = plait.to_flat_state(plait.state(model))
    return {path: np.asarray(leaf.value) for path, leaf in flat if not isinstance(leaf, plait.RngState)}


def assert_same_weights(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for path in first:
        np.testing.assert_array_equal(first[path], second[path], err_msg=str(path), strict=True)


def test_every_layer_has_a_case():
    classes = {name.partition(" ")[0] for name in LAYERS}
    layers = {
        name
        for name, home in PUBLIC.items()
        if home.startswith("nn.")
        and isinstance(getattr(plait, name), type)
        and issubclass(getattr(plait, name), plait.Module)
        and name not in ("RNNCellBase", "RoPE")  # one has no instances, the other no variables
    }
    assert len(layers) > 20
    assert layers - classes == set()


COSTLY = ("MultiHeadAttention", "Stack", "GRUCell", "OptimizedLSTMCell", "Bidirectional")


@pytest.mark.sampled
@pytest.mark.parametrize("case", slow_but(lambda case: case not in COSTLY, LAYERS))
def test_what_goes_to_torch_comes_back(case):
    ours = with_noise(LAYERS[case](plait.Rngs(0)))
    again = LAYERS[case](plait.Rngs(7))
    done = convert.convert_checkpoint(convert.to_torch(ours), again, layout="torch", update=True)
    assert done.report.is_complete
    assert_same_weights(again, ours)


@pytest.mark.sampled
@pytest.mark.parametrize("library", ["torch", "linen"])
@pytest.mark.parametrize("case", LAYERS)
def test_each_alternative_of_a_layout_is_undone_by_its_way_back(case, library):
    module = with_noise(LAYERS[case](plait.Rngs(0)))
    for layout in alternatives(library, module):
        for piece in layout.pieces:
            ours = []
            for name in piece.ours:
                found = module
                for step in path_of_name(name):
                    found = getattr(found, step)
                ours.append(np.asarray(found.value))
            theirs = piece.to_theirs(*ours)
            assert [array.shape for array in theirs] == piece.their_shapes([array.shape for array in ours])
            for back, value in zip(piece.to_ours(*theirs), ours, strict=True):
                np.testing.assert_array_equal(back, value, strict=True)


class Tied(plait.Module):
    """One layer under two names, and one variable in two layers."""

    def __init__(self, rngs):
        self.first = plait.Linear(3, 3, rngs=rngs)
        self.again = self.first
        self.other = plait.Linear(3, 3, rngs=rngs)
        self.other.kernel = self.first.kernel
        self.loop = self


def test_shared_variables_come_under_each_name_and_must_agree():
    ours = with_noise(Tied(plait.Rngs(0)))
    there = convert.to_torch(ours)
    assert there.keys() == {
        "again.weight", "again.bias", "first.weight", "first.bias", "other.weight", "other.bias"
    }  # fmt: skip
    tied = Tied(plait.Rngs(1))
    convert.convert_checkpoint(there, tied, layout="torch", update=True)
    assert_same_weights(tied, ours)
    assert tied.other.kernel is tied.again.kernel
    there.pop("first.weight")
    there.pop("first.bias")
    convert.convert_checkpoint(there, Tied(plait.Rngs(1)), layout="torch")  # one name is enough
    there["other.weight"] = there["other.weight"] + 1
    with pytest.raises(ConversionError, match=r"values that differ from those of again\.kernel"):
        convert.convert_checkpoint(there, tied, layout="torch")


def test_the_names_of_a_shared_layer_may_become_one():
    tied = with_noise(Tied(plait.Rngs(0)))
    apart = convert.to_torch(tied)
    together = convert.to_torch(tied, names={"again": "first"})
    assert apart.keys() - together.keys() == {"again.weight", "again.bias"}
    assert together.keys() <= apart.keys()
    for name, array in together.items():
        np.testing.assert_array_equal(array, apart[name], strict=True)


def test_two_names_of_one_variable_must_hold_the_same():
    ours = plait.Linear(2, 3, rngs=plait.Rngs(0))
    there = convert.to_torch(ours)
    there["head.weight"] = there["weight"]
    convert.convert_checkpoint(there, ours, layout="torch", names={"head": ""})
    there["head.weight"] = there["weight"] + 1
    with pytest.raises(ConversionError, match=r"weight and head\.weight, which differ"):
        convert.convert_checkpoint(there, ours, layout="torch", names={"head": ""})


class Net(plait.Module):
    def __init__(self, rngs):
        self.layers = [plait.Linear(2, 3, rngs=rngs), plait.BatchNorm(3, rngs=rngs)]
        self.head = plait.Linear(3, 2, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)


NAMES = sorted(convert.to_torch(Net(plait.Rngs(0))))


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from(["extra", "head.x"])), st.data())
@settings(max_examples=20)
def test_what_does_not_fit_is_named_and_changes_nothing(missing, extra, data):
    net = Net(plait.Rngs(0))
    before = plait.clone(net)
    there = convert.to_torch(net)
    misshapen = data.draw(st.sampled_from([None, *sorted(set(NAMES) - missing)]))
    if misshapen is not None:
        there[misshapen] = there[misshapen][..., None]
    there = {name: value + 1 for name, value in there.items() if name not in missing}
    there |= dict.fromkeys(extra, np.ones(2))
    with pytest.raises(ConversionError) as caught:
        convert.convert_checkpoint(there, net, layout="torch", update=True)
    report = caught.value.report
    assert {name for each in report.missing for name in each.names} == missing
    assert set(report.unexpected) == extra
    assert {name for each in report.mismatched for name in each.names} == {misshapen} - {None}
    for name in [*missing, *extra, *({misshapen} - {None})]:
        assert name in str(report)
    assert plait.state(net) == plait.state(before)


def test_an_error_names_module_collection_and_leaf():
    net = Net(plait.Rngs(0))
    there = convert.to_torch(net)
    there["layers.1.running_var"] = np.ones(4, np.float32)
    there["head.kernel"] = there.pop("head.weight")
    with pytest.raises(ConversionError) as caught:
        convert.convert_checkpoint(there, net, layout="torch", names={"model": ""})
    text = str(caught.value)
    for part in (
        "layers[1] (BatchNorm), batch_stats: layers[1].var",
        "layers.1.running_var of shape (4,)",
        "shape (3,) for layers[1].var",
        "head (Linear), params: head.kernel",
        "nothing under head.weight",
        "head.kernel of the checkpoint",
    ):
        assert part in text
    assert caught.value.report.unused_rules == ("model",)


def test_the_report_prints_one_line_for_each_leaf():
    net = Net(plait.Rngs(0))
    there = convert.to_torch(net, names={"head": "classifier"}) | {"layers.1.num_batches_tracked": np.ones((), int)}
    done = convert.convert_checkpoint(there, net, layout="torch", names={"classifier": "head"})
    lines = str(done.report).splitlines()
    assert lines[0] == "6 matched, 2 renamed, 0 missing, 0 unexpected, 1 ignored"
    assert [line.split() for line in lines if "renamed " in line[:10]] == [
        ["renamed", "head.kernel", "params", "<-", "classifier.weight"],
        ["renamed", "head.bias", "params", "<-", "classifier.bias"],
    ]
    assert lines[-1].split() == ["ignored", "layers.1.num_batches_tracked"]
    assert len(lines) == 10


def test_a_part_of_a_checkpoint_is_taken_when_that_is_asked_for():
    net = Net(plait.Rngs(0))
    there = {"head.weight": np.ones((2, 3), np.float32), "other": np.ones(2)}
    done = convert.convert_checkpoint(there, net, layout="torch", strict=False, update=True)
    assert [*done.state] == ["head"]
    assert net.head.kernel.value.tolist() == [[1, 1]] * 3
    assert done.report.unexpected == ("other",)
    with pytest.raises(ConversionError, match=r"shape \(2, 3\) for head\.kernel"):
        convert.convert_checkpoint({"head.weight": np.ones((3, 3))}, net, layout="torch", strict=False)


def test_each_array_is_read_once_and_none_when_something_does_not_fit_by_shape():
    net = Net(plait.Rngs(0))
    reads = []

    def stored(name, array):
        return checkpoint.StoredArray(array.shape, array.dtype, lambda: reads.append(name) or array)

    there = {name: stored(name, array) for name, array in convert.to_torch(net).items()}
    convert.convert_checkpoint(there, net, layout="torch")
    assert sorted(reads) == NAMES
    reads.clear()
    with pytest.raises(ConversionError, match=r"shape \(3, 2\) for layers\[0\]\.kernel"):
        convert.convert_checkpoint({"layers.0.weight": stored("x", np.ones((9, 9)))}, net, layout="torch")
    assert reads == []


def test_arrays_of_the_other_byte_order_are_converted():
    values = np.arange(6).reshape(3, 2)
    source = {"weight": values.astype(">f4"), "bias": values[:, 0].astype("<f4")}
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    plait.convert.convert_checkpoint(source, model, layout="torch", update=True)
    np.testing.assert_array_equal(model.kernel.value, values.T)


def test_integers_are_no_weights():
    there = convert.to_torch(plait.Linear(2, 3, rngs=plait.Rngs(0)))
    there["weight"] = there["weight"].astype(np.int8)
    with pytest.raises(ConversionError, match="weight of dtype int8"):
        convert.convert_checkpoint(there, plait.Linear(2, 3, rngs=plait.Rngs(0)), layout="torch")


def test_an_abstract_model_gets_arrays_where_its_shardings_say():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(None, "x"))
    there = convert.to_torch(plait.Linear(2, 16, rngs=plait.Rngs(0)))
    model = plait.eval_shape(lambda: plait.Linear(2, 16, rngs=plait.Rngs(0)))
    model.kernel.set_raw_value(jax.ShapeDtypeStruct((2, 16), jnp.float32, sharding=sharding))
    convert.convert_checkpoint(there, model, layout="torch", update=True)
    assert model.kernel.value.sharding == sharding
    np.testing.assert_array_equal(model.kernel.value, there["weight"].T)


def test_a_model_shaped_under_a_mesh_is_read_onto_its_devices(tmp_path):
    """Also where the layout of the file is transposed: each device gets its part, from a map of the file."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    there = convert.to_torch(plait.Linear(32, 16, rngs=plait.Rngs(0)))
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", there)

    def make():
        return plait.Linear(32, 16, kernel_metadata={"out_sharding": (None, "x")}, rngs=plait.Rngs(0))

    with jax.set_mesh(mesh):
        model = plait.eval_shape(make)
        convert.convert_checkpoint(path, model, layout="torch", update=True, dtype=jnp.bfloat16)
    assert model.kernel.value.sharding == NamedSharding(mesh, PartitionSpec(None, "x"))
    assert model.kernel.value.addressable_shards[3].data.shape == (32, 2)
    np.testing.assert_array_equal(model.kernel.value, there["weight"].T.astype(jnp.bfloat16))


@pytest.mark.slow
def test_a_stack_of_layers_is_refused_both_ways():
    stack = plait.vmap(lambda key: plait.Linear(3, 3, rngs=plait.Rngs(key)))(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(ValueError, match="not stacked"):
        convert.to_torch(stack)
    there = convert.to_torch(plait.Linear(3, 3, rngs=plait.Rngs(0)))
    with pytest.raises(ConversionError, match="not stacked"):
        convert.convert_checkpoint(there, stack, layout="torch")


def test_a_model_without_values_has_nothing_to_give():
    model = plait.eval_shape(lambda: plait.Linear(2, 3, rngs=plait.Rngs(0)))
    with pytest.raises(ArgumentError, match=r"at +bias|at +kernel"):
        convert.to_torch(model)


class Mixture(plait.Module):
    def __init__(self):
        self.experts = plait.Param(jnp.arange(6.0).reshape(2, 3))


class Submixture(Mixture):
    pass


def test_a_layout_of_ones_own_holds_for_subclasses():
    convert.register_layout("torch", Mixture, lambda mixture: [convert.Piece("experts", "w", *[lambda w: [w.T]] * 2)])
    there = convert.to_torch(Submixture())
    assert there["w"].tolist() == [[0, 3], [1, 4], [2, 5]]
    ours = with_noise(Submixture())
    convert.convert_checkpoint(there, ours, layout="torch", update=True)
    assert_same_weights(ours, Mixture())


def test_a_state_dict_that_is_nested_deeper_is_told_apart():
    with pytest.raises(ArgumentTypeError, match=r"at +epoch\.name"):
        convert.convert_checkpoint({"epoch": {"name": "x"}}, Mixture(), layout="torch")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("absent.safetensors", "there is no checkpoint at this path"),
        ("weights.pt", r"torch\.load"),
        ("folder", "the folder has no checkpoint"),
    ],
)
def test_a_path_of_something_else_is_refused(source, words, tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"PK")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=words):
        convert.convert_checkpoint(tmp_path / source, Mixture(), layout="torch")


def test_an_unknown_layout_is_refused():
    with pytest.raises(ArgumentError, match="layout='keras'"):
        convert.convert_checkpoint({}, Mixture(), layout="keras")


def test_a_source_of_another_type_is_refused():
    with pytest.raises(ArgumentTypeError, match="a path, bytes, or a mapping"):
        convert.convert_checkpoint(3, Mixture(), layout="torch")


@pytest.mark.parametrize("make", [plait.state, lambda model: model.kernel])
def test_a_state_knows_no_layers(make):
    part = make(plait.Linear(2, 2, rngs=plait.Rngs(0)))
    with pytest.raises(ArgumentTypeError, match="since the layouts depend on its layers"):
        convert.to_torch(part)
    with pytest.raises(ArgumentTypeError, match="since the layouts depend on its layers"):
        convert.convert_checkpoint({}, part, layout="torch")


class Tree(plait.Module):
    def __init__(self):
        self.tree = plait.Param({"a": jnp.ones(2)})


def test_a_variable_of_many_arrays_is_refused():
    with pytest.raises(ArgumentError, match=r"at +tree\n +found +a dict"):
        convert.to_torch(Tree())
    with pytest.raises(ConversionError, match="holds one array, not a dict, for tree"):
        convert.convert_checkpoint({"tree": np.ones(())}, Tree(), layout="torch")


def test_names_that_meet_on_the_way_back_are_refused():
    with pytest.raises(ArgumentError, match=r"found +the name same"):
        convert.to_torch(plait.Linear(2, 3, rngs=plait.Rngs(0)), names=lambda name: "same")


@pytest.mark.slow
def test_conversion_of_arrays_loads_no_other_library():
    program = """
import sys
import numpy as np
import plait
model = plait.Linear(2, 3, rngs=plait.Rngs(0))
plait.convert.convert_checkpoint(plait.convert.to_torch(model), model, layout="torch")
print({"flax", "torch", "orbax", "msgpack", "safetensors", "optax"} & set(sys.modules))
"""
    done = run_python("-c", program, env=environment())
    assert (done.stdout, done.stderr) == ("set()\n", "")


class Regularised(plait.Module):
    def __init__(self, rngs):
        self.fc = plait.Linear(2, 3, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.fc(x))


REGULARISED = {"fc.weight": np.ones((3, 2), np.float32), "fc.bias": np.zeros(3, np.float32)}


def test_an_abstract_model_gets_its_random_streams():
    model = plait.eval_shape(lambda: Regularised(plait.Rngs(0)))
    convert.convert_checkpoint(REGULARISED, model, layout="torch", update=True, rngs=plait.Rngs(5))
    assert model(jnp.ones((4, 2))).shape == (4, 3)
    assert sorted(set(np.asarray(model(jnp.ones((40, 2)))).ravel().tolist())) == [0.0, 4.0]
    again = plait.eval_shape(lambda: Regularised(plait.Rngs(0)))
    convert.convert_checkpoint(REGULARISED, again, layout="torch", update=True, rngs=plait.Rngs(5))
    again(jnp.ones((4, 2)))
    again(jnp.ones((40, 2)))
    np.testing.assert_array_equal(model(jnp.ones((40, 2))), again(jnp.ones((40, 2))))


@pytest.mark.parametrize("strict", [True, False])
def test_streams_that_would_stay_abstract_are_named(strict):
    model = plait.eval_shape(lambda: Regularised(plait.Rngs(0)))
    with pytest.raises(
        ConversionError, match=r"(?s)drop\.rngs\.count: RngCount.*drop\.rngs\.key.*rngs=plait\.Rngs\(0\)"
    ):
        convert.convert_checkpoint(REGULARISED, model, layout="torch", update=True, strict=strict)
    assert isinstance(model.fc.kernel.get_raw_value(), jax.ShapeDtypeStruct)
    assert set(convert.convert_checkpoint(REGULARISED, model, layout="torch", strict=strict).state) == {"fc"}


def test_the_streams_of_a_model_with_values_stay():
    model = Regularised(plait.Rngs(0))
    before = model.drop.rngs.key[...]
    convert.convert_checkpoint(REGULARISED, model, layout="torch", update=True, rngs=plait.Rngs(5))
    assert model.drop.rngs.key[...] == before


@pytest.mark.parametrize("name", [name for name in convert.__all__ if not name.endswith("_peft")])
def test_the_bridge_still_has_the_names_of_conversion(name):
    assert getattr(bridge, name) is getattr(convert, name)
    assert name in dir(bridge)


ADVICE = {
    "one part has another name": ("opt", r"do +rename with names=\{'opt': 'optimizer'\}"),
    "a part is missing": (None, r"do +strict=False keeps what the model has"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_the_advice_is_what_makes_it_fit(case):
    name, advice = ADVICE[case]
    model = plait.Dict(net=plait.Param(jnp.zeros(2)), optimizer=plait.Dict(w=plait.Param(jnp.zeros(2))))
    stored = {"net": np.ones(2, np.float32)} | ({f"{name}.w": np.ones(2, np.float32)} if name else {})
    with pytest.raises(ConversionError, match=advice):
        convert.convert_checkpoint(stored, model, layout="nnx", update=True)
    options = {"names": {name: "optimizer"}} if name else {"strict": False}
    convert.convert_checkpoint(stored, model, layout="nnx", update=True, **options)
    assert (model.net[0], model.optimizer.w[0]) == (1, 1 if name else 0)
