"""The recipe: rules that make the shape of a mesh choose how a model is cut."""

import jax
import pytest
from jax.sharding import AxisType

import plait
from plait.errors import ArgumentError
from plait.partitioning import rules_for


def mesh_of(**sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


@pytest.mark.parametrize(
    ("sizes", "batch", "embed", "mlp"),
    [
        ({"data": 8}, "data", None, None),
        ({"fsdp": 8}, "fsdp", "fsdp", None),
        ({"model": 8}, None, None, "model"),
        ({"data": 2, "fsdp": 2, "model": 2}, ("data", "fsdp"), "fsdp", "model"),
    ],
)
def test_the_mesh_chooses(sizes, batch, embed, mlp):
    rules = dict(rules_for(mesh_of(**sizes)))
    assert (rules["batch"], rules["embed"], rules["mlp"]) == (batch, embed, mlp)
    assert rules["heads"] == rules["vocab"] == rules["kv_heads"] == mlp
    with jax.set_mesh(mesh_of(**sizes)):
        assert dict(rules_for()) == rules


def test_without_a_mesh_nothing_is_cut():
    assert set(dict(rules_for()).values()) == {None}
    with plait.logical_axis_rules(rules_for()):
        pass  # the rules are rules


@pytest.mark.parametrize("sizes", [{}, {"data": 2, "fsdp": 2, "model": 2}])
def test_every_name_of_the_recipe_has_one_rule(sizes):
    """Names that are never sharded too: without a rule they would be taken for names of mesh axes."""
    rules = rules_for(mesh_of(**sizes) if sizes else None)
    whole = {"length", "features", "head_dim", "norm", "layers"}
    assert sorted(name for name, _ in rules) == sorted({*whole, *CUT})
    assert dict(rules) == {**dict.fromkeys(whole), **(CUT if sizes else dict.fromkeys(CUT))}


# The names that a mesh with all three axes cuts.
CUT = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",
    "heads": "model",
    "kv_heads": "model",
    "mlp": "model",
    "vocab": "model",
}


def test_an_axis_that_the_recipe_does_not_know_is_told():
    with pytest.raises(ArgumentError, match=r"(?s)'x' of \('x', 'model'\).*data.*fsdp.*model"):
        rules_for(mesh_of(x=4, model=2))


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_whole_recipe_passes_the_check_of_unused_rules(kind):
    """Nobody chose its rules one by one; one that was added is still reported."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "model"))
    layer = plait.Linear(8, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": kind(("embed", "mlp"))})
    rules = plait.partitioning.rules_for(mesh)
    for known in (rules, [("embed", "fsdp"), ("mlp", "model")]):
        with plait.logical_axis_rules(known):
            plait.partitioning.check_rules(layer, mesh)
    with (
        plait.logical_axis_rules([*rules, ("experts", "model")]),
        pytest.raises(ArgumentError, match="'experts' -> 'model'"),
    ):
        plait.partitioning.check_rules(layer, mesh)
    with plait.logical_axis_rules(rules[:8]), pytest.raises(ArgumentError, match="'batch' -> 'fsdp'"):
        plait.partitioning.check_rules(layer, mesh)
