"""Checkpoints that Linen wrote: the plait model gives Linen's logits, whatever the form of the checkpoint."""

import functools

import flax.core
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training.train_state import TrainState

import plait
from plait import convert
from plait.errors import CheckpointError, ConversionError
from tests.convert.linen_models import (
    FEATURES,
    IMAGES,
    RESNET_NAMES,
    TOKENS,
    LinenResNet,
    LinenTransformer,
    ResNet,
    Transformer,
    linen_recurrent,
    perturbed,
    recurrent,
)
from tests.sampling import slow_but

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("users_promotion")]


def _resnet():
    return LinenResNet(), ResNet(plait.Rngs(0)), IMAGES, RESNET_NAMES


def _transformer():
    return LinenTransformer(), Transformer(plait.Rngs(0)), TOKENS, None


@functools.cache
def linen_side(case):
    """Variables that no initializer gives, and Linen's logits."""
    theirs, _, x, _ = case()
    variables = perturbed(jax.jit(theirs.init)(jax.random.key(0), x), np.random.default_rng(5))
    return variables, jax.jit(theirs.apply)(variables, x)


def trained(case):
    """The variables of a Linen module, its plait twin, an input, names and Linen's logits."""
    variables, expected = linen_side(case)
    _, ours, x, names = case()
    return variables, ours, x, names, expected


@plait.jit
def forward(model, x):
    return model(x)


def to_msgpack(variables, folder):
    (folder / "checkpoint_7").write_bytes(flax.serialization.to_bytes(variables))
    return folder / "checkpoint_7"


def to_orbax(variables, folder):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "orbax", variables)
    return folder / "orbax"


def to_manager(variables, folder):
    with ocp.CheckpointManager(folder / "steps") as manager:
        manager.save(3, args=ocp.args.StandardSave(variables))
    return folder / "steps" / "3"


FORMS = {
    "msgpack file": to_msgpack,
    "msgpack bytes": lambda variables, _: flax.serialization.to_bytes(variables),
    "frozen variables": lambda variables, _: flax.core.freeze(variables),
    "orbax": to_orbax,
    "a step of a manager": to_manager,
}


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", slow_but([_transformer], [_resnet, _transformer]))
def test_logits_are_those_of_linen(case, form, tmp_path):
    variables, ours, x, names, expected = trained(case)
    source = FORMS[form](variables, tmp_path)
    done = convert.convert_checkpoint(source, ours, layout="linen", names=names, update=True)
    assert done.report.is_complete
    assert not done.report.unused_rules
    np.testing.assert_allclose(forward(ours, jnp.asarray(x)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (nn.LSTMCell, plait.LSTMCell),
        (nn.LSTMCell, plait.OptimizedLSTMCell),
        (nn.OptimizedLSTMCell, plait.OptimizedLSTMCell),
        (nn.SimpleCell, plait.SimpleCell),
        (nn.GRUCell, plait.GRUCell),
    ],
)
def test_recurrent_cells_are_those_of_linen(theirs, ours):
    theirs, ours = linen_recurrent(theirs), recurrent(ours, plait.Rngs(0))
    variables = perturbed(jax.jit(theirs.init)(jax.random.key(0), FEATURES), np.random.default_rng(5))
    if "hn" in variables["params"]["cell"]:
        variables["params"]["cell"]["hn"]["bias"] = np.zeros(6, np.float32)
    convert.convert_checkpoint(variables, ours, layout="linen", update=True)
    np.testing.assert_allclose(
        forward(ours, FEATURES), jax.jit(theirs.apply)(variables, FEATURES), atol=1e-5, rtol=1e-5
    )


@pytest.mark.slow
def test_collections_become_kinds_of_variables():
    variables, ours, _, names, _ = trained(_resnet)
    done = convert.convert_checkpoint(variables, ours, layout="linen", names=names)
    assert type(done.state["blocks"][0]["norm1"]["mean"]) is plait.BatchStat
    assert {each.collection for each in done.report.converted} == {"params", "batch_stats"}
    renamed = {each.variables: each.names for each in done.report.renamed}
    assert renamed[("blocks[1].norm2.var",)] == ("batch_stats.LinenBlock_1.BatchNorm_1.var",)
    assert ("stem.kernel",) in {each.variables for each in done.report.matched}


