"""Differences between graphdefs, by path."""

import jax.numpy as jnp
import pytest

import plait
from plait import Param


class Drop(plait.Module):
    def __init__(self):
        self.rate = 0.1


class Net(plait.Module):
    def __init__(self):
        self.layers = [Drop(), Drop()]
        self.weight = Param(jnp.ones(2))
        self.tied = self.weight


def replace_layer(net):
    net.layers[0] = plait.Dict()


CASES = {
    "static value": (lambda n: setattr(n.layers[1], "rate", 0.2), "net.layers[1].rate: 0.1 -> 0.2"),
    "type of a number": (lambda n: setattr(n.layers[1], "rate", 1), "net.layers[1].rate: 0.1 -> 1"),
    "new variable": (lambda n: setattr(n.layers[0], "key", Param(1.0)), "new variable net.layers[0].key"),
    "new module": (lambda n: setattr(n, "head", Drop()), "new Drop net.head"),
    "new attribute": (lambda n: setattr(n, "size", 3), "new attribute net.size = 3"),
    "gone": (lambda n: delattr(n.layers[0], "rate"), "attribute net.layers[0].rate was removed (0.1)"),
    "other type": (replace_layer, "net.layers[0]: Drop -> Dict"),
    "untied": (
        lambda n: setattr(n, "weight", Param(jnp.ones(2))),
        "net.weight: the same object as tied -> variable (Param)",
    ),
    "metadata": (lambda n: n.weight.set_metadata(note="x"), "net.tied metadata 'note': nothing -> 'x'"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_one_line_with_its_path(case):
    change, line = CASES[case]
    net = Net()
    before = plait.graphdef(net)
    change(net)
    assert str(plait.diff(before, plait.graphdef(net), root="net")) == line


def test_equal_structures_have_no_difference():
    assert len(plait.diff(plait.graphdef(Net()), plait.graphdef(Net()))) == 0
    assert str(plait.diff(plait.graphdef(Net()), plait.graphdef(Net()))) == "no difference"
