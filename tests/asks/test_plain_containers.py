"""Ask 4: plain lists, tuples and dicts of modules and arrays are what the wrapped spellings of Flax 0.12 are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import AttributeStatusError

pytestmark = pytest.mark.usefixtures("users_promotion")


def layer(seed):
    return plait.Linear(2, 2, rngs=plait.Rngs(seed))


class Model(plait.Module):
    """One model in two spellings; ``spell`` wraps a plain container, or leaves it."""

    def __init__(self, spell):
        self.layers = spell.list([layer(0), layer(1)])
        self.heads = spell.dict({"a": layer(2), "b": layer(3)})
        self.pair = spell.data((layer(4), plait.Param(jnp.ones(2))))
        self.tables = spell.data([jnp.zeros(2), np.ones(3, np.float32)])
        self.nested = spell.dict({"deep": spell.list([layer(5)])})
        self.empty = spell.list([])
        self.sizes = spell.static((2, 3))
        self.mixed = spell.data([1, layer(6), "x"])

    def __call__(self, x):
        for each in (
            *self.layers,
            self.heads["a"],
            self.heads["b"],
            self.pair[0],
            self.nested["deep"][0],
            self.mixed[1],
        ):
            x = each(x)
        return x * self.pair[1] + self.tables[0]


class Plain:
    """As written before Flax 0.12."""

    list = dict = data = static = staticmethod(lambda value: value)


class Wrapped:
    """As Flax 0.12 asks for."""

    list, data, static = plait.List, plait.data, plait.static
    dict = plait.Dict


def flat(model):
    return plait.to_flat_state(plait.state(model))


def assert_equal_states(one, other):
    assert [path for path, _ in flat(one)] == [path for path, _ in flat(other)]
    for (path, first), (_, second) in zip(flat(one), flat(other), strict=True):
        assert type(first) is type(second), path
        np.testing.assert_array_equal(first, second)


def test_both_spellings_have_the_same_paths_and_values():
    """G60, G65."""
    assert_equal_states(Model(Plain), Model(Wrapped))
    assert ("layers", 1, "kernel") in [path for path, _ in flat(Model(Plain))]


@pytest.mark.parametrize(("source", "target"), [(Plain, Wrapped), (Wrapped, Plain)])
def test_the_state_of_one_spelling_loads_into_the_other(source, target):
    trained = Model(source)
    trained.layers[1].kernel.value = jnp.full((2, 2), 7.0)
    other = Model(target)
    plait.update(other, plait.state(trained))
    assert_equal_states(trained, other)


def test_both_spellings_compute_and_train_alike():
    x = jnp.ones((1, 2))
    grads = [plait.grad(lambda model: model(x).sum())(Model(spell)) for spell in (Plain, Wrapped)]
    for one, other in zip(*(jax.tree.leaves(plait.to_pure_dict(each)) for each in grads), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("spell", [Plain, Wrapped])
def test_layers_are_added_to_an_empty_list_later(spell):
    model = Model(spell)
    model.empty.append(layer(9))
    assert flat(model)[0][0] == ("empty", 0, "bias")


AMBIGUOUS = {
    "data under a static mark": (lambda: plait.static([layer(0)]), r"Net\.part\[0\]"),
    "deeper": (lambda: plait.static({"a": [1, plait.Param(1.0)]}), r"Net\.part\.a\[1\]"),
    "a data mark inside": (lambda: [plait.data(layer(0))], r"Net\.part"),
    "a static mark inside": (lambda: {"a": (plait.static(1),)}, r"Net\.part"),
}


class Net(plait.Module):
    pass


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_attribute_raises_at_assignment_with_its_path(name):
    """G61: and the attribute is not there afterwards."""
    value, path = AMBIGUOUS[name]
    net = Net()
    with pytest.raises(AttributeStatusError, match=rf"at +{path}\s"):
        net.part = value()
    assert not hasattr(net, "part")


def test_data_in_the_place_of_a_static_attribute_raises_at_assignment():
    """G61: a mark that was given stays."""
    net = Net()
    net.part = plait.static((1, 2))
    with pytest.raises(AttributeStatusError, match=r"at +Net\.part\[1\]\s"):
        net.part = (1, jnp.ones(2))
    assert net.part == (1, 2)


@pytest.mark.oracle
def test_flax_has_the_same_paths():
    flax_nnx = pytest.importorskip("flax.nnx")

    class Twin(flax_nnx.Module):
        def __init__(self):
            make = lambda seed: flax_nnx.Linear(2, 2, rngs=flax_nnx.Rngs(seed))
            self.layers = flax_nnx.List([make(0), make(1)])
            self.heads = flax_nnx.Dict({"a": make(2), "b": make(3)})
            self.pair = flax_nnx.data((make(4), flax_nnx.Param(jnp.ones(2))))
            self.tables = flax_nnx.data([jnp.zeros(2), np.ones(3, np.float32)])
            self.nested = flax_nnx.Dict({"deep": flax_nnx.List([make(5)])})
            self.empty = flax_nnx.List([])
            self.sizes = flax_nnx.static((2, 3))
            self.mixed = flax_nnx.data([1, make(6), "x"])

    theirs = [path for path, _ in flax_nnx.to_flat_state(flax_nnx.state(Twin()))]
    assert [path for path, _ in flat(Model(Wrapped))] == theirs
