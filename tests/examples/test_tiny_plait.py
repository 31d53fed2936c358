"""The teaching miniature: its data, modules, randomness and layers, and the ScanMLP scenario."""

import ast
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_plait as tiny

from tests.forked import run_python

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "tiny_plait.py"

pytestmark = pytest.mark.usefixtures("users_promotion")

STATE = {  # T20
    "layers/bn/bias": (tiny.Param, (4, 10)),
    "layers/bn/mean": (tiny.BatchStat, (4, 10)),
    "layers/bn/scale": (tiny.Param, (4, 10)),
    "layers/bn/var": (tiny.BatchStat, (4, 10)),
    "layers/linear/b": (tiny.Param, (4, 10)),
    "layers/linear/w": (tiny.Param, (4, 10, 10)),
    "linear/b": (tiny.Param, (10,)),
    "linear/w": (tiny.Param, (10, 10)),
}
GRAPHDEF = [  # T21
    (0, "", tiny.ScanMLP, {"n_layers": 5}),
    (1, "layers", tiny.Block, {}),
    (2, "layers.bn", tiny.BatchNorm, {"mu": 0.95}),
    (3, "layers.dropout", tiny.Dropout, {"rate": 0.1}),
    (4, "layers.linear", tiny.Linear, {"din": 10, "dout": 10}),
    (5, "linear", tiny.Linear, {"din": 10, "dout": 10}),
]


def rngs(seed=0):
    return tiny.Rngs(jax.random.key(seed))


@pytest.fixture
def mlp():
    return tiny.ScanMLP(hidden_size=10, n_layers=5, rngs=rngs())


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(7), (2, 10))


class Pair(tiny.Module):
    """One shared module, and a cycle."""

    def __init__(self):
        self.a = self.b = tiny.Linear(2, 3, rngs=rngs())
        self.me = self
        self.label = "pair"


def test_extract_takes_one_kind_and_states_are_joined_by_unpacking():
    """T4"""
    state, _ = tiny.BatchNorm(3).split()
    params, stats = state.extract(tiny.Param), state.extract(tiny.BatchStat)
    assert (list(params), list(stats)) == (["bias", "scale"], ["mean", "var"])
    assert tiny.State({**params, **stats}) == state


def test_a_module_met_again_becomes_its_number():
    """T8"""
    state, graphdef = Pair().split()
    assert list(state) == ["a/b", "a/w"]
    assert (graphdef.submodules["a"].index, graphdef.submodules["b"], graphdef.submodules["me"]) == (1, 1, 0)


def test_merge_keeps_sharing_and_cycles_and_does_not_run_init(monkeypatch):
    """T10"""
    state, graphdef = Pair().split()
    monkeypatch.delattr(Pair, "__init__")
    pair = graphdef.merge(state)
    assert pair.a is pair.b
    assert pair.me is pair
    assert pair.label == "pair"
    assert pair.a.w is state["a/w"]


def test_update_sets_the_variable_objects():
    """T11"""
    pair, other = Pair(), tiny.Param(jnp.zeros((2, 3)))
    pair.update({"b/w": other})
    assert pair.a.w is other


def test_apply_returns_the_state_after_the_call_and_is_pure_under_jit(x):
    """T12"""
    state, graphdef = tiny.BatchNorm(10).split()

    @jax.jit
    def run(state, x):
        out, (state, _) = graphdef.apply(state)(x, train=True)
        return out, state

    _, after = run(state, x)
    np.testing.assert_allclose(after["mean"].value, 0.05 * x.mean(0), rtol=1e-5)
    assert not state["mean"].value.any()


@pytest.mark.parametrize(("path", "number"), [((0,), 1697534734), ((0, 1), 3738927146)])
def test_a_key_is_folded_with_a_stable_number(path, number):
    """T14"""
    assert tiny.stable_number(path) == number
    *count_path, count = path
    source = tiny.Rngs(jax.random.key(3), count, tuple(count_path))
    assert source.make_rng() == jax.random.fold_in(jax.random.key(3), number)
    assert source.count == count + 1


def test_a_fork_draws_other_keys_than_its_parent():
    """T15"""
    parent = rngs()
    parent.make_rng()
    child = parent.fork()
    grandchild = child.fork()
    assert (child.count_path, child.count, parent.count, grandchild.count_path) == ((1,), 1, 2, (1, 0))
    keys = [source.make_rng() for source in (parent, child, grandchild) for _ in range(5)]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 15


