"""plait.as_flax: in a process of its own, flax.nnx is plait, and the rest of Flax is Flax."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

import plait
from tests.environment import environment
from tests.forked import run_python
from tests.sampling import slow_but

PROGRAM = """
import sys
import warnings
import jax.numpy as jnp
import flax
from flax import linen, nnx
import flax.nnx.nn.linear
from flax.nnx.transforms.autodiff import DiffState
from flax.nnx import Param
import helper

assert nnx.Linear.__module__.startswith("plait.") and flax.nnx is nnx
assert flax.nnx.nn.linear.Linear is nnx.Linear is helper.Linear
assert linen.Dense.__module__.startswith("flax.linen")
assert not any("plait" not in repr(module) for name, module in sys.modules.items() if name.startswith("flax.nnx"))
model = nnx.bridge.ToNNX(linen.Dense(3), rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 2)))
grads = nnx.grad(lambda m: m.kernel.sum())(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(8)]
with warnings.catch_warnings():
    warnings.simplefilter("error")  # no word of what plait has and Flax has not
    nnx.jit(nnx.Sequential.__call__)(nnx.Sequential(*layers), jnp.ones((1, 2)))
print(model(jnp.ones((4, 2))).shape, sys.argv[1:], grads.kernel[...])
"""
EXPECTED = "(4, 3) ['--steps', '3'] [[1.]]\n"


def run(*command, folder, status=0):
    """What a new process writes, to standard output and to standard error."""
    done = run_python(*command, cwd=folder, env=environment())
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "program.py").write_text(PROGRAM)
    (tmp_path / "here" / "helper.py").write_text("from flax.nnx import Linear\n")
    (tmp_path / "here" / "fails.py").write_text("from flax import nnx\nnnx.no_such_name\n")
    return tmp_path


@pytest.mark.oracle
def test_a_program_runs_unchanged(folder):
    assert run("-m", "plait.as_flax", "here/program.py", "--steps", "3", folder=folder)[0] == EXPECTED


@pytest.mark.slow
@pytest.mark.oracle
def test_a_program_may_import_it_first(folder):
    (folder / "here" / "first.py").write_text("import plait.as_flax\n" + PROGRAM)
    assert run("here/first.py", "--steps", "3", folder=folder)[0] == EXPECTED


@pytest.mark.slow
@pytest.mark.oracle
def test_a_module_runs_from_the_current_folder(folder):
    out, _ = run("-m", "plait.as_flax", "-m", "program", "--steps", "3", folder=folder / "here")
    assert out == EXPECTED


BOTH_IMPORTS = """from flax import nnx  # first
if True:
    import flax.nnx as nnx
print(nnx.Linear.__module__)
"""


@pytest.mark.slow
@pytest.mark.oracle
def test_both_commands_of_the_page_run_a_program_with_plait(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(BOTH_IMPORTS)
    _, *arguments = re.search(r"^python -m plait.as_flax .*", page, re.MULTILINE)[0].split()
    assert run(*arguments, folder=tmp_path)[0] == "plait.nn.linear\n"
    subprocess.run(re.search(r"^sed (.*\\\n)*.*", page, re.MULTILINE)[0], shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text().count("import plait as nnx") == 2
    assert (tmp_path / "train.py.old").read_text() == BOTH_IMPORTS
    assert run("train.py", folder=tmp_path)[0] == "plait.nn.linear\n"


@pytest.mark.slow
@pytest.mark.oracle
def test_numpyro_takes_models_as_its_page_shows(tmp_path):
    pytest.importorskip("numpyro")
    page = (Path(__file__).parents[2] / "docs" / "ecosystem.md").read_text(encoding="utf-8").partition("## numpyro")[2]
    (tmp_path / "program.py").write_text(re.search(r"```python no-run\n(.*?)```", page, re.DOTALL)[1])
    expected = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    assert run("program.py", folder=tmp_path)[0] == expected


@pytest.mark.oracle
def test_the_report_names_what_was_used_and_what_is_lacking(folder):
    _, said = run("-m", "plait.as_flax", "--report", "here/fails.py", folder=folder, status=1)
    assert "It has no flax.nnx.no_such_name" in said


@pytest.mark.slow
@pytest.mark.oracle
def test_the_report_says_when_nothing_is_lacking(folder):
    _, said = run("-m", "plait.as_flax", "--report", "here/program.py", folder=folder)
    assert "flax.nnx.nn.linear: Linear" in said
    assert "It has all the names that were used." in said


@pytest.mark.slow
@pytest.mark.oracle
def test_after_flax_it_refuses_to_start(folder):
    _, said = run("-c", "import flax.nnx, plait.as_flax", folder=folder, status=1)
    assert "AlreadyImportedError: plait cannot replace flax.nnx" in said
    assert "do        write `import plait.as_flax` above all other imports" in said


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    slow_but(
        lambda row: row[0] == ["none.py"],
        [
            ([], 2, "usage"),
            (["--help"], 0, "usage"),
            (["--zork"], 2, "usage"),
            (["none.py"], 2, "no program at none.py"),
        ],
    ),
)
def test_bad_requests_say_how_it_is_used(folder, arguments, status, said):
    assert said in run("-m", "plait.as_flax", *arguments, folder=folder, status=status)[1]


PRIVATE = """
import plait.as_flax
import jax, numpy as np, jax.numpy as jnp
from flax import nnx

