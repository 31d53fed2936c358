"""A stack trains as the list of its layers, whatever the transformation looks at."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.training.layerwise_updates import way_for
from tests.nn.twins import some_input
from tests.sampling import slow_but

pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax relies on implicit promotion


class Inner(plait.Module):
    def __init__(self, rngs):
        self.linear = plait.Linear(4, 4, bias_init=plait.initializers.normal(), rngs=rngs)
        self.norm = plait.LayerNorm(4, rngs=rngs)

    def __call__(self, x):
        return x + plait.tanh(self.norm(self.linear(x)))


class Net(plait.Module):
    def __init__(self, stacked, depth=3):
        rngs = plait.Rngs(0)
        blocks = [Inner(rngs) for _ in range(depth)]
        self.blocks = plait.Stack(blocks) if stacked else plait.List(blocks)
        self.head = plait.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


clip = optax.clip_by_global_norm(0.1)
RATES = jnp.asarray([-0.1])
MAPPED = {
    "sgd": optax.sgd(0.1),
    "adamw by rank": optax.adamw(1e-1, weight_decay=1.0, mask=is_matrix),
    "muon": optax.contrib.muon(1e-1),
    "lamb": optax.lamb(1e-1),
    "lars": optax.lars(1e-1),
    "adafactor": optax.adafactor(1e-1, min_dim_size_to_factor=2),
    "adaptive_grad_clip": optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
    "clip_by_block_rms": optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.1)),
    "novograd": optax.novograd(1e-1),
    "fromage": optax.fromage(1e-1),
    "sm3": optax.sm3(1e-1),
    "centralize": optax.chain(optax.centralize(), optax.sgd(0.1)),
    "trust ratio": optax.chain(optax.scale_by_trust_ratio(), optax.sgd(0.1)),
    "adamax": optax.adamax(1e-1),
    "lion": optax.lion(1e-1),
    "an array of its own": optax.stateless(lambda grads, _: jax.tree.map(lambda g: g * RATES, grads)),
    "every second step": optax.MultiSteps(optax.lamb(1e-1), 2),
    "rate in the state": optax.inject_hyperparams(optax.lamb)(0.1),
    "partition": optax.partition(
        {"matrix": optax.contrib.muon(1e-1), "other": optax.lamb(1e-1)},
        lambda params: jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "other", params),
    ),
}
WHOLE = {
    "global norm": optax.chain(clip, optax.adamw(1e-1)),
    "normalize by update norm": optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1)),
    "apply if finite": optax.apply_if_finite(optax.adam(1e-1), 3),
    "prodigy": optax.contrib.prodigy(0.1),
    "dadapt": optax.contrib.dadapt_adamw(0.1),
}
LISTS = {
    "norm, then muon": [clip, optax.contrib.muon(1e-1)],
    "norm, then lamb": [clip, optax.lamb(1e-1)],
    "norm, then groups": [clip, {"**.norm.**": optax.lamb(0.1), ...: optax.adafactor(0.1, min_dim_size_to_factor=2)}],
}
QUICK = ("sgd", "adamw by rank", "adafactor", "rate in the state", "global norm", "norm, then groups")


def trained(stacked, tx, transform=plait.jit, steps=3, **options):
    model, x = Net(stacked), some_input(5, 4)
    optimizer = plait.Optimizer(model, tx, wrt=plait.Param, **options)

    @transform
    def step(model, optimizer):
        optimizer.update(model, plait.grad(lambda model: (model(x) ** 2).mean())(model))

    for _ in range(steps):
        step(model, optimizer)
    return plait.as_list(model) if stacked else model


def assert_same(ours, theirs):
    for path, value in plait.to_flat_state(plait.state(theirs)):
        found = dict(plait.to_flat_state(plait.state(ours)))[path]
        np.testing.assert_allclose(found[...], value[...], rtol=2e-4, atol=2e-5, err_msg=str(path))


@pytest.mark.sampled
@pytest.mark.parametrize("name", slow_but(QUICK, {**MAPPED, **WHOLE, **LISTS}))
def test_a_stack_trains_as_a_list(name):
    """O10."""
    tx = {**MAPPED, **WHOLE, **LISTS}[name]
    assert_same(trained(True, tx), trained(False, tx))


@pytest.mark.slow
def test_it_also_does_outside_of_jit():
    tx = MAPPED["muon"]
    assert_same(trained(True, tx, lambda f: f), trained(False, tx))


def ways(tx, model):
    return getattr(plait.Optimizer(model, tx, wrt=plait.Param), "ways", ("whole",))


@pytest.mark.sampled
@pytest.mark.parametrize("name", {**MAPPED, **WHOLE})
def test_what_looks_at_one_parameter_is_mapped_and_what_combines_them_is_not(name):
    assert ways({**MAPPED, **WHOLE}[name], Net(True)) == (("mapped",) if name in MAPPED else ("whole",))


def test_the_parts_of_a_list_are_treated_one_by_one():
    assert ways(LISTS["norm, then groups"], Net(True)) == ("whole", "mapped", "mapped")


def test_noise_of_one_key_is_not_repeated_in_each_layer():
    model = Net(True)
    optimizer = plait.Optimizer(model, optax.noisy_sgd(0.1, key=jax.random.key(0)), wrt=plait.Param)
    before = plait.clone(model)
    optimizer.update(model, jax.tree.map(jnp.zeros_like, plait.state(model, plait.Param)))
    moved = [model.blocks[i].linear.kernel[...] - before.blocks[i].linear.kernel[...] for i in range(2)]
    assert not np.allclose(*moved)


def test_the_state_is_stacked_like_the_model():
    """ST9: Adafactor's factors of each layer, along the axis of layers."""
    optimizer = plait.Optimizer(Net(True), MAPPED["adafactor"], wrt=plait.Param)
    shapes = {leaf.shape for leaf in jax.tree.leaves(optimizer.opt_state)}
    assert (3, 4) in shapes
    assert (3, 4, 4) not in shapes  # second moments of a matrix are factored


