"""Stacks are read and written as the lists that other libraries have. (rule ST13)"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import plait
from plait import convert
from plait.errors import ConversionError

from ..compare import assert_same
from ..nn.stacks.stacks import Net, blocks_of


def listed(seed: int) -> Net:
    return Net(plait.List(blocks_of(5, 2, seed)))


def stacked(seed: int) -> Net:
    return Net(plait.Stack(blocks_of(5, 2, seed)))


@pytest.mark.slow
def test_a_stack_is_written_as_its_list() -> None:
    ours, theirs = convert.to_torch(stacked(0)), convert.to_torch(listed(0))
    assert [*ours] == [*theirs]
    assert "blocks.3.linear.weight" in ours
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])


def test_it_is_read_back_into_a_stack() -> None:
    weights, model = convert.to_torch(listed(0)), stacked(1)
    done = convert.convert_checkpoint(weights, model, layout="torch", update=True)
    assert done.state["blocks"]["0:4:2"]["linear"]["kernel"].shape == (2, 4, 4)
    for name, array in convert.to_torch(model).items():
        np.testing.assert_array_equal(array, weights[name])


@pytest.mark.slow
def test_an_abstract_stack_gets_values_and_streams() -> None:
    model: Any = plait.eval_shape(lambda: stacked(0))
    convert.convert_checkpoint(convert.to_torch(listed(0)), model, layout="torch", update=True, rngs=plait.Rngs(0))
    assert_same(model.blocks[4].linear.kernel.get_value(), listed(0).blocks[4].linear.kernel.get_value())
    keys = jax.random.key_data(plait.state(model)["blocks"]["0:4:2"]["dropout"]["rngs"]["key"].get_value())
    assert len({*map(str, keys)}) == 2


def test_a_missing_layer_is_named() -> None:
    weights = convert.to_torch(listed(0))
    del weights["blocks.3.linear.weight"]
    with pytest.raises(ConversionError, match=r"blocks\[3\]"):
        convert.convert_checkpoint(weights, stacked(1), layout="torch")


def test_what_is_there_of_a_stack_is_written_without_strict() -> None:
    weights, model = convert.to_torch(listed(0)), stacked(1)
    del weights["blocks.3.linear.weight"]
    convert.convert_checkpoint(weights, model, layout="torch", update=True, strict=False)
    found = convert.to_torch(model)
    np.testing.assert_array_equal(found["blocks.1.linear.weight"], weights["blocks.1.linear.weight"])
    np.testing.assert_array_equal(
        found["blocks.3.linear.weight"], convert.to_torch(stacked(1))["blocks.3.linear.weight"]
    )
