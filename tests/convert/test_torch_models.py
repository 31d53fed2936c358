"""A torch model and a plait model of the same architecture give the same logits after conversion, and back."""

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import checkpoint, convert
from tests.lazily import Lazily
from tests.sampling import slow_but

torch, models = Lazily("torch"), Lazily("tests.convert.torch_models")
pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("users_promotion")]

TOKENS = np.random.default_rng(0).integers(0, 17, (3, 7))
FEATURES = np.random.default_rng(1).normal(size=(3, 7, 8)).astype(np.float32)
IMAGES = np.random.default_rng(2).normal(size=(2, 12, 12, 3)).astype(np.float32)


@plait.jit
def forward(model, x):
    return model(x)


def channels_first(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


# --- a perceptron


class Perceptron(plait.Module):
    def __init__(self, rngs):
        self.layers = [plait.Linear(8, 16, rngs=rngs), plait.PReLU(), plait.Linear(16, 5, rngs=rngs)]
        self.norm = plait.LayerNorm(8, epsilon=1e-5, rngs=rngs)

    def __call__(self, x):
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


# --- a convolutional network with batch statistics, groups and a transposed convolution


class ConvNet(plait.Module):
    def __init__(self, rngs):
        self.conv = plait.Conv(3, 8, (3, 5), padding=(1, 2), rngs=rngs)
        self.bn = plait.BatchNorm(8, rngs=rngs)
        self.grouped = plait.Conv(8, 12, (3, 3), strides=2, padding=1, feature_group_count=4, use_bias=False, rngs=rngs)
        self.gn = plait.GroupNorm(12, num_groups=3, epsilon=1e-5, rngs=rngs)
        self.up = plait.ConvTranspose(12, 6, (2, 3), strides=2, padding="VALID", rngs=rngs)
        self.head = plait.Linear(6, 5, rngs=rngs)

    def __call__(self, x):
        x = plait.relu(self.bn(self.conv(x)))
        x = plait.relu(self.gn(self.grouped(x)))
        return self.head(self.up(x).mean((1, 2)))


# --- residual blocks


class Block(plait.Module):
    def __init__(self, features_in, features, stride, rngs):
        def conv(features_in, kernel, stride):
            padding = kernel // 2
            return plait.Conv(
                features_in, features, (kernel, kernel), stride, padding=padding, use_bias=False, rngs=rngs
            )

        self.conv1 = conv(features_in, 3, stride)
        self.bn1 = plait.BatchNorm(features, rngs=rngs)
        self.conv2 = conv(features, 3, 1)
        self.bn2 = plait.BatchNorm(features, rngs=rngs)
        self.shortcut = [conv(features_in, 1, stride), plait.BatchNorm(features, rngs=rngs)] if stride != 1 else []

    def __call__(self, x):
        y = self.bn2(self.conv2(plait.relu(self.bn1(self.conv1(x)))))
        for layer in self.shortcut:
            x = layer(x)
        return plait.relu(x + y)


class ResNet(plait.Module):
    def __init__(self, rngs):
        self.stem = plait.Conv(3, 4, (3, 3), padding=1, rngs=rngs)
        self.stages = [
            [Block(4, 4, 1, rngs), Block(4, 4, 1, rngs)],
            [Block(4, 8, 2, rngs), Block(8, 8, 1, rngs)],
        ]
        self.fc = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return self.fc(x.mean((1, 2)))


# --- a transformer encoder


class EncoderLayer(plait.Module):
    def __init__(self, rngs):
        self.self_attn = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.linear1 = plait.Linear(8, 16, rngs=rngs)
        self.linear2 = plait.Linear(16, 8, rngs=rngs)
        self.norm1 = plait.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.norm2 = plait.LayerNorm(8, epsilon=1e-5, rngs=rngs)

    def __call__(self, x):
        x = self.norm1(x + self.self_attn(x))
        return self.norm2(x + self.linear2(plait.relu(self.linear1(x))))


class Encoder(plait.Module):
    def __init__(self, rngs):
        self.embed = plait.Embed(17, 8, rngs=rngs)
        self.layers = [EncoderLayer(rngs), EncoderLayer(rngs)]
        self.head = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


# --- a decoder with tied embeddings, projections apart and RMS norms


class DecoderLayer(plait.Module):
    def __init__(self, rngs):
        self.attn = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.mlp = {"up": plait.Linear(8, 16, rngs=rngs), "down": plait.Linear(16, 8, rngs=rngs)}
        self.ln_1, self.ln_2 = plait.RMSNorm(8, rngs=rngs), plait.RMSNorm(8, rngs=rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln_1(x), is_causal=True)
        return x + self.mlp["down"](plait.gelu(self.mlp["up"](self.ln_2(x))))


class Decoder(plait.Module):
    def __init__(self, rngs):
        self.embed = plait.Embed(17, 8, rngs=rngs)
        self.positions = plait.Param(jnp.zeros((7, 8)))
        self.blocks = [DecoderLayer(rngs), DecoderLayer(rngs)]
        self.norm = plait.RMSNorm(8, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.norm(x))


DECODER_NAMES = {
    "transformer.wte": "embed",
    "lm_head": "embed",
    "transformer.h.*.q_proj": "blocks.*.attn.query",
    "transformer.h.*.k_proj": "blocks.*.attn.key",
    "transformer.h.*.v_proj": "blocks.*.attn.value",
    "transformer.h.*.o_proj": "blocks.*.attn.out",
    "transformer.h.*": "blocks.*",
    "transformer.ln_f": "norm",
}


# --- recurrent classifiers


class Recurrent(plait.Module):
    def __init__(self, cell, rngs, *, bidirectional=False):
        rnns = [plait.RNN(cell(8, 6, rngs=rngs), rngs=rngs) for _ in range(1 + bidirectional)]
        self.rnn = plait.Bidirectional(*rnns, rngs=rngs) if bidirectional else rnns[0]
        self.head = plait.Linear(12 if bidirectional else 6, 5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x).mean(1))


