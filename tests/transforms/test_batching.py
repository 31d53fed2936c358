"""``vmap``: numbers, axes, updates, axis names, errors. (rules X2, X3, X18, U25, V40; asks 8, 14)"""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import ArgumentError, SharingError
from tests.strategies import Leafy, Node

X = jnp.arange(6.0).reshape(3, 2)


def stacked(**others):
    return Node(w=plait.Param(jnp.arange(6.0).reshape(3, 2)), n=plait.BatchStat(jnp.zeros(())), **others)


AXES = plait.StateAxes({plait.Param: 0, ...: None})


def test_a_state_has_its_own_axes_beside_other_arguments():
    """X2: each of its leaves by its filter, after an array and before another state."""
    state, x = plait.state(stacked()), jnp.arange(3.0)
    mapped = plait.vmap(lambda x, a, b: x + a["w"][...].sum() + b["n"][...], in_axes=(0, AXES, AXES))
    np.testing.assert_array_equal(mapped(x, state, state), x + X.sum(1))


@given(st.integers(-2, 1), st.integers(-2, 1), st.sampled_from([None, 0, 1, -1]))
def test_numbers_equal_those_of_jax(w_axis, out_axis, x_axis):
    """X18: for any axes, on either side."""
    w, x = jnp.arange(6.0).reshape(3, 2), jnp.arange(6.0).reshape(2, 3) + 1

    def pure(w, x):
        return jnp.outer(w, jnp.atleast_1d(x.sum()))[:, 0] * 2

    sizes = {w.shape[w_axis]} | ({x.shape[x_axis]} if x_axis is not None else set())
    if len(sizes) > 1:
        x = x.T
    expected = jax.vmap(pure, in_axes=(w_axis, x_axis), out_axes=out_axis)(w, x)
    node = Node(w=plait.Param(w))
    found = plait.vmap(lambda node, x: pure(node.w[...], x), in_axes=(w_axis, x_axis), out_axes=out_axis)(node, x)
    np.testing.assert_array_equal(found, expected)


@given(st.lists(st.sampled_from([0, 1, -1, -2, None]), min_size=3, max_size=3), st.booleans())
def test_written_variables_keep_their_axes(axes, structural):
    """U18, U19, X18: each value comes back along the axis that it came in by, and no object is replaced."""
    node = Node(**{name: plait.Param(jnp.full((2, 2), 1.0)) for name in "abc"})
    before = [node.a, node.b, node.c]
    mapping = plait.StateAxes({plait.PathContains(name): axis for name, axis in zip("abc", axes, strict=True)})

    def f(node, i):
        for name, axis in zip("abc", axes, strict=True):
            variable = getattr(node, name)
            variable[...] = variable[...] + (1 if axis is None else i)
        if structural:
            node.label = "seen"

    plait.vmap(f, in_axes=(mapping, 0), axis_size=2)(node, jnp.arange(2.0))
    for name, axis in zip("abc", axes, strict=True):
        along = {0: [[1, 1], [2, 2]], 1: [[1, 2], [1, 2]]}
        expected = [[2, 2], [2, 2]] if axis is None else along[axis % 2]
        np.testing.assert_array_equal(getattr(node, name)[...], expected)
    assert [node.a, node.b, node.c] == before
    assert hasattr(node, "label") == structural


def test_new_variables_go_by_the_prefix_of_what_they_belong_to():
    """X18: of an argument, or of the output."""
    node = stacked()

    @functools.partial(plait.vmap, in_axes=(AXES, 0), out_axes=(1, 0))
    def f(node, x):
        node.extra = plait.Param(node.w.sum() * jnp.ones(4))
        node.shared = plait.BatchStat(jnp.ones(()))
        return Leafy(v=plait.Param(x)), x

    out, _ = f(node, X)
    assert (node.extra.shape, node.shared.shape) == ((3, 4), ())
    np.testing.assert_array_equal(out.v[...], X.T)


def test_the_same_object_comes_back():
    """U15 to U17: also new sharing between an argument and the output."""
    node = stacked()
    held = node.w

    def f(node):
        node.self = node
        return node, node.w

    out, w = plait.vmap(f, in_axes=(AXES,), out_axes=(AXES, 0), axis_size=3)(node)
    assert out is node is node.self
    assert w is held is node.w