v = nnx.Param(jnp.ones(2), tag=1)
assert v._var_metadata["tag"] == 1
v._var_metadata["note"] = "x"
assert v.note == "x" and nnx.Param(jnp.ones(2)).has_metadata("note") is False
v._raw_value = jnp.zeros(3)
assert v.shape == (3,)
assert set(v.__getstate__()) == {"_raw_value", "_trace_state", "_var_metadata"}

outside = nnx.tracers.current_jax_trace()
made = []

class Layer(nnx.Module):
    lenient = False
    def _check_valid_context(self, error_msg):
        if not self.lenient:
            super()._check_valid_context(error_msg)

class Lenient(Layer):
    lenient = True

def f(x):
    for kind in (Layer, Lenient):
        try:
            layers[kind].seen = 1
        except nnx.errors.TraceContextError as error:
            print(kind.__name__, type(error).__name__)
    v = nnx.Param(np.ones(2, "float32"))
    object.__setattr__(v._trace_state, "_jax_trace", outside)
    stamped = nnx.Module()
    vars(stamped)["_pytree__state"] = nnx.pytreelib.PytreeState()
    object.__setattr__(stamped._pytree__state._trace_state, "_jax_trace", outside)
    made.extend([v, stamped])
    return x

layers = {kind: kind() for kind in (Layer, Lenient)}
jax.eval_shape(f, 1.0)
made[0][...] = jnp.zeros(2)
made[1].seen = 1
print(hasattr(layers[Lenient], "seen"), hasattr(layers[Layer], "seen"))

class Asks(nnx.Module):
    def __call__(self):
        said.append(self._pytree__state.initializing)

    def __getattr__(self, name):  # of a wrapper that calls any method of what it holds
        if name != "is_initializing":
            raise AttributeError(name)
        return self

said, asks = [], Asks()
asks()
nnx.bridge.lazy_init(asks)
asks._pytree__state._initializing = True
nnx.jit(Asks.__call__)(asks)
asks._pytree__state._initializing = False
asks()
assert said == [False, True, True, False] and nnx.state(asks) == {}
"""


@pytest.mark.slow
@pytest.mark.oracle
def test_private_names_that_keras_uses_are_views_of_what_plait_has(folder):
    assert run("-c", PRIVATE, folder=folder)[0] == "Layer TraceContextError\nTrue False\n"


@pytest.mark.oracle
def test_without_it_plait_refuses_filters_of_flax():
    nnx = importlib.import_module("flax.nnx")
    model = plait.Linear(2, 1, rngs=plait.Rngs(0))
    for filter in (nnx.Param, (nnx.BatchStat, "tag"), [nnx.Param]):
        with pytest.raises(plait.errors.FilterTypeError, match="a Flax class selects nothing"):
            plait.state(model, filter)
