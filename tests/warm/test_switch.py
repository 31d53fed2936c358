"""One folder for everything: a second process compiles nothing, and the report says what could not be stored.
(rules W13 to W16)"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ProgramCacheError
from plait.warm.folder import Folder
from plait.warm.logbook import processes
from tests.commands import plait_command
from tests.sampling import slow_but

pytestmark = pytest.mark.usefixtures("users_random_functions")

PROGRAM = """
import collections
import json
import sys
import time

import jax
import jax.numpy as jnp
import optax

import plait

if sys.argv[1:] == ["called"]:
    plait.cache("all")

counts = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name.rpartition("/")[2]]))


class Net(plait.Module):
    def __init__(self, rngs):
        self.up = plait.Linear(4, 8, rngs=rngs)
        self.norm = plait.BatchNorm(8, rngs=rngs)
        self.down = plait.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.down(plait.gelu(self.norm(self.up(x))))


def loss(net, x):
    return jnp.square(net(x)).mean()


def step(net, optimizer, x):
    value, grads = plait.value_and_grad(loss)(net, x)
    optimizer.update(net, grads)
    return value


def evaluate(net, x):
    return loss(plait.view(net, use_running_average=True), x)


def stamped(x):
    return x + 0 * time.time()  # cannot be stored; the number is the same in each process


def main():
    net = Net(plait.Rngs(0))
    optimizer = plait.Optimizer(net, optax.adam(1e-3), wrt=plait.Param)
    x = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
    jax.block_until_ready((plait.state(net), plait.state(optimizer), x))
    built = dict(counts)
    step_ = plait.jit(step, donate=True)
    values = [step_(net, optimizer, x), step_(net, optimizer, x), plait.jit(evaluate)(net, x)]
    plait.jit(stamped)(x)
    print(json.dumps({"values": [float(value).hex() for value in values], "built": built, "all": dict(counts)}))


