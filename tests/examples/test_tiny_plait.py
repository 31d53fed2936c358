"""The teaching miniature: its data, modules, randomness and layers, and the ScanMLP scenario."""

import ast
import pathlib
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


class Noise(tiny.Param):
    pass


def test_a_variable_has_two_assignable_attributes_and_shows_them():
    """T1"""
    variable = tiny.Param(1.0, sharding=("rows", None))
    assert repr(variable) == "Param(\n  value=1.0,\n  sharding=('rows', None)\n)"
    variable.value, variable.sharding = 2.0, None
    assert (variable.value, variable.sharding) == (2.0, None)


def test_subclasses_of_variable_are_pytrees_with_one_child():
    """T2"""
    doubled = jax.tree.map(lambda value: value * 2, Noise(3.0, sharding=("rows",)))
    assert (type(doubled), doubled.value, doubled.sharding) == (Noise, 6.0, ("rows",))
    assert jax.tree.structure(Noise(1.0)) != jax.tree.structure(Noise(1.0, sharding=("rows",)))


def test_the_base_class_is_a_leaf():
    """T2"""
    variable = tiny.Variable(1.0)
    assert jax.tree.leaves(variable) == [variable]


def test_the_children_of_a_state_are_sorted_by_path():
    """T3"""
    state = tiny.State({"b/w": tiny.Param(1.0), "a": tiny.Param(2.0)})
    assert jax.tree.leaves(state) == [2.0, 1.0]
    other_order = tiny.State(dict(reversed(state.items())))
    assert jax.tree.structure(state) == jax.tree.structure(other_order)
    assert jax.tree.map(lambda value: -value, state)["b/w"].value == -1.0


def test_extract_takes_one_kind_and_states_are_joined_by_unpacking():
    """T4"""
    state, _ = tiny.BatchNorm(3).split()
    params, stats = state.extract(tiny.Param), state.extract(tiny.BatchStat)
    assert (list(params), list(stats)) == (["bias", "scale"], ["mean", "var"])
    assert tiny.State({**params, **stats}) == state


def test_a_state_shows_one_entry_per_line():
    """T5"""
    state = tiny.State({"n": tiny.Param(1), "s": tiny.BatchStat(2)})
    entry = "  '{}': {}(\n    value={},\n    sharding=None\n  ),\n".format
    assert repr(state) == "State({\n" + entry("n", "Param", 1) + entry("s", "BatchStat", 2) + "})"


def test_split_sorts_attributes_into_state_submodules_and_static_fields():
    """T6, T7"""
    block = tiny.Block(2, 3, rngs=rngs())
    state, graphdef = block.split()
    assert list(state) == ["bn/bias", "bn/mean", "bn/scale", "bn/var", "linear/b", "linear/w"]
    assert (graphdef.type, graphdef.index, graphdef.static_fields) == (tiny.Block, 0, {})
    assert list(graphdef.submodules) == ["bn", "dropout", "linear"]
    assert graphdef.submodules["dropout"] == tiny.GraphDef(tiny.Dropout, 2, {}, {"rate": 0.1})


def test_a_module_met_again_becomes_its_number():
    """T8"""
    state, graphdef = Pair().split()
    assert list(state) == ["a/b", "a/w"]
    assert (graphdef.submodules["a"].index, graphdef.submodules["b"], graphdef.submodules["me"]) == (1, 1, 0)


def test_the_state_holds_the_modules_own_variables():
    """T9"""
    linear = tiny.Linear(2, 3, rngs=rngs())
    assert linear.split()[0]["w"] is linear.w


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


def test_apply_called_directly_changes_the_given_state(x):
    """T12"""
    state, graphdef = tiny.BatchNorm(10).split()
    _, (after, after_def) = graphdef.apply(state)(x, train=True)
    assert after["mean"] is state["mean"]
    assert state["mean"].value.any()
    assert after_def == graphdef


