"""The door: public functions that resolve modes, around functions that know none. (G57, U32)"""

import inspect
import pickle
import threading

import jax.numpy as jnp
import pytest

import plait
from plait.errors import GraphError
from plait.flax.compat import functions
from plait.flax.compat.modes import Crossing, carried, checked, checked_result, with_arguments

SHARED = plait.Param(jnp.ones(2))
CHECKED = sorted(name for name, value in vars(functions).items() if hasattr(value, "__signature__"))


def count(x: int, node: list, /, *others: list, scale: int = 1, **rest: int) -> int:
    """How many.

    Args:
        node: what.

    Raises:
        nothing: ever.
    """
    return (len(node) + sum(map(len, others))) * scale + sum(rest.values()) + x


def transform(f, *, crossing, scale=1):
    """Call.

    Example:
        >>> 1
        1
    """

    def call(*roots):
        crossing.check(list(roots))
        return f(*roots) * scale, crossing.updates

    return call


def test_the_wrapped_function_is_called_as_it_is():
    public = checked(count, at=1)
    assert public(1, [SHARED, SHARED], [1], scale=2, more=3) == 10
    assert public(1, [SHARED, SHARED], graph=True) == 3


def test_only_the_graph_is_checked():
    public = checked(count, at=1)
    assert public(1, [2], [SHARED, SHARED], graph=False) == 4
    with pytest.raises(GraphError, match="duplicate"):
        public(1, [SHARED, SHARED], graph=False)


def test_what_a_function_makes_is_checked_when_it_is_made():
    public = checked_result(lambda make, scale: len(make()) * scale)
    assert public(lambda: [SHARED, SHARED], 2) == 4
    with pytest.raises(GraphError, match="duplicate"):
        public(lambda: [SHARED, SHARED], 2, graph=False)


def test_name_documentation_and_signature_stay():
    public = checked(count, at=1)
    assert public.__name__ == "count"
    assert str(inspect.signature(public)) == (
        "(x: int, node: list, /, *others: list, scale: int = 1, graph: 'bool | None' = None, **rest: int) -> int"
    )
    assert public.__doc__.splitlines()[3:6] == [
        "    node: what.",
        "    graph: whether shared objects and cycles are allowed or raise an error (tree mode); ``None`` means the "
        "thread's mode.",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("One.", "One.\n\nArgs:\n    y: new."),
        ("One.\n\nRaises:\n    E: x.", "One.\n\nArgs:\n    y: new.\n\nRaises:\n    E: x."),
        ("One.\n\nArgs:\n    x: old.", "One.\n\nArgs:\n    x: old.\n    y: new."),
    ],
)
def test_an_argument_is_added_to_a_docstring(text, expected):
    assert with_arguments(text, {"y": "new."}) == expected


@pytest.mark.parametrize("name", CHECKED)
def test_every_public_function_of_the_door_can_be_pickled_and_is_documented(name):
    function = getattr(functions, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert "    graph: " in function.__doc__
    assert inspect.signature(function).parameters["graph"].default is None


def test_a_transform_gets_its_modes_as_one_crossing():
    public = carried(transform)
    assert str(inspect.signature(public)) == (
        "(f, *, scale=1, graph: 'bool | None' = None, graph_updates: 'bool | None' = None)"
    )
    assert public(len, scale=2)([SHARED, SHARED]) == (4, True)
    assert public(len, graph_updates=False)([1]) == (1, False)
    with pytest.raises(GraphError, match="duplicate"):
        public(len, graph=False)([SHARED, SHARED])


def test_the_modes_are_read_when_the_transform_is_called():
    call = carried(transform)(len)
    with plait.set_graph_updates(False):
        assert call([1]) == (1, False)
    with plait.set_graph_mode(False), pytest.raises(GraphError, match="duplicate"):
        call([SHARED, SHARED])
    assert call([SHARED, SHARED]) == (2, True)


def test_a_crossing_carries_structure_in_the_default_modes_of_its_thread():
    found = []
    with plait.set_graph_mode(False):
        thread = threading.Thread(target=lambda: found.append(Crossing().updates))
        thread.start()
        thread.join()
        assert (Crossing().updates, Crossing(graph=True).updates) == (False, True)
    assert found == [True]
    assert not Crossing(graph_updates=False).updates
    assert Crossing(graph=True) == Crossing(graph=True)
