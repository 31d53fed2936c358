"""Keys across the border."""

import flax.linen as nn
import jax
import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError
from plait.flax.bridge.wrappers.rngs import linen_keys


def data(key):
    return jax.random.key_data(key).tolist()


def test_streams_become_keys():
    """B22: one draw of each; default is renamed where there is no params."""
    rngs = plait.Rngs(0, dropout=1)
    twin = plait.Rngs(0, dropout=1)
    keys = linen_keys(rngs)
    assert sorted(keys) == ["dropout", "params"]
    assert data(keys["params"]) == data(twin.default())
    assert data(keys["dropout"]) == data(twin.dropout())
    assert sorted(linen_keys(plait.Rngs(0, params=1))) == ["default", "params"]


@pytest.mark.parametrize("source", [0, jax.random.key(0), jax.random.PRNGKey(0)])
def test_a_key_becomes_params(source):
    """B22."""
    assert {name: data(key) for name, key in linen_keys(source).items()} == {"params": data(jax.random.key(0))}


def test_keys_by_name_are_used_as_they_are():
    keys = linen_keys({"dropout": 3, "default": jax.random.key(1)})
    assert {name: data(key) for name, key in keys.items()} == {
        "dropout": data(jax.random.key(3)),
        "params": data(jax.random.key(1)),
    }
    assert linen_keys(None) == {}
    with pytest.raises(ArgumentError, match="seed"):
        linen_keys("seed")


def test_a_linen_modules_collections_become_seeds():
    """B28: with the module that runs, which anyone inside can ask for."""
    seen = []

    class Model(nn.Module):
        @nn.compact
        def __call__(self):
            seen.append(bridge.current_linen_module() is self)
            seen.append(sorted(bridge.wrappers.linen_rngs_dict(self)))
            seen.append(bridge.wrappers.linen_rngs_dict(self, add_default=True)["default"])

    Model().init(jax.random.key(0))
    Model().apply({}, rngs={"dropout": jax.random.key(0)})
    Model().apply({}, rngs={"default": jax.random.key(0)})
    assert seen[:2] == [True, ["params"]]
    assert jax.dtypes.issubdtype(seen[2].dtype, jax.dtypes.prng_key)
    assert seen[3:6] == [True, ["dropout"], 0]
    assert seen[7] == ["default"]
    assert bridge.current_linen_module() is None
