"""The structure clock: what ticks it, and what does not. (rule U33)"""

import itertools
import sys
import threading

import jax.numpy as jnp
import pytest

import plait
from plait.core.graph import walks
from plait.core.variables.cells import Stamp, clock, mark_changed, mark_seen
from tests.strategies import Node


def model():
    graph = Node(a=plait.Param(jnp.ones(2)), b=3, c=plait.List([1]), d=plait.Dict(x=1), e=(1, 2))
    plait.split(graph)
    return graph


STRUCTURAL = {
    "new attribute": lambda m: setattr(m, "z", 1),
    "removed attribute": lambda m: delattr(m, "b"),
    "other static value": lambda m: setattr(m, "b", 4),
    "other type of an equal value": lambda m: setattr(m, "b", 3.0),
    "replaced variable": lambda m: setattr(m, "a", plait.Param(jnp.ones(2))),
    "aliased variable": lambda m: setattr(m, "z", m.a),
    "List item": lambda m: m.c.append(2),
    "List slice": lambda m: m.c.__setitem__(slice(0, 1), [5]),
    "List deletion": lambda m: m.c.__delitem__(0),
    "Dict item": lambda m: m.d.__setitem__("y", 2),
    "Dict deletion": lambda m: m.d.__delitem__("x"),
    "new metadata": lambda m: m.a.set_metadata(note=1),
    "mark": lambda m: setattr(m, "b", plait.static(3)),
    "metadata by update": lambda m: plait.update(m, plait.State({"a": plait.Param(jnp.ones(2), note=1)})),
    "pop": lambda m: plait.pop(m, plait.Param),
}
NOT_STRUCTURAL = {
    "value": lambda m: setattr(m.a, "value", jnp.zeros(3)),
    "value in place": lambda m: m.a.__setitem__(..., 0),
    "raw value": lambda m: m.a.set_raw_value(1),
    "same object again": lambda m: setattr(m, "a", m.a),
    "equal number": lambda m: setattr(m, "b", 3),
    "update of values": lambda m: plait.update(m, plait.state(m)),
    "another model": lambda m: Node(a=plait.Param(1.0)),
    "reading": lambda m: plait.state(m),
}


@pytest.mark.parametrize("case", STRUCTURAL)
def test_structural_changes_tick(case):
    graph = model()
    before = clock.now
    STRUCTURAL[case](graph)
    assert clock.now > before


@pytest.mark.parametrize("case", NOT_STRUCTURAL)
def test_other_changes_do_not_tick(case):
    graph = model()
    before = clock.now
    NOT_STRUCTURAL[case](graph)
    assert clock.now == before


def test_objects_that_no_crossing_has_seen_do_not_tick():
    graph, before = Node(), clock.now
    graph.a = plait.Param(1.0)
    graph.a.set_metadata(note=1)
    del graph.a
    assert clock.now == before


def stopped_at(number, work):
    """Run in a thread up to a line of the walk, and return what lets it go on; ``None`` if there are fewer lines."""
    left, at_the_line, go = itertools.count(number, -1), threading.Event(), threading.Event()

    def trace(frame, event, _):
        if frame.f_globals["__name__"] not in ("plait.core.variables.cells", walks.__name__):
            return None
        if event == "line" and next(left) == 0:
            at_the_line.set()
            go.wait()
        return trace

    def run():
        sys.settrace(trace)
        work()
        sys.settrace(None)
        stopped.append(at_the_line.is_set())
        at_the_line.set()

    stopped = []
    thread = threading.Thread(target=run)
    thread.start()
    at_the_line.wait()
    return None if stopped else (go.set, thread.join)


def test_a_change_during_a_walk_of_another_thread_is_never_hidden():
    """U33: the walk is stopped at each of its lines, while this thread walks a part, and changes it."""
    for number in itertools.count():
        part = Node(w=plait.Param(jnp.ones(2)))
        whole = Node(part=part)
        goes_on = stopped_at(number, lambda whole=whole: plait.graphdef(whole))
        if goes_on is None:
            break
        plait.graphdef(part)
        part.name = "changed"
        for step in goes_on:
            step()
        for root in (part, whole):
            assert walks.find_walk((root,)).graphdefs == walks.CachedWalk((root,)).graphdefs, number
    assert number > 100


def test_two_threads_never_give_the_same_number():
    """Numbers are never used twice, so one change cannot hide another."""
    stamps = [Stamp() for _ in range(4)]
    versions: list[list[int]] = [[] for _ in stamps]

    def work(stamp, seen):
        mark_seen(stamp)
        for _ in range(500):
            mark_changed(stamp)
            seen.append(stamp.version)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(stamps, versions, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({version for seen in versions for version in seen}) == 4 * 500
