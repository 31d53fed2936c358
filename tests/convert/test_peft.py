"""Adapters in PEFT's files, against NumPy on files that plait did not write."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.convert import load_peft, save_peft
from plait.errors import ArgumentError, CheckpointError
from tests.failing_renames import let_renames_fail
from tests.nn.twins import some_input

safetensors_numpy = pytest.importorskip("safetensors.numpy")
NAMES = {
    "model.layers.*.self_attn.q_proj": "blocks.*.attention.query",
    "model.layers.*.self_attn.v_proj": "blocks.*.attention.value",
    "model.embed_tokens": "embed",
    "model.conv": "conv",
    "lm_head": "head",
}
BACK = {ours: theirs for theirs, ours in NAMES.items()}
OUTS = {"q_proj": 8, "v_proj": 4}


class Block(plait.Module):
    def __init__(self, rngs):
        self.attention = plait.MultiHeadAttention(2, 8, num_kv_heads=1, decode=False, rngs=rngs)


class Net(plait.Module):
    def __init__(self, stacked):
        rngs = plait.Rngs(0)
        blocks = [Block(rngs) for _ in range(2)]
        self.blocks = plait.Stack(blocks) if stacked else plait.List(blocks)
        self.embed = plait.Embed(7, 8, rngs=rngs)
        self.conv = plait.Conv(8, 6, (3, 2), padding="VALID", rngs=rngs)
        self.head = plait.Linear(8, 5, rngs=rngs)


def peft_arrays(rank=2, odd=3):
    """What PEFT would write: A (r, in) and B (out, r); the head has another rank."""
    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    arrays = {}
    for layer in range(2):
        for name, out in OUTS.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            arrays |= {f"{at}.lora_A.weight": normal(rank, 8), f"{at}.lora_B.weight": normal(out, rank)}
    arrays["base_model.model.model.embed_tokens.lora_embedding_A"] = normal(rank, 7)
    arrays["base_model.model.model.embed_tokens.lora_embedding_B"] = normal(8, rank)
    arrays["base_model.model.model.conv.lora_A.weight"] = normal(rank, 8, 3, 2)
    arrays["base_model.model.model.conv.lora_B.weight"] = normal(6, rank, 1, 1)
    arrays["base_model.model.lm_head.lora_A.weight"] = normal(odd, 8)
    arrays["base_model.model.lm_head.lora_B.weight"] = normal(5, odd)
    return arrays


def written(folder, **changes):
    folder.mkdir(exist_ok=True)
    safetensors_numpy.save_file(peft_arrays(), str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA", "r": 2, "lora_alpha": 6, "lora_dropout": 0.0, "use_rslora": False, "bias": "none",
        "rank_pattern": {"lm_head": 3}, "alpha_pattern": {"lm_head": 12}, "target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    return folder


def weights_in_numpy(scale, scale_of_head):
    """The weights of the merged model, in the layout of PyTorch: W + scale · B A, in float64."""
    merged = {name: np.asarray(value, np.float64) for name, value in plait.convert.to_torch(Net(False)).items()}
    arrays = {name: np.asarray(value, np.float64) for name, value in peft_arrays().items()}
    at = "base_model.model."
    for layer in range(2):
        for theirs, ours in (("q_proj", "query"), ("v_proj", "value")):
            a, b = (arrays[f"{at}model.layers.{layer}.self_attn.{theirs}.lora_{factor}.weight"] for factor in "AB")
            merged[f"blocks.{layer}.attention.{ours}.weight"] += scale * b @ a
    a, b = (arrays[f"{at}model.embed_tokens.lora_embedding_{factor}"] for factor in "AB")
    merged["embed.weight"] += scale * (b @ a).T
    a, b = (arrays[f"{at}model.conv.lora_{factor}.weight"] for factor in "AB")
    merged["conv.weight"] += scale * np.einsum("or,rixy->oixy", b[:, :, 0, 0], a)
    a, b = (arrays[f"{at}lm_head.lora_{factor}.weight"] for factor in "AB")
    merged["head.weight"] += scale_of_head * b @ a
    return merged


@pytest.mark.sampled
@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])
@pytest.mark.parametrize(
    ("rslora", "scales"), [(False, (3.0, 4.0)), (True, (6 / np.sqrt(2), 12 / np.sqrt(3)))], ids=["plain", "rslora"]
)
def test_an_adapter_of_peft_gives_the_weights_that_numpy_computes(tmp_path, stacked, rslora, scales):
    model = Net(stacked)
    load_peft(written(tmp_path / "adapter", use_rslora=rslora), model, names=NAMES)
    plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
    expected, plain = weights_in_numpy(*scales), Net(False)
    listed = plait.as_list(model) if stacked else model
    assert plait.graphdef(listed) == plait.graphdef(plain)
    found = plait.convert.to_torch(listed)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])
def test_writing_it_again_gives_the_same_arrays(tmp_path, stacked):
    model = Net(stacked)
    load_peft(written(tmp_path / "adapter"), model, names=NAMES, adapter="mine")
    assert save_peft(str(tmp_path / "again"), model, names=BACK, adapter="mine") == tmp_path / "again"
    found = safetensors_numpy.load_file(str(tmp_path / "again" / "adapter_model.safetensors"))
    expected = peft_arrays()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    config = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (2, 6.0, False)
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({"lm_head": 3}, {"lm_head": 12.0})


@pytest.mark.slow
def test_it_is_one_of_several_adapters(tmp_path):
    model = Net(False)
    plait.add_lora(plait.select(model, "head"), 1, adapter="own", rngs=plait.Rngs(0))
    load_peft(written(tmp_path / "adapter"), model, names=NAMES, adapter="theirs")
    x = some_input(2, 8)
    alone = Net(False)
    load_peft(tmp_path / "adapter", alone, names=NAMES)
    np.testing.assert_allclose(model.head(x), alone.head(x), rtol=1e-6)
    plait.use_lora(model, "own")
    np.testing.assert_allclose(model.head(x), Net(False).head(x), rtol=1e-6)


def test_a_name_that_the_model_lacks_is_named_and_nothing_changes(tmp_path):
    model = Net(False)
    with pytest.raises(ArgumentError, match=r"at +lm_head\n[\s\S]*blocks\.0\.attention\.key[\s\S]*names="):
        load_peft(written(tmp_path / "adapter"), model)
    assert plait.graphdef(model) == plait.graphdef(Net(False))


def test_a_name_that_a_rule_drops_is_left_out_and_the_others_are_loaded(tmp_path):
    model, whole = Net(False), Net(False)
    written(tmp_path / "adapter")
    load_peft(tmp_path / "adapter", whole, names=NAMES)
    load_peft(tmp_path / "adapter", model, names={"model.layers.0": None, **NAMES, "model.conv": None})
    assert {path[:-1] for path, _ in plait.iter_graph(model) if path and path[-1] == "lora_a"} == {
        path[:-1] for path, _ in plait.iter_graph(whole)
        if path and path[-1] == "lora_a" and path[:2] != ("blocks", 0) and path[0] != "conv"
    }  # fmt: skip


def test_a_model_of_another_size_is_refused_and_nothing_changes(tmp_path):
    model = Net(False)
    model.head = plait.Linear(8, 9, rngs=plait.Rngs(0))
    before = plait.graphdef(model)
    with pytest.raises(ArgumentError, match=r"at +lm_head\.lora_B\n[\s\S]*\(5, 3\)[\s\S]*\(3, 9\)"):
        load_peft(written(tmp_path / "adapter"), model, names=NAMES)
    assert plait.graphdef(model) == before


@pytest.mark.parametrize(
    "changes",
    [{"peft_type": "IA3"}, {"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["head"]}]
    + [{"alora_invocation_tokens": [1]}, {"alpha_pattern": dict.fromkeys(map(str, range(10_001)), 1)}]
    + [{"lora_alpha": each} for each in ([1], "x", float("nan"), 10**400)]
    + [{"alpha_pattern": each} for each in ([1], {"lm_head": "x"}, {"(": 1}, {r"(\w+\w+)+!": 1}, {"layers.*": 1})]
    + [{"lora_dropout": each} for each in ("x", 1, -0.5)],
    ids=lambda changes: str(changes)[:60],
)
def test_values_that_plait_has_no_form_for_are_refused_and_nothing_changes(tmp_path, changes):
    model = Net(False)
    before = plait.graphdef(model)
    with pytest.raises(CheckpointError, match=next(iter(changes))):
        load_peft(written(tmp_path / "adapter", **changes), model, names=NAMES)
    assert plait.graphdef(model) == before


@pytest.mark.parametrize(
    ("pattern", "alphas"),
    [
        ("fc", (3, 1)),
        ("a.fc", (3, 1)),
        ("^a.fc$", (3, 1)),
        (r"a\.fc", (3, 1)),
        ("^fc", (1, 1)),
        ("f.", (3, 3)),
        ("c", (1, 1)),
    ],
)
def test_a_pattern_is_the_end_of_a_name_as_in_peft(tmp_path, pattern, alphas):
    """It matches whole parts of the name; a dot stands for any character."""
    make = lambda: plait.Dict(
        a=plait.Dict(fc=plait.Linear(2, 2, rngs=plait.Rngs(0)), fd=plait.Linear(2, 2, rngs=plait.Rngs(0)))
    )
    model = make()
    plait.add_lora(plait.select(model, "a.*"), 1, alpha=1, rngs=plait.Rngs(0))
    config = save_peft(tmp_path / "x", model) / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "alpha_pattern": {pattern: 3}}))
    load_peft(tmp_path / "x", model := make())
    assert (model.a.fc.alpha, model.a.fd.alpha) == alphas


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("A", np.zeros((0, 8), np.float32)),
        ("A", np.float32(1)),
        ("A", np.ones((8, 3), np.float32)),
        ("B", np.ones((3, 5), np.float32)),
        ("B", np.ones((5, 1, 3), np.float32)),
        ("A", np.ones((3, 8), np.complex64)),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_factors_of_another_layout_are_refused_and_nothing_changes(tmp_path, name, value):
    model, folder = Net(False), written(tmp_path / "adapter")
    before = plait.graphdef(model)
    arrays = {**peft_arrays(), f"base_model.model.lm_head.lora_{name}.weight": value}
    plait.checkpoint.save_safetensors(folder / "adapter_model.safetensors", arrays, overwrite=True)
    with pytest.raises((ArgumentError, CheckpointError), match=rf"lm_head\.lora_{name}"):
        load_peft(folder, model, names=NAMES)
    assert plait.graphdef(model) == before


def test_an_adapter_whose_name_one_layer_has_is_refused_and_nothing_changes(tmp_path):
    model = Net(False)
    plait.add_lora(plait.select(model, "head"), 1, rngs=plait.Rngs(0))
    before = plait.graphdef(model)
    with pytest.raises(ArgumentError, match=r"at +head\n"):
        load_peft(written(tmp_path / "adapter"), model, names=NAMES)
    assert plait.graphdef(model) == before


def test_what_peft_has_no_form_for_is_named(tmp_path):
    model = plait.Dict(a=plait.Einsum("ab,bc->ac", (2, 3), rngs=plait.Rngs(0)))
    plait.add_lora(plait.select(model, "a"), 1, rngs=plait.Rngs(0))
    with pytest.raises(ArgumentError, match=r"at +a\n[\s\S]*Einsum"):
        save_peft(tmp_path / "adapter", model)
    plait.checkpoint.save(tmp_path / "own", plait.variables(model, plait.LoRAParam))  # as advised
    with pytest.raises(ArgumentError, match=r"'default'[\s\S]*'other'"):
        save_peft(tmp_path / "adapter", model, adapter="other")


@pytest.mark.slow
def test_the_factors_are_in_the_dtype_of_the_weights(tmp_path):
    model = plait.Dict(fc=plait.Linear(8, 5, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0)))
    load_peft(written(tmp_path / "adapter"), model, names=lambda name: "fc" if name == "lm_head" else None)
    assert model.fc.lora_a.dtype == jnp.bfloat16


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_save_that_is_stopped_leaves_no_scales_of_other_weights(tmp_path, monkeypatch, stopped_at):
    for alpha in (1, 2):
        model = plait.Dict(fc=plait.Linear(2, 3, rngs=plait.Rngs(0)))
        plait.add_lora(plait.select(model, "fc"), 1, alpha=alpha, rngs=plait.Rngs(1))
        if alpha == 2:
            let_renames_fail(monkeypatch, (stopped_at,), KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                save_peft(tmp_path / "x", model)
        else:
            save_peft(tmp_path / "x", model)
    target = plait.Dict(fc=plait.Linear(2, 3, rngs=plait.Rngs(0)))
    if stopped_at == 0:  # the new files are written, and not yet in their places
        load_peft(tmp_path / "x", target)
        assert target.fc.scale == 1
    else:
        with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
            load_peft(tmp_path / "x", target)
