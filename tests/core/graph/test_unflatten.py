"""The second walk: from a graphdef and leaves back to objects. (rules G25 to G30)"""

import jax.numpy as jnp
import pytest

import plait
from plait.graph import flatten, unflatten
from tests.oracles import describe
from tests.strategies import Leafy, Node


def model():
    graph = Node(a=plait.Param(jnp.ones(2), note=1), b=[Leafy(w=plait.Cache(2.0)), 3], x=jnp.zeros(1))
    graph.b[0].parent = graph
    graph.again = graph.a
    return graph


def test_objects_are_made_without_running_user_code():
    """G26, G28: neither __init__ nor create_value."""
    ran = []

    class LoudParam(plait.Param):
        def create_value(self, value):
            ran.append("create_value")
            return value

    class Loud(plait.Module):
        def __init__(self):
            ran.append("init")
            self.w = LoudParam(1.0)

    graphdef, raw = flatten(Loud(), with_paths=False)
    ran.clear()
    assert unflatten(graphdef, raw).w.get_raw_value() == 1.0
    assert ran == []


def test_variables_of_the_state_are_used_or_copied():
    """G28."""
    graphdef, flat = flatten(model())
    assert unflatten(graphdef, flat).a is flat.leaves[0]
    assert unflatten(graphdef, flat, copy_variables=True).a is not flat.leaves[0]
    raw = flatten(model(), with_paths=False)[1]
    assert unflatten(graphdef, raw, recreate_variables=False).a is raw[0]
    assert unflatten(graphdef, raw).a.note == 1


def test_a_part_without_leaves_may_be_absent():
    """G29."""
    graphdef, _ = flatten(Node(a=Node(b=[1, None]), w=plait.Param(1.0)))
    assert unflatten(graphdef, {"w": plait.Param(2.0)}).a.b == [1, None]


def test_cached_objects_are_refilled_in_place():
    """G30: nodes are cleared and refilled, variables updated; the rest is new."""
    graph = model()
    refs = plait.graph.RefMap()
    graphdef, raw = flatten(graph, refs, with_paths=False)
    node, variable, child = graph, graph.a, graph.b[0]
    node.extra = 1
    cache = {refs[node]: node, refs[variable]: variable}
    built = unflatten(graphdef, [raw[0] + 1, *raw[1:]], index_ref_cache=cache)
    assert built is node
    assert built.a is variable
    assert built.b[0] is not child
    assert not hasattr(node, "extra")
    assert variable.value.tolist() == [2.0, 2.0]


def test_a_cached_variable_takes_metadata_from_a_variable():
    """G30."""
    variable = plait.Param(1.0, note=1)
    graphdef, _ = flatten(variable)
    unflatten(graphdef, plait.Param(3.0, note=2), outer_index_outer_ref={0: variable})
    assert (variable.value, variable.note) == (3.0, 2)


def test_a_cache_of_other_classes_changes_nothing():
    """G30: the class of each object is checked before the first is emptied."""
    graph, other = model(), model()
    other.a = plait.Cache(jnp.ones(2))
    other.again = other.a
    graphdef, raw = flatten(graph, with_paths=False)
    refs = plait.graph.RefMap()
    flatten(other, refs)
    before = describe(other)
    with pytest.raises(plait.errors.GraphError, match="Expected a node of type Param, but the cache has a Cache"):
        unflatten(graphdef, raw, index_ref_cache={index: item for item, index in refs.items()})
    assert describe(other) == before


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_cached_object_of_a_different_trace_is_not_changed():
    """G64."""
    graph = model()
    before = describe(graph)

    @plait.jit
    def outer(x):
        refs = plait.graph.RefMap()
        graphdef, raw = flatten(graph, refs, with_paths=False)
        raw[0] = x
        unflatten(graphdef, raw, index_ref_cache={index: item for item, index in refs.items()})

    with pytest.raises(plait.errors.TraceContextError, match=r"cannot change the value of Param(?s:.)*at +graph\.a"):
        outer(jnp.ones(2))
    assert describe(graph) == before
