"""What layers refuse, and the advice that they give."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import plait
from plait.errors import ArgumentError, ArgumentTypeError, ShapeError
from tests.nn.twins import flax_nnx, users_promotion
from tests.sampling import slow_but

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
    expected = rf"(?s){name} cannot draw keys .*at +an? {name}\s+found +{words}\s.*rngs=plait\.Rngs\("
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


@pytest.mark.parametrize(("in_features", "shape"), [(3, (4, 3, 8, 8)), (3, (3, 8, 8)), (1, (4, 8, 8))])
def test_images_without_their_channels_last_get_the_axis_moved_or_made(in_features, shape):
    layer, x = plait.Conv(in_features, 2, (3, 3), rngs=RNGS), jnp.ones(shape)
    with pytest.raises(ShapeError) as error:
        layer(x)
    advice = re.search(r"(jnp\.moveaxis\(x, -3, -1\)|x\[\.\.\., None\])", str(error.value))
    assert advice, error.value
    assert layer(eval(advice[0], {"jnp": jnp, "x": x})).shape[-1] == 2


@pytest.mark.parametrize("name", ["Linear", "Conv", "ConvTranspose"])
def test_the_layer_that_the_advice_makes_takes_the_input(name):
    x = jnp.ones((2, 3, 6))
    with pytest.raises(ShapeError) as error:
        LAYERS[name](RNGS)(x)
    advice = error.value.parts["do"].rpartition(": ")[2]
    assert advice.startswith(f"plait.{name}(6, 4")
    assert eval(advice, {"plait": plait, "rngs": RNGS})(x).shape == (2, 3, 4)


# What a layer is made with, the weights that a part of it has, and an input that fits that part.
PARTS = {
    "Linear": (lambda n: n.Linear(8, 3, rngs=n.Rngs(0)), {"kernel": (2, 3)}, (5, 2)),
    "LinearGeneral": (lambda n: n.LinearGeneral(8, 3, rngs=n.Rngs(0)), {"kernel": (2, 3)}, (5, 2)),
    "Einsum": (lambda n: n.Einsum("...a,ab->...b", (8, 3), rngs=n.Rngs(0)), {"kernel": (2, 3)}, (5, 2)),
    "Conv": (lambda n: n.Conv(8, 3, (3,), rngs=n.Rngs(0)), {"kernel": (3, 2, 3)}, (1, 5, 2)),
    "Conv in groups": (
        lambda n: n.Conv(8, 6, (3,), feature_group_count=2, use_bias=False, rngs=n.Rngs(0)),
        {"kernel": (3, 2, 6)}, (1, 5, 4),
    ),
    "ConvTranspose": (lambda n: n.ConvTranspose(8, 3, (3,), rngs=n.Rngs(0)), {"kernel": (3, 2, 3)}, (1, 5, 2)),
    "ConvTranspose flipped": (
        lambda n: n.ConvTranspose(8, 3, (3,), transpose_kernel=True, rngs=n.Rngs(0)), {"kernel": (3, 3, 2)}, (1, 5, 2),
    ),
    "LayerNorm": (lambda n: n.LayerNorm(8, rngs=n.Rngs(0)), {"scale": (2,), "bias": (2,)}, (5, 2)),
    "RMSNorm": (lambda n: n.RMSNorm(8, rngs=n.Rngs(0)), {"scale": (2,)}, (5, 2)),
    "InstanceNorm": (lambda n: n.InstanceNorm(8, rngs=n.Rngs(0)), {"scale": (2,), "bias": (2,)}, (3, 5, 2)),
    "BatchNorm": (
        lambda n: n.BatchNorm(8, rngs=n.Rngs(0)),
        {"scale": (2,), "bias": (2,), "mean": (2,), "var": (2,)}, (5, 2),
    ),
    "LoRA": (lambda n: n.LoRA(8, 2, 3, rngs=n.Rngs(0)), {"lora_a": (2, 2)}, (5, 2)),
}  # fmt: skip


def part(name, library):
    make, shapes, _ = PARTS[name]
    layer = make(library)
    for variable, shape in shapes.items():
        getattr(layer, variable).set_raw_value(jax.random.normal(jax.random.key(1), shape))
    return layer


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(lambda name: name not in ("LayerNorm", "InstanceNorm"), PARTS))
def test_a_layer_is_checked_against_the_weights_that_it_has(name):
    """Under ``shard_map`` they are a part of what it was made with."""
    x = jax.random.normal(jax.random.key(2), PARTS[name][2])
    with users_promotion():
        np.testing.assert_array_equal(part(name, plait)(x), part(name, flax_nnx())(x))


@pytest.mark.parametrize("name", [name for name in PARTS if name != "Einsum"])
def test_an_input_that_does_not_fit_the_part_is_named(name):
    whole = (*PARTS[name][2][:-1], 8)
    with pytest.raises(ShapeError, match=rf"(?s)found +an input of shape \({', '.join(map(str, whole))}"):
        part(name, plait)(jnp.ones(whole))


def test_the_error_says_that_the_weights_have_changed():
    with pytest.raises(ShapeError, match=r"shape \(\.\.\., 2\), since its weights now have that length.*in_features=8"):
        part("Linear", plait)(jnp.ones((5, 8)))


@pytest.mark.slow
@pytest.mark.oracle
def test_a_layer_whose_weights_shard_map_divides():
    mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.random.normal(jax.random.key(0), (5, 8))

    def run(nnx):
        def local(layer, x):
            return jax.lax.psum(layer(x), "a")

        specs = (nnx.StateSharding({nnx.PathContains("kernel"): P("a", None), ...: P()}), P(None, "a"))
        mapped = nnx.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())
        return mapped(nnx.Linear(8, 3, rngs=nnx.Rngs(0)), x)

    with users_promotion():
        np.testing.assert_array_equal(run(plait), run(flax_nnx()))


@pytest.mark.slow
def test_attention_and_embeddings_of_a_part():
    heads = plait.MultiHeadAttention(4, 8, qkv_features=16, decode=False, rngs=plait.Rngs(0))
    for projection in (heads.query, heads.key, heads.value):
        projection.kernel.set_raw_value(jnp.ones((8, 2, 4)))
        projection.bias.set_raw_value(jnp.ones((2, 4)))
    heads.out.kernel.set_raw_value(jnp.ones((2, 4, 8)))
    assert heads(jnp.ones((1, 5, 8))).shape == (1, 5, 8)
    embed = plait.Embed(8, 4, rngs=plait.Rngs(0))
    embed.embedding.set_raw_value(jnp.ones((8, 2)))
    assert embed.attend(jnp.ones((3, 2))).shape == (3, 8)


@pytest.mark.parametrize("name", ["SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell"])
def test_cells_of_a_part(name):
    cell = getattr(plait, name)(8, 4, rngs=plait.Rngs(0))
    for _, linear in plait.iter_modules(cell):
        if isinstance(linear, plait.Linear) and linear.in_features == 8:
            linear.kernel.set_raw_value(jnp.ones((2, linear.out_features)))
    carry = cell.initialize_carry((5, 2), plait.Rngs(1))
    assert cell(carry, jnp.ones((5, 2)))[1].shape == (5, 4)


@pytest.mark.slow
def test_a_norm_without_weights_takes_a_part_along_a_mapped_axis():
    norm = plait.LayerNorm(8, use_scale=False, use_bias=False, axis_name="a", rngs=plait.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (5, 8))
    parts = plait.vmap(norm, in_axes=1, out_axes=1, axis_name="a")(x.reshape(5, 4, 2))
    whole = plait.LayerNorm(8, use_scale=False, use_bias=False, rngs=plait.Rngs(0))
    np.testing.assert_allclose(parts.reshape(5, 8), whole(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match="8 features"):
        whole(x[:, :2])


UNSET = {
    "deterministic": plait.MultiHeadAttention(2, 8, dropout_rate=0.1, decode=False, rngs=plait.Rngs(0)),
    "decode": plait.MultiHeadAttention(2, 8, rngs=plait.Rngs(0)),
}


@pytest.mark.parametrize("name", UNSET)
def test_the_advice_for_an_unset_switch_says_what_trains(name):
    """L7."""
    with pytest.raises(ArgumentError, match=f"to train, .*{name}=False.*{name}=True (switches|takes)"):
        UNSET[name](jnp.ones((1, 3, 8)))
