"""The demo that learns Python's library: its text, the methods it is compared with, and a run that is resumed."""

import collections
import json
import math
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import cli
from plait.demo import byte_gpt, gpt
from plait.demo.byte_gpt import HISTORY, ByteGPT, Size, bits_per_byte, losses_of, written
from plait.demo.compression import ngram_bits, xz_bits
from plait.demo.corpus import load_corpus, windows
from plait.errors import ArgumentError, CheckpointError
from plait.surgery.views import view

TINY = Size(16, 2, 2, 64, 8, 4, 6, 1e-2)
forward, losses = plait.jit(lambda model, text: model(text)), plait.jit(losses_of)


@pytest.fixture(autouse=True)
def promotion_as_users_have_it():
    """Optax's Adam needs it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def library(tmp_path):
    """A library of forty files, and what is not part of one."""
    root = tmp_path / "lib"
    for number in range(40):
        place = root / ("pack" if number % 2 else "") / f"file{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"def f{number}(x):\n    return x + {number}\n" * 8)
    for left_out in ("test/a.py", "site-packages/b.py", "pack/tests/c.py", "note.txt"):
        (root / left_out).parent.mkdir(parents=True, exist_ok=True)
        (root / left_out).write_text("LEFT OUT")
    return root


@pytest.fixture
def model():
    return ByteGPT(TINY, jnp.float32, rngs=plait.Rngs(0))


def test_whole_files_are_held_out_by_their_names(library):
    corpus = load_corpus(library)
    assert sum(corpus.files) == 40
    assert 1 <= corpus.files[1] <= 8
    both = [part.tobytes().split(b"\0")[:-1] for part in (corpus.train, corpus.held_out)]
    assert [len(files) for files in both] == [*corpus.files]
    assert not {*both[0]} & {*both[1]}
    assert not any(b"LEFT OUT" in file for files in both for file in files)
    (library / "file0.py").write_text("changed")
    assert load_corpus(library).files == corpus.files


def test_too_little_text_is_told(tmp_path):
    with pytest.raises(ArgumentError, match="not enough text"):
        load_corpus(tmp_path)


def test_windows_cover_the_text_once():
    text = np.arange(2, 202, dtype=np.uint8)
    batches = [*windows(text, batch=2, length=10, history=5, seed=1)]
    assert {each.shape for each in batches} == {(2, 16)}
    seen = collections.Counter(int(byte) for each in batches for row in each for byte in row[5:15])
    assert {*seen.values()} == {1}
    assert len(seen) >= 160
    assert all((np.diff(row.astype(int)) == 1).all() for each in batches for row in each)
    again = [*windows(text, batch=2, length=10, history=5, seed=1)]
    np.testing.assert_array_equal(batches, again)


def by_hand(train, text, n):
    """Witten and Bell with dictionaries, as the formula stands."""
    after = collections.defaultdict(collections.Counter)
    for length in range(1, n + 1):
        for at in range(len(train) - length + 1):
            gram = train[at : at + length]
            after[gram[:-1]][gram[-1]] += 1
    bits = 0.0
    for at in range(n - 1, len(text)):
        p = 1 / 256
        for length in range(1, n + 1):
            context = text[at - length + 1 : at]
            if not after[context]:
                break
            total, different = sum(after[context].values()), len(after[context])
            p = (after[context][text[at]] + different * p) / (total + different)
        bits -= math.log2(p)
    return bits / (len(text) - n + 1)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_ngrams_are_those_of_the_formula(n):
    train, text = b"the cat sat on the mat and the dog sat on the cat" * 2, b"the dog and the rat sat on a mat"
    found = ngram_bits(np.frombuffer(train, np.uint8), np.frombuffer(text, np.uint8), n)
    assert found == pytest.approx(by_hand(train, text, n), rel=1e-12)


@pytest.mark.skipif(shutil.which("xz") is None, reason="no xz on this machine")
def test_xz_is_the_program():
    text = b"import this\n" * 50
    done = subprocess.run(["xz", "-9", "--check=crc64"], input=text, capture_output=True, check=True)
    assert xz_bits(np.frombuffer(text, np.uint8)) == 8 * len(done.stdout) / len(text)


def test_a_byte_is_predicted_from_those_before_it_alone(model):
    text = np.random.default_rng(0).integers(0, 256, (1, HISTORY + 8), dtype=np.uint8)
    changed = text.copy()
    changed[0, HISTORY + 5] ^= 1
    one, other = (np.asarray(forward(model, each)[0]) for each in (text, changed))
    np.testing.assert_allclose(one[:5], other[:5], rtol=1e-6)
    assert (np.abs(one[5:] - other[5:]).max(-1) > 0).all()
    far = text.copy()
    far[0, 0] ^= 1  # the first byte of the history: the sequence of eight bytes that ends at the first one
    assert np.abs(one[0] - np.asarray(forward(model, far))[0, 0]).max() > 0


def test_bits_are_those_of_each_byte(model):
    text = np.random.default_rng(0).integers(0, 256, 40, dtype=np.uint8)
    padded = np.concatenate([np.zeros(HISTORY, np.uint8), text])
    expected = []
    for begin in range(0, len(text) - 8, 4):
        window = padded[None, begin : begin + HISTORY + 9]
        expected += [*np.asarray(losses(model, window))[0, 4:]]
    assert bits_per_byte(model, text) == pytest.approx(np.mean(expected) / math.log(2), rel=1e-5)


@pytest.mark.slow
def test_the_cache_writes_what_the_whole_text_would(model):
    text = np.random.default_rng(0).integers(0, 256, (1, HISTORY + 8), dtype=np.uint8)
    decoder = view(model, decode=True, batch_size=1, max_length=8)
    parts = [text[:, : HISTORY + 3], *(text[:, at : at + HISTORY + 1] for at in range(3, 8))]
    steps = np.concatenate([forward(decoder, part) for part in parts], axis=1)
    np.testing.assert_allclose(steps, forward(model, text), rtol=1e-4, atol=1e-5)
    out = written(model, b"def", count=20, seed=3)
    assert out.startswith(b"def")
    assert len(out) == 23
    assert out == written(model, b"def", count=20, seed=3)
    assert out != written(model, b"def", count=20, seed=4)


def run(folder, corpus, **options):
    return gpt.run(gpt.Options(output=folder, size="tiny", sample=12, **options), corpus)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(byte_gpt.SIZES, "tiny", TINY)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("bf16", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_run_that_was_stopped_resumes_as_if_it_had_not(tmp_path, library, tiny, monkeypatch, capsys, bf16):
    corpus = load_corpus(library)
    assert run(tmp_path / "whole", corpus, bf16=bf16) == 0
    printed = capsys.readouterr().out
    for name in ("bigram model", "5-gram model", "xz -9", "plait  "):
        assert name in printed
    assert {"metrics.jsonl", "sample.txt", "checkpoints", "options.json"} <= {
        place.name for place in (tmp_path / "whole").iterdir()
    }

    fit = gpt.fit
    monkeypatch.setattr(
        gpt, "fit", lambda *args, callbacks=(), **rest: fit(*args, callbacks=[stop_at_3], **(rest | {"log_every": 1}))
    )
    assert run(tmp_path / "parts", corpus, bf16=bf16) == 130
    assert "resume with: plait demo gpt --resume" in capsys.readouterr().err
    monkeypatch.setattr(gpt, "fit", fit)
    assert run(tmp_path / "parts", corpus, bf16=bf16, resume=True) == 0

    def learned(folder):
        learner = gpt.Learner(gpt.Options(size="tiny", bf16=bf16))
        plait.checkpoint.restore(folder / "checkpoints" / "step-00000006", learner.objects(), partial=True)
        return jax.tree.leaves(plait.to_pure_dict(plait.state(learner.objects())))

    for one, other in zip(learned(tmp_path / "whole"), learned(tmp_path / "parts"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tmp_path / "whole" / "sample.txt").read_bytes() == (tmp_path / "parts" / "sample.txt").read_bytes()


def stop_at_3(moment):
    if moment.step == 3:
        moment.stop("SIGINT")


@pytest.mark.slow
def test_a_run_with_other_options_is_not_resumed(tmp_path, library, tiny, capsys):
    corpus = load_corpus(library)
    assert run(tmp_path / "out", corpus) == 0
    assert "bits per held-out byte" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="--seed 0"):
        run(tmp_path / "out", corpus, resume=True, seed=1)
    assert json.loads((tmp_path / "out" / "options.json").read_text())["seed"] == 0


@pytest.mark.parametrize("name", ["checkpoints/step-00000001", "metrics.jsonl", "sample.txt"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_that_the_demo_has_not_made_is_refused_as_it_is(tmp_path, library, tiny, name, resume):
    """It used to delete these. (issue O)"""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ArgumentError, match=rf"at +{tmp_path}\n +found +{name.partition('/')[0]}\n"):
        run(tmp_path, load_corpus(library), resume=resume)
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "options.json").exists()


def test_the_command_takes_its_options(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(gpt, "run", lambda options: seen.append(options) or 0)
    status = cli.main(
        ["demo", "gpt", "--size", "medium", "--steps", "7", "--bf16", "--resume", "--output", str(tmp_path)]
    )
    assert status == 0
    assert seen == [gpt.Options(output=tmp_path, size="medium", steps=7, bf16=True, resume=True)]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_small_model_beats_the_compressors(tmp_path):
    """What the demo is for; minutes on two cores."""
    done = subprocess.run(
        [sys.executable, "-m", "plait.cli", "demo", "gpt", "--output", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("plait demo gpt\n") :]
    bits = {
        name: float(table.split(f"  {name} ")[1].split()[0])
        for name in ("bigram model", "5-gram model", "xz -9", "plait")
    }
    assert bits["plait"] < min(bits["bigram model"], bits["5-gram model"], bits["xz -9"]), table
