"""Logical axis rules. (rules M29 to M32)"""

import threading

import jax
import jax.numpy as jnp
import pytest
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
    ],
)
def test_priorities_for_boxes(names, rules, expected):
    """M31."""
    assert meta.logical_to_mesh_axes(names, rules) == expected


def test_errors():
    """Section 10."""
    with pytest.raises(ArgumentError, match=r"'a' in \('a', 'a'\)"):
        meta.logical_to_mesh_axes(("a", "a"), RULES)
    with pytest.raises(ArgumentError, match="a dict"):
        meta.logical_to_mesh_axes(("a",), {"a": "x"})
    with pytest.raises(ArgumentError, match=r"pair.*\n.*'mlp'"):
        plait.logical_axis_rules(["mlp"])
    with pytest.raises(ArgumentError, match="'unknown'"):
        meta.logical_to_mesh_axes(("unknown",), RULES, fallback=meta.RulesFallback.RAISE_ERROR)


def test_trees_of_specs():
    """M31."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    tree = {"w": P("batch", "mlp"), "n": None}
    assert meta.logical_to_mesh(tree, RULES) == {"w": P("data", "model"), "n": None}
    assert meta.logical_to_mesh_sharding(tree, mesh, RULES)["w"] == NamedSharding(mesh, P("data", "model"))


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
