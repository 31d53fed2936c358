"""Logical axis rules. (rules M29 to M32)"""

import threading

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

import plait
from plait import meta, spmd
from plait.errors import ArgumentError

RULES = [("batch", "data"), ("mlp", "model"), ("embed", None)]


def test_rules_hold_in_the_context_of_their_thread():
    """M29."""
    seen = []
    with plait.logical_axis_rules(RULES):
        thread = threading.Thread(target=lambda: seen.append(spmd.get_logical_axis_rules()))
        thread.start()
        thread.join()
        assert spmd.get_logical_axis_rules() == tuple(RULES)
        with plait.logical_axis_rules([]):
            assert spmd.get_logical_axis_rules() == ()
        assert spmd.get_logical_axis_rules() == tuple(RULES)
    assert spmd.get_logical_axis_rules() == ()
    assert seen == [()]
    spmd.set_logical_axis_rules(RULES)
    try:
        assert spmd.get_logical_axis_rules() == tuple(RULES)
    finally:
        spmd.set_logical_axis_rules(())


def test_rules_may_be_lists():
    """M29: such as those of a file of JSON."""
    with plait.logical_axis_rules([["batch", ["data", "fsdp"]], ["embed", None]]):
        assert spmd.get_logical_axis_rules() == (("batch", ("data", "fsdp")), ("embed", None))


def test_renaming_for_variables():
    """M30."""
    assert spmd.from_sharding_rules(("batch", None, "other"), RULES) == ("data", None, "other")
    assert spmd.from_sharding_rules((("batch", "mlp"), "embed"), RULES) == (("data", "model"), None)
    assert spmd.composite_rules(RULES, ()) == RULES
    assert dict(spmd.composite_rules(RULES, [("heads", "model")])) == {**dict(RULES), "heads": "model"}
    with pytest.raises(ArgumentError, match=r"(?s)'mlp' -> 'model'.*'mlp' -> 'data'"):
        spmd.composite_rules(RULES, [("mlp", "data")])


@pytest.mark.parametrize(
    ("names", "rules", "expected"),
    [
        (("batch", "mlp"), RULES, P("data", "model")),
        (("batch", "mlp"), [("batch", "x"), ("mlp", "x"), ("mlp", "y")], P("x", "y")),
        (("a", "b"), [("a", ("x", "y")), ("b", "y")], P(("x", "y"), None)),
        (("unknown", None), RULES, P(None, None)),
        (None, RULES, None),
        ((P.UNCONSTRAINED, "mlp"), RULES, P(P.UNCONSTRAINED, "model")),
        (("a", "b"), [("a", None), ("b", None), ("b", "x")], P(None, None)),  # None is a target, and not used up
        (("a",), [("a", "x"), ("a", "y")], P("x")),
        (("a",), [("a", ("x", "y")), ("a", "z")], P(("x", "y"))),
        (("a",), [("a", ()), ("a", "x")], P(())),
        (("b", "a"), [("a", "x"), ("b", "x"), ("b", "y")], P("y", "x")),  # in the order of the rules
        (("a", "b"), [("a", "x"), ("b", ("y", "x")), ("b", ("y", "z"))], P("x", ("y", "z"))),
        (("a", None, "b"), [("a", "x"), ("b", "x")], P("x", None, None)),
        ((("x", "y"), "a"), [("a", "z")], P(("x", "y"), "z")),
    ],
)
def test_priorities_for_boxes(names, rules, expected):
    """M31."""
    found = meta.logical_to_mesh_axes(names, rules)
    assert found == expected
    assert found is None or tuple(found) == tuple(expected)  # P(None) == P() and P(("x",)) == P("x")


