"""Modules from shapes and stored values."""

import jax
import jax.numpy as jnp

import plait
from plait.flax.bridge.wrappers.stored_modules import abstract_module, fill
from plait.util.sentinels import NOTHING


class Net(plait.Module):
    def __init__(self, rngs):
        self.kernel = plait.Param(jax.random.normal(rngs.params(), (2, 3)))
        self.drop = plait.Dropout(0.5, rngs=rngs)
        self.constant = jnp.arange(3)
        self.name = "net"


KEYS = {"params": 0, "default": 1}


def test_what_nothing_gives_is_what_the_constructor_makes():
    """B30: random state and plain arrays, as an eager construction has them."""
    module = abstract_module(Net, KEYS)
    assert isinstance(module.kernel.get_raw_value(), jax.ShapeDtypeStruct)
    fill(module, Net, KEYS, lambda path, _: jnp.zeros((2, 3)) if path == ("kernel",) else NOTHING)
    expected = Net(plait.Rngs(KEYS))
    assert (module.kernel[...] == 0).all()
    assert (module.drop.rngs() == expected.drop.rngs()).all()
    assert module.constant.tolist() == [0, 1, 2]
    assert module.name == "net"


def test_programs_are_compiled_once_for_an_identity():
    traced = []

    def construct(rngs):
        traced.append(1)
        return Net(rngs)

    def filled(identity):
        module = abstract_module(construct, KEYS)
        fill(module, construct, KEYS, lambda *_: NOTHING, identity)
        return module

    first = filled("filling-test")
    assert len(traced) == 2
    second = filled("filling-test")
    assert len(traced) == 3
    assert (first.kernel[...] == second.kernel[...]).all()
    filled(["no hash"])
    assert len(traced) == 5