def test_keyword_arguments_take_their_positions():
    """X1."""
    node = stacked()
    f = plait.vmap(lambda node, x, y: node.w.sum() + x * y, in_axes=(AXES, None, 0))
    np.testing.assert_array_equal(f(node, y=jnp.arange(3.0), x=2.0), node.w[...].sum(1) + 2 * jnp.arange(3.0))


def test_a_state_of_axes_is_a_mapping():
    """X2: its paths become filters."""
    node = stacked()
    axes = plait.State({"w": 0, "n": None})
    out = plait.vmap(lambda node: node.w.sum() + node.n[...], in_axes=(axes,))(node)
    np.testing.assert_array_equal(out, node.w[...].sum(1))
    assert plait.StateAxes(axes) == plait.StateAxes(axes)
    assert hash(plait.StateAxes(axes)) == hash(plait.StateAxes(axes))


def test_mapping_objects_survive_pickle_and_copy():
    """X2: they are static attributes of modules such as RNN."""
    for mapping in (plait.StateAxes({plait.Param: 0, ...: plait.Carry}), plait.StateSharding({"a": None, ...: "x"})):
        assert pickle.loads(pickle.dumps(mapping)) == copy.deepcopy(mapping) == mapping


def test_mapping_objects_are_immutable_mappings():
    """X2."""
    axes = plait.StateAxes({plait.Param: 0, ...: None})
    assert (axes[plait.Param], len(axes), list(axes)) == (0, 2, [plait.Param, ...])
    assert axes == plait.StateAxes([(plait.Param, 0), (..., None)])
    assert axes != plait.StateSharding({plait.Param: 0, ...: None})
    with pytest.raises(AttributeError):
        axes.filters = ()
    with pytest.raises(KeyError):
        axes[plait.BatchStat]


def test_axis_name_and_size():
    """X18."""
    f = plait.vmap(lambda node: jax.lax.psum(node.w.sum(), "i"), in_axes=(AXES,), axis_name="i", axis_size=3)
    np.testing.assert_array_equal(f(stacked()), [15, 15, 15])


# Values only ----------------------------------------------------------------------------------------------------------


def test_values_only():
    """X2, U32: prefixes are nodes; values come back, structure does not."""
    node = stacked()

    def f(node, x):
        node.w[...] = node.w[...] + x
        node.label = "lost"
        return node.n[...]

    axes = plait.prefix(node, {plait.Param: 0, ...: None})
    assert (axes.w, axes.n) == (0, None)
    out = plait.vmap(f, in_axes=(axes, 0), out_axes=None, graph_updates=False)(node, jnp.arange(3.0))
    assert float(out) == 0.0
    np.testing.assert_array_equal(node.w[...], [[0, 1], [3, 4], [6, 7]])
    assert not hasattr(node, "label")
    made = plait.vmap(
        lambda x: Node(w=plait.Param(x), n=plait.BatchStat(jnp.ones(()))), out_axes=axes, graph_updates=False
    )(X)
    assert (made.w.shape, made.n.shape) == ((3, 2), ())
    with pytest.raises(ArgumentError, match=r"(?s)does not accept a mapping.*in_axes\[0\].*StateAxes.*plait\.prefix"):
        plait.vmap(f, in_axes=(AXES, 0), graph_updates=False)(node, X)


# Axis names -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:hooks in the metadata")
def test_hooks_run_once_for_a_named_axis():
    """V31, X18."""
    calls = []
    v = plait.Param(
        jnp.ones((3, 2)),
        on_add_axis=lambda v, i, name: calls.append(("add", i, name)),
        on_remove_axis=lambda v, i, name: calls.append(("remove", i, name)),
    )
    plait.vmap(lambda v: v.sum(), transform_metadata={plait.PARTITION_NAME: "n"})(v)
    assert calls == [("remove", 0, "n"), ("add", 0, "n")]


# Stacked layers -------------------------------------------------------------------------------------------------------


class Block(plait.Module):
    def __init__(self, rngs):
        self.linear = plait.Linear(4, 4, rngs=rngs)
        self.norm = plait.BatchNorm(4, momentum=0.5, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.norm(self.linear(x)))


