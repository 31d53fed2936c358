"""Quantized weights are divided over a mesh as the weights they replace are (rule MO5)."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import plait
from plait.partitioning.axis_rules import logical_axis_rules
from plait.partitioning.recipes import rules_for

LLAMA = Path(__file__).parents[1] / "data" / "models" / "llama-sample"
TOKENS = jnp.asarray([[3, 1, 4, 1], [5, 9, 2, 6]] * 2)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
def test_mo5_codes_have_the_shardings_of_their_kernels(bits, kind):
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(kind,), devices=jax.devices()[:4])
    model, alone = (plait.models.load(LLAMA, dtype=jnp.float32, quantize=bits, mesh=each) for each in (mesh, None))
    specs = {
        path[2:4] + path[-1:]: value.sharding.spec
        for path, value in plait.select(model, "blocks.**", plait.Quantized).get().items()
    }
    assert specs["mlp", "up", "codes"] == P(None, "fsdp", None)
    assert specs["mlp", "down", "codes"] == P(None, None, "fsdp")
    assert specs["mlp", "down", "scale"] == P(None, None, "fsdp")
    assert specs["attention", "out", "codes"] == P(None, None, "fsdp")
    with jax.set_mesh(mesh), logical_axis_rules(rules_for(mesh)):
        found = plait.jit(lambda model, tokens: model(tokens))(model, TOKENS)
    np.testing.assert_allclose(np.asarray(found), alone(TOKENS), atol=1e-5)
