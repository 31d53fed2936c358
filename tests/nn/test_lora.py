import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError
from tests.nn.twins import (
    HALF_TOLERANCE,
    assert_pair_agrees,
    assert_twins_agree,
    flax_nnx,
    pure,
    some_input,
    twins,
)

RANDOM = {"b_initializer": plait.initializers.normal()}  # the default is zero


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=3)
@given(st.sampled_from([(3,), (2, 3), (2, 2, 3)]), st.integers(1, 3), st.booleans())
def test_lora_is_flax_s_forward_and_backward(shape, rank, wrapped):
    """L24."""
    x = some_input(*shape)
    nnx = flax_nnx()
    bases = twins("Linear", 3, 4, seed=1) if wrapped else (None, None)
    ours, theirs = (
        lib.LoRA(3, rank, 4, base_module=base, rngs=lib.Rngs(0), **RANDOM)
        for lib, base in zip((plait, nnx), bases, strict=True)
    )
    mine, other = pure(plait.state(ours)), pure(nnx.state(theirs), nnx)
    assert list(mine) == list(other)
    for path in mine:
        np.testing.assert_array_equal(mine[path], other[path])
    assert_pair_agrees(ours, theirs, x)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_bias": False, "kernel_init": plait.initializers.normal()},
        pytest.param({"lora_dtype": jnp.bfloat16, "lora_param_dtype": jnp.float16}, marks=pytest.mark.slow),
        {"dtype": jnp.bfloat16, "lora_dtype": jnp.bfloat16},
    ],
    ids=["default", "kernel", "lora dtypes", "half"],
)
def test_lora_linear_is_flax_s_forward_and_backward(options):
    """L25: the parameters of Linear first, then those of LoRA."""
    assert_twins_agree("LoRALinear", (3, 4), {"lora_rank": 2, **RANDOM, **options}, some_input(5, 3), HALF_TOLERANCE)


def test_a_wrapped_layer_starts_unchanged_and_gets_the_keywords():
    """L24."""
    base, x = plait.Dropout(0.5), some_input(4, 3)
    adapted = plait.LoRA(3, 2, 3, base_module=base, rngs=plait.Rngs(0))
    np.testing.assert_array_equal(adapted(x, rngs=plait.Rngs(1)), base(x, rngs=plait.Rngs(1)))


@pytest.mark.slow
def test_the_factors_alone_can_be_trained():
    """X13: a gradient for LoRAParam leaves the base out."""
    model, x = plait.LoRALinear(3, 4, lora_rank=2, rngs=plait.Rngs(0)), some_input(5, 3)
    loss = lambda model: (model(x) ** 2).sum()
    gradient = plait.grad(loss, argnums=plait.DiffState(0, plait.LoRAParam))(model)
    assert plait.to_flat_state(gradient).paths == (("lora", "lora_a"), ("lora", "lora_b"))
    assert not np.any(gradient["lora"]["lora_a"][...])  # B is zero at the start
    assert np.any(gradient["lora"]["lora_b"][...])


def test_kind_and_metadata_of_the_factors_are_as_asked():
    """L4, L24."""
    options = {"lora_param_type": plait.Cache, "a_metadata": {"tag": "a"}, "b_metadata": {"tag": "b"}}
    lora = plait.LoRA(3, 2, 4, rngs=plait.Rngs(0), **options)
    assert [(type(v), v.get_metadata("tag")) for v in (lora.lora_a, lora.lora_b)] == [
        (plait.Cache, "a"),
        (plait.Cache, "b"),
    ]


@pytest.mark.oracle
def test_other_kinds_of_factors_are_flax_s():
    nnx = flax_nnx()
    ours = plait.LoRA(3, 2, 4, lora_param_type=plait.Param, rngs=plait.Rngs(0))
    theirs = nnx.LoRA(3, 2, 4, lora_param_type=nnx.Param, rngs=nnx.Rngs(0))
    assert_pair_agrees(ours, theirs, some_input(2, 3))


def test_a_base_that_cannot_be_called_is_refused():
    with pytest.raises(ArgumentError, match=r"base_module[\s\S]*found +a int[\s\S]*plait\.Linear"):
        plait.LoRA(3, 2, 4, base_module=5, rngs=plait.Rngs(0))


