"""Checkpoints of lists in models with stacks, and the reverse. (rule ST11)"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from jax.sharding import NamedSharding, PartitionSpec

import plait
from plait import checkpoint
from plait.checkpoint.stacked_leaves import sources
from plait.errors import CheckpointError

from ..compare import assert_same
from ..nn.stacks.stacks import Net, blocks_of


def listed(depth: int, period: int, seed: int) -> Net:
    return Net(plait.List(blocks_of(depth, period, seed)))


def stacked(depth: int, period: int, seed: int) -> Net:
    return Net(plait.Stack(blocks_of(depth, period, seed), period=min(period, depth)))


def whole(model: Any) -> dict[str, Any]:
    return {"model": model, "optimizer": plait.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=plait.Param)}


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(depth=st.integers(1, 5), period=st.integers(1, 2), back=st.booleans(), number=st.integers(0, 10**9))
def test_a_checkpoint_opens_in_the_other_form(tmp_path: Path, depth: int, period: int, back: bool, number: int) -> None:
    """The model and its optimizer, keys and statistics among them, bit for bit."""
    forms = (stacked, listed) if back else (listed, stacked)
    saved, other = (form(depth, period, seed) for seed, form in enumerate(forms))
    path = checkpoint.save(tmp_path / str(number), whole(saved), overwrite=True)
    checkpoint.restore(path, whole(other))
    found, expected = (plait.to_flat_state(plait.state(plait.as_list(model))) for model in (other, saved))
    assert found.paths == expected.paths
    for one, another in zip(found.leaves, expected.leaves, strict=True):
        assert_same(one.get_raw_value(), another.get_raw_value())


@pytest.mark.slow
def test_the_names_say_which_layers_an_array_holds(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "saved", stacked(5, 2, 0))
    names = [name for name in checkpoint.read_manifest(path).leaves if name.endswith("linear.kernel")]
    assert names == [f"blocks[{key}].linear.kernel" for key in ("0:4:2", "1:4:2", "4:5")]
    kernel = checkpoint.load_state(path)["blocks"]["0:4:2"]["linear"]["kernel"]
    assert kernel.shape == (2, 4, 4)


@pytest.mark.slow
def test_another_period_is_no_hindrance(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "saved", stacked(5, 1, 0))
    other = Net(plait.Stack(blocks_of(5, seed=1), period=2))
    checkpoint.restore(path, other)
    np.testing.assert_array_equal(other.blocks[3].linear.kernel[...], blocks_of(5)[3].linear.kernel[...])


@pytest.mark.parametrize("depth", [3, 5], ids=["fewer", "more"])
def test_another_depth_is_refused_by_the_layers_that_differ(tmp_path: Path, depth: int) -> None:
    path = checkpoint.save(tmp_path / "saved", stacked(4, 1, 0))
    model = listed(depth, 1, 1)
    before = plait.clone(model)
    with pytest.raises(CheckpointError, match=rf"blocks\[{min(depth, 4)}\].linear.kernel"):
        checkpoint.restore(path, model)
    assert plait.state(model) == plait.state(before)


@pytest.mark.slow
def test_layers_are_laid_out_as_the_stack_is(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2,), ("model",), devices=jax.devices()[:2])
    path = checkpoint.save(tmp_path / "saved", listed(3, 1, 0))
    other = stacked(3, 1, 1)
    kernel = plait.variables(other)["blocks"]["0:3"]["linear"]["kernel"]
    sharding = NamedSharding(mesh, PartitionSpec(None, None, "model"))
    kernel.set_raw_value(jax.device_put(kernel.get_raw_value(), sharding))
    checkpoint.restore(path, other)
    assert kernel.get_raw_value().sharding.is_equivalent_to(sharding, 3)
    np.testing.assert_array_equal(kernel[1], blocks_of(3)[1].linear.kernel[...])


@pytest.mark.slow
def test_layers_that_are_stored_in_different_ways_are_put_together(tmp_path: Path) -> None:
    """Some of them stacked, one alone; each is read as the stack is laid out."""
    layers = np.arange(24.0, dtype=np.float32).reshape(3, 8)
    saved = {"0:2": plait.Param(jnp.array(layers[:2])), 2: plait.Param(jnp.array(layers[2]))}
    path = checkpoint.save(tmp_path / "saved", {"blocks": saved})
    sharding = NamedSharding(jax.make_mesh((8,), ("model",)), PartitionSpec(None, "model"))
    stack = plait.Param(jax.device_put(jnp.zeros((3, 8)), sharding))
    checkpoint.restore(path, {"blocks": {"0:3": stack}})
    assert stack.get_raw_value().sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_array_equal(stack[...], layers)


def test_layers_of_a_stack_on_the_host_stay_on_the_host(tmp_path: Path) -> None:
    saved = {number: plait.Variable(np.full(3, number)) for number in range(2)}
    path = checkpoint.save(tmp_path / "saved", {"blocks": saved})
    stack = plait.Variable(np.full((2, 3), 7))
    checkpoint.restore(path, {"blocks": {"0:2": stack}})
    assert type(stack.get_raw_value()) is np.ndarray
    assert stack.get_raw_value().tolist() == [[0, 0, 0], [1, 1, 1]]


def test_python_numbers_are_no_layers_of_an_array(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "saved", {"blocks": {0: plait.Variable(1.0), 1: plait.Variable(2.0)}})
    with pytest.raises(CheckpointError, match=r"blocks\[0:2\]: a Python float"):
        checkpoint.restore(path, {"blocks": {"0:2": plait.Variable(jnp.zeros(2))}})


class Kind(enum.Enum):
    ONE = 1

    def __lt__(self, other: Any) -> bool:
        return self.value < other.value


@pytest.mark.slow
def test_keys_that_are_no_literals_stand_beside_stacks(tmp_path: Path) -> None:
    """The names of such leaves have no layers; they are found as they are stored, and told as they are missing."""
    saved, other = ({Kind.ONE: plait.Param(jnp.full(2, number))} for number in (3.0, 0.0))
    path = checkpoint.save(tmp_path / "saved", {"parts": saved, "net": listed(3, 1, 0)})
    into = {"parts": other, "net": stacked(3, 1, 1)}
    checkpoint.restore(path, into)
    np.testing.assert_array_equal(other[Kind.ONE][...], np.full(2, 3.0))
    np.testing.assert_array_equal(into["net"].blocks[2].linear.kernel[...], blocks_of(3)[2].linear.kernel[...])
    path = checkpoint.save(tmp_path / "without", {"net": listed(3, 1, 0)})
    with pytest.raises(CheckpointError, match=r"(?s)1 of \d+ leaves differ.*Kind\.ONE"):
        checkpoint.restore(path, into)


def test_a_damaged_value_is_named(tmp_path: Path) -> None:
    model = listed(3, 1, 0)
    model.blocks[1].linear.bias.set_raw_value(jnp.zeros(7))
    path = checkpoint.save(tmp_path / "saved", model)
    with pytest.raises(CheckpointError, match=r"blocks\[0:3\].linear.bias"):
        checkpoint.restore(path, stacked(3, 1, 1))


@pytest.mark.slow
def test_the_layers_that_all_names_of_a_file_claim_are_bounded():
    """Arrays without elements may claim any number of layers."""
    stored = {f"a[0:262144].k{number}": {"kind": "array", "shape": [1 << 18, 0]} for number in range(1_000)}
    stored |= {f"blocks[{number}].kernel": {"kind": "array", "shape": [2]} for number in range(2)}
    assert [*sources(["blocks[0:2].kernel"], stored)] == ["blocks[0:2].kernel"]