@pytest.mark.slow
def test_batch_norm_against_the_formula():
    """T16"""
    x = np.random.default_rng(0).normal(3.0, 2.0, (4, 5, 3)).astype(np.float32)
    norm = tiny.BatchNorm(3, mu=0.9)
    norm.scale.value, norm.bias.value = jnp.full(3, 2.0), jnp.full(3, 1.0)
    mean, var = x.mean((0, 1)), x.var((0, 1))
    np.testing.assert_allclose(norm(x, train=True), (x - mean) / np.sqrt(var + 1e-5) * 2 + 1, atol=1e-5)
    np.testing.assert_allclose(norm.mean.value, 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(norm.var.value, 0.9 + 0.1 * var, rtol=1e-5)
    running = (x - norm.mean.value) / np.sqrt(norm.var.value + 1e-5) * 2 + 1
    np.testing.assert_allclose(norm(x, train=False), running, rtol=1e-5)


@pytest.mark.slow
def test_the_stacked_blocks_are_blocks_made_from_the_split_keys(mlp):
    """T18"""
    source = rngs()
    keys = jax.random.split(source.make_rng(), 4)
    for number, key in enumerate(keys):
        block = tiny.Block(10, 10, rngs=tiny.Rngs(key))
        np.testing.assert_allclose(mlp.layers.linear.w.value[number], block.linear.w.value, rtol=1e-6)
    np.testing.assert_array_equal(mlp.linear.w.value, tiny.Linear(10, 10, rngs=source).w.value)


@pytest.mark.slow
def test_scan_runs_the_blocks_in_order(mlp, x):
    """T19"""
    keys = jax.random.split(rngs(1).make_rng(), 4)
    state, graphdef = mlp.layers.split()
    y, slices = x, []
    for number in range(4):
        part = jax.tree.map(lambda value: value[number], state)  # noqa: B023
        y, (part, _) = graphdef.apply(part)(y, train=True, rngs=tiny.Rngs(keys[number]))
        slices.append(part)
    np.testing.assert_allclose(mlp(x, train=True, rngs=rngs(1)), mlp.linear(y), rtol=1e-5)
    for number, part in enumerate(slices):
        np.testing.assert_allclose(mlp.layers.bn.mean.value[number], part["bn/mean"].value, rtol=1e-5)


@pytest.mark.slow
def test_the_scenario_has_the_state_of_the_table(mlp):
    """T20"""
    y = mlp(jnp.ones((2, 10)), train=True, rngs=rngs(1))
    state, _ = mlp.split()
    assert y.shape == (2, 10)
    assert {path: (type(leaf), leaf.value.shape) for path, leaf in state.items()} == STATE


def test_the_scenario_has_the_graphdef_of_the_table(mlp):
    """T21"""
    rows = []

    def visit(graphdef, path):
        rows.append((graphdef.index, path, graphdef.type, graphdef.static_fields))
        for name, child in graphdef.submodules.items():
            visit(child, f"{path}.{name}".lstrip("."))

    mlp(jnp.ones((2, 10)), train=True, rngs=rngs(1))
    visit(mlp.split()[1], "")
    assert rows == GRAPHDEF


def test_without_training_calls_agree_and_change_nothing(mlp, x):
    """T22"""
    before = jax.tree.map(np.asarray, mlp.split()[0])
    first, second = (mlp(x, train=False, rngs=rngs(seed)) for seed in (1, 2))
    np.testing.assert_array_equal(first, second)
    jax.tree.map(np.testing.assert_array_equal, before, mlp.split()[0])


def test_extracted_states_merge_into_a_model_with_the_same_output(mlp, x):
    """T23"""
    state, graphdef = mlp.split()
    params, stats = state.extract(tiny.Param), state.extract(tiny.BatchStat)
    assert (len(params), len(stats)) == (6, 2)
    again = graphdef.merge(tiny.State({**stats, **params}))
    np.testing.assert_array_equal(again(x, train=False, rngs=rngs(1)), mlp(x, train=False, rngs=rngs(1)))


@pytest.mark.slow
def test_the_script_prints_the_table_of_shapes():
    """T24"""
    printed = run_python(str(FILE), check=True).stdout
    table = "".join(
        f"  '{path}': {cls.__name__}(\n    value={shape},\n    sharding=None\n  ),\n"
        for path, (cls, shape) in STATE.items()
    )
    assert f"shapes: State({{\n{table}}})\n" in printed
    assert printed.startswith("output: (2, 10)\n")


def test_the_miniature_stands_on_jax_alone():
    text = FILE.read_text(encoding="utf-8")
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else name.name).partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert imported - set(sys.stdlib_module_names) == {"jax"}
    assert len(text.splitlines()) < 250


def test_the_page_quotes_the_file():
    """T26: the pieces of code that docs/tiny.md shows from the miniature are those of the file."""
    page = (ROOT / "docs" / "tiny.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^```python no-run\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    text = FILE.read_text(encoding="utf-8")
    assert quoted
    for piece in quoted:
        assert piece in text