def trained(layer, seed=7):
    """The layer with factors that are not zero."""
    for _, factor in plait.to_flat_state(plait.variables(layer, plait.LoRAParam)):
        factor[...] = jax.random.normal(jax.random.key(seed), factor.shape, factor.dtype)
    return layer


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("kind", ["LoRA", "LoRALinear"])
def test_a_merged_layer_computes_the_same_in_one_product(kind, use_bias):
    if kind == "LoRA":
        base = plait.Linear(3, 4, use_bias=use_bias, rngs=plait.Rngs(0))
        layer = trained(plait.LoRA(3, 2, 4, base_module=base, rngs=plait.Rngs(1)))
    else:
        layer = trained(plait.LoRALinear(3, 4, lora_rank=2, use_bias=use_bias, rngs=plait.Rngs(0)))
    before, x = plait.clone(layer), some_input(5, 3)
    merged = layer.merge()
    assert type(merged) is plait.Linear
    np.testing.assert_allclose(merged(x), layer(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(layer(x), before(x))  # it stays as it is
    merged.kernel[...] = jnp.zeros((3, 4))
    np.testing.assert_array_equal(layer(x), before(x))


def test_what_is_no_linear_cannot_be_merged():
    with pytest.raises(ArgumentError, match=r"(?s)around a Linear.*base_module="):
        plait.LoRA(3, 2, 4, rngs=plait.Rngs(0)).merge()


def stack(count=3):
    """A model with a stack of layers, made by ``vmap``, and a layer by itself; and how it is called."""

    @plait.vmap(transform_metadata={plait.PARTITION_NAME: "layers"})
    def make(key):
        return plait.Linear(4, 4, kernel_metadata={"out_sharding": ("embed", "mlp")}, rngs=plait.Rngs(key))

    class Net(plait.Module):
        def __init__(self):
            self.blocks = make(jax.random.split(jax.random.key(0), count))
            self.head = plait.Linear(4, 2, rngs=plait.Rngs(1))
            self.again = self.head

        def __call__(self, x):
            @plait.scan(in_axes=(0, plait.Carry), out_axes=plait.Carry)
            def run(block, x):
                return plait.tanh(block(x))

            return self.head(run(self.blocks, x))

    return Net()


@pytest.mark.slow
def test_add_lora_wraps_layers_and_stacks_of_them():
    model, x = stack(), some_input(5, 4)
    before = model(x)
    added = plait.add_lora(plait.select(model, plait.Linear), 2, rngs=plait.Rngs(2))
    assert len(added) == 2
    assert model.again is model.head
    assert (model.blocks.lora_a.shape, model.blocks.lora_b.shape) == ((3, 4, 2), (3, 2, 4))
    assert (model.blocks.lora_a.out_sharding, model.blocks.lora_b.out_sharding) == (
        ("layers", "embed", None),
        ("layers", None, "mlp"),
    )
    a = model.blocks.lora_a[...]
    assert not np.array_equal(a[0], a[1])
    np.testing.assert_allclose(model(x), before, rtol=1e-6)
    grads = plait.grad(lambda model: model(x).sum(), argnums=plait.DiffState(0, plait.LoRAParam))(model)
    assert set(grads) == {"again", "blocks"}
    assert float(jnp.abs(grads["blocks"]["lora_b"][...]).min()) > 0


def test_added_loras_are_merged_again():
    model, x = stack(), some_input(5, 4)
    plait.add_lora(plait.select(model, plait.Linear), 2, rngs=plait.Rngs(2))
    expected = trained(model)(x)
    plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
    assert type(model.blocks) is type(model.head) is plait.Linear
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-4)


def test_add_lora_names_what_is_no_linear():
    model = plait.Dict(a=plait.Linear(2, 2, rngs=plait.Rngs(0)), b=plait.Dropout(0.5))
    with pytest.raises(ArgumentError, match=r"(?s)at +b\n.*Dropout"):
        plait.add_lora(plait.select(model, plait.Any(plait.Linear, plait.Dropout)), 2, rngs=plait.Rngs(0))
    assert type(model.a) is plait.Linear


def test_the_options_of_add_lora_are_those_of_lora():
    model = plait.Dict(a=plait.Linear(2, 2, rngs=plait.Rngs(0)))
    options = {"param_dtype": jnp.bfloat16, "b_initializer": plait.initializers.ones}
    plait.add_lora(plait.select(model, plait.Linear), 2, rngs=plait.Rngs(0), **options)
    assert model.a.lora_a.dtype == jnp.bfloat16
    assert model.a.lora_b.tolist() == [[1.0, 1.0]] * 2


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.usefixtures("users_promotion")
def test_the_base_module_gets_the_input_in_the_dtype_of_the_layer_as_in_flax():
    flax_nnx, found = pytest.importorskip("flax.nnx"), []
    x = jax.random.normal(jax.random.key(0), (3, 4))
    for nnx in (plait, flax_nnx):
        base = nnx.Linear(4, 5, rngs=nnx.Rngs(1))
        layer = nnx.LoRA(4, 2, 5, base_module=base, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
        found.append((layer(x), base(x.astype(jnp.bfloat16))))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][0], found[0][1])  # the added map is zero at first
