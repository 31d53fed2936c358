"""Which models are drawn: each family with each of its settings at two values or more.

``CASES`` are models that plait must agree with. ``odd_cases`` gives a family every key that any family knows, at values
that checkpoints seldom have, and leaves out each key of its own: plait agrees, or refuses the config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

LAYERS = 3
DECODER = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NEOX = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
TEXT = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
DISTIL = {
    "vocab_size": 40, "dim": 16, "hidden_dim": 20, "n_layers": LAYERS, "n_heads": 4, "max_position_embeddings": 32,
    "pad_token_id": 0,
}  # fmt: skip
MODERN = {**TEXT, "num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
          "cls_token_id": 1, "sep_token_id": 2}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 12,
    "patch_size": 4, "num_channels": 3,
}  # fmt: skip
DINO = {key: value for key, value in VISION.items() if key != "intermediate_size"}

BASES: dict[str, dict[str, Any]] = {
    "llama": DECODER,
    "mistral": {**DECODER, "sliding_window": 5},
    "qwen2": DECODER,
    "qwen3": {**DECODER, "head_dim": 6},
    "gemma": {**DECODER, "head_dim": 6, "tie_word_embeddings": True},
    "gemma2": {
        **DECODER, "head_dim": 6, "tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 9,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        **DECODER, "head_dim": 6, "tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 9,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    },
    "phi3": DECODER,
    "olmo2": DECODER,
    "granite": {
        **DECODER, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.7,
        "attention_multiplier": 0.3,
    },
    "smollm3": {**DECODER, "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1]},
    "starcoder2": {**DECODER, "tie_word_embeddings": True},
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "bert": TEXT,
    "roberta": {**TEXT, "pad_token_id": 1},
    "xlm-roberta": {**TEXT, "pad_token_id": 1},
    "distilbert": DISTIL,
    "modernbert": MODERN,
    "vit": VISION,
    "dinov2": DINO,
    "dinov2_with_registers": {**DINO, "num_register_tokens": 3},
}  # fmt: skip
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert")
VISIONS = ("vit", "dinov2", "dinov2_with_registers")
ROTARY = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "phi3",
    "olmo2",
    "granite",
    "smollm3",
    "starcoder2",
    "gpt_neox",
)


DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "distilbert": ("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
    "modernbert": ("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"),
    "dinov2": ("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
    "dinov2_with_registers": ("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
}


@dataclass(frozen=True)
class Case:
    """A model: its settings, its class, and what is changed in the ``config.json`` that was written.

    ``None`` removes a key there, and ``"null"`` sets it to null.
    """

    family: str
    label: str
    settings: dict[str, Any]
    edit: dict[str, Any] = field(default_factory=dict)
    head: str = ""  # a class of transformers; "" means AutoModelForCausalLM, or AutoModel for encoders
    odd: bool = False  # plait may refuse it
    shard_size: str = "1GB"
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return f"{self.family}-{self.label}"


def case(family: str, label: str, edit: dict[str, Any] | None = None, head: str = "", **settings: Any) -> Case:
    own = {key: settings.pop(key) for key in ("shard_size", "dtype") if key in settings and key == "shard_size"}
    return Case(family, label, {**BASES[family], **settings}, edit or {}, head, **own)


HALF = 3  # pairs of a head of 6; a head of 4 has 2
ACTIVATIONS = ("silu", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu")


def rotary(head_dim: int) -> dict[str, dict[str, Any]]:
    """Every scaling, as ``rope_scaling`` of published configs; ``head_dim`` is the rotated one."""
    pairs = head_dim // 2
    return {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 3.0},
        "dynamic-original": {"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 5},
        "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "yarn-betas": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
            "beta_slow": 0.5, "truncate": False,
        },
        "yarn-factor": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.7,
        },
        "yarn-mscale": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
            "mscale_all_dim": 1.4,
        },
        "llama3": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "longrope": {
            "rope_type": "longrope", "short_factor": [1.0 + 0.3 * i for i in range(pairs)], "factor": 8.0,
            "long_factor": [2.0 + 3.0 * i for i in range(pairs)], "original_max_position_embeddings": 64,
        },
        "longrope-long": {
            "rope_type": "longrope", "short_factor": [1.0 + 0.3 * i for i in range(pairs)], "factor": 8.0,
            "long_factor": [2.0 + 3.0 * i for i in range(pairs)], "original_max_position_embeddings": 6,
        },
    }  # fmt: skip


def _of_rotary(family: str) -> Iterator[Case]:
    base = BASES[family]
    head_dim = base.get("head_dim", base["hidden_size"] // base["num_attention_heads"])
    settings = {"partial_rotary_factor": 1.0, "hidden_size": 16} if family == "gpt_neox" else {}
    for label, scaling in rotary(head_dim).items():
        if family == "phi3" and not label.startswith("longrope"):
            continue  # it has no other
        parameters = {"rope_theta": 300.0, **scaling, **({"partial_rotary_factor": 1.0} if settings else {})}
        extra: dict[str, Any] = {"max_position_embeddings": 8} if label.startswith("dynamic") else {}
        if label == "longrope-long" and family == "phi3":
            extra["original_max_position_embeddings"] = 6
        elif label == "longrope" and family == "phi3":
            extra["original_max_position_embeddings"] = 64
        yield case(family, f"rope-{label}", rope_parameters=parameters, **extra)
        yield case(  # as published before release 5
            family, f"rope-{label}-older",
            {"rope_parameters": None, "rope_theta": 300.0, "rope_scaling": scaling,
             **({"rotary_pct": 1.0, "rotary_emb_base": 300.0, "rope_theta": None} if settings else {})},
            rope_parameters=parameters, **extra,
        )  # fmt: skip
    yield case(
        family,
        "rope-theta",
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 37.0,
            **({"partial_rotary_factor": 1.0} if settings else {}),
        },
    )
    yield case(
        family,
        "rope-theta-older",
        {"rope_parameters": None, "rope_theta": 37.0}
        if not settings
        else {"rope_parameters": None, "rotary_pct": 0.5, "rotary_emb_base": 37.0},
    )
    yield case(
        family,
        "rope-partial",
        rope_parameters={"rope_type": "default", "rope_theta": 37.0, "partial_rotary_factor": 0.5},
    )


def _decoders() -> Iterator[Case]:
    for family in ROTARY:
        yield case(family, "plain")
        yield from _of_rotary(family)
        yield case(
            family,
            "tied" if not BASES[family]["tie_word_embeddings"] else "untied",
            tie_word_embeddings=not BASES[family]["tie_word_embeddings"],
        )
        if family != "gpt_neox":
            yield case(family, "one-key-head", num_key_value_heads=1)
            yield case(family, "all-key-heads", num_key_value_heads=4)
            if family not in ("phi3", "qwen2", "starcoder2", "smollm3", "olmo2", "granite"):
                yield case(family, "head-dim", head_dim=10)
        eps = "norm_epsilon" if family == "starcoder2" else "layer_norm_eps" if family == "gpt_neox" else "rms_norm_eps"
        yield case(family, "epsilon", **{eps: 0.1})
        act = "hidden_activation" if family.startswith("gemma2") else "hidden_act"
        for name in ACTIVATIONS:
            yield case(family, f"act-{name}", **{act: name})
        yield case(family, "bf16", {"dtype": "bfloat16"}, dtype="bfloat16")
        yield case(family, "shards", shard_size="3KB")
        yield case(
            family,
            "dropouts",
            attention_dropout=0.3,
            resid_pdrop=0.2,
            embd_pdrop=0.2,
            residual_dropout=0.1,
            embedding_dropout=0.1,
            hidden_dropout=0.1,
        )
    for family in ("llama", "qwen3", "olmo2", "granite", "smollm3", "gemma", "gemma2", "gemma3_text"):
        yield case(family, "attention-bias", attention_bias=True)
    for family in ("llama", "granite", "smollm3"):
        yield case(family, "mlp-bias", mlp_bias=True)
        yield case(family, "all-biases", mlp_bias=True, attention_bias=True)
    yield case("llama", "tp", pretraining_tp=2)
    for family in ("mistral", "phi3", "starcoder2"):
        yield case(family, "window", sliding_window=3)
        yield case(family, "window-one", sliding_window=1)
        yield case(family, "no-window", sliding_window=None)
        yield case(family, "window-wide", sliding_window=100)
    for family in ("qwen2", "qwen3"):
        yield case(family, "window", use_sliding_window=True, sliding_window=4, max_window_layers=0)
        yield case(family, "window-late", use_sliding_window=True, sliding_window=4, max_window_layers=1)
        yield case(family, "window-off", use_sliding_window=False, sliding_window=4, max_window_layers=0)
        yield case(
            family,
            "window-older",
            {"layer_types": None},
            use_sliding_window=True,
            sliding_window=4,
            max_window_layers=1,
        )
        yield case(
            family,
            "layer-types",
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    for family in ("gemma2", "gemma3_text"):
        for value in (None, 1.5):
            yield case(family, f"attn-cap-{value}", attn_logit_softcapping=value)
            yield case(family, f"final-cap-{value}", final_logit_softcapping=value)
        yield case(family, "scalar", query_pre_attn_scalar=30)
        yield case(family, "window", sliding_window=2)
    yield case("gemma2", "layer-types", layer_types=["full_attention", "full_attention", "sliding_attention"])
    yield case("gemma2", "older", {"layer_types": None})
    yield case("gemma3_text", "plain")
    yield case("gemma3_text", "untied", tie_word_embeddings=False)
    yield case("gemma3_text", "one-key-head", num_key_value_heads=1)
    yield case("gemma3_text", "head-dim", head_dim=10)
    yield case("gemma3_text", "epsilon", rms_norm_eps=0.1)
    older = {"rope_parameters": None, "layer_types": None, "_sliding_window_pattern": None}
    yield case(
        "gemma3_text",
        "older",
        {**older, "rope_theta": 500.0, "rope_local_base_freq": 20.0, "sliding_window_pattern": 2},
    )
    yield case(
        "gemma3_text",
        "older-linear",
        {
            **older,
            "rope_theta": 500.0,
            "rope_local_base_freq": 20.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 3,
        },
    )
    yield case("gemma3_text", "older-defaults", older)
    for label, scaling in rotary(6).items():
        yield case(
            "gemma3_text",
            f"rope-{label}",
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                "full_attention": {"rope_theta": 300.0, **scaling},
            },
            **({"max_position_embeddings": 8} if label.startswith("dynamic") else {}),
        )
    yield case(
        "gemma3_text",
        "rope-both",
        rope_parameters={
            "sliding_attention": {"rope_type": "linear", "rope_theta": 20.0, "factor": 3.0},
            "full_attention": {
                "rope_type": "llama3",
                "rope_theta": 300.0,
                **{k: v for k, v in rotary(6)["llama3"].items() if k != "rope_type"},
            },
        },
    )
    for name in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"):
        yield case("granite", name, **{name: 0.45})
    yield case(
        "granite",
        "multipliers-default",
        embedding_multiplier=1.0,
        logits_scaling=1.0,
        residual_multiplier=1.0,
        attention_multiplier=1.0,
    )
    yield case("smollm3", "interval", no_rope_layers=None, no_rope_layer_interval=2)
    yield case("smollm3", "interval-older", {"no_rope_layers": None}, no_rope_layers=None, no_rope_layer_interval=3)
    yield case("smollm3", "all-rope", no_rope_layers=[1, 1, 1, 1])
    yield case("smollm3", "no-rope", no_rope_layers=[0, 0, 0, 0])
    yield case("smollm3", "window", use_sliding_window=True, sliding_window=4)
    yield case(
        "smollm3",
        "layer-types",
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    )
    yield case("starcoder2", "no-bias", use_bias=False)
    for factor in (0.25, 0.5, 1.0):
        yield case(
            "gpt_neox",
            f"rotary-{factor}",
            hidden_size=32,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": factor},
        )
        yield case(
            "gpt_neox",
            f"rotary-{factor}-older",
            {"rope_parameters": None, "rotary_pct": factor, "rotary_emb_base": 100},
            hidden_size=32,
        )
        yield case(
            "phi3",
            f"rotary-{factor}",
            hidden_size=32,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": factor},
        )
        yield case(
            "phi3",
            f"rotary-{factor}-older",
            {"rope_parameters": None, "rope_theta": 100.0, "partial_rotary_factor": factor},
            hidden_size=32,
        )
    for original in (6, 64):  # the one in rope_parameters does not count
        yield case(
            "phi3",
            f"longrope-original-{original}",
            {"original_max_position_embeddings": original},
            rope_parameters={"rope_theta": 300.0, **rotary(4)["longrope"]},
            original_max_position_embeddings=16,
        )
    for value in ("gelu", "relu"):  # as the first configs say; hidden_activation does not count
        yield case("gemma", f"act-first-{value}", {"hidden_act": value, "hidden_activation": "silu"})
    yield case("gpt_neox", "sequential", use_parallel_residual=False)
    yield case("gpt_neox", "no-bias", attention_bias=False)
    yield case("gpt2", "plain")
    yield case("gpt2", "untied", tie_word_embeddings=False)
    yield case("gpt2", "inner", n_inner=24)
    yield case("gpt2", "unscaled", scale_attn_weights=False)
    yield case("gpt2", "by-layer", scale_attn_by_inverse_layer_idx=True)
    yield case("gpt2", "by-layer-unscaled", scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False)
    yield case("gpt2", "upcast", reorder_and_upcast_attn=True)
    yield case("gpt2", "upcast-by-layer", reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True)
    yield case("gpt2", "epsilon", layer_norm_epsilon=0.1)
    yield case("gpt2", "shards", shard_size="3KB")
    for name in ACTIVATIONS:
        yield case("gpt2", f"act-{name}", activation_function=name)
    yield case("gpt2", "base-checkpoint", head="GPT2Model")
    yield case("llama", "base-checkpoint", head="LlamaModel", tie_word_embeddings=True)


def _encoders() -> Iterator[Case]:
    for family in (*ENCODERS, *VISIONS):
        yield case(family, "plain")
        yield case(family, "shards", shard_size="3KB")
        act = {"distilbert": "activation", "modernbert": "hidden_activation"}.get(family, "hidden_act")
        for name in ACTIVATIONS:
            yield case(family, f"act-{name}", **{act: name})
        if family != "distilbert":
            yield case(family, "epsilon", **{"norm_eps" if family == "modernbert" else "layer_norm_eps": 0.1})
        yield case(family, "dropouts", **dict.fromkeys(DROPOUTS.get(family, DROPOUTS["bert"]), 0.3))
        yield case(family, "one-head", **{"n_heads" if family == "distilbert" else "num_attention_heads": 1})
    for family, name in (
        ("bert", "Bert"),
        ("roberta", "Roberta"),
        ("xlm-roberta", "XLMRoberta"),
        ("distilbert", "DistilBert"),
        ("modernbert", "ModernBert"),
    ):
        for head in ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"):
            yield case(family, head, head=name + head)
    for family in ("bert", "roberta"):
        yield case(family, "types", type_vocab_size=3)
        yield case(family, "one-type", type_vocab_size=1)
        yield case(family, "no-pooler", head="without pooler")
        yield case(family, "pad", pad_token_id=3)
    yield case("bert", "older-names", head="gamma and beta")
    yield case("bert", "pretraining", head="BertForPreTraining")
    yield case("distilbert", "sinusoidal", sinusoidal_pos_embds=True)
    yield case("modernbert", "biases", attention_bias=True, mlp_bias=True, norm_bias=True)
    yield case("modernbert", "attention-bias", attention_bias=True)
    yield case("modernbert", "mlp-bias", mlp_bias=True)
    yield case("modernbert", "norm-bias", norm_bias=True)
    yield case("modernbert", "window", local_attention=2)
    yield case("modernbert", "window-odd", local_attention=5)
    yield case(
        "modernbert",
        "layer-types",
        layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"],
    )
    yield case(
        "modernbert",
        "older",
        {
            "layer_types": None,
            "rope_parameters": None,
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 300.0,
            "local_rope_theta": 20.0,
        },
    )
    yield case(
        "modernbert",
        "older-local-none",
        {
            "layer_types": None,
            "rope_parameters": None,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 300.0,
            "local_rope_theta": None,
        },
    )
    parts = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    yield case("modernbert", "rope-theta-beside", {"rope_parameters": parts, "global_rope_theta": 300.0})
    yield case("modernbert", "older-defaults", {"layer_types": None, "rope_parameters": None})
    for label, scaling in rotary(4).items():
        yield case(
            "modernbert",
            f"rope-{label}",
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                "full_attention": {"rope_theta": 300.0, **scaling},
            },
            **({"max_position_embeddings": 8} if label.startswith("dynamic") else {}),
        )
    yield case("vit", "no-qkv-bias", qkv_bias=False)
    yield case("vit", "pooler", pooler_output_size=12, pooler_act="relu")
    yield case("vit", "no-pooler", head="without pooler")
    yield case("vit", "classifier", head="ViTForImageClassification")
    for family in VISIONS:
        yield case(family, "channels", num_channels=1)
        if family == "vit":
            yield case(family, "wide", image_size=[8, 16])
        else:  # square, in patches that are not
            yield case(family, "patches", image_size=[8, 4], patch_size=[4, 2])
    for family, name in (("dinov2", "Dinov2"), ("dinov2_with_registers", "Dinov2WithRegisters")):
        yield case(family, "no-qkv-bias", qkv_bias=False)
        yield case(family, "swiglu", use_swiglu_ffn=True)
        yield case(family, "swiglu-act", use_swiglu_ffn=True, hidden_act="relu")
        yield case(family, "mlp-ratio", mlp_ratio=3)
        yield case(family, "layerscale", layerscale_value=0.3)
        yield case(family, "classifier", head=name + "ForImageClassification")
    yield case("dinov2", "no-mask-token", use_mask_token=False)
    yield case("dinov2_with_registers", "one-register", num_register_tokens=1)


CASES = (*_decoders(), *_encoders())

# Of a few kilobytes each, for tests/data/models: as many settings as one model of the family can have.
_SMALL = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
_SMALL_DECODER = {**_SMALL, "num_key_value_heads": 1, "max_position_embeddings": 24}
_SMALL_GPT2 = {"vocab_size": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 24}
_SMALL_IMAGE = {"hidden_size": 8, "num_attention_heads": 2, "image_size": 8}
_SMALL_DINO = {**_SMALL_IMAGE, "mlp_ratio": 2}
SAMPLE = tuple(
    dataclasses.replace(case(family, "sample", edit, **settings), dtype="bfloat16")
    for family, edit, settings in (
        (
            "llama",
            {"rope_parameters": None, "rope_theta": 300.0, "rope_scaling": rotary(4)["llama3"]},
            {**_SMALL_DECODER, "attention_bias": True, "rope_parameters": {"rope_theta": 300.0, **rotary(4)["llama3"]}},
        ),
        ("mistral", {}, {**_SMALL_DECODER, "sliding_window": 3, "tie_word_embeddings": True}),
        (
            "qwen2",
            {"layer_types": None},
            {**_SMALL_DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        ),
        ("qwen3", {}, {**_SMALL_DECODER, "rope_parameters": {"rope_theta": 300.0, **rotary(6)["yarn"]}}),
        ("gemma", {}, _SMALL_DECODER),
        ("gemma2", {}, {**_SMALL_DECODER, "layer_types": None}),
        (
            "gemma3_text",
            {"rope_parameters": None, "rope_theta": 500.0, "rope_local_base_freq": 20.0, "layer_types": None,
             "_sliding_window_pattern": None, "sliding_window_pattern": 2},
            {**_SMALL_DECODER, "layer_types": None},
        ),
        (
            "phi3",
            {},
            {**_SMALL_DECODER, "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 300.0, "short_factor": [1.3], "long_factor": [4.0],
                "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5}},
        ),
        ("olmo2", {}, _SMALL_DECODER),
        ("granite", {}, _SMALL_DECODER),
        ("smollm3", {}, {**_SMALL_DECODER, "no_rope_layers": [0, 1], "tie_word_embeddings": True}),
        ("starcoder2", {}, {**_SMALL_DECODER, "sliding_window": 4}),
        ("gpt2", {}, _SMALL_GPT2),
        ("gpt_neox", {}, {**_SMALL, "max_position_embeddings": 24, "rope_parameters": {
            "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}),
        ("bert", {}, {**_SMALL, "max_position_embeddings": 16}),
        ("roberta", {}, {**_SMALL, "max_position_embeddings": 16}),
        ("distilbert", {}, {"vocab_size": 16, "dim": 8, "hidden_dim": 12, "n_layers": 2, "n_heads": 2}),
        ("modernbert", {}, {**_SMALL, "layer_types": ["full_attention", "sliding_attention"], "mlp_bias": True}),
        ("vit", {}, {**_SMALL_IMAGE, "intermediate_size": 12}),
        ("dinov2", {}, {**_SMALL_DINO, "use_swiglu_ffn": True}),
        ("dinov2_with_registers", {}, {**_SMALL_DINO, "num_register_tokens": 2}),
    )
)  # fmt: skip
SAMPLE += tuple(
    Case("gpt2", f"odd-{key}-0", {**BASES["gpt2"], **_SMALL_GPT2}, {key: value}, odd=True, dtype="bfloat16")
    for key, value in (("reorder_and_upcast_attn", True), ("unheard_of", 1))
)

# Values that few checkpoints have, of keys of any family.
_ACTS = ("tanh", "sigmoid", "swish", "relu6", "relu2", "gelu_fast", "gelu_python", "gelu_10", "mish", "leaky_relu",
         "linear", "laplace", "gelu_accurate", "selu", "xielu", "hardswish")  # fmt: skip
_TYPES = ("sliding_attention", "full_attention")
ODD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function", "activation"), _ACTS),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "qkv_bias", "norm_bias", "decoder_bias", "tie_word_embeddings", "use_sliding_window", "use_bidirectional_attention", "use_parallel_residual", "is_decoder", "add_cross_attention", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "sinusoidal_pos_embds", "use_swiglu_ffn", "apply_layernorm", "use_mask_token", "use_cache", "use_qk_norm", "is_encoder_decoder", "torchscript", "output_hidden_states", "output_attentions", "return_dict", "classifier_bias", "sparse_prediction", "deterministic_flash_attn", "reshape_hidden_states", "bias", "qk_norm", "use_mean_pooling", "is_causal", "reference_compile", "tie_encoder_decoder"), (True, False)),
    "sliding_window": (None, 1, 3, 12, 0), "max_window_layers": (0, 1, 5), "sliding_window_pattern": (1, 2),
    "_sliding_window_pattern": (1, 2), "attention_chunk_size": (3,),
    "layer_types": (
        [_TYPES[0]] * LAYERS, [_TYPES[1]] * LAYERS, [*_TYPES, _TYPES[0]], ["chunked_attention"] * LAYERS,
        [_TYPES[0]] * 4, [*_TYPES, *_TYPES],
    ),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon"), (0.05, 1e-12)),
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta"), (50.0,)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), (0.5, 0.75)),
    "rope_scaling": (
        None, {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "default"},
        {"rope_type": "unknown", "factor": 2.0}, {"factor": 2.0}, {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": 2.0}, {"rope_type": "llama3", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8},
        {"rope_type": "proportional", "factor": 2.0}, {"type": "su", "factor": 2.0}, {"type": "mrope", "mrope_section": [1, 1]},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}, {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0]},
    ),
    "rope_parameters": (
        {"rope_type": "default"}, {"rope_theta": 50.0}, {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "attention_factor": 2.0},
        {"full_attention": {"rope_type": "default", "rope_theta": 50.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 9.0}},
    ),
    "head_dim": (8, 4, None), "num_key_value_heads": (1, None), "attn_logit_softcapping": (0.5, None), "final_logit_softcapping": (0.5, None),
    "query_pre_attn_scalar": (3,), "no_rope_layers": ([0] * LAYERS, [1] * LAYERS, [], [1, 0, 1, 0]), "no_rope_layer_interval": (1, 2),
    **dict.fromkeys(("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier", "logit_scale", "embedding_scale", "residual_scale", "layerscale_value", "mup_multiplier", "temperature", "initializer_range", "attention_dropout", "clip_qkv", "qkv_clip"), (0.5,)),
    "pretraining_tp": (2,), "position_embedding_type": ("relative_key", "relative_key_query", "absolute", "rotary"),
    "local_attention": (3, 1, -1), "global_attn_every_n_layers": (1, 2), "dtype": ("bfloat16", "float16"), "torch_dtype": ("bfloat16",),
    "chunk_size_feed_forward": (2, 4), "pooler_act": ("relu", "gelu"), "pooler_output_size": (8,), "mlp_ratio": (2,), "n_inner": (8, None),
    "n_positions": (32,), "max_position_embeddings": (30, 9), "original_max_position_embeddings": (6, 100), "pad_token_id": (3, None),
    "bos_token_id": (3, None), "eos_token_id": (4, [4, 5], None), "type_vocab_size": (1, 3), "num_register_tokens": (0, 2),
    "patch_size": (2, [4, 2]), "image_size": (8, [8, 4]), "num_channels": (1,), "encoder_stride": (2,),
    "classifier_pooling": ("mean",), "num_labels": (3,), "cross_attention_hidden_size": (8,), "pruned_heads": ({"0": [1]},),
    "rotary_dim": (2,), "num_experts": (4,), "vocab_size": (30,), "out_indices": ([1],), "architectures": (["Unknown"], None),
    "attn_implementation": ("sdpa",), "_attn_implementation": ("sdpa",), "pooling": ("mean",), "_name_or_path": ("x",),
    "summary_type": ("mean",), "problem_type": ("regression",), "intermediate_size": (12,), "hidden_dim": (12,), "n_layers": (2,),
    "num_hidden_layers": (2,), "num_attention_heads": (2,), "n_head": (2,), "hidden_dropout": (0.5,), "auto_map": ({"AutoModel": "x.Y"},),
    "quantization_config": ({"quant_method": "gptq", "bits": 4},), "transformers_version": ("4.30.0",),
    "initializer_cutoff_factor": (1.0,), "hidden_size_per_layer_input": (4,), "num_kv_shared_layers": (1,),
    "embedding_size": (8,), "factor": (2.0,), "unheard_of": (1,),
}  # fmt: skip


def odd_cases(family: str, known: Collection[str]) -> Iterator[Case]:
    """A family's odd cases; keys that its configs do not know get one value alone."""
    for key, values in ODD.items():
        for number, value in enumerate(values if key in known or key.startswith("rope_") else values[:1]):
            if BASES[family].get(key, "absent") != value:
                settings = (
                    {**BASES[family], key: value}
                    if key not in ("rope_scaling", "dtype", "torch_dtype")
                    else BASES[family]
                )
                edit = {key: value} if value is not None else {key: "null"}
                yield Case(family, f"odd-{key}-{number}", settings, edit, odd=True)
    for key in (*BASES[family], "rope_parameters", "layer_types", "hidden_act", "rope_theta", "num_key_value_heads"):
        yield Case(family, f"odd-without-{key}", BASES[family], {key: None}, odd=True)
