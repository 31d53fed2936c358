"""A second process starts with a stored program: no Python of the model, no trace, no compilation. (rules W1, W11)"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait.warm.folder import Folder
from tests.commands import plait_command

pytestmark = pytest.mark.usefixtures("users_random_functions")

RECORDED = ("reads", "packages", "settings", "sources")
PROGRAM = """
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plait


class Block(plait.Module):
    def __init__(self, rngs):
        self.norm = plait.LayerNorm(8, rngs=rngs)
        self.up = plait.Linear(8, 16, rngs=rngs)
        self.down = plait.Linear(16, 8, rngs=rngs)
        self.dropout = plait.Dropout(0.1, rngs=rngs)
        self.calls = plait.BatchStat(jnp.int32(0))

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        return x + self.dropout(self.down(plait.gelu(self.up(self.norm(x)))))


class Model(plait.Module):
    def __init__(self, rngs):
        self.blocks = plait.List([Block(rngs) for _ in range(2)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def loss(model, x):
    return (model(x) ** 2).mean()


@plait.jit(cache="programs", donate=True)
def step(model, optimizer, x):
    value, grads = plait.value_and_grad(loss)(model, x)
    optimizer.update(model, grads)
    return value


def make():
    model = Model(plait.Rngs(0))
    return model, plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)


def calls():
    model, optimizer = plait.eval_shape(make)
    return [(step, (model, optimizer, jax.ShapeDtypeStruct((4, 8), jnp.float32)))]


def main():
    model, optimizer = make()
    x = jnp.asarray(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
    jax.block_until_ready(x)
    entered, events = [], []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    jax.monitoring.register_event_duration_secs_listener(lambda name, _, **__: events.append(name))
    sys.setprofile(
        lambda frame, event, _: event == "call"
        and frame.f_code.co_name in ("__call__", "loss", "step", "value_and_grad")
        and frame.f_globals["__name__"].startswith(("plait.nn", "warm_train"))
        and entered.append(frame.f_code.co_qualname)
    )
    first = step(model, optimizer, x)
    sys.setprofile(None)
    at_first = len(events)
    losses = [first, *(step(model, optimizer, x) for _ in range(3))]
    state = [np.asarray(leaf).tobytes().hex() for leaf in jax.tree.leaves(plait.state(model, plait.Param))]
    print(json.dumps({
        "losses": [float(each).hex() for each in losses],
        "state": state,
        "entered": entered,
        "events": events[:at_first],
        "later": events[at_first:],
        "counts": step.jitted_fn.programs.counts,
    }))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "warm_train.py").write_text(PROGRAM)
    yield tmp_path
    sys.modules.pop("warm_train", None)


def process(folder):
    """What the program reports from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(plait.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", "import warm_train; warm_train.main()"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_warm(report):
    assert report["entered"] == []
    assert report["events"] == []
    assert report["later"] == []
    assert report["counts"] == {"loaded": 1, "stored": 0, "not stored": 0}


def differing(folder):
    """What two processes recorded differently, if the second one did not find the program of the first."""
    headers = [header for _, header in Folder(folder / "programs").headers()]
    first, *others = [{**header["parts"], **{name: header[name] for name in RECORDED}} for header in headers]
    return [(name, first[name], value) for other in others for name, value in other.items() if first[name] != value]


def compiled_apart(folder):
    """``plait compile`` as users run it. Where a trace imports something, the hooks of imports are recorded, and tests
    leave some in this process."""
    command = [sys.executable, "-c", "from plait.cli import main; main()", "compile", "warm_train:calls"]
    environment = {**os.environ, "PYTHONPATH": str(Path(plait.__file__).parents[1]), "COLUMNS": "1000"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)


@pytest.mark.slow
def test_w11_a_process_starts_with_what_plait_compile_stored(folder):
    done = compiled_apart(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"1. step: stored, {folder / 'programs'}\n"
    report = process(folder)
    assert differing(folder) == []
    check_warm(report)
    assert "there already" in compiled_apart(folder).stdout


@pytest.mark.slow
def test_w1_a_second_process_neither_traces_nor_compiles(folder):
    first, second = process(folder), process(folder)
    assert first["counts"] == {"loaded": 0, "stored": 1, "not stored": 0}
    assert first["entered"] != []
    assert first["events"] != []
    check_warm(second)
    assert (first["losses"], first["state"]) == (second["losses"], second["state"])
    for name in (folder / "programs").iterdir():
        name.unlink()
    (folder / "warm_train.py").write_text(PROGRAM.replace('cache="programs", ', ""). replace(
        '"counts": step.jitted_fn.programs.counts,', ""))  # fmt: skip
    without = process(folder)
    assert (without["losses"], without["state"]) == (second["losses"], second["state"])


@pytest.mark.slow
def test_w7_two_processes_at_once_store_one_program(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(plait.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", "import warm_train; warm_train.main()"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) for _ in range(2)
    ]
    reports = [json.loads(each.communicate(timeout=300)[0].splitlines()[-1]) for each in started]
    assert reports[0]["losses"] == reports[1]["losses"]
    assert len([*(folder / "programs").iterdir()]) == 1
    check_warm(process(folder))


COUNTED = """
import json
from plait.core import seams
from plait.warm import sources
sources.STARTED = float("inf")  # the library was written just before
import warm_library
print(json.dumps(seams.programs_in_force().counts))
"""
IMPORTED = """
import jax.numpy as jnp
import plait


def table(x):
    return jnp.sin(x)


TABLE = plait.jit(table)(jnp.ones(3))
"""


@pytest.mark.slow
def test_a_package_may_call_a_stored_function_while_it_is_imported(tmp_path):
    """Rule W3: its code is described in another thread, which must not wait for the import."""
    package = tmp_path / "site-packages" / "warm_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(IMPORTED)
    path = os.pathsep.join([str(Path(plait.__file__).parents[1]), str(package.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "PLAIT_CACHE": str(tmp_path / "programs")}
    for counts in ({"stored": 1, "loaded": 0, "not stored": 0}, {"stored": 0, "loaded": 1, "not stored": 0}):
        command = [sys.executable, "-W", "error", "-c", COUNTED]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert (done.stderr, json.loads(done.stdout)) == ("", counts)


REFUSED = {
    "no such function": ("warm_train:nothing", "cannot be found"),
    "no calls": ("warm_train:make", "takes calls of jitted functions"),
    "no cache": ("warm_plain:calls", "does not store its compiled programs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_w11_plait_compile_says_what_it_takes(folder, name):
    (folder / "warm_plain.py").write_text("import plait\ndef calls():\n    return [(plait.jit(abs), (1.0,))]\n")
    place, message = REFUSED[name]
    done = plait_command("compile", place, cwd=folder)
    sys.modules.pop("warm_plain", None)
    assert done.returncode == 2
    assert message in done.stderr


def test_w11_a_program_that_cannot_be_stored_is_exit_status_1(folder):
    text = "import plait, time\nf = plait.jit(lambda x: x * time.time(), cache='programs')\ndef calls():\n"
    (folder / "warm_train.py").write_text(text + "    return f, (1.0,)\n")
    with pytest.warns(plait.errors.ProgramCacheWarning, match=r"time\.time"):
        done = plait_command("compile", "warm_train", cwd=folder)
    assert done.returncode == 1
    assert "not stored" in done.stdout
