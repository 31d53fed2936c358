"""``jit(cache=folder)``: a program that outlives the process is never a stale one. (rules W1 to W9)"""

import contextlib
import gc
import importlib
import inspect
import io
import logging
import os
import random
import sys
import threading
import time
import warnings
import weakref
from datetime import datetime
from os import getenv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.errors import ProgramCacheError, ProgramCacheWarning
from tests.sampling import slow_but
from tests.warm import warm_programs
from tests.warm.warm_programs import BASE, CHOICES

pytestmark = pytest.mark.usefixtures("users_random_functions")


@pytest.fixture(autouse=True)
def forget_modules():
    yield
    for name in warm_programs.NAMES:
        sys.modules.pop(name, None)


def counts(step):
    return step.jitted_fn.programs.counts


def both(tmp_path, choice):
    """What a choice gives with and without a cache, each in freshly loaded modules; and the counts."""
    plain, _ = warm_programs.run(warm_programs.load(tmp_path / "source", choice), choice)
    found, step = warm_programs.run(warm_programs.load(tmp_path / "source", choice), choice, cache=tmp_path / "kept")
    return plain, found, counts(step)


def test_w1_the_same_program_is_loaded(tmp_path):
    plain, found, first = both(tmp_path, BASE)
    again, loaded, second = both(tmp_path, BASE)
    assert plain == found == again == loaded
    assert first == {"loaded": 0, "stored": 1, "not stored": 0}
    assert second == {"loaded": 1, "stored": 0, "not stored": 0}


EDITS = [*CHOICES]
QUICK = ["flag"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CHOICES]
)
def test_w3_each_kind_of_edit_is_a_miss(tmp_path, name):
    both(tmp_path, BASE)
    plain, found, after = both(tmp_path, {**BASE, name: CHOICES[name][1]})
    assert plain == found
    # The model of a step on a mesh is on the mesh afterwards, so that the next step is another program.
    assert after["stored"] == {"weak": 0, "sharding": 2}.get(name, 1)


@pytest.mark.parametrize(
    "count",
    [pytest.param(40, marks=pytest.mark.slow), pytest.param(200, marks=[pytest.mark.slow, pytest.mark.long])],
    ids=str,
)
def test_w3_no_drawn_edit_gives_a_stale_program(tmp_path, count):
    """One to three edits at a time, of any kind; what comes back is what the program gives without a cache."""
    draw = random.Random(20)
    choice, loaded, stored = dict(BASE), 0, 0
    for _ in range(count):
        for name in draw.sample(EDITS, draw.randint(1, 3)):
            choice[name] = draw.choice(CHOICES[name])
        if draw.random() < 0.25:
            choice = dict(BASE)
        plain, found, after = both(tmp_path, choice)
        assert plain == found, f"a stale program for {choice}"
        loaded, stored = loaded + after["loaded"], stored + after["stored"]
        assert after["not stored"] == 0
    assert loaded > count // 10
    assert stored > count // 4


# What calls may do ----------------------------------------------------------------------------------------------------


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0, dropout=1)
        self.a = plait.Linear(4, 8, rngs=rngs)
        self.norm = plait.BatchNorm(8, rngs=rngs)
        self.dropout = plait.Dropout(0.25, rngs=rngs)
        self.b = plait.Linear(8, 2, rngs=rngs)
        self.mode = "train"

    def __call__(self, x):
        return self.b(self.dropout(self.norm(plait.relu(self.a(x)))))


def loss(net, x):
    return (net(x) ** 2).mean()


def train(net, optimizer, x):
    value, grads = plait.value_and_grad(loss)(net, x)
    optimizer.update(net, grads)
    return value


def forward(net, x, *, scale=1.0):
    return {"y": net(x) * scale, "sum": (x.sum(), None)}


def with_static(net, x, n, *, name):
    return [net(x)] * n, jnp.zeros(len(name))


