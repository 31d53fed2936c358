"""Which modules correspond: by name, in the usual words, and by a map."""

import numpy as np
import pytest

from plait.errors import ArgumentError
from plait.inspect.compare.calls import Call, Run
from plait.inspect.compare.names import match, usual_name


def run(*calls):
    """A run in which each call is (path, class, size); those with paths below it ran inside."""
    made = []
    ends = {}
    for clock, (path, kind, size) in enumerate(calls, 1):
        parts = tuple(int(part) if part.isdecimal() else part for part in path.split(".") if part)
        made.append([parts, kind, size, clock])
        ends[parts] = clock
    order = sorted(made, key=lambda each: (max(end for p, end in ends.items() if p[: len(each[0])] == each[0]),
                                           -len(each[0])))  # fmt: skip
    exits = {each[0]: 1000 + n for n, each in enumerate(order)}
    result = []
    for parts, kind, size, enter in order:
        inner = [p for p in ends if p[: len(parts)] == parts and p != parts]
        leave = exits[parts] if inner else enter + 0.5
        result.append(Call(parts, (parts,), "", kind, None, {}, {}, {"": np.zeros(size)}, enter, leave))
    result.sort(key=lambda call: call.exit)
    return Run("plait", tuple(result))


def pairs(a, b, names=None):
    found = match(a, b, names)
    return {".".join(map(str, x.path)): ".".join(map(str, y.path)) for x, y in found.pairs}


OURS = run(
    ("", "Net", 5), ("embed", "Embed", 8), ("layers.0", "Block", 8), ("layers.0.norm1", "LayerNorm", 8),
    ("layers.0.attention", "Attention", 8), ("layers.0.attention.query", "Linear", 8),
    ("layers.0.attention.key", "Linear", 8), ("layers.0.mlp", "MLP", 8), ("layers.0.mlp.up", "Linear", 16),
    ("layers.0.mlp.down", "Linear", 8), ("head", "Linear", 5),
)  # fmt: skip


@pytest.mark.parametrize(
    "theirs",
    [
        ["embed_tokens", "layers.0", "layers.0.input_layernorm", "layers.0.self_attn", "layers.0.self_attn.q_proj",
         "layers.0.self_attn.k_proj", "layers.0.mlp", "layers.0.mlp.up_proj", "layers.0.mlp.down_proj", "lm_head"],
        ["wte", "h.0", "h.0.ln_1", "h.0.attn", "h.0.attn.q_proj", "h.0.attn.k_proj", "h.0.mlp", "h.0.mlp.c_fc",
         "h.0.mlp.fc_out", "lm_head"],
        ["Embedding", "blocks_0", "blocks_0.LayerNorm_1", "blocks_0.MultiHeadAttention",
         "blocks_0.MultiHeadAttention.q",
         "blocks_0.MultiHeadAttention.k", "blocks_0.FeedForward", "blocks_0.FeedForward.Dense_1",
         "blocks_0.FeedForward.Dense_2", "classifier"],
    ],
    ids=["llama", "gpt", "linen"],
)  # fmt: skip
def test_the_usual_names_are_known(theirs):
    calls = [(call.path, call.kind, call.outputs[""].size) for call in sorted(OURS.calls, key=lambda call: call.enter)]
    other = run(("", "Net", 5), *((name, kind, size) for name, (_, kind, size) in zip(theirs, calls[1:], strict=True)))
    ours = [".".join(map(str, path)) for path, _, _ in calls[1:]]
    assert pairs(OURS, other) == {"": "", **dict(zip(ours, theirs, strict=True))}


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("gate", "up", "down")])
def test_of_three_numbered_layers_the_first_is_the_gate(names):
    """The order of LLaMA and Mixtral. Without a third one, ``w1`` is the layer that widens, and ``w2`` the other."""
    ours = run(("", "Net", 5), *((f"h.0.mlp.{name}", "Linear", 16) for name in ("w1", "w3", "w2")))
    gate, up, down = (f"h.0.mlp.{name}" for name in names)
    for order in ((gate, up, down), (up, gate, down)):  # both may come first
        theirs = run(("", "Net", 5), *((name, "Linear", 16) for name in order))
        assert pairs(ours, theirs) == {"": "", "h.0.mlp.w1": gate, "h.0.mlp.w3": up, "h.0.mlp.w2": down}
        plain = run(("", "Net", 5), ("h.0.mlp.w1", "Linear", 16), ("h.0.mlp.w2", "Linear", 16))
        assert pairs(plain, theirs) == {"": "", "h.0.mlp.w1": up, "h.0.mlp.w2": down}


def test_a_map_comes_first_and_may_drop():
    a = run(("", "Net", 5), ("x", "Linear", 8), ("y", "Linear", 8))
    b = run(("", "Net", 5), ("model.x", "Linear", 8), ("model.y", "Linear", 8))
    assert pairs(a, b) == {"": "", "x": "model.x", "y": "model.y"}
    assert pairs(a, b, {"model.x": "y", "model.y": "x"}) == {"": "", "x": "model.y", "y": "model.x"}
    assert pairs(a, b, {"model.x": "y", "model.y": None}) == {"": "", "y": "model.x"}


