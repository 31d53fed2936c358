"""The families of encoders: how their configs are read, and the names of their weights.

The values of absent keys are those of the family's own config class. A file of a model with a head, such as one that
predicts masked tokens, gives its base model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

from ..convert.layouts import Piece
from .encoder import Encoder, EncoderSettings, ImageSettings
from .family import ACTIVATIONS, Config, Family
from .rows import FLOAT, INT, QKV, Key, Names, Row, read_row

# Configs --------------------------------------------------------------------------------------------------------------

# Of heads that the model does not have, and of training.
_IGNORED = (
    "attention_dropout", "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing",
    "hidden_dropout_prob", "tie_word_embeddings",
)  # fmt: skip

_BERT: Row = {
    "vocabulary": Key("vocab_size", int, 30522),
    "positions": Key("max_position_embeddings", int, 512),
    "segments": Key("type_vocab_size", int, 2),
    "width": Key("hidden_size", int, 768),
    "hidden": Key("intermediate_size", int, 3072),
    "heads": Key("num_attention_heads", int, 12),
    "count": Key("num_hidden_layers", int, 12),
    "activation": Key("hidden_act", str, "gelu"),
    "epsilon": Key("layer_norm_eps", float, 1e-12),
    "is_causal": False,
    "norm": "layer",
    "norms": "sum",
    "gated": False,
    "qkv_bias": True,
    "mlp_bias": True,
    "pooled": "tanh",
    "ignored": (  # of multilingual models; none of them is used
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type",
    ),
    "only": {"is_decoder": (False,), "position_embedding_type": ("absolute",)},
}  # fmt: skip
_DISTILBERT: Row = {
    **_BERT, "segments": None, "width": Key("dim", int, 768), "hidden": Key("hidden_dim", int, 3072),
    "heads": Key("n_heads", int, 12), "count": Key("n_layers", int, 6), "activation": Key("activation", str, "gelu"),
    "epsilon": 1e-12, "pooled": None, "only": {},
    "ignored": (  # "sinusoidal_pos_embds" says how positions begin; they are stored
        "dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_",
    ),
}  # fmt: skip
_MODERNBERT: Row = {
    **_BERT, "vocabulary": Key("vocab_size", int, 50368), "positions": None, "segments": None,
    "hidden": Key("intermediate_size", int, 1152), "count": Key("num_hidden_layers", int, 22),
    "activation": Key("hidden_activation", str, "gelu"), "epsilon": Key("norm_eps", float, 1e-5), "norms": "before",
    "norm_bias": Key("norm_bias", bool, False), "qkv_bias": Key("attention_bias", bool, False),
    "mlp_bias": Key("mlp_bias", bool, False), "gated": True, "pooled": None,
    "window": Key("local_attention", int, 128), "theta": Key("global_rope_theta", float, 160_000.0),
    "local_theta": Key("local_rope_theta", FLOAT, 10_000.0), "limit": Key("max_position_embeddings", int, 8192),
    "only": {"rope_scaling": (None,)},
    "ignored": (
        "classifier_activation", "classifier_bias", "classifier_pooling", "cls_token_id", "decoder_bias",
        "deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor", "layer_norm_eps", "mlp_dropout",
        "position_embedding_type", "reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index",
        "sparse_prediction",
    ),
}  # fmt: skip
_VIT: Row = {
    **_BERT, "vocabulary": 0, "positions": None, "segments": None, "norms": "before", "out_bias": True,
    "qkv_bias": Key("qkv_bias", bool, True), "pooled": Key("pooler_act", str, "tanh"),
    "pooled_width": Key("pooler_output_size", INT), "image": Key("image_size", tuple, 224),
    "patch": Key("patch_size", tuple, 16), "channels": Key("num_channels", int, 3),
    "only": {"is_decoder": (False,)}, "ignored": ("encoder_stride",),
}  # fmt: skip
_DINOV2: Row = {
    **_VIT, "hidden": None, "epsilon": Key("layer_norm_eps", float, 1e-6), "layer_scale": True, "pooled": "first",
    "pooled_width": None, "patch": Key("patch_size", tuple, 14), "gated": Key("use_swiglu_ffn", bool, False),
    "ratio": Key("mlp_ratio", float, 4), "resize": "cubic", "has_mask": Key("use_mask_token", bool, True),
    "ignored": (  # "layerscale_value" is what stored factors begin with
        "apply_layernorm", "drop_path_rate", "layerscale_value", "out_features", "out_indices",
        "reshape_hidden_states", "stage_names",
    ),
}  # fmt: skip
_WITH_REGISTERS: Row = {
    **_DINOV2, "patch": Key("patch_size", tuple, 16), "registers": Key("num_register_tokens", int, 4),
    "resize": "antialiased", "has_mask": True,
}  # fmt: skip


def _read(row: Row, config: Config) -> EncoderSettings:
    return EncoderSettings(**read_row(row, config))


def _modernbert(row: Row, config: Config) -> EncoderSettings:
    """Some layers see a window around each position, and have another base of rotary embeddings."""
    every = config.take("global_attn_every_n_layers", int, 3)
    if config.values.get("local_rope_theta", 0) is None:
        row = {**row, "local_theta": row["theta"], "ignored": (*row["ignored"], "local_rope_theta")}
    said = read_row(row, config, lambda i: i % every > 0)
    layers = [
        dataclasses.replace(layer, window=layer.window and layer.window // 2, is_normed=i > 0)
        for i, layer in enumerate(said["layers"])
    ]
    return EncoderSettings(**{**said, "layers": tuple(layers)})


def _vision(row: Row, config: Config) -> EncoderSettings:
    said = read_row(row, config)
    image = {field.name: said.pop(field.name) for field in dataclasses.fields(ImageSettings) if field.name in said}
    if "ratio" in said:
        said["hidden"] = int(said["width"] * said.pop("ratio"))
        if said["gated"]:
            said |= {"hidden": (said["hidden"] * 2 // 3 + 7) // 8 * 8, "activation": "silu"}
    return EncoderSettings(**{**said, "image": ImageSettings(**image)})


# Names ----------------------------------------------------------------------------------------------------------------

_names = functools.partial(
    Names,
    unused=("embeddings.position_ids",),  # numbers from 0, in older files
    heads=(
        "classifier", "cls", "decoder", "head", "lm_head", "pre_classifier", "qa_outputs", "vocab_layer_norm",
        "vocab_projector", "vocab_transform",
    ),
)  # fmt: skip

_BERT_NAMES = _names(
    prefix="bert.",
    layers="encoder.layer",
    outer={
        "embed.tokens": "embeddings.word_embeddings",
        "embed.positions": "embeddings.position_embeddings",
        "embed.segments": "embeddings.token_type_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
    },
    inner={
        **{f"attention.{each}": f"attention.self.{each}" for each in ("query", "key", "value")},
        "attention.out": "attention.output.dense",
        "attention_sum": "attention.output.LayerNorm",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
        "mlp_sum": "output.LayerNorm",
    },
)
_ROBERTA_NAMES = dataclasses.replace(_BERT_NAMES, prefix="roberta.")
_DISTILBERT_NAMES = _names(
    prefix="distilbert.",
    layers="transformer.layer",
    outer=_BERT_NAMES.outer,
    inner={
        **{f"attention.{each}": f"attention.{each[0]}_lin" for each in ("query", "key", "value")},
        "attention.out": "attention.out_lin",
        "attention_sum": "sa_layer_norm",
        "mlp.up": "ffn.lin1",
        "mlp.down": "ffn.lin2",
        "mlp_sum": "output_layer_norm",
    },
)
_MODERNBERT_NAMES = _names(
    prefix="model.",
    layers="layers",
    outer={"embed.tokens": "embeddings.tok_embeddings", "embed.norm": "embeddings.norm", "norm": "final_norm"},
    inner={
        "before_attention": "attn_norm",
        QKV: "attn.Wqkv",
        "attention.out": "attn.Wo",
        "before_mlp": "mlp_norm",
        "mlp.gate mlp.up": "mlp.Wi",
        "mlp.down": "mlp.Wo",
    },
)
_ATTENTION = {
    **{f"attention.{each}": f"attention.attention.{each}" for each in ("query", "key", "value")},
    "attention.out": "attention.output.dense",
}
_VIT_NAMES = _names(
    prefix="vit.",
    layers="encoder.layer",
    outer={
        "embed.class_token": "embeddings.cls_token",
        "embed.mask_token": "embeddings.mask_token",
        "embed.positions": "embeddings.position_embeddings",
        "embed.patches": "embeddings.patch_embeddings.projection",
        "norm": "layernorm",
        "pooler": "pooler.dense",
    },
    inner={
        **_ATTENTION,
        "before_attention": "layernorm_before",
        "before_mlp": "layernorm_after",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
    },
)
_DINOV2_NAMES = dataclasses.replace(
    _VIT_NAMES,
    prefix="dinov2.",
    outer={**_VIT_NAMES.outer, "embed.registers": "embeddings.register_tokens"},
    inner={
        **_ATTENTION,
        "before_attention": "norm1",
        "before_mlp": "norm2",
        "attention_scale": "layer_scale1.lambda1",
        "mlp_scale": "layer_scale2.lambda1",
    },
)
_MLP = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
_GATED_MLP = {"mlp.gate mlp.up": "mlp.weights_in", "mlp.down": "mlp.weights_out"}


def _pieces(names: Names, s: EncoderSettings) -> list[Piece]:
    if s.layer_scale:
        names = dataclasses.replace(names, inner={**names.inner, **(_GATED_MLP if s.gated else _MLP)})
    return names.pieces(s)


# Families -------------------------------------------------------------------------------------------------------------


def _in_files(settings: EncoderSettings, names: Collection[str]) -> EncoderSettings:
    """The settings without the parts that files of models with another head lack."""
    if settings.pooled in ACTIVATIONS and not any("pooler." in name for name in names):
        settings = dataclasses.replace(settings, pooled=None)
    if settings.image is not None:
        has_mask = any(name.endswith("mask_token") for name in names)
        settings = dataclasses.replace(settings, image=dataclasses.replace(settings.image, has_mask=has_mask))
    return settings


def _family(
    row: Row, names: Names, read: Callable[[Row, Config], EncoderSettings] = _read, **differences: Any
) -> Family:
    row = {**row, **differences, "ignored": (*_IGNORED, *row["ignored"])}
    return Family(functools.partial(read, row), Encoder, functools.partial(_pieces, names), names.prefix, _in_files)


_ROBERTA: Row = {**_BERT, "padding": Key("pad_token_id", int, 1)}

FAMILIES: dict[str, Family] = {
    "bert": _family(_BERT, _BERT_NAMES),
    "distilbert": _family(_DISTILBERT, _DISTILBERT_NAMES),
    "dinov2": _family(_DINOV2, _DINOV2_NAMES, _vision),
    "dinov2_with_registers": _family(
        _WITH_REGISTERS, dataclasses.replace(_DINOV2_NAMES, prefix="dinov2_with_registers."), _vision
    ),
    "modernbert": _family(_MODERNBERT, _MODERNBERT_NAMES, _modernbert),
    "roberta": _family(_ROBERTA, _ROBERTA_NAMES, vocabulary=Key("vocab_size", int, 50265)),
    "vit": _family(_VIT, _VIT_NAMES, _vision),
    "xlm-roberta": _family(_ROBERTA, _ROBERTA_NAMES),
}
"""By ``model_type``."""