def returns_state(net, x):
    net(x)
    return plait.state(net), plait.state(net, plait.Param)


def returns_module(net, x):
    other = plait.clone(net)
    other.mode = "eval"
    return other, net(x)


def returns_argument(net, x):
    net.a.kernel.value = net.a.kernel.value + 1
    return net, x


def changes_structure(net, x):
    net.mode = "eval"
    net.extra = plait.Param(x.sum())
    del net.dropout
    return net.extra.value


def plain_function(x, y):
    return x @ y, {"t": (x, [y])}


def in_list(nets, x):
    return sum(net(x).sum() for net in nets)


def random_key(net, key):
    return jax.random.normal(key, (2, 2)), jax.random.split(key, 2), jax.random.key(3)


def net():
    return Net()


def optimizer(model):
    return plait.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=plait.Param)


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def training_arguments():
    model = net()
    return (model, optimizer(model), jnp.asarray(X)), {}


# Name → function, options, what makes the arguments. Each is called twice.
CALLS = {
    "train": (train, {}, training_arguments),
    "train, donating": (train, {"donate": True}, training_arguments),
    "train, donated arguments": (train, {"donate_argnums": (0, 1)}, training_arguments),
    "forward": (forward, {}, lambda: ((net(), X), {"scale": jnp.float32(2)})),
    "keywords": (forward, {}, lambda: ((), {"net": net(), "x": X, "scale": 2.0})),
    "static": (with_static, {"static_argnums": 2, "static_argnames": "name"},
               lambda: ((net(), X, 2), {"name": "four"})),
    "state": (returns_state, {}, lambda: ((net(), X), {})),
    "module": (returns_module, {}, lambda: ((net(), X), {})),
    "argument": (returns_argument, {"donate": True}, lambda: ((net(), X), {})),
    "structure": (changes_structure, {}, lambda: ((net(), X), {})),
    "plain": (plain_function, {}, lambda: ((X, X.T), {})),
    "list": (in_list, {}, lambda: (([net(), net()], X), {})),
    "keys": (random_key, {}, lambda: ((net(), jax.random.key(5)), {})),
}  # fmt: skip


def described(tree):
    """Values bit for bit, and structure."""
    graphdef, state = plait.split(tree)
    leaves = [leaf if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jax.random.key_data(leaf)
              for leaf in map(jnp.asarray, jax.tree.leaves(state))]  # fmt: skip
    return graphdef, [(np.asarray(leaf).tobytes(), leaf.dtype, leaf.shape) for leaf in leaves]


class Watch:
    """Which functions of this file are entered, and which events JAX reports."""

    def __enter__(self):
        self.entered, self.events = set(), []
        jax.monitoring.register_event_listener(self._event)
        jax.monitoring.register_event_duration_secs_listener(self._event)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        jax.monitoring.unregister_event_listener(self._event)
        jax.monitoring.unregister_event_duration_listener(self._event)

    def _event(self, name, *_, **__):
        self.events.append(name)

    def _call(self, frame, event, _):
        if event == "call" and frame.f_globals.get("__name__") in (__name__, "plait.nn.linear"):
            self.entered.add(frame.f_code.co_name)


def called(name, **options):
    """What two calls leave and return, and the jitted function."""
    f, given, make = CALLS[name]
    step = plait.jit(f, **given, **options)
    args, kwargs = make()
    results = []
    for _ in range(1 if name in ("structure", "module") else 2):
        out = step(*args, **kwargs)
        results.append(described([out, [arg for arg in args if not isinstance(arg, (int, str))]]))
    return results, step


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "structure" else pytest.mark.slow) for name in CALLS],
)
def test_w5_what_a_call_does_is_stored_with_the_program(tmp_path, name):
    plain, _ = called(name)
    first, _ = called(name, cache=tmp_path)
    f, given, make = CALLS[name]
    second = plait.jit(f, **given, cache=tmp_path)
    args, kwargs = make()
    with Watch() as watch:
        second(*args, **kwargs)
    again, third = called(name, cache=tmp_path)
    assert plain == first == again
    assert counts(second)["loaded"] == 1
    assert counts(third)["stored"] == 0
    assert not watch.entered & {*(case[0].__name__ for case in CALLS.values()), "__call__", "loss"}
    assert watch.events == []


