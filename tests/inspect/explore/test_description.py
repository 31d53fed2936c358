"""The description that a page holds: links by number, what differs, and who holds which part. (W6, W11, W12)"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.inspect.explore.description import description, tiles_of
from plait.inspect.explore.graphs import outline_of_graph
from plait.inspect.explore.outline import LEAF, LINK, NODE, Entry, Layout, Outline, outline_of_leaves
from tests.strategies import graphs


class Pair(plait.Module):
    def __init__(self, **attributes):
        self.kernel = plait.Param(jnp.arange(6.0).reshape(2, 3))
        self.rate = 0.1
        for name, value in attributes.items():
            setattr(self, name, value)


def nodes_of(*models):
    nodes = description([outline_of_graph(model, "model") for model in models])["nodes"]
    paths = {}
    for place, node in enumerate(nodes):
        assert node.get("parent", -1) < place
        paths[place] = (paths[node["parent"]] + node["step"]) if "parent" in node else ""
    return {paths[place]: node for place, node in enumerate(nodes)}


@given(graphs())
def test_it_is_json_without_nans(graph):
    text = json.dumps(description([outline_of_graph(graph, "model")]), allow_nan=False)
    assert json.loads(text)["nodes"][0]["step"] == ""


def test_a_link_is_the_number_of_its_target():
    model = Pair()
    model.again, model.itself = model.kernel, model
    nodes = nodes_of(model)
    (first,) = [path for path in (".again", ".kernel") if nodes[path]["sides"][0]["role"] == LEAF]
    (second,) = {".again", ".kernel"} - {first}
    assert nodes[second]["sides"][0]["to"] == list(nodes).index(first)
    assert (nodes[".itself"]["sides"][0]["to"], nodes[".itself"]["sides"][0]["isCycle"]) == (0, True)
    assert "isCycle" not in nodes[second]["sides"][0]


CHANGES = [
    ({}, ".kernel", None),
    ({"kernel": plait.Param(jnp.arange(6.0).reshape(2, 3).at[0, 0].set(7))}, ".kernel", ["values"]),
    ({"kernel": plait.Param(jnp.ones((3, 3)))}, ".kernel", ["shape"]),
    ({"kernel": plait.Param(jnp.arange(6, dtype=jnp.int32).reshape(2, 3))}, ".kernel", ["dtype"]),
    ({"kernel": plait.BatchStat(jnp.arange(6.0).reshape(2, 3))}, ".kernel", ["type"]),
    ({"kernel": plait.Param(jnp.arange(6.0).reshape(2, 3), out_sharding=(None, "x"))}, ".kernel", ["attributes"]),
    ({"kernel": plait.Linear(2, 3, rngs=plait.Rngs(0))}, ".kernel", ["kind", "type", "attributes"]),
    ({"rate": 0.2}, "", ["attributes"]),
    ({"more": plait.Param(jnp.ones(2))}, ".more", ["added"]),
]
NAMES = [" and ".join(changes or ["nothing"]) + ("" if path else " of the root") for _, path, changes in CHANGES]


@pytest.mark.parametrize(("attributes", "path", "changes"), CHANGES, ids=NAMES)
def test_what_differs_is_named_at_its_path(attributes, path, changes):
    nodes = nodes_of(Pair(), Pair(**attributes))
    assert nodes[path].get("changes") == changes
    changed = {path for path, node in nodes.items() if "changes" in node}
    assert {each for each in changed if not each.startswith(f"{path}.")} == ({path} if changes else set())


def test_the_other_way_around_added_is_removed():
    assert nodes_of(Pair(more=plait.Param(jnp.ones(2))), Pair())[".more"]["changes"] == ["removed"]


def test_random_keys_differ_by_their_seeds():
    nodes = nodes_of(plait.Rngs(0), plait.Rngs(1))
    assert nodes[".default.key"]["changes"] == ["values"]
    assert "difference" not in nodes[".default.key"]
    assert "changes" not in nodes_of(plait.Rngs(0), plait.Rngs(0))[".default.key"]


def test_two_histograms_have_the_same_bins():
    first, second = nodes_of(Pair(), Pair(kernel=plait.Param(jnp.full((2, 3), 10.0))))[".kernel"]["sides"]
    assert [(side["histogram"]["low"], side["histogram"]["high"]) for side in (first, second)] == [(0, 10), (0, 10)]
    assert second["histogram"]["counts"][-1] == 6


def test_a_file_beside_a_model_differs_only_in_arrays():
    """A file knows no types, no links and no static attributes."""
    model = Pair(again=plait.Dict(), rate=0.3)
    model.tied = model.kernel
    arrays = {("kernel",): np.arange(6.0, dtype=np.float32).reshape(2, 3), ("new",): np.ones(2, np.float32)}
    leaves = {
        path: Entry(
            path, LEAF, dtype=str(array.dtype), shape=array.shape, bytes=array.nbytes, read=lambda array=array: array
        )
        for path, array in arrays.items()
    }
    outlines = [outline_of_graph(model, "model"), outline_of_leaves("file", "checkpoint", leaves, {})]
    found = {node["step"]: node.get("changes") for node in description(outlines)["nodes"]}
    assert {step: changes for step, changes in found.items() if changes} == {".new": ["added"]}


def test_infinite_differences_are_words_since_json_has_no_number_for_them():
    with jax.enable_x64(True):
        first, second = (plait.Param(jnp.array([value], jnp.float64)) for value in (-1.7e308, 1.7e308))
        nodes = nodes_of(plait.Dict(a=first), plait.Dict(a=second))
    assert nodes[".a"]["difference"]["largest"] == "inf"


@given(st.permutations(["x", "y", "z"]), st.integers(0, 3), st.integers(0, 3))
def test_tiles_are_the_parts_that_jax_gives_each_device(axes, cut, end):
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    spec = (tuple(axes[:cut]), tuple(axes[cut : max(cut, end)]))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(each or None for each in spec)))
    parts = sharding.devices_indices_map((8, 8))
    grid, tiles = tiles_of(Layout(tuple(mesh.shape.items()), spec))
    sizes = [8 // parts for parts in grid]
    found = [tuple(start // size for start, size in zip(divmod(tile, grid[1]), (1, 1), strict=True)) for tile in tiles]
    expected = [
        tuple((index.start or 0) // size for index, size in zip(parts[device], sizes, strict=True))
        for device in mesh.devices.flat
    ]
    assert found == expected
    assert math.prod(grid) == len(set(tiles))


def compared(first, second, *, has_objects=(True, True)):
    outlines = [Outline("o", "x", [Entry((), NODE), each], has_objects=known)
                for each, known in zip((first, second), has_objects, strict=True)]  # fmt: skip
    return description(outlines)["nodes"][1]


X, Y = Layout((("x", 2),), (("x",),), (0, 1)), Layout((("x", 2),), ((),), (0, 1))
LEFT = {"dtype": "f4", "shape": (2,)}
COMPARED = {  # what both entries have, and what is said to differ
    "link": ({"role": LINK, "target": ()}, {"role": LINK, "target": None}, ["link"]),
    "value": (
        {"why": "no array", "attributes": {"value": "1"}},
        {"attributes": {"value": "2"}},
        ["value", "attributes"],
    ),
    "value that is read": ({"attributes": {"value": "1"}}, {"attributes": {"value": "2"}}, ["attributes"]),
    "sharding": ({"layout": X}, {"layout": Y}, ["sharding"]),
    "sharding on one side": ({"layout": X}, {}, None),
    "type": ({"type": "Param"}, {"type": "Cache"}, ["type"]),
    "type on one side": ({"type": "Param"}, {}, None),
    "kind": ({"role": NODE}, {}, ["kind"]),
    "all of a leaf": ({}, {"dtype": "f2", "shape": (3,)}, ["shape", "dtype"]),
}


@pytest.mark.parametrize("name", COMPARED)
def test_each_kind_of_change_has_its_word(name):
    first, second, changes = COMPARED[name]
    entries = [Entry(("a",), **{"role": LEAF, **LEFT, **each}) for each in (first, second)]
    if name == "link":
        entries[1].target, entries[0].target = (), ("a",)
    assert compared(*entries).get("changes") == changes
    without = compared(*entries, has_objects=(True, False)).get("changes", [])
    assert without == ([] if name == "link" else [word for word in changes or [] if word != "attributes"])


def test_values_differ_by_numbers_and_keys_by_being_others():
    def entry(*values, **more):
        return Entry(("a",), LEAF, dtype="f8", shape=(len(values),), read=lambda: np.array(values), **more)

    node = compared(entry(3.0, 4.0), entry(3.0, 1.0))
    assert node["changes"] == ["values"]
    assert node["difference"] == {"changed": 1, "largest": 3.0, "mean": 1.5, "relative": 0.6}
    same = compared(entry(3.0), entry(3.0))
    assert ("changes" in same, same["difference"]["changed"]) == (False, 0)
    for one, other in (({"is_key": True}, {}), ({}, {"is_key": True})):
        assert compared(entry(1, **one), entry(2, **other))["changes"] == ["values"]
        assert "changes" not in compared(entry(1, **one), entry(1, **other))
        assert "difference" not in compared(entry(1, **one), entry(2, **other))
    assert "difference" not in compared(entry(1.0), entry(1.0, 2.0))


def test_a_side_without_finite_numbers_has_the_bins_of_the_other():
    entries = [Entry(("a",), LEAF, shape=(2,), read=lambda each=each: np.array(each))
               for each in ([math.nan, math.inf], [1.0, 3.0])]  # fmt: skip
    sides = compared(*entries)["sides"]
    assert [side["histogram"]["low"] for side in sides] == [1.0, 1.0]
    assert [sum(side["histogram"]["counts"]) for side in sides] == [0, 2]
    only = description([Outline("o", "x", [Entry((), LEAF, shape=(2,), read=entries[0].read)])])
    assert "histogram" not in only["nodes"][0]["sides"][0]