@pytest.mark.slow
def test_stacked_layers_with_dropout_and_statistics():
    """Ask 14: masks differ by layer and by call; statistics equal the unrolled loop; repeated calls work."""

    @plait.split_rngs(splits=3)
    @plait.vmap
    def make(rngs):
        return Block(rngs)

    blocks = make(plait.Rngs(0))
    singles = [plait.clone(jax.tree.map(lambda x, i=i: x[i], blocks)) for i in range(3)]
    x = jax.random.normal(jax.random.key(1), (8, 4))

    @plait.scan(in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))
    def forward(x, block):
        y = block(x)
        return y, y == 0

    masks = []
    for _ in range(2):
        out, mask = plait.jit(forward)(x, blocks)
        masks.append(np.asarray(mask))
        expected = x
        for single in singles:
            expected = single(expected)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        for i, single in enumerate(singles):
            np.testing.assert_allclose(blocks.norm.mean[...][i], single.norm.mean[...], rtol=1e-5, atol=1e-6)
            assert int(blocks.drop.rngs.count[...][i]) == int(single.drop.rngs.count[...])
    assert not np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0][0], masks[0][1])


# Errors ---------------------------------------------------------------------------------------------------------------


WRONG_AXES = {
    "in_axes": lambda nnx: nnx.vmap(abs, in_axes=nnx.Dict(a=0)),
    "in a tuple": lambda nnx: nnx.vmap(abs, in_axes=(nnx.Dict(a=0),)),
    "out_axes": lambda nnx: nnx.vmap(abs, out_axes=nnx.Dict(a=0)),
    "a variable": lambda nnx: nnx.vmap(abs, in_axes=nnx.Variable(0)),
    "pmap": lambda nnx: nnx.pmap(abs, in_axes=nnx.Dict(a=0)),
    "in_specs": lambda nnx: nnx.shard_map(abs, mesh=None, in_specs=nnx.Dict(a=0), out_specs=None),
    "out_specs": lambda nnx: nnx.shard_map(abs, mesh=None, in_specs=None, out_specs=(nnx.Variable(0),)),
}


@pytest.mark.parametrize("wrap", WRONG_AXES.values(), ids=WRONG_AXES)
def test_axes_that_fit_no_call_are_refused_when_the_function_is_wrapped(wrap):
    """X2."""
    with pytest.raises(
        ValueError, match=r"found a module or variable inside a prefix: .* prefixes\n +at +(in|out)_(axes|specs)"
    ):
        wrap(plait)


@pytest.mark.parametrize("give", [lambda node: node, lambda node: node.w], ids=["module", "variable"])
def test_an_argument_does_not_come_out_with_another_axis(give):
    """X3."""
    with pytest.raises(SharingError, match=r"at +the arguments and output.*\n +found +0 at the first, 1 at the second"):
        plait.vmap(give, in_axes=0, out_axes=1)(plait.Dict(w=plait.Param(X)))


@pytest.mark.parametrize(
    ("axes", "found"),
    [({"in_axes": [0]}, r"\(Dict, \*\) \(2 where in_axes has 1 entries\)"), ({"out_axes": (0, 0)}, r"\*")],
    ids=["in", "out"],
)
def test_axes_of_another_structure_are_shown_beside_the_tree(axes, found):
    """X2."""
    with pytest.raises(ArgumentError, match=rf"found +{found}\n"):
        plait.vmap(lambda node, x: x, **axes)(plait.Dict(w=plait.Param(X)), jnp.ones(3))


def test_a_new_variable_around_a_value_that_came_in_goes_out_by_its_own_axis():
    """U17, X2: also where the function did nothing to the value."""
    whole, rows = plait.Variable(jnp.float32(5)), plait.Variable(jnp.arange(6.0).reshape(2, 3))
    mapped = plait.vmap(
        lambda whole, rows: (plait.Param(whole[...]), plait.Param(rows[...])), in_axes=(None, 0), out_axes=(0, 1)
    )
    new, turned = mapped(whole, rows)
    assert (new[...].tolist(), turned.shape) == ([5, 5], (3, 2))
    np.testing.assert_array_equal(turned[...], rows[...].T)