CASES = {
    "perceptron": (lambda: models.TorchPerceptron(), Perceptron, FEATURES, None),
    "conv net": (lambda: models.TorchConvNet(), ConvNet, IMAGES, None),
    "resnet": (
        lambda: models.TorchResNet(),
        ResNet,
        IMAGES,
        {"layer1": "stages.0", "layer2.*.downsample": "stages.1.*.shortcut", "layer2": "stages.1"},
    ),
    "encoder": (lambda: models.TorchEncoder(), Encoder, TOKENS, {"encoder.layers": "layers"}),
    "decoder": (lambda: models.TorchDecoder(), Decoder, TOKENS, DECODER_NAMES),
    "lstm": (
        lambda: models.TorchRecurrent(torch.nn.LSTM),
        lambda rngs: Recurrent(plait.OptimizedLSTMCell, rngs),
        FEATURES,
        None,
    ),
    "lstm of gates apart": (
        lambda: models.TorchRecurrent(torch.nn.LSTM),
        lambda rngs: Recurrent(plait.LSTMCell, rngs),
        FEATURES,
        None,
    ),
    "bidirectional gru": (
        lambda: models.TorchRecurrent(torch.nn.GRU, bidirectional=True),
        lambda rngs: Recurrent(plait.GRUCell, rngs, bidirectional=True),
        FEATURES,
        None,
    ),
    "simple rnn": (
        lambda: models.TorchRecurrent(torch.nn.RNN),
        lambda rngs: Recurrent(plait.SimpleCell, rngs),
        FEATURES,
        None,
    ),
}


def build(case):
    make_torch, make_plait, x, names = CASES[case]
    torch.manual_seed(1)
    theirs = make_torch().eval()
    with torch.no_grad():
        for name, value in theirs.state_dict().items():  # statistics and biases that are not those of a new layer
            if "running_var" in name:
                value.uniform_(0.5, 2.0)
            elif "running_mean" in name or ("bias" in name and "hh" not in name):
                value.normal_()
        inputs = channels_first(x) if x.ndim == 4 else torch.from_numpy(x)
        expected = theirs(inputs).numpy()
    ours = make_plait(plait.Rngs(0))
    ours.eval()
    return theirs, ours, x, names, expected


