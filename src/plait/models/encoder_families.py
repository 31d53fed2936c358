"""The families of encoders: how their configs are read, and the names of their weights.

The values of absent keys are those of the family's own config class. A file of a model with a head, such as one that
predicts masked tokens, gives its base model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from types import NoneType
from typing import Any

import numpy as np

from ..convert.layouts import Piece
from .encoder import Encoder, EncoderLayerSettings, EncoderSettings, ImageSettings, TextSettings
from .family import ACTIVATIONS, Config, Family
from .rotary import Rotary, rotary_of

# Configs --------------------------------------------------------------------------------------------------------------

_OF_HEADS = (
    "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing", "hidden_dropout_prob",
    "tie_word_embeddings",
)  # fmt: skip


def _sizes(config: Config, *, epsilon: float = 1e-12) -> dict[str, Any]:
    """What most configs say under the same names."""
    config.ignore(*_OF_HEADS)
    config.only("is_decoder", False)
    return {
        "width": config.take("hidden_size", int, 768),
        "heads": config.take("num_attention_heads", int, 12),
        "layers": (EncoderLayerSettings(),) * config.take("num_hidden_layers", int, 12),
        "activation": config.activation("hidden_act", "gelu"),
        "epsilon": config.take("layer_norm_eps", float, epsilon),
    }


def _bert(config: Config, *, vocabulary: int = 30522, counts_tokens: bool = False) -> EncoderSettings:
    config.only("position_embedding_type", "absolute")
    config.ignore(  # of multilingual models; none of them is used
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type",
    )  # fmt: skip
    text = TextSettings(
        config.take("vocab_size", int, vocabulary),
        config.take("max_position_embeddings", int, 512),
        config.take("type_vocab_size", int, 2),
        config.take("pad_token_id", int, 1) if counts_tokens else None,
    )
    hidden = config.take("intermediate_size", int, 3072)
    return EncoderSettings(text, hidden=hidden, pooled="tanh", **_sizes(config))


def _distilbert(config: Config) -> EncoderSettings:
    config.ignore(*_OF_HEADS, "attention_dropout", "dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_")
    config.ignore("sinusoidal_pos_embds")  # says how positions begin; they are stored
    text = TextSettings(config.take("vocab_size", int, 30522), config.take("max_position_embeddings", int, 512))
    return EncoderSettings(
        text,
        width=config.take("dim", int, 768),
        hidden=config.take("hidden_dim", int, 3072),
        heads=config.take("n_heads", int, 12),
        layers=(EncoderLayerSettings(),) * config.take("n_layers", int, 6),
        activation=config.activation("activation", "gelu"),
        epsilon=1e-12,
    )


def _modernbert(config: Config) -> EncoderSettings:
    config.ignore(
        *_OF_HEADS, "attention_dropout", "classifier_activation", "classifier_bias", "classifier_pooling",
        "cls_token_id", "decoder_bias", "deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor",
        "layer_norm_eps", "mlp_dropout", "position_embedding_type", "reference_compile", "repad_logits_with_grad",
        "sparse_pred_ignore_index", "sparse_prediction",
    )  # fmt: skip
    width, heads = config.take("hidden_size", int, 768), config.take("num_attention_heads", int, 12)
    count = config.take("num_hidden_layers", int, 22)
    every = config.take("global_attn_every_n_layers", int, 3)
    types = config.take("layer_types", (list, NoneType), None)
    if types is None:
        types = ["sliding_attention" if i % every else "full_attention" for i in range(count)]
    if len(types) != count or not set(types) <= {"full_attention", "sliding_attention"}:
        raise config.error("layer_types", f"full_attention or sliding_attention for each of {count} layers")
    rotaries = _rotaries(config, width // heads)
    reach = config.take("local_attention", int, 128) // 2
    attention_bias = config.take("attention_bias", bool, False)
    return EncoderSettings(
        TextSettings(config.take("vocab_size", int, 50368)),
        width=width,
        hidden=config.take("intermediate_size", int, 1152),
        heads=heads,
        layers=tuple(
            EncoderLayerSettings(None if each == "full_attention" else reach, rotaries[each], is_normed=i > 0)
            for i, each in enumerate(types)
        ),
        activation=config.activation("hidden_activation", "gelu"),
        epsilon=config.take("norm_eps", float, 1e-5),
        norms="before",
        norm_bias=config.take("norm_bias", bool, False),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=config.take("mlp_bias", bool, False),
        gated=True,
    )


def _rotaries(config: Config, head_dim: int) -> dict[str, Rotary]:
    """The rotary embedding of each type of layer."""
    bases = {
        "full_attention": config.take("global_rope_theta", float, 160_000.0),
        "sliding_attention": config.take("local_rope_theta", (float, NoneType), 10_000.0),
    }
    limits = config.take("max_position_embeddings", int, 8192), None
    given = config.part("rope_parameters") or Config({}, "")
    found = {}
    for name, base in bases.items():
        own = given.part(name) or Config({}, "")
        found[name] = rotary_of(own, head_dim, bases["full_attention"] if base is None else base, limits=limits)
    given.finish()
    return found


def _pair(config: Config, key: str, default: int) -> tuple[int, int]:
    size = config.take(key, (int, list), default)
    if isinstance(size, int):
        return size, size
    if len(size) != 2 or not all(type(each) is int for each in size):
        raise config.error(key, "a whole number, or two: height and width")
    return size[0], size[1]


def _vit(config: Config) -> EncoderSettings:
    config.ignore("encoder_stride")
    image = ImageSettings(
        _pair(config, "image_size", 224), _pair(config, "patch_size", 16), config.take("num_channels", int, 3)
    )
    return EncoderSettings(
        image,
        hidden=config.take("intermediate_size", int, 3072),
        norms="before",
        qkv_bias=config.take("qkv_bias", bool, True),
        pooled=config.activation("pooler_act", "tanh"),
        pooled_width=config.take("pooler_output_size", (int, NoneType), None),
        **_sizes(config),
    )


def _dinov2(config: Config, *, patch: int, registers: int | None = None) -> EncoderSettings:
    config.ignore(  # "layerscale_value" is what stored factors begin with
        "apply_layernorm", "drop_path_rate", "layerscale_value", "out_features", "out_indices",
        "reshape_hidden_states", "stage_names",
    )  # fmt: skip
    sizes = _sizes(config, epsilon=1e-6)
    gated = config.take("use_swiglu_ffn", bool, False)
    hidden = int(sizes["width"] * config.take("mlp_ratio", float, 4))
    if gated:
        hidden = (hidden * 2 // 3 + 7) // 8 * 8
        sizes["activation"] = "silu"
    image = ImageSettings(
        _pair(config, "image_size", 224),
        _pair(config, "patch_size", patch),
        config.take("num_channels", int, 3),
        registers=None if registers is None else config.take("num_register_tokens", int, registers),
        resize="cubic" if registers is None else "antialiased",
        has_mask=config.take("use_mask_token", bool, True) if registers is None else True,
    )
    qkv_bias = config.take("qkv_bias", bool, True)
    options: Any = {"qkv_bias": qkv_bias, "gated": gated, "layer_scale": True, "pooled": "first"}
    return EncoderSettings(image, hidden=hidden, norms="before", **options, **sizes)


# Names ----------------------------------------------------------------------------------------------------------------

_BERT = {
    "embed.tokens": "embeddings.word_embeddings",
    "embed.positions": "embeddings.position_embeddings",
    "embed.segments": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "blocks.*.attention.query": "encoder.layer.*.attention.self.query",
    "blocks.*.attention.key": "encoder.layer.*.attention.self.key",
    "blocks.*.attention.value": "encoder.layer.*.attention.self.value",
    "blocks.*.attention.out": "encoder.layer.*.attention.output.dense",
    "blocks.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "blocks.*.mlp.up": "encoder.layer.*.intermediate.dense",
    "blocks.*.mlp.down": "encoder.layer.*.output.dense",
    "blocks.*.mlp_norm": "encoder.layer.*.output.LayerNorm",
    "pooler": "pooler.dense",
}
_DISTILBERT = {
    "embed.tokens": "embeddings.word_embeddings",
    "embed.positions": "embeddings.position_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "blocks.*.attention.query": "transformer.layer.*.attention.q_lin",
    "blocks.*.attention.key": "transformer.layer.*.attention.k_lin",
    "blocks.*.attention.value": "transformer.layer.*.attention.v_lin",
    "blocks.*.attention.out": "transformer.layer.*.attention.out_lin",
    "blocks.*.attention_norm": "transformer.layer.*.sa_layer_norm",
    "blocks.*.mlp.up": "transformer.layer.*.ffn.lin1",
    "blocks.*.mlp.down": "transformer.layer.*.ffn.lin2",
    "blocks.*.mlp_norm": "transformer.layer.*.output_layer_norm",
}
_MODERNBERT = {
    "embed.tokens": "embeddings.tok_embeddings",
    "embed.norm": "embeddings.norm",
    "blocks.*.attention_norm": "layers.*.attn_norm",
    "blocks.*.attention.query blocks.*.attention.key blocks.*.attention.value": "layers.*.attn.Wqkv",
    "blocks.*.attention.out": "layers.*.attn.Wo",
    "blocks.*.mlp_norm": "layers.*.mlp_norm",
    "blocks.*.mlp.gate blocks.*.mlp.up": "layers.*.mlp.Wi",
    "blocks.*.mlp.down": "layers.*.mlp.Wo",
    "norm": "final_norm",
}
_VISION = {
    "embed.class_token": "embeddings.cls_token",
    "embed.mask_token": "embeddings.mask_token",
    "embed.positions": "embeddings.position_embeddings",
    "embed.patches": "embeddings.patch_embeddings.projection",
    "blocks.*.attention.query": "encoder.layer.*.attention.attention.query",
    "blocks.*.attention.key": "encoder.layer.*.attention.attention.key",
    "blocks.*.attention.value": "encoder.layer.*.attention.attention.value",
    "blocks.*.attention.out": "encoder.layer.*.attention.output.dense",
    "norm": "layernorm",
}
_VIT = {
    **_VISION,
    "blocks.*.attention_norm": "encoder.layer.*.layernorm_before",
    "blocks.*.mlp_norm": "encoder.layer.*.layernorm_after",
    "blocks.*.mlp.up": "encoder.layer.*.intermediate.dense",
    "blocks.*.mlp.down": "encoder.layer.*.output.dense",
    "pooler": "pooler.dense",
}
_DINOV2 = {
    **_VISION,
    "embed.registers": "embeddings.register_tokens",
    "blocks.*.attention_norm": "encoder.layer.*.norm1",
    "blocks.*.mlp_norm": "encoder.layer.*.norm2",
    "blocks.*.attention_scale": "encoder.layer.*.layer_scale1.lambda1",
    "blocks.*.mlp_scale": "encoder.layer.*.layer_scale2.lambda1",
}
_PLAIN_MLP = {"blocks.*.mlp.up": "encoder.layer.*.mlp.fc1", "blocks.*.mlp.down": "encoder.layer.*.mlp.fc2"}
_GATED_MLP = {
    "blocks.*.mlp.gate blocks.*.mlp.up": "encoder.layer.*.mlp.weights_in",
    "blocks.*.mlp.down": "encoder.layer.*.mlp.weights_out",
}


# What files have that a model does not need: numbers from 0 in older ones, and heads.
_BUFFERS = ("embeddings.position_ids",)
_HEADS = (
    "classifier", "cls", "decoder", "head", "lm_head", "pre_classifier", "qa_outputs", "vocab_layer_norm",
    "vocab_projector", "vocab_transform",
)  # fmt: skip


def _pieces(names: dict[str, str], prefix: str, settings: EncoderSettings) -> Sequence[Piece]:
    """A piece for each name of ours; several of ours are parts of one array of theirs, one after the other."""
    if settings.layer_scale:
        names = names | (_GATED_MLP if settings.gated else _PLAIN_MLP)
    found = [Piece((), [*(prefix + name for name in _BUFFERS), *_HEADS])]
    for ours, theirs in names.items():
        parts = tuple(ours.split())
        split = functools.partial(np.array_split, indices_or_sections=len(parts))
        found.append(Piece(parts, prefix + theirs, split, lambda *arrays: (np.concatenate(arrays),)))
    return found


def _in_files(settings: EncoderSettings, names: Collection[str]) -> EncoderSettings:
    """The settings without the parts that files of models with another head lack."""
    if settings.pooled in ACTIVATIONS and not any("pooler." in name for name in names):
        settings = dataclasses.replace(settings, pooled=None)
    if isinstance(settings.input, ImageSettings):
        has_mask = any(name.endswith("mask_token") for name in names)
        settings = dataclasses.replace(settings, input=dataclasses.replace(settings.input, has_mask=has_mask))
    return settings


def _family(read: Any, names: dict[str, str], prefix: str) -> Family:
    return Family(read, Encoder, functools.partial(_pieces, names, prefix), prefix, _in_files)


FAMILIES: dict[str, Family] = {
    "bert": _family(_bert, _BERT, "bert."),
    "distilbert": _family(_distilbert, _DISTILBERT, "distilbert."),
    "dinov2": _family(functools.partial(_dinov2, patch=14), _DINOV2, "dinov2."),
    "dinov2_with_registers": _family(
        functools.partial(_dinov2, patch=16, registers=4), _DINOV2, "dinov2_with_registers."
    ),
    "modernbert": _family(_modernbert, _MODERNBERT, "model."),
    "roberta": _family(functools.partial(_bert, vocabulary=50265, counts_tokens=True), _BERT, "roberta."),
    "vit": _family(_vit, _VIT, "vit."),
    "xlm-roberta": _family(functools.partial(_bert, counts_tokens=True), _BERT, "roberta."),
}
