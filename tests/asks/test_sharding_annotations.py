"""Ask 15: one annotated model runs with no mesh, on one device, on eight, on two meshes, with both kinds of axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformer
from jax.sharding import AxisType, Mesh

import plait
from plait.errors import ArgumentError

CONFIG = transformer.Config(blocks=1)
TOKENS = np.arange(16 * 17).reshape(16, 17) % 64
PLACES = {
    "one device": ({"fsdp": 1, "model": 1}, AxisType.Auto),
    "one device, explicit": ({"fsdp": 1, "model": 1}, AxisType.Explicit),
    "eight": ({"fsdp": 4, "model": 2}, AxisType.Auto),
    "eight, explicit": ({"fsdp": 4, "model": 2}, AxisType.Explicit),
    "all three axes, explicit": ({"data": 2, "fsdp": 2, "model": 2}, AxisType.Explicit),
}


def loss():
    model = transformer.Transformer(CONFIG, plait.Rngs(0))
    return float(plait.jit(transformer.loss_of)(model, jnp.asarray(TOKENS)))


@pytest.fixture(scope="module")
def without_a_mesh():
    return loss()


@pytest.mark.parametrize(
    "place", [pytest.param(name, marks=[] if name == "eight" else [pytest.mark.slow]) for name in PLACES]
)
def test_the_same_model_runs_everywhere(place, without_a_mesh):
    with transformer.on_mesh(*PLACES[place]):
        assert loss() == pytest.approx(without_a_mesh, abs=1e-5)


@pytest.mark.slow
def test_two_meshes_one_after_the_other_and_one_inside_the_other(without_a_mesh):
    devices = np.array(jax.devices())
    kinds = (AxisType.Auto,)
    first, second = Mesh(devices[:4], ("fsdp",), axis_types=kinds), Mesh(devices[4:], ("model",), axis_types=kinds)
    losses = []
    for mesh in (first, second, first):
        with jax.set_mesh(mesh), plait.logical_axis_rules(plait.partitioning.rules_for(mesh)):
            losses.append(loss())
            with jax.set_mesh(second), plait.logical_axis_rules(plait.partitioning.rules_for(second)):
                losses.append(loss())
    assert losses == pytest.approx([without_a_mesh] * 6, abs=1e-5)


def test_a_variable_says_its_own_mesh():
    devices = np.array(jax.devices())
    own = Mesh(devices[4:], ("model",), axis_types=(AxisType.Auto,))
    with transformer.on_mesh({"fsdp": 8}):
        v = plait.Param(jnp.ones((8, 4)), out_sharding=("model", None), mesh=own)
    assert v.get_raw_value().sharding.device_set == set(devices[4:])


def test_an_unknown_name_is_told_with_the_rules_in_force():
    with (
        transformer.on_mesh({"fsdp": 8}),
        pytest.raises(ArgumentError, match=r"(?s)'experts'.*\('embed', 'fsdp'\).*'fsdp'"),
    ):
        plait.Param(jnp.ones((8, 4)), out_sharding=("experts", "embed"))
