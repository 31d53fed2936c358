"""``plait export``, ``plait inspect`` and ``plait validate``, as a user runs them. (rule E38)

One test runs each of them in a process of its own; the others need not wait for one to start.
"""

import dataclasses
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from plait import checkpoint
from plait.cli.export import _made
from plait.export import load
from plait.export.formats.descriptions import Description, Tensor
from plait.export.proof.report import ExportReport
from tests.commands import plait_command
from tests.environment import environment

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
    command = [sys.executable, "-m", "plait.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(COLUMNS="120"))


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


@pytest.mark.slow
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


EXPORTED = {
    "": {
        "formats": ["stablehlo"], "state": (), "frozen": (), "platforms": ["cpu", "cuda", "tpu"], "target": None,
        "overwrite": False,
    },
    "--formats stablehlo,onnx --state Cache,Own --frozen BatchStat --platforms cpu --target 1.8.0 --overwrite": {
        "formats": ["stablehlo", "onnx"], "state": "Cache Own", "frozen": "BatchStat", "platforms": ["cpu"],
        "target": "1.8.0", "overwrite": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("words", EXPORTED, ids=["defaults", "all"])
def test_the_options_of_export_reach_save(words, folder, monkeypatch):
    """The module's default function is called, and the model is exported in evaluation mode."""
    (folder / "own_types.py").write_text(
        "import plait\n"
        "class Own(plait.BatchStat): pass\n"
        "def make_model(): return plait.Sequential(plait.Dropout(0.5, rngs=plait.Rngs(0)))\n"
    )
    asked = []
    written = {"stablehlo": pathlib.Path("a/s"), "onnx": pathlib.Path("a/m")}
    monkeypatch.setattr("plait.export.saving.save", lambda *args, **options: asked.append((args, options)) or written)
    inputs = ("--input", "x:float32[batch, 28,3]", "--input", "n:int32[]")
    done = run(folder, "export", "own_types", "a/b", *inputs, *words.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, "stablehlo: a/s\nonnx: a/m\n", "")
    [((model, path), options)] = asked
    assert (type(model).__name__, model.layers[0].deterministic, path) == ("Sequential", True, pathlib.Path("a/b"))
    specs = [(spec.name, spec.shape, str(spec.dtype)) for spec in options.pop("inputs")]
    assert specs == [("x", ("batch", 28, 3), "float32"), ("n", (), "int32")]
    for name in ("state", "frozen") if words else ():
        options[name] = " ".join(each.__name__ for each in options[name])
    assert options == EXPORTED[words]


def error_of(done):
    """The parts of a refused request's message, and its first line."""
    assert done.returncode == 2, done.stderr
    first, *rest = done.stderr.removeprefix("plait: ").splitlines()
    return {"what": first, **dict(line.split(maxsplit=1) for line in rest)}


def test_each_refusal_says_where_what_was_found_and_what_to_do(folder):
    words = ["export", "my_model:make", "new", "--input", "x:float32[4]"]
    assert error_of(run(folder, *words[:1], ":make", *words[2:])) == {
        "what": "the model's factory cannot be found",
        "at": ":make",
        "found": "Empty module name",
        "expected": "MODULE:FUNCTION, a function without arguments in an importable module",
        "do": "plait export my_model:make FOLDER --input 'x:float32[batch,8]'",
    }
    assert error_of(run(folder, *words[:1], "my_model:nothing", *words[2:])) == {
        "what": "the factory did not return a model",
        "at": "my_model:nothing",
        "found": "int",
        "expected": "a plait.Module",
        "do": "return the model from the function",
    }
    told = error_of(run(folder, *words, "--state", "Cache, Cachet"))
    assert told["what"] == "there is no variable type of this name"
    assert told["found"] == "Cachet"
    known = told["expected"].removeprefix("some of ").split(", ")
    assert known == sorted(known)
    assert {"Variable", "Param", "Cache", "BatchStat", "RngCount"} <= {*known}
    assert told["do"] == "--state Cache --frozen BatchStat,RngState"
    (folder / "bad.npz").write_bytes(b"no archive")
    told = error_of(run(folder, "validate", "out", "--inputs", "bad.npz"))
    assert (told["what"], told["at"]) == ("the inputs cannot be read", "bad.npz")
    assert (told["expected"], told["do"]) == ("a file that np.savez wrote", "np.savez('data.npz', x=x)")
    assert error_of(run(folder, "validate", "out", "--inputs", "no.npz"))["at"] == "no.npz"


@pytest.mark.parametrize(
    ("option", "text", "reason"),
    [
        ("--input", "x:float32[batch", "is not an input; write it as x:float32[batch,28,28,1]"),
        ("--input", "x:float32", "is not an input; write it as x:float32[batch,28,28,1]"),
        ("--input", "float32[4]", "is not an input; write it as x:float32[batch,28,28,1]"),
        ("--input", "x:float[[4]", "must be a positive number or a name"),
        ("--input", "x:flout32[4]", "data type 'flout32' not understood"),
        ("--input", "x:float32[0]", "must be a positive number or a name"),
        ("--formats", "onx", "is not a list of formats; there are stablehlo, saved_model, onnx, litert"),
        ("--formats", ",", "is not a list of formats; there are stablehlo, saved_model, onnx, litert"),
    ],
)
def test_a_text_that_is_no_input_or_format_is_quoted_on_one_line(option, text, reason, folder):
    done = run(folder, "export", "my_model:make", "new", "--input", "x:float32[4]", option, text)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"plait export: error: argument {option}: {text!r}")
    assert reason in last


def test_a_module_is_looked_for_in_the_current_folder_and_the_path_is_as_before(folder, monkeypatch):
    before = list(sys.path)
    monkeypatch.chdir(folder)
    assert _made("my_model:nothing") == 3
    with pytest.raises(AttributeError, match="Linera"):
        _made("my_model:mistaken")
    assert sys.path == before


TENSOR = Tensor("x", "float32", ("batch", 4))
DESCRIBED = Description(
    "onnx", pathlib.Path("a/[old] model.onnx"), 12345, {"opset": "21", "ir": "10"},
    {"serving": ([TENSOR], [Tensor("y", "int32", ())])}, [Tensor("part[a].kernel", "float32", (4, 8))],
)  # fmt: skip


def test_inspect_shows_each_file_as_a_table(folder, monkeypatch):
    """With names as they are, brackets too."""
    monkeypatch.setattr("plait.export.proof.describe.describe_exports", lambda path: [DESCRIBED] * (path.name == "p"))
    shown = run(folder, "inspect", "p").stdout
    cells = [[*filter(None, (cell.strip() for cell in re.split("[│┃]", line)))] for line in shown.splitlines()]
    assert shown.startswith("onnx a/[old] model.onnx  12,345 bytes  opset 21, ir 10\nserving ")
    for row in (["name", "dtype", "shape"], ["input", "x", "float32", "[batch, 4]"], ["output", "y", "int32", "[]"],
                ["part[a].kernel", "float32", "[4, 8]"]):  # fmt: skip
        assert row in cells
    assert cells.count(["name", "dtype", "shape"]) == 2
    assert "\n1 weights" in shown
    without = dataclasses.replace(DESCRIBED, weights=[])
    monkeypatch.setattr("plait.export.proof.describe.describe_exports", lambda path: [without])
    assert "weights" not in run(folder, "inspect", "p").stdout


def report(kind, *, passed):
    return ExportReport(kind, f"a/{kind}", 0.123456, float("inf"), passed, f"said of [{kind}]", (1.23456, 2.0))


@pytest.mark.parametrize("passed", [True, False])
def test_validate_shows_and_writes_each_report_and_fails_with_one(passed, folder, monkeypatch):
    asked = []
    reports = [report("stablehlo", passed=True), report("onnx", passed=passed)]
    monkeypatch.setattr(
        "plait.export.proof.prove.prove", lambda *args, **options: asked.append((args, options)) or (reports, [0.5, 3])
    )
    np.savez(folder / "data.npz", b=np.ones(2, np.float32), a=np.zeros(1, np.int32))
    options = "--inputs data.npz --signature encode --tolerance 0.25 --python py --json report.json"
    done = run(folder, "validate", "a", *options.split())
    assert (done.returncode, done.stderr) == (0 if passed else 1, "")
    [(paths, given)] = asked
    assert [(name, array.tolist()) for name, array in given.pop("inputs").items()] == [("b", [1, 1]), ("a", [0])]
    assert (paths, given) == ((pathlib.Path("a"),), {"signature": "encode", "tolerance": 0.25, "python": "py"})
    cells = [[*filter(None, (cell.strip() for cell in re.split("[│┃]", each)))] for each in done.stdout.splitlines()]
    assert ["format", "passed", "largest difference", "mean difference", "ms", "ms of the model, jitted"] in cells
    assert ["stablehlo", "yes", "0.123", "inf", "1.235, 2.000", "0.500, 3.000"] in cells
    assert ["onnx", "yes" if passed else "NO", "0.123", "inf", "1.235, 2.000", "0.500, 3.000"] in cells
    assert done.stdout.endswith("\nstablehlo: said of [stablehlo]\nonnx: said of [onnx]\n")
    written = json.loads((folder / "report.json").read_text())
    assert written["model_milliseconds"] == [0.5, 3]
    assert written["reports"] == [{**each.to_dict(), "milliseconds": [1.23456, 2.0]} for each in reports]
    run(folder, "validate", "a")
    assert asked[1][1] == {"inputs": None, "signature": None, "tolerance": None, "python": None}
