"""``plait export``, ``plait inspect`` and ``plait validate``, as a user runs them. (rule E38)

One test runs each of them in a process of its own; the others need not wait for one to start.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from plait import checkpoint
from plait.export import load
from tests.commands import plait_command

pytestmark = pytest.mark.usefixtures("standing_runners")

SOURCE = """
import plait


def make():
    rngs = plait.Rngs(0)
    return plait.Sequential(plait.Linear(4, 8, rngs=rngs), plait.Dropout(0.5, rngs=rngs), plait.Linear(8, 2, rngs=rngs))


def nothing():
    return 3


def mistaken():
    return plait.Linera(4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "my_model.py").write_text(SOURCE)
    done = run(path, "export", "my_model:make", "out", "--input", "x:float32[batch,4]")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stablehlo:", os.path.join("out", "stablehlo")]
    return path


def run(folder, *arguments):
    return plait_command(*arguments, cwd=folder)


def run_apart(folder, *arguments):
    source = pathlib.Path(__file__).parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "120"}
    command = [sys.executable, "-m", "plait.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_each_command_runs_in_a_process_of_its_own(folder, tmp_path):
    exported = run_apart(folder, "export", "my_model:make", str(tmp_path / "new"), "--input", "x:float32[batch,4]")
    assert (exported.returncode, exported.stderr) == (0, "")
    assert exported.stdout.split() == ["stablehlo:", str(tmp_path / "new" / "stablehlo")]
    shown = run_apart(folder, "inspect", str(tmp_path / "new"))
    assert shown.stdout == run(folder, "inspect", str(tmp_path / "new")).stdout
    proved = run_apart(folder, "validate", str(tmp_path / "new"))
    assert (proved.returncode, proved.stderr) == (0, "")
    refused = run_apart(folder, "export", "my_model:make", "out", "--input", "x:float32[batch,4]")
    assert (refused.returncode, "overwrite" in refused.stderr) == (2, True)


def test_inspect_shows_signatures_and_weights(folder):
    shown = run(folder, "inspect", "out").stdout
    for text in ("stablehlo", "serving_default", "[batch, 4]", "layers.0.kernel", "[4, 8]", "jax"):
        assert text in shown
    (described,) = json.loads(run(folder, "inspect", "out", "--json").stdout)
    assert described["kind"] == "stablehlo"
    assert described["signatures"]["serving_default"][0] == [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}]


def test_validate_runs_it_apart_and_reports(folder):
    np.savez(folder / "data.npz", x=np.ones((3, 4), np.float32))
    done = run(folder, "validate", "out", "--inputs", "data.npz", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert [one["passed"] for one in report["reports"]] == [True]
    assert "3 examples" not in done.stdout
    assert "1 examples, 6 values" in done.stdout


def test_a_checkpoint_is_restored_before_the_export(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    model = importlib.import_module("my_model").make()
    monkeypatch.delitem(sys.modules, "my_model")
    model.layers[0].kernel[...] *= 0
    model.layers[2].bias[...] += 3
    checkpoint.save(folder / "weights", model)
    arguments = ["my_model:make", "trained", "--input", "x:float32[batch,4]", "--checkpoint", "weights"]
    done = run(folder, "export", *arguments)
    assert done.returncode == 0, done.stderr
    apply = load(folder / "trained")
    np.testing.assert_allclose(apply(np.ones((1, 4), np.float32)), [[3.0, 3.0]], atol=1e-6)


def test_what_cannot_be_done_is_said_in_words(folder):
    (folder / "bad.npz").write_bytes(b"no archive")
    for arguments, text in (
        (["inspect", "nowhere"], "there is no export at this path"),
        (["validate", "out", "--inputs", "bad.npz"], "the inputs cannot be read"),
        (["export", "my_modl:make", "new", "--input", "x:float32[4]"], "No module named 'my_modl'"),
        (["export", "my_model:mke", "new", "--input", "x:float32[4]"], "has no attribute 'mke'"),
        (["export", "my_model:nothing", "new", "--input", "x:float32[4]"], "the factory did not return a model"),
        (["export", "my_model:make", "out", "--input", "x:float32[batch,4]"], "overwrite"),
        (["export", "my_model:make", "new", "--input", "x:float[batch"], "is not an input"),
        (["export", "my_model:make", "new", "--input", "x:float32[4]", "--formats", "onx"], "not a list of formats"),
    ):
        done = run(folder, *arguments)
        assert done.returncode == 2, arguments
        assert text in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
    assert not (folder / "new").exists()


def test_a_mistake_in_the_factory_is_not_a_missing_factory(folder):
    done = run(folder, "export", "my_model:mistaken", "new", "--input", "x:float32[4]")
    assert done.returncode != 0
    assert "cannot be found" not in done.stderr
    assert "return plait.Linera(4)" in done.stderr


def test_inputs_of_other_names_shapes_or_dtypes_are_refused_in_words(folder):
    for arrays, words in (
        ({"z": np.ones((3, 4), np.float32)}, ["the inputs do not match the export", "arrays z", "arrays x"]),
        ({"x": np.ones((3, 5), np.float32)}, ["an input does not fit", "float32[3, 5]", "float32[batch, 4]"]),
        ({"x": np.ones((3, 4), np.float64)}, ["an input does not fit", "float64[3, 4]", "astype('float32')"]),
    ):
        np.savez(folder / "wrong.npz", **arrays)
        done = run(folder, "validate", "out", "--inputs", "wrong.npz")
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        for each in words:
            assert each in done.stderr, done.stderr


def test_another_interpreter_runs_the_export(folder):
    done = run(folder, "validate", "out", "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    done = run(folder, "validate", "out", "--python", "no-such-python")
    assert done.returncode != 0
    assert "could not be started" in done.stderr
    assert "Traceback" not in done.stderr


def test_state_can_be_named(folder):
    (folder / "decoder.py").write_text(
        "import plait\n"
        "class Note(plait.Variable): pass\n"
        "class Counter(plait.Module):\n"
        "    def __init__(self): self.count, self.note = plait.BatchStat(0), Note(0)\n"
        "    def __call__(self, x):\n"
        "        self.count[...] += 1\n"
        "        self.note[...] += 1\n"
        "        return x * self.count[...]\n"
        "make = Counter\n"
    )
    words = ["export", "decoder:make", "counter", "--input", "x:float32[batch]"]
    done = run(folder, *words, "--state", "BatchStat", "--frozen", "Note")
    assert done.returncode == 0, done.stderr
    inputs = json.loads(run(folder, "inspect", "counter", "--json").stdout)[0]["signatures"]["serving_default"][0]
    assert [each["name"] for each in inputs] == ["x", "count"]
    done = run(folder, *words, "--state", "Cachet")
    assert "there is no variable type of this name" in done.stderr
    assert "Traceback" not in done.stderr
