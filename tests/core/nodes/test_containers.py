"""``List`` and ``Dict``: like the containers of Python, and modules."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait as nnx

indices = st.integers(-4, 4)
slices = st.builds(slice, st.none() | indices, st.none() | indices, st.none() | st.sampled_from([1, 2, -1]))
operations = st.lists(
    st.tuples(st.just("append"), st.integers())
    | st.tuples(st.just("insert"), indices, st.integers())
    | st.tuples(st.just("extend"), st.lists(st.integers(), max_size=2))
    | st.tuples(st.just("pop"), indices)
    | st.tuples(st.just("__setitem__"), indices, st.integers())
    | st.tuples(st.just("__setitem__"), slices, st.lists(st.integers(), max_size=2))
    | st.tuples(st.just("__delitem__"), indices | slices)
    | st.tuples(st.just("__getitem__"), indices | slices)
    | st.tuples(st.just("reverse"))
    | st.tuples(st.just("clear"))
    | st.tuples(st.just("__contains__"), st.integers(0, 3))
    | st.tuples(st.just("index"), st.integers(0, 3))
    | st.tuples(st.just("__len__")),
    max_size=8,
)


def outcome(container, name, *arguments):
    try:
        return getattr(container, name)(*arguments)
    except (IndexError, ValueError, KeyError) as error:
        return type(error)


@given(st.lists(st.integers(0, 3), max_size=3), operations)
def test_a_list_does_what_a_python_list_does(items, steps):
    """G65: append, insert, extend, index and slice get, set and del, negative indexes."""
    ours, theirs = nnx.List(items), list(items)
    for step in steps:
        assert outcome(ours, *step) == outcome(theirs, *step)
        assert list(ours) == theirs


def test_a_list_is_a_module_with_integer_keys():
    """G65: path parts are ints, JAX sees sequence keys."""
    layers = nnx.List([nnx.Param(float(n)) for n in range(11)])
    layers.name = "stack"
    assert [path for path, _ in nnx.to_flat_state(nnx.state(layers))] == [(n,) for n in range(11)]
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(layers)]
    assert all(isinstance(path[0], jax.tree_util.SequenceKey) for path in paths)
    assert isinstance(layers, nnx.Module)
    for again in (nnx.clone(layers), jax.tree.map(lambda x: x, layers)):
        assert [v.value for v in again] == [v.value for v in layers]
        assert again.name == "stack"


def test_elements_may_be_anything_and_marks_are_taken_off():
    """G65."""
    layers = nnx.List([nnx.data(nnx.Param(1.0)), "x", None, jnp.ones(2)])
    layers.append(nnx.static(3))
    layers[1] = nnx.static("y")
    assert [type(item).__name__ for item in layers] == ["Param", "str", "NoneType", "ArrayImpl", "int"]
    assert len(jax.tree.leaves(layers)) == 2
    assert jax.tree.map(lambda x: x * 2, layers)[1] == "y"
    assert nnx.clone(layers)[4] == 3


def test_update_of_a_list():
    """G5, G38: an index that exists, or the next one."""
    layers = nnx.List([nnx.Param(1.0), nnx.Param(2.0)])
    first = layers[0]
    nnx.update(layers, {0: nnx.Param(5.0), 2: nnx.Param(3.0)})
    assert layers[0] is first
    assert [v.value for v in layers] == [5.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"(?s)Cannot set key.*List"):
        nnx.update(layers, {7: nnx.Param(5.0)})
    set_key = nnx.graph.get_node_impl(layers).set_key
    set_key(layers, "name", "x")
    assert layers.name == "x"
    for key in (-1, 9):
        with pytest.raises(ValueError, match=rf"(?s)Cannot set key {key} of a List.*length 3"):
            set_key(layers, key, 1)


def test_pop_takes_elements_out_of_a_list():
    """G40: several at once, the last ones."""
    layers = nnx.List([nnx.BatchStat(0), nnx.BatchStat(1), nnx.Param(2), nnx.Param(3)])
    layers.extra = nnx.Param(9)
    popped = nnx.pop(layers, nnx.Param)
    assert nnx.to_pure_dict(popped) == {2: 2, 3: 3, "extra": 9}
    assert [v.value for v in layers] == [0, 1]


def test_lists_can_be_added_and_compare_by_identity():
    """G64, G65."""
    a, b = nnx.List([1]), nnx.List([1])
    assert list(a + b) == list(a + [1]) == [1, 1]
    assert isinstance(a + b, nnx.List)
    a += [2]
    assert list(a) == [1, 2]
    assert a != b
    assert len({a, b}) == 2


def test_a_list_can_be_subclassed_and_typed():
    """G65."""

    class Stack(nnx.List):
        def __call__(self, x):
            for layer in self:
                x = layer(x)
            return x

    stack = Stack([np.sin, np.cos])
    assert nnx.clone(stack)(0.0) == 1.0
    assert type(nnx.clone(stack)) is Stack
    assert nnx.graphdef(nnx.List[int]([1])) == nnx.graphdef(nnx.List([1]))


def test_a_dict_is_made_like_a_dict():
    """G65."""
    for made in (nnx.Dict({"a": 1, "b": 2}), nnx.Dict([("a", 1)], b=2), nnx.Dict(a=1, b=2)):
        assert dict(made) == {"a": 1, "b": 2}


def test_items_are_attributes():
    """G65: a mutable mapping, hash by identity."""
    heads = nnx.Dict(left=nnx.Param(1.0))
    heads["right"] = nnx.Param(2.0)
    heads.update(up=3)
    assert heads.right is heads["right"]
    assert (len(heads), list(heads), "up" in heads, heads.get("down")) == (3, ["left", "right", "up"], True, None)
    assert heads.pop("up") == 3
    del heads["left"]
    assert not hasattr(heads, "left")
    assert list(nnx.state(heads)) == ["right"]
    assert heads == heads
    assert heads != nnx.Dict(heads)
    assert hash(heads) == object.__hash__(heads)


def test_items_that_are_not_there():
    """G65."""
    heads = nnx.Dict(a=1)
    for look in (lambda: heads["x"], lambda: heads.__delitem__("x"), lambda: heads.pop("x")):
        with pytest.raises(KeyError, match="x"):
            look()
    with pytest.raises(AttributeError, match=r"no item 'x'; it has \['a'\]"):
        heads.x


def test_a_dict_goes_round():
    """G65."""
    heads = nnx.Dict(a=nnx.Param(jnp.ones(2)), n=3, inner=nnx.Dict(b=nnx.Param(jnp.zeros(2))))
    for again in (nnx.clone(heads), jax.tree.map(lambda x: x, heads)):
        assert again["inner"].b.shape == (2,)
        assert again.n == 3


def test_containers_print_like_modules():
    """G66."""
    assert repr(nnx.List([1, "a"])) == "List(1, 'a')"
    assert repr(nnx.Dict(a=1)) == "Dict(a=1)"


def test_elements_marked_as_data_are_leaves_and_move_with_their_marks():
    """G63, G65."""
    items = nnx.List([nnx.data(1), 2, nnx.data([3, 4])])
    items.insert(0, 5)
    items.append(nnx.data(6.0))
    del items[2]
    assert list(items) == [5, 1, [3, 4], 6.0]
    for again in (items, nnx.clone(items), copy.copy(items), jax.tree.map(lambda x: x, items)):
        assert jax.tree.leaves(again) == [1, 3, 4, 6.0]
        assert nnx.to_pure_dict(nnx.state(again))[1] == 1
    assert jax.tree.leaves(items + nnx.List([7, nnx.data(8)])) == [1, 3, 4, 6.0, 8]
    items[1] = 9  # a place keeps its status, as an attribute does
    items[2:] = [10, nnx.data(11)]
    assert jax.tree.leaves(items) == [9, 11]
    items.name = nnx.data(12)
    assert jax.tree.leaves(nnx.clone(items)) == [9, 11, 12]
    with pytest.raises(IndexError):
        items[7] = nnx.data(1)


def test_marks_survive_a_call_that_changes_the_structure():
    """G61: the objects of the caller are filled again."""
    items, heads = nnx.List([nnx.data(1), 2]), nnx.Dict(a=nnx.data(1))

    @nnx.jit
    def change(items, heads):
        items.append(nnx.Param(jnp.ones(())))
        heads.b = nnx.Param(jnp.ones(()))

    change(items, heads)
    assert [len(jax.tree.leaves(each)) for each in (items, heads)] == [2, 2]


@pytest.mark.oracle
@pytest.mark.parametrize(
    "ask",
    [
        lambda nnx: jax.tree.leaves(nnx.List([nnx.data(1), nnx.data(2)])),
        lambda nnx: jax.tree.leaves(nnx.List([1, nnx.data(2)])),
        lambda nnx: nnx.to_pure_dict(nnx.state(nnx.List([1, nnx.data(2)]))),
        lambda nnx: list(nnx.List([1, 2, 3])[1:]),
        lambda nnx: type(nnx.List([1, 2, 3])[1:]).__name__,
        lambda nnx: nnx.List([1, 2, 3])[-1],
        lambda nnx: [path for path, _ in nnx.to_flat_state(nnx.state(nnx.List([nnx.Param(1), nnx.Param(2)])))],
        lambda nnx: dict(nnx.Dict({"a": 1}, b=2)),
        lambda nnx: nnx.Dict(a=1).a,
        lambda nnx: list(nnx.state(nnx.Dict(b=nnx.Param(1), a=nnx.Param(2)))),
        lambda nnx: (isinstance(nnx.List([]), nnx.Module), isinstance(nnx.Dict(), nnx.Module)),
    ],
    ids=range(11),
)
def test_flax_answers_the_same(ask):
    """G65."""
    assert ask(nnx) == ask(pytest.importorskip("flax.nnx"))