def test_rngs_is_a_pytree_with_the_key_as_its_child():
    """T13"""
    source = tiny.Rngs(jax.random.key(0), 2, (1,))
    assert jax.tree.leaves(source) == [source.key]
    assert (*jax.tree.leaves(jax.tree.map(lambda key: 5, source)), source.count, source.count_path) == (5, 2, (1,))
    assert jax.tree.structure(source) != jax.tree.structure(tiny.Rngs(source.key))


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


def test_linear():
    """T16"""
    source = rngs()
    linear = tiny.Linear(2, 3, rngs=source)
    assert source.count == 1
    np.testing.assert_array_equal(linear.w.value, jax.random.uniform(rngs().make_rng(), (2, 3)))
    np.testing.assert_array_equal(linear.b.value, np.zeros(3))
    linear.b.value = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(linear(jnp.ones((4, 2))), np.tile(linear.w.value.sum(0) + linear.b.value, (4, 1)))


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


def test_dropout():
    """T16"""
    source, x = rngs(), jnp.ones((1000,))
    y = tiny.Dropout(0.25)(x, train=True, rngs=source)
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.75], rtol=1e-6)
    assert 0.7 < (y > 0).mean() < 0.8
    assert tiny.Dropout(0.25)(x, train=False, rngs=source) is x
    assert source.count == 1


def test_block_calls_its_parts_in_order(x):
    """T17"""
    block = tiny.Block(10, 10, rngs=rngs())
    hidden = jax.nn.gelu(tiny.BatchNorm(10)(block.linear(x), train=True))
    expected = tiny.Dropout(0.1)(hidden, train=True, rngs=rngs(1))
    np.testing.assert_allclose(block(x, train=True, rngs=rngs(1)), expected, rtol=1e-6)


def test_the_stacked_blocks_are_blocks_made_from_the_split_keys(mlp):
    """T18"""
    source = rngs()
    keys = jax.random.split(source.make_rng(), 4)
    for number, key in enumerate(keys):
        block = tiny.Block(10, 10, rngs=tiny.Rngs(key))
        np.testing.assert_allclose(mlp.layers.linear.w.value[number], block.linear.w.value, rtol=1e-6)
    np.testing.assert_array_equal(mlp.linear.w.value, tiny.Linear(10, 10, rngs=source).w.value)


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


def test_training_moves_the_statistics_of_every_block(mlp, x):
    """T22"""
    mlp(x, train=True, rngs=rngs(1))
    assert mlp.layers.bn.mean.value.any(axis=-1).tolist() == [True] * 4


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


def test_a_number_that_no_module_has_is_named():
    """Section 6"""
    graphdef = tiny.GraphDef(Pair, 0, {"a": 7}, {})
    with pytest.raises(KeyError, match="7"):
        graphdef.merge({})


def test_a_number_given_twice_is_refused():
    """Section 6"""
    child = tiny.GraphDef(tiny.Dropout, 0, {}, {"rate": 0.1})
    with pytest.raises(AssertionError, match="two modules have the number 0"):
        tiny.GraphDef(Pair, 0, {"a": child}, {}).merge({})


def test_a_path_without_a_parent_is_named():
    """Section 6"""
    with pytest.raises(AttributeError, match="missing"):
        Pair().update({"missing/w": tiny.Param(1.0)})


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


def test_the_page_shows_the_same_scenario_in_plait():
    """T25: made with split_rngs and vmap, run with scan; the shapes are those of the contract."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "tiny.md").read_text()
    for piece in ("@plait.split_rngs(splits=n_layers - 1)", "@plait.vmap", "in_axes=(0, plait.Carry)"):
        assert piece in page
    shapes = {"linear/kernel": (4, 10, 10), "dropout/rngs/key": (4,), "dropout/rngs/count": (4,)}
    shapes |= dict.fromkeys(("linear/bias", "bn/scale", "bn/bias", "bn/mean", "bn/var"), (4, 10))
    expected = {f"layers/{name}": shape for name, shape in shapes.items()}
    expected |= {"linear/kernel": (10, 10), "linear/bias": (10,)}
    for name, shape in expected.items():
        assert f"\n{name} {shape}\n" in page