def test_the_rules_of_the_thread_serve_where_none_are_given():
    """M31; no rules at all are given by an empty list."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with plait.logical_axis_rules(RULES):
        assert meta.logical_to_mesh_axes(("batch", "mlp")) == P("data", "model")
        assert meta.logical_to_mesh_axes(("batch", "mlp"), []) == P(None, None)
        assert meta.logical_to_mesh({"w": P("mlp")}) == {"w": P("model")}
        assert meta.logical_to_mesh_sharding({"w": P("mlp")}, mesh) == {"w": NamedSharding(mesh, P("model"))}


TARGETS = st.sampled_from([None, "x", "y", "z", ("x", "y"), ("y", "z")])
NAMES = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=4)
MANY_RULES = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d"]), TARGETS), max_size=6)


@pytest.mark.oracle
@given(NAMES, MANY_RULES)
def test_flax_assigns_the_same(names, rules):
    """M31."""
    names = tuple(name for place, name in enumerate(names) if name is None or name not in names[:place])
    expected = pytest.importorskip("flax.linen.spmd").logical_to_mesh_axes(names, rules)
    assert tuple(meta.logical_to_mesh_axes(names, rules)) == tuple(expected)


@given(NAMES, MANY_RULES)
def test_no_mesh_axis_is_used_twice_and_the_first_rule_that_fits_counts(names, rules):
    """M31, as the rule says it."""
    names = tuple(name for place, name in enumerate(names) if name is None or name not in names[:place])
    used, expected = set(), {}
    for name, axis in rules:
        axes = {axis} - {None} if not isinstance(axis, tuple) else set(axis)
        if name in names and name not in expected and not axes & used:
            expected[name] = axis
            used |= axes
    spec = P(*(expected.get(name) for name in names))
    assert tuple(meta.logical_to_mesh_axes(names, rules)) == tuple(spec)
    missing = [name for name in names if name is not None and name not in expected]
    unconstrained = meta.logical_to_mesh_axes(names, rules, fallback=meta.RulesFallback.NO_CONSTRAINT)
    assert unconstrained == (None if missing else spec)
    if missing:
        with pytest.raises(ArgumentError, match=f"found +{', '.join(map(repr, missing))} in "):
            meta.logical_to_mesh_axes(names, rules, fallback=meta.RulesFallback.RAISE_ERROR)
    else:
        assert meta.logical_to_mesh_axes(names, rules, fallback=meta.RulesFallback.RAISE_ERROR) == spec


def test_trees_of_specs():
    """M31."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    tree = {"w": P("batch", "mlp"), "n": None}
    assert meta.logical_to_mesh(tree, RULES) == {"w": P("data", "model"), "n": None}
    assert meta.logical_to_mesh_sharding(tree, mesh, RULES)["w"] == NamedSharding(mesh, P("data", "model"))
    variables = {"v": plait.Param(P("mlp")), "none": plait.BatchStat(None), "text": "text", "x": X, "n": 3}
    found = meta.logical_to_mesh(variables, RULES)
    assert (type(found["v"]), found["v"].get_raw_value()) == (plait.Param, P("model"))
    assert {name: found[name] is variables[name] for name in ("text", "x", "n")} == dict.fromkeys(
        ("text", "x", "n"), True
    )
    assert found["none"].get_raw_value() is None


X = jnp.ones((8, 4))
# A value, its logical axes, and the spec of each of its arrays.
TREES = {
    "a tuple": ((X, X), (("batch", "mlp"), ("batch", None)), [P("data", "model"), P("data", None)]),
    "a tuple of one": ((X,), (("batch", "mlp"),), [P("data", "model")]),
    "a list": ([X, X], [("batch", "mlp"), (None, "mlp")], [P("data", "model"), P(None, "model")]),
    "a dict in a tuple": (({"a": X}, X), ({"a": ("batch", "mlp")}, ("mlp", None)), [P("data", "model"), P("model")]),
    "one pair for all": ({"a": X, "b": [X]}, ("batch", "mlp"), [P("data", "model")] * 2),
    "one pair for a part": ({"a": X, "b": [X]}, {"a": None, "b": (None, "mlp")}, [P(), P(None, "model")]),
    "nothing for the first": ((X, X), (None, ("batch", None)), [P(), P("data")]),
    "a spec": (X, P("batch", "mlp"), [P("data", "model")]),
    "what is left to the compiler": (X, (P.UNCONSTRAINED, "mlp"), [P(None, "model")]),
}  # fmt: skip


@pytest.mark.parametrize("lib", ["plait", pytest.param("flax", marks=pytest.mark.oracle)])
@pytest.mark.parametrize("case", TREES)
def test_constraints_of_trees(case, lib):
    """M32: leaf by leaf, whatever the tree is made of."""
    value, axes, expected = TREES[case]
    linen = pytest.importorskip("flax.linen") if lib == "flax" else None
    constrain = meta.with_logical_constraint if linen is None else linen.with_logical_constraint
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        found = jax.jit(lambda value: constrain(value, axes, RULES))(value)
        assert jax.tree.structure(found) == jax.tree.structure(value)
        for array, spec in zip(jax.tree.leaves(found), expected, strict=True):
            assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)


@pytest.mark.parametrize("value", [X, (X, X), {"a": 1.0}, 1.0])
def test_names_in_a_tuple_name_one_axis(value):
    """M32: ``(("data", "model"), None)`` are the names of one array, or of two, as the value is."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    axes = {"a": (("data", "model"), None)} if isinstance(value, dict) else (("data", "model"), None)
    with jax.set_mesh(mesh):
        found = jax.tree.leaves(meta.with_logical_constraint(value, axes, RULES))
    if value is X:
        assert found[0].sharding.spec == P(("data", "model"), None)
    elif isinstance(value, tuple):
        assert [array.sharding.spec for array in found[:1]] == [P(None, None)]  # logical names without a rule
        assert found[1] is X
    else:
        assert found == [1.0]


def test_constraints():
    """M32."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jnp.ones((8, 4))
    assert meta.with_logical_constraint(x, ("batch", "mlp")) is x  # no rules
    assert meta.with_logical_constraint(x, None, RULES) is x  # no names
    assert meta.with_logical_constraint(x, ("batch", "mlp"), RULES) is x  # no mesh
    with jax.set_mesh(mesh), plait.logical_axis_rules(RULES):
        y = meta.with_logical_constraint({"x": x}, {"x": ("batch", "mlp")})["x"]
        assert y.sharding.spec == P("data", "model")
        z = meta.with_logical_constraint(x, ("batch", "no"), fallback=meta.RulesFallback.NO_CONSTRAINT)
        assert z is x
        with pytest.raises(ArgumentError, match="'no'"):
            meta.with_logical_constraint(x, ("batch", "no"), fallback=meta.RulesFallback.RAISE_ERROR)