def test_w5_shapes_that_do_different_things_each_have_their_program(tmp_path):
    """The second shape writes another variable than the first, in whichever order they come."""

    def step(net, x):
        if x.shape[0] == 3:
            net.b.bias.value = net.b.bias.value + 1
        else:
            net.a.bias.value = net.a.bias.value + 2
        return {"y": x * 2}

    results = []
    for order in ((3, 5), (5, 3), (3, 5)):
        stored, model = plait.jit(step, cache=tmp_path), net()
        out = {size: np.asarray(stored(model, jnp.ones((size, 4)))["y"]) for size in order}
        results.append((described(model), [out[3].tobytes(), out[5].tobytes()]))
    assert results[0] == results[1] == results[2]
    assert counts(stored)["stored"] == 0


@pytest.mark.sampled
@pytest.mark.usefixtures("users_promotion")
@pytest.mark.parametrize("rates", ["one", "two", "shared"])
def test_w5_a_number_that_the_trace_replaces_in_a_closure_is_replaced_by_the_load_too(tmp_path, rates):
    """Optax's cosine schedule makes 10.0 of the 10 that it closes over."""

    def made():
        rate = optax.cosine_decay_schedule(1e-2, 10)
        other = rate if rates == "shared" else optax.cosine_decay_schedule(1e-2, 10)
        chain = [optax.scale_by_schedule(each) for each in ([rate] if rates == "one" else [rate, other])]
        model = net()
        return rate, model, plait.Optimizer(model, optax.chain(*chain, optax.scale(-1.0)), wrt=plait.Param)

    results = []
    for _ in range(2):
        stored, (rate, model, optimizer) = plait.jit(train, cache=tmp_path), made()
        for size in (3, 5):  # the second program is that of the replaced number
            stored(model, optimizer, jnp.ones((size, 4)))
        steps = inspect.getclosurevars(rate).nonlocals["decay_steps"]
        results.append((described(model), repr(steps), counts(stored)))
    assert results[0][:2] == results[1][:2]
    assert results[0][1] == "10.0"
    assert [each[2]["loaded"] for each in results] == [0, 2]
    assert [each[2]["stored"] for each in results] == [2, 0]


def test_w4_what_the_trace_puts_in_place_of_a_number_in_a_closure_must_be_one(tmp_path):
    def make(count):
        def step(x):
            nonlocal count
            count = [count]
            return x * len(count)

        return step

    with pytest.warns(ProgramCacheWarning, match="step changed its defaults, its closure"):
        plait.jit(make(1), cache=tmp_path / "programs")(jnp.ones(3))


# What cannot be recorded ----------------------------------------------------------------------------------------------

KEPT: list = []
CAPTURED = plait.Param(jnp.ones(()))
MASK = Path(__file__).with_name("mask.npy")
LOCK = threading.Lock()


def changes_a_global(x):
    KEPT.append(1)
    return x + len(KEPT)


def assigns_a_global(x):
    global KEPT
    KEPT = [x.shape]
    return x


def reads_a_lock(x):
    with LOCK:
        return x


def reads_the_time(x):
    return x * time.time()


def reads_the_environment(x):
    return x * float(os.environ.get("NOT_THERE", "2"))


def draws_a_number(x):
    return x * np.random.rand()


def loads_a_file(x):
    return x * np.load(MASK)


def loads_a_file_with_jax(x):
    return x * jnp.load(MASK)


def reads_numbers(x):
    return x * float(np.fromfile(MASK, dtype=np.uint8).sum())


def reads_a_text(x):
    return x * len(MASK.read_bytes())


