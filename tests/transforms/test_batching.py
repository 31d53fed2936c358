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
from plait.errors import ArgumentError, AxisNameMismatchError, FilterError, SharingError
from tests.strategies import Leafy, Node

X = jnp.arange(6.0).reshape(3, 2)


def stacked(**others):
    return Node(w=plait.Param(jnp.arange(6.0).reshape(3, 2)), n=plait.BatchStat(jnp.zeros(())), **others)


AXES = plait.StateAxes({plait.Param: 0, ...: None})


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
    with pytest.raises(ArgumentError, match=r"(?s)does not accept a mapping.*in_axes\[0\].*StateAxes.*plait\.prefix"):
        plait.vmap(f, in_axes=(AXES, 0), graph_updates=False)(node, X)


def test_prefix_names_the_leaf_that_no_filter_matches():
    """X28."""
    with pytest.raises(FilterError, match=r"(?s)n.*BatchStat"):
        plait.prefix(stacked(), {plait.Param: 0})
    by_path = plait.prefix({"a": stacked()}, lambda path, leaf: path)
    assert by_path["a"].w == ("a", "w")


def test_a_prefix_that_lacks_a_leaf_names_its_path():
    """X28, U32: in what is given and in what comes out."""
    axes = plait.prefix(Node(w=plait.Param(X)), {...: 0})
    with pytest.raises(ArgumentError, match=r"(?s)no value for a leaf\n +at +node\.n\n"):
        plait.vmap(lambda node: None, in_axes=(axes,), graph_updates=False)(stacked())
    with pytest.raises(ArgumentError, match=r"(?s)no value for a leaf\n +at +output\.n\n"):
        plait.vmap(lambda x: stacked(), out_axes=axes, graph_updates=False)(X)


# Axis names -----------------------------------------------------------------------------------------------------------


@given(st.integers(-3, 2), st.sampled_from([None, "layers"]), st.booleans())
def test_names_fit_the_rank_on_either_side(axis, name, write):
    """Ask 8: the number of names is the rank, inside and outside; leaving restores what was there."""
    names = ["in", "mid", "out"]
    names[axis] = name or names[axis]
    v = plait.Param(jnp.ones((2, 2, 2)), out_sharding=tuple(names))
    seen = []

    def f(v):
        seen.append(v.out_sharding)
        assert len(v.out_sharding) == v.ndim
        if write:
            v[...] = v[...] * 2

    metadata = {} if name is None else {plait.PARTITION_NAME: name}
    plait.vmap(f, in_axes=axis, transform_metadata=metadata)(v)
    assert seen == [tuple(n for i, n in enumerate(names) if i != axis % 3)]
    assert v.out_sharding == tuple(names)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-1, 0), st.sampled_from([None, "a", "b"])), min_size=1, max_size=4))
def test_nested_maps_add_one_name_each(levels):
    """Ask 8: for any nesting of vmaps that make a variable."""

    def make(x):
        return plait.Param(x, out_sharding=("last",) * x.ndim)

    for axis, name in levels:
        metadata = {} if name is None else {plait.PARTITION_NAME: name}
        make = plait.vmap(make, out_axes=axis, transform_metadata=metadata)
    v = make(jnp.ones((1,) * len(levels) + (3,)))
    assert len(v.out_sharding) == v.ndim == len(levels) + 1
    assert [n for n in v.out_sharding if n != "last"].__len__() == len(levels)


def test_a_wrong_axis_name_is_refused():
    """V40: and nothing is changed."""
    v = plait.Param(jnp.ones((3, 2)), out_sharding=("layers", "out"))
    with pytest.raises(AxisNameMismatchError, match=r"(?s)'layers'.*'blocks'"):
        plait.vmap(lambda v: v.sum(), transform_metadata={plait.PARTITION_NAME: "blocks"})(v)
    assert v.out_sharding == ("layers", "out")


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


def other():
    return Node(a=plait.Param(jnp.ones((4, 2))))


