"""Methods that programs for older versions of Flax call."""

import jax.numpy as jnp
import pytest

import plait


def test_states_turn_into_pure_dicts_and_take_their_values():
    graphdef, state = plait.split(plait.Linear(3, 2, rngs=plait.Rngs(0)))
    with pytest.warns(DeprecationWarning, match=r"plait\.to_pure_dict\(state\)"):
        pure = state.to_pure_dict()
    assert pure["kernel"] is state["kernel"].get_raw_value()
    with pytest.warns(DeprecationWarning, match=r"plait\.replace_by_pure_dict\(state, pure\)"):
        state.replace_by_pure_dict({"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)})
    assert plait.merge(graphdef, state)(jnp.ones((1, 3))).tolist() == [[3.0, 3.0]]
    with pytest.warns(DeprecationWarning, match="to_pure_dict"):
        assert state.to_pure_dict(lambda leaf: leaf.shape)["bias"] == (2,)


@pytest.mark.parametrize("name", ["iter_modules", "iter_children"])
def test_a_module_lists_its_parts(name):
    model = plait.Sequential(plait.Linear(3, 2, rngs=plait.Rngs(0)))
    with pytest.warns(DeprecationWarning, match=rf"plait\.{name}\(module\)"):
        found = [*getattr(model, name)()]
    assert found == [*getattr(plait, name)(model)]
