"""Four of the architectures in torch, in the names that torch models have, with the weights of a plait model."""

import math
import re

import numpy as np
import pytest

import plait

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.inspect.compare.architectures import HEADS, LENGTH, WIDTH, WORDS  # noqa: E402


class Attention(nn.Module):
    def __init__(self, causal, bias):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(4))
        self.causal = causal

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        if self.causal:
            q, k = turned(q), turned(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out_proj(y.transpose(1, 2).flatten(-2))


def turned(x):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10_000 ** (torch.arange(half) / half)
    swapped = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angles.cos().repeat(1, 2) + swapped * angles.sin().repeat(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention(causal=False, bias=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        x = x + self.self_attn(self.norm1(x))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(3))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.word_embeddings(tokens) * math.sqrt(WIDTH) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down_proj = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.self_attn, self.mlp = Attention(causal=True, bias=False), GatedMLP()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(3))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, tokens):
        x = self.embed_tokens(tokens) * math.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embed_tokens.weight.T


class BasicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(x + y)


class ResNet(nn.Module):
    """Takes images with channels first."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer = nn.ModuleList(BasicBlock() for _ in range(3))
        self.hidden, self.fc = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for block in self.layer:
            x = block(x)
        return self.fc(F.relu(self.hidden(x.mean((2, 3)))))


class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.gru(x.flip(1))[0].flip(1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.backward_gru, self.layer_norm = Backwards(), nn.LayerNorm(2 * WIDTH, eps=1e-6)
        self.hidden, self.classifier = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = torch.cat([self.lstm(x)[0], self.backward_gru(x)], -1)
        return self.classifier(torch.tanh(self.hidden(self.layer_norm(x))))


# Their names for plait's, as regular expressions on the names of weights.
_RENAMED = {
    "encoder": (Encoder, {r"^embed\.": "word_embeddings.", "attention": "self_attn", "query": "q_proj", "key": "k_proj",
                          "value": "v_proj", r"\bout\.": "out_proj.", r"mlp\.up": "linear1", r"mlp\.down": "linear2",
                          "^head": "lm_head"}),
    "decoder": (Decoder, {r"^embed\.": "embed_tokens.", "attention": "self_attn", "query": "q_proj", "key": "k_proj",
                          "value": "v_proj", r"\bout\.": "out_proj.", "norm1": "input_layernorm",
                          "norm2": "post_attention_layernorm", r"mlp\.(\w+)": r"mlp.\1_proj"}),
    "resnet": (ResNet, {r"norm(\d)": r"bn\1", "^stem": "conv1", r"^norm\.": "bn1.", "^blocks": "layer", "^head": "fc"}),
    "tagger": (Tagger, {r"^embed\.": "embedding.", "^forward": "lstm", "^backward": "backward_gru.gru",
                        "^norm": "layer_norm", "^head": "classifier"}),
}  # fmt: skip
NAMES = tuple(_RENAMED)
# For paths that are not the usual ones.
MAPS = {
    "resnet": {"conv1": "stem", "bn1": "norm", "layer.*.bn1": "blocks.*.norm1", "layer.*.bn2": "blocks.*.norm2",
               "layer": "blocks", "fc": "head"},
    "tagger": {"lstm": "forward", "backward_gru": "backward"},
}  # fmt: skip


def torch_model(name, model):
    """The torch model with the weights of a plait model."""
    cls, renamed = _RENAMED[name]
    weights = {}
    for key, value in plait.convert.to_torch(model).items():
        for pattern, new in renamed.items():
            key = re.sub(pattern, new, key)
        weights[key] = torch.tensor(np.array(value))
    made = cls().eval()
    missing = made.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert all(key.endswith("num_batches_tracked") for key in missing.missing_keys), missing
    return made


def torch_inputs(name, x):
    return (x.transpose(0, 3, 1, 2),) if name == "resnet" else (x,)
