"""Every operation that visits a model does to stacks what it does to lists. (rules ST2, ST10)"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait


class Inner(plait.Module):
    def __init__(self, *, rngs):
        self.up = plait.Linear(4, 4, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.up(x))


class Block(plait.Module):
    """A stack in a stack, and parts before and after it."""

    def __init__(self, stacked, wide, *, rngs):
        self.first = plait.Linear(4, 4, rngs=rngs)
        self.inner = blocks(stacked, [Inner(rngs=rngs) for _ in range(2)])
        self.norm = plait.BatchNorm(4, rngs=rngs)
        self.wide = plait.Linear(4, 4, rngs=rngs) if wide else None

    def __call__(self, x):
        x = self.first(x)
        for each in self.inner:
            x = each(x)
        return self.norm(x)


class Net(plait.Module):
    def __init__(self, stacked, seed=0):
        rngs = plait.Rngs(seed)
        self.a = plait.Linear(4, 4, rngs=rngs)
        self.blocks = blocks(stacked, [Block(stacked, number % 2 == 1, rngs=rngs) for number in range(5)])
        self.z = plait.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        x = self.a(x)
        for block in self.blocks:
            x = block(x)
        return self.z(x)


def blocks(stacked, made):
    return plait.Stack(made) if stacked else plait.List(made)


def linears(model):
    return plait.select(model, plait.Linear)


def is_stacked(model):
    return isinstance(model.blocks, plait.Stack)


def train(model):
    optimizer = plait.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=plait.Param)
    ema = plait.EMA(model, 0.9)
    optimizer.update(model, plait.grad(lambda model: (model(jnp.ones((3, 4))) ** 2).sum())(model))
    ema.update(model)


def drawn(rngs, path, value):
    return jax.random.normal(rngs.params(), value.shape)


def a_linear(rngs, path, layer):
    return plait.Linear(4, 4, rngs=rngs)


def wrapped(wrapper, rngs, path, layer):
    return wrapper(layer, rngs=rngs)


def of_a_path(path, key, shape):
    return jax.random.fold_in(key, len(str(path)))


# Each takes a model and a source of keys.
OPERATIONS = {
    "replace": lambda model, rngs: linears(model).replace(functools.partial(a_linear, rngs)).get() and None,
    "map": lambda model, rngs: plait.select(model, plait.Param).map(functools.partial(drawn, rngs)) and None,
    "set": lambda model, rngs: plait.select(model, "**.kernel").set(0.5) and None,
    "reinitialize": lambda model, rngs: plait.select(model, "blocks").reinitialize(rngs) and None,
    "copy_from": lambda model, rngs: plait.select(model, "z").copy_from(Net(is_stacked(model), 1)) and None,
    "freeze": lambda model, rngs: plait.select(model, "blocks").freeze() and None,
    "WeightNorm": lambda model, rngs: (
        linears(model).replace(functools.partial(wrapped, plait.WeightNorm, rngs)) and None
    ),
    "SpectralNorm": lambda model, rngs: (
        linears(model).replace(functools.partial(wrapped, plait.SpectralNorm, rngs)) and None
    ),
    "add_lora": lambda model, rngs: plait.add_lora(linears(model), 2, rngs=rngs, dropout_rate=0.3) and None,
    "add_lora to some": lambda model, rngs: plait.add_lora(plait.select(model, ["**.up", "z"]), 2, rngs=rngs) and None,
    "quantize": lambda model, rngs: [each.path for each in plait.quantize(linears(model))],
    "reseed": lambda model, rngs: plait.reseed(model, default=5),
    "reseed with a policy": lambda model, rngs: plait.reseed(model, default=5, policy=of_a_path),
    "fork_rngs": lambda model, rngs: plait.fork_rngs(model) and None,
    "pop": lambda model, rngs: plait.pop(model, plait.BatchStat) and None,
    "train": lambda model, rngs: train(model),
}


def test_a_selection_visits_a_stack_layer_by_layer():
    """ST10."""
    seen = []
    model = plait.Dict(blocks=plait.Stack([plait.Dict(a=plait.Param(1.0), b=plait.Param(i / 1)) for i in range(2)]))
    plait.select(model, plait.Param).map(lambda path, value: seen.append(path) or value)
    assert seen == [("blocks", layer, name) for layer in range(2) for name in "ab"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_to_a_stack_what_it_does_to_a_list(name):
    """ST2, ST10: all values, drawn ones too, are those of the list; what is returned has the same order."""
    models = Net(False), Net(True)
    listed, stacked = (OPERATIONS[name](model, plait.Rngs(3)) for model in models)
    assert listed == stacked
    ours, theirs = plait.as_list(models[1]), models[0]
    assert plait.graphdef(ours) == plait.graphdef(theirs)
    for (path, value), (_, expected) in zip(
        *(plait.to_flat_state(plait.state(m)) for m in (ours, theirs)), strict=True
    ):
        values = [
            jax.random.key_data(each) if jnp.issubdtype(each.dtype, jax.dtypes.prng_key) else each
            for each in (value.get_value(), expected.get_value())
        ]
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-5, err_msg=str(path))


@pytest.mark.slow
def test_split_streams_under_vmap_draw_what_they_draw_in_a_list():
    """ST2: the axis of ``vmap`` comes before those of the layers."""
    axes = plait.StateAxes({plait.RngState: 0, ...: None})

    @plait.split_rngs(splits=2)
    @plait.vmap(in_axes=(axes, None))
    def forward(model, x):
        return model(x)

    listed, stacked = (
        forward(plait.view(Net(each), use_running_average=True), jnp.ones((3, 4))) for each in (False, True)
    )
    np.testing.assert_allclose(stacked, listed, rtol=1e-5, atol=1e-6)
