"""The example of chapter export, section 10, and what importing ``plait.export`` costs."""

import subprocess
import sys

import numpy as np
import pytest

import plait
from plait import export
from plait.errors import MissingDependencyError
from plait.export.proof.apart import RUNNERS
from tests.forked import run_python

NAMES = (
    "JaxModule",
    "ServingConfig",
    "ExportManager",
    "TensorSpecWithDefault",
    "remove_signature_defaults",
    "initialize_dtensor",
    "dtensor_initialized",
    "shutdown_dtensor",
    "maybe_enable_dtensor_export_on",
    "get_current_mesh",
    "get_current_dtensor_mesh",
    "get_pspec_from_jax_arrays",
    "utils",
    "dtensor_utils",
    "validate",
)


@pytest.mark.slow
def test_e1_the_package_has_the_names_and_importing_it_loads_no_tensorflow():
    """E1."""
    assert set(NAMES) <= set(dir(export)) & set(export.__all__)
    script = (
        "import sys, plait.export, plait.export.validate, plait.export.utils, plait.export.serving_config; "
        "print('tensorflow' in sys.modules)"
    )
    done = run_python("-c", script, check=True)
    assert done.stdout.strip() == "False"


def test_e1_without_tensorflow_the_first_use_names_package_and_extra(monkeypatch):
    """E1, first row of section 8."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "plait.export.jax_module", raising=False)
    monkeypatch.delitem(sys.modules, "plait.export.export_manager", raising=False)
    with pytest.raises(ImportError, match=r"tensorflow is needed (.*\n)*  do +pip install 'plait\[tensorflow\]'"):
        export.JaxModule
    with pytest.raises(MissingDependencyError):
        export.ExportManager
    with pytest.raises(MissingDependencyError):
        export.initialize_dtensor()


READER = """
import sys
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
for key in ("score", "serving_default"):
    for size in (1, 3):
        x = np.arange(2 * size, dtype=np.float32).reshape(size, 2)
        y = loaded.signatures[key](x=x)["y"]
        np.testing.assert_allclose(y, x @ np.load(sys.argv[2]) + np.load(sys.argv[3]), rtol=1e-5)
x = tf.ones((3, 2))
with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.reduce_sum(loaded(x)["y"])
kernel = next(each for each in loaded.computation_module.tf_var_leaves if each.name.startswith("kernel"))
dx, dk = tape.gradient(y, [x, kernel])
np.testing.assert_allclose(dx, np.broadcast_to(np.load(sys.argv[2]).T, (3, 2)), rtol=1e-5)
np.testing.assert_allclose(dk, np.full((2, 1), 3.0), rtol=1e-5)
print("same")
"""


@pytest.mark.slow
@pytest.mark.oracle
def test_e20_the_example_of_the_chapter_runs_where_there_is_only_tensorflow(tmp_path):
    """Section 10; E18, E20, E21: signatures, gradients and the call itself, in a process without JAX."""
    tf = pytest.importorskip("tensorflow")
    model = plait.Linear(2, 1, rngs=plait.Rngs(0))
    graphdef, state = plait.split(model)
    module = export.JaxModule(
        plait.to_pure_dict(state),
        {"score": lambda p, x: plait.merge(graphdef, p)(x)},
        trainable=True,
        input_polymorphic_shape={"score": "b, 2"},
    )
    config = export.ServingConfig(
        ["serving_default", "score"],
        method_key="score",
        input_signature=[tf.TensorSpec((None, 2), tf.float32, name="x")],
        tf_postprocessor=lambda y: {"y": y},
    )
    export.ExportManager(module, [config]).save(tmp_path / "linear_model")
    np.save(tmp_path / "kernel.npy", model.kernel[...])
    np.save(tmp_path / "bias.npy", model.bias[...])
    (tmp_path / "reader.py").write_text(READER)
    isolated = RUNNERS / "isolated.py"
    files = [str(tmp_path / name) for name in ("reader.py", "linear_model", "kernel.npy", "bias.npy")]
    command = [sys.executable, "-I", str(isolated), "jax,jaxlib,flax,plait", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip().endswith("same"), done.stderr[-2000:]
