"""What layers refuse, and the advice that they give."""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentTypeError, ShapeError
from plait.nn.checks import remade

RNGS = plait.Rngs(0)
LAYERS = {
    "Linear": lambda rngs: plait.Linear(4, 4, rngs=rngs),
    "LinearGeneral": lambda rngs: plait.LinearGeneral(4, 4, rngs=rngs),
    "Einsum": lambda rngs: plait.Einsum("ab,bc->ac", (4, 4), (4,), rngs=rngs),
    "Conv": lambda rngs: plait.Conv(4, 4, kernel_size=(1,), rngs=rngs),
    "ConvTranspose": lambda rngs: plait.ConvTranspose(4, 4, kernel_size=(1,), rngs=rngs),
    "BatchNorm": lambda rngs: plait.BatchNorm(4, rngs=rngs),
    "LayerNorm": lambda rngs: plait.LayerNorm(4, rngs=rngs),
    "RMSNorm": lambda rngs: plait.RMSNorm(4, rngs=rngs),
    "GroupNorm": lambda rngs: plait.GroupNorm(4, num_groups=2, rngs=rngs),
    "InstanceNorm": lambda rngs: plait.InstanceNorm(4, rngs=rngs),
}
WRONG_RNGS = {"an int": 7, "None": None, "a PRNGKeyArray": jax.random.key(0), "a dict": {"params": 0}}


@pytest.mark.parametrize("words", WRONG_RNGS)
@pytest.mark.parametrize("name", [*LAYERS, "Embed"])
def test_what_is_no_source_of_keys_is_named(name, words):
    make = LAYERS.get(name, lambda rngs: plait.Embed(4, 4, rngs=rngs))
    expected = rf"(?s)rngs of an? {name} .*at +an? {name}\s+found +{words}\s.*rngs=plait\.Rngs\("
    with pytest.raises(ArgumentTypeError, match=expected):
        make(WRONG_RNGS[words])


def test_whatever_has_streams_will_do():
    class Own:
        def params(self):
            return jax.random.key(0)

    assert plait.Linear(2, 3, rngs=Own()).kernel.shape == (2, 3)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("wrap", [list, tuple])
def test_a_list_as_the_input_is_refused_with_the_path(name, wrap):
    model = plait.Dict(layers=[LAYERS[name](RNGS)])
    x = wrap([[1.0, 2.0, 3.0, 4.0]] * 2)
    with pytest.raises(ArgumentTypeError, match=rf"at +model\.layers\[0\] \(an? {name}\)\s+found +a {wrap.__name__}"):
        model.layers[0](x)


@pytest.mark.parametrize("name", ["Linear", "Conv", "ConvTranspose"])
def test_the_layer_that_the_advice_makes_takes_the_input(name):
    x = jnp.ones((2, 3, 6))
    with pytest.raises(ShapeError) as error:
        LAYERS[name](RNGS)(x)
    advice = error.value.parts["do"].rpartition(": ")[2]
    assert advice.startswith(f"plait.{name}(6, 4")
    assert eval(advice, {"plait": plait, "rngs": RNGS})(x).shape == (2, 3, 4)


def test_the_advice_names_a_users_own_layer_as_the_user_does():
    class Twice(plait.Linear):
        pass

    assert remade(Twice(2, 3, rngs=RNGS), in_features=5) == "Twice(5, 3, rngs=rngs)"