def asks_whether_a_file_exists(x):
    return x * float(MASK.exists())


def asks_for_the_date(x):
    return x * datetime.now().microsecond


def asks_for_a_variable(x):
    return x * float(getenv("NOT_THERE", "2"))


def asks_for_the_process(x):
    return x * os.getpid()


def draws_without_a_seed(x):
    return x * random.Random().random()


def reads_the_bases_as_written(x):
    return x * len(Listed.__orig_bases__)


class Listed(list[int]):
    pass


def changes_its_default(x, calls=[]):  # noqa: B006
    calls.append(1)
    return x * len(calls)


def changing_its_closure(calls):
    def changes_its_closure(x):
        calls["made"] = x.shape
        return x * len(calls)

    return changes_its_closure


def captures_a_variable(x):
    return x * CAPTURED.value


def uses_a_module(x):
    return getattr(warm_programs, "BASE")["rate"] and x  # noqa: B009


def runs_text(x):
    return eval("x * 2")


def prints(x):
    jax.debug.print("{}", x)
    return x


UNRECORDABLE = {
    changes_a_global: "'KEPT' of .* changed while",
    assigns_a_global: "assigns the global 'KEPT'",
    reads_a_lock: "'LOCK'.*a lock",
    reads_the_time: "time.time gives a different result",
    reads_the_environment: "os.environ gives a different result",
    draws_a_number: "numpy.random.rand gives a different result",
    loads_a_file: f"{open.__module__}.open gives a different result",
    loads_a_file_with_jax: "jax.numpy.load gives a different result",
    reads_numbers: "numpy.fromfile gives a different result",
    reads_a_text: f"{open.__module__}.open gives a different result",
    asks_whether_a_file_exists: "posix.stat gives a different result",
    asks_for_the_date: "datetime.datetime.now gives a different result",
    asks_for_a_variable: "os.getenv gives a different result",
    asks_for_the_process: "getpid gives a different result",
    draws_without_a_seed: "Random.seed gives a different result",
    reads_the_bases_as_written: "uses __orig_bases__",
    changes_its_default: "changes_its_default changed its defaults",
    changing_its_closure({}): "changes_its_closure changed its defaults, its closure",
    captures_a_variable: "'CAPTURED'.*Param that is not an argument",
    uses_a_module: "module .*warm_programs' itself is used",
    runs_text: "builtins.eval",
    prints: "calls Python while it runs",
}


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@pytest.mark.parametrize("f", slow_but([*UNRECORDABLE][::2], UNRECORDABLE), ids=lambda f: f.__name__)
def test_w4_what_cannot_be_recorded_is_not_stored_and_said_once(tmp_path, f, monkeypatch):
    np.save(tmp_path / "mask.npy", np.ones(3, np.float32))
    monkeypatch.setattr(sys.modules[__name__], "MASK", tmp_path / "mask.npy")
    tmp_path = tmp_path / "programs"
    stored = plait.jit(f, cache=tmp_path)
    with pytest.warns(ProgramCacheWarning, match=UNRECORDABLE[f]):
        first = stored(jnp.ones(3))
    assert stored(jnp.ones(3)).shape == first.shape
    assert list(tmp_path.glob("*")) == []
    assert counts(stored)["not stored"] == 1


def logs(x):
    logging.getLogger("test").info("traced with shape %s", x.shape)
    return x


class Reading(logging.Filter):
    def filter(self, record):
        return bool(os.environ["PATH"])


def logs_through_a_filter(x):
    logging.getLogger("test.filtered").info("traced")
    return x


def imports(x):
    importlib.import_module("plait.comparison.names")
    return x


def warns(x):
    warnings.warn("traced", stacklevel=1)
    return x


def collects(x):
    gc.collect()
    return x


class Garbage:
    pass


def is_told(_):
    os.getenv("PATH")


def collects_what_is_watched(x):
    gc.collect()
    return x


