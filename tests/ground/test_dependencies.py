"""Missing optional packages, and what is loaded when."""

import sys

import pytest

from plait.errors import MissingDependencyError
from plait.export import save_onnx, save_saved_model
from plait.ground.dependencies import require
from tests.export.conv_net import IMAGES, log_probabilities, params
from tests.forked import run_python


@pytest.mark.parametrize(
    ("save", "package", "extra"),
    [
        (save_saved_model, "tensorflow", "tensorflow"),
        (save_onnx, "jax2onnx", "onnx"),
        (save_onnx, "onnx", "onnx"),
    ],
)
def test_a_missing_package_names_its_extra_and_writes_nothing(save, package, extra, tmp_path, monkeypatch):
    if package == "jax2onnx":
        pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package} is needed (.*\n)*  do +pip install 'plait\[{extra}\]'"):
        save(log_probabilities, params(), tmp_path / "model", input_spec=IMAGES)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_broken_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"importing broken_package failed.*nothing_of_this_name"):
        require("broken_package", extra="x", purpose="for a test")


def test_naming_the_exports_loads_no_optional_package():
    script = (
        "import sys; from plait.export import InputSpec, save_saved_model, save_stablehlo, save_onnx, validate_export;"
        "print(sorted({'tensorflow', 'onnx', 'jax2onnx', 'onnxruntime', 'safetensors'} & set(sys.modules)))"
    )
    done = run_python("-c", script, check=True)
    assert done.stdout.strip() == "[]"
