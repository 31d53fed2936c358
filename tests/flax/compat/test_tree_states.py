"""to_tree, from_tree and NodeStates: a transform of one's own. (rules U24, U25, X28)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import GraphError, SharingError, TraceContextError
from tests.oracles import describe
from tests.strategies import Leafy, Node


def model():
    graph = Node(w=plait.Param(jnp.arange(3.0)), n=plait.BatchStat(jnp.zeros(())), flag=3)
    graph.inner = Leafy(w=graph.w, up=graph)
    return graph


@given(st.permutations(["model", "inner", "w", "x"]))
def test_from_tree_undoes_to_tree(order):
    """U24: sharing over all places of the tree is kept, in whatever order they come."""
    m = model()
    parts = {"model": m, "inner": m.inner, "w": m.w, "x": 1.5}
    tree = [parts[name] for name in order]
    back = plait.from_tree(plait.to_tree(tree))
    assert describe(*back) == describe(*tree)
    assert all(new is not old for new, old in zip(back, tree, strict=True) if not isinstance(new, float))


def test_a_tree_is_a_pytree_of_the_arrays():
    """U24: graphdef and metadata are static; each array appears once."""
    m = model()
    tree = plait.to_tree((m, {"x": jnp.ones(2), "again": m.w}))
    assert [leaf.shape for leaf in jax.tree.leaves(tree)] == [(3,), (), (2,)]
    first, second = tree[0], tree[1]["again"]
    assert isinstance(first, plait.NodeStates)
    assert isinstance(second, plait.NodeStates)
    assert (len(first.states), list(first.state), len(jax.tree.leaves(second))) == (1, ["inner", "n"], 0)
    path, _ = jax.tree_util.tree_flatten_with_path(first)[0][0]
    assert jax.tree_util.keystr(path).startswith(".states[0]['inner']['w']")


def lifted_jit(f, tag):
    """The four steps, by hand."""

    @jax.jit
    def pure(tree):
        args = plait.from_tree(tree, is_inner=True, ctxtag=tag)
        return plait.to_tree((args, f(*args)), ctxtag=tag)

    @plait.update_context(tag)
    def wrapper(*args):
        return plait.from_tree(pure(plait.to_tree(args, ctxtag=tag)), is_inner=False, ctxtag=tag)[1]

    return wrapper


def test_a_transform_of_one_s_own_has_reference_semantics():
    """U15 to U18, also when the compiled function is called again."""
    traces = []

    def f(m, x):
        traces.append(1)
        m.w[...] = m.w[...] + x
        m.w, m.inner.w = plait.Param(m.w[...] * 2), m.w
        return m.inner, plait.Param(x)

    step = lifted_jit(f, "own")
    for _ in range(2):
        m = model()
        w, inner = m.w, m.inner
        out, new = step(m, 1.0)
        assert (out is inner, m.inner.w is w, m.w is w, m.inner.up is m) == (True, True, False, True)
        assert (w.tolist(), m.w.tolist(), new.item()) == ([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 1.0)
    assert len(traces) == 1


def test_groups_and_axes_make_a_vmap():
    """X28: split_fn sees the prefix; NodeStates.from_prefixes gives JAX an axis for each group of variables."""
    axes = plait.StateAxes({plait.Param: 0, ...: None})

    def split(context, path, prefix, node):
        return plait.NodeStates.from_split(*context.split(node, *prefix.filters), metadata=prefix)

    def run(f, *args):
        tree = plait.to_tree(args, prefix=(axes,), split_fn=split)
        in_axes = jax.tree.map(
            lambda node: plait.NodeStates.from_prefixes(node.metadata.axes, metadata=node.metadata).replace(
                _graphdef=node.graphdef
            ),
            tree,
            is_leaf=lambda x: isinstance(x, plait.NodeStates),
        )
        return jax.vmap(lambda tree: f(*plait.from_tree(tree, prefix=(axes,))), in_axes=(in_axes,))(tree)

    m = Node(w=plait.Param(jnp.arange(3.0)), n=plait.BatchStat(jnp.ones(2)))
    np.testing.assert_allclose(run(lambda m: m.w[...] * m.n[...], m), [[0, 0], [1, 1], [2, 2]])


def test_one_variable_under_two_prefixes():
    """U25: refused before anything is split, unless asked not to look."""
    m = model()
    calls = []

    def split(context, path, prefix, node):
        calls.append((jax.tree_util.keystr(path), prefix))
        return plait.NodeStates.from_split(*context.split(node))

    with pytest.raises(SharingError, match=r"Inconsistent aliasing.*\n +at +\[0\]\.inner\.w and \[1\]\['k'\]"):
        plait.to_tree((m, {"k": m.w}), prefix=(0, None), split_fn=split)
    assert calls == []
    plait.to_tree((m, {"k": m.w}), prefix=(0, None), split_fn=split, check_aliasing=False)
    assert calls == [("[0]", 0), ("[1]['k']", None)]
    plait.to_tree((m, {"k": m.w}), prefix=0)


def test_plain_leaves_go_through_the_functions_on_request():
    seen = []

    def note(context, path, prefix, leaf):
        seen.append((jax.tree_util.keystr(path), type(leaf).__name__))
        return leaf

    plait.to_tree([1.0, 2], split_fn=note)
    plait.from_tree([1.0, 2], merge_fn=note)
    assert seen == []
    plait.to_tree([1.0, 2], split_fn=note, map_non_graph_nodes=True)
    plait.from_tree([1.0, 2], merge_fn=note, map_non_graph_nodes=True, prefix=0)
    assert seen == [("[0]", "float"), ("[1]", "int")] * 2
    assert plait.to_tree([1.0, 2], map_non_graph_nodes=True) == [1.0, 2]


def test_a_prefix_that_does_not_fit_shows_both_trees():
    with pytest.raises(ValueError, match="to_tree: prefix does not match"):
        plait.to_tree((1.0, 2.0), prefix=(0,))


def test_a_captured_context_does_not_outlive_an_error():
    """U21, U40: after a function that raises, the objects and the contexts are as before."""

    def f(m):
        m.w, m.flag = plait.Param(jnp.zeros(3)), 4
        raise RuntimeError("stop")

    m = model()
    before = describe(m)
    with pytest.raises(RuntimeError, match="stop"):
        lifted_jit(f, "failing")(m)
    assert describe(m) == before
    with pytest.raises(GraphError, match="failing"):
        plait.current_update_context("failing")


@pytest.mark.oracle
def test_the_same_transform_runs_on_flax():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        class Counter(lib.Module):
            def __init__(self):
                self.count = lib.Variable(jnp.zeros(()))

        def split(context, path, prefix, node):
            if isinstance(node, (lib.Module, lib.Variable)):
                return lib.NodeStates.from_split(*context.split(node, lib.Param, ...), metadata=prefix)
            return node

        @jax.jit
        def pure(tree):
            (counter, x), out = lib.from_tree(tree, prefix=(0, None), is_inner=True, ctxtag="t"), None
            counter.count[...] += x
            counter.new = lib.Param(x)
            return lib.to_tree(((counter, x), out), ctxtag="t")

        counter = Counter()
        with lib.update_context("t"):
            tree = lib.to_tree((counter, jnp.float32(2)), prefix=(0, None), split_fn=split, ctxtag="t")
            metadata, groups = tree[0].metadata, len(tree[0].states)
            (same, _), _ = lib.from_tree(pure(tree), is_inner=False, ctxtag="t")
        return metadata, groups, same is counter, counter.count[...].item(), counter.new[...].item()

    assert run(plait) == run(nnx) == (0, 2, True, 2.0, 2.0)


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_nothing_is_written_if_one_of_several_objects_is_captured():
    """G64: all are checked before the first is written."""
    captured = plait.Dict(n=plait.Variable(jnp.float32(0)))

    def outer(x):
        own = plait.Dict(n=plait.Variable(x))
        with pytest.raises(TraceContextError, match=r"cannot change the value of Variable(?s:.)*at +captured\.n"):
            counted(own, captured)
        assert own.n[...] is x
        return x

    @plait.update_context("count")
    def counted(*models):
        inner = plait.from_tree(plait.to_tree(models, ctxtag="count"), is_inner=True, ctxtag="count")
        for model in inner:
            model.n[...] += 1
        plait.from_tree(plait.to_tree(inner, ctxtag="count"), is_inner=False, ctxtag="count")

    plait.jit(outer)(jnp.float32(3))
    assert float(captured.n[...]) == 0
    counted(captured, plait.Dict(n=captured.n))
    assert float(captured.n[...]) == 2