def test_a_tree_without_collections_is_that_of_params():
    variables, ours, x, _, expected = trained(_transformer)
    convert.convert_checkpoint(variables["params"], ours, layout="linen", update=True)
    np.testing.assert_allclose(forward(ours, x), expected, atol=1e-5, rtol=1e-5)


def test_a_train_state_is_converted_without_what_its_optimizer_remembers():
    variables, ours, x, _, expected = trained(_transformer)
    state = TrainState.create(apply_fn=None, params=variables["params"], tx=optax.adam(1e-3))
    data = flax.serialization.to_bytes(state)
    with pytest.raises(ConversionError, match=r"opt_state\.0\.count of the checkpoint"):
        convert.convert_checkpoint(data, ours, layout="linen")
    done = convert.convert_checkpoint(data, ours, layout="linen", names={"opt_state": None, "step": None}, update=True)
    assert "opt_state.0.mu.embed.embedding" in done.report.dropped
    np.testing.assert_allclose(forward(ours, x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_boxed_values_come_out_of_their_boxes(form, tmp_path):
    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
    variables = nn.Dense(3, kernel_init=init).init(jax.random.key(0), jnp.ones((1, 2)))
    ours = plait.Linear(2, 3, rngs=plait.Rngs(1))
    convert.convert_checkpoint(FORMS[form](variables, tmp_path), ours, layout="linen", update=True)
    np.testing.assert_array_equal(ours.kernel[...], variables["params"]["kernel"].value)


def test_arrays_in_pieces_and_every_kind_of_number_are_read(monkeypatch):
    tree = {
        "params": {
            "a": jnp.arange(3, dtype=jnp.bfloat16), "b": np.float32(2), "c": 1 + 2j, "d": np.arange(3) > 1,
            "e": [np.ones((0, 2)), 5], "f": np.complex64(1j), "g": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        }
    }  # fmt: skip
    whole = flax.serialization.to_bytes(tree)
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 16)
    pieces = flax.serialization.to_bytes(tree)
    assert pieces != whole
    from plait.convert.linen_bytes import read_linen_bytes

    for data in (whole, pieces):
        read, expected = read_linen_bytes(data), flax.serialization.msgpack_restore(data)
        assert jax.tree.structure(read) == jax.tree.structure(expected)
        for ours, theirs in zip(jax.tree.leaves(read), jax.tree.leaves(expected), strict=True):
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_truncated_file_is_refused_and_the_model_stays(keep, tmp_path):
    variables, ours, _, _, _ = trained(_transformer)
    before = plait.clone(ours)
    (tmp_path / "cut").write_bytes(flax.serialization.to_bytes(variables)[:keep])
    with pytest.raises(CheckpointError, match=r"at +.*cut"):
        convert.convert_checkpoint(tmp_path / "cut", ours, layout="linen", update=True)
    assert plait.state(ours) == plait.state(before)


def test_an_orbax_folder_that_lost_its_arrays_is_refused(tmp_path):
    path = to_orbax({"params": {"kernel": np.ones((2, 3), np.float32)}}, tmp_path)
    for file in [*path.glob("d/*"), *path.glob("ocdbt.process_0/d/*")]:
        file.unlink()
    with pytest.raises(CheckpointError, match="the Orbax checkpoint is incomplete or damaged"):
        convert.convert_checkpoint(path, plait.Linear(2, 3, rngs=plait.Rngs(0)), layout="linen")


def test_a_folder_of_several_items_is_told_by_their_names_and_one_of_them_is_read(tmp_path):
    with ocp.CheckpointManager(tmp_path / "steps") as manager:
        tree = {"kernel": np.ones((2, 3), np.float32)}
        args = {name: ocp.args.StandardSave(tree) for name in ("state", "ema")}
        manager.save(3, args=ocp.args.Composite(**args))
    step, model = tmp_path / "steps" / "3", plait.Linear(2, 3, use_bias=False, rngs=plait.Rngs(0))
    with pytest.raises(CheckpointError, match=r"params\.ema\.kernel of the checkpoint\n +params\.state\.kernel"):
        convert.convert_checkpoint(step, model, layout="linen")
    convert.convert_checkpoint(step / "ema", model, layout="linen", update=True)
    np.testing.assert_array_equal(model.kernel[...], 1)
