"""Going through graphs. (rules G53, G54, G56)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.strategies import Leafy, Node, Pair


def model():
    shared = plait.Param(jnp.ones(2))
    graph = Node(a=shared, b=[Leafy(w=shared), 3, None], steps=3)
    graph.b[0].up = graph
    return graph


LEAF_ROOTS = [plait.Param(1.0), jnp.ones(2), 3, None]


@pytest.mark.parametrize("root", LEAF_ROOTS, ids=lambda root: type(root).__name__)
def test_a_leaf_is_its_own_graph(root):
    """G53."""
    assert [path for path, _ in plait.iter_graph(root)] == [()]


def test_containers_come_once_and_values_each_time():
    """G53."""
    inner = [1, None]
    paths = [path for path, _ in plait.iter_graph({"a": inner, "b": inner, "c": Pair(1, ())})]
    assert paths == [("a", 0), ("a", 1), ("a",), ("c", "first"), ("c", "second"), ("c",), ()]


@pytest.mark.parametrize("value", [(), None, 1, "x"], ids=repr)
def test_what_the_program_has_once_comes_at_each_path(value):
    """G53: there is one empty tuple in a program; that two places hold it says nothing."""
    assert [path for path, _ in plait.iter_graph([value, {"a": value}, value])] == [(0,), (1, "a"), (1,), (2,), ()]


def test_modules_of_a_graph():
    """G54."""
    graph = model()
    assert [(path, type(module)) for path, module in plait.iter_modules(graph)] == [(("b", 0), Leafy), ((), Node)]


def test_children_are_the_graph_nodes_and_variables_directly_below():
    """G54."""
    graph = Node(a=plait.Param(1.0), b=Node(), c=[Node()], d=jnp.ones(1), e=plait.List())
    assert [key for key, _ in plait.iter_children(graph)] == ["a", "b", "e"]
    assert [key for key, _ in plait.iter_module_children(graph)] == ["b", "e"]
    assert [key for key, _ in plait.iter_children([Node(), 1, Node()])] == [0, 2]


def test_duplicates_are_lists_of_paths():
    """G56: two paths or more, variables and modules, cycles included."""
    graph = model()
    assert plait.find_duplicates(graph) == [[(), ("b", 0, "up")], [("a",), ("b", 0, "w")]]
    assert plait.find_duplicates(graph, only=plait.Param) == [[("a",), ("b", 0, "w")]]
    assert plait.find_duplicates(Node(a=1, b=1, c=[], d=[])) == []


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.oracle
def test_later_paths_count_if_the_filter_selects_them(names):
    """G56: the first path of an object counts always."""
    nnx = pytest.importorskip("flax.nnx")

    def found(library, only):
        inner = library.Dict(p=library.Param(1.0))
        whole = {"a": library.Dict(inner=inner, other=inner), "b": inner}
        return library.find_duplicates({f"{n}{name}": whole[name] for n, name in enumerate(names)}, only=only)

    filters = [lambda path, _: len(path) == 2, lambda path, _: len(path) == 1, lambda path, _: path[0][1] == "a",
               lambda path, _: path[-1] != "other", ..., "tag"]  # fmt: skip
    results = [found(plait, only) for only in filters]
    assert results == [found(nnx, only) for only in filters]
    assert len({*map(str, results)}) >= 3


@pytest.mark.parametrize("only", [..., jax.Array, np.ndarray, plait.Variable, lambda path, _: len(path) == 1])
@pytest.mark.parametrize("make", [jnp.ones, np.ones], ids=["JAX", "NumPy"])
@pytest.mark.oracle
def test_arrays_that_two_places_hold_are_duplicates(make, only):
    """G56: arrays as attributes and in containers, but not those inside variables, and no tracers."""
    nnx = pytest.importorskip("flax.nnx")
    array = make(3)

    def places(library):
        only_here = library.Variable if only is plait.Variable else only
        shared = {"z": array}
        node = library.Dict(a=array, b=library.Dict(z=array), c=library.Param(array), n=1.5)
        graphs = [node, [array, {"x": (array,)}], {"a": shared, "b": shared}, library.List([library.Param(array)] * 2)]
        jax.jit(lambda x: graphs.append(library.Dict(a=x, b=x)))(array)
        return [library.find_duplicates(graph, only=only_here) for graph in graphs]

    assert places(plait) == places(nnx)


def test_metadata_is_set_on_the_live_variables():
    """G56."""
    graph = Node(a=plait.Param(1.0), b=[plait.Cache(1.0)])
    plait.set_metadata(graph, only=plait.Param, note=1)
    assert (graph.a.get_metadata("note"), graph.b[0].has_metadata("note")) == (1, False)
    plait.set_metadata(graph, other=2)
    assert (graph.a.other, graph.b[0].other) == (2, 2)


def test_comparisons_of_containers_are_never_asked():
    """G3, G53: containers whose == is odd are walked by identity."""
    import dataclasses

    import jax

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Odd:
        x: object

        def __eq__(self, other):
            raise AssertionError("asked")

        __hash__ = None

    assert [path for path, _ in plait.iter_graph([Odd(1)])] == [(0, "x"), (0,), ()]
