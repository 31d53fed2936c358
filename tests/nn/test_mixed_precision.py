"""Computing in bfloat16 with parameters and statistics in float32, shown by numbers. (rule L3)"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from tests.nn.twins import some_input
from tests.sampling import slow_but

BF16 = jnp.bfloat16


class Net(plait.Module):
    def __init__(self, dtype, param_dtype=jnp.float32):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": plait.Rngs(0)}
        self.embed = plait.Linear(3, 8, **kinds)
        self.norm = plait.BatchNorm(8, momentum=0.9, **kinds)
        self.attention = plait.MultiHeadAttention(2, 8, decode=False, **kinds)
        self.last = plait.LayerNorm(8, **kinds)
        self.head = plait.Linear(8, 2, **kinds)

    def __call__(self, x):
        x = self.norm(self.embed(x))
        return self.head(self.last(x + self.attention(x)))


def dtypes(state):
    return {leaf[...].dtype.name for _, leaf in plait.to_flat_state(state)}


def loss(model, x):
    return (model(x).astype(jnp.float32) ** 2).mean()


def products(jaxpr):
    found = [tuple(v.aval.dtype.name for v in eqn.invars) for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    inner = [value for eqn in jaxpr.eqns for value in eqn.params.values()]
    for value in inner:
        if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
            found += products(getattr(value, "jaxpr", value))
    return found


@pytest.mark.slow
def test_every_product_is_in_bfloat16_and_every_variable_in_float32():
    model, x = Net(BF16), some_input(4, 5, 3)
    forward = products(plait.make_jaxpr(loss)(model, x).jaxpr)
    assert forward == [("bfloat16", "bfloat16")] * 8
    # jax.nn.dot_product_attention sums the products of queries and keys in float32, and so has two that mix backwards.
    both = products(plait.make_jaxpr(plait.grad(loss))(model, x).jaxpr)
    assert [both.count(pair) for pair in (("bfloat16", "bfloat16"), ("float32", "bfloat16"))] == [21, 2]
    assert len(both) == 23
    assert model(x).dtype == BF16
    grads = plait.grad(loss)(model, x)
    assert dtypes(grads) == {"float32"}
    assert dtypes(plait.state(model, (plait.Param, plait.BatchStat))) == {"float32"}


@pytest.mark.slow
def test_the_result_is_that_of_float32_to_bfloat16_s_eight_bits(users_promotion):
    x = some_input(4, 5, 3)
    half, full = Net(BF16), Net(jnp.float32)
    np.testing.assert_allclose(half(x).astype(jnp.float32), full(x), rtol=0.05, atol=0.05)
    gradients = [plait.grad(loss)(model, x) for model in (half, full)]
    norms = [float(optax.tree.norm(plait.as_pure(gradient))) for gradient in gradients]
    assert norms[0] == pytest.approx(norms[1], rel=0.05)


@pytest.mark.parametrize(
    "kind", slow_but(["BatchNorm", "RMSNorm"], ["BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm"])
)
def test_statistics_are_taken_in_float32(kind):
    """A sum of 4,096 ones in bfloat16 stops at 256."""
    args = (4096,) if kind == "LayerNorm" or kind == "RMSNorm" else (1,)
    given = {"num_groups": 1} if kind == "GroupNorm" else {}
    norm = getattr(plait, kind)(*args, **given, dtype=BF16, rngs=plait.Rngs(0))
    x = jnp.concatenate([jnp.ones(4095), jnp.full(1, 3.0)]).astype(BF16)
    x = x[None] if kind in ("LayerNorm", "RMSNorm") else x[:, None] if kind == "BatchNorm" else x[None, :, None]
    y = norm(x)
    wide = np.asarray(x, np.float64)
    centre = 0 if kind == "RMSNorm" else wide.mean()
    expected = (wide - centre) / np.sqrt((wide**2).mean() - centre**2 + norm.epsilon)
    assert y.dtype == BF16
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2**-7)


def test_running_statistics_keep_what_bfloat16_would_lose():
    """Steps of a hundredth of the distance to 1 move a float32 average; in bfloat16 they round away."""
    norm = plait.BatchNorm(1, momentum=0.999, dtype=BF16, rngs=plait.Rngs(0))
    x = jnp.asarray([[0.5], [1.5]], BF16)
    step = plait.jit(lambda norm, x: norm(x))
    for _ in range(2000):
        step(norm, x)
    np.testing.assert_allclose(norm.mean[...], 1 - 0.999**2000, rtol=1e-4)
    lost = jnp.zeros((), BF16)
    for _ in range(2000):
        lost = (0.999 * lost + 0.001).astype(BF16)
    assert float(lost) <= 0.5 < float(norm.mean[0])


def test_small_updates_add_up(users_promotion):
    """Three hundred updates of 1e-4 on a weight of 1: bfloat16 parameters would not move."""

    def trained(param_dtype):
        layer = plait.Linear(
            1, 1, use_bias=False, kernel_init=plait.initializers.ones, dtype=BF16, param_dtype=param_dtype,
            rngs=plait.Rngs(0),
        )  # fmt: skip
        optimizer = plait.Optimizer(layer, optax.sgd(1e-4), wrt=plait.Param)

        @plait.jit
        def step(layer, optimizer):
            optimizer.update(layer, plait.grad(lambda layer: layer(jnp.ones((1, 1), BF16)).sum())(layer))

        for _ in range(300):
            step(layer, optimizer)
        return float(layer.kernel[...][0, 0])

    assert trained(jnp.float32) == pytest.approx(0.97, abs=1e-3)
    assert trained(BF16) == 1.0


def test_loss_scaling_saves_gradients_that_float16_would_lose(users_promotion):
    """A gradient of 1e-8 is zero in float16; scaled by 2**15 it is not."""
    layer = plait.Linear(1, 1, use_bias=False, dtype=jnp.float16, rngs=plait.Rngs(0))
    x = jnp.full((1, 1), 1e-4, jnp.float16)

    def loss(layer, scale):
        return (layer(x) * jnp.float16(1e-4) * scale.astype(jnp.float16)).sum().astype(jnp.float32)

    plain = plait.grad(loss)(layer, jnp.ones(()))["kernel"][...]
    assert float(plain[0, 0]) == 0.0
    scale = jnp.asarray(2.0**15)
    scaled = plait.grad(loss)(layer, scale)["kernel"][...] / scale
    np.testing.assert_allclose(scaled, [[1e-8]], rtol=1e-2)
    assert jax.numpy.isfinite(scaled).all()
