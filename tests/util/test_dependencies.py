"""Missing optional packages, and what is loaded when."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import plait
from plait.errors import MissingDependencyError
from plait.export import save_onnx, save_saved_model
from plait.util.dependencies import require
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


def _calls_of_require():
    """Where each is: the package, the extra and the purpose."""
    root = Path(plait.__file__).parent
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                yield f"{file.relative_to(root)}:{node.lineno}", node


# Where the name in an import is not that of the distribution.
_IMPORTED_AS = {"tensorflow-cpu": "tensorflow", "tensorboardx": "tensorboardX"}


def _installed_by(extra):
    """The names of what an extra installs, as they are imported."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [re.split("[^a-z0-9_-]", each)[0] for each in project["optional-dependencies"][extra]]
    return {_IMPORTED_AS.get(name, name) for name in names}


@pytest.mark.slow
def test_each_package_that_is_asked_for_comes_with_the_extra_that_its_error_names():
    calls = list(_calls_of_require())
    assert len(calls) > 15
    for where, call in calls:
        given = {each.arg: each.value for each in call.keywords}
        extra, package, purpose = given["extra"], call.args[0], given["purpose"]
        if isinstance(purpose, ast.Constant):
            assert re.match("to [a-z]+ ", purpose.value), where
        if isinstance(extra, ast.Constant) and isinstance(package, ast.Constant):
            assert package.value.partition(".")[0] in _installed_by(extra.value), where


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
