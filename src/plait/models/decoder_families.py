"""The families of decoders: how their configs are read, and the names of their weights.

The values of absent keys are those of the family's own config class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import numpy as np

from ..convert.layouts import Piece
from .decoder import Decoder, DecoderSettings, LayerSettings
from .family import Config, Family
from .rotary import Rotary, read_rotary, rotary_of

_DROPOUTS = (
    "attention_dropout", "attn_pdrop", "classifier_dropout", "embd_pdrop", "embedding_dropout", "hidden_dropout",
    "resid_pdrop", "residual_dropout",
)  # fmt: skip


# Configs --------------------------------------------------------------------------------------------------------------


def _sizes(
    config: Config,
    *,
    vocabulary: int = 32000,
    width: int = 4096,
    hidden: int = 11008,
    heads: int = 32,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    epsilon: tuple[str, float] = ("rms_norm_eps", 1e-6),
    tied: bool = False,
) -> dict[str, Any]:
    """What most configs say under the same names, from the values of absent keys."""
    config.ignore(*_DROPOUTS)
    width = config.take("hidden_size", int, width)
    heads = config.take("num_attention_heads", int, heads)
    kv_heads = config.take("num_key_value_heads", (int, NoneType), kv_heads)
    head_dim = config.take("head_dim", (int, NoneType), head_dim)
    return {
        "vocabulary": config.take("vocab_size", int, vocabulary),
        "width": width,
        "hidden": config.take("intermediate_size", int, hidden),
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": width // heads if head_dim is None else head_dim,
        "activation": config.activation(*activation),
        "epsilon": config.take(epsilon[0], float, epsilon[1]),
        "tied": config.take("tie_word_embeddings", bool, tied),
    }


def _attention_bias(config: Config, key: str = "attention_bias", default: bool = False) -> dict[str, Any]:
    bias = config.take(key, bool, default)
    return {"qkv_bias": bias, "out_bias": bias}


def _count(config: Config, default: int) -> int:
    return config.take("num_hidden_layers", int, default)


def _sliding(config: Config, count: int, is_sliding: Callable[[int], bool]) -> list[bool]:
    """Which layers have a sliding window: those of ``layer_types``, or else by their number."""
    types = config.take("layer_types", (list, NoneType), None)
    if types is None:
        return [is_sliding(i) for i in range(count)]
    if len(types) != count or not set(types) <= {"full_attention", "sliding_attention"}:
        raise config.error("layer_types", f"full_attention or sliding_attention for each of {count} layers")
    return [each == "sliding_attention" for each in types]


def _llama(config: Config) -> DecoderSettings:
    config.ignore("pretraining_tp")  # computes the same in several products
    sizes, bias = _sizes(config), _attention_bias(config)
    layer = LayerSettings(rotary=read_rotary(config, sizes["head_dim"], 2048))
    layers = (layer,) * _count(config, 32)
    return DecoderSettings(**sizes, **bias, mlp_bias=config.take("mlp_bias", bool, False), layers=layers)


def _mistral(config: Config) -> DecoderSettings:
    sizes = _sizes(config, hidden=14336, kv_heads=8)
    window = config.take("sliding_window", (int, NoneType), 4096)
    layer = LayerSettings(window, read_rotary(config, sizes["head_dim"], 131072))
    return DecoderSettings(**sizes, layers=(layer,) * _count(config, 32))


def _qwen(config: Config, *, third: bool) -> DecoderSettings:
    sizes = _sizes(config, vocabulary=151936, hidden=22016, kv_heads=32, head_dim=128 if third else None)
    rotary = read_rotary(config, sizes["head_dim"], 32768)
    count, first = _count(config, 32), config.take("max_window_layers", int, 28)
    window = config.take("sliding_window", (int, NoneType), 4096)
    if not config.take("use_sliding_window", bool, False):
        window = None
    sliding = _sliding(config, count, lambda i: window is not None and i >= first)
    layers = tuple(LayerSettings(window if each else None, rotary) for each in sliding)
    if third:
        return DecoderSettings(**sizes, **_attention_bias(config), qk_norm="head", layers=layers)
    return DecoderSettings(**sizes, qkv_bias=True, layers=layers)


def _gemma(config: Config, *, number: int) -> DecoderSettings:
    config.only("use_bidirectional_attention", None, False)
    first = number == 1
    sizes = _sizes(
        config,
        vocabulary=262208 if number == 3 else 256000,
        width=3072 if first else 2304,
        hidden=24576 if first else 9216,
        heads=16 if first else 8,
        kv_heads=16 if first else 4,
        head_dim=256,
        activation=("hidden_act" if first else "hidden_activation", "gelu_pytorch_tanh"),
        tied=True,
    )
    common = {**sizes, **_attention_bias(config), "norm_offset": 1.0, "embedding_scale": math.sqrt(sizes["width"])}
    count = _count(config, 28 if first else 26)
    if first:
        config.ignore("hidden_activation")
        return DecoderSettings(
            **common, layers=(LayerSettings(rotary=read_rotary(config, sizes["head_dim"], 8192)),) * count
        )
    config.ignore("hidden_act")
    scale = config.take("query_pre_attn_scalar", float, 256) ** -0.5
    window = config.take("sliding_window", (int, NoneType), 4096)
    every = 2
    if number == 3:
        every = config.take("_sliding_window_pattern", int, 6)
        every = config.take("sliding_window_pattern", int, every)
    near, far = (
        _gemma_rotaries(config, sizes["head_dim"])
        if number == 3
        else (read_rotary(config, sizes["head_dim"], 8192),) * 2
    )
    sliding = _sliding(config, count, lambda i: (i + 1) % every > 0)
    cap = config.take("attn_logit_softcapping", (float, NoneType), 50.0)  # which the third does not use
    return DecoderSettings(
        **common,
        layers=tuple(LayerSettings(window if each else None, near if each else far, scale) for each in sliding),
        norms="both",
        qk_norm="head" if number == 3 else None,
        soft_cap=cap if number == 2 else None,
        logit_soft_cap=config.take("final_logit_softcapping", (float, NoneType), 30.0 if number == 2 else None),
    )


def _gemma_rotaries(config: Config, head_dim: int) -> tuple[Rotary, Rotary]:
    """The rotary embeddings of layers with and without a window."""
    local = config.take("rope_local_base_freq", float, 10_000.0)
    given = config.values.get("rope_parameters")
    if isinstance(given, dict) and {"sliding_attention", "full_attention"} & set(given):
        both = config.part("rope_parameters")
        assert both is not None
        config.only("rope_scaling", None)
        theta = config.take("rope_theta", float, 1_000_000.0)
        parts = [both.part(key) or Config({}, "") for key in ("sliding_attention", "full_attention")]
        both.finish()
        limits = config.take("max_position_embeddings", int, 131072), None
        near, far = parts
        return rotary_of(near, head_dim, local, limits=limits), rotary_of(far, head_dim, theta, limits=limits)
    return rotary_of(Config({}, ""), head_dim, local), read_rotary(config, head_dim, 131072, theta=1_000_000.0)


def _phi3(config: Config) -> DecoderSettings:
    sizes = _sizes(config, vocabulary=32064, width=3072, hidden=8192, epsilon=("rms_norm_eps", 1e-5))
    config.only("attention_bias", False)
    window = config.take("sliding_window", (int, NoneType), None)
    rotary = read_rotary(config, sizes["head_dim"], 4096, part=1.0, original=4096, aliases={"su": "longrope"})
    return DecoderSettings(**sizes, layers=(LayerSettings(window, rotary),) * _count(config, 32))


def _olmo2(config: Config) -> DecoderSettings:
    sizes = _sizes(config, vocabulary=50304, epsilon=("rms_norm_eps", 1e-5))
    layer = LayerSettings(rotary=read_rotary(config, sizes["head_dim"], 2048))
    layers = (layer,) * _count(config, 32)
    return DecoderSettings(**sizes, **_attention_bias(config), norms="after", qk_norm="all", layers=layers)


def _granite(config: Config) -> DecoderSettings:
    sizes, bias = _sizes(config), _attention_bias(config)
    scale = config.take("attention_multiplier", float, 1.0)
    layer = LayerSettings(rotary=read_rotary(config, sizes["head_dim"], 2048), scale=scale)
    return DecoderSettings(
        **sizes,
        **bias,
        mlp_bias=config.take("mlp_bias", bool, False),
        embedding_scale=config.take("embedding_multiplier", float, 1.0),
        residual_scale=config.take("residual_multiplier", float, 1.0),
        logit_divisor=config.take("logits_scaling", float, 1.0),
        layers=(layer,) * _count(config, 32),
    )


def _smollm3(config: Config) -> DecoderSettings:
    sizes = _sizes(config, vocabulary=128256, width=2048, heads=16, kv_heads=4, tied=True)
    rotary = read_rotary(config, sizes["head_dim"], 32768, theta=2_000_000.0)
    count, every = _count(config, 36), config.take("no_rope_layer_interval", int, 4)
    turning = config.take("no_rope_layers", (list, NoneType), None)
    if turning is None:
        turning = [int((i + 1) % every != 0) for i in range(count)]
    if len(turning) != count or not set(turning) <= {0, 1}:
        raise config.error("no_rope_layers", f"0 or 1 for each of {count} layers")
    window = config.take("sliding_window", (int, NoneType), None)
    if not config.take("use_sliding_window", bool, False):
        window = None
    sliding = _sliding(config, count, lambda i: window is not None and not turning[i])
    layers = [
        LayerSettings(window if near else None, rotary if turns else None)
        for near, turns in zip(sliding, turning, strict=True)
    ]
    mlp_bias = config.take("mlp_bias", bool, False)
    return DecoderSettings(**sizes, **_attention_bias(config), mlp_bias=mlp_bias, layers=tuple(layers))


def _starcoder2(config: Config) -> DecoderSettings:
    sizes = _sizes(
        config,
        vocabulary=49152,
        width=3072,
        hidden=12288,
        heads=24,
        kv_heads=2,
        activation=("hidden_act", "gelu_pytorch_tanh"),
        epsilon=("norm_epsilon", 1e-5),
        tied=True,
    )
    bias = _attention_bias(config, "use_bias", default=True)
    window = config.take("sliding_window", (int, NoneType), None)
    layer = LayerSettings(window, read_rotary(config, sizes["head_dim"], 4096))
    layers = (layer,) * _count(config, 30)
    return DecoderSettings(**sizes, **bias, mlp_bias=bias["out_bias"], norm="layer", gated=False, layers=layers)


def _gpt2(config: Config) -> DecoderSettings:
    summary = (
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    )
    config.ignore(*_DROPOUTS, *summary, "n_ctx", "reorder_and_upcast_attn")
    width, heads = config.take("n_embd", int, 768), config.take("n_head", int, 12)
    inner = config.take("n_inner", (int, NoneType), None)
    scale = (width // heads) ** -0.5 if config.take("scale_attn_weights", bool, True) else 1.0
    by_layer = config.take("scale_attn_by_inverse_layer_idx", bool, False)
    scales = [scale / (i + 1 if by_layer else 1) for i in range(config.take("n_layer", int, 12))]
    return DecoderSettings(
        vocabulary=config.take("vocab_size", int, 50257),
        width=width,
        hidden=4 * width if inner is None else inner,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        layers=tuple(LayerSettings(scale=each) for each in scales),
        activation=config.activation("activation_function", "gelu_new"),
        epsilon=config.take("layer_norm_epsilon", float, 1e-5),
        tied=config.take("tie_word_embeddings", bool, True),
        norm="layer",
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        positions=config.take("n_positions", int, 1024),
    )


def _gpt_neox(config: Config) -> DecoderSettings:
    config.ignore("is_decoder")
    sizes = _sizes(
        config,
        vocabulary=50432,
        width=6144,
        hidden=24576,
        heads=64,
        activation=("hidden_act", "gelu"),
        epsilon=("layer_norm_eps", 1e-5),
    )
    names = ("rotary_emb_base", "rotary_pct")
    layer = LayerSettings(rotary=read_rotary(config, sizes["head_dim"], 2048, part=0.25, names=names))
    return DecoderSettings(
        **sizes,
        **_attention_bias(config, default=True),
        mlp_bias=True,
        norm="layer",
        gated=False,
        parallel=config.take("use_parallel_residual", bool, True),
        layers=(layer,) * _count(config, 44),
    )


# Names ----------------------------------------------------------------------------------------------------------------


def _names(s: DecoderSettings, outer: dict[str, str], layers: str, inner: dict[str, str]) -> list[Piece]:
    """The pieces of modules outside of the layers, and in them."""
    if s.tied:  # some files have the embeddings twice
        outer = {ours: theirs for ours, theirs in outer.items() if ours != "head"}
    pieces = [Piece(*pair) for pair in outer.items()]
    return pieces + [Piece(f"blocks.*.{ours}", f"{layers}.*.{theirs}") for ours, theirs in inner.items()]


def _unused(*names: str) -> list[Piece]:
    return [Piece((), name) for name in names]


_QKV = tuple(f"blocks.*.attention.{each}" for each in ("query", "key", "value"))


def _split(ours: Sequence[str], theirs: str, sizes: Sequence[int]) -> Piece:
    """One array of the file is several of the model, one after the other."""
    ends = np.cumsum(sizes)[:-1].tolist()
    return Piece(ours, theirs, lambda w: np.split(w, ends), lambda *parts: (np.concatenate(parts),))


def _llama_names(s: DecoderSettings, *, fused: bool = False) -> list[Piece]:
    inner = {"before_attention": "input_layernorm", "before_mlp": "post_attention_layernorm"}
    if s.norms != "before":
        inner["before_mlp"], inner["after_attention"] = "pre_feedforward_layernorm", inner["before_mlp"]
        inner["after_mlp"] = "post_feedforward_layernorm"
    inner |= {"attention.out": "self_attn.o_proj", "mlp.down": "mlp.down_proj"}
    inner |= {"attention.query_ln": "self_attn.q_norm", "attention.key_ln": "self_attn.k_norm"}
    pieces = []
    if fused:
        sizes = [heads * s.head_dim for heads in (s.heads, s.kv_heads, s.kv_heads)]
        pieces = [_split(_QKV, "model.layers.*.self_attn.qkv_proj", sizes)]
        halves = ("blocks.*.mlp.gate", "blocks.*.mlp.up")
        pieces.append(_split(halves, "model.layers.*.mlp.gate_up_proj", [s.hidden, s.hidden]))
    else:
        inner |= {f"attention.{each}": f"self_attn.{each[0]}_proj" for each in ("query", "key", "value")}
        inner |= {"mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj"}
    if not s.gated:
        inner |= {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    outer = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    return [
        *_names(s, outer, "model.layers", inner), *pieces,
        *_unused("model.layers.*.self_attn.rotary_emb", "model.rotary_emb", *["lm_head"] * s.tied),
    ]  # fmt: skip


def _gpt2_names(s: DecoderSettings) -> list[Piece]:
    """Kernels of GPT-2 have the inputs first."""

    def turned(ours: str, theirs: str) -> Piece:
        return Piece(f"blocks.*.{ours}", f"transformer.h.*.{theirs}", lambda w: (w.T,), lambda w: (w.T,))

    outer = {"embed": "transformer.wte", "positions.table": "transformer.wpe", "norm": "transformer.ln_f"}
    return [
        *_names(s, outer | {"head": "lm_head"}, "transformer.h", {"before_attention": "ln_1", "before_mlp": "ln_2"}),
        Piece(
            _QKV, "transformer.h.*.attn.c_attn",
            lambda w: np.split(w.T, 3), lambda *parts: (np.concatenate(parts).T,),
        ),
        *map(turned, ("attention.out", "mlp.up", "mlp.down"), ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
        *_unused("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias", *["lm_head"] * s.tied),
    ]  # fmt: skip


def _gpt_neox_names(s: DecoderSettings) -> list[Piece]:
    inner = {"before_attention": "input_layernorm", "before_mlp": "post_attention_layernorm"}
    inner |= {"attention.out": "attention.dense", "mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h"}

    def split(w: np.ndarray) -> list[np.ndarray]:  # query, key and value of each head
        by_head = w.reshape(s.heads, 3, s.head_dim, *w.shape[1:])
        return [by_head[:, i].reshape(-1, *w.shape[1:]) for i in range(3)]

    def joined(*parts: np.ndarray) -> tuple[np.ndarray]:
        by_head = [part.reshape(s.heads, s.head_dim, *part.shape[1:]) for part in parts]
        return (np.stack(by_head, axis=1).reshape(-1, *parts[0].shape[1:]),)

    outer = {"embed": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out"}
    attention = "gpt_neox.layers.*.attention"
    return [
        *_names(s, outer, "gpt_neox.layers", inner),
        Piece(_QKV, f"{attention}.query_key_value", split, joined),
        *_unused(*(f"{attention}.{each}" for each in ("bias", "masked_bias", "rotary_emb")), *["embed_out"] * s.tied),
    ]


def _family(read: Callable[[Config], DecoderSettings], **names: Any) -> Family:
    return Family(read, Decoder, functools.partial(_llama_names, **names), "model.")


FAMILIES: dict[str, Family] = {
    "gemma": _family(functools.partial(_gemma, number=1)),
    "gemma2": _family(functools.partial(_gemma, number=2)),
    "gemma3_text": _family(functools.partial(_gemma, number=3)),
    "gpt2": Family(_gpt2, Decoder, _gpt2_names, "transformer."),
    "gpt_neox": Family(_gpt_neox, Decoder, _gpt_neox_names, "gpt_neox."),
    "granite": _family(_granite),
    "llama": _family(_llama),
    "mistral": _family(_mistral),
    "olmo2": _family(_olmo2),
    "phi3": _family(_phi3, fused=True),
    "qwen2": _family(functools.partial(_qwen, third=False)),
    "qwen3": _family(functools.partial(_qwen, third=True)),
    "smollm3": _family(_smollm3),
    "starcoder2": _family(_starcoder2),
}
"""By ``model_type``."""
