"""The families of decoders: how their configs are read, and the names of their weights.

A family is a row: what differs from Llama. What one computes from its config, such as which layers have a window, is a
function beside it. The values of absent keys are those of the family's own config class.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from ..convert.layouts import Piece
from .blocks import LayerSettings
from .decoder import Decoder, DecoderSettings
from .family import Config, Family
from .rows import FLOAT, INT, QKV, Key, Names, Row, read_row

# Configs --------------------------------------------------------------------------------------------------------------

_DROPOUTS = (
    "attention_dropout", "attn_pdrop", "classifier_dropout", "embd_pdrop", "embedding_dropout", "hidden_dropout",
    "resid_pdrop", "residual_dropout",
)  # fmt: skip

_LLAMA: Row = {
    "vocabulary": Key("vocab_size", int),
    "width": Key("hidden_size", int),
    "hidden": Key("intermediate_size", int),
    "heads": Key("num_attention_heads", int),
    "kv_heads": Key("num_key_value_heads", INT),
    "head_dim": Key("head_dim", INT),
    "activation": Key("hidden_act", str),
    "epsilon": Key("rms_norm_eps", float),
    "tied": Key("tie_word_embeddings", bool),
    "qkv_bias": Key("attention_bias", bool, False),
    "count": Key("num_hidden_layers", int),
    "theta": Key("rope_theta", float, 10_000.0),
    "limit": Key("max_position_embeddings", int),
    "only": {"partial_rotary_factor": (1.0, 1)},
}


def _read(row: Row, config: Config, is_sliding: Callable[[int], bool] | None = None) -> DecoderSettings:
    return DecoderSettings(**read_row(row, config, is_sliding))


def _qwen(row: Row, config: Config) -> DecoderSettings:
    first = config.take("max_window_layers", int, 28)
    return _read(row, config, lambda i: i >= first)


def _gemma(row: Row, config: Config, is_sliding: Callable[[int], bool] | None = None) -> DecoderSettings:
    settings = _read(row, config, is_sliding)
    return dataclasses.replace(settings, embedding_scale=math.sqrt(settings.width))


def _gemma1(row: Row, config: Config) -> DecoderSettings:
    """The first configs say ``gelu`` and mean its approximation."""
    settings = _gemma(row, config)
    return settings if settings.activation != "gelu" else dataclasses.replace(settings, activation="gelu_pytorch_tanh")


def _gemma2(row: Row, config: Config, every: int = 2) -> DecoderSettings:
    scale = config.take("query_pre_attn_scalar", float, 256) ** -0.5
    return _gemma({**row, "scale": scale}, config, lambda i: (i + 1) % every > 0)


def _gemma3(row: Row, config: Config) -> DecoderSettings:
    config.take("attn_logit_softcapping", FLOAT, None)  # is not used
    every = config.take("_sliding_window_pattern", int, 6)
    return _gemma2(row, config, config.take("sliding_window_pattern", int, every))


def _smollm3(row: Row, config: Config) -> DecoderSettings:
    """Some layers have no rotary embedding."""
    count, every = row["count"].read(config), config.take("no_rope_layer_interval", int, 4)
    turning = config.take("no_rope_layers", (list, NoneType), None)
    if turning is None:
        turning = [int((i + 1) % every != 0) for i in range(count)]
    if len(turning) != count or not set(turning) <= {0, 1}:
        raise config.error("no_rope_layers", f"0 or 1 for each of {count} layers")
    settings = _read(row, config, lambda i: not turning[i])
    layers = [
        layer if turns else dataclasses.replace(layer, rotary=None)
        for layer, turns in zip(settings.layers, turning, strict=True)
    ]
    return dataclasses.replace(settings, layers=tuple(layers))


def _gpt2(row: Row, config: Config) -> DecoderSettings:
    """Products of queries and keys may be scaled by the number of the layer."""
    settings = _read(row, config)
    scale = settings.head_dim**-0.5 if config.take("scale_attn_weights", bool, True) else 1.0
    by_layer = config.take("scale_attn_by_inverse_layer_idx", bool, False)
    scales = [scale / (i + 1 if by_layer else 1) for i in range(len(settings.layers))]
    return dataclasses.replace(settings, layers=tuple(LayerSettings(scale=each) for each in scales))


# Names ----------------------------------------------------------------------------------------------------------------


def _with_names(inner: Mapping[str, str]) -> Names:
    return dataclasses.replace(_LLAMA_NAMES, inner={**_LLAMA_NAMES.inner, **inner})


_COMMON = {
    "before_attention": "input_layernorm",
    "attention.query_ln": "self_attn.q_norm",
    "attention.key_ln": "self_attn.k_norm",
    "attention.out": "self_attn.o_proj",
    "before_mlp": "post_attention_layernorm",
    "mlp.down": "mlp.down_proj",
}
_LLAMA_NAMES = Names(
    prefix="model.",
    layers="layers",
    outer={"embed": "embed_tokens", "norm": "norm"},
    inner={
        **_COMMON,
        **{f"attention.{each}": f"self_attn.{each[0]}_proj" for each in ("query", "key", "value")},
        **{f"mlp.{each}": f"mlp.{each}_proj" for each in ("gate", "up")},
    },
    head="lm_head",
    unused=("layers.*.self_attn.rotary_emb", "rotary_emb"),
)
_PHI3_NAMES = dataclasses.replace(
    _LLAMA_NAMES, inner={**_COMMON, QKV: "self_attn.qkv_proj", "mlp.gate mlp.up": "mlp.gate_up_proj"}
)
_MORE_NORMS = {
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
_GPT2_NAMES = Names(
    prefix="transformer.",
    layers="h",
    outer={"embed": "wte", "positions.table": "wpe", "norm": "ln_f"},
    inner={
        "before_attention": "ln_1",
        QKV: "attn.c_attn",
        "attention.out": "attn.c_proj",
        "before_mlp": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    },
    head="lm_head",
    unused=("h.*.attn.bias", "h.*.attn.masked_bias"),
    order="inputs",
)
_GPT_NEOX_NAMES = Names(
    prefix="gpt_neox.",
    layers="layers",
    outer={"embed": "embed_in", "norm": "final_layer_norm"},
    inner={
        "before_attention": "input_layernorm",
        QKV: "attention.query_key_value",
        "attention.out": "attention.dense",
        "before_mlp": "post_attention_layernorm",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
    head="embed_out",
    unused=[f"layers.*.attention.{each}" for each in ("bias", "masked_bias", "rotary_emb")],
    order="heads",
)


# Families -------------------------------------------------------------------------------------------------------------

_COLUMNS = (
    "vocabulary", "width", "hidden", "heads", "kv_heads", "head_dim", "count", "limit", "window", "epsilon", "tied",
    "activation",
)  # fmt: skip
_ABSENT = {
    "gemma":       (256000, 3072, 24576, 16, 16,   256,  28, 8192,   None, 1e-6, True,  "gelu_pytorch_tanh"),
    "gemma2":      (256000, 2304, 9216,  8,  4,    256,  26, 8192,   4096, 1e-6, True,  "gelu_pytorch_tanh"),
    "gemma3_text": (262208, 2304, 9216,  8,  4,    256,  26, 131072, 4096, 1e-6, True,  "gelu_pytorch_tanh"),
    "gpt2":        (50257,  768,  None,  12, None, None, 12, None,   None, 1e-5, True,  "gelu_new"),
    "gpt_neox":    (50432,  6144, 24576, 64, None, None, 44, 2048,   None, 1e-5, False, "gelu"),
    "granite":     (32000,  4096, 11008, 32, None, None, 32, 2048,   None, 1e-6, False, "silu"),
    "llama":       (32000,  4096, 11008, 32, None, None, 32, 2048,   None, 1e-6, False, "silu"),
    "mistral":     (32000,  4096, 14336, 32, 8,    None, 32, 131072, 4096, 1e-6, False, "silu"),
    "olmo2":       (50304,  4096, 11008, 32, None, None, 32, 2048,   None, 1e-5, False, "silu"),
    "phi3":        (32064,  3072, 8192,  32, None, None, 32, 4096,   None, 1e-5, False, "silu"),
    "qwen2":       (151936, 4096, 22016, 32, 32,   None, 32, 32768,  4096, 1e-6, False, "silu"),
    "qwen3":       (151936, 4096, 22016, 32, 32,   128,  32, 32768,  4096, 1e-6, False, "silu"),
    "smollm3":     (128256, 2048, 11008, 16, 4,    None, 36, 32768,  None, 1e-6, True,  "silu"),
    "starcoder2":  (49152,  3072, 12288, 24, 2,    None, 30, 4096,   None, 1e-5, True,  "gelu_pytorch_tanh"),
}  # fmt: skip
"""What absent keys mean, by ``model_type``: the ``absent`` of the keys of these columns."""


def _family(
    name: str, read: Callable[[Row, Config], DecoderSettings] = _read, names: Names = _LLAMA_NAMES, **differences: Any
) -> Family:
    row = {**_LLAMA, **differences, "ignored": (*_DROPOUTS, *differences.get("ignored", ()))}
    absent = dict(zip(_COLUMNS, _ABSENT[name], strict=True))
    row |= {key: row[key]._replace(absent=absent[key]) for key in _COLUMNS if row.get(key)}
    pieces = functools.partial(_pieces, names)
    return Family(functools.partial(read, row), Decoder, pieces, names.prefix)


def _pieces(names: Names, s: DecoderSettings) -> list[Piece]:
    return names.pieces(s, s.tied)


_WINDOW: Row = {"window": Key("sliding_window", INT)}
_WINDOW_IF_USED: Row = {**_WINDOW, "uses_window": Key("use_sliding_window", bool, False)}
_MLP_BIAS: Row = {"mlp_bias": Key("mlp_bias", bool, False)}
_GPT: Row = {"norm": "layer", "gated": False}
_GEMMA: Row = {"norm_offset": 1.0, "only": {**_LLAMA["only"], "use_bidirectional_attention": (None, False)}}
_GEMMA2: Row = {
    **_GEMMA, **_WINDOW, "names": _with_names(_MORE_NORMS), "activation": Key("hidden_activation", str),
    "ignored": ("hidden_act",), "norms": "both",
}  # fmt: skip
_SUMMARY = [f"summary_{each}" for each in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")]

FAMILIES: dict[str, Family] = {
    "gemma": _family("gemma", _gemma1, **_GEMMA, ignored=("hidden_activation",)),
    "gemma2": _family(
        "gemma2", _gemma2, **_GEMMA2,
        soft_cap=Key("attn_logit_softcapping", FLOAT, 50.0),
        logit_soft_cap=Key("final_logit_softcapping", FLOAT, 30.0),
    ),
    "gemma3_text": _family(
        "gemma3_text", _gemma3, **_GEMMA2, qk_norm="head",
        logit_soft_cap=Key("final_logit_softcapping", FLOAT),
        theta=Key("rope_theta", float, 1_000_000.0), local_theta=Key("rope_local_base_freq", float, 10_000.0),
    ),
    "gpt2": _family(
        "gpt2", _gpt2, _GPT2_NAMES, **_GPT, qkv_bias=True, mlp_bias=True,
        width=Key("n_embd", int), hidden=Key("n_inner", INT), heads=Key("n_head", int), kv_heads=None, head_dim=None,
        count=Key("n_layer", int), activation=Key("activation_function", str),
        epsilon=Key("layer_norm_epsilon", float), positions=Key("n_positions", int, 1024), theta=None, limit=None,
        only={}, ignored=("n_ctx", "reorder_and_upcast_attn", *_SUMMARY),
    ),
    "gpt_neox": _family(
        "gpt_neox", names=_GPT_NEOX_NAMES, **_GPT, kv_heads=None, head_dim=None,
        qkv_bias=Key("attention_bias", bool, True), mlp_bias=True, epsilon=Key("layer_norm_eps", float),
        theta=Key("rotary_emb_base", float, 10_000.0), part=Key("rotary_pct", float, 0.25),
        parallel=Key("use_parallel_residual", bool, True), only={}, ignored=("is_decoder",),
    ),
    "granite": _family(
        "granite", **_MLP_BIAS,
        scale=Key("attention_multiplier", float, 1.0), embedding_scale=Key("embedding_multiplier", float, 1.0),
        residual_scale=Key("residual_multiplier", float, 1.0), logit_divisor=Key("logits_scaling", float, 1.0),
    ),
    "llama": _family("llama", **_MLP_BIAS, ignored=("pretraining_tp",)),  # the same, in several products
    "mistral": _family("mistral", **_WINDOW, qkv_bias=False),
    "olmo2": _family("olmo2", names=_with_names(_MORE_NORMS), norms="after", qk_norm="all"),
    "phi3": _family(
        "phi3", names=_PHI3_NAMES, **_WINDOW, qkv_bias=False, only={"attention_bias": (False,)},
        part=Key("partial_rotary_factor", float, 1.0), original=Key("original_max_position_embeddings", int, 4096),
    ),
    "qwen2": _family("qwen2", _qwen, **_WINDOW_IF_USED, qkv_bias=True, out_bias=False),
    "qwen3": _family("qwen3", _qwen, **_WINDOW_IF_USED, qk_norm="head"),
    "smollm3": _family(
        "smollm3", _smollm3, **_WINDOW_IF_USED, **_MLP_BIAS, theta=Key("rope_theta", float, 2_000_000.0),
    ),
    "starcoder2": _family(
        "starcoder2", names=_with_names({"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}), **_WINDOW, **_GPT,
        qkv_bias=Key("use_bias", bool, True), mlp_bias=Key("use_bias", bool, True), epsilon=Key("norm_epsilon", float),
    ),
}  # fmt: skip
"""By ``model_type``."""
