"""How published models are loaded: configs, names, dtypes, devices, quantization, saving (rules MO1 to MO9)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait.errors import ArgumentError, CheckpointError, CheckpointWarning, ConversionError
from plait.models.family import Config
from plait.models.shards import Shards

SAMPLE = Path(__file__).parents[1] / "data" / "models"
LLAMA, GPT2, PHI3 = SAMPLE / "llama-sample", SAMPLE / "gpt2-sample", SAMPLE / "phi3-sample"


def changed(folder: Path, to: Path, **keys) -> Path:
    """A copy with other values of the config."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text("utf-8")) | keys
    (to / "config.json").write_text(json.dumps(config), "utf-8")
    return to


def with_arrays(folder: Path, to: Path, change) -> Path:
    """A copy with other arrays."""
    arrays = {name: array.read() for name, array in plait.checkpoint.load_safetensors(folder).items()}
    change(arrays)
    plait.checkpoint.save_safetensors(to, arrays)
    shutil.copy(folder / "config.json", to)
    return to


def logits(model, folder: Path) -> np.ndarray:
    return np.asarray(model(jnp.asarray(np.load(folder / "expected.npz")["tokens"])), np.float32)


def same(first, second) -> bool:
    a, b = (jax.tree.leaves(plait.state(model)) for model in (first, second))
    return len(a) == len(b) and all(x.dtype == y.dtype and bool((x == y).all()) for x, y in zip(a, b, strict=True))


# Configs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model_type": "no_such"}, "model_type: 'no_such'"),
        ({"unheard_of": 3}, "unheard_of: 3"),
        ({"hidden_size": "16"}, "hidden_size: '16'"),
        ({"num_hidden_layers": True}, "num_hidden_layers: True"),
        ({"hidden_act": "unheard"}, "hidden_act: 'unheard'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: {'bits': 4}"),
        ({"rope_scaling": {"type": "unheard", "factor": 2.0}}, "type: 'unheard'"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_scaling: {.*"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "odd": 1}}, "odd: 1"),
        ({"rope_scaling": {"rope_type": "linear"}}, "no factor"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0"),
        ({"head_dim": 0}, "head_dim: 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan"),
        ({"model_type": ["llama"]}, "model_type: ..llama.."),
        ({"dtype": "int8"}, "dtype: 'int8'"),
    ],
)
def test_mo1_a_setting_that_is_not_supported_is_named(tmp_path, keys, named):
    with pytest.raises(ConversionError, match=f"found +{named}".replace("{", r"\{").replace("}", r"\}")):
        plait.models.load(changed(LLAMA, tmp_path / "folder", **keys))


def test_mo1_keys_are_taken_with_their_types():
    config = Config({"n": 3, "x": None, "y": 2, "flag": True}, "config.json")
    assert config.take("n", float) == 3
    assert config.take("x", (int, type(None)), 5) is None
    assert config.take("absent", int, 5) == 5
    for key, kind in (("flag", int), ("x", int), ("absent", int)):
        with pytest.raises(ConversionError, match=f"value of {key}"):
            config.take(key, kind)
    with pytest.raises(ConversionError, match="y: 2"):
        config.finish()
    config.only("y", 1, 2)
    config.finish()


def test_mo1_a_null_of_yarn_and_a_byte_order_mark_are_read(tmp_path):
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
    ours = plait.models.load(changed(LLAMA, tmp_path / "a", rope_scaling=rope, rope_parameters=None))
    folder = changed(LLAMA, tmp_path / "b", rope_scaling=rope | {"beta_fast": None}, rope_parameters=None)
    text = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + text)
    tokens = jnp.arange(6)[None]
    np.testing.assert_array_equal(ours(tokens), plait.models.load(folder)(tokens))


# Names ----------------------------------------------------------------------------------------------------------------