@pytest.mark.sampled
@pytest.mark.parametrize(
    "case", slow_but(lambda case: case not in ("encoder", "bidirectional gru", "lstm of gates apart"), CASES)
)
def test_logits_are_those_of_torch(case):
    theirs, ours, x, names, expected = build(case)
    done = convert.convert_checkpoint(theirs.state_dict(), ours, layout="torch", names=names, update=True)
    assert done.report.is_complete
    np.testing.assert_allclose(forward(ours, x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", slow_but(["resnet", "decoder"], CASES))
def test_shards_of_torch_names_make_an_equal_model(case, tmp_path):
    _, ours, x, _, _ = build(case)
    weights = convert.to_torch(ours)
    path = checkpoint.save_safetensors(tmp_path / "weights", weights, shard_bytes=200)
    assert len(list(path.glob("*.safetensors"))) > 1
    again = CASES[case][1](plait.Rngs(5))
    convert.convert_checkpoint(path, again, layout="torch", update=True)
    again.eval()
    np.testing.assert_array_equal(forward(again, x), forward(ours, x))


@pytest.mark.parametrize("case", ["perceptron", "conv net", "lstm", "lstm of gates apart", "bidirectional gru"])
def test_torch_loads_what_to_torch_gives(case):
    theirs, ours, x, _, _ = build(case)
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in convert.to_torch(ours).items()})
    with torch.no_grad():
        found = theirs(channels_first(x) if x.ndim == 4 else torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, forward(ours, x), atol=1e-4, rtol=1e-4)


def test_the_packed_projections_of_attention_go_back_and_forth():
    theirs, ours, _, names, _ = build("encoder")
    convert.convert_checkpoint(theirs.state_dict(), ours, layout="torch", names=names, update=True)
    found = convert.to_torch(ours, names={"layers": "encoder.layers"})
    assert found.keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(found[name], value.numpy())


@pytest.mark.slow
def test_attention_over_keys_of_other_features_has_projections_apart():
    theirs = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True).eval()
    ours = plait.MultiHeadAttention(2, 8, in_kv_features=6, decode=False, rngs=plait.Rngs(0))
    convert.convert_checkpoint(theirs.state_dict(), ours, layout="torch", update=True)
    memory = np.random.default_rng(3).normal(size=(3, 5, 6)).astype(np.float32)
    with torch.no_grad():
        expected, _ = theirs(torch.from_numpy(FEATURES), torch.from_numpy(memory), torch.from_numpy(memory))
    np.testing.assert_allclose(ours(jnp.asarray(FEATURES), jnp.asarray(memory)), expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_tensors_of_other_dtypes_keep_theirs_unless_told(dtype):
    theirs = torch.nn.Linear(3, 2).to(getattr(torch, dtype))
    ours = plait.Linear(3, 2, rngs=plait.Rngs(0))
    kept = convert.convert_checkpoint(theirs.state_dict(), ours, layout="torch")
    told = convert.convert_checkpoint(theirs.state_dict(), ours, layout="torch", dtype=jnp.float32)
    assert kept.state["kernel"].dtype.name == ("float32" if dtype == "float64" else dtype)  # JAX without x64
    assert told.state["kernel"].dtype == jnp.float32
    np.testing.assert_allclose(told.state["kernel"][...], theirs.weight.detach().float().numpy().T, rtol=1e-6)


def test_a_bias_of_a_gru_that_plait_has_no_place_for_is_refused():
    theirs = torch.nn.GRU(8, 6)
    ours = plait.RNN(plait.GRUCell(8, 6, rngs=plait.Rngs(0)))
    with pytest.raises(plait.errors.ConversionError, match=r"the last third of bias_hh_l0 must be zero"):
        convert.convert_checkpoint(theirs.state_dict(), ours, layout="torch")
