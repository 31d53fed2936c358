"""Prefix trees are trees: JAX maps over them, and they are prefixes of the objects they were made from. (X2, X28)"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import plait
from tests.strategies import Node


def model():
    return Node(
        w=plait.Param(jnp.ones((2, 3))),
        plain=jnp.ones(2),
        layers=[plait.Param(jnp.ones(2))],
        more=plait.List([plait.Param(jnp.ones(2)), jnp.ones(2)]),
    )


def test_jax_maps_over_the_values():
    tree = plait.prefix(model(), {plait.PathContains("w"): 1, ...: 0})
    mapped = jax.tree.map(str, tree)
    assert jax.tree.leaves(mapped) == ["0", "0", "0", "0", "1"]
    assert (mapped.w, mapped.plain, mapped.layers[0], mapped.more[1]) == ("1", "0", "0", "0")


def test_a_prefix_tree_is_a_prefix_for_jax_itself():
    axes = plait.prefix(model(), {plait.PathContains("w"): 1, ...: None})
    assert jax.vmap(lambda node: node.w[...] + node.plain, in_axes=(axes,))(model()).shape == (3, 2)
    assert jax.tree.structure(plait.prefix(model(), {...: 0}).more) != jax.tree.structure(model().more)
    axes = plait.prefix(model().more, {...: 0})
    assert jax.vmap(lambda more: more[0][...] + more[1], in_axes=(axes,))(model().more).shape == (2,)


def test_prefix_trees_mapped_to_shardings_are_read():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = plait.prefix(model(), {plait.PathContains("w"): P("data"), ...: P()})
    placed = jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))
    made = plait.jit(lambda node: node.w * 2, in_shardings=(placed,), graph_updates=False)(model())
    assert made.sharding.spec == P("data")


def test_shard_map_takes_a_prefix_tree_of_a_module_with_static_numbers():
    layer = plait.Linear(2, 4, rngs=plait.Rngs(0))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = plait.prefix(layer, {plait.PathContains("kernel"): P(None, "data"), ...: P("data")})
    shard = plait.shard_map(
        lambda m: m.kernel.sum(0) + m.bias, mesh=mesh, in_specs=(specs,), out_specs=P("data"), graph_updates=False
    )
    assert jnp.allclose(shard(layer), layer.kernel.sum(0) + layer.bias)


def test_a_state_of_specs_is_a_prefix_of_a_state_and_of_its_model_without_updates():
    layer = plait.Linear(2, 4, rngs=plait.Rngs(0))
    axes = plait.State({"kernel": 1, "bias": 0})
    of_model = plait.vmap(lambda m: m.kernel.sum(), in_axes=(axes,), graph_updates=False)
    of_state = plait.vmap(lambda s: s["kernel"].sum(), in_axes=(axes,), graph_updates=False)
    assert jnp.allclose(of_model(layer), layer.kernel.sum(0))
    assert jnp.allclose(of_state(plait.state(layer)), layer.kernel.sum(0))