main()
"""


def process(folder, *arguments, **variables):
    """What the program reports from a process of its own."""
    (folder / "program.py").write_text(PROGRAM)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_CACHE", "JAX_COMPILATION"))
    }
    environment = {**kept, "PYTHONPATH": str(Path(plait.__file__).parents[1]), **variables}
    command = [sys.executable, "-W", "error", "program.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lines(folder, what):
    """The lines of that kind, of each process."""
    return [[line for line in each if line["what"] == what] for each in processes(folder)]


@pytest.mark.parametrize("by", slow_but(["PLAIT_CACHE"], ["PLAIT_CACHE", "called"]))
def test_w13_a_second_process_compiles_nothing(tmp_path, by):
    given = {"PLAIT_CACHE": "all"} if by == "PLAIT_CACHE" else {}
    arguments = ["called"] if by == "called" else []
    first, second = (process(tmp_path, *arguments, **given) for _ in range(2))
    assert first["built"]["cache_misses"] > 3
    assert second["values"] == first["values"] == process(tmp_path)["values"]
    # Not even the model and the optimizer are compiled, nor what cannot be stored as a program.
    assert second["built"]["cache_hits"] == second["built"]["compile_requests_use_cache"]
    assert "cache_misses" not in second["all"]
    assert process(tmp_path, *arguments, **given, PLAIT_CHECK_CACHE="1")["values"] == first["values"]
    stored, loaded = lines(tmp_path / "all", "stored"), lines(tmp_path / "all", "loaded")
    assert [line["function"] for line in stored[0]] == ["__main__:step", "__main__:evaluate"]
    assert [line["function"] for line in loaded[1]] == ["__main__:step", "__main__:evaluate"]
    assert (stored[1], loaded[0]) == ([], [])


def test_w13_without_a_folder_nothing_of_this_is_imported():
    program = "import sys, plait; sys.exit(any(name.startswith('plait.warm') for name in sys.modules))"
    kept = {name: value for name, value in os.environ.items() if name != "PLAIT_CACHE"}
    environment = {**kept, "PYTHONPATH": str(Path(plait.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=60).returncode == 0


def test_w13_a_function_may_be_called_first_while_python_ends(tmp_path):
    program = (
        "import atexit, plait, jax.numpy as jnp\n"
        "atexit.register(lambda: print(plait.jit(lambda x: 2 * x)(jnp.ones(2)).tolist()))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    environment = {**kept, "PYTHONPATH": str(Path(plait.__file__).parents[1]), "PLAIT_CACHE": str(tmp_path / "all")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[2.0, 2.0]\n", done.stderr


@pytest.mark.slow
def test_w16_the_report_names_programs_misses_and_what_could_not_be_stored(tmp_path):
    process(tmp_path, PLAIT_CACHE="all")
    process(tmp_path, PLAIT_CACHE="all", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    said = plait_command("cache", str(tmp_path / "all")).stdout
    assert "all: 4 programs" in said
    assert said.count("\n  __main__:stamped: time.time gives a different result in each call") == 1
    assert said.count("\n  0 hits, 3 misses, 1 not stored; JAX's own cache: 0 hits") == 2
    assert "miss: __main__:step: no program of this function is stored" in said
    assert "miss: __main__:step: XLA_FLAGS; devices" in said


def test_w16_there_is_no_report_about_a_folder_that_does_not_exist(tmp_path):
    done = plait_command("cache", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "there is no folder of programs" in done.stderr


def test_w16_lines_of_a_killed_process_are_read(tmp_path):
    process(tmp_path, PLAIT_CACHE="all")
    (file,) = (tmp_path / "all" / "log").iterdir()
    file.write_bytes(file.read_bytes()[:-30])
    assert [line["function"] for line in lines(tmp_path / "all", "stored")[0]] == ["__main__:step", "__main__:evaluate"]
    assert lines(tmp_path / "all", "jax") == [[]]


# In one process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def switched(tmp_path, monkeypatch):
    """A folder that is in force, in a process whose user has not told JAX where its cache is."""
    for name in (*SETTINGS, "PLAIT_CACHE"):
        monkeypatch.delenv(name.upper(), raising=False)
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    plait.cache(tmp_path / "all")
    yield tmp_path / "all"
    plait.cache(None)
    for name, value in before.items():
        jax.config.update(name, value)


SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
}


def settings():
    return {name: getattr(jax.config, name) for name in SETTINGS}


def programs(folder):
    return [header["function"].rpartition(":")[2] for _, header in Folder(folder).headers()]


def double(x):
    return x * 2


def triple(x):
    return x * 3


def quadruple(x):
    return x * FOUR


FOUR = 4


def shifted(x):
    return x + offset()


def offset():
    with open(os.devnull) as file:
        return float(len(file.read()))


def other_offset():
    return 1.0


def test_w13_settings_of_jax_are_set_and_restored(switched):
    expected = {**dict.fromkeys(SETTINGS, 0.0), "jax_compilation_cache_dir": str(switched / "jax")}
    assert settings() == {**expected, "jax_persistent_cache_min_entry_size_bytes": -1}
    plait.cache(None)
    assert settings() == SETTINGS


def test_w13_what_the_user_has_set_stays(switched, tmp_path):
    plait.cache(None)
    own = {**SETTINGS, "jax_compilation_cache_dir": str(tmp_path / "own")}
    jax.config.update("jax_compilation_cache_dir", own["jax_compilation_cache_dir"])
    plait.cache(switched)
    assert settings() == own
    plait.cache(None)
    assert settings() == own


def test_w13_what_the_user_sets_later_stays(switched, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    plait.cache(tmp_path / "second")
    plait.cache(None)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")


def test_w13_a_later_call_changes_the_folder(switched, tmp_path):
    jitted = plait.jit(double)
    jitted(jnp.float32(1))
    plait.cache(tmp_path / "second")
    jitted(jnp.float32(1))
    plait.jit(triple)(jnp.float32(1))
    assert (programs(switched), programs(tmp_path / "second")) == (["double"], ["triple"])
    plait.cache(None)
    plait.jit(quadruple)(jnp.float32(1))
    assert (programs(switched), programs(tmp_path / "second")) == (["double"], ["triple"])


def test_w13_a_folder_of_its_own_comes_first(switched, tmp_path):
    plait.jit(double, cache=tmp_path / "own")(jnp.float32(1))
    assert (programs(switched), programs(tmp_path / "own")) == ([], ["double"])


def test_w8_a_folder_that_others_can_write_to_is_rejected(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ProgramCacheError, match=r"others can write to it"):
        plait.cache(tmp_path / "open")


def test_w13_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProgramCacheError, match=r"plait.cache cannot use the folder\n +at +.*file"):
        plait.cache(tmp_path / "file")


@pytest.mark.filterwarnings("error")
def test_w15_what_cannot_be_stored_is_not_tried_again_until_something_changes(switched, monkeypatch):
    for _ in range(2):
        plait.jit(shifted)(jnp.float32(1))
    (said,) = processes(switched)
    kinds = [line["what"] for line in said if line.get("function", "").endswith(":shifted")]
    assert kinds == ["missed", "not stored", "not stored"]
    monkeypatch.setattr(sys.modules[__name__], "offset", other_offset)
    assert plait.jit(shifted)(jnp.float32(1)) == 2
    assert programs(switched) == ["shifted"]


def test_w3_the_trace_that_finds_what_is_donated_is_recorded(switched, monkeypatch):
    for value, stored in ((4, 1), (5, 2), (4, 2)):
        monkeypatch.setattr(sys.modules[__name__], "FOUR", value)
        model = plait.Linear(1, 1, kernel_init=jax.nn.initializers.ones, rngs=plait.Rngs(0))
        plait.jit(scale, donate=True)(model)
        assert model.kernel[0, 0] == value
        assert programs(switched) == ["scale"] * stored


def scale(model):
    model.kernel.value = quadruple(model.kernel.value)


def test_w14_one_limit_for_programs_and_for_those_of_jax(switched):
    for number, name in enumerate(("oldest", "middle", "newest")):
        file = switched / "jax" / f"{name}-cache"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 1000)
        os.utime(file, (number + 1, number + 1))
    plait.jit(double)(jnp.float32(1))
    (program,) = switched.glob("*.program")
    left = [file for file in (switched / "jax").glob("*") if file.name.endswith("t-cache") or "middle" in file.name]
    assert len(left) == 3
    rest = sum(file.stat().st_size for file in (switched / "jax").iterdir())
    Folder(switched, limit=program.stat().st_size + rest - 1500).trim()
    assert [file.name for file in left if file.exists()] == ["newest-cache"]
    assert program.exists()