def times_a_collection(phase, info):
    """As hypothesis does, and profilers."""
    time.perf_counter()


@pytest.mark.filterwarnings("ignore:traced")
@pytest.mark.parametrize(
    "f", [logs, logs_through_a_filter, warns, imports, collects, collects_what_is_watched], ids=lambda f: f.__name__
)
def test_w4_what_only_reports_or_imports_is_stored(tmp_path, f, monkeypatch, request):
    """Each of them asks for the time or opens a file, but no value of the program comes from it."""
    monkeypatch.delitem(sys.modules, "plait.comparison.names", raising=False)
    logging.getLogger("test").setLevel("INFO")
    logging.getLogger("test.filtered").addFilter(Reading())
    gc.callbacks.append(times_a_collection)
    garbage = Garbage()
    garbage.itself, watch = garbage, weakref.ref(garbage, is_told)
    del garbage
    request.addfinalizer(lambda: gc.callbacks.remove(times_a_collection))
    stored = plait.jit(f, cache=tmp_path)
    stored(jnp.ones(3))
    assert counts(stored)["stored"] == 1
    assert f is not collects_what_is_watched or watch() is None


def stored_by(folder, report=None):
    """The counts of a call that stores its program, and the programs without their keys."""
    step = plait.jit(plain_function, cache=folder)
    with contextlib.nullcontext() if report is None else plait.explain_retraces(report=report):
        step(jnp.ones(3), jnp.ones(3))
    return counts(step), [file.name for file in sorted(folder.glob("*.program"))]


