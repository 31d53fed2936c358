"""Encoders beyond what published models compute: what they have by keyword, and what they refuse (rules MO1 to MO9)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ConversionError, ShapeError

SAMPLE = Path(__file__).parents[1] / "data" / "models"
TOKENS = jnp.array([[3, 4, 5, 6], [7, 8, 0, 0]])


hidden = plait.jit(lambda model: model(TOKENS))


def load(name: str, **options):
    return plait.models.load(SAMPLE / f"{name}-sample", dtype=jnp.float32, **options)


def changed(name: str, to: Path, **keys) -> Path:
    """A copy with other values of the config."""
    shutil.copytree(SAMPLE / f"{name}-sample", to)
    config = json.loads((to / "config.json").read_text("utf-8")) | keys
    (to / "config.json").write_text(json.dumps(config), "utf-8")
    return to


def renamed(name: str, to: Path, rename) -> Path:
    """A copy whose arrays have other names, without those whose new name is empty."""
    arrays = plait.checkpoint.load_safetensors(SAMPLE / f"{name}-sample")
    plait.checkpoint.save_safetensors(to, {rename(old): array.read() for old, array in arrays.items() if rename(old)})
    shutil.copy(SAMPLE / f"{name}-sample" / "config.json", to)
    return to


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("bert", {"is_decoder": True}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("roberta", {"pad_token_id": None}),
        ("distilbert", {"activation": "laplace"}),
        ("modernbert", {"layer_types": ["full_attention"]}),
        ("modernbert", {"rope_parameters": {"rope_type": "default"}}),
        ("gpt_neox", {"head_dim": 8}),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}),
        ("vit", {"image_size": [8, 8, 8]}),
        ("dinov2", {"num_register_tokens": 4}),
    ],
)
def test_a_config_with_a_setting_that_is_not_supported_names_it(tmp_path, name, keys):
    folder = changed(name, tmp_path / "model", **keys)
    key = "rope_type" if "rope_parameters" in keys else next(iter(keys))
    with pytest.raises(ConversionError, match=rf"found +{key}: "):
        plait.models.load(folder, abstract=True)


def test_a_head_is_left_out_and_a_pooler_that_is_not_there_is_missing(tmp_path):
    def rename(old):
        return "cls.predictions.bias" if old == "pooler.dense.bias" else "" if "pooler" in old else f"bert.{old}"

    model = plait.models.load(renamed("bert", tmp_path / "model", rename), dtype=jnp.float32)
    np.testing.assert_array_equal(hidden(model), hidden(load("bert")))
    with pytest.raises(ArgumentError, match="pooled=True"):
        model(TOKENS, pooled=True)
    again = plait.models.load(plait.models.save(model, tmp_path / "again"))
    assert again.pooler is None


def test_names_of_the_first_checkpoints_of_bert_are_read(tmp_path):
    def rename(old):
        return old.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    model = plait.models.load(renamed("bert", tmp_path / "model", rename), dtype=jnp.float32)
    np.testing.assert_array_equal(hidden(model), hidden(load("bert")))


def test_a_name_that_is_no_head_is_an_error(tmp_path):
    folder = renamed(
        "bert", tmp_path / "model", lambda old: old.replace("embeddings.LayerNorm.bias", "embeddings.more")
    )
    with pytest.raises(ConversionError, match=r"embeddings\.more"):
        plait.models.load(folder)


def test_a_list_of_blocks_computes_what_a_stack_does():
    stacked, listed = load("bert"), load("bert", as_list=True)
    assert isinstance(stacked.blocks, plait.Stack)
    assert isinstance(listed.blocks, plait.List)
    np.testing.assert_allclose(hidden(listed), hidden(stacked), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "call", "error", "match"),
    [
        ("distilbert", lambda model: model(TOKENS, pooled=True), ArgumentError, "pooled=True"),
        ("distilbert", lambda model: model(TOKENS, segments=TOKENS), ArgumentError, "segments"),
        ("bert", lambda model: model(jnp.zeros((1, 17), jnp.int32)), ShapeError, r"found +17 tokens"),
        ("roberta", lambda model: model(jnp.zeros((1, 15), jnp.int32)), ShapeError, r"expected +at most 14"),
        ("vit", lambda model: model(jnp.zeros((1, 12, 8, 3))), ShapeError, r"expected +\(batch, 8, 8, 3\)"),
        ("vit", lambda model: model(jnp.zeros((1, 3, 8, 8))), ShapeError, r"found +shape \(1, 3, 8, 8\)"),
        ("vit", lambda model: model(jnp.zeros((1, 8, 8, 3)), mask=jnp.ones((1, 4))), ArgumentError, "masked patches"),
        ("dinov2", lambda model: model(jnp.zeros((1, 10, 8, 3))), ShapeError, "a multiple of 4"),
        ("dinov2", lambda model: model(jnp.zeros((2, 8, 8, 3)), mask=jnp.ones((2, 1))), ShapeError, r"mask .*\(2, 1\)"),
        ("bert", lambda model: model(TOKENS, segments=TOKENS[0]), ShapeError, "expected +.batch, length.: "),
    ],
)
def test_an_input_that_the_model_does_not_take_is_refused(name, call, error, match):
    with pytest.raises(error, match=match):
        call(load(name))
