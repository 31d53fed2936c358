"""Parameter groups: each parameter is updated by the transformation of its group, and by no other."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.errors import FilterError
from tests.nn.twins import some_input

pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax relies on implicit promotion

X = some_input(5, 3)


def net():
    rngs = plait.Rngs(0)
    return plait.Sequential(plait.Linear(3, 3, rngs=rngs), plait.LayerNorm(3, rngs=rngs), plait.Linear(3, 2, rngs=rngs))


def loss(model):
    return (model(X) ** 2).mean()


def updated(tx, **options):
    model = net()
    optimizer = plait.Optimizer(model, tx, wrt=plait.Param, **options)
    for _ in range(3):
        optimizer.update(model, plait.grad(loss)(model))
    return dict(plait.to_flat_state(plait.state(model, plait.Param)))


@pytest.mark.slow
def test_each_group_is_updated_as_by_its_own_optimizer():
    """O11: Optax's partition is the oracle."""
    decayed, plain = optax.adamw(0.1, weight_decay=0.5), optax.sgd(0.01)
    found = updated({("**.bias", "**.scale"): plain, ...: decayed})
    labels = plait.map_state(
        lambda path, leaf: "plain" if path[-1] in ("bias", "scale") else "decayed", plait.state(net(), plait.Param)
    )
    expected = updated(optax.partition({"plain": plain, "decayed": decayed}, plait.pure(labels)))
    for path, value in found.items():
        np.testing.assert_array_equal(value[...], expected[path][...])


def test_groups_by_kind_and_the_first_match_counts():
    model = plait.LoRALinear(3, 2, lora_rank=1, rngs=plait.Rngs(0))
    before = jax.tree.map(jnp.copy, plait.state(model))
    tx = {"lora.lora_a": None, plait.LoRAParam: optax.sgd(1.0), "**": optax.sgd(0.0)}
    optimizer = plait.Optimizer(model, tx, wrt=plait.Param)
    optimizer.update(model, plait.grad(loss)(model))
    same = {path: np.array_equal(leaf[...], before[path[0]][...] if len(path) == 1 else before[path[0]][path[1]][...])
            for path, leaf in plait.to_flat_state(plait.state(model))}  # fmt: skip
    assert same == {("bias",): True, ("kernel",): True, ("lora", "lora_a"): True, ("lora", "lora_b"): False}


@pytest.mark.slow
def test_a_list_clips_the_gradients_of_all_groups_together():
    found = updated([optax.clip_by_global_norm(0.01), {"**.bias": optax.sgd(0.1), ...: optax.sgd(1.0)}])
    expected = net()
    clip = optax.clip_by_global_norm(0.01)
    for _ in range(3):
        grads, _ = clip.update(plait.pure(plait.grad(loss)(expected)), clip.init(None))
        for path, grad in plait.to_flat_state(grads):
            rate = 0.1 if path[-1] == "bias" else 1.0
            plait.select(expected, plait.Param).map(
                lambda at, value, p=path, g=grad, r=rate: value - r * g if at == p else value
            )
    for path, value in plait.to_flat_state(plait.state(expected, plait.Param)):
        np.testing.assert_allclose(found[path][...], value[...], rtol=1e-5, atol=1e-6)


FROZEN = {"layers[0].**": None, ...: optax.adam(0.1)}


@pytest.mark.parametrize("tx", [FROZEN, [optax.clip_by_global_norm(1.0), FROZEN]], ids=["alone", "in a list"])
def test_a_frozen_group_has_no_state_and_no_gradients(tx):
    """O11: not even in the program, before XLA sees it."""
    model = net()
    optimizer = plait.Optimizer(model, tx, wrt=plait.Param)
    held = [leaf for leaf in jax.tree.leaves(optimizer.opt_state) if jnp.shape(leaf) == (3, 3)]
    assert held == []
    before = model.layers[0].kernel[...]
    of_trained = plait.DiffState(0, optimizer.wrt)
    grads = plait.grad(loss, argnums=of_trained)(model)
    assert sorted(grads["layers"]) == [1, 2]
    optimizer.update(model, grads)
    np.testing.assert_array_equal(model.layers[0].kernel[...], before)
    products = [
        str(plait.make_jaxpr(lambda model: plait.grad(loss, **kw)(model))(model)).count("dot_general")  # noqa: B023
        for kw in ({}, {"argnums": of_trained})
    ]
    # Forward 2; backward for both kernels and the value between them 3, of which the trained part needs 2.
    assert products == [5, 4]


def test_groups_of_a_stack_are_those_of_its_layers():
    stack = plait.Stack(lambda rngs: plait.Linear(3, 3, rngs=rngs), 3, rngs=plait.Rngs(0))
    model = plait.Dict(blocks=stack)
    optimizer = plait.Optimizer(model, {"blocks[*].bias": None, ...: optax.sgd(0.1)}, wrt=plait.Param)
    assert [path[-1] for path in plait.to_flat_state(plait.state(model, optimizer.wrt)).paths] == ["kernel"]
    with pytest.raises(FilterError, match=r"some layers of a stack"):
        plait.Optimizer(model, {"blocks[:2].**": None, ...: optax.sgd(0.1)}, wrt=plait.Param)


def test_equal_groups_are_equal_structure_and_another_order_is_not():
    def made(*keys):
        return plait.graphdef(plait.Optimizer(net(), {key: optax.adam(0.1) for key in keys}, wrt=plait.Param))

    assert made("**.bias", ...) == made("**.bias", ...)
    assert made("**.bias", "**.kernel", ...) != made("**.kernel", "**.bias", ...)


MASKS = {
    "function": lambda model: lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
    "pure state": lambda model: jax.tree.map(lambda p: p.ndim > 1, plait.pure(plait.state(model, plait.Param))),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_the_forms_that_the_error_names_work(name):
    model = net()
    optimizer = plait.Optimizer(model, optax.adamw(0.1, mask=MASKS[name](model)), wrt=plait.Param)
    optimizer.update(model, plait.grad(loss)(model))