SHARED = plait.Param(jnp.ones((3, 2)))
MISTAKES = {
    "out of range": (lambda n: plait.vmap(lambda n: 0, in_axes=(1,))(n), ArgumentError, r"(?s)axis 1.*n\.n.*\(\)"),
    "arity": (
        lambda n: plait.vmap(lambda n, x: 0, in_axes=(0, 0, 0))(n, X),
        ArgumentError,
        r"(?s)in_axes does not match.*\(Node, \*\).*2 where in_axes has 3.*\(0, 0, 0\)",
    ),
    "tree": (
        lambda n: plait.vmap(lambda n, x: 0, in_axes=(AXES, {"a": 0}))(n, {"b": X}),
        ArgumentError,
        r"(?s)in_axes does not match.*\{'b': \*\}.*\{'a': 0\}",
    ),
    "output tree": (
        lambda n: plait.vmap(lambda n: (1, 2), in_axes=(AXES,), out_axes=(0, 0, 0))(n),
        ArgumentError,
        r"(?s)out_axes does not match the output.*\(\*, \*\)",
    ),
    "no filter": (
        lambda n: plait.vmap(lambda n: 0, in_axes=(plait.StateAxes({plait.Param: 0}),))(n),
        FilterError,
        "(?s)at +n.*BatchStat",
    ),
    "sizes": (
        lambda n: plait.vmap(lambda n, m: 0, in_axes=(AXES, 0))(n, other()),
        ArgumentError,
        r"(?s)axis 0 of n\.w and axis 0 of m\.a.*3 and 4",
    ),
    "axis_size": (
        lambda n: plait.vmap(lambda n: 0, in_axes=(AXES,), axis_size=5)(n),
        ArgumentError,
        r"(?s)axis_size and axis 0 of n\.w.*5 and 3",
    ),
    "aliasing": (
        lambda n: plait.vmap(lambda a, b: 0, in_axes=(0, None))(Node(x=SHARED), Node(y=SHARED)),
        SharingError,
        r"(?s)Inconsistent aliasing.*a\.x and b\.y.*Param.*0 at the first, None",
    ),
    "output aliasing": (
        lambda n: plait.vmap(lambda n: n, in_axes=(0,), out_axes=1)(Node(x=SHARED)),
        SharingError,
        r"(?s)Inconsistent aliasing.*output\.x",
    ),
    "no array": (
        lambda n: plait.vmap(lambda n, s: 0, in_axes=(AXES, 0))(n, "text"),
        ArgumentError,
        r"(?s)at +s.*str: 'text'",
    ),
    "module in a prefix": (
        lambda n: plait.vmap(lambda n: 0, in_axes=(n,))(n),
        ArgumentError,
        r"(?s)module or variable inside a prefix.*in_axes\[0\].*Node",
    ),
    "mapping for an array": (
        lambda n: plait.vmap(lambda x: 0, in_axes=(AXES,))(X),
        ArgumentError,
        "(?s)mapping from filters for a plain array",
    ),
    "bound method": (lambda n: plait.vmap(Block(plait.Rngs(0)).__call__), ArgumentError, "(?s)bound method"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_by_path_and_change_nothing(name):
    """Sections 9 of the transforms and 7 of the update context; U21."""
    call, kind, pattern = MISTAKES[name]
    node = stacked()
    before = plait.graphdef(node), np.asarray(node.w[...])
    with pytest.raises(kind, match=pattern):
        call(node)
    assert plait.graphdef(node) == before[0]
    np.testing.assert_array_equal(node.w[...], before[1])


def test_an_error_inside_changes_nothing():
    """U21."""
    node = stacked()

    def f(node):
        node.w[...] = node.w[...] * 2
        node.label = "x"
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        plait.vmap(f, in_axes=(AXES,))(node)
    assert not hasattr(node, "label")
    np.testing.assert_array_equal(node.w[...], jnp.arange(6.0).reshape(3, 2))


@pytest.mark.oracle
@pytest.mark.parametrize("axes", [(0, None), (0, 1), (None, 0)])
def test_flax_agrees(axes):
    """X18: Flax NNX, run as an oracle."""
    nnx = pytest.importorskip("flax.nnx")

    def run(nnx):
        class Model(nnx.Module):
            def __init__(self):
                self.w = nnx.Param(jnp.arange(4.0).reshape(2, 2))
                self.count = nnx.BatchStat(jnp.zeros(2))

            def __call__(self, x):
                self.count[...] = self.count[...] + 1
                return self.w[...].sum() * x.sum()

        model = Model()
        mapping = nnx.StateAxes({nnx.Param: axes[0], ...: None})
        x = jnp.arange(4.0).reshape(2, 2)
        out = nnx.vmap(lambda m, x: m(x), in_axes=(mapping, axes[1]))(model, x)
        return out, model.count[...]

    for found, expected in zip(run(plait), run(nnx), strict=True):
        np.testing.assert_array_equal(found, expected)


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


@pytest.mark.oracle
@pytest.mark.parametrize("wrap", WRONG_AXES.values(), ids=WRONG_AXES)
def test_flax_refuses_the_same_axes_when_it_wraps(wrap):
    """X2."""
    with pytest.raises(ValueError, match=r"not allowed|not supported"):
        wrap(pytest.importorskip("flax.nnx"))


def test_a_new_variable_around_a_value_that_came_in_goes_out_by_its_own_axis():
    """U17, X2: also where the function did nothing to the value."""
    whole, rows = plait.Variable(jnp.float32(5)), plait.Variable(jnp.arange(6.0).reshape(2, 3))
    mapped = plait.vmap(
        lambda whole, rows: (plait.Param(whole[...]), plait.Param(rows[...])), in_axes=(None, 0), out_axes=(0, 1)
    )
    new, turned = mapped(whole, rows)
    assert (new[...].tolist(), turned.shape) == ([5, 5], (3, 2))
    np.testing.assert_array_equal(turned[...], rows[...].T)
