"""Every error and warning of the packages below: what raises it and where it says it was; thirty are whole."""

import functools
import importlib
import itertools
import pkgutil
import re

import pytest

from tests.conformance import errors
from tests.conformance.errors.rows import SOURCE, advice, caught, code_in, compiles, follow, raised_at, sites
from tests.sampling import slow_but

SUBJECTS = [module.name for module in pkgutil.iter_modules(errors.__path__) if module.name != "rows"]
ROWS = {
    f"{subject}: {name}": row
    for subject in SUBJECTS
    for name, row in importlib.import_module(f"{errors.__name__}.{subject}").ROWS.items()
}

FLAGSHIPS = [name for name, row in ROWS.items() if row.text]

# What no row can reach: (file, function) → why, and where it is tested.
ELSEWHERE = {
    ("transforms/batching.py", "pmap"): "needs a JAX without pmap: tests/transforms/test_pmap.py",
    ("transforms/call/enter_leave.py", "_check"): "a bug in plait: tests/transforms/call/test_body.py",
    ("transforms/jit/saved.py", "save"): "writes a file: tests/transforms/jit/test_saved.py",
    ("transforms/jit/saved.py", "read"): "needs another machine: tests/transforms/jit/test_saved.py",
    ("transforms/jit/stages.py", "save"): "needs a file: tests/transforms/jit/test_saved.py",
    ("core/variables/variables.py", "_check_integers"): "NumPy's own error: tests/core/variables/test_variables.py",
    ("core/graph/untrained.py", "warn_of_flax"): "needs an object of Flax: tests/core/graph/test_untrained.py",
    ("core/variables/filters.py", "_check_not_of_flax"): "needs Flax: tests/flax/test_as_flax.py",
    (
        "flax/compat/flax_functions.py",
        "resolve_kwargs",
    ): "under as_flax: tests/flax/compat/test_private_functions.py",
    ("flax/compat/old_methods.py", "_to_pure_dict"): "a deprecated method: tests/flax/compat/test_old_methods.py",
    (
        "flax/compat/old_methods.py",
        "_replace_by_pure_dict",
    ): "a deprecated method: tests/flax/compat/test_old_methods.py",
    (
        "training/loop/processes/agreement.py",
        "check_same",
    ): "needs several processes: its own tests",
    ("training/loop/ahead.py", "go_back"): "needs several processes or a signal: tests/training/loop/test_ahead.py",
    (
        "training/loop/processes/copies.py",
        "_warn",
    ): "needs several processes: its own tests",
    ("training/loop/run.py", "begins"): "needs several processes: tests/training/loop/test_fit.py",
    ("training/loop/run.py", "finish"): "needs a process that is lost: tests/faults/test_joint_runs.py",
    (
        "training/loop/timed_data.py",
        "__next__",
    ): "passes on what the data raises: tests/training/loop/test_timed_data.py",
    ("training/metric.py", "__init__"): "what a subclass defines: tests/training/test_metrics.py",
    ("training/metric.py", "update"): "what a subclass defines: tests/training/test_metrics.py",
    ("training/metric.py", "compute"): "what a subclass defines: tests/training/test_metrics.py",
    ("training/metric.py", "reset"): "what a subclass defines: tests/training/test_metrics.py",
}


@pytest.fixture(autouse=True)
def _as_in_a_users_program(users_promotion, tmp_path, monkeypatch):
    """JAX's own defaults, and a folder of its own, since some advice writes files."""
    monkeypatch.chdir(tmp_path)


@functools.cache
def outcome(name):
    """The class and the text of what a row raises, and the lines that it passed through."""
    error = caught(ROWS[name])
    return type(error), str(error), raised_at(error)


@pytest.mark.sampled
@pytest.mark.parametrize("name", slow_but([*ROWS][::2], ROWS))
def test_a_mistake_is_explained(name):
    """With the class and the place that the row says, and advice that is Python where it looks like it."""
    row, (kind, message, _) = ROWS[name], outcome(name)
    assert kind is row.error
    for pattern in (row.says,) if isinstance(row.says, str) else row.says:
        assert re.search(pattern, message), message
    assert [piece for piece in code_in(advice(message)) if not compiles(piece)] == []


@pytest.mark.sampled
@pytest.mark.parametrize("name", FLAGSHIPS)
def test_a_flagship_is_whole_and_its_advice_runs(name):
    """The row takes its cure from the advice, word for word."""
    row, (_, message, _) = ROWS[name], outcome(name)
    assert message.split() == row.text.split()
    assert row.fix in advice(message)
    assert row.fix or not [*code_in(advice(message))]
    follow(row)


OF_LAYERS = ("adapters.py", "quantized.py")  # their errors are tested beside them, as those of layers are


def test_every_error_has_a_row():
    """A new ``raise`` of one of plait's errors needs a row of the table that reaches it."""
    reached = set().union(*(outcome(name)[2] for name in ROWS))
    missing = {}
    folders = ("core", "transforms", "edit", "inspect/observe", "training", "flax/compat")
    files = [
        file for folder in folders for file in sorted((SOURCE / folder).rglob("*.py")) if file.name not in OF_LAYERS
    ]
    for site in itertools.chain.from_iterable(map(sites, files)):
        if not any(file == site.file and site.first <= line <= site.last for file, line in reached):
            missing[(site.place, site.function)] = str(site)
    assert {key: at for key, at in missing.items() if key not in ELSEWHERE} == {}
    assert [key for key in ELSEWHERE if key not in missing] == [], "these can be reached now"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("carry it: plait.StateAxes({..., ...: plait.Carry})", ["plait.StateAxes({..., ...: plait.Carry})"]),
        ("add `...` as the last: plait.split(model, ...)", ["...", "plait.split(model, ...)"]),
        ("pass in_axes=(f(0), 1), or length=10", ["in_axes=(f(0), 1)", "length=10"]),
        ("give it its own: m.b[0] = plait.clone(m.a); or none", ["m.b[0] = plait.clone(m.a)"]),
        ("no code (at all), and drop name= from it", []),
    ],
)
def test_code_is_found_in_a_text(text, pieces):
    assert [*code_in(text)] == pieces
    assert [piece for piece in pieces if not compiles(piece)] == pieces[:1] * ("{..., ...:" in text)