USUAL = {  # what the layers are called in BERT, GPT, LLaMA, T5, DistilBERT, torch, Keras and Linen
    "attention": "attn self_attn self_attention selfattention mha multi_head_attention SelfAttention "
    "MultiHeadDotProductAttention multiheadattention MultiheadAttention",
    "query": "q q_proj wq to_q query_proj q_lin",
    "key": "k k_proj wk to_k key_proj k_lin",
    "value": "v v_proj wv to_v value_proj v_lin",
    "qkv": "c_attn in_proj qkv_proj query_key_value Wqkv to_qkv",
    "out": "o o_proj out_proj wo to_out out_lin",
    "mlp": "ffn feed_forward feedforward ff",
    "up": "fc1 linear1 dense1 up_proj c_fc w1 wi lin1 fc_1 fc_in linear_1 Dense_1",
    "down": "fc2 linear2 dense2 down_proj w2 lin2 fc_2 fc_out linear_2 dense_2",
    "gate": "gate_proj wi_gate",
    "norm1": "ln1 ln_1 norm_1 layer_norm1 layer_norm_1 input_layernorm attention_norm attn_norm pre_attention_norm",
    "norm2": "ln2 ln_2 norm_2 layer_norm2 LayerNorm_2 post_attention_layernorm ffn_norm mlp_norm pre_mlp_norm",
    "norm": "ln ln_f final_norm final_layernorm final_layer_norm norm_f layernorm LayerNorm",
    "layers": "layer blocks block h",
    "embed": "embedding embeddings tok_embeddings token_embedding tok_embed token_embed wte embed_tokens "
    "word_embeddings embedder",
    "positions": "wpe pos pos_embed pos_embedding position_embedding position_embeddings positional_embedding",
    "head": "lm_head classifier output_projection unembed logits",
}


@pytest.mark.parametrize("name", USUAL)
def test_a_name_of_another_library_is_the_usual_one(name):
    for word in (name, *USUAL[name].split()):
        assert usual_name((word,)) == name, word
        assert usual_name(("model", "transformer", word, 3)) == f"{name}.3"
        assert usual_name(("mlp", word)) == f"mlp.{name}"


def test_a_number_at_the_end_is_a_key_and_what_is_around_the_model_does_not_count():
    assert usual_name(("blocks_11", "Dense_0")) == "layers.11.dense.0"
    assert usual_name(("convBlock2",)) == "conv_block.2"
    for around in ("model", "transformer", "module", "backbone", "net"):
        assert usual_name((around, "stem")) == "stem"
        assert usual_name((around,)) == around
        assert usual_name(("stem", around)) == f"stem.{around}"
    assert usual_name(("mlp", "w1"), frozenset({("mlp",)})) == "mlp.gate"
    assert usual_name(("mlp", "w3"), frozenset({("mlp",)})) == "mlp.up"
    assert usual_name(("mlp", "w2"), frozenset({("mlp",)})) == "mlp.down"


def test_a_map_that_does_not_fit_is_told_in_full():
    a = run(("", "Net", 5), *((name, "Linear", 8) for name in ("u", "v")))
    b = run(("", "Net", 5), *((f"model.{name}", "Linear", 8) for name in "pqrstxyz"))
    with pytest.raises(ArgumentError, match=r"the name map does not fit the models\n +at +names\n") as caught:
        match(a, b, {"nowhere": "u", "model.p": "w"})
    assert caught.value.parts == {
        "at": "names",
        "found": "'nowhere', which matches nothing in b, model.p -> w",
        "expected": "names of b (model.p, model.q, model.r, model.s, model.t and 3 more) mapped to those of a (u, v)",
        "do": "names={'their.name': 'our.name'}, with dots between all keys: 'layers.0.attention'",
    }
    with pytest.raises(ArgumentError, match=r"model\.p -> w"):
        match(a, b, {"model.p": "w"})
    assert pairs(a, b, {"model.p": "w", "model.q": "u"})["u"] == "model.q"  # one of them leads somewhere


def test_models_without_anything_in_common_are_told_in_full():
    a = run(("", "Net", 5), *((name, "Linear", 8) for name in "uvwxyz"))
    b = run(("", "Net", 5), ("p", "Conv", 3))
    with pytest.raises(ArgumentError, match="no module of one model corresponds to one of the other") as caught:
        match(a, b)
    assert caught.value.parts == {
        "found": "a has u, v, w, x, y and 1 more; b has p",
        "expected": "equal names, usual names (self_attn for attention), or a map of names",
        "do": "plait.compare(a, b, x, names={'transformer.h.*': 'blocks.*'}), with names of b on the left",
    }
    for first, second in ((a, run(("", "Net", 5))), (run(("", "Net", 5)), b)):
        assert pairs(first, second) == {"": ""}
