"""Which modules correspond: by name, in the usual words, by order and size, and by a map."""

import numpy as np
import pytest

from plait.comparison.calls import Call, Run
from plait.comparison.names import family, match


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
        result.append(Call(parts, (parts,), "", kind, None, {}, {}, [np.zeros(size)], enter, leave))
    result.sort(key=lambda call: call.exit)
    return Run("plait", tuple(result), lambda call: {})


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
    calls = [(call.path, call.kind, call.outputs[0].size) for call in sorted(OURS.calls, key=lambda call: call.enter)]
    other = run(("", "Net", 5), *((name, kind, size) for name, (_, kind, size) in zip(theirs, calls[1:], strict=True)))
    ours = [".".join(map(str, path)) for path, _, _ in calls[1:]]
    assert pairs(OURS, other) == {"": "", **dict(zip(ours, theirs, strict=True))}


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("gate", "up", "down")])
def test_of_three_numbered_layers_the_first_is_the_gate(names):
    """The order of LLaMA and Mixtral. Without a third one, ``w1`` is the layer that widens, and ``w2`` the other."""
    ours = run(("", "Net", 5), *((f"mlp.{name}", "Linear", 16) for name in ("w1", "w3", "w2")))
    theirs = run(("", "Net", 5), *((f"mlp.{name}", "Linear", 16) for name in names))
    gate, up, down = (f"mlp.{name}" for name in names)
    assert pairs(ours, theirs) == {"": "", "mlp.w1": gate, "mlp.w3": up, "mlp.w2": down}
    plain = run(("", "Net", 5), ("mlp.w1", "Linear", 16), ("mlp.w2", "Linear", 16))
    assert pairs(plain, theirs) == {"": "", "mlp.w1": up, "mlp.w2": down}


def test_what_has_other_names_is_matched_by_kind_size_and_order_inside_of_its_neighbours():
    other = run(
        ("", "Net", 5), ("table", "Embedding", 8), ("layers.0", "Layer", 8), ("layers.0.before", "LayerNorm", 8),
        ("layers.0.self_attn", "Attention", 8), ("layers.0.self_attn.one", "Dense", 8),
        ("layers.0.self_attn.two", "Dense", 8), ("layers.0.wide", "Dense", 16), ("layers.0.narrow", "Dense", 8),
        ("layers.0.act", "GELU", 16), ("last", "Dense", 5),
    )  # fmt: skip
    found = pairs(OURS, other)
    assert found == {
        "": "", "embed": "table", "layers.0": "layers.0", "layers.0.norm1": "layers.0.before",
        "layers.0.attention": "layers.0.self_attn", "layers.0.attention.query": "layers.0.self_attn.one",
        "layers.0.attention.key": "layers.0.self_attn.two", "layers.0.mlp.up": "layers.0.wide",
        "layers.0.mlp.down": "layers.0.narrow", "head": "last",
    }  # fmt: skip
    assert match(OURS, other).unmatched_a == ("layers[0].mlp",)
    assert match(OURS, other).unmatched_b == ("layers[0].act",)


def test_a_module_around_the_counterparts_of_the_parts_is_the_counterpart():
    a = run(("", "Net", 5), ("inner", "Stage", 8), ("inner.x", "Linear", 8), ("inner.y", "Linear", 8))
    b = run(("", "Net", 5), ("whole", "Section", 8), ("whole.x", "Linear", 8), ("whole.y", "Linear", 8))
    assert pairs(a, b) == {"": "", "inner": "whole", "inner.x": "whole.x", "inner.y": "whole.y"}


def test_a_map_comes_first_and_may_drop():
    a = run(("", "Net", 5), ("x", "Linear", 8), ("y", "Linear", 8))
    b = run(("", "Net", 5), ("model.x", "Linear", 8), ("model.y", "Linear", 8))
    assert pairs(a, b) == {"": "", "x": "model.x", "y": "model.y"}
    assert pairs(a, b, {"model.x": "y", "model.y": "x"}) == {"": "", "x": "model.y", "y": "model.x"}
    assert pairs(a, b, {"model.x": "y", "model.y": None}) == {"": "", "y": "model.x"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("DenseGeneral", "linear"), ("ConvTranspose2d", "convtranspose"), ("Conv2d", "conv"), ("BatchNorm1d", "batchnorm"),
     ("RMSNorm", "norm"), ("MultiheadAttention", "attention"), ("Block", "block")],
)  # fmt: skip
def test_classes_are_sorted_by_what_they_do(kind, expected):
    assert family(kind) == expected
