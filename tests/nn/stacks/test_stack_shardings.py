"""The stacked axis has a name and a spec of its own; the recipes hold. (rule ST12)"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import partitioning


class Block(plait.Module):
    def __init__(self, rngs: Any) -> None:
        up, down = ({"out_sharding": names} for names in (("embed", "mlp"), ("mlp", "embed")))
        self.up = plait.Linear(4, 8, use_bias=False, kernel_metadata=up, rngs=rngs)
        self.down = plait.Linear(8, 4, use_bias=False, kernel_metadata=down, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.down(plait.relu(self.up(x)))


X = jnp.linspace(-1.0, 1.0, 8 * 4).reshape(8, 4)


def made(axis: str | None, by: str) -> Any:
    if by == "factory":
        return plait.Stack(Block, 4, rngs=plait.Rngs(0), axis=axis)
    rngs = plait.Rngs(0)
    return plait.Stack([Block(rngs) for _ in range(4)], axis=axis)


@pytest.mark.parametrize("by", ["factory", "list"])
@pytest.mark.parametrize("axis", ["layers", None])
def test_names_have_one_entry_more_in_the_stack_than_in_a_layer(axis: Any, by: str) -> None:
    stack = made(axis, by)
    kernel = plait.variables(stack)["0:4"]["up"]["kernel"]
    assert kernel.out_sharding == (axis, "embed", "mlp")
    assert stack[2].up.kernel.out_sharding == ("embed", "mlp")
    assert stack.to_list()[2].up.kernel.out_sharding == ("embed", "mlp")
    seen = []

    def step(block: Any, x: Any) -> Any:
        seen.append(block.up.kernel.out_sharding)
        return block(x), None

    stack.scan(step, X)
    assert set(seen) == {("embed", "mlp")}
    assert kernel.out_sharding == (axis, "embed", "mlp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "shape"),
    [("factory", {"fsdp": 2, "model": 2}), ("list", {"model": 2}), ("list", {"fsdp": 2})],
    ids=["both by factory", "tensor by list", "fsdp by list"],
)
def test_the_recipes_hold(shape: dict[str, int], by: str) -> None:
    expected = made("layers", by)(X)
    mesh = jax.make_mesh(
        tuple(shape.values()),
        tuple(shape),
        devices=jax.devices()[: int(np.prod([*shape.values()]))],
        axis_types=(jax.sharding.AxisType.Auto,) * len(shape),
    )
    with jax.set_mesh(mesh), plait.logical_axis_rules(partitioning.rules_for(mesh)):
        stack = made("layers", by)
        kernel = plait.variables(stack)["0:4"]["up"]["kernel"].get_raw_value()
        spec = (None, *("fsdp" if "fsdp" in shape else None, "model" if "model" in shape else None))
        assert kernel.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)), 3)
        found = plait.jit(lambda stack, x: stack(x))(stack, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_stacked_axis_itself_can_be_sharded() -> None:
    mesh = jax.make_mesh((2,), ("stage",), devices=jax.devices()[:2])
    rules = [("layers", "stage"), ("embed", None), ("mlp", None)]
    with jax.set_mesh(mesh), plait.logical_axis_rules(rules):
        stack = made("layers", "list")
        kernel = plait.variables(stack)["0:4"]["up"]["kernel"].get_raw_value()
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 4, 8)
