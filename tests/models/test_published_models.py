"""Models of every family give what the library gives that they are published for (rules MO1 to MO9).

``tests/models/oracle`` has drawn them. ``make test`` takes one of each family, which is stored; the nox session
``models`` draws several hundred, and reads back what plait has saved.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import plait
from plait.errors import ArgumentError, ConversionError, UnevenLayoutWarning
from tests.models.published import DRAWN, SAMPLE, calls, difference, edited, folders, outcome
from tests.sampling import slow_but

SAVED = os.environ.get("PLAIT_MODELS_SAVED")
GENERATING = ("gemma3_text-sample", "gpt2-sample", "llama-sample")
ON_EXPLICIT_AXES = ("bert-sample", "gemma2-sample", "gpt2-sample", "llama-sample", "vit-sample")
RESIZED_ON_REQUEST = "vit"  # an image of another size needs a setting there that is no part of a config


@pytest.mark.parametrize("folder", [each for each in folders() if "-odd-" not in str(each.id)])
def test_a_model_gives_what_it_is_published_to_give(folder: Path, tmp_path: Path):
    model = plait.models.load(folder, dtype=jnp.float32)
    expected = np.load(folder / "expected.npz")
    resized = ("other", "smaller") if folder.name.startswith(RESIZED_ON_REQUEST) else ()
    differences = {call.name: difference(model, call) for call in calls(expected) if call.name not in resized}
    assert differences
    assert max(differences.values()) < 1e-4, differences
    if "logits" in expected and (DRAWN or folder.name in GENERATING):
        assert_generates(model, expected)
    if SAVED:
        plait.models.save(model, Path(SAVED) / folder.name)


def assert_generates(model, expected):
    """The greedy tokens after prompts of ragged lengths, up to a step whose two best tokens are nearly equal."""
    prompts = [row[:length] for row, length in zip(expected["tokens"], expected["lengths"], strict=True)]
    greedy, margins = expected["greedy"], expected["margins"]
    if model.max_length is not None and model.max_length < max(expected["lengths"]) + greedy.shape[1]:
        with pytest.raises(ArgumentError, match="max_length"):  # the rotary embedding would change on the way
            plait.generate(model, prompts, greedy.shape[1])
        return
    found = np.asarray(plait.generate(model, prompts, greedy.shape[1]).tokens)
    certain = np.cumprod(margins > 1e-4, axis=1).astype(bool)
    np.testing.assert_array_equal(found[certain], greedy[certain])


@pytest.mark.parametrize(
    "folder",
    slow_but(lambda folder: folder.name in ON_EXPLICIT_AXES, sorted(SAMPLE.glob("*-sample"))),
    ids=lambda folder: folder.name,
)
def test_a_mesh_with_explicit_axes_changes_nothing(folder: Path):
    """MO4, also where the mesh does not divide heads or vocabulary."""
    mesh = jax.make_mesh((2, 4), ("fsdp", "model"), axis_types=(AxisType.Explicit,) * 2)
    expected = np.load(folder / "expected.npz")
    plain = [call for call in calls(expected) if call.name in ("logits", "plain", "typed")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnevenLayoutWarning)
        model = plait.models.load(folder, dtype=jnp.float32, mesh=mesh)
        with jax.set_mesh(mesh), plait.logical_axis_rules(plait.partitioning.rules_for(mesh)):
            assert max(difference(model, call) for call in plain) < 1e-4
            if "logits" in expected and folder.name in ON_EXPLICIT_AXES:
                assert_generates(model, expected)


@pytest.mark.slow
@pytest.mark.parametrize("folder", [each for each in folders() if (each.values[0] / "altered.json").exists()])
def test_each_weight_moves_the_result_as_it_does_there(folder: Path, tmp_path: Path):
    """No weight of the files is passed over."""
    expected = np.load(folder / "expected.npz")
    before = outcome(plait.models.load(folder, dtype=jnp.float32), expected)
    stored = {name: array.read() for name, array in plait.checkpoint.load_safetensors(folder).items()}
    changes = json.loads((folder / "altered.json").read_text("utf-8"))
    assert changes.keys() == stored.keys()
    for name, change in changes.items():
        other = tmp_path / name
        other.mkdir()
        shutil.copy(folder / "config.json", other)
        altered = np.float32(1.25) * stored[name].astype(np.float32) + np.float32(0.1)
        plait.checkpoint.save_safetensors(other / "model.safetensors", {**stored, name: altered})
        found = np.abs(outcome(plait.models.load(other, dtype=jnp.float32), expected) - before).max()
        assert found == pytest.approx(change, rel=1e-3, abs=1e-4 * float(np.abs(before).max())), name


@pytest.mark.parametrize("folder", folders("*-odd-*"))
def test_an_odd_setting_is_honoured_or_refused_by_name(folder: Path):
    """No setting is passed over that changes what the model computes."""
    model, refusal = None, ""
    try:
        model = plait.models.load(folder, dtype=jnp.float32)
    except ConversionError as error:
        refusal = str(error)
    if model is None:
        assert edited(folder)[0] in refusal
        return
    for call in calls(np.load(folder / "expected.npz")):
        if call.name not in ("other", "smaller"):
            assert difference(model, call) < 1e-4, call.name