def test_mo3_missing_unexpected_and_mismatched_names_are_reported(tmp_path):
    def change(arrays):
        arrays["model.norm.scale"] = arrays.pop("model.norm.weight")
        arrays["lm_head.weight"] = arrays["lm_head.weight"][:, :-1]

    folder = with_arrays(LLAMA, tmp_path / "folder", change)
    with pytest.raises(ConversionError, match=r"model\.norm\.weight") as caught:
        plait.models.load(folder)
    report = caught.value.report
    assert [each.names for each in report.missing] == [("model.norm.weight",)]
    assert [each.names for each in report.mismatched] == [("lm_head.weight",)]
    assert report.unexpected == ("model.norm.scale",)


def test_mo3_without_strict_what_files_lack_stays_a_shape(tmp_path):
    folder = with_arrays(LLAMA, tmp_path / "folder", lambda arrays: arrays.pop("model.norm.weight"))
    with pytest.warns(CheckpointWarning, match=r"nothing under model\.norm\.weight"):
        model = plait.models.load(folder, strict=False)
    assert isinstance(model.norm.scale.get_raw_value(), jax.ShapeDtypeStruct)
    assert isinstance(model.head.kernel.get_raw_value(), jax.Array)


def test_mo3_names_of_a_base_model_and_buffers_are_known(tmp_path):
    def change(arrays):
        for name in list(arrays):
            arrays[name.removeprefix("transformer.")] = arrays.pop(name)
        arrays["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)

    folder = with_arrays(GPT2, tmp_path / "folder", change)
    assert same(plait.models.load(folder), plait.models.load(GPT2))


def test_mo3_a_folder_without_a_config_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        plait.models.load(tmp_path)


# Values ---------------------------------------------------------------------------------------------------------------


def test_mo5_the_dtype_is_that_of_the_config_or_the_one_given(tmp_path):
    folder = changed(LLAMA, tmp_path / "folder", torch_dtype="float16", dtype=None)
    assert {x.dtype.name for x in jax.tree.leaves(plait.state(plait.models.load(folder)))} == {"float16"}
    model = plait.models.load(folder, dtype=jnp.bfloat16)
    assert model(jnp.ones((1, 3), jnp.int32)).dtype == jnp.bfloat16


@pytest.mark.parametrize(("bits", "group_size"), [(8, None), (4, 4)])
def test_mo5_quantizing_while_loading_is_quantizing(bits, group_size):
    kernels = ("blocks.**", (plait.Linear, plait.LinearGeneral))
    model = plait.models.load(LLAMA)
    plait.quantize(plait.select(model, *kernels), bits, group_size=group_size)
    assert same(plait.models.load(LLAMA, quantize=bits, group_size=group_size), model)


def test_mo5_a_quantization_that_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match=r"at +blocks"):
        plait.models.load(LLAMA, quantize=8, group_size=7)
    with pytest.raises(ArgumentError, match="bits=3"):
        plait.models.load(LLAMA, quantize=3)