@pytest.mark.slow
def test_stacks_in_stacks_are_lists_in_lists():
    class Outer(plait.Module):
        def __init__(self, stacked, rngs):
            blocks = [Inner(rngs) for _ in range(2)]
            self.inner = plait.Stack(blocks) if stacked else plait.List(blocks)

        def __call__(self, x):
            for block in self.inner:
                x = block(x)
            return x

    def deep(stacked):
        rngs, net = plait.Rngs(0), Net(stacked)
        blocks = [Outer(stacked, rngs) for _ in range(3)]
        net.blocks = plait.Stack(blocks) if stacked else plait.List(blocks)
        return net

    found = []
    for stacked in (True, False):
        model = deep(stacked)
        optimizer = plait.Optimizer(model, MAPPED["muon"], wrt=plait.Param)
        optimizer.update(model, plait.grad(lambda model: (model(some_input(5, 4)) ** 2).mean())(model))
        found.append(plait.as_list(model) if stacked else model)
    assert_same(*found)


def test_a_stack_as_one_parameter_is_an_option():
    """As in checkpoints of earlier versions."""
    model = Net(True)
    whole = plait.Optimizer(model, MAPPED["adafactor"], wrt=plait.Param, per_layer=False)
    assert "ways" not in vars(whole)
    expected = optax.adafactor(1e-1, min_dim_size_to_factor=2).init(plait.pure(plait.state(model, plait.Param)))
    assert [x.shape for x in jax.tree.leaves(whole.opt_state)] == [x.shape for x in jax.tree.leaves(expected)]


def test_a_line_search_gets_the_parameters_of_the_model():
    values = {path: leaf.get_raw_value() for path, leaf in plait.to_flat_state(plait.state(Net(True), plait.Param))}
    assert way_for(optax.lbfgs(), values) == "whole"
