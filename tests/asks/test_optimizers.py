"""What people do with Optax: injected hyperparameters, and moments that lie otherwise than the parameters. (Ask 19)"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait as nnx
from tests.compare import CLOSE, assert_same

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("users_promotion")


class Net(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.body, self.head = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.tanh(self.body(x)))


def loss(model, x=X, y=Y):
    return ((model(x) - y) ** 2).mean()


def plain_loss(params, x=X, y=Y):
    h = jnp.tanh(x @ params["body"]["kernel"] + params["body"]["bias"])
    return ((h @ params["head"]["kernel"] + params["head"]["bias"] - y) ** 2).mean()


def params_of(model):
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def test_hyperparameters_are_changed_between_steps_without_a_new_trace():
    """``inject_hyperparams``: the rate is a value of the optimizer's state."""
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    model, traces = Net(), []
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params = params_of(model)

    @nnx.jit
    def step(model, optimizer):
        traces.append(1)
        optimizer.update(model, nnx.grad(loss)(model))
        return optimizer.opt_state.hyperparams["learning_rate"][...]

    for rate in (0.1, 0.1, 0.5):
        optimizer.opt_state.hyperparams["learning_rate"].value = jnp.asarray(rate)
        np.testing.assert_allclose(step(model, optimizer), rate)
        params = jax.tree.map(lambda p, g, rate=rate: p - rate * g, params, jax.grad(plain_loss)(params))
    assert_same(params_of(model), params, CLOSE)
    assert len(traces) == 1


@pytest.mark.slow
def test_the_state_of_the_optimizer_lies_otherwise_than_the_parameters():
    """``optimizer_sharding``: moments spread over the devices, the kernel on each of them (ZeRO)."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        model = nnx.Linear(
            16, 8, kernel_metadata={"out_sharding": (None, None), "optimizer_sharding": ("data", None)},
            rngs=nnx.Rngs(0),
        )  # fmt: skip
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        moments = [leaf for path, leaf in nnx.to_flat_state(nnx.state(optimizer)) if path[-1] == "kernel"]
        assert len(moments) == 2

        @nnx.jit
        def step(model, optimizer):
            optimizer.update(model, nnx.grad(lambda model: (model(jnp.ones((4, 16))) ** 2).mean())(model))

        for _ in range(2):
            step(model, optimizer)
        moments = [leaf for path, leaf in nnx.to_flat_state(nnx.state(optimizer)) if path[-1] == "kernel"]
        for moment in moments:
            assert {shard.data.shape for shard in moment[...].addressable_shards} == {(2, 8)}
        assert {shard.data.shape for shard in model.kernel[...].addressable_shards} == {(16, 8)}
    alone = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(alone, optax.adam(0.1), wrt=nnx.Param)
    for _ in range(2):
        step(alone, optimizer)
    np.testing.assert_allclose(model.kernel[...], alone.kernel[...], rtol=1e-5)