def test_mo6_shapes_parts_and_lists():
    model = plait.models.load(LLAMA, abstract=True)
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(plait.state(model)))
    model = plait.models.load(LLAMA, only="embed.**")
    assert isinstance(model.embed.embedding.get_raw_value(), jax.Array)
    assert isinstance(model.norm.scale.get_raw_value(), jax.ShapeDtypeStruct)
    listed, stacked = (plait.models.load(LLAMA, dtype=jnp.float32, as_list=as_list) for as_list in (True, False))
    assert isinstance(listed.blocks, plait.List)
    assert isinstance(stacked.blocks, plait.Stack)
    np.testing.assert_allclose(logits(listed, LLAMA), logits(stacked, LLAMA), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("as_list", [False, True])
def test_mo6_recomputing_changes_no_gradient(as_list):
    tokens = jnp.asarray(np.load(LLAMA / "expected.npz")["tokens"])
    grads = [
        plait.grad(lambda model: model(tokens).sum())(
            plait.models.load(LLAMA, dtype=jnp.float32, as_list=as_list, remat=remat)
        )
        for remat in (False, True)
    ]
    for a, b in zip(*map(jax.tree.leaves, grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_mo1_keys_that_transformers_passes_over_do_not_count(tmp_path):
    dynamic = {"rope_type": "dynamic", "factor": 3.0}
    original = {**dynamic, "original_max_position_embeddings": 5}
    found = [changed(LLAMA, tmp_path / f"{i}", rope_scaling=each) for i, each in enumerate((dynamic, original))]
    rope = json.loads((PHI3 / "config.json").read_text("utf-8"))["rope_parameters"]
    rope["original_max_position_embeddings"] = 3
    found += [PHI3, changed(PHI3, tmp_path / "phi3", rope_parameters=rope)]
    gemma = [{"hidden_act": "gelu", "hidden_activation": "relu"}, {"hidden_act": "gelu_pytorch_tanh"}]
    found += [changed(SAMPLE / "gemma-sample", tmp_path / f"gemma{i}", **each) for i, each in enumerate(gemma)]
    settings = [plait.models.load(folder, abstract=True).settings for folder in found]
    assert settings[::2] == settings[1::2]


# Devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_mo4_each_device_gets_its_part_and_the_numbers_stay(folder):
    mesh = jax.make_mesh((4, 2), ("fsdp", "model"), axis_types=(AxisType.Auto,) * 2)
    model, alone = (plait.models.load(folder, dtype=jnp.float32, mesh=each) for each in (mesh, None))
    kernel = model.blocks[0].mlp.up.kernel
    (whole,) = plait.select(model, "blocks.*.mlp.up.kernel").get().values()
    assert whole.sharding.spec == P(None, "fsdp", "model")
    assert whole.addressable_shards[0].data.shape[1:] == (kernel.shape[0] // 4, kernel.shape[1] // 2)
    assert same(model, alone)
    np.testing.assert_allclose(logits(model, folder), logits(alone, folder), atol=1e-4)


def test_mo4_rules_may_be_given():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    names = ("embed", "heads", "kv_heads", "head_dim", "mlp", "vocab", "norm", "layers")
    rules = [(name, "x" if name == "vocab" else None) for name in names]
    model = plait.models.load(LLAMA, mesh=mesh, rules=rules)
    assert model.embed.embedding.sharding.spec == P("x", None)


def test_mo4_no_device_sees_more_than_its_part():
    """The parts of a transposed array are views until they are copied."""
    values = np.arange(6 * 8, dtype=np.float32).reshape(8, 6).T
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(None, None, "x"))
    shards = Shards(jax.ShapeDtypeStruct((2, 6, 8), jnp.bfloat16, sharding=sharding))
    assert {part.shape for part in shards.parts.values()} == {(2, 6, 1)}
    shards.write((0,), values)
    shards.write((1,), -values)
    np.testing.assert_array_equal(np.asarray(shards.finish(), np.float32), np.stack([values, -values]))


# Generating -----------------------------------------------------------------------------------------------------------


def test_mo7_the_stop_tokens_are_the_publisher_s(tmp_path):
    folder = changed(LLAMA, tmp_path / "folder", eos_token_id=7)
    (folder / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert plait.models.load(folder, abstract=True).stop == (4, 5)
    (folder / "generation_config.json").unlink()
    assert plait.models.load(folder, abstract=True).stop == (7,)


def test_mo7_a_model_with_learned_positions_generates_no_longer_than_these():
    model = plait.models.load(GPT2)
    assert model.max_length is not None
    tokens = np.ones(model.max_length - 2, np.int32)
    assert plait.generate(model, tokens, 2).tokens.shape == (2,)
    with pytest.raises(ArgumentError, match=f"max_length={model.max_length}"):
        plait.generate(model, tokens, 3)


def test_mo7_a_longrope_model_generates_long_texts_on_request(tmp_path):
    pairs = json.loads((LLAMA / "config.json").read_text())["head_dim"] // 2
    longrope = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 6}
    longrope |= {"short_factor": [1.0] * pairs, "long_factor": [3.0] * pairs}
    folder = changed(LLAMA, tmp_path / "folder", rope_scaling=longrope)
    model = plait.models.load(folder, dtype=jnp.float32)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    with pytest.raises(ArgumentError, match="max_length=6"):
        plait.generate(model, prompt, 4)
    found = plait.generate(plait.view(model, long_context=True), prompt, 4).to_list()
    tokens = [*prompt]
    for _ in range(4):
        tokens.append(int(model(jnp.asarray([tokens]))[0, -1].argmax()))
    assert found == tokens[len(prompt) :]


# Saving ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [LLAMA, GPT2, PHI3, SAMPLE / "gpt_neox-sample"], ids=lambda folder: folder.name)
def test_mo8_what_is_saved_is_what_was_loaded(tmp_path, folder):
    model = plait.models.load(folder)
    plait.models.save(model, tmp_path / "saved", shard_bytes=1000)
    assert (tmp_path / "saved" / "model.safetensors.index.json").exists()
    before, after = (plait.checkpoint.load_safetensors(place) for place in (folder, tmp_path / "saved"))
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array.read(), after[name].read(), err_msg=name)
    assert same(plait.models.load(tmp_path / "saved"), model)


def test_mo8_the_config_is_that_of_the_folder_with_the_dtype_of_the_weights(tmp_path):
    plait.models.save(plait.models.load(LLAMA, dtype=jnp.float16), tmp_path / "saved")
    theirs, ours = (json.loads((place / "config.json").read_text()) for place in (LLAMA, tmp_path / "saved"))
    assert ours == theirs | {"dtype": "float16"}


def test_mo8_a_model_with_adapters_is_refused(tmp_path):
    model = plait.models.load(LLAMA)
    plait.add_lora(plait.select(model, "blocks.**.query"), 2, rngs=plait.Rngs(0))
    with pytest.raises(ArgumentError, match=r"at +blocks\[0\]\.attention\.query\.kernel"):
        plait.models.save(model, tmp_path / "saved")
    plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
    plait.models.save(model, tmp_path / "saved")
    with pytest.raises(CheckpointError, match="exists already"):
        plait.models.save(plait.models.load(LLAMA), tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "phi3"])
def test_mo9_an_adapter_of_the_hub_is_read_and_written_again(tmp_path, family):
    """PEFT drew it, for all linear layers; some are fused there, as queries, keys and values of GPT-2."""
    folder = SAMPLE / f"{family}-sample"
    expected = np.load(folder / "adapter" / "expected.npz")["logits"]
    model = plait.models.load(folder, dtype=jnp.float32)
    plait.models.load_adapter(folder / "adapter", model)
    np.testing.assert_allclose(logits(model, folder), expected, atol=1e-4 * np.abs(expected).max())
    plait.select(model, "blocks.*.attention.key.lora_b").map(lambda path, value: value + 0.1)
    again = plait.models.load(folder, dtype=jnp.float32)
    plait.models.load_adapter(plait.models.save_adapter(model, tmp_path / "adapter"), again)
    np.testing.assert_allclose(logits(again, folder), logits(model, folder), rtol=1e-3, atol=1e-3)


def test_mo9_a_part_of_a_fused_module_may_have_an_adapter(tmp_path):
    model = plait.models.load(GPT2, dtype=jnp.float32)
    plait.add_lora(plait.select(model, "blocks.*.attention.value"), 2, alpha=3, rngs=plait.Rngs(0))
    plait.select(model, "**.lora_b").map(lambda path, value: value + 0.1)
    folder = plait.models.save_adapter(model, tmp_path / "adapter")
    stored = plait.checkpoint.load_safetensors(folder / "adapter_model.safetensors")
    assert "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight" in stored
    again = plait.models.load(GPT2, dtype=jnp.float32)
    plait.models.load_adapter(folder, again)
    np.testing.assert_allclose(logits(again, GPT2), logits(model, GPT2), atol=1e-5)


def test_mo9_an_adapter_of_another_model_is_refused(tmp_path):
    model = plait.models.load(LLAMA, dtype=jnp.float32)
    with pytest.raises(ArgumentError, match=r"transformer\.h\.0"):
        plait.models.load_adapter(GPT2 / "adapter", model)
    assert same(model, plait.models.load(LLAMA, dtype=jnp.float32))


def test_mo4_the_current_mesh_serves_without_rules():
    mesh = jax.make_mesh(
        (2, 2), ("fsdp", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    with jax.set_mesh(mesh):
        model = plait.models.load(LLAMA)
    assert model.head.kernel.get_raw_value().sharding.mesh == mesh