@pytest.mark.parametrize("report", [lambda message: time.time(), print, None], ids=["a lambda", "print", "by default"])
def test_w4_a_report_of_traces_is_no_part_of_the_program(tmp_path, report, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    stored_by(tmp_path / "first", print)  # what plait loads when it is first used is of its own files
    quiet = stored_by(tmp_path / "quiet")
    assert stored_by(tmp_path / "explained", report or (lambda message: print(message, file=sys.stderr))) == quiet
    assert quiet[0]["stored"] == 1
    assert stored_by(tmp_path / "quiet", report or print)[0]["loaded"] == 1


def test_w4_a_helper_that_was_traced_before_is_recorded_too(tmp_path):
    """JAX keeps traces of functions; what such a function reads would be missed."""
    text = "import jax, jax.numpy as jnp\nRATE = {}\n@jax.jit\ndef helper(x):\n    return x * RATE\n"
    results = []
    for rate in (2.0, 3.0):
        module = sys.modules["warm_helper"] = type(sys)("warm_helper")
        exec(text.format(rate), module.__dict__)
        module.helper(jnp.ones(3))
        exec("def step(x):\n    return helper(x)\n", module.__dict__)
        results.append(plait.jit(module.step, cache=tmp_path)(jnp.ones(3)).tolist())
    assert results == [[2.0] * 3, [3.0] * 3]


@pytest.mark.parametrize("name", slow_but(["plait"], ["jax", "plait", "numpy", "python"]))
def test_w2_another_version_is_a_miss(tmp_path, name, monkeypatch):
    def step(x):
        return x + 1

    plait.jit(step, cache=tmp_path)(jnp.ones(3))
    from plait.warm import environment

    versions = {**environment._versions(), name: "another"}
    monkeypatch.setattr(environment, "_versions", lambda: versions)
    stored = plait.jit(step, cache=tmp_path)
    stored(jnp.ones(3))
    assert counts(stored) == {"loaded": 0, "stored": 1, "not stored": 0}


def test_w2_code_of_plait_that_differs_is_a_miss(tmp_path, monkeypatch):
    def forward(layer, x):
        return layer(x)

    layer = plait.Linear(4, 2, rngs=plait.Rngs(0))
    plait.jit(forward, cache=tmp_path)(layer, X)
    call = plait.Linear.__call__
    for factor, expected in [(2, "stored"), (2, "loaded"), (3, "stored")]:
        monkeypatch.setattr(plait.Linear, "__call__", lambda self, x, factor=factor: call(self, x) * factor)
        stored = plait.jit(forward, cache=tmp_path)
        np.testing.assert_array_equal(stored(layer, X), layer(X))
        assert counts(stored) == {"loaded": 0, "stored": 0, "not stored": 0, expected: 1}


# Checking mode --------------------------------------------------------------------------------------------------------


def test_w9_the_checking_mode_finds_a_stale_program(tmp_path, monkeypatch):
    """A program under a key that forgets the function: what plait would do if it recorded too little."""
    monkeypatch.setattr("plait.warm.programs.Stored.description", lambda self, describer: {})
    monkeypatch.setattr("plait.warm.reads.Recording.finish", lambda self: None)
    assert plait.jit(lambda x: x + 1, cache=tmp_path)(jnp.ones(3)).tolist() == [2.0] * 3
    assert plait.jit(lambda x: x + 2, cache=tmp_path)(jnp.ones(3)).tolist() == [2.0] * 3  # stale
    monkeypatch.setenv("PLAIT_CHECK_CACHE", "1")
    with pytest.raises(ProgramCacheError, match="differs from the traced one"):
        plait.jit(lambda x: x + 2, cache=tmp_path)(jnp.ones(3))


@pytest.mark.slow
def test_w9_the_checking_mode_lets_a_right_program_pass(tmp_path, monkeypatch):
    called("state", cache=tmp_path)
    monkeypatch.setenv("PLAIT_CHECK_CACHE", "1")
    _, stored = called("state", cache=tmp_path)
    assert counts(stored)["loaded"] == 1


# Devices whose executables cannot be stored ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param("train, donating", marks=pytest.mark.slow), "keys"])
def test_w10_without_executables_programs_are_stored_in_stablehlo(tmp_path, monkeypatch, name):
    def refuse(stage):
        raise RuntimeError("UNIMPLEMENTED: this client cannot serialize")

    monkeypatch.setattr("plait.warm.programs.binary_of", refuse)
    plain, _ = called(name)
    with pytest.warns(ProgramCacheWarning, match="StableHLO.*\n(.*\n)*.*JAX_COMPILATION_CACHE_DIR"):
        first, stored = called(name, cache=tmp_path)
    assert counts(stored)["stored"] == 1
    f, given, make = CALLS[name]
    step, (args, kwargs) = plait.jit(f, **given, cache=tmp_path), make()
    with Watch() as watch:
        step(*args, **kwargs)
    again, stored = called(name, cache=tmp_path)
    assert plain == first == again
    assert counts(stored)["loaded"] == 1
    assert not watch.entered & {"train", "loss", "__call__", "random_key"}


# Inside other traces, and under JAX's debugging -----------------------------------------------------------------------


def test_inside_another_trace_the_function_is_traced_with_it(tmp_path):
    def double(x):
        return x * 2

    stored = plait.jit(double, cache=tmp_path)
    assert jax.grad(lambda x: stored(x).sum())(jnp.ones(3)).tolist() == [2.0] * 3
    assert jax.jit(stored)(jnp.ones(3)).tolist() == [2.0] * 3
    assert jax.vmap(stored)(jnp.ones(3)).tolist() == [2.0] * 3
    assert not list(tmp_path.glob("*"))


def test_jax_debugging_modes_do_not_use_stored_programs(tmp_path):
    def log(x):
        return jnp.log(x)

    stored = plait.jit(log, cache=tmp_path)
    stored(jnp.ones(3))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        stored(-jnp.ones(3))
    with jax.disable_jit():
        assert stored(jnp.ones(3)).tolist() == [0.0] * 3
    assert stored.lower(jnp.ones(3)).as_text().count("log")
    stored.clear_cache()
    assert stored(jnp.ones(3)).tolist() == [0.0] * 3
    assert counts(stored)["loaded"] == 1
