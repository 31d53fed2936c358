"""ott-jax: a velocity field for flow matching, and its Sinkhorn coupling of two clouds."""

import jax
import jax.numpy as jnp
from flax import nnx
from ott.geometry import pointcloud
from ott.neural.networks.velocity_field import mlp
from ott.solvers import linear
from results import hand_over, stored, train


def make():
    return mlp.MLP(3, hidden_dims=(16, 16), cond_dim=2, time_enc_num_freqs=4, rngs=nnx.Rngs(0))


source, target = (jax.random.normal(jax.random.key(seed), (8, 3)) + seed for seed in (0, 1))
coupling = linear.solve(pointcloud.PointCloud(source, target)).matrix
pairs = target[jnp.argmax(coupling, axis=1)]
time, condition = jnp.linspace(0.0, 1.0, 8), jnp.ones((8, 2))


def loss(field, x0, x1):
    at = (1 - time[:, None]) * x0 + time[:, None] * x1
    return ((field(time, at, condition) - (x1 - x0)) ** 2).mean()


model = make()
losses = train(model, loss, source, pairs)
new = stored(model, make, nnx.Param)
hand_over(
    losses=losses,
    after=model(time, source, condition),
    restored=new(time, source, condition),
    coupling=coupling,
)
